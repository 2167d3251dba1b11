# SPDX-License-Identifier: Apache-2.0
"""Tells from sbatch's last line whether it has certainly made no job.

Two kinds of last words say so: slurmctld's, an error about the job (job_errors.txt), and the client's own, of what it
refuses before it speaks to slurmctld. After all others nobody knows: a time-out, a broken connection, silence (with
--quiet and --wait a job that failed leaves nothing else). Earlier lines do not count: sbatch quotes options in them,
and a site's plugins write what they like.
"""

import re
from pathlib import Path

_JOB_ERRORS = Path(__file__).with_name("job_errors.txt")
_FAILED = "Batch job submission failed: "
# slurm.ERROR of a site's job_submit.lua, or a number of its own in the range of errors about jobs.
_OF_PLUGIN = re.compile(r"Unspecified error|Unknown error 2\d\d\d")
# Words of the option parser, the reading of the script, and site plugins in the client (sbatch 22.05, 24.11, 26.05).
_OF_CLIENT = re.compile(
    r"cli_filter plugin terminated with error|failed to initialize cli_filter plugin"
    r"|Plugin stack post-option processing failed|Failed to initialize plugin stack"
    r"|.*mutually exclusive.*|Failed to validate job spec\. .*|You can not have --tres-per-task.*"
    r"|Inconsistent values set .*|[Ii]nvalid --[a-z-]+[ =].*|Invalid (?:directive|node list|TRES for|numeric value) .*"
    r"|invalid number of .*|.* is not a valid node count|--[a-z-]+[ =].* (?:incompatible|not valid|only permitted).*"
    r"|Script .*(?:not permitted|too big|too large).*|Cannot stat .*|Unable to open file .*"
    r"|Batch script (?:is empty|contains).*|For instance: #!/bin/sh|contain a NULL character .*"
    r"|instead of expected UNIX line breaks.*"
)
# A site's wrapper may have renamed it.
_OF_SBATCH = re.compile(r"^[\w.-]*sbatch[\w.-]*: (?:error|fatal): ")
_GETOPT = 'Try "sbatch --help" for more information'


def is_refusal(answer: str, *, silent: bool = False) -> bool:
    """Return whether sbatch, which ended with an error, says on its standard error that there is no job.

    ``silent`` says that it was told to be quiet and to wait: the client's words may then be a warning, the last that
    was heard of a job that has failed.
    """
    line = (answer.strip().splitlines() or [""])[-1].strip()
    if line == _GETOPT:
        return not silent
    words = _OF_SBATCH.sub("", line)
    error = words.removeprefix(_FAILED)
    # A line that sbatch does not begin may be a site's plugin's, and say the name of a job.
    if words == line or (silent and error == words):
        return False
    # The client's own look at the request finds some of slurmctld's errors.
    return error in _job_errors() or (_OF_CLIENT if error == words else _OF_PLUGIN).fullmatch(error) is not None


def verdict(answer: str) -> str:
    """Return what a refusal says, the words of a site's plugin first, without "submission failed".

    Snakemake takes those words for the end of a submission wherever they stand.
    """
    lines = (_OF_SBATCH.sub("", line.rpartition(_FAILED)[2]).strip() for line in answer.splitlines())
    return "; ".join(list(dict.fromkeys(filter(None, lines)))[-3:])


def _job_errors() -> frozenset[str]:
    lines = _JOB_ERRORS.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))
