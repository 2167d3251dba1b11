# SPDX-License-Identifier: Apache-2.0
"""One user's runs, from the store, or from what sacct says where the user may not read the store."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.files import temporary_folder
from slurm_colloc.core.model import Evidence
from slurm_colloc.facts.aggregate import aggregate_some, usages_of
from slurm_colloc.facts.evidence import evidence_of, make_history
from slurm_colloc.facts.fits import fitted_of, key_of
from slurm_colloc.facts.judgement import RunFound
from slurm_colloc.sources import sacct_client
from slurm_colloc.store.ingest import take_text
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window

_KEPT = "measured by csub in the job"
_OWN = '"user" = $user'
_WITHOUT_GPU = "SELECT count(*) FROM runs WHERE devices = 0"


class UserRuns(NamedTuple):
    """A user's runs with a GPU, and how many had none."""

    runs: tuple[RunFound, ...]
    without_gpu: int


def user_in_store(store: Store, user: str, window: Window, config: SiteConfig | None) -> UserRuns:
    """Return the runs of one user in the store.

    Raises:
        StoreError: it cannot be read.
    """
    with store.connect(window.until_s, window.until_s) as database:
        return _found(database, store, user, window, config)


def user_by_sacct(
    store: Store,
    user: str,
    window: Window,
    config: SiteConfig | None,
    timeout_s: float,
    environment: Mapping[str, str],
) -> UserRuns:
    """Return the runs of one user by one question to sacct, with the samples of ``store``, if it has any.

    Raises:
        ProcessError: sacct fails or does not answer in time.
        InputError: it does not track GPUs, or says nothing that can be read.
        StoreError: the samples cannot be read.
    """
    sacct_client.ask_tracked(timeout_s, environment)
    fields = sacct_client.ask_fields(timeout_s, environment)
    with temporary_folder() as work:
        path = os.path.join(work, "sacct.txt")
        with open(path, "wb") as out:
            out.write(sacct_client.ask_rows(window.since_s, window.until_s, fields, timeout_s, environment, user))

        def fill(database: DuckDBPyConnection) -> object:
            return take_text(database, path, (), None, window.now_s, work, "sacct", live=True)

        with store.over(work, fill) as (database, _):
            return _found(database, store, user, window, config)


def _found(
    database: DuckDBPyConnection, store: Store, user: str, window: Window, config: SiteConfig | None
) -> UserRuns:
    days = aggregate_some(database, store, window, _OWN, {"user": user})
    usages = usages_of(database)
    ((without_gpu,),) = database.execute(_WITHOUT_GPU).fetchall()
    measured = {}
    if any(usage.methods for usage in usages):
        make_history(database, store, window, days)
        measured = evidence_of(database, usages, config)
    fitted = fitted_of(database, config)
    runs = (RunFound(usage, None, measured.get(key_of(usage)), fitted.get(key_of(usage))) for usage in usages)
    return UserRuns(tuple(runs), without_gpu)


def with_evidence(run: RunFound, evidence: Evidence | None) -> RunFound:
    """Return a run without samples with what is kept of it for csub, and its figures of the time that this covers."""
    usage = run.usage
    if usage.methods:
        return run
    span_s = usage.end_s - usage.start_s
    if evidence is None or span_s <= 0:
        return run._replace(evidence=evidence, fitted=None)
    part = min(1.0, evidence.sampled_s / span_s)
    measured = None if usage.allocated_gpu_hours is None else usage.allocated_gpu_hours * part
    # GPU_UTIL in place of SM activity is a bound, and no measurement.
    active = None if evidence.sm_is_bound else evidence.sm_active_mean_pct
    used = None if measured is None or active is None else evidence.sampled_s / 3600 * active / 100
    figures = usage._replace(
        sm_measured_gpu_hours=0.0 if active is None and measured is not None else measured,
        sm_used_gpu_hours=None if used is None or measured is None else min(used, measured),
        sm_beyond_gpu_hours=None if used is None or measured is None else max(0.0, used - measured),
        gpu_mem_peak_mib=evidence.gpu_mem_peak_mib,
        coverage_pct=100 * part,
        methods=(_KEPT,),
    )
    return run._replace(usage=figures, evidence=evidence, fitted=None)
