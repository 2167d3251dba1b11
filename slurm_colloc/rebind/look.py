# SPDX-License-Identifier: Apache-2.0
"""One look at the user's waiting jobs: those whose need is known by now ask for a piece, what did no good is undone.

It runs as the user, one at a time. Slurm changes a job also where it refuses an update in part, has no compare and
swap, and may forget its answer when slurmctld is killed: the intent is written down first, each answer is read again,
and a record that is neither as asked nor as meant is put back.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import shuffle
from typing import Any, NamedTuple, Protocol

from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError, StoreError
from slurm_colloc.core.files import locked
from slurm_colloc.core.model import LATE, Decision, Footprint, Placement, because
from slurm_colloc.estimate.harm import harmed_s
from slurm_colloc.estimate.lookup import look_up
from slurm_colloc.estimate.records import drop_decision, read_decisions
from slurm_colloc.placement.candidate import asked_limit_min, partition_names
from slurm_colloc.rebind.candidates import placed_late, take, whole_kinds, why_not, why_not_now
from slurm_colloc.rebind.forms import change_of, form_of
from slurm_colloc.rebind.intent import (
    Control,
    Intent,
    gpu_part,
    has_grown,
    own_records,
    said_of,
    wait_for_gpus,
    why_back,
)
from slurm_colloc.rebind.waiting import (
    Change,
    Waiting,
    failed_before,
    keep,
    lock_path,
    note_failed,
    put_away,
    read_waiting,
    write_said,
)
from slurm_colloc.slurm.free_gpus import Free, kind_of
from slurm_colloc.slurm.gres import parse_gres
from slurm_colloc.slurm.jobs import QueuedJob
from slurm_colloc.slurm.parse import parse_release
from slurm_colloc.slurm.pending import PendingJob, update
from slurm_colloc.submit import plan
from slurm_colloc.submit.decision import foretold
from slurm_colloc.submit.footprint import footprint_of_runs
from slurm_colloc.submit.requeue_data import option_of
from slurm_colloc.submit.rollout import MAY_BE_MET

# slurmctld counts requests of a user (rl_bucket_size 30, 2 more each second): a third is for this.
_JOBS_AT_A_LOOK, _SLOWED_AT_A_LOOK = 200, 5
# slurmctld has been round its queue by then, and a job whose piece was free has begun.
_CYCLE_S = 60.0
# Ways back that say nothing against the piece.
_NO_FAILURE = ("undo", "off", "changed", "free", "grew", "harmed")
# For so long after a piece has harmed a job none like it gets one late.
_HARMED_S = 30 * 86400.0


class Slurm(plan.Slurm, Control, Protocol):
    """The questions and orders of a look, beside the questions of a submission."""

    def config(self) -> Mapping[str, str]:
        """Return slurm.conf as slurmctld has it."""

    def own_queue(self, *filters: str) -> Sequence[QueuedJob]:
        """Return this user's jobs that wait or run."""

    def free(self, *, single: bool = False) -> Free:
        """Return what is free now, or what is on nodes with a single GPU of its kind."""


class Looked(NamedTuple):
    """The result of a look, as ids of jobs: those that ask for a piece now, and those that were put back by it."""

    bound: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()


def look(config: SiteConfig, slurm: Slurm, *, undo: bool = False) -> Looked:
    """Change the waiting jobs whose need is known by now, and put back those that the change did no good.

    Args:
        config: the site.
        slurm: answers and changes, as this user.
        undo: put all back, and change none.

    Raises:
        CollocError: Slurm does not answer, or the user's folder cannot be used; the next look goes on.
    """
    cluster = config.cluster
    if not read_waiting(cluster)[0]:
        return Looked()
    with locked(lock_path(cluster)) as held:
        if not held:
            if undo:
                raise StoreError("another look is at work on your jobs, so none was put back; call this again")
            return Looked()
        jobs = read_waiting(cluster)[0]
        # A line for each task of an array.
        pending = Counter(job.array_id for job in slurm.own_queue("-t", "PENDING", "-r"))
        gone = [job for job in jobs if job.job_id not in pending]
        _note_begun(gone, config, slurm)
        put_away(cluster, [job.job_id for job in gone])
        waiting = [job for job in jobs if job.job_id in pending]
        begun = [(job, job.change) for job in waiting if job.change and job.change.undone_s is None]
        records = own_records(slurm, [], [job for job, _ in begun])
        intents = [Intent(job, change, records[job.job_id]) for job, change in begun if job.job_id in records]
        if undo:
            return _settle(intents, {}, config, slurm, undo=True)
        late = _late_binding(waiting, config, slurm)
        better = _better_as_asked(intents, waiting, pending, late, config, slurm)
        better |= {job_id: "off" for job_id, mode in late.items() if mode in ("off", "shadow")}
        looked = _settle(intents, better, config, slurm)
        unchanged = [job for job in read_waiting(cluster)[0] if job.job_id in pending and not job.change]
        after = _settle(_bind(unchanged, late, config, slurm), {}, config, slurm)
        return Looked((*looked.bound, *after.bound), (*looked.undone, *after.undone))


# --- changes to make ---


def _late_binding(jobs: Iterable[Waiting], config: SiteConfig, slurm: Slurm) -> dict[str, str]:
    """Return by job the late binding that the site has for it today, empty where nobody knows whose job it is."""
    by_key: dict[tuple[object, ...], str] = {}
    late = {}
    for job in jobs:
        key = job.request.account, job.request.partitions, job.request.qos
        if key not in by_key:
            chosen = plan.policy_of(job.request, config, slurm, drawn_before=True)
            by_key[key] = "" if chosen.why.code == MAY_BE_MET else chosen.late
        late[job.job_id] = by_key[key]
    return late


def _bind(jobs: Sequence[Waiting], late: Mapping[str, str], config: SiteConfig, slurm: Slurm) -> list[Intent]:
    """Have jobs ask for what they would be given today, and return them as they are then."""
    placed = _wanted([job for job in jobs if late[job.job_id] not in ("off", "")], late, config, slurm)
    if not placed:
        return []
    conf = slurm.config()
    release = parse_release(conf.get("SLURM_VERSION", ""))
    slowed = "rl_enable" in conf.get("SlurmctldParameters", "")
    costs_priority = "gpu" in conf.get("PriorityWeightTRES", "")
    # Those in front may be of the kind that is left as it is, look for look.
    shuffle(placed)
    placed = placed[: _SLOWED_AT_A_LOOK if slowed else _JOBS_AT_A_LOOK]
    records = own_records(slurm, [], [job for job, _, _ in placed])
    lines: list[str] = []
    begun, shadowed = [], []
    for job, placement, footprint in placed:
        form = form_of(option_of(job.request), release, config.sharing.late_forms)
        refusal = why_not(job, placement, footprint, form, costs_priority=costs_priority) if form else "form"
        # Each record of an array is judged by itself: an administrator may hold one task.
        waiting = records.get(job.job_id, [])
        refused = {
            record.raw_id: why
            for record in waiting
            if form and (why := refusal or why_not_now(record, job, placement, form, config))
        }
        of_job = [record for record in waiting if record.raw_id not in refused]
        # Where Slurm does not answer, a task knows by the word that is left for all that its GPU is a slice.
        if form is None or not of_job or (placement.mode == "mig" and refused):
            code = next(iter(refused.values()), refusal)
            if code != job.left:
                keep(job._replace(left=code))
            continue
        to, back = change_of(form, placement, of_job[0], job.request)
        change = Change(
            at_s=now(),
            gres=str(placement.gres),
            mode=placement.mode,
            to=to,
            back=back,
            reasons=tuple(sorted({record.reason for record in of_job})),
            runs=footprint.evidence_count,
            billed=of_job[0].billing,
            **foretold(footprint, placement),
        )
        if late[job.job_id] == "shadow":
            shadowed.append((job, change, placement, of_job))
            continue
        keep(job._replace(change=change))
        write_said(job, said_of(job, change))
        lines += update([record.target for record in of_job], change.to)
        begun.append((job, change, refused))
    _foretell(shadowed, config, slurm)
    after = own_records(slurm, lines, [job for job, _, _ in begun])
    return [
        Intent(job, change, [record for record in after[job.job_id] if record.raw_id not in refused], is_fresh=True)
        for job, change, refused in begun
        if job.job_id in after
    ]


def _foretell(
    changes: Sequence[tuple[Waiting, Change, Placement, Sequence[PendingJob]]], config: SiteConfig, slurm: Slurm
) -> None:
    """Record what jobs would have come to ask for, and where it is known that they would have begun at once."""
    free: dict[tuple[str, str], int] = {}
    with suppress(CollocError):
        free = dict(slurm.free().units) if changes else free
    for job, change, placement, records in changes:
        [piece] = parse_gres(change.gres)
        # Nobody knows whether another GPU has as many shares.
        is_one = [record.target for record in records] == [job.job_id]
        begins = is_one and wait_for_gpus(records) and take(free, {kind_of(piece)}, piece.quantity, job, config)
        for decision in _decisions(job, config)[-1:]:
            would = decision._replace(
                **_shared(change, "mode"),
                at_s=now(),
                reasons=(because("late-would", given=change.gres, runs=change.runs),),
                shadow=True,
                would=change.gres,
                would_memory_mib=placement.memory_mib if placement.mode == "mps" else None,
                would_wait_s=now() - job.submitted_s if begins else None,
                arm=LATE,
            )
            drop_decision(config.decisions_folder, would)
        # There is no more to be said of it.
        put_away(config.cluster, [job.job_id])


def _wanted(
    jobs: Sequence[Waiting], late: Mapping[str, str], config: SiteConfig, slurm: Slurm
) -> list[tuple[Waiting, Placement, Footprint]]:
    """Return the jobs that a piece would be given today, but those that one did no good or, within a month, harm."""
    for signature in {job.request.signature for job in jobs}:
        runs = look_up(config, signature, None).evidence
        if (until_s := harmed_s(runs, config.sharing.max_slowdown) + _HARMED_S) > now():
            # Only the newest of a job's runs are kept.
            note_failed(config.cluster, signature, ("",), until_s)
    failed = {(job.signature, job.partition) for job in failed_before(config.cluster)}
    untried = (
        job
        for job in jobs
        if failed.isdisjoint((job.request.signature, name) for name in ("", *partition_names(job.request, config)))
    )
    return [placed for placed in _placed(untried, late, config, slurm) if placed[1].gres]


def _placed(
    jobs: Iterable[Waiting], late: Mapping[str, str], config: SiteConfig, slurm: Slurm
) -> Iterator[tuple[Waiting, Placement, Footprint]]:
    """Yield the placements of today of jobs of known need; the history of one signature is read once."""
    footprints: dict[tuple[object, ...], Footprint] = {}
    limits = partial(slurm.limits, config.cluster)
    for job in jobs:
        # The time for which a run must have been looked at goes by the time limit of the job that is to follow it.
        key = job.request.signature, job.request.command, asked_limit_min(job.request, config)
        if key not in footprints:
            footprints[key] = footprint_of_runs(job.request, None, config, slurm.job_states)[0]
        if footprints[key].gpu_mem_peak_mib is not None:
            yield job, placed_late(job, footprints[key], config, limits, late[job.job_id]), footprints[key]


# --- results of changes ---


def _better_as_asked(
    intents: Sequence[Intent],
    waiting: Sequence[Waiting],
    tasks: Mapping[str, int],
    late: Mapping[str, str],
    config: SiteConfig,
    slurm: Slurm,
) -> dict[str, str]:
    """Return the jobs that are better off as asked, with why: their need has grown, or a whole GPU is free.

    As many are as GPUs are free, less those that were put back for that and have not begun; an array is where all of
    its ``tasks`` that wait find one.
    """
    bound = {
        intent.job.job_id: intent for intent in intents if intent.bound and intent.change.is_told and intent.change.back
    }
    jobs = [intent.job for intent in bound.values()]
    better = {
        job.job_id: "harmed" if footprint.keep_whole else "grew"
        for job, placement, footprint in _placed(jobs, late, config, slurm)
        if has_grown(bound[job.job_id].change, placement, footprint)
    }
    idle = [
        intent
        for job_id, intent in bound.items()
        # slurmctld has had time to start it.
        if job_id not in better and now() - intent.change.at_s >= _CYCLE_S and wait_for_gpus(intent.records)
    ]
    # Nobody is asked if no node has a single GPU.
    single = config.sharing.late_back == "single"
    no_single = single and all(pool.gpus_per_node != 1 for pool in config.pool)
    if not idle or config.sharing.late_back == "off" or no_single:
        return better
    with suppress(CollocError):  # the free GPUs are not known
        gpus = dict(slurm.free(single=single).units)
        for job in waiting:
            for _ in range(tasks[job.job_id] if job.change and job.change.why == "free" else 0):
                take(gpus, whole_kinds(job, config), 1, job, config)
        pieces = slurm.free().units if any(gpus.values()) else {}
        for job, change, *_ in idle:
            [piece] = parse_gres(change.gres)
            is_free = take(dict(pieces), {kind_of(piece)}, piece.quantity, job, config)
            if not is_free and take(gpus, whole_kinds(job, config), tasks[job.job_id], job, config):
                better[job.job_id] = "free"
    return better


def _settle(
    intents: Sequence[Intent], better: Mapping[str, str], config: SiteConfig, slurm: Slurm, *, undo: bool = False
) -> Looked:
    """Put back what is half changed, waits for a reason that it had not, is ``better`` as asked, or to be undone."""
    reasons = [why_back(intent, undo=undo) or better.get(intent.job.job_id, "") for intent in intents]
    lines: list[str] = []
    for intent, reason in zip(intents, reasons, strict=True):
        if reason and intent.change.back:
            for record in intent.changed:
                lines += update([record.target], intent.back(record))
    after = own_records(slurm, lines, [intent.job for intent in intents]) if lines else {}
    bound, undone = [], []
    for before, reason in zip(intents, reasons, strict=True):
        job, change, records, is_fresh = before
        intent = before._replace(records=after.get(job.job_id, records))
        if intent.bound:
            bound.append(job.job_id)
            if not change.is_told:
                change = change._replace(is_told=True, bills=intent.bound[0].billing)
                keep(job._replace(change=change))
                write_said(job, said_of(job, change))
                _decide(job, change, config)
        elif not is_fresh and not change.is_told:
            # The look that wrote it down was killed before slurmctld heard of it.
            keep(job._replace(change=None))
            write_said(job, "")
        else:
            write_said(job, "")
            undone.append(job.job_id)
            keep(job._replace(change=change._replace(is_told=True, undone_s=now(), why=reason or "changed")))
            if reason and reason not in _NO_FAILURE:
                note_failed(config.cluster, job.request.signature, partition_names(job.request, config))
            if change.is_told:
                _decide(job, None, config)
    return Looked(tuple(bound), tuple(undone))


def _note_begun(jobs: Iterable[Waiting], config: SiteConfig, slurm: Slurm) -> None:
    """Have the ledger say what jobs began with where a look was killed before it could."""
    changed = [(job, job.change) for job in jobs if job.change and job.change.undone_s is None]
    records = own_records(slurm, [], [job for job, _ in changed], waiting=False)
    for job, change in changed:
        # One that begins again may have more than the piece with which it began.
        first = [record for record in records.get(job.job_id, ()) if record.record.get("Restarts", "0") == "0"]
        bound = [record for record in first if record.has(gpu_part(change.to))]
        if bound and not change.is_told:
            _decide(job, change._replace(bills=bound[0].billing), config)
        elif (
            not bound and change.is_told and change.back and any(record.has(gpu_part(change.back)) for record in first)
        ):
            _decide(job, None, config)


def _decide(job: Waiting, change: Change | None, config: SiteConfig) -> None:
    """Add to the ledger what the job asks for now: a job's last decision before its start counts."""
    decisions = _decisions(job, config)
    if not decisions:
        return
    decision, reasons = decisions[0], [because("late-undone", asked=job.request.asked)]
    if change:
        decision = decisions[-1]._replace(**_shared(change), given=change.gres, arm=LATE)
        reasons = [because("late-bound", asked=job.request.asked, runs=change.runs)]
    if change and change.billed and change.bills:
        reasons.append(because("late-billed", asked=change.billed, given=change.bills))
    drop_decision(config.decisions_folder, decision._replace(at_s=now(), reasons=tuple(reasons)))


def _decisions(job: Waiting, config: SiteConfig) -> list[Decision]:
    """Return what was decided for a job, oldest first; one home may serve several clusters."""
    decisions = read_decisions(config.decisions_folder, f"-{job.job_id}.json")[0]
    return [decision for decision in decisions if decision.cluster == job.cluster]


def _shared(change: Change, *but: str) -> dict[str, Any]:
    """Return what a decision has of a change, but for some of it."""
    names = set(change._fields) & set(Decision._fields) - {"at_s", "reasons", *but}
    return {name: getattr(change, name) for name in names}
