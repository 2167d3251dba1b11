# SPDX-License-Identifier: Apache-2.0
"""Decide on past jobs as csub would have, each from what was known of the jobs of its command that ended before it.

What the accounting does not keep is not made up: what a script does, so that slices count and shares do not; the time
limit, cores and host memory, which are taken to suffice; the limits of users, which are taken to allow it. Nothing is
known of what was free.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.parquet import make_rows, named
from slurm_colloc.accounting.store import Store
from slurm_colloc.config import SiteConfig
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.question import Question
from slurm_colloc.history.records import RUNS_KEPT
from slurm_colloc.history.signature import BY_COMMAND
from slurm_colloc.model import Evidence, JobRequest, because
from slurm_colloc.placement.choose import place
from slurm_colloc.placement.fitted import past_request

_NOT_KNOWN = because("script-unknown")
_COLUMNS = {
    "cluster": "VARCHAR",
    "job_id_raw": "VARCHAR",
    "start_s": "BIGINT",
    "would": "VARCHAR",
    "would_not": "VARCHAR",
    "would_partition": "VARCHAR",
    "sm_active_q95_pct": "DOUBLE",
}
# The runs of ``usage`` with what was decided of them; nobody knows what they might have waited.
_SOURCE = """
SELECT u.*, NULL::BIGINT AS first_s, NULL::BIGINT AS would_memory_mib, NULL::DOUBLE AS would_wait_s,
       NULL::BIGINT AS would_wait_runs, p.would, p.would_not, p.would_partition, p.sm_active_q95_pct
FROM usage u JOIN past_decided p USING (cluster, job_id_raw, start_s)
"""
_RUNS = """
SELECT "user", job_id_raw AS job_id, start_s, end_s, submit_s, "partition", account, qos, shown, whole, devices
FROM usage SEMI JOIN past_jobs USING ("user", job_id_raw) WHERE cluster = $cluster AND end_s IS NOT NULL
"""


class _Run(NamedTuple):
    user: str
    job_id: str
    start_s: float
    end_s: float
    submit_s: float | None
    partition: str
    account: str
    qos: str
    shown: str
    whole: bool
    devices: int


class _Known:
    """Past jobs by user and command, in the order in which they ended."""

    def __init__(self, past: Mapping[str, Sequence[Evidence]]) -> None:
        by_command: dict[tuple[str, str], list[Evidence]] = defaultdict(list)
        self._of: dict[tuple[str, str, float], Evidence] = {}
        for user, runs in past.items():
            for run in runs:
                if run.signature.startswith(BY_COMMAND):
                    by_command[user, run.signature].append(run)
                    self._of[user, run.job_id, run.ended_s] = run
        self._runs = {key: sorted(runs, key=lambda run: run.ended_s) for key, runs in by_command.items()}
        self._ends = {key: [run.ended_s for run in runs] for key, runs in self._runs.items()}

    def jobs(self) -> list[tuple[str, str]]:
        """Return (user, job id) of all of them."""
        return [(user, job_id) for user, job_id, _ in self._of]

    def earlier(self, run: _Run) -> list[Evidence] | None:
        """Return the newest of its command that had ended when it was submitted; None where it is none of them."""
        own = self._of.get((run.user, run.job_id, run.end_s))
        if own is None:
            return None
        key = run.user, own.signature
        before = bisect_left(self._ends[key], run.start_s if run.submit_s is None else run.submit_s)
        return self._runs[key][max(0, before - RUNS_KEPT) : before]


def decide_past(database: DuckDBPyConnection, store: Store, config: SiteConfig) -> tuple[str, Mapping[str, int]]:
    """Decide on the past jobs in ``usage``; return them as a ``source`` of shadow_use, and how many it lacks by why.

    Raises:
        StoreError: what is known of past jobs cannot be read.
    """
    known = _Known(store.past(config.cluster))
    skipped: Counter[str] = Counter()
    rows: list[tuple[Any, ...]] = []
    for run in _past_runs(database, known, config.cluster):
        earlier = known.earlier(run)
        if earlier is None:
            skipped["another run of the job was measured, not this one"] += 1
        elif not run.whole or run.devices != 1:
            skipped["the job already had a piece of a GPU"] += 1
        else:
            rows.append((config.cluster, run.job_id, run.start_s, *_decide(run, earlier, config)))
    make_rows(database, "past_decided", _COLUMNS, rows)
    return _SOURCE, skipped


def _past_runs(database: DuckDBPyConnection, known: _Known, cluster: str) -> list[_Run]:
    make_rows(database, "past_jobs", {"user": "VARCHAR", "job_id_raw": "VARCHAR"}, known.jobs())
    return [_Run(**row) for row in named(database, _RUNS, {"cluster": cluster})]


def _decide(run: _Run, earlier: Sequence[Evidence], config: SiteConfig) -> tuple[str, str, str, float | None]:
    """Return what the run would have been given, why nothing, in which other partition, and with what SM activity."""
    # By the shipped margins: the site's own were taken from what came later, of these very runs among others.
    footprint = estimate(Question(by_command=earlier))
    active = footprint.sm_active_pct
    if footprint.gpu_mem_peak_mib is None or active is None:
        return "", "need", "", None
    placement = place(_request(run), footprint, config)
    if placement.gres is None:
        return "", "fit", "", active.q95
    return placement.given, "", placement.partition, active.q95


def _request(run: _Run) -> JobRequest:
    return past_request(run.shown, run.partition, run.account, run.qos, (_NOT_KNOWN,))
