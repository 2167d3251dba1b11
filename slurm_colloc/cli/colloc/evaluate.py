# SPDX-License-Identifier: Apache-2.0
"""colloc evaluate: what csub's estimates would have done with runs of the past."""

from typing import Annotated

import typer

from slurm_colloc.cli.colloc.output import one_of, site_or_none, write
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError
from slurm_colloc.estimate.replay import MODES, Pieces, replay, scores
from slurm_colloc.estimate.runs_table import parse_table
from slurm_colloc.report.evaluation import FORMATS, Evaluation


def evaluate(
    table: Annotated[str, typer.Argument(metavar="TABLE.csv", help="one run a row, as docs/how-to/evaluate.md says")],
    mode: Annotated[
        str, typer.Option("--as", help="history (each run known to later ones), leave-one-out or repeats")
    ] = "history",
    slices: Annotated[
        str, typer.Option("--slices", help="usable MiB of each piece, by comma, the whole GPU too; else the site's")
    ] = "",
    form: Annotated[str, typer.Option("--format", help="text, json or csv")] = "text",
    output: Annotated[str, typer.Option("--output", "-o", help="file instead of standard output")] = "",
) -> None:
    """Replay a table of runs through csub's rungs, and score them."""
    one_of("--format", form, FORMATS)
    one_of("--as", mode, MODES)
    pieces = Pieces({"": _sizes(slices)}) if slices else _pieces(site_or_none())
    try:
        with open(table, encoding="utf-8", errors="surrogateescape", newline="") as stream:
            found = parse_table(stream.read())
    except OSError as error:
        raise InputError(f"table '{table}' cannot be read: {error.strerror}") from error
    done = replay(MODES[mode](found.rows), pieces)
    if not done.outcomes:
        why = {**found.rejected, **done.not_placed}
        said = "; ".join(f"{reason}: {count}" for reason, count in sorted(why.items())) or "--as finds no case in it"
        raise InputError(f"no placement can be made of the {found.rows_in} rows of '{table}' ({said})")
    shown = Evaluation(
        mode=mode,
        pieces={model: pieces.of(model) for model in pieces.sizes_mib},
        headroom_mib=pieces.headroom_mib,
        rows_in=found.rows_in,
        used=len(found.rows),
        rejected=found.rejected,
        censored=sum(not row.completed for row in found.rows),
        clock_back=found.clock_back,
        not_placed=done.not_placed,
        scores=tuple(scores(done.outcomes)),
    )
    write(FORMATS[form](shown), output)


def _sizes(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word) < 10**9 for word in words):
        raise InputError(f"--slices '{text}' is not MiB by comma, such as 4864,9856,19968,40192")
    return tuple(map(int, words))


def _pieces(config: SiteConfig | None) -> Pieces:
    """Return what the site's pools have: slices, and the whole GPU of each model."""
    if config is None:
        raise InputError("no site.toml found that says which pieces there are; give --slices")
    sizes: dict[str, tuple[int, ...]] = {}
    for pool in config.pool:
        if pool.gpu_mem_mib is not None:
            found = (*(piece.mem_mib for piece in pool.slice), pool.gpu_mem_mib)
            sizes[pool.gpu_model] = (*sizes.get(pool.gpu_model, ()), *found)
    if not sizes:
        raise InputError("site.toml says of no pool how much memory its GPUs have; give --slices")
    return Pieces(sizes, config.sharing.headroom_mib)
