# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Annotated, Any

from typer import Argument, Option

from slurm_colloc.cli.colloc.output import one_of


def format_option(*forms: str) -> Any:
    """Return the option --format of a command that writes these forms."""

    def known(form: str) -> str:
        one_of("--format", form, forms)
        return form

    return Option("--format", help=f"{', '.join(forms[:-1])} or {forms[-1]}", callback=known)


JobId = Annotated[str, Argument(help="as Slurm prints it")]
Since = Annotated[str, Option(help="ISO 8601, or a span such as 7d")]
Until = Annotated[str, Option(help="ISO 8601, a span, or now")]
LookBack = Annotated[str, Option("--since", help="look back so far")]
Output = Annotated[str, Option("--output", "-o", help="file instead of standard output")]
Form = Annotated[str, format_option("text", "json")]
StoreFolder = Annotated[str, Option(help="folder of the store; else the site's")]
JournalFolder = Annotated[str, Option(help="folder of samples; else the site's")]
TextFields = Annotated[str, Option(help="columns of that text, by comma, where it has no header")]
TimeZone = Annotated[str, Option("--timezone", help="zone of times without one in that text")]
Node = Annotated[str, Option(help="this node's name in Slurm; else the host's")]
Period = Annotated[float | None, Option(min=0.05, max=3600.0, help="seconds between two samples")]
Count = Annotated[int, Option(min=0, help="end after so many samples; 0: go on")]


def options_of(record: type) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Have a command take the fields of a record as its options, and get them as that record."""

    def with_options(command: Callable[[Any], None]) -> Callable[..., None]:
        @wraps(command)
        def called(**values: Any) -> None:
            command(record(**values))

        called.__dict__["__signature__"] = signature(record)
        return called

    return with_options
