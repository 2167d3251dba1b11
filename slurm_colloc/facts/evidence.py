# SPDX-License-Identifier: Apache-2.0
"""Evidence of past runs: the samples of each run that is over, from stored facts."""

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import (
    Evidence,
    SharingMode,
)
from slurm_colloc.core.usage_model import MIN_COVERAGE_PCT
from slurm_colloc.estimate.bounds import mean_at_most_pct
from slurm_colloc.facts.aggregate import find_runs
from slurm_colloc.facts.facts import HISTORY, OWN_INTERVAL_S, Days, add_parts, days_of, make_parts
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
    for row in named(database, query("measured"), {"cluster": cluster, "high": _HIGH}):
        sm_mean_pct, sm_q95_pct, is_bound = row["sm_mean_pct"], row["sm_q95_pct"], row["sm_is_bound"]
        elapsed_s = row["end_s"] - row["start_s"]
        if row["is_reading"]:
            # How often an exporter was asked says nothing of how often it looked.
            readings = min(row["sm_passes"], row["alone_s"] / OWN_INTERVAL_S)
            sm_mean_pct = _by_readings(row["alone_s"], elapsed_s, readings, row["sm_all_pct"], row["sm_deviation_pct"])
        if is_bound and not tells_sm_activity(row["gpu_model"]):
            sm_mean_pct, sm_q95_pct, is_bound = None, None, False
        total_mib = device_mib(row["gpu_model"], row["profile"], row["node"], config)
        run = Evidence(
            job_id=row["job_id_raw"],
            signature="",
            state=row["state"],
            # "gpu:1" may land on a slice; the device knows better than the decision.
            mode=SharingMode.MIG if row["profile"] else "",
            gpu_model=row["gpu_model"],
            gpu_mem_peak_mib=row["peak_mib"],
            sm_active_mean_pct=sm_mean_pct,
            sm_active_q95_pct=sm_q95_pct,
            sm_is_bound=sm_mean_pct is not None and bool(is_bound or row["is_reading"]),
            sample_count=row["passes"],
            sampled_s=row["sampled_s"],
            ended_s=row["end_s"],
            elapsed_s=elapsed_s,
            dram_active_q95_pct=row["dram_q95_pct"],
            gpu_mem_total_mib=total_mib * row["devices"] if total_mib else None,
            grew_until_s=row["grew_until_s"],
            cpu_cores_q95=row["cores_q95"],
            host_mem_peak_mib=row["host_mem_mib"],
            busy_mean_pct=row["busy_mean_pct"],
            source=READINGS if row["is_reading"] else "",
        )
        yield Measured(row["user"], row["job_id"], row["start_s"], row["gres"], run, row["alone_s"])


def _by_readings(
    alone_s: float, elapsed_s: float, readings: float, mean_pct: float | None, deviation_pct: float | None
) -> float | None:
    """Return what the mean SM activity over the whole run is at most; None where too little of it was seen.

    While no kernel runs nothing slows a job: a mean over all its time bounds how much longer the whole of it takes.
    """
    if mean_pct is None or deviation_pct is None or 100 * alone_s < MIN_COVERAGE_PCT * elapsed_s:
        return None
    return mean_at_most_pct(mean_pct, deviation_pct, readings)


def device_mib(model: str, profile: str, node: str, config: SiteConfig | None) -> int | None:
    """Return the memory of a GPU, or of a slice of this profile, as the node's pool says, else as we know the model."""
    pools = config.pool if config else ()
    # A node with two cards has a pool for each.
    pool = next(
        (candidate for candidate in pools if candidate.gpu_model == model and node in pool_nodes(candidate)), None
    )
    if pool:
        size = (
            next((part.mem_mib for part in pool.slice if part.profile == profile), 0) if profile else pool.gpu_mem_mib
        )
        if size:
            return size
    model_data = model_named(model)
    if model_data is None:
        return None
    return model_data.profiles.get(profile, (None, 0))[0] if profile else model_data.mem_total_mib
