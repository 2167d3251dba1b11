# SPDX-License-Identifier: Apache-2.0
"""csub's own options: which there are, and how they are told from sbatch's on a command line and in a script."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError, MisusedError
from slurm_colloc.core.units import printable
from slurm_colloc.slurm.directives import Script
from slurm_colloc.slurm.option_tables import RELEASES, SBATCH_OPTIONS, Option, known_as
from slurm_colloc.slurm.options import CommandLine, Given, join_options, split_command_line

# Options that a #CSUB line may give; the others are about one call of csub, not about the job.
SCRIPT_OPTIONS = (
    Option("gpu-footprint", "", "required", ""),
    Option("colloc", "", "required", ""),
    Option("max-slowdown", "", "required", ""),
    Option("pack", "", "none", ""),
    Option("pack-tasks", "", "required", ""),
    Option("pack-jobs", "", "required", ""),
    Option("pack-retries", "", "required", ""),
    Option("pack-together", "", "none", ""),
)
OWN_OPTIONS = (
    *SCRIPT_OPTIONS,
    Option("dry-run", "", "none", ""),
    Option("explain", "", "none", ""),
    Option("format", "", "required", ""),
)
# The least that each number may be.
_NUMBERS = {"pack-tasks": 1, "pack-jobs": 1, "pack-retries": 0}
# Options of sbatch that end it before it reads a script.
NO_SUBMISSION = ("help", "usage", "version")
# The site's policy (plugin/colloc_policy.lua), which judges every submission, is told by it of csub's own. A variable,
# because it reaches slurmctld with every batch job and touches nothing that the user wrote; SLURM_ at its front, since
# those pass --export=NONE too. Jobs inherit it, so that it names the job that it was submitted from: what that one says
# in its turn, with another id around it, is nobody's word.
POLICY_VARIABLE = "SLURM_COLLOC"
_EXCLUSIVE = "exclusive"
# The job is placed at its submission or not at all.
NOT_LATE = "late=off"


def option_table(release: str, config: SiteConfig | None) -> tuple[Option, ...]:
    """Return sbatch's options with those that the site's plugins add; an unknown release has the newest known one's."""
    table = SBATCH_OPTIONS[known_as(release) or RELEASES[-1]]
    return join_options(table, config.sbatch_options) if config else table


def parse_arguments(argv: Sequence[str], config: SiteConfig | None) -> CommandLine:
    """Split csub's arguments into sbatch's and csub's own.

    csub's own must come out of them even where the release is not known; make_plan leaves such a submission alone.

    Raises:
        UnsureError: anything sbatch might read differently.
        MisusedError: an option of csub's own without its value, or with one that it does not take.
        ConfigError: an option of the site's plugins outside its grammar.
    """
    return split_command_line(argv, option_table(config.slurm_release if config else "", config), OWN_OPTIONS)


def without_own_options(argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return sbatch's arguments and csub's own where they cannot be split with certainty, the front does it alike.

    An option that is not known is taken to have a value where one may stand. All words behind the script are its own.
    """
    takes_value = {option.name: option.argument == "required" for option in OWN_OPTIONS}
    rest: list[str] = []
    own: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, _ = word[2:].partition("=")
        if word.startswith("--") and name in takes_value:
            own.append(word)
            if takes_value[name] and not equals and words:
                own.append(words.pop(0))
            continue
        rest.append(word)
        if word in ("--", "-") or (word != ":" and not word.startswith("-")):
            break
        if words and _wants_value(word) and words[0].partition("=")[0][2:] not in takes_value:
            rest.append(words.pop(0))
    return (*rest, *words), tuple(own)


def _wants_value(word: str) -> bool:
    """Return whether the next word may be the value of this option."""
    table = option_table("", None)
    if word.startswith("--"):
        valueless = [option for option in table if option.argument != "required"]
        return "=" not in word and not any(option.name.startswith(word[2:]) for option in valueless)
    letters = word[1:].lstrip("".join(option.short for option in table if option.argument == "none"))
    short = next((option for option in table if option.short and option.short == letters), None)
    return len(letters) == 1 and (short is None or short.argument == "required")


def own_values(command_line: CommandLine, script: Script | None = None) -> dict[str, str]:
    """Return the values of csub's own options by name: the command line wins over a #CSUB line."""
    options = (*(script.own_directives if script else ()), *command_line.own)
    return {option.name: option.value or "" for option in options}


def wants_pack(own: Mapping[str, str]) -> bool:
    """Return whether the tasks of the array are to be packed."""
    return not own.keys().isdisjoint(("pack", "pack-tasks", "pack-jobs"))


def check_call(command_line: CommandLine) -> None:
    """Check csub's own options of a command line, where going on would do what nobody meant.

    Raises:
        MisusedError: one of them is outside its grammar, or stands where it means nothing.
    """
    own = own_values(command_line)
    # With no script left the next step would be to wait for one on standard input.
    if "=" not in (hint := own.get("gpu-footprint", "=")) and reads_stdin(command_line):
        raise MisusedError(f"--gpu-footprint took '{hint}' as its value; write --gpu-footprint=mem=9G,sm=30")
    if "format" in own and "dry-run" not in own:
        raise MisusedError("--format is for --dry-run")
    check_values(command_line.own)


def check_values(options: Iterable[Given]) -> None:
    """Check the value of each of csub's own options.

    Raises:
        MisusedError: one is outside its grammar; without it the job would get what its user did not want.
    """
    for option in options:
        try:
            wrong = _wrong(option.name, option.value or "")
        except InputError as error:
            wrong = str(error)
        if wrong:
            where = option.written.partition(": ")[0] + ": " if option.origin == "directive" else ""
            raise MisusedError(f"{where}{wrong}")


def check_pack(own: Mapping[str, str]) -> None:
    """Raise MisusedError where something is said of a pack, and no pack is asked for, or the other way round."""
    is_pack = wants_pack(own)
    if is_pack and "max-slowdown" in own:
        raise MisusedError("--max-slowdown is not for packs: --pack-tasks says how many tasks share a GPU")
    if not is_pack and "pack-retries" in own:
        raise MisusedError("--pack-retries without --pack")
    if "pack-together" in own:
        raise MisusedError("--pack-together is for the commands of csub pack: an array's tasks would start apart")


def _wrong(name: str, value: str) -> str:
    """Return what is wrong with an option's value; empty where nothing is."""
    if name == "gpu-footprint":
        from slurm_colloc.estimate.hint import parse_hint  # most submissions give none

        parse_hint(value)
    if name == "colloc":
        return _wrong_colloc(value)
    if name == "format" and value not in ("json", "script"):
        return f"--format={value} is not known; choose script or json"
    if name == "max-slowdown":
        parse_slowdown(value)
    least = _NUMBERS.get(name)
    if least is not None and not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) >= least):
        return f"--{name}='{value}' is not a whole number from {least} up"
    return ""


def _wrong_colloc(value: str) -> str:
    if value in ("auto", "off", NOT_LATE) or is_exclusive(value):
        return ""
    if value.partition(":")[0] == _EXCLUSIVE:
        return "--colloc=exclusive needs a reason: --colloc=exclusive:REASON"
    return f"--colloc='{value}' is none of auto, off, {NOT_LATE} and exclusive:REASON"


def is_exclusive(colloc: str | None) -> bool:
    """Return whether --colloc asks for a whole GPU, and says why."""
    word, _, reason = (colloc or "").partition(":")
    return word == _EXCLUSIVE and bool(reason.strip())


def with_policy_variable(environ: Mapping[str, str], colloc: str) -> dict[str, str]:
    """Return the environment that hands the value of --colloc on; it is one line, whatever the user wrote."""
    return {**environ, POLICY_VARIABLE: f"{environ.get('SLURM_JOB_ID') or '0'} {printable(colloc)}"}


def parse_slowdown(text: str) -> float:
    """Return how much slower than on a whole GPU a job may be, as --max-slowdown says it.

    Raises:
        InputError: it is no number from 1 up.
    """
    try:
        found = float(text) if text.isascii() and "_" not in text else 0.0
    except ValueError:
        found = 0.0
    if not 1 <= found < inf:
        raise InputError(f"--max-slowdown='{text}' is not a number from 1 up; write --max-slowdown=1.1")
    return found


def reads_stdin(command_line: CommandLine) -> bool:
    """Return whether sbatch would read the script on standard input."""
    elsewhere = any(option.name in ("wrap", *NO_SUBMISSION) for option in command_line.options)
    return command_line.script is None and not elsewhere
