# SPDX-License-Identifier: Apache-2.0
"""csub's help and shell completion, by Typer. Typer never sees a submission: it would steal the script's arguments."""

from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

app = typer.Typer(
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)


@app.command(name="csub", options_metavar="[SBATCH OPTIONS] [OPTIONS]")
def csub(
    script: Annotated[str, typer.Argument(help="the batch script, then its own arguments; none: standard input")] = "",
    gpu_footprint: Annotated[
        str, typer.Option("--gpu-footprint", metavar="mem=SIZE,sm=PERCENT", help="what the job needs of one GPU")
    ] = "",
    colloc: Annotated[str, typer.Option("--colloc", metavar="auto|off", help="off: submit as asked")] = "auto",
    explain: Annotated[bool, typer.Option("--explain", help="say why, and what was rejected")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the script, submit nothing")] = False,
    form: Annotated[str, typer.Option("--format", metavar="script|json", help="of --dry-run")] = "script",
) -> None:
    """Submit a batch job as sbatch does, and give it a piece of a GPU when it needs no whole one.

    Every option of sbatch works as with sbatch (see 'sbatch --help'); csub's own stand below, and in scripts as
    '#CSUB --gpu-footprint=mem=9G,sm=30'. What is not understood with certainty goes to sbatch unchanged.
    """


def show(argv: Sequence[str]) -> NoReturn:
    """Print help or completion and exit."""
    app(list(argv), prog_name="csub")
    raise SystemExit(0)
