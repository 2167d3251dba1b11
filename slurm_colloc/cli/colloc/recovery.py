# SPDX-License-Identifier: Apache-2.0
"""What is to be said of a job that ran out of GPU memory: what its companion did, or what its user can do."""

import os
import stat

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError
from slurm_colloc.process import ask
from slurm_colloc.runtime.again_record import (
    is_claimed,
    is_recorded,
    is_settled,
    read_outcome,
    read_record,
    record_folder,
)
from slurm_colloc.runtime.faults import TAIL_BYTES, outcome_of
from slurm_colloc.runtime.files import last_words
from slurm_colloc.runtime.queue import Outcome
from slurm_colloc.slurm.ended import parse_scontrol, scontrol_question
from slurm_colloc.slurm.parse import parse_records
from slurm_colloc.slurm.unfiltered import unfiltered


def recovery_of(config: SiteConfig, job_id: str) -> str:
    """Return what became of one's own job after it ran out of GPU memory; empty where it did not, or nobody knows."""
    try:
        folder = record_folder(config.cluster, job_id.partition("_")[0])
        outcome = read_outcome(folder)
        if outcome:
            return outcome.said
        # Claimed by csub itself: nobody follows the job.
        if is_claimed(folder) and not is_settled(folder):
            return "it is being submitted again, or its companion died over that: see squeue"
        return _advice(config, job_id, followed=is_recorded(folder) and not is_claimed(folder))
    except CollocError:
        return ""


def first_of(config: SiteConfig, job_id: str) -> str:
    """Return the story of a job that was measured first, by any of its jobs' ids; empty of any other job."""
    try:
        folder = record_folder(config.cluster, f"first-{job_id.partition('_')[0]}")
        if not os.path.isdir(folder):
            return ""
        outcome = read_outcome(folder)
        if outcome:
            return outcome.said
        if is_settled(folder):
            return "csub could not have it sized: the rest runs as asked"
        first = read_record(folder).job_id
        if _companion_is_there(config, f"csub-first-{first}"):
            return f"job {first} is to be measured; the rest waits for that"
        if is_claimed(folder):
            return f"the companion of job {first} died as it sized the rest: see squeue for what there is"
        return f"the companion of job {first} ended without a word: the rest runs as asked"
    except CollocError as error:
        return f"what became of it is not known: {error}"


def _companion_is_there(config: SiteConfig, name: str) -> bool:
    """Return whether Slurm has a job of one's own of that name that has not ended."""
    question = ("squeue", "-h", "-a", "-u", str(os.geteuid()), "-n", name, "-o", "%i")
    return bool(ask(question, config.timeouts.ask_slurm_s, unfiltered(os.environ)).strip())


def _advice(config: SiteConfig, job_id: str, *, followed: bool) -> str:
    """Return what to ask for, or who sees to it; Slurm names a job's files only as long as it remembers the job."""
    text = ask(scontrol_question(job_id), config.timeouts.ask_slurm_s).decode(errors="surrogateescape")
    for record, ended in zip(parse_records(text), parse_scontrol(text), strict=True):
        if ended.state != "FAILED" or not record.get("UserId", "").endswith(f"({os.geteuid()})"):
            continue
        paths = dict.fromkeys(filter(None, (record.get("StdErr", ""), record.get("StdOut", ""))))
        said = b"\n".join(last_words(path, 0, TAIL_BYTES) for path in paths if _is_own_file(path))
        if outcome_of(ended.status or 1, said)[0] is Outcome.GPU_OOM:
            pieces = {part.type: part.mem_mib for pool in config.pool for part in pool.slice}
            held = next((pieces[gres.type] for gres in ended.gres if gres.type in pieces), None)
            more = f"--gpu-footprint=mem={held + 1}M,sm=PERCENT" if held else "--gpu-footprint with a larger mem"
            words = f"job {ended.job_id} ran out of GPU memory by its own words; "
            if followed:
                name = f"csub-retry-{job_id.partition('_')[0]}"
                return f"{words}job {name} sees to it; if squeue has no such job, submit it with {more}"
            return f"{words}submit it with {more}, or with --requeue: csub then runs it again with more by itself"
    return ""


def _is_own_file(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
