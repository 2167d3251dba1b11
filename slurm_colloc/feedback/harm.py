# SPDX-License-Identifier: Apache-2.0
"""Counts jobs that a piece of a GPU slowed or ended; too many stop placement at a site.

How a run ended and what it had, the accounting says; which job it was, and that its GPU memory did not suffice, the
decision. Decisions are files that users wrote, so that the harm of one user's jobs alone stops nobody else's.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import COMPLETED, GPU_OOM, LATE, PLACED, Evidence, SharingMode
from slurm_colloc.core.sharing_model import HarmRate
from slurm_colloc.estimate.bounds import lower_bound, upper_bound
from slurm_colloc.estimate.harm import COUNTED, Harm, harm_of
from slurm_colloc.estimate.site_stop import Stop, read_stop, write_stop
from slurm_colloc.feedback.user_histories import make_history_folder
from slurm_colloc.store.decisions import of_decided
from slurm_colloc.store.equivalents import node_names, pool_nodes
from slurm_colloc.store.queries import query

# Fewer runs say nothing; and more than this part, with 95 % certainty, is too many.
_LEAST_RUNS, _MOST, _SPAN_S = 50, 0.01, 86400.0
# Jobs that got their piece while they waited, which their users did not see: more than so few, of two users, are
# too many.
_MOST_LATE, _LATE_SPAN_S = 4, 30 * 86400.0
# Both sides of an interval that holds with 95 %.
_EACH_SIDE = 0.975


class JudgedRun(NamedTuple):
    """A run of a job that csub decided on: its user, times, end, and what came of it; None is not known.

    A run on a whole GPU is judged as if that were a piece, by the others of its job that had one. ``submit_s`` is None
    of a run that is not its job's first. ``arm`` and ``rule`` are those of its decision, by which it got a piece, or
    would have got one, where it was ``offered``.
    """

    user: str
    run: Evidence
    harm: Harm | None
    submit_s: int | None
    start_s: int
    arm: str
    rule: str
    offered: bool
    gpu_hours: float | None

    @property
    def on_piece(self) -> bool:
        """Return whether it had a piece of a GPU."""
        return self.run.mode not in ("", SharingMode.EXCLUSIVE)


def judged_runs(database: DuckDBPyConnection, config: SiteConfig) -> list[JudgedRun]:
    """Return all runs of jobs that csub decided on and that had one GPU at most, of a database of ``connect``."""
    text = query(
        "feedback/sql/harm_runs",
        decided_runs=of_decided("placed_runs"),
        gpu_oom=GPU_OOM,
        placed=PLACED,
        exclusive=SharingMode.EXCLUSIVE,
        mig=SharingMode.MIG,
    )
    of_job: dict[tuple[str, str], list[JudgedRun]] = {}
    for user, job_id, signature, state, mode, nodes, kind, end_s, elapsed_s, submit_s, *columns in database.execute(
        text, {"cluster": config.cluster}
    ).fetchall():
        start_s, is_first, *decided = columns
        model = _model(nodes, kind, config)
        run = Evidence(job_id, signature, state, mode, model, None, None, None, False, 0, 0.0, end_s, elapsed_s)
        judged = JudgedRun(user, run, None, submit_s if is_first else None, start_s, *decided)
        of_job.setdefault((user, signature), []).append(judged)
    return [run for same in of_job.values() for run in _judge(same, config.sharing.max_slowdown)]


def _judge(same: Sequence[JudgedRun], max_slowdown: float) -> list[JudgedRun]:
    """Return what came of each run of one job."""
    longest: dict[tuple[str, str], list[Evidence]] = {}
    for judged in sorted(same, key=lambda judged: -(judged.run.elapsed_s or 0.0)):
        if not judged.on_piece:
            longest.setdefault((judged.run.state, judged.run.gpu_model), []).append(judged.run)
    # The longest of the runs that ended alike is what others are held against; that itself, against the one after it.
    longest_two = [run for runs in longest.values() for run in runs[:2]]
    return [
        judged._replace(harm=harm_of(judged.run, [run for run in longest_two if run is not judged.run], max_slowdown))
        for judged in same
    ]


def _model(nodes: str, kind: str, config: SiteConfig) -> str:
    """Return the GPU that a run had, or had a piece of; empty where site.toml does not say, or there were several."""
    names = node_names(nodes)
    pools = [pool for pool in config.pool if names <= pool_nodes(pool)]
    typed = [pool for pool in pools if kind in (pool.gpu_type, *(part.type for part in pool.slice))]
    models = {pool.gpu_model for pool in typed or pools}
    return models.pop() if len(models) == 1 else ""


def too_many(runs: Iterable[JudgedRun], since_s: float) -> str:
    """Return in words that too many of the runs on pieces that ended after ``since_s`` were harmed; empty else.

    They are too many if, of at least 50 runs of which it is known, more than 1 % were harmed with a certainty of 95 %,
    of two users or more. Whether a run was slower is known of those that a run on a whole GPU can be held against;
    whether memory and time sufficed, of each that completed, too.
    """
    of_day = [run for run in runs if run.on_piece and run.run.ended_s > since_s]
    judged = [run for run in of_day if run.harm in (Harm.NONE, *COUNTED)]
    on_record = [*judged, *(run for run in of_day if run.harm is None and run.run.state == COMPLETED)]
    not_slower = tuple(kind for kind in COUNTED if kind is not Harm.SLOWER)
    for among, counted in ((judged, COUNTED), (on_record, not_slower)):
        harmed = [run for run in among if run.harm in counted]
        if len(among) < _LEAST_RUNS or len({run.user for run in harmed}) < 2:
            continue
        if lower_bound(len(harmed), len(among)) > _MOST:
            kinds = Counter(str(run.harm) for run in harmed).most_common()
            kinds_text = ", ".join(f"{count} {kind}" for kind, count in kinds)
            return f"{len(harmed)} of {len(among)} runs on pieces of GPUs were harmed within a day ({kinds_text})"
    return ""


def too_many_late(runs: Iterable[JudgedRun], since_s: float) -> str:
    """Return in words that too many jobs were harmed that got their piece while they waited; empty else.

    Five runs that ended after ``since_s``, of two users, are too many.
    """
    of_month = [run for run in runs if run.arm == LATE and run.on_piece and run.run.ended_s > since_s]
    harmed = {(run.user, run.run.job_id) for run in of_month if run.harm in COUNTED}
    if len(harmed) <= _MOST_LATE or len({user for user, _ in harmed}) == 1:
        return ""
    return f"{len(harmed)} jobs on pieces that they got while they waited were harmed within 30 days"


def stop_where_too_many(runs: Sequence[JudgedRun], state_folder: str, now_s: float) -> tuple[str, str]:
    """Stop a site whose jobs were harmed too often: all that is placed, or what is placed late.

    Returns why for each; empty where it was not, or is stopped already.

    Raises:
        StoreError: the file of the stop cannot be read or written.
    """
    stop = read_stop(state_folder)
    reason = "" if stop.why else too_many(runs, max(now_s - _SPAN_S, stop.resumed_s))
    late = "" if stop.late else too_many_late(runs, max(now_s - _LATE_SPAN_S, stop.resumed_s))
    if reason or late:
        make_history_folder(state_folder)
        stops = [text and f"{text}; 'colloc site resume' goes on" for text in (reason, late)]
        write_stop(state_folder, Stop(stop.why or stops[0], stop.resumed_s, stop.late or stops[1]))
    return reason, late


def harm_rates(runs: Iterable[JudgedRun]) -> list[HarmRate]:
    """Return how many of these runs were harmed, and once more of those that got their piece while they waited."""
    judged = list(runs)
    late = [run for run in judged if run.arm == LATE]
    return [*_rates(judged), *(figure._replace(arm=LATE) for figure in (_rates(late) if late else ()))]


def _rates(judged: Sequence[JudgedRun]) -> list[HarmRate]:
    """Return how many of these runs were harmed, by kind, and in all; each kind counts only runs that tell it."""
    # A run that completed was neither short of memory nor lost, whether slower or not.
    on_record = [run for run in judged if run.harm is not None or run.run.state == COMPLETED]
    timed = [run for run in on_record if run.harm in (Harm.NONE, Harm.SLOWER) and run.run.state == COMPLETED]
    kinds = [(kind, timed if kind is Harm.SLOWER else on_record) for kind in Harm if kind is not Harm.NONE]
    rates = [rate(str(kind), sum(run.harm is kind for run in among), len(among)) for kind, among in kinds]
    return [*rates, rate("harmed in all", sum(run.harm in (*COUNTED, Harm.LOST) for run in on_record), len(on_record))]


def rate(name: str, count: int, total: int) -> HarmRate:
    """Return a part of runs with what its true size is with 95 % (Clopper and Pearson); unknown of none."""
    if not total:
        return HarmRate(name, count, total, None, None, None)
    return HarmRate(
        name, count, total, count / total, lower_bound(count, total, _EACH_SIDE), upper_bound(count, total, _EACH_SIDE)
    )
