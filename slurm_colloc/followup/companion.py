# SPDX-License-Identifier: Apache-2.0
"""The program of a companion job, ``python -I -m slurm_colloc.followup.companion FOLDER``: one state machine.

It looks how the job that the record in FOLDER names has ended, and submits what the record holds once more where that
is due, by the steps of ``slurm_colloc.followup.record``. Slurm may end it at any point and run it again; it then goes
on behind the last step that is written down. What it submits waits for a job by which it can be found again, should
the companion be ended before it could write down its id.

Whatever it finds it ends with status 0, but for a record that cannot be used; what came of it stands in the record's
``outcome`` and at the end of the job's own output.
"""

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc import clock
from slurm_colloc.config import SiteConfig, find_site_file, load_site, user_data_folder
from slurm_colloc.errors import CollocError, ConfigError, InputError, ProcessError, UnansweredError
from slurm_colloc.followup.job_end import add_to_output, found_of, how_it_ended, sizes_of_kept_files
from slurm_colloc.followup.record import (
    OUTCOME,
    SUBMITTED,
    Record,
    State,
    claim,
    read_record,
    read_state,
    write_step,
)
from slurm_colloc.followup.retry import Earlier, follow
from slurm_colloc.followup.submission import Prepared, prepare, submit, waits_for
from slurm_colloc.followup.verdict import Verdict, as_evidence, judge, retry_arguments
from slurm_colloc.history.records import drop_evidence, note_out_of_memory
from slurm_colloc.process import given_environment
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.submit.decision import record as record_decision
from slurm_colloc.submit.handover import find_sbatch
from slurm_colloc.submit.plan import PLAIN

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
            if argv and not any(read_state(argv[0])):  # "colloc job" tells it
                write_step(argv[0], OUTCOME, f"its companion could do nothing: {error}")
        return error.exit_status
    return 0


def follow_up(folder: str, environ: Mapping[str, str]) -> None:
    """Go on with the record in ``folder`` behind the last step that was taken.

    Raises:
        CollocError: nothing can be done.
    """
    record, state = read_record(folder), read_state(folder)
    if state.closed:
        return
    config = _site()
    case = Case(folder, record, environ, environ.get("SLURM_JOB_ID", ""), config, CliClient())
    _retry(case, state)


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


def _submit(case: Case, prepared: Prepared, waits: str, earlier: Earlier) -> str:
    """Submit the job, write down which it is, have it followed in its turn, and return its id.

    Raises:
        UnansweredError: there may be a job or not, and none is found.
        ProcessError: there is none.
    """
    done, plan = submit(prepared, [waits_for(case.record, waits)] if waits else [])
    write_step(case.folder, SUBMITTED, done.job_id)
    config = prepared.config
    try:
        if plan.part is not PLAIN:
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
            prepared = prepare(case.folder, record, words, case.environ, reason, case.config)
            earlier = Earlier(record.attempt + 1, begins)
            submitted = _submit(case, prepared, waits, earlier)
    except UnansweredError as error:
        submitted = (waits and _found(case, waits)) or ""
        if not submitted:
            return f"csub cannot tell whether it was submitted again: {error}"
    except (CollocError, OSError) as error:
        return f"it could not be submitted again: {error}"
    return f"submitted again as job {submitted}"


def _say(text: str) -> None:
    print(f"csub: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], given_environment()))
