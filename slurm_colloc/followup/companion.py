# SPDX-License-Identifier: Apache-2.0
"""The program of a companion job, ``python -I -m slurm_colloc.followup.companion FOLDER``.

It looks how the job that the record in FOLDER names has ended, and submits it once more where that is due.

Whatever it finds it ends with status 0, but for a record that cannot be used; what came of it stands in the record's
``outcome.json`` and, of a job that ran out of GPU memory, at the end of that job's own output.
"""

import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from slurm_colloc import clock
from slurm_colloc.config import SiteConfig, find_site_file, load_site, user_data_folder
from slurm_colloc.errors import CollocError, ConfigError, InputError, ProcessError, StoreError, UnansweredError
from slurm_colloc.files import read_bounded, write_atomic
from slurm_colloc.followup.record import (
    FIRST,
    Record,
    claim,
    is_claimed,
    is_settled,
    read_outcome,
    read_record,
    script_path,
    write_outcome,
)
from slurm_colloc.followup.verdict import Found, Verdict, as_evidence, judge, retry_arguments
from slurm_colloc.history.records import drop_evidence, evidence_of_run, note_out_of_memory
from slurm_colloc.model import AGAIN_VARIABLE, Evidence
from slurm_colloc.process import Finished, given_environment, run
from slurm_colloc.runtime.faults import TAIL_BYTES, outcome_of
from slurm_colloc.runtime.files import add_words, job_file_name, last_words
from slurm_colloc.runtime.queue import Outcome
from slurm_colloc.runtime.spec import parse_array
from slurm_colloc.slurm.accounted import Accounted
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.parse import parse_submitted

# slurmdbd hears of an end some seconds later than the controller.
_ASK_EVERY_S, _ASKED_TIMES = 3.0, 20
_SUBMIT_TIMEOUT_S = 180.0
_SCRIPT_LIMIT_BYTES = 128 * 1024 * 1024


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Do what is due for the record in the folder ``argv[0]`` and return the exit status."""
    try:
        if len(argv) != 1:
            raise InputError("the program of a companion job is called with the folder of its record alone")
        record = read_record(argv[0])
        _follow(argv[0], record, environ)
    except CollocError as error:
        _say(f"error: {error}")
        if argv and not is_claimed(argv[0]):  # "colloc job" tells it
            with suppress(StoreError):
                write_outcome(argv[0], "", f"its companion could do nothing: {error}")
        return error.exit_status
    return 0


def _follow(folder: str, record: Record, environ: Mapping[str, str]) -> None:
    if record.why == FIRST:
        from slurm_colloc.followup.sized import size_the_rest  # which calls back

        size_the_rest(folder, record, environ)
        return
    if is_claimed(folder):
        if read_outcome(folder) is None and not is_settled(folder):
            write_outcome(folder, "", "a companion ended while it submitted the job again; whether it did is not known")
        return
    config = site()
    found = [_found(record, ended) for ended in how_it_ended(record, config)]
    if not found:
        write_outcome(folder, "", f"how job {record.job_id} ended is not known: neither sacct nor scontrol says")
    verdict = judge(record, found, config)
    if verdict is None:
        return
    for one in verdict.offenders:
        with suppress(StoreError):  # what is not recorded is learned at the next run
            drop_evidence(user_data_folder(), as_evidence(record, one, config, clock.now()))
    if verdict.offenders:
        with suppress(CollocError):  # one answer the less for the site's margins
            note_out_of_memory(config.decisions_folder, record.job_id)
    done = verdict.gives_up
    if not done:
        done = _submit(
            folder, record, _arguments(record, verdict), environ, verdict.said, _marker(folder, record, verdict)
        )
    else:
        write_outcome(folder, "", f"{verdict.said}; {done}")
    for one in verdict.ran_out if done else ():
        _tell(record, one, done)


def _arguments(record: Record, verdict: Verdict) -> tuple[str, ...]:
    begins = _paths_kept(record, verdict)
    return retry_arguments(record, verdict, append=bool(begins))


def _paths_kept(record: Record, verdict: Verdict) -> dict[str, int]:
    """Return the files that the new job will write too, with their sizes: so much is not the new job's."""
    kept = {}
    for one in verdict.ran_out:
        for path, later in zip(_paths(record, one.ended), _paths(record, one.ended, "0"), strict=True):
            if path == later:
                with suppress(OSError):
                    kept[path] = os.stat(path).st_size
    return kept


def _marker(folder: str, record: Record, verdict: Verdict) -> str:
    """Write what the next csub is told and return the file's path: of many tasks it is more than a variable holds."""
    told = {
        "job": record.job_id,
        "attempt": record.attempt + 1,
        "reason": f"again after job {record.job_id} ran out of GPU memory on {verdict.pieces}",
        "begins": _paths_kept(record, verdict),
    }
    path = os.path.join(folder, "next.json")
    write_atomic(path, json.dumps(told).encode())
    return path


def _submit(
    folder: str, record: Record, arguments: Sequence[str], environ: Mapping[str, str], why: str, marker: str = ""
) -> str:
    """Submit what the record holds, once, and return in words what came of it."""
    if not claim(folder, environ.get("SLURM_JOB_ID", "")):
        return ""
    try:
        job_id = submit_by_csub(folder, record, arguments or retry_arguments(record, None), environ, marker)
        done = f"submitted again as job {job_id}"
    except UnansweredError as error:
        job_id, done = "", f"whether it was submitted again is not known: {error}"
    except (CollocError, OSError) as error:
        job_id, done = "", f"it could not be submitted again: {error}"
    write_outcome(folder, job_id, f"{why}; {done}")
    return done


def submit_by_csub(
    folder: str, record: Record, arguments: Sequence[str], environ: Mapping[str, str], marker: str
) -> str:
    """Submit what the record holds by csub with these options, and return the new job's id.

    Raises:
        UnansweredError: there may be a new job or not.
        ProcessError: there is none.
    """
    done = call_csub(folder, record, arguments, environ, marker)
    submitted = parse_submitted(done.stdout)
    if done.status or not submitted:
        kind = ProcessError if done.status else UnansweredError
        raise kind(f"csub ended with status {done.status}: {done.last_words}")
    return submitted.job_id


def call_csub(
    folder: str, record: Record, arguments: Sequence[str], environ: Mapping[str, str], marker: str
) -> Finished:
    """Call csub as the record says it was called, but with these options."""
    os.chdir(record.folder)
    path = script_path(folder, record)
    words = () if record.from_stdin else (path, *record.script_args)
    argv = (sys.executable, "-I", "-m", "slurm_colloc.cli.csub", *arguments, *words)
    told = {AGAIN_VARIABLE: marker} if marker else {}
    text = read_bounded(path, _SCRIPT_LIMIT_BYTES) if record.from_stdin else b""
    return run(argv, _SUBMIT_TIMEOUT_S, restored(record, environ) | told, text)


def restored(record: Record, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of csub's call, without what Slurm, a prolog and the shell put into the companion's."""
    kept = {name: environ[name] for name in record.names if name in environ}
    return kept | dict(record.variables)


def site() -> SiteConfig:
    """Return the site that this node has.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    path = find_site_file()
    if path is None:
        raise ConfigError("no site.toml on this node; what a piece of a GPU holds is not known")
    return load_site(path)


def how_it_ended(record: Record, config: SiteConfig) -> tuple[Accounted, ...]:
    """Return how the job, or each task of an array, ended; what Slurm does not say in time is missing."""
    # Seconds after an array's end sacct may name only some of its tasks.
    expected = set(parse_array(record.array.partition("%")[0])) if record.array else {None}
    known: dict[int | None, Accounted] = {}
    client = CliClient(config.timeouts.ask_slurm_s)
    for _ in clock.tries(_ASKED_TIMES, _ASK_EVERY_S):
        with suppress(ProcessError, InputError):
            # Of a job that was requeued the last run counts.
            latest = {one.task: one for one in client.accounted(record.job_id)}
            known |= {task: one for task, one in latest.items() if one.is_final}
        if expected <= set(known):
            break
    return tuple(known.values())


def _found(record: Record, ended: Accounted) -> Found:
    """Return one job's end with what it said and what was measured of it."""
    if ended.state != "FAILED":
        return Found(ended, Outcome.FAILED if ended.status else Outcome.DONE, b"", None)
    said = b"\n".join(
        last_words(path, record.begins.get(path, 0), TAIL_BYTES)
        for path in dict.fromkeys(_paths(record, ended))
        if _is_file(path)
    )
    outcome = _outcome(ended.status, said)
    measured: Evidence | None = None
    with suppress(StoreError, InputError):
        measured = evidence_of_run(user_data_folder(), record.signature, ended.raw_id)
    return Found(ended, outcome, said, measured)


def _outcome(status: int, said: bytes) -> Outcome:
    # Slurm may tell of a failure by a state alone.
    return outcome_of(status or 1, said)[0]


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def _paths(record: Record, ended: Accounted, job_id: str = "") -> tuple[str, str]:
    """Return the job's error and output file, or those that another job of that id would have."""
    task = ended.task
    array_job_id = job_id or (record.job_id if task is not None else ended.raw_id)

    def named(pattern: str) -> str:
        return job_file_name(
            pattern,
            job_id or ended.raw_id,
            array_job_id,
            task,
            name=record.job_name,
            user=record.user,
            node=ended.node_list.partition(".")[0],
            folder=record.work_folder,
        )

    output = named(record.output)
    return (named(record.error) if record.error else output), output


def _tell(record: Record, found: Found, done: str) -> None:
    """Say at the end of what the job printed what became of it."""
    for path in _paths(record, found.ended):
        if _is_file(path):
            words = f"csub: job {found.ended.job_id} ran out of GPU memory on {found.piece}; {done}\n"
            add_words(path, words.encode(errors="backslashreplace"))
            return


def _say(text: str) -> None:
    print(f"csub: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], given_environment()))
