# SPDX-License-Identifier: Apache-2.0
"""colloc: what GPUs are really used for. One file for each group of commands."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import typer

from slurm_colloc import __version__
from slurm_colloc.cli.colloc.output import run

# In the order of help. Each is a file beside this one with ``app`` (a group) or a function of its own name.
COMMANDS = ("site", "sample", "seal", "ingest", "compact", "report", "job", "history", "audit", "demo")


def build(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """Return the program with the commands ``names``."""
    app = typer.Typer(
        name="colloc",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Measure what jobs really use of their GPUs, report it per user, and feed csub's estimates.",
    )
    app.callback(invoke_without_command=True)(_root)
    for name in names:
        module = import_module(f"slurm_colloc.cli.colloc.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def _root(version: bool = typer.Option(False, "--version", help="print the version and exit")) -> None:
    if version:
        print(f"colloc {__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Run colloc."""
    # Only the command asked for is imported: a sampler inside a job must not carry pandas and duckdb.
    asked = sys.argv[1:2]
    names = asked if asked and asked[0] in COMMANDS else COMMANDS
    run(build(names))
