# SPDX-License-Identifier: Apache-2.0
"""colloc: what GPUs are really used for. One file for each group of commands."""

import sys
from typing import NoReturn

# The order is that of help, by who needs them. Each is a file beside this one with ``app`` (a group) or a function of
# that name.
PANELS = {
    "Commands for users": ("job", "jobs", "why", "me", "history", "late", "off"),
    "Commands for administrators": ("report", "site", "audit", "demo"),
    "Commands that services run": ("agent", "sample", "flush", "holders", "ingest", "compact", "policy", "pages"),
}
COMMANDS = tuple(name for names in PANELS.values() for name in names)


def main() -> NoReturn:
    """Run colloc."""
    # Only the command asked for is imported: a sampler inside a job must not carry pandas and duckdb.
    command = sys.argv[1:2]
    names = command if command and command[0] in COMMANDS else COMMANDS
    # Here and not above: the agent uses this package for years without typer.
    from slurm_colloc.cli.colloc.output import run

    def ready() -> None:
        from slurm_colloc.cli.colloc.app import build

        build(names)()

    # Most of the time before the first word goes into imports: Ctrl-C ends them, too, without a traceback.
    run(ready)
