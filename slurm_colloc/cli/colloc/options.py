# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Annotated, Any

import typer

JobId = Annotated[str, typer.Argument(help="as Slurm prints it")]
Since = Annotated[str, typer.Option(help="ISO 8601, or a span such as 7d")]
Until = Annotated[str, typer.Option(help="ISO 8601, a span, or now")]
LookBack = Annotated[str, typer.Option("--since", help="look back so far")]
Output = Annotated[str, typer.Option("--output", "-o", help="file instead of standard output")]
Form = Annotated[str, typer.Option("--format", help="text or json")]
StoreFolder = Annotated[str, typer.Option("--store", help="folder of the store; else the site's")]
JournalFolder = Annotated[str, typer.Option("--journal", help="folder of samples; else the site's")]
Node = Annotated[str, typer.Option("--node", help="this node's name in Slurm; else the host's")]
Period = Annotated[float | None, typer.Option("--period", min=0.05, max=3600.0, help="seconds between two samples")]
Count = Annotated[int, typer.Option("--count", min=0, help="end after so many samples; 0: go on")]


def options_of(record: type) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Have a command take the fields of a record as its options, and get them as that record."""

    def with_options(command: Callable[[Any], None]) -> Callable[..., None]:
        @wraps(command)
        def called(**values: Any) -> None:
            command(record(**values))

        called.__dict__["__signature__"] = signature(record)
        return called

    return with_options
