# SPDX-License-Identifier: Apache-2.0
"""``python -I -m slurm_colloc.rebind.recover``: has the job that it runs in begin again with more of a GPU.

csub's block calls it where the script ends ("end"), and where a job begins that was requeued ("start"). Slurm changes
no job that runs, so the job is requeued first and changed then, while Slurm ends it: the intent is written down before,
and the next start does the rest where this was killed between the two.
"""

import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, TypeGuard

from slurm_colloc.core import clock
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.config_file import find_site_file, load_site
from slurm_colloc.core.errors import CollocError, InputError, StoreError
from slurm_colloc.core.files import private_folder, read_own, write_atomic
from slurm_colloc.core.model import Evidence, Gres, SharingMode
from slurm_colloc.core.process import given_environment
from slurm_colloc.core.units import whole
from slurm_colloc.core.value_types import read_as
from slurm_colloc.estimate.records import drop_evidence, evidence_of_run, note_out_of_memory
from slurm_colloc.gpu.failure import TAIL_BYTES, Outcome, outcome_of
from slurm_colloc.placement.out_of_memory import MOST_RETRIES, is_share
from slurm_colloc.rebind.intent import gpu_part, records_after
from slurm_colloc.rebind.verdict import End, Verdict, as_evidence, judge
from slurm_colloc.rebind.waiting import read_one
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.gres import parse_gres
from slurm_colloc.slurm.job_files import add_words, job_name, last_words
from slurm_colloc.slurm.parse import parse_release
from slurm_colloc.slurm.pending import Assignments, PendingJob, update
from slurm_colloc.submit.requeue_data import Carried, asks_for_more, parse_carried

_LIMIT_BYTES = 256 * 1024
_MOST_KEPT = 500
# A slurmctld that is started anew is back by then; one that refuses the change does so each time.
_EVERY_S, _TIMES, _REFUSED_TIMES = 1.0, 60, 3


class Rerun(NamedTuple):
    """The consequence of a job's last end, written before Slurm is told, and with ``outcome``, in words, behind it.

    ``runs`` counts the new runs, ``restarts`` is Slurm's count when it was written. The job is to have ``to`` by
    ``update``; both are empty where it ends as it ends.
    """

    runs: int
    restarts: int
    to: str
    update: Assignments
    outcome: str = ""


class Job(NamedTuple):
    """The job that this runs in: ``name`` is its id as Slurm takes it, of a task of an array "4711_2".

    ``restarts`` is Slurm's own count, once it was asked: the variable's the submitting job hands on to it.
    """

    name: str
    raw_id: str
    piece: Carried
    slurm: CliClient
    config: SiteConfig
    restarts: int = 0

    def record(self) -> PendingJob | None:
        """Return what slurmctld knows of it."""
        return records_after(self.slurm, (), [self.name]).get(self.name)

    def keep(self, rerun: Rerun) -> None:
        """Write down what its end comes to."""
        keep_rerun(self.piece.cluster, self.name, rerun)


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Do what is due, print what a job that starts has got where that is more than before, and return the status."""
    # Slurm ends the job while this is at work, and what runs in it.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.setsid()
    # The job is of this site's cluster, whichever others the user submits to.
    os.environ.pop("SLURM_CLUSTERS", None)
    try:
        event, piece, *rest = argv
        job = _job(parse_carried(piece), environ)
        if event == "end":
            status, files = rest
            ended(job, int(status), files.splitlines())
        elif has := started(job):
            print(has)
    except (CollocError, ValueError) as error:
        print(f"csub: error: {error}", file=sys.stderr)
        return getattr(error, "exit_status", InputError.exit_status)
    return 0


def _job(piece: Carried, environ: Mapping[str, str]) -> Job:
    path = find_site_file()
    if not path:
        raise InputError("no site.toml on this node; what a piece of a GPU holds is not known")
    return Job(job_name(environ), environ["SLURM_JOB_ID"], piece, CliClient(), load_site(path))


# --- the end ---


def ended(job: Job, status: int, files: Sequence[str]) -> None:
    """Look how the script ended, and have the job begin again where that is due.

    Args:
        job: it.
        status: the script's.
        files: how long its output and its error file were when it began, and their paths.

    Raises:
        CollocError: nothing can be done.
    """
    begins = dict(zip(files[2:], files[:2], strict=True)) if len(files) == 4 else {}
    paths = {path: int(size) for path, size in begins.items() if size.isdecimal() and os.path.isfile(path)}
    words = b"\n".join(last_words(path, size, TAIL_BYTES) for path, size in paths.items())
    if outcome_of(status, words)[0] in (Outcome.GPU_OOM, Outcome.GPU_FAULT):
        record = job.record()
        # One that was cancelled, has met its limit or is requeued by others has another state by now.
        if _goes_on(record):
            _follow(_counted(job, record), record, status, words, tuple(paths))


def _goes_on(record: PendingJob | None) -> TypeGuard[PendingJob]:
    return record is not None and record.state == "RUNNING" and record.uid == os.geteuid()


def _counted(job: Job, record: PendingJob) -> Job:
    return job._replace(restarts=whole(record.record.get("Restarts", "")) or 0)


def _follow(job: Job, record: PendingJob, status: int, output: bytes, paths: Sequence[str]) -> None:
    slurm_conf = job.slurm.config()
    rerun = _rerun(job)
    end = End(
        status=status,
        output=output,
        has=_has(record),
        measured=_measured(job),
        left_s=_left_s(record),
        runs=max(rerun.runs if rerun else 0, job.restarts),
        release=parse_release(slurm_conf.get("SLURM_VERSION", "")),
    )
    verdict = judge(end, _as_bound(job), job.config.pool, job.config.sharing.late_forms)
    if verdict is None:
        return
    _learn(job, end, verdict)
    by_hand = shlex.join(asks_for_more(job.piece, verdict.more_mib))
    rerun = Rerun(end.runs, job.restarts, "", {})
    done = f"{verdict.why}; for more: {by_hand}"
    if verdict.to is not None:
        rerun = Rerun(end.runs + 1, job.restarts, str(verdict.to), verdict.update)
        job.keep(rerun)
        # Slurm would bring back one that was cancelled meanwhile.
        if not _goes_on(job.record()):
            return
        if refusal := job.slurm.requeue(job.name):
            done = f"Slurm does not let it begin again ({refusal}); for more: {by_hand}"
        else:
            aside = ""
            mode = job.piece.open_mode or ("append" if slurm_conf.get("JobFileAppend") == "1" else "")
            if not mode.startswith("a"):  # Slurm empties the output of a job that begins again
                paths, aside = _put_aside(paths, job)
            rerun, done = _changed(job, rerun)
            done += f"; what it printed so far is in '{aside}'" if aside else ""
    words = f"job {job.name} {verdict.cause}; {done}"
    job.keep(rerun._replace(outcome=words))
    if path := next(iter(paths), ""):
        add_words(path, f"csub: {words}\n".encode(errors="backslashreplace"))


def _as_bound(job: Job) -> Carried:
    """Return what the job carries, with all that was changed when it got its piece, if it did so while it waited."""
    piece = job.piece
    late = read_one(piece.cluster, job.name.partition("_")[0]) if piece.mode == SharingMode.EXCLUSIVE else None
    if late is None or late.change is None:
        return piece
    return piece._replace(fields={name: value for name, value in late.change.back.items() if "res" not in name})


def _has(record: PendingJob) -> Gres:
    text = next(iter(gpu_part(record.fields).values()), "")
    # An option that csub has taken back stands there as gpu:0.
    return next((gres for gres in parse_gres(text.replace("=", ":")) if gres.quantity), Gres("", "", 0))


def _left_s(record: PendingJob) -> float | None:
    with suppress(ValueError):
        return datetime.fromisoformat(record.record.get("EndTime", "")).timestamp() - clock.now()
    return None


def _measured(job: Job) -> Evidence | None:
    with suppress(StoreError, InputError):
        return evidence_of_run(user_data_folder(), job.piece.signature, job.raw_id)
    return None


def _learn(job: Job, end: End, verdict: Verdict) -> None:
    if verdict.is_offender:
        with suppress(CollocError):  # the next run teaches the same
            # The sampler goes on, and the next run has this job's id: neither may write over it.
            run = as_evidence(end, verdict, job.piece, f"{job.raw_id}.run{job.restarts + 1}", clock.now())
            drop_evidence(user_data_folder(), run)
            # The site's margins have one answer the less.
            note_out_of_memory(job.config.decisions_folder, job.name.partition("_")[0])


def _put_aside(paths: Sequence[str], job: Job) -> tuple[list[str], str]:
    """Give the output files other names, by the number of the run, and return them, and the last one's."""
    new_paths, name = [], ""
    for path in paths:
        new_paths.append(path)
        # Another job that writes to the same file may have the first.
        for new in (f"{path}.run{job.restarts + 1}", f"{path}.{job.name}.run{job.restarts + 1}"):
            with suppress(OSError):  # no right to it
                if not os.path.lexists(new):
                    # Some file systems lack links.
                    os.rename(path, new)
                    new_paths[-1] = name = new
                    break
    return new_paths, name


def _changed(job: Job, meant: Rerun) -> tuple[Rerun, str]:
    """Have the requeued job ask for more, and return what stands then, and in words what came of it."""
    refused = 0
    for _ in clock.tries(_TIMES, _EVERY_S):
        with suppress(CollocError):  # slurmctld is started anew
            record = records_after(job.slurm, update([job.name], meant.update), [job.name]).get(job.name)
            if record is not None and record.has(gpu_part(meant.update)):
                return meant, f"it begins again on {meant.to}"
            refused += record is not None
        if refused == _REFUSED_TIMES:
            return meant._replace(update={}), f"it begins again, but Slurm refuses to give it {meant.to}"
    return meant, f"it begins again; whether on {meant.to} is not known"


# --- the next start ---


def started(job: Job) -> str:
    """Return what a job that was requeued has got, as csub's block takes it; empty where it has what it had.

    Slurm is told now what the job needs if its last end was killed before that, and the job begins once more: this does
    not return then.

    Raises:
        CollocError: it is not known.
    """
    record = job.record()
    if record is None:
        return ""
    job = _counted(job, record)
    rerun = _rerun(job)
    if rerun and rerun.update and record.has(gpu_part(rerun.update)):
        return _got(job, rerun)
    if job.piece.mode != SharingMode.EXCLUSIVE and _has(record) in parse_gres(job.piece.asked):
        # Somebody has changed it, or the file of its rerun is lost.
        return SharingMode.EXCLUSIVE
    if (
        not (rerun and rerun.update)
        or rerun.outcome
        or rerun.runs >= MOST_RETRIES
        or job.restarts != rerun.restarts + 1
    ):
        return ""
    meant = rerun._replace(runs=rerun.runs + 1, restarts=job.restarts)
    job.keep(meant)
    if job.slurm.requeue(job.name):
        return ""
    meant, done = _changed(job, meant)
    job.keep(meant._replace(outcome=f"job {job.name} was ended before it had more; {done}"))
    while True:  # Slurm ends this
        signal.pause()


def _got(job: Job, rerun: Rerun) -> str:
    """Return how it holds its GPU: the memory of a share, or the mode."""
    [gres] = parse_gres(rerun.to)
    if not is_share(gres):
        is_slice = any(gres.type == part.type for pool in job.config.pool for part in pool.slice)
        return SharingMode.MIG if is_slice else SharingMode.EXCLUSIVE
    sizes = [pool.gpu_mem_mib or 0 for pool in job.config.pool if pool.mps_per_gpu or pool.shards_per_gpu]
    return str(min(sizes, default=0) or "")


# --- files ---


def _path(cluster: str, job_id: str) -> str:
    return os.path.join(user_data_folder(), "recovered", cluster, f"{job_id}.json")


def _rerun(job: Job) -> Rerun | None:
    """Return what this job's last end came to; None of its first run, whatever had its number before."""
    return read_rerun(_path(job.piece.cluster, job.name)) if job.restarts else None


def read_rerun(path: str) -> Rerun | None:
    """Return what one file holds; None where there is none, or none that can be used."""
    with suppress(StoreError, ValueError, TypeError, RecursionError):
        rerun: Rerun = read_as(Rerun, json.loads(read_own(path, _LIMIT_BYTES)))
        return rerun
    return None


def keep_rerun(cluster: str, job_id: str, rerun: Rerun) -> None:
    """Write down what a job's end comes to.

    Raises:
        StoreError: it cannot be written, so nothing may be done.
    """
    path = _path(cluster, job_id)
    private_folder(user_data_folder())
    folder = private_folder(os.path.dirname(path))
    write_atomic(path, json.dumps(rerun._asdict()).encode(errors="backslashreplace"), durable=True)
    with suppress(OSError):
        files = sorted((file.stat().st_mtime, file.path) for file in os.scandir(folder))
        for _, path in files[:-_MOST_KEPT]:
            os.unlink(path)


def told(cluster: str, job_id: str) -> str:
    """Return what became of one's own job, or a task of an array, after it ran out of GPU memory; empty else."""
    rerun = read_rerun(_path(cluster, job_id))
    return rerun.outcome if rerun else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], given_environment()))
