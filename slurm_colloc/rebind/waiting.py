# SPDX-License-Identifier: Apache-2.0
"""The user's waiting jobs that may still get a piece of a GPU: one file a job, in the user's own data folder.

A file says what was asked and, once it is decided, what the job is to ask for instead; that is written before Slurm is
told, so that whoever comes after a kill knows what was meant. Only slurmctld knows what a job really asks for.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import private_folder, read_own, remove, write_atomic
from slurm_colloc.core.model import JobRequest, because
from slurm_colloc.core.process import detach
from slurm_colloc.core.value_types import read_as
from slurm_colloc.slurm.pending import Assignments
from slurm_colloc.submit.render import card_mib

VERSION = 1
_LIMIT_BYTES = 256 * 1024
_ENDED, _FAILED, _LOOKED = "ended", "failed.json", "looked"
# late.sbatch.j2 knows it too.
_SAID = ".said"
_MOST_KEPT = 500
# No user's jobs are looked at more often where there is no news.
GAP_S = 20.0


class Change(NamedTuple):
    """The request that a waiting job is to make instead, and the footprint that speaks for it.

    Both ``to`` and ``back`` are updates, ``back`` empty where Slurm knows no way back. The job waited for ``reasons``.
    ``is_told`` says that slurmctld was seen to have it so. ``undone_s`` is when it was found, or put, as asked again,
    ``why`` the reason; None and empty before. ``billed`` is what Slurm would charge for it as asked (the TRES billing),
    ``bills`` what it does since; empty where it does not say.
    """

    at_s: float
    gres: str
    mode: str
    to: Assignments
    back: Assignments
    reasons: tuple[str, ...]
    rung: str
    runs: int
    gpu_mem_q99_mib: float | None
    gpu_mem_expected_mib: float | None
    margin: str
    sm_active_q95_pct: float | None
    slowdown_expected: float | None
    slowdown_upper: float | None
    is_told: bool = False
    undone_s: float | None = None
    why: str = ""
    billed: str = ""
    bills: str = ""


class Waiting(NamedTuple):
    """A job of this user's that waits as it was asked for (``left`` says why, of a known need), or with a change."""

    version: int
    cluster: str
    job_id: str
    submitted_s: float
    request: JobRequest
    change: Change | None = None
    left: str = ""


class Failed(NamedTuple):
    """Jobs of this signature in this partition, empty for all, are left as asked until then, or for good."""

    signature: str
    partition: str
    until_s: float | None


def folder_of(cluster: str) -> str:
    """Return where the files of one cluster's jobs lie."""
    return os.path.join(user_data_folder(), "waiting", cluster)


def keep(job: Waiting) -> None:
    """Write or replace the file of one job.

    Raises:
        StoreError: the folder cannot be written.
    """
    reasons = ("no_slice", "no_mps", "no_share")
    codes = {name: [because(reason.code) for reason in getattr(job.request, name)] for name in reasons}
    # These are of no use to a job that is submitted.
    request = job.request._replace(submitted=(), differs=None, untouchable=())._asdict() | codes
    values = job._asdict() | {"request": request, "change": job.change._asdict() if job.change else None}
    write_atomic(os.path.join(_made(job.cluster), f"{job.job_id}.json"), json.dumps(values).encode())


def keep_submitted(config: SiteConfig, job_id: str, request: JobRequest) -> None:
    """Keep a job that was submitted as asked.

    Raises:
        StoreError: the folder cannot be written.
    """
    if card_mib(request, config) is None:
        # The job itself works out its limit on GPU memory, of its shares and the card.
        request = request._replace(no_mps=(*request.no_mps, because("cards-differ")))
    job = Waiting(VERSION, config.cluster, job_id, now(), request)
    write_said(job, "")  # a job may have had this number before
    keep(job)


def read_waiting(cluster: str) -> tuple[list[Waiting], int]:
    """Return the jobs that were not seen to start or end, oldest first, and how many files could not be used."""
    folder = folder_of(cluster)
    jobs = [_read(os.path.join(folder, name)) for name in _names(folder)]
    return [job for job in jobs if job], jobs.count(None)


def read_one(cluster: str, job_id: str) -> Waiting | None:
    """Return what is kept of one job, whether it waits or not; None where nothing is, or nothing that can be used."""
    folder, name = folder_of(cluster), f"{job_id}.json"
    return _read(os.path.join(folder, name)) or _read(os.path.join(folder, _ENDED, name))


def write_said(job: Waiting, line: str) -> None:
    """Leave a line for the job's own output, by which its block also knows that it has a piece; empty: take it away.

    Raises:
        StoreError: the folder cannot be written.
    """
    path = os.path.join(_made(job.cluster), f"{job.job_id}{_SAID}")
    if line:
        write_atomic(path, f"{line}\n".encode(errors="backslashreplace"))
    else:
        remove(path)


def put_away(cluster: str, job_ids: Iterable[str]) -> None:
    """Have jobs count as waiting no more; the newest that were changed are kept, the others removed.

    Raises:
        StoreError: the folder cannot be written.
    """
    folder = folder_of(cluster)
    ended = _made(cluster, _ENDED)
    try:
        for job_id in job_ids:
            job, path = read_one(cluster, job_id), os.path.join(folder, f"{job_id}.json")
            if job and job.change:
                os.replace(path, os.path.join(ended, f"{job_id}.json"))
            else:
                os.unlink(path)
        for name in _names(ended)[:-_MOST_KEPT]:
            os.unlink(os.path.join(ended, name))
            # A job that begins now may still read it.
            remove(os.path.join(folder, f"{name.removesuffix('.json')}{_SAID}"))
    except OSError as error:
        raise StoreError(f"'{folder}' cannot be written: {error.strerror}") from error


def failed_before(cluster: str) -> list[Failed]:
    """Return what is not changed, those that were noted last at the end."""
    with suppress(StoreError, ValueError, TypeError, RecursionError):
        content = json.loads(read_own(os.path.join(folder_of(cluster), _FAILED), _LIMIT_BYTES))
        failed: tuple[Failed, ...] = read_as(tuple[Failed, ...], content)
        return [job for job in failed if job.until_s is None or job.until_s > now()]
    return []


def note_failed(cluster: str, signature: str, partitions: Iterable[str], until_s: float | None = None) -> None:
    """Have no job of a signature changed again in these partitions, until then or for good.

    Raises:
        StoreError: the folder cannot be written.
    """
    new = [Failed(signature, partition, until_s) for partition in partitions]
    failed = [*(job for job in failed_before(cluster) if job not in new), *new][-_MOST_KEPT:]
    write_atomic(os.path.join(_made(cluster), _FAILED), json.dumps(failed).encode())


def start_look(cluster: str, environ: Mapping[str, str], gap_s: float = GAP_S) -> int | None:
    """Have the user's waiting jobs looked at by a process of its own, and return its pid; None where that is not due.

    It is due where a job waits and none was started for so long.

    Raises:
        ProcessError: it cannot be started.
    """
    with suppress(StoreError):
        if not _names(folder_of(cluster)):
            return None
    with suppress(OSError):
        if 0 <= now() - os.stat(lock_path(cluster)).st_mtime < gap_s:
            return None
        # Whoever starts one touches it: one of several does, and one that fails at once is not started all the time.
        os.utime(lock_path(cluster))
    return detach([sys.executable, "-I", "-m", "slurm_colloc.rebind.program"], environ)


def lock_path(cluster: str) -> str:
    """Return the file that whoever looks holds, and whoever has it done touches."""
    return os.path.join(folder_of(cluster), _LOOKED)


def _made(cluster: str, *names: str) -> str:
    private_folder(user_data_folder())
    return private_folder(os.path.join(folder_of(cluster), *names))


def _names(folder: str) -> list[str]:
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".json") and name[0].isdigit()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"'{folder}' cannot be read: {error.strerror}") from error
    return sorted(names, key=lambda name: (len(name), name))


def _read(path: str) -> Waiting | None:
    """Return what one file holds; None where there is none, or none of this release's form."""
    with suppress(StoreError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        values = json.loads(read_own(path, _LIMIT_BYTES))
        job: Waiting = read_as(Waiting, values)
        # A field that is lacking would count as none asked for.
        if values["request"].keys() == set(JobRequest._fields) and job.version == VERSION:
            return job
    return None
