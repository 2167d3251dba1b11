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
        release: the one that has these options; the newest in the table in place of an unknown one.

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
    values = {option.name: option.value or "" for option in split.options}
    words = words[split.script_at :]
    if "job-name" not in values:
        later = next((index for index, word in enumerate(words) if basename(word) == job_name), 0)
        words = words[later:]
    if any(option.name == "export" and "=" in (option.value or "") for option in split.options):
        raise InputError("it was handed variables (--export)")
    if not words[0].startswith("/") and "chdir" in values:
        raise InputError("its script is relative and --chdir was given")
    return words[0], tuple(words[1:])
