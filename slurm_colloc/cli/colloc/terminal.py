# SPDX-License-Identifier: Apache-2.0
"""What standard output is: a terminal of some width, with or without colours and letters beyond ASCII, or none."""

import os
import sys

from slurm_colloc.report.layout import Terminal

_USUAL_COLUMNS = 80


def terminal() -> Terminal:
    """Return the terminal behind standard output; $COLUMNS, $NO_COLOR and $TERM are heard.

    Without ``columns`` where the output goes elsewhere: what reads it there wants whole lines.
    """
    encoding = sys.stdout.encoding or "ascii"
    if not sys.stdout.isatty():
        return Terminal(encoding=encoding)
    asked = os.environ.get("COLUMNS", "")
    columns = int(asked) if asked.isascii() and asked.isdigit() else os.get_terminal_size(sys.stdout.fileno()).columns
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return Terminal(columns or _USUAL_COLUMNS, colour, encoding)
