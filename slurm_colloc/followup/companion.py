# SPDX-License-Identifier: Apache-2.0
"""The program of a companion job, ``python -I -m slurm_colloc.followup.companion FOLDER``: one state machine.

It looks how the job that the record in FOLDER names has ended, and submits what the record holds once more where that
is due, by the steps of ``slurm_colloc.followup.record``. Slurm may end it at any point and run it again; it then goes
on behind the last step that is written down. What it submits waits for a job by which it can be found again, should
the companion be ended before it could write down its id.

After a job that ran out of GPU memory, that is the companion itself. Of a job that was measured first, the rest waits
as job R, as it was asked for, until this companion has ended (afterany). The same work is submitted once more as job S,
which begins only if R does not end well (afternotok); then R is cancelled, which is the one step that commits. R cannot
start meanwhile, for this companion runs. Wherever something is not certain S is withdrawn, or not submitted at all, and
R runs as asked.

Whatever it finds it ends with status 0, but for a record that cannot be used; what came of it stands in the record's
``outcome`` and, of a job that ran out of GPU memory, at the end of that job's own output.
"""

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc import clock
from slurm_colloc.config import SiteConfig, find_site_file, load_site, user_data_folder
from slurm_colloc.errors import CollocError, ConfigError, InputError, ProcessError, StoreError, UnansweredError
from slurm_colloc.followup.job_end import add_to_output, found_of, how_it_ended, sizes_of_kept_files
from slurm_colloc.followup.record import (
    COMMITTED,
    OUTCOME,
    PROBE,
    RETRY,
    SUBMITTED,
    Record,
    State,
    claim,
    measured_name,
    name_also,
    read_record,
    read_state,
    write_step,
)
from slurm_colloc.followup.retry import Earlier, follow
from slurm_colloc.followup.submission import Prepared, prepare, submit, waits_for
from slurm_colloc.followup.verdict import Verdict, as_evidence, judge, retry_arguments
from slurm_colloc.history.records import drop_evidence, evidence_of_run, note_out_of_memory
from slurm_colloc.process import given_environment
from slurm_colloc.slurm.array import parse_array
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.jobs import QueuedJob
from slurm_colloc.submit.decision import record as record_decision
from slurm_colloc.submit.handover import find_sbatch
from slurm_colloc.submit.plan import PLAIN
from slurm_colloc.wording import sentence

_EVERY_S, _TIMES = 1.0, 30


class Case(NamedTuple):
    """One record and what its companion goes by; ``companion`` is its own job id, "" where Slurm does not run it."""

    folder: str
    record: Record
    environ: Mapping[str, str]
    companion: str
    config: SiteConfig
    slurm: CliClient


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Do what is due for the record in the folder ``argv[0]`` and return the exit status."""
    try:
        if len(argv) != 1:
            raise InputError("the program of a companion job is called with the folder of its record alone")
        follow_up(argv[0], environ)
    except CollocError as error:
        _say(f"error: {error}")
        with suppress(CollocError):
            if argv and not any(read_state(argv[0])[1:]):  # "colloc job" tells it
                write_step(argv[0], OUTCOME, f"its companion could do nothing: {error}")
        return error.exit_status
    return 0


def follow_up(folder: str, environ: Mapping[str, str]) -> None:
    """Go on with the record in ``folder`` behind the last step that was taken.

    Raises:
        CollocError: nothing can be done; what waits to be sized runs as asked.
    """
    record, state = read_record(folder), read_state(folder)
    if state.closed:
        return
    config = _site()
    case = Case(folder, record, environ, environ.get("SLURM_JOB_ID", ""), config, CliClient())
    if record.kind == RETRY:
        _retry(case, state)
    elif state.claimed_by:
        _after_interruption(case, state)
    else:
        _size_the_rest(case)


def _site() -> SiteConfig:
    """Return the site that this node has.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    path = find_site_file()
    if path is None:
        raise ConfigError("no site.toml on this node; what a piece of a GPU holds is not known")
    return load_site(path)


def _claimed(case: Case) -> bool:
    """Claim the record; what is begun then is brought to its end within Slurm's KillWait."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return claim(case.folder, case.companion)


def _submit(case: Case, prepared: Prepared, waits: str, *, or_as_asked: bool, earlier: Earlier | None) -> str:
    """Submit job S, write down which it is, have it followed in its turn, and return its id.

    Raises:
        UnansweredError: there may be a job or not, and none is found.
        ProcessError: there is none.
    """
    options = [waits_for(case.record, waits), *([] if or_as_asked else ["--kill-on-invalid-dep=yes"])] if waits else []
    done, plan = submit(prepared, options, or_as_asked=or_as_asked)
    write_step(case.folder, SUBMITTED, done.job_id)
    config = prepared.config
    try:
        if earlier and plan.part is not PLAIN:
            sbatch = find_sbatch(config.paths.sbatch, prepared.environ, "")
            follow(plan, prepared.command_line, sbatch, prepared.environ, config, _say, earlier)(done.job_id)
        record_decision(plan, done.job_id, done.cluster or config.cluster, config, _say)
    except Exception as error:  # noqa: BLE001 - it is submitted
        _say(f"job {done.job_id} is submitted, but its decision is not recorded: {error}")
    return done.job_id


def _found(case: Case, waits: str) -> str | None:
    """Return the job that waits for ``waits``, "afterany:4711"; empty without one, None where Slurm does not say."""
    for _ in clock.tries(_TIMES, _EVERY_S):
        with suppress(ProcessError):
            found = (one.array_id for one in case.slurm.waiting() if re.search(rf"{waits}(?!\d)", one.dependency))
            return next(found, "")
    return None


# A job that ran out of GPU memory


def _retry(case: Case, state: State) -> None:
    folder, record, config = case.folder, case.record, case.config
    submitted: str | None = state.submitted
    if state.claimed_by and not submitted:
        # Only who has the id that the claim names goes on, and knows by what to find it.
        submitted = _found(case, f"afterany:{case.companion}") if state.claimed_by == case.companion else None
    if submitted is None:
        said = "a companion ended while it submitted the job again; whether it did is not known"
        write_step(folder, OUTCOME, said)
        return
    found = [found_of(record, ended) for ended in how_it_ended(record, config)]
    if not found:
        write_step(folder, OUTCOME, f"how job {record.job_id} ended is not known: neither sacct nor scontrol says")
    verdict = judge(record, found, config)
    if verdict is None:
        return
    if not state.claimed_by:
        _learn(record, verdict, config)
    done = verdict.gives_up
    if not done:
        if not state.claimed_by and not _claimed(case):
            return
        done = _submit_again(case, verdict, submitted)
    write_step(folder, OUTCOME, f"{verdict.said}; {done}")
    for one in verdict.failed:
        add_to_output(record, one, done)


def _learn(record: Record, verdict: Verdict, config: SiteConfig) -> None:
    with suppress(CollocError):  # what is not recorded is learned at the next run
        for one in verdict.offenders:
            drop_evidence(user_data_folder(), as_evidence(record, one, config, clock.now()))
        if verdict.offenders:  # one answer the less for the site's margins
            note_out_of_memory(config.decisions_folder, record.job_id)


def _submit_again(case: Case, verdict: Verdict, submitted: str) -> str:
    """Submit the job once more, unless that was done, and return in words what came of it."""
    record = case.record
    begins = sizes_of_kept_files(record, verdict)
    reason = f"again after job {record.job_id} {verdict.cause}"
    words = retry_arguments(record, verdict, append=bool(begins))
    waits = f"afterany:{case.companion}" if case.companion else ""
    try:
        if not submitted:
            prepared = prepare(case.folder, record, words, case.environ, reason, case.config, or_as_asked=True)
            earlier = Earlier(record.attempt + 1, begins)
            submitted = _submit(case, prepared, waits, or_as_asked=True, earlier=earlier)
    except UnansweredError as error:
        submitted = (waits and _found(case, waits)) or ""
        if not submitted:
            return f"csub cannot tell whether it was submitted again: {error}"
    except (CollocError, OSError) as error:
        return f"it could not be submitted again: {error}"
    return f"submitted again as job {submitted}"


# A job that was measured first


def _size_the_rest(case: Case) -> None:
    rest = _rest(case)
    why = _not_measured(case) if rest else "csub did not say which job is the rest"
    prepared = why or _prepared(case)
    why = prepared if isinstance(prepared, str) else _reason_to_leave(case, rest)
    if isinstance(prepared, str) or why:
        write_step(case.folder, OUTCOME, _as_asked(rest, why))
    elif _claimed(case):
        _submit_sized(case, rest, prepared)


def _as_asked(rest: str, why: str) -> str:
    return f"job {rest or 'of the rest'} stays as asked: {why}"


def _rest(case: Case) -> str:
    """Return the job that waits, which csub tells after it has submitted the companion; empty where it does not."""
    states = (read_state(case.folder) for _ in clock.tries(_TIMES, _EVERY_S))
    return next((state.rest for state in states if state.rest), "")


def _not_measured(case: Case) -> str:
    """Return why the first job shows nothing; else keep its evidence with the end it came to."""
    record = case.record
    task = int(record.array) if record.array else None
    # Shortly after an array's end sacct may also have a row without the task's number.
    ended = next((one for one in how_it_ended(record, case.config) if one.task == task), None)
    if ended is None:
        return f"how job {record.job_id} ended is not known"
    if ended.state not in (("COMPLETED", "TIMEOUT") if record.kind == PROBE else ("COMPLETED",)):
        return f"job {record.job_id} ended as {ended.state}"
    try:
        found = evidence_of_run(user_data_folder(), record.signature, ended.raw_id)
        drop_evidence(user_data_folder(), found._replace(state=ended.state))
    except (StoreError, InputError) as error:
        return f"nothing was measured of job {record.job_id}: {error}"
    return ""


def _prepared(case: Case) -> Prepared | str:
    """Return how the rest would be submitted now that it can be sized, or why it would get no piece of a GPU."""
    record = case.record
    words = (*record.own, *record.options)
    reason = f"sized by job {record.job_id}, which was measured first"
    try:
        prepared = prepare(case.folder, record, words, case.environ, reason, case.config, or_as_asked=False)
    except (CollocError, OSError) as error:  # also: the folder that csub was called in is not here
        return f"what it would get is not known: {error}"
    _, footprint, placement = prepared.plan.part
    if not placement.as_asked:
        return prepared
    if prepared.plan.part is PLAIN:
        return "the policy is off"
    return sentence(footprint.provenance if footprint.gpu_mem_peak_mib is None else placement.reasons[1:2])


def _reason_to_leave(case: Case, rest: str, sized: str = "") -> str:
    """Return why the rest must not be touched; empty where it is as csub left it, and nobody goes by its id."""
    tasks = case.slurm.tasks(rest)
    value = next((word[8:] for word in reversed(case.record.options) if word.startswith("--array=")), "")
    expected = set(parse_array(value.partition("%")[0])) if value else {None}
    if not all(one.waits_for_dependency for one in tasks) or {one.task for one in tasks} != expected:
        return "it was changed or cancelled since, or has begun"
    pattern = re.compile(rf"(?<!\d){rest}(?!\d)")
    others = {one.array_id for one in case.slurm.waiting() if pattern.search(one.dependency)} - {rest, sized}
    return f"job {min(others)} waits for it" if others else ""


def _submit_sized(case: Case, rest: str, prepared: Prepared) -> None:
    """Submit job S, which gets the piece foreseen, and cancel R for it; withdraw S where anything is not certain."""
    given = prepared.plan.part.placement.given
    sized = ""
    try:
        sized = _submit(case, prepared, f"afternotok:{rest}", or_as_asked=False, earlier=Earlier())
        why = _reason_to_leave(case, rest, sized)
        if not why:
            write_step(case.folder, COMMITTED, rest)
    except Exception as error:  # noqa: BLE001 - there may be two jobs now, of which one must go, whatever it is
        why = str(error)
    if why:
        # Where sbatch could not say what it submitted there may be a job all the same.
        sized = sized or _found(case, f"afternotok:{rest}") or ""
        write_step(case.folder, OUTCOME, _as_asked(rest, why) + _withdrawn(case, sized))
    else:
        _commit(case, rest, sized, given)


def _commit(case: Case, rest: str, sized: str, given: str) -> None:
    """Cancel job R, then see to it that nothing runs twice."""
    tasks: tuple[QueuedJob, ...] | None = None
    for _ in clock.tries(_TIMES, _EVERY_S):
        with suppress(ProcessError):
            case.slurm.cancel(rest, waiting=True)
        with suppress(ProcessError):
            tasks = case.slurm.tasks(rest)
            if not any(one.state == "PENDING" for one in tasks):
                break
    if tasks is None:
        # Where nobody knows, job S is left: it dies when R ends well, and else is what is left of the work.
        write_step(case.folder, OUTCOME, _as_asked(rest, "Slurm does not say whether it is cancelled"))
    elif tasks and all(one.state == "PENDING" for one in tasks):
        said = _as_asked(rest, "Slurm did not cancel it in time")
        write_step(case.folder, OUTCOME, said + _withdrawn(case, sized))
    else:
        _settle(case, sized, tasks, given)


def _settle(case: Case, sized: str, tasks: Sequence[QueuedJob], given: str) -> None:
    """Write down that job S does the work of R, but for what began as R after all."""
    # Slurm may have cancelled some of them alone: what still waits will run as job R.
    began = [one.task for one in tasks if one.began or one.state == "PENDING"]
    for task in began:
        for _ in clock.tries(_TIMES, _EVERY_S):
            with suppress(ProcessError):
                case.slurm.cancel(sized if task is None else f"{sized}_{task}")
                break
    with suppress(StoreError):
        name_also(case.folder, measured_name(sized))
    piece = f" on {given}" if given else ""
    except_for = f", but for what had begun as asked: {', '.join(map(str, began))}" if began else ""
    said = f"job {case.record.job_id} was measured; the rest runs as job {sized}{piece}{except_for}"
    write_step(case.folder, OUTCOME, said)


def _withdrawn(case: Case, sized: str) -> str:
    """Cancel job S and say so; nothing where there is none."""
    if not sized:
        return ""
    for _ in clock.tries(_TIMES, _EVERY_S):
        with suppress(ProcessError):
            case.slurm.cancel(sized)
            if not any(one.state == "PENDING" for one in case.slurm.tasks(sized)):
                return f"; job {sized}, made in its place, is cancelled"
    return f"; job {sized}, made in its place, could not be cancelled: cancel it"


def _after_interruption(case: Case, state: State) -> None:
    """Bring to an end what an earlier companion began: it ended between the submission of S and its own end."""
    sized = state.submitted or _found(case, f"afternotok:{state.rest}") or ""
    if state.committed and sized:
        _commit(case, state.rest, sized, "")
    else:
        why = "its companion ended while it was at work"
        write_step(case.folder, OUTCOME, _as_asked(state.rest, why) + _withdrawn(case, sized))


def _say(text: str) -> None:
    print(f"csub: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], given_environment()))
