# SPDX-License-Identifier: Apache-2.0
"""csub's help, by Typer. Typer never sees a submission: it would steal the script's arguments."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from slurm_colloc import __version__

# Completed, and left out of the list: the last lines name them.
_HIDDEN = (
    *("--install-completion", "--show-completion", "--pack-tasks", "--pack-jobs", "--pack-retries"),
    *("--canary", "--probe"),
)
# One screen of 24 lines and 80 columns; \b keeps click from filling the lines of a paragraph anew.
# "csub --version" is sbatch's, whose output programs read.
_EPILOG = f"""
\b
Packs:        csub pack -h; --pack-tasks=K --pack-jobs=N --pack-retries=N
Also:         --canary --probe
In a script:  #CSUB --gpu-footprint=mem=9G,sm=30 or #CSUB --colloc=off
{f"csub {__version__}:":<13} man csub; sbatch --help; what it decided for you: colloc history
"""


class CsubCommand(typer.core.TyperCommand):
    """The command as a shell completes it: sbatch's way with options, ':' and the words behind the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the component that is being written; an optional value stands behind "=" only."""
        last = args[len(args) - args[::-1].index(":") :] if ":" in args else args
        flags = {name for item in self.params if getattr(item, "is_flag", False) for name in item.opts}
        names = ((word, word.partition("=")[0]) for word in last)
        return super().parse_args(ctx, [name if name in flags else word for word, name in names])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return options; what stands behind the script is the script's own."""
        return [] if ctx.params.get("script") else super().shell_complete(ctx, incomplete)


def _one_of(*values: str) -> Callable[..., list[str]]:
    """Return what completes the value of an option, unless that stands behind the script."""

    def complete(ctx: typer.Context) -> list[str]:
        return [] if ctx.params.get("script") else list(values)

    return complete


app = typer.Typer(
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False},
    rich_markup_mode=None,
)


@app.command(name="csub", cls=CsubCommand, options_metavar="[SBATCH'S OPTIONS] [OPTIONS]", epilog=_EPILOG)
def csub(
    script: Annotated[str, typer.Argument(metavar="SCRIPT [ARGUMENTS]", hidden=True)] = "",
    gpu_footprint: Annotated[
        str,
        typer.Option("--gpu-footprint", metavar="mem=SIZE[,sm=PCT][,dram=PCT]", help="what the job needs of one GPU"),
    ] = "",
    colloc: Annotated[
        str,
        typer.Option(
            "--colloc",
            metavar="auto|off",
            help="off|exclusive:WHY: as asked",
            autocompletion=_one_of("auto", "off"),
        ),
    ] = "auto",
    pack: Annotated[bool, typer.Option("--pack", help="run an array's tasks together on a GPU")] = False,
    pack_tasks: Annotated[str, typer.Option("--pack-tasks", metavar="K")] = "",
    pack_jobs: Annotated[str, typer.Option("--pack-jobs", metavar="N")] = "",
    pack_retries: Annotated[str, typer.Option("--pack-retries", metavar="N")] = "2",
    canary: Annotated[bool, typer.Option("--canary")] = False,
    probe: Annotated[bool, typer.Option("--probe")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="say why, and what was rejected")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the script, submit nothing")] = False,
    form: Annotated[
        str,
        typer.Option("--format", metavar="script|json", help="of --dry-run", autocompletion=_one_of("script", "json")),
    ] = "script",
) -> None:
    """Submit a batch job as sbatch does, and give it a piece of a GPU (a MIG slice or a share) instead of a whole one
    where that holds what the job needs.

    csub takes every option of sbatch, and these of its own. What a job needs you say with --gpu-footprint, or csub
    measures it while the job runs. What it does not understand with certainty goes to sbatch unchanged.
    """


def show(argv: Sequence[str]) -> NoReturn:
    """Print help, or print or install completion, and exit."""
    command = typer.main.get_command(app)
    for item in command.params:
        if isinstance(item, typer.core.TyperOption) and item.opts[0] in _HIDDEN:
            item.hidden = True
    command(list(argv), prog_name="csub")
    raise SystemExit(0)
