# SPDX-License-Identifier: Apache-2.0
"""colloc site plan: what sharing, or other GPUs, would do for this site's queue, from its own jobs."""

from datetime import datetime
from math import inf, nan
from typing import Annotated

from typer import Option

from slurm_colloc.cli.colloc.options import Output, Since, StoreFolder, Until, format_option
from slurm_colloc.cli.colloc.output import site, window, write
from slurm_colloc.cli.colloc.progress import progress
from slurm_colloc.cli.colloc.visible_store import seen_store
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError, InputError
from slurm_colloc.facts.evidence import measured_runs
from slurm_colloc.facts.fits import Kept, fitted_by_evidence
from slurm_colloc.facts.run_rows import past_runs
from slurm_colloc.plan.answer import answer
from slurm_colloc.plan.change import Asked, pools_with_whole
from slurm_colloc.plan.geometry import Cut, parse_geometry
from slurm_colloc.plan.past import Allocated, Past, Use, past_of
from slurm_colloc.plan.site import Rules, rules_of
from slurm_colloc.plan.text import as_json, as_table
from slurm_colloc.report.text import stamp
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.store.store import Store

AUTO = "auto"
_MOST_DEMAND = 10.0
_ONE_GPU = ("", "", "", "gpu:1")


Mig = Annotated[
    str,
    Option(metavar="GEOMETRY", help="auto, or slices of one GPU as [POOL=]3g.40gb+2g.20gb+1g.10gb@NODES"),
]
Mps = Annotated[bool, Option("--mps", help="MPS shares on all whole GPUs")]
Demand = Annotated[float, Option(help="so many times the jobs, as 1.2")]
Assume = Annotated[
    str,
    Option(metavar="GIB,PERCENT", help="memory peak and SM activity of jobs of one GPU not measured, as 10,20"),
]


def plan(
    mig: Mig = "",
    mps: Mps = False,
    shards: Annotated[bool, Option("--shards", help="shards on all whole GPUs")] = False,
    adoption: Annotated[float, Option(help="the part of jobs that csub places, as 0.3")] = 1.0,
    gpus: Annotated[int, Option(help="so many GPUs more or fewer, as +8 or -8: whole nodes")] = 0,
    demand: Demand = 1.0,
    assume: Assume = "",
    since: Since = "30d",
    until: Until = "now",
    form: Annotated[str, format_option("table", "json")] = "table",
    output: Output = "",
    store: StoreFolder = "",
) -> None:
    """Replay the past queue with slices, shares or other GPUs."""
    if not 0 < adoption <= 1:
        raise InputError(f"--adoption {adoption:g} is no part of jobs above 0 and up to 1")
    check_demand(demand)
    assumed = assumed_use(assume)
    config = site()
    change = Asked(cuts_of(mig, config), mig == AUTO, mps, shards, adoption, gpus, demand)
    if adoption < 1 and not change.shares:
        raise InputError("--adoption is of jobs that get slices or shares; add --mig, --mps or --shards")
    span = window(since, until)
    rules = rules_here(config)
    past = past_in(seen_store(store, config), config, span, assumed)
    with progress("replaying") as step:
        replayed = answer(past, config, rules, change, step)
    start, end = map(stamp, span)
    write(as_json(replayed) if form == "json" else as_table(replayed, config.cluster, (start, end)), output)


def check_demand(demand: float) -> None:
    """Check --demand.

    Raises:
        InputError: it is too small or too large.
    """
    if not 0 < demand <= _MOST_DEMAND:
        raise InputError(f"--demand {demand:g} is not above 0 and up to {_MOST_DEMAND:g}")


def assumed_use(text: str) -> tuple[int, float] | None:
    """Return the memory peak (MiB) and SM activity (percent) of --assume, None where it is empty.

    Raises:
        InputError: it is none.
    """
    if not text:
        return None
    peak, _, activity = text.partition(",")
    try:
        gib, sm_pct = float(peak), float(activity)
    except ValueError:
        gib = sm_pct = nan
    if not (0 < gib < inf and 0 <= sm_pct <= 100):
        raise InputError(f"--assume '{text}' is no GiB and percent, as 10,20")
    return int(gib * 1024), sm_pct


def cuts_of(mig: str, config: SiteConfig) -> tuple[Cut, ...]:
    """Return the cuts that --mig names, none for auto.

    Raises:
        InputError: it names what this site's GPUs cannot be cut into.
    """
    if not mig or mig == AUTO:
        return ()
    return tuple(parse_geometry(mig, pools_with_whole(config)))


def past_in(
    store: Store, config: SiteConfig, span: tuple[datetime, datetime], assumed: tuple[int, float] | None = None
) -> Past:
    """Return the jobs of a window that a store knows, with what was measured of them.

    Raises:
        InputError: some of them are not to be seen.
    """
    if not store.visible.everybody:
        raise InputError("a queue is everybody's, and you may see the jobs of some only; ask who keeps the store")
    ends = span[0].timestamp(), span[1].timestamp()
    rows = [Allocated(**row) for row in past_runs(store, config.cluster, *ends)]
    return past_of(rows, _uses(store, config), config, ends, assumed)


def rules_here(config: SiteConfig) -> Rules:
    """Return Slurm's rules and limits as it tells them here, or its defaults."""
    client, rules = CliClient(), rules_of(None)
    try:
        rules = rules_of(client.config())
        return rules._replace(caps=client.caps(config.cluster))
    except CollocError as error:
        return rules._replace(left_out=(*rules.left_out, f"Slurm did not say more: {error}"))


def _uses(store: Store, config: SiteConfig) -> dict[str, Use]:
    """Return what was measured of runs where it is enough to place them by: sampled, or taken in as past; by job id."""
    runs = [run for past in store.past(config.cluster).values() for run in past]
    runs += [
        measured.run._replace(sampled_s=measured.alone_s) for measured in measured_runs(store, config.cluster, config)
    ]
    # Which piece holds it is asked of each what-if; whether anything can be said of it is the same for all.
    fitted = fitted_by_evidence([Kept(run, _ONE_GPU) for run in runs], config)
    return {
        run.job_id: Use(run.gpu_model, run.gpu_mem_peak_mib or 0, run.sm_active_mean_pct or 0.0)
        for run, fit in zip(runs, fitted, strict=True)
        if fit.why in ("", "size-not-known")
    }
