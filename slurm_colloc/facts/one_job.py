# SPDX-License-Identifier: Apache-2.0
"""One job's runs: the GPUs that each had and used, its time in pieces, and the evidence that it is for the next one."""

from math import inf

from duckdb import DuckDBPyConnection

from slurm_colloc.core.chart_model import JobPiece, JobTimeline
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.usage_model import JobUsage
from slurm_colloc.facts.aggregate import aggregate_some, usages_of
from slurm_colloc.facts.collocation import HARDLY_USED
from slurm_colloc.facts.day_facts import FIX, Days
from slurm_colloc.facts.evidence import evidence_of, make_history
from slurm_colloc.facts.fits import fitted_of, key_of
from slurm_colloc.facts.judgement import RunFound
from slurm_colloc.store.parquet import read
from slurm_colloc.store.queries import no_rows, query
from slurm_colloc.store.sample_tables import SHARES
from slurm_colloc.store.schema import HOUR_S
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window

# Runs of a long array whose time is drawn.
DRAWN = 20
# The id of an array stands for its tasks, that of a heterogeneous job for its components, as with sacct; a raw id is of
# one of them.
_ITS_OWN = """
(job_id = $job OR job_id_raw = $job OR split_part(job_id, '_', 1) = $job OR split_part(job_id, '+', 1) = $job)
"""
_SPAN = f"""
SELECT min(start_s), max(coalesce(end_s, $now)) FROM allocations
WHERE {_ITS_OWN} AND start_s < $until AND coalesce(end_s, $now) > $since
"""


def find_job(store: Store, job_id: str, window: Window, config: SiteConfig | None, pieces: int) -> list[RunFound]:
    """Return the runs of a job, or of an array's tasks, that had a GPU inside ``window``.

    Raises:
        StoreError: the store cannot be read.
    """
    since_s, until_s, now_s = window
    # The samples of a year are not looked at: each day's are, once it is known which days count.
    with store.connect(until_s, until_s) as database:
        parameters = {"job": job_id, "since": since_s, "until": until_s, "now": now_s}
        ((first_s, last_s),) = database.execute(_SPAN, parameters).fetchall()
        if first_s is None:
            return []
        # A job that ran for an hour asks for the samples of that hour's days.
        near = Window(max(since_s, first_s), min(until_s, last_s + 1), now_s)
        days = aggregate_some(database, store, near, _ITS_OWN, {"job": job_id})
        make_history(database, store, near, days)
        usages = usages_of(database)
        fitted = fitted_of(database, config)
        runs = [RunFound(usage, None, None, fitted.get(key_of(usage))) for usage in usages[:-DRAWN]]
        measured = evidence_of(database, usages, config)
        for usage in usages[-DRAWN:]:
            timeline = _timeline(database, store, usage, days, pieces)
            run = measured.get(key_of(usage)) if timeline else None
            runs.append(RunFound(usage, timeline, run, fitted.get(key_of(usage))))
        return runs


def _timeline(database: DuckDBPyConnection, store: Store, run: JobUsage, days: Days, pieces: int) -> JobTimeline | None:
    parameters: dict[str, object] = {"cluster": run.cluster, "job": run.job_id_raw, "since": run.start_s}
    if run.end_s <= run.start_s:
        return None
    used = query("facts/sql/devices", fix=FIX, hardly_used=HARDLY_USED)
    ((devices, unused, sharers, active_pct),) = database.execute(used, parameters).fetchall()
    if not devices:
        return None
    step_s = (run.end_s - run.start_s) / pieces
    store.view_samples(database, run.start_s, run.end_s)
    # An hour's mean says nothing of when in the hour: better no pieces than a straight line.
    paths = [
        path
        for day, day_paths in days.stored.items()
        if not store.samples.files(SHARES, -inf, inf, day)
        for path in day_paths
    ]
    stored = no_rows(SHARES.columns)
    if paths and step_s >= HOUR_S:
        stored = query("facts/sql/hours_of_job", fix=FIX, files=read(paths))
    parameters |= {"until": run.end_s, "step": step_s}
    by_piece = {
        piece: JobPiece(util_pct, sm_pct, mib)
        for piece, mib, util_pct, sm_pct in database.execute(
            query("facts/sql/pieces_of_job", stored=stored), parameters
        ).fetchall()
    }
    # Floating point may put the last one's end into one more.
    drawn = [by_piece.get(piece, JobPiece(None, None, None)) for piece in range(pieces if by_piece else 0)]
    return JobTimeline(run.start_s, run.end_s, tuple(drawn), devices, unused, max(0, sharers - 1), tuple(active_pct))
