# SPDX-License-Identifier: Apache-2.0
"""How a job that is followed ended: what Slurm says, what it printed, and what was measured of it."""

import os
import stat
from contextlib import suppress

from slurm_colloc.core import clock
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.errors import InputError, ProcessError, StoreError
from slurm_colloc.core.model import Evidence
from slurm_colloc.estimate.records import evidence_of_run
from slurm_colloc.followup.record import Record
from slurm_colloc.followup.verdict import Found, Verdict
from slurm_colloc.gpu.failure import TAIL_BYTES, outcome_of
from slurm_colloc.slurm.array import parse_array
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.job_files import add_words, last_words
from slurm_colloc.slurm.jobs import Accounted

# slurmdbd hears of an end some seconds later than the controller.
_ASK_EVERY_S, _ASKED_TIMES = 3.0, 20


def how_it_ended(record: Record, config: SiteConfig) -> tuple[Accounted, ...]:
    """Return how the job, or each task of an array, ended; what Slurm does not say in time is missing."""
    # Seconds after an array's end sacct may name only some of its tasks.
    expected = set(parse_array(record.array.partition("%")[0])) if record.array else {None}
    known: dict[int | None, Accounted] = {}
    client = CliClient()
    for _ in clock.tries(_ASKED_TIMES, _ASK_EVERY_S):
        with suppress(ProcessError, InputError):
            # Of a job that was requeued the last run counts.
            latest = {one.task: one for one in client.accounted(record.job_id)}
            known |= {task: one for task, one in latest.items() if one.is_final}
        if expected <= set(known):
            break
    return tuple(known.values())


def found_of(record: Record, ended: Accounted) -> Found:
    """Return the end of a job that failed with what it said and what was measured of it."""
    said = b"\n".join(
        last_words(path, record.begins.get(path, 0), TAIL_BYTES)
        for path in dict.fromkeys(_paths(record, ended))
        if _is_file(path)
    )
    measured: Evidence | None = None
    with suppress(StoreError, InputError):
        measured = evidence_of_run(user_data_folder(), record.signature, ended.raw_id)
    # Slurm may tell of a failure by a state alone.
    return Found(ended, outcome_of(ended.status or 1, said)[0], said, measured)


def shares_a_file(record: Record, verdict: Verdict) -> bool:
    """Return whether the new job will write to a file that holds what the failed one said."""
    return any(
        path == later and os.path.exists(path)
        for one in verdict.failed
        for path, later in zip(_paths(record, one.ended), _paths(record, one.ended, "0"), strict=True)
    )


def add_to_output(record: Record, found: Found, done: str) -> None:
    """Say at the end of what the job printed what became of it."""
    for path in _paths(record, found.ended):
        if _is_file(path):
            words = f"csub: job {found.ended.job_id} {found.cause} on {found.piece}; {done}\n"
            add_words(path, words.encode(errors="backslashreplace"))
            return


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def _paths(record: Record, ended: Accounted, job_id: str = "") -> tuple[str, str]:
    """Return the job's error and output file, or those that another job of that id would have."""
    task = ended.task
    array_job_id = job_id or (record.job_id if task is not None else ended.raw_id)
    return record.files(job_id or ended.raw_id, array_job_id, task, ended.node_list.partition(".")[0])
