# SPDX-License-Identifier: Apache-2.0
"""The companion of a job that is measured first: once that has ended, submit the rest anew, in the size it needs.

The rest waits as job R, as it was asked for, until this companion has ended (afterany). The same work is submitted once
more as job S, which begins only if R does not end well (afternotok); then R is cancelled, which is the one step that
commits. R cannot start meanwhile, for this companion runs. Wherever something is not certain S is withdrawn, or not
submitted at all, and R runs as asked.
"""

import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

from slurm_colloc import clock
from slurm_colloc.config import SiteConfig, user_data_folder
from slurm_colloc.errors import CollocError, InputError, ProcessError, StoreError
from slurm_colloc.files import read_own, write_atomic
from slurm_colloc.followup import companion
from slurm_colloc.followup.record import (
    Record,
    claim,
    is_claimed,
    is_settled,
    name_also,
    read_outcome,
    read_record,
    write_outcome,
)
from slurm_colloc.history.records import drop_evidence, evidence_of_run
from slurm_colloc.process import ask, run
from slurm_colloc.runtime.spec import parse_array
from slurm_colloc.slurm.running import Task, parse_tasks, tasks_question
from slurm_colloc.slurm.unfiltered import unfiltered

_REST, _SIZED, _COMMIT = "rest", "sized", "committed"
_LIMIT_BYTES = 4096
_EVERY_S, _TIMES = 1.0, 30


def write_rest(folder: str, job_id: str) -> None:
    """Tell the companion which job waits for it.

    Raises:
        StoreError: it cannot be written.
    """
    write_atomic(os.path.join(folder, _REST), job_id.encode(), durable=True)


def size_the_rest(folder: str, record: Record, environ: Mapping[str, str]) -> None:
    """Do what is due for the record of a job that was measured first.

    Raises:
        CollocError: nothing can be done, and the rest runs as asked.
    """
    if is_settled(folder) or read_outcome(folder) is not None:
        return
    config = companion.site()
    if is_claimed(folder):
        _after_interruption(folder, config)
        return
    rest = _rest(folder)
    why = _not_measured(record, config) if rest else "csub did not say which job is the rest"
    given = ""
    if not why:
        told = _marker(folder, record)
        given, why = _foreseen(folder, record, environ, told)
    if not why:
        why = _reason_to_leave(rest, record, config)
    if why:
        write_outcome(folder, "", _as_asked(rest, why))
        return
    _submit_sized(folder, record, rest, given, told, environ, config)


def _as_asked(rest: str, why: str) -> str:
    return f"job {rest or 'of the rest'} is left as it was asked for: {why}"


def _rest(folder: str) -> str:
    """Return the job that waits, which csub tells after it has submitted the companion; empty where it does not."""
    for _ in clock.tries(_TIMES, _EVERY_S):
        if found := _read(folder, _REST):
            return found
    return ""


def _read(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    if not os.path.lexists(path):
        return ""
    text = read_own(path, _LIMIT_BYTES).decode(errors="replace")
    return text if text.isascii() and text.isdigit() else ""


def _not_measured(record: Record, config: SiteConfig) -> str:
    """Return why the first job shows nothing; else keep its evidence with the end it came to."""
    task = int(record.array) if record.array else None
    # Shortly after an array's end sacct may also have a row without the task's number.
    ended = next((one for one in companion.how_it_ended(record, config) if one.task == task), None)
    if ended is None:
        return f"how job {record.job_id} ended is not known"
    if ended.state not in (("COMPLETED", "TIMEOUT") if record.kind == "probe" else ("COMPLETED",)):
        return f"job {record.job_id} ended as {ended.state}"
    try:
        found = evidence_of_run(user_data_folder(), record.signature, ended.raw_id)
        drop_evidence(user_data_folder(), found._replace(state=ended.state))
    except (StoreError, InputError) as error:
        return f"nothing was measured of job {record.job_id}: {error}"
    return ""


def _marker(folder: str, record: Record) -> str:
    reason = f"sized by job {record.job_id}, which was measured first"
    path = os.path.join(folder, "next.json")
    write_atomic(path, json.dumps({"job": record.job_id, "attempt": 0, "reason": reason, "begins": {}}).encode())
    return path


def _foreseen(folder: str, record: Record, environ: Mapping[str, str], marker: str) -> tuple[str, str]:
    """Return the piece of a GPU that the rest would get, or why it would get none."""
    words = (*record.own, "--dry-run", "--format=json", *record.options)
    try:
        done = companion.call_csub(folder, record, words, environ, marker)
    except (CollocError, OSError) as error:  # it did not answer, or the folder that it was called in is not here
        return "", f"what it would get is not known: {error}"
    try:
        shown = json.loads(done.stdout)
        gres, reasons = str(shown["placement"]["gres"]), shown["placement"]["reasons"]
        known = shown["footprint"]["gpu_mem_peak_mib"] is not None
        why = "; ".join(shown["footprint"]["provenance"]) if not known else str(reasons[min(1, len(reasons) - 1)])
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return "", f"what it would get is not known: {done.last_words}"
    return ("", why) if gres == "as asked" else (gres, "")


def _tasks(job_id: str, config: SiteConfig) -> tuple[Task, ...]:
    """Return all tasks of a job.

    Raises:
        ProcessError: Slurm does not know it any more, or does not answer.
    """
    return parse_tasks(_ask(tasks_question(job_id), config))


def _ask(question: Sequence[str], config: SiteConfig) -> str:
    return ask(question, config.timeouts.ask_slurm_s, unfiltered(os.environ)).decode(errors="surrogateescape")


def _scancel(config: SiteConfig, *words: str) -> bool:
    return run(("scancel", *words), config.timeouts.ask_slurm_s, unfiltered(os.environ)).status == 0


def _array(record: Record) -> set[int | None]:
    """Return the tasks of the rest."""
    value = next((word[8:] for word in reversed(record.options) if word.startswith("--array=")), "")
    return set(parse_array(value.partition("%")[0])) if value else {None}


def _reason_to_leave(rest: str, record: Record, config: SiteConfig, sized: str = "") -> str:
    """Return why the rest must not be touched; empty where it is as csub left it, and nobody goes by its id."""
    tasks = _tasks(rest, config)
    if not all(one.waits for one in tasks) or {one.task for one in tasks} != _array(record):
        return "it was changed or cancelled since, or has begun"
    others = sorted(set(_waiting(rf"(?<!\d){rest}(?!\d)", config)) - {rest, sized})
    return f"job {others[0]} waits for it" if others else ""


def _waiting(dependency: str, config: SiteConfig) -> list[str]:
    """Return the user's jobs that wait and in whose dependency this pattern is found."""
    question = ("squeue", "-h", "-a", "-u", str(os.geteuid()), "-t", "PENDING", "-o", "%F|%E")
    rows = (row.partition("|") for row in _ask(question, config).splitlines())
    return [job_id for job_id, _, waits_for in rows if re.search(dependency, waits_for)]


def _submit_sized(
    folder: str,
    record: Record,
    rest: str,
    given: str,
    marker: str,
    environ: Mapping[str, str],
    config: SiteConfig,
) -> None:
    """Submit job S, which gets the piece foreseen, and cancel R for it; withdraw S where anything is not certain."""
    # What is begun here is brought to its end within Slurm's KillWait: R waits until this process is gone.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not claim(folder, environ.get("SLURM_JOB_ID", "")):
        return
    waits = f"afternotok:{rest}" + (",singleton" if "--dependency=singleton" in record.options else "")
    options = (*record.own, *record.options, f"--dependency={waits}", "--kill-on-invalid-dep=yes")
    sized = ""
    try:
        sized = companion.submit_by_csub(folder, record, options, environ, marker)
        write_atomic(os.path.join(folder, _SIZED), sized.encode(), durable=True)
        why = _not_as_foreseen(sized, given, config) or _reason_to_leave(rest, record, config, sized)
        if not why:
            write_atomic(os.path.join(folder, _COMMIT), rest.encode(), durable=True)
    except Exception as error:  # noqa: BLE001 - there may be two jobs now, of which one must go, whatever it is
        why = str(error)
    if why:
        # Where csub could not say what it submitted there may be a job all the same.
        write_outcome(folder, "", _as_asked(rest, why) + _withdraw(sized or _find_sized(rest, config), config))
        return
    _commit(folder, record, rest, sized, given, config)


def _not_as_foreseen(sized: str, given: str, config: SiteConfig) -> str:
    """Return why job S is not what was foreseen: Slurm may have refused the piece, and csub fallen back."""
    shown = _ask(("scontrol", "show", "job", "-o", sized), config)
    # Spelled gres:gpu:TYPE:1, gres/gpu:TYPE:1 or gpu:TYPE, by release.
    asked = " ".join(re.findall(r"\bTresPer\w+=\S+", shown))
    piece = given.split(":")[1] if given.startswith("gpu:") else given
    if piece not in asked:
        return f"{given} was refused"
    waits = all(one.state == "PENDING" for one in _tasks(sized, config))
    return "" if waits else f"job {sized} does not wait"


def _commit(folder: str, record: Record, rest: str, sized: str, given: str, config: SiteConfig) -> None:
    """Cancel job R, then see to it that nothing runs twice."""
    tasks: tuple[Task, ...] = ()
    for _ in clock.tries(_TIMES, _EVERY_S):
        with suppress(ProcessError):
            _scancel(config, "--state=PENDING", rest)
            tasks = _tasks(rest, config)
            if tasks and not any(one.state == "PENDING" for one in tasks):
                break
    if not tasks or all(one.state == "PENDING" for one in tasks):
        why = "Slurm did not cancel it in time" if tasks else "Slurm does not say whether it is cancelled"
        # Where nobody knows, job S is left: it dies when R ends well, and else is what is left of the work.
        write_outcome(folder, "", _as_asked(rest, why) + (_withdraw(sized, config) if tasks else ""))
        return
    _settle(folder, record, sized, tasks, given, config)


def _settle(folder: str, record: Record, sized: str, tasks: Sequence[Task], given: str, config: SiteConfig) -> None:
    """Write down that job S does the work of R, but for what began as R after all."""
    # Slurm may have cancelled some of them alone: what still waits will run as job R.
    began = [one.task for one in tasks if one.began or one.state == "PENDING"]
    for task in began:
        for _ in clock.tries(_TIMES, _EVERY_S):
            with suppress(ProcessError):
                if _scancel(config, sized if task is None else f"{sized}_{task}"):
                    break
    with suppress(StoreError):
        name_also(folder, f"first-{sized}")
    piece = f" on {given}" if given else ""
    except_for = f", but for what had begun as asked: {', '.join(map(str, began))}" if began else ""
    write_outcome(folder, sized, f"job {record.job_id} was measured; the rest runs as job {sized}{piece}{except_for}")


def _withdraw(sized: str, config: SiteConfig) -> str:
    """Cancel job S and say so; nothing where there is none."""
    if not sized:
        return ""
    for _ in clock.tries(_TIMES, _EVERY_S):
        with suppress(ProcessError):
            _scancel(config, sized)
            if not any(one.state == "PENDING" for one in _tasks(sized, config)):
                return f"; job {sized}, made in its place, is cancelled"
    return f"; job {sized}, made in its place, could not be cancelled: cancel it"


def _find_sized(rest: str, config: SiteConfig) -> str:
    """Return the job that waits for R not to end well; empty without one."""
    for _ in clock.tries(_TIMES, _EVERY_S):
        with suppress(ProcessError):
            return next(iter(_waiting(rf"afternotok:{rest}(?!\d)", config)), "")
    return ""


def _after_interruption(folder: str, config: SiteConfig) -> None:
    """Bring to an end what an earlier companion began: it ended between the submission of S and its own end."""
    record, rest = read_record(folder), _read(folder, _REST)
    sized = _read(folder, _SIZED) or _find_sized(rest, config)
    if _read(folder, _COMMIT) and sized:
        tasks = _tasks_left(rest, config)
        if tasks is None:
            # Job S is left: it dies when R ends well, and else is what is left of the work.
            write_outcome(folder, "", _as_asked(rest, "Slurm does not say whether it is cancelled"))
            return
        if not any(one.state == "PENDING" for one in tasks):
            _settle(folder, record, sized, tasks, "", config)
            return
    why = "its companion ended while it was at work"
    write_outcome(folder, "", _as_asked(rest, why) + _withdraw(sized, config))


def _tasks_left(job_id: str, config: SiteConfig) -> tuple[Task, ...] | None:
    """Return all tasks of a job, none where it is over and forgotten; None where Slurm does not answer."""
    for _ in clock.tries(_TIMES, _EVERY_S):
        try:
            return _tasks(job_id, config)
        except ProcessError as error:
            if "Invalid job id" in str(error):
                return ()
    return None
