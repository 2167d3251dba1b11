# SPDX-License-Identifier: Apache-2.0
"""The command line of a past job, as sacct keeps it: words with blanks between them and without their quotes."""

from os.path import basename

from slurm_colloc.core.errors import InputError, UnsureError
from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS
from slurm_colloc.slurm.options import split_command_line

_NEWEST = max(SBATCH_OPTIONS)


def parse_submit_line(line: str, job_name: str, release: str) -> tuple[str, tuple[str, ...]]:
    """Return a job's script as it was named, and its arguments, by sbatch's rules.

    Args:
        line: sacct's SubmitLine (Slurm 21.08 and later).
        job_name: tells the script from a value with blanks before it (``--comment=a b job.sh``).
        release: whose options they are; of an unknown one the newest known one's.

    Raises:
        InputError: it names no script, or it is not certain which.
    """
    program, *words = line.split() or [""]
    if basename(program) not in ("sbatch", "csub"):
        raise InputError("it was not submitted by sbatch" if program else "sacct has no SubmitLine of it")
    if any(word.startswith("--wrap") for word in words):
        raise InputError("it was a command of --wrap")
    try:
        split = split_command_line(words, SBATCH_OPTIONS.get(release, SBATCH_OPTIONS[_NEWEST]))
    except UnsureError as error:
        raise InputError("its command line cannot be read with certainty") from error
    if split.script_at is None:
        raise InputError("its script came by standard input")
    at = split.script_at
    named = any(option.name == "job-name" for option in split.options)
    if not named and basename(words[at]) != job_name:
        at = next((later for later in range(at, len(words)) if basename(words[later]) == job_name), at)
    if any(option.name == "export" and "=" in (option.value or "") for option in split.options):
        raise InputError("it was handed variables (--export)")
    if not words[at].startswith("/") and any(option.name == "chdir" for option in split.options):
        raise InputError("its script is relative and --chdir was given")
    return words[at], tuple(words[at + 1 :])
