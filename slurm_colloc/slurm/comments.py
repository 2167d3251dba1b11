# SPDX-License-Identifier: Apache-2.0
"""AdminComment of jobs in the accounting: read by sacct, written by sacctmgr, many jobs in one call of each."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.slurm.parse import FINAL_STATES, parse_state

_ROW = re.compile(r"(\d+)\|(\d+)\|([^|]*)\|(.*)", re.ASCII)
# What sacctmgr is to change is named so: an array's task by its own number, for the array's id is that of all tasks.
_JOB = re.compile(r"\d+(_\d+)?", re.ASCII)
# sacctmgr writes capital letters small, and ends a word at a quote.
_TEXT = re.compile(r"[a-z0-9 =._-]+", re.ASCII)


class Commented(NamedTuple):
    """The last run of a job: when it began (UTC epoch seconds), whether it is over, and its AdminComment."""

    start_s: int
    ended: bool
    comment: str


def is_job(name: str) -> bool:
    """Return whether sacctmgr can be told of one job by ``name``."""
    return _JOB.fullmatch(name) is not None


def comments_question(raw_ids: Sequence[str]) -> tuple[str, ...]:
    """Return the command, for an environment with SLURM_TIME_FORMAT=%s, whose answer ``parse_comments`` reads."""
    return ("sacct", "-X", "-n", "-P", "-j", ",".join(raw_ids), "-o", "JobIDRaw,Start,State,AdminComment")


def parse_comments(text: str) -> dict[str, Commented]:
    """Return what sacct says, by raw id; of a comment of several lines the first."""
    found = {}
    for line in text.split("\n"):
        if match := _ROW.fullmatch(line):
            raw_id, start, state, comment = match.groups()
            found[raw_id] = Commented(int(start), parse_state(state) in FINAL_STATES, comment)
    return found


def comment_commands(comments: Mapping[str, str]) -> str:
    """Return what sacctmgr reads to set each job's AdminComment; ``comments`` is by job id, ``4711`` or ``4711_2``."""
    for job_id, comment in comments.items():
        assert is_job(job_id), job_id
        assert _TEXT.fullmatch(comment), comment
    setting = 'modify job where jobid={} set AdminComment="{}"\n'
    return "".join(setting.format(job_id, comment) for job_id, comment in comments.items())
