# SPDX-License-Identifier: Apache-2.0
"""Evidence of past runs: the samples of each run that is over, from stored facts."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import Evidence, SharingMode
from slurm_colloc.core.usage_model import MIN_COVERAGE_PCT, JobUsage
from slurm_colloc.estimate.bounds import mean_at_most_pct
from slurm_colloc.facts.aggregate import find_runs
from slurm_colloc.facts.day_facts import HISTORY, OWN_INTERVAL_S, Days, add_parts, days_of, make_parts
from slurm_colloc.gpu.mig import model_named, tells_sm_activity
from slurm_colloc.store.equivalents import pool_nodes
from slurm_colloc.store.queries import named, query
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window

# The high value is the least that SM activity stays at or below for so much of the measured time. A mean over a day
# says nothing of how high it went.
_HIGH = 0.95
READINGS = "readings of the whole GPU"


class Measured(NamedTuple):
    """The samples of one run; ``gres`` is what it was given, in Slurm's words.

    ``alone_s`` is for how long its SM activity, or a bound on it, was measured alone on the GPU.
    """

    user: str
    shown_id: str
    start_s: float
    gres: str
    run: Evidence
    alone_s: float


def measured_runs(store: Store, cluster: str, config: SiteConfig | None = None) -> Iterator[Measured]:
    """Yield what was sampled of each run that is over, without a signature.

    Raises:
        StoreError: the store cannot be read.
    """
    with store.connect() as database:
        window = Window(-inf, inf, inf)
        find_runs(database, window)
        make_history(database, store, window, days_of(database, store, window))
        yield from measured_in(database, cluster, config)


def make_history(database: DuckDBPyConnection, store: Store, window: Window, days: Days) -> None:
    """Make what ``measured_in`` reads, of the runs in ``runs``.

    Raises:
        StoreError: the store cannot be read.
    """
    make_parts(database, HISTORY)
    add_parts(database, store, window, days, HISTORY)


def measured_in(database: DuckDBPyConnection, cluster: str, config: SiteConfig | None) -> Iterator[Measured]:
    """Yield what was sampled of each run that is over, from a database with its history."""
    text = query("facts/sql/measured", mig=SharingMode.MIG, readings=READINGS)
    for row in named(database, text, {"cluster": cluster, "high": _HIGH}):
        run = Evidence(**{name: row.pop(name) for name in Evidence._fields if name in row})
        profile, devices, is_reading = row.pop("profile"), row.pop("devices"), bool(row.pop("is_reading"))
        total_mib = device_mib(run.gpu_model, profile, row.pop("node"), config)
        mean_pct, deviation_pct, passes = row.pop("sm_all_pct"), row.pop("sm_deviation_pct"), row.pop("sm_passes")
        if is_reading:
            # While no kernel runs nothing slows a job: a mean over all its time bounds how much longer the whole of it
            # takes. How often an exporter was asked says nothing of how often it looked.
            seen = 100 * row["alone_s"] >= MIN_COVERAGE_PCT * (run.elapsed_s or 0)
            readings, is_known = min(passes, row["alone_s"] / OWN_INTERVAL_S), None not in (mean_pct, deviation_pct)
            most_pct = mean_at_most_pct(mean_pct, deviation_pct, readings) if seen and is_known else None
            run = run._replace(sm_active_mean_pct=most_pct)
        if run.sm_is_bound and not tells_sm_activity(run.gpu_model):
            run = run._replace(sm_active_mean_pct=None, sm_active_q95_pct=None)
        is_bound = run.sm_active_mean_pct is not None and bool(run.sm_is_bound or is_reading)
        total_mib = total_mib * devices if total_mib else None
        yield Measured(**row, run=run._replace(sm_is_bound=is_bound, gpu_mem_total_mib=total_mib))


def evidence_of(
    database: DuckDBPyConnection, usages: Sequence[JobUsage], config: SiteConfig | None
) -> dict[tuple[str, str, float], Evidence]:
    """Return the evidence in these runs by ``key_of``, from a database with their history."""
    return {
        (cluster, samples.run.job_id, samples.start_s): samples.run
        for cluster in {usage.cluster for usage in usages}
        for samples in measured_in(database, cluster, config)
    }


def device_mib(model: str, profile: str, node: str, config: SiteConfig | None) -> int | None:
    """Return the memory of a GPU, or of a slice of this profile, as the node's pool says, else as we know the model."""
    pools = config.pool if config else ()
    # A node with two cards has a pool for each.
    for pool in [pool for pool in pools if pool.gpu_model == model and node in pool_nodes(pool)][:1]:
        sizes = [part.mem_mib for part in pool.slice if part.profile == profile] if profile else [pool.gpu_mem_mib]
        if sizes and sizes[0]:
            return sizes[0]
    known_model = model_named(model)
    if known_model is None:
        return None
    return known_model.profiles.get(profile, (None, 0))[0] if profile else known_model.mem_total_mib
