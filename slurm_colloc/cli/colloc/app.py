# SPDX-License-Identifier: Apache-2.0
"""The program colloc, put together from its commands."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from typer import Context, Exit, Option, Typer
from typer.core import TyperGroup

from slurm_colloc import __version__
from slurm_colloc.cli.colloc import COMMANDS, PANELS
from slurm_colloc.cli.colloc.output import say
from slurm_colloc.core.config_file import how_passed_over, passed_over


class _InOrder(TyperGroup):
    """Typer lists groups behind commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        room = formatter.width - 6 - max(map(len, COMMANDS))
        for title, names in PANELS.items():
            rows = [(name, self.commands[name].get_short_help_str(room)) for name in names if name in self.commands]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def build(names: Sequence[str]) -> Typer:
    """Return the program with the commands ``names``."""
    app = Typer(
        name="colloc",
        cls=_InOrder,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Measure what jobs use of their GPUs, report it for each user, and tell csub what each job needs.",
    )
    app.callback(invoke_without_command=True)(_root)
    for name in names:
        try:
            module = import_module(f"slurm_colloc.cli.colloc.{name}")
        except ModuleNotFoundError:  # the package of csub alone has no reports
            if len(names) == 1:
                raise
            continue
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def _root(ctx: Context, version: bool = Option(False, "--version", help="print the version and exit")) -> None:
    if version:
        print(f"colloc {__version__}")
        raise Exit
    if ctx.invoked_subcommand not in PANELS["Commands that services run"] and (path := passed_over()):
        say(how_passed_over(path))
