# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have."""

from typing import Annotated

import typer

Form = Annotated[str, typer.Option("--format", help="text or json")]
StoreFolder = Annotated[str, typer.Option("--store", help="folder of the store; else the site's")]
JournalFolder = Annotated[str, typer.Option("--journal", help="folder of samples; else the site's")]
Node = Annotated[str, typer.Option("--node", help="this node's name in Slurm; else the host's")]
Period = Annotated[float | None, typer.Option("--period", min=0.05, max=3600.0, help="seconds between two samples")]
Count = Annotated[int, typer.Option("--count", min=0, help="end after so many samples; 0: go on")]
