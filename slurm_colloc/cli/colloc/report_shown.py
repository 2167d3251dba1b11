# SPDX-License-Identifier: Apache-2.0
"""colloc report: writes a report in the chosen format."""

from collections.abc import Callable, Mapping
from typing import Any

from slurm_colloc.accounting.parquet import parquet_bytes
from slurm_colloc.cli.colloc.terminal import terminal
from slurm_colloc.report.formats import PARQUET, TABLE, TEXTS, about, flat
from slurm_colloc.report.layout import NO_TERMINAL, Terminal
from slurm_colloc.report.usage import UsageReport
from slurm_colloc.report.usage_text import as_table

ROWS_ON_TERMINAL = 20


def shown_as(report: UsageReport, form: str, top: int | None, output: str, *, explained: bool = False) -> str | bytes:
    """Return a report in one of FORMATS.

    Args:
        report: all of it.
        form: one of FORMATS.
        top: so many rows of those that are read by people, 0 for all, None for what suits where they are read.
        output: the file that it goes to; empty for standard output.
        explained: whether tables that people read explain each of their columns.

    Raises:
        ConfigError: a site's template that does not render.
        StoreError: there is no room for a file of Parquet.
    """
    if form == TABLE:
        shown_on = _shown_on(output)
        usual = 0 if shown_on.columns is None else ROWS_ON_TERMINAL
        return as_table(report, shown_on, usual if top is None else top, explained=explained)
    if form == PARQUET:
        return parquet_bytes(*flat(report), about(report))
    return TEXTS[form](report)


def other_shown_as(found: Any, formats: Mapping[str, Callable[..., str]], form: str, output: str) -> str:
    """Return a report of another kind in one of its ``formats``; ``output`` as of ``shown_as``."""
    return formats[TABLE](found, _shown_on(output)) if form == TABLE else formats[form](found)


def _shown_on(output: str) -> Terminal:
    return NO_TERMINAL if output else terminal()
