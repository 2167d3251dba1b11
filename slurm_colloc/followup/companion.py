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

from slurm_colloc.core import clock
from slurm_colloc.core.config import SiteConfig, find_site_file, load_site, user_data_folder
from slurm_colloc.core.errors import CollocError, ConfigError, InputError, ProcessError, UnansweredError
from slurm_colloc.core.process import given_environment
from slurm_colloc.estimate.records import drop_evidence, note_out_of_memory
from slurm_colloc.followup.job_end import add_to_output, found_of, how_it_ended, shares_a_file
from slurm_colloc.followup.record import (
    OUTCOME,
    SINGLETON,
    SUBMITTED,
    Record,
    claim,
    read_record,
    read_state,
    write_step,
)
from slurm_colloc.followup.retry import follow
from slurm_colloc.followup.submission import resubmit
from slurm_colloc.followup.verdict import Verdict, as_evidence, judge, retry_arguments
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.submit.decision import record as record_decision
from slurm_colloc.submit.handover import find_sbatch
from slurm_colloc.submit.plan import PLAIN

_EVERY_S, _TIMES = 1.0, 30


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Do what is due for the record in the folder ``argv[0]`` and return the exit status."""
    if len(argv) != 1 or "SLURM_JOB_ID" not in environ:
        _say("error: this is the program of a companion job; Slurm calls it with the folder of a record alone")
        return InputError.exit_status
    try:
        follow_up(argv[0], environ)
    except CollocError as error:
        _say(f"error: {error}")
        with suppress(CollocError):
            if not any(read_state(argv[0])):  # "colloc job" tells it
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
    config, companion = _site(), environ["SLURM_JOB_ID"]
    submitted: str | None = state.submitted
    if state.claimed_by and not submitted:
        # Only who has the id that the claim names goes on, and knows by what to find it.
        submitted = _found(companion) if state.claimed_by == companion else None
    if submitted is None:
        said = "a companion ended while it submitted the job again; whether it did is not known"
        write_step(folder, OUTCOME, said)
        return
    ended = how_it_ended(record, config)
    if not ended:
        write_step(folder, OUTCOME, f"how job {record.job_id} ended is not known: neither sacct nor scontrol says")
    verdict = judge(record, [found_of(record, one) for one in ended if one.state == "FAILED"], config)
    if verdict is None:
        return
    if not state.claimed_by:
        _learn(record, verdict, config)
    done = verdict.gives_up
    if not done:
        # What is begun then is brought to its end within Slurm's KillWait.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not state.claimed_by and not claim(folder, companion):
            return
        done = f"submitted again as job {submitted}" if submitted else _submit(folder, record, verdict, environ, config)
    write_step(folder, OUTCOME, f"{verdict.said}; {done}")
    for one in verdict.failed:
        add_to_output(record, one, done)


def _site() -> SiteConfig:
    """Return the site that this node has.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    path = find_site_file()
    if path is None:
        raise ConfigError("no site.toml on this node; what a piece of a GPU holds is not known")
    return load_site(path)


def _found(companion: str) -> str | None:
    """Return the job that waits for the companion; empty without one, None where Slurm does not say."""
    for _ in clock.tries(_TIMES, _EVERY_S):
        with suppress(ProcessError):
            waits = re.compile(rf"afterany:{companion}(?!\d)")
            queue = CliClient().own_queue("-t", "PENDING")
            return next((one.array_id for one in queue if waits.search(one.dependency)), "")
    return None


def _learn(record: Record, verdict: Verdict, config: SiteConfig) -> None:
    with suppress(CollocError):  # what is not recorded is learned at the next run
        for one in verdict.offenders:
            drop_evidence(user_data_folder(), as_evidence(record, one, config, clock.now()))
        if verdict.offenders:  # one answer the less for the site's margins
            note_out_of_memory(config.decisions_folder, record.job_id)


def _submit(folder: str, record: Record, verdict: Verdict, environ: Mapping[str, str], config: SiteConfig) -> str:
    """Submit the job once more, have it followed in its turn, and return in words what came of it."""
    words = retry_arguments(record, verdict, append=shares_a_file(record, verdict))
    reason = f"again after job {record.job_id} {verdict.cause}"
    companion = environ["SLURM_JOB_ID"]
    waits = f"--dependency=afterany:{companion}{',singleton' if SINGLETON in record.options else ''}"
    try:
        made, plan, command_line, environ, config = resubmit(folder, record, words, environ, reason, waits, config)
    except UnansweredError as error:
        submitted = _found(companion)
        said = f"csub cannot tell whether it was submitted again: {error}"
        return f"submitted again as job {submitted}" if submitted else said
    except (CollocError, OSError) as error:
        return f"it could not be submitted again: {error}"
    try:
        write_step(folder, SUBMITTED, made.job_id)
        if plan.part is not PLAIN:
            sbatch = find_sbatch(config.paths.sbatch, environ, "")
            follow(plan, command_line, sbatch, environ, config, _say, made.job_id, record.attempt + 1)
        record_decision(plan, made.job_id, made.cluster or config.cluster, config, _say)
    except Exception as error:  # noqa: BLE001 - it is submitted
        _say(f"job {made.job_id} is submitted, but its decision is not recorded: {error}")
    return f"submitted again as job {made.job_id}"


def _say(text: str) -> None:
    print(f"csub: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], given_environment()))
