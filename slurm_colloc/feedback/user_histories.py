# SPDX-License-Identifier: Apache-2.0
"""Writes each user's history: measured use of past jobs by csub's signature, for the next estimates.

Decisions are files that users wrote, so nothing in them is believed that the accounting can say: the user is the
file's owner, and the job must be that user's.
"""

import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError, StoreError
from slurm_colloc.core.files import read_bounded
from slurm_colloc.core.model import (
    GPU_OOM,
    LEAST_SAMPLES,
    Answered,
    Decision,
    Evidence,
    SharingMode,
)
from slurm_colloc.estimate.fold import bounded
from slurm_colloc.estimate.records import parse_decision
from slurm_colloc.estimate.snapshot import snapshot_path, write_snapshot
from slurm_colloc.facts.evidence import measured_runs
from slurm_colloc.store.decisions import asked_id
from slurm_colloc.store.store import Store

_LIMIT_BYTES = 256 * 1024
_CLOCKS_DIFFER_S = 60.0
# One user's decisions, the newest first: some hundred thousand, and no more memory than that, whoever writes what.
_MOST_BYTES_OF_USER = 128 * 1024 * 1024

# csub is told of so many runs of a user at most, those of the jobs that ran last: its file stays some MB.
_MOST_RUNS = 100_000


class Collected(NamedTuple):
    """Decisions by (user, job id); ``rejected`` counts files that were not a user's own decision.

    ``foreign`` says in words what lies in the place of users' folders and is not theirs: nothing of it is read.
    """

    decisions: Mapping[tuple[str, str], tuple[int, Decision]]
    rejected: int
    foreign: tuple[str, ...] = ()


class History(NamedTuple):
    """How many runs went into the users' snapshots, and how many users only root could have written one for.

    ``answers`` are csub's own, of all users, beside what was measured. ``busy_unknown`` is how many of the runs tell SM
    activity and not the busy time, so that it alone decides for their jobs.
    """

    runs: int
    users_skipped: int
    answers: tuple[Answered, ...] = ()
    busy_unknown: int = 0


def collect_decisions(folder: str) -> Collected:
    """Read the decisions in a spool of one folder for each uid."""
    decisions: dict[tuple[str, str], tuple[int, Decision]] = {}
    rejected = 0
    left_bytes: dict[int, int] = {}
    folders, foreign = _folders(folder)
    for uid, path in _decision_files(folders):
        try:
            allowed_bytes = left_bytes.get(uid, _MOST_BYTES_OF_USER)
            content = read_bounded(path, min(_LIMIT_BYTES, allowed_bytes), owners=(uid,))
            left_bytes[uid] = allowed_bytes - len(content)
            decision = parse_decision(content)
            key = pwd.getpwuid(uid).pw_name, decision.job_id
        except (CollocError, KeyError):
            rejected += 1
            continue
        # Job ids come round again: the later decision counts, whatever order the folder is listed in.
        if key not in decisions or decisions[key][1].at_s <= decision.at_s:
            decisions[key] = (uid, decision)
    return Collected(decisions, rejected, tuple(foreign))


def _folders(spool: str) -> tuple[list[tuple[int, str]], list[str]]:
    """Return the users' folders with their uids, and what lies in the place of one and is not that user's, in words."""
    folders, foreign = [], []
    for entry in _entries(spool):
        # isdecimal alone takes digits of every script, which int() reads too, as somebody else's uid.
        if not (entry.name.isascii() and entry.name.isdecimal()):
            continue
        with suppress(OSError):  # gone meanwhile
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                foreign.append(f"'{entry.path}' is no folder")
            elif status.st_uid != int(entry.name):
                foreign.append(f"'{entry.path}' belongs to uid {status.st_uid}")
            else:
                folders.append((int(entry.name), entry.path))
    return folders, foreign


def _decision_files(folders: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield each JSON file of these folders with the uid it should belong to."""
    for uid, folder in folders:
        # A name begins with the time.
        for entry in reversed(_entries(folder, uid)):
            if entry.name.endswith(".json"):
                yield uid, entry.path


def _entries(folder: str, owner_uid: int | None = None) -> list["os.DirEntry[str]"]:
    """Return a folder's entries by name; nothing when it is missing, closed to us, or not ``owner_uid``'s."""
    try:
        if owner_uid is not None and os.lstat(folder).st_uid != owner_uid:
            return []
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:  # a user looking at their own job may not look into the folders of others
        return []


def build_history(
    store: Store, cluster: str, state_folder: str, collected: Collected, config: SiteConfig | None = None
) -> History:
    """Write each user's snapshot from the store and the decisions, and from what 'colloc history bootstrap' found.

    Raises:
        StoreError: store or history cannot be read or written.
    """
    by_uid: dict[int, list[Evidence]] = {}
    answers: list[Answered] = []
    for user, shown_id, _, _, run, _ in measured_runs(store, cluster, config):
        owned = collected.decisions.get((user, asked_id(shown_id, run.job_id)))
        if owned is None or owned[1].cluster != cluster:
            continue
        uid, decision = owned
        mode = run.mode or decision.mode
        if run.sample_count >= LEAST_SAMPLES and (answered := _answered(user, decision, run)):
            answers.append(answered)
        by_uid.setdefault(uid, []).append(as_run_of(run, decision.signature, mode))
    for user, past in store.past(cluster).items():
        try:
            uid = pwd.getpwnam(user).pw_uid
        except KeyError:  # users who are gone have no history
            continue
        measured_ids = {run.job_id for run in by_uid.get(uid, ())}
        by_uid.setdefault(uid, []).extend(run for run in past if run.job_id not in measured_ids)
    make_history_folder(state_folder)
    # Only root can give a file to its user; somebody else's would be an error at each of that user's submissions.
    written = {uid: evidence for uid, evidence in by_uid.items() if os.geteuid() in (0, uid)}
    for uid, evidence in written.items():
        newest = bounded(evidence, _MOST_RUNS)
        write_snapshot(snapshot_path(state_folder, uid), newest, uid if os.geteuid() == 0 else None)
    runs = [run for evidence in written.values() for run in evidence]
    unknown = sum(
        run.mode == SharingMode.EXCLUSIVE and run.sm_active_mean_pct is not None and run.busy_mean_pct is None
        for run in runs
    )
    return History(len(runs), len(by_uid) - len(written), tuple(answers), unknown)


def _answered(user: str, decision: Decision, run: Evidence) -> Answered | None:
    """Return what csub had answered, where a margin was part of it and the job had its GPU memory for itself."""
    expected, q99 = decision.gpu_mem_expected_mib, decision.gpu_mem_q99_mib
    began_s = run.ended_s - (run.elapsed_s or 0.0)
    # A decision for an array's tasks that still waited says nothing of those that ran already.
    if not decision.margin or expected is None or q99 is None or decision.at_s > began_s + _CLOCKS_DIFFER_S:
        return None
    end = GPU_OOM if decision.out_of_memory else run.state
    measured = run.gpu_mem_peak_mib
    return Answered(decision.margin, user, decision.job_id, decision.at_s, expected, q99, measured, end)


def as_run_of(run: Evidence, signature: str, mode: str) -> Evidence:
    """Return what was measured as a run of this job on this kind of piece."""
    # These would be another measure on a piece of a GPU.
    if mode != SharingMode.EXCLUSIVE:
        run = run._replace(dram_active_q95_pct=None, busy_mean_pct=None)
    return run._replace(signature=signature, mode=mode)


def make_history_folder(state_folder: str) -> None:
    """Make the folder of the users' histories, where it is missing.

    Raises:
        StoreError: it cannot be made.
    """
    folder = os.path.dirname(snapshot_path(state_folder, 0))
    try:
        os.makedirs(folder, exist_ok=True)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or (os.geteuid() == 0 and status.st_uid != 0):
            raise StoreError(
                f"history folder '{folder}' is a link or somebody else's, uid {status.st_uid}; move it away"
            )
        os.chmod(folder, 0o711)  # noqa: S103 - whatever the umask: each user reads a file of their own in it
    except OSError as error:
        raise StoreError(f"history folder '{folder}' cannot be made: {error.strerror}") from error
