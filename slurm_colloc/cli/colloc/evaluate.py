# SPDX-License-Identifier: Apache-2.0
"""colloc evaluate: what csub would have done with runs of the past."""

import math
from collections import Counter
from pathlib import PurePath
from typing import Annotated

import typer

from slurm_colloc.cli.colloc.output import one_of, site_or_none, write
from slurm_colloc.config import MigSlice, Partition, Pool, Sharing, SiteConfig
from slurm_colloc.errors import InputError
from slurm_colloc.report.cases import MODES, Row
from slurm_colloc.report.evaluation import FORMATS, Evaluation
from slurm_colloc.report.replay import CSUB, kept, replay, scores
from slurm_colloc.report.runs_table import Table, parse_table
from slurm_colloc.report.speeds import speeds


def evaluate(
    tables: Annotated[
        list[str], typer.Argument(metavar="TABLE.csv", help="one run a row, as docs/how-to/tier-place.md says")
    ],
    mode: Annotated[str, typer.Option("--as", help="history (each run known to later ones) or leave-one-out")] = (
        "history"
    ),
    slices: Annotated[
        str, typer.Option("--slices", help="usable MiB of each slice, by comma, the whole GPU too; else the site's")
    ] = "",
    shares: Annotated[
        str, typer.Option("--shares", help="MiB of a GPU that is shared in hundredths by MPS; else the site's")
    ] = "",
    max_slowdown: Annotated[
        float | None, typer.Option("--max-slowdown", help="how much slower a piece may be; else the site's, or 1.1")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="text, json or csv")] = "text",
    output: Annotated[str, typer.Option("--output", "-o", help="file instead of standard output")] = "",
) -> None:
    """Score csub's decisions on a published table of runs."""
    one_of("--format", form, FORMATS)
    one_of("--as", mode, MODES)
    if slices and shares:
        raise InputError("--slices and --shares are two ways to divide a GPU; give one of them")
    config = _any_gpu(slices, shares) if slices or shares else site_or_none()
    if config is None:
        raise InputError("no site.toml found that says which pieces there are; give --slices or --shares")
    if max_slowdown is not None:
        if not 1 <= max_slowdown < math.inf:
            raise InputError(f"--max-slowdown={max_slowdown:g} is no number of at least 1")
        config = config._replace(sharing=config.sharing._replace(max_slowdown=max_slowdown))
    found = [_table(name) for name in tables]
    sources = [PurePath(name).stem for name in tables]
    if twice := next((name for name in sources if sources.count(name) > 1), ""):
        raise InputError(f"two tables are called '{twice}'; each is a source of its own, and known by its name")
    cases = [
        case
        for source, table in zip(sources, found, strict=True)
        for case in MODES[mode]([row._replace(source=source) for row in table.rows])
    ]
    done = replay(cases, config)
    rejected = sum((Counter(table.rejected) for table in found), Counter[str]())
    rows: list[Row] = [row for table in found for row in table.rows]
    if not done.judged:
        why = {**rejected, **done.not_placed}
        said = "; ".join(f"{reason}: {count}" for reason, count in sorted(why.items())) or "--as finds no case in it"
        raise InputError(
            f"no placement can be made of the {sum(table.rows_in for table in found)} rows of "
            f"'{', '.join(tables)}' ({said})"
        )
    by_csub = [one.case.row for one in done.judged if one.policy == CSUB]
    shown = Evaluation(
        mode=mode,
        max_slowdown=config.sharing.max_slowdown,
        rows_in=sum(table.rows_in for table in found),
        used=len(rows),
        rejected=rejected,
        censored=sum(not row.completed for row in rows),
        clock_back=sum(table.clock_back for table in found),
        not_read=tuple(dict.fromkeys(name for table in found for name in table.not_read)),
        not_placed=done.not_placed,
        placements=len(by_csub),
        times_measured=sum(bool(row.slowdowns) for row in by_csub),
        without_speed=sum(row.run.sm_active_mean_pct is None for row in by_csub),
        scores=tuple(scores(done.judged)),
        speeds=tuple(speeds(rows, config.sharing.max_slowdown)),
        kept=tuple(kept(done.judged)),
    )
    write(FORMATS[form](shown), output)


def _table(name: str) -> Table:
    try:
        with open(name, encoding="utf-8", errors="surrogateescape", newline="") as stream:
            return parse_table(stream.read())
    except OSError as error:
        raise InputError(f"table '{name}' cannot be read: {error.strerror}") from error


def _any_gpu(slices: str, shares: str) -> SiteConfig:
    """Return a site whose one kind of GPU has these pieces, whatever its model; slices have SMs as they have memory."""
    sizes = sorted(_sizes("--slices" if slices else "--shares", slices or shares))
    if shares and len(sizes) > 1:
        raise InputError(f"--shares '{shares}' is the MiB of one GPU")
    parts = tuple(MigSlice(f"slice{mib}", f"{mib}", mib, max(1, 100 * mib // sizes[-1]), 1) for mib in sizes[:-1])
    pool = Pool("any", "n1", ("any",), gpus_per_node=1, gpu_mem_mib=sizes[-1], sm_count=100)
    pool = pool._replace(slice=parts) if slices else pool._replace(mps_per_gpu=100)
    order, daemon = (("mig",), "none") if slices else (("mps",), "prolog")
    sharing = Sharing(order=order, mps_daemon=daemon)
    partition = Partition("any", mps_users="one")
    return SiteConfig(1, "any", "24.11", "any", pool=(pool,), partition=(partition,), sharing=sharing)


def _sizes(option: str, text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word) < 10**9 for word in words):
        raise InputError(f"{option} '{text}' is not MiB by comma, such as 4864,9856,19968,40192")
    return tuple(map(int, words))
