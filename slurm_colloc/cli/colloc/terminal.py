# SPDX-License-Identifier: Apache-2.0
"""Properties of standard output: terminal, width, colours, encoding."""

import os
import sys
from collections.abc import Callable, Mapping

from slurm_colloc.cli.colloc.output import write
from slurm_colloc.report.layout import NO_TERMINAL, Terminal, folded

_USUAL_COLUMNS = 80


def terminal(output: str = "") -> Terminal:
    """Return the terminal behind standard output; $COLUMNS, $NO_COLOR and $TERM are heard.

    It is none where the output goes elsewhere, as to the file ``output``: its reader there wants whole lines.
    """
    if output or not sys.stdout.isatty():
        return NO_TERMINAL
    variable = os.environ.get("COLUMNS", "")
    columns = (
        int(variable)
        if variable.isascii() and variable.isdigit()
        else os.get_terminal_size(sys.stdout.fileno()).columns
    )
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return Terminal(columns or _USUAL_COLUMNS, colour)


def put(text: str, indent: int = 6) -> None:
    """Print lines, folded where they are too long for the terminal, but for commands, which are there to be copied."""
    columns = terminal().columns
    lines = (
        [line] if line.lstrip().startswith("see: ") else folded(line, columns, indent) for line in text.splitlines()
    )
    write("".join(f"{line}\n" for some in lines for line in some), "")


Formats = Mapping[str, Callable[..., str | bytes]]


def rendered(report: object, formats: Formats, form: str, output: str = "") -> str | bytes:
    """Return a report in one of its ``formats``; the first is for people, at their terminal or in a file."""
    make = formats[form]
    return make(report, terminal(output)) if form == next(iter(formats)) else make(report)


def show(report: object, formats: Formats, form: str, output: str = "") -> None:
    """Print a report in one of its formats, or write it to a file."""
    write(rendered(report, formats, form, output), output)
