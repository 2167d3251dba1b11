# SPDX-License-Identifier: Apache-2.0
"""One file for each decision and for each run's evidence, dropped by whoever made it.

No lock and no shared file: safe on NFS and Lustre, and what one writer leaves behind never harms another's.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args

from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.errors import InputError, StoreError
from slurm_colloc.core.files import private_folder, read_own, remove_left, write_atomic
from slurm_colloc.core.model import COMPLETED, LEAST_SAMPLES, Decision, Evidence, Reason, SharingMode
from slurm_colloc.core.units import whole
from slurm_colloc.core.value_types import fits

LIMIT_BYTES = 256 * 1024
# The newest runs are enough, and with them the newest that had a whole GPU: only such a one shows SM activity.
RUNS_KEPT, RUNS_READ = 20, 200
# The state of a run whose end Slurm has forgotten.
UNKNOWN = "UNKNOWN"
# The id of a record that stands for several old runs begins so.
OLDER = "older-"
# Until when the past of a job does not count, by its user's word: one small file beside the job's evidence.
_FORGOTTEN, _TIME_BYTES = "forgotten", 64
# No GPUs of one job hold 16 TiB, and no clocks differ by more than a day.
_MOST_MIB, _MOST_PCT, _MOST, _AHEAD_S = 2**24, 1e4, 1e12, 86400.0
_LIMITS = [
    (at, _MOST_MIB if name.startswith("gpu_mem_") else _MOST_PCT if name.endswith("_pct") else _MOST)
    for at, (name, kind) in enumerate(Evidence.__annotations__.items())
    if kind not in (str, bool)
]
_MODE, _COUNT, _ENDED = map(Evidence._fields.index, ("mode", "run_count", "ended_s"))
_MODES = frozenset(SharingMode)
_KINDS = tuple(Evidence.__annotations__.values())
_Record = TypeVar("_Record")


class EvidenceFound(NamedTuple):
    """Evidence read back; ``unreadable`` counts files, or rows, that were there and could not be used."""

    evidence: tuple[Evidence, ...]
    unreadable: int


def evidence_path(folder: str, signature: str, job_id: str) -> str:
    """Return where the evidence of one run lies."""
    return os.path.join(runs_folder(folder, signature), f"{job_id}.json")


def runs_folder(folder: str, signature: str) -> str:
    """Return where the evidence of one signature lies: jobs of one family lie together."""
    family, _, rest = signature.partition(".")
    return os.path.join(folder, "evidence", family, rest)


def signatures_of_family(folder: str, family: str) -> list[str]:
    """Return the signatures of one family of which anything is kept, in no order.

    Raises:
        StoreError: the folder cannot be read.
    """
    # No look at any entry itself: each would cost an operation of its own.
    names = _names(os.path.join(folder, "evidence", family), "evidence", os.DirEntry.is_dir)
    return [f"{family}.{name}" for name in names]


def _names(folder: str, noun: str, is_wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    """Return the wanted names in a folder; a missing folder has none."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if is_wanted(entry)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{noun} in '{folder}' cannot be read: {error.strerror}") from error


def drop_evidence(folder: str, evidence: Evidence) -> None:
    """Write or replace the evidence of one run.

    Raises:
        StoreError: the folder cannot be written.
    """
    path = evidence_path(folder, evidence.signature, evidence.job_id)
    _make_folders(folder, path)
    remove_left(os.path.dirname(path))
    write_atomic(path, json.dumps(evidence._asdict()).encode())


def _make_folders(folder: str, path: str) -> None:
    """Make the folders of one signature below the user's own.

    Raises:
        StoreError: one cannot be made, or is somebody else's.
    """
    private_folder(folder)
    private_folder(os.path.dirname(path))


def read_evidence(folder: str, signature: str) -> EvidenceFound:
    """Return the newest runs of one signature, oldest first; a missing folder is no evidence."""
    runs = runs_folder(folder, signature)
    names = _names(runs, "evidence", lambda entry: entry.name.endswith(".json"))
    older = [name for name in names if name.startswith(OLDER)]
    runs_of = [name for name in names if name not in older]
    # Sorted by number, for Slurm counts up: asking each file for its time would cost an operation of its own.
    newest = sorted(runs_of, key=lambda name: whole(name.partition(".")[0]) or 0)[-RUNS_READ:]
    runs_read: list[Evidence] = []
    unreadable = 0
    for _, run in files_in(runs, (*older, *reversed(newest)), parse_evidence):
        runs_read += [run] if run else []
        unreadable += not run
        if len(runs_read) - len(older) >= RUNS_KEPT and any(map(tells_all, runs_read)):
            break
    return EvidenceFound(newest_of(runs_read), unreadable)


def files_in(
    folder: str, names: Iterable[str], parse: Callable[[bytes], _Record]
) -> Iterator[tuple[str, _Record | None]]:
    """Yield the files of these names and what they hold, None of one that cannot be used."""
    for name in names:
        record = None
        with suppress(StoreError, InputError):
            record = parse(read_own(os.path.join(folder, name), LIMIT_BYTES))
        yield name, record


def in_order(runs: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return runs in the order in which they ended."""
    return tuple(sorted(runs, key=lambda run: run.ended_s))


def is_folded(run: Evidence) -> bool:
    """Return whether a record stands for several old runs."""
    return run.job_id.startswith(OLDER)


def newest_of(runs: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Return the runs worth knowing, oldest first, from all runs, newest first; records of several are among them."""
    folded = list(filter(is_folded, runs))
    single = [run for run in runs if not is_folded(run)]
    newest, older = [*single[:RUNS_KEPT], *folded], single[RUNS_KEPT:]
    if not any(map(tells_all, newest)):
        newest += list(filter(tells_all, older))[:1]
    newest.reverse()
    return in_order(newest) if folded else tuple(newest)


def peak_mib(run: Evidence) -> int:
    """Return the most GPU memory that a run was seen to hold; 0 of one that was not seen."""
    return run.gpu_mem_peak_mib or 0


def has_samples(run: Evidence) -> bool:
    """Return whether enough was seen of a run; a program that says peaks only says nothing of samples."""
    return run.sample_count >= LEAST_SAMPLES or bool(run.source and not run.sample_count)


def tells_all(run: Evidence) -> bool:
    """Return whether a run says all of its job: a run on a share does not show how busy it keeps a whole GPU."""
    return run.mode == SharingMode.EXCLUSIVE and run.state == COMPLETED and run.sm_active_q95_pct is not None


def evidence_of_run(folder: str, signature: str, job_id: str) -> Evidence:
    """Return the evidence of one run.

    Raises:
        StoreError: there is none, or it cannot be read.
        InputError: not JSON, a field is missing, or of the wrong kind.
    """
    return parse_evidence(read_own(evidence_path(folder, signature, job_id), LIMIT_BYTES))


def parse_evidence(content: bytes) -> Evidence:
    """Return the Evidence in a dropped file.

    Raises:
        InputError: not JSON, a field is missing or unknown, or not what a run can have been.
    """
    try:
        values = json.loads(content)
        # A lone surrogate is text to Python and to nobody it is handed on to: this is a ValueError.
        json.dumps(values, ensure_ascii=False).encode()
        run = Evidence(**values)
        if not is_sound(run, latest_s()):
            raise ValueError("no run can have been so")
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"evidence file is not of the expected form: {error}") from error
    return run


def latest_s() -> float:
    """Return the time after which no run can have ended, in seconds since 1970."""
    return now() + _AHEAD_S


def is_sound(row: Sequence[object], until_s: float) -> bool:
    """Return whether the fields of an Evidence, in its order, are of their kinds and within what can be.

    csub asks it of some hundred rows at a submission, so it costs a few microseconds and not what ``fits`` does.

    Args:
        row: as SQLite or JSON gave them, where a number that is whole may stand for any and 0 or 1 for a truth.
        until_s: ``latest_s()``, asked once for many rows.
    """
    fields: Any = row
    return bool(
        _are_kinds(tuple(map(type, row)))
        and fields[_MODE] in _MODES
        and fields[_COUNT] > 0
        and fields[_ENDED] <= until_s
        # No comparison holds for a NaN.
        and all(fields[at] is None or 0 <= fields[at] <= most for at, most in _LIMITS)
    )


@cache
def _are_kinds(kinds: tuple[type, ...]) -> bool:
    """Return whether fields of these types are an Evidence's; there are a few dozen combinations."""
    return len(kinds) == len(_KINDS) and all(map(_is_kind, kinds, _KINDS))


def _is_kind(kind: type, annotation: Any) -> bool:
    allowed = set(get_args(annotation)) or {annotation}
    return kind in allowed or (kind is int and not allowed.isdisjoint((float, bool)))


def forgotten_s(folder: str, signature: str) -> float:
    """Return up to when ended runs of a signature do not count; 0 if nothing was forgotten.

    Raises:
        StoreError: it cannot be read, or is damaged.
    """
    path = os.path.join(runs_folder(folder, signature), _FORGOTTEN)
    if not os.path.lexists(path):
        return 0.0
    try:
        time_s = float(read_own(path, _TIME_BYTES))
        if not math.isfinite(time_s):
            raise ValueError("it is no time")
    except (StoreError, ValueError) as error:
        raise StoreError(
            f"what was forgotten of this job in '{path}' cannot be used: {error}; forget it again"
        ) from error
    return time_s


def forget(folder: str, signature: str, at_s: float) -> int:
    """Drop a signature's own evidence, and say that what is known elsewhere up to ``at_s`` does not count.

    Returns how many files went.

    Raises:
        StoreError: the folder cannot be written.
    """
    runs = runs_folder(folder, signature)
    path = os.path.join(runs, _FORGOTTEN)
    _make_folders(folder, path)
    write_atomic(path, f"{at_s!r}\n".encode())
    try:
        names = [name for name in os.listdir(runs) if name.endswith(".json")]
        for name in names:
            os.unlink(os.path.join(runs, name))
    except OSError as error:
        raise StoreError(f"evidence in '{runs}' cannot be removed: {error.strerror}") from error
    return len(names)


def drop_decision(folder: str, decision: Decision, name: str = "") -> str:
    """Write one decision, in place of what lies under ``name`` where that is given, and return its path.

    Raises:
        StoreError: the folder cannot be written.
    """
    # Nobody else can put another folder in the place of one's own in a sticky spool.
    name = name or f"{decision.at_s:.6f}-{os.getpid()}-{decision.job_id}.json"
    path = os.path.join(private_folder(folder), name)
    write_atomic(path, json.dumps(decision._asdict()).encode())
    return path


def note_out_of_memory(folder: str, job_id: str) -> None:
    """Say in what was decided for a job that its GPU memory did not suffice; nothing where none was kept.

    Raises:
        StoreError: the folder cannot be read or written.
        InputError: what was decided cannot be used.
    """
    if names := _decision_names(folder, f"-{job_id}.json"):
        decided = parse_decision(read_own(os.path.join(folder, names[-1]), LIMIT_BYTES))
        drop_decision(folder, decided._replace(out_of_memory=True), names[-1])


def read_decisions(folder: str, ending: str = ".json") -> tuple[list[Decision], int]:
    """Return one user's decisions, oldest first, and how many files could not be used; no folder is no decisions.

    Args:
        folder: the user's.
        ending: files of other names are passed over.

    Raises:
        StoreError: the folder cannot be read.
    """
    found = [decision for _, decision in files_in(folder, _decision_names(folder, ending), parse_decision)]
    decisions = [decision for decision in found if decision]
    return decisions, len(found) - len(decisions)


def own_decisions(config: SiteConfig) -> tuple[list[Decision], int]:
    """Return what csub decided for whoever runs this, as read_decisions does.

    Before the center's site file came into force it was kept at home, where what was measured still is.

    Raises:
        StoreError: a folder cannot be read.
    """
    home = os.path.join(user_data_folder(), "decisions")
    for folder in {home, config.decisions_folder}:
        remove_left(folder)
    decisions, unreadable = read_decisions(config.decisions_folder)
    if home != config.decisions_folder:
        earlier, more = read_decisions(home)
        decisions = [*(one for one in earlier if one.cluster == config.cluster), *decisions]
        unreadable += more
    return decisions, unreadable


def latest_of_jobs(decisions: Sequence[Decision]) -> list[Decision]:
    """Return what holds of each submission, in their order: a job that waits has more decisions in the meantime."""
    latest: list[Decision] = []
    decided_late: set[tuple[str, str]] = set()
    for decision in reversed(decisions):
        job = decision.cluster, decision.job_id
        if job not in decided_late:
            latest.append(decision)
        if decision.reasons and decision.reasons[0].code.startswith("late-"):
            decided_late.add(job)
    return latest[::-1]


def _decision_names(folder: str, ending: str) -> list[str]:
    return sorted(_names(folder, "decisions", lambda entry: entry.name.endswith(ending)))


def parse_decision(content: bytes) -> Decision:
    """Return the Decision in a dropped file; a field with a default may be missing: an earlier release wrote it.

    Raises:
        InputError: not JSON, a field is missing or unknown, or of the wrong kind.
    """
    try:
        values = json.loads(content)
        decision = Decision(**values)
        for name, value in values.items():
            if not fits(value, Decision.__annotations__[name]):
                raise ValueError(f"field '{name}' holds '{value}'")
        if not all(fits(name, str) for name in decision.numbers):
            raise ValueError("the name of a number is not a text")
        return decision._replace(numbers=tuple(decision.numbers), reasons=tuple(map(_reason, decision.reasons)))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"decision file is not of the expected form: {error}") from error


def _reason(value: object) -> Reason:
    """Return a reason as JSON has it: its code, and its parameters by name."""
    match value:
        case [str(code), dict(params)]:
            lists = {name: tuple(one) if isinstance(one, list) else one for name, one in params.items()}
            parts = [part for one in lists.values() for part in (one if isinstance(one, tuple) else (one,))]
            if all(part is None or fits(part, str) or fits(part, float) for part in (code, *params, *parts)):
                return Reason(code, lists)
    raise ValueError("a reason is not a code with parameters")
