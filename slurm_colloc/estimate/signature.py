# SPDX-License-Identifier: Apache-2.0
"""Signatures: the same of two submissions of one job, and nearly the same of relatives that differ in numbers.

Read from the text alone, by rules that docs/explanation/estimate-rules.md lists. A signature is one word that can be a
file's name: ``FAMILY.VALUES~PROGRAM~FOLDER``. The family stands for everything but numbers; jobs of one family give the
same numbers the same names, in the same order.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.estimate.arguments import followed
from slurm_colloc.estimate.content import only_seeds, shell_lines
from slurm_colloc.estimate.digest import digest
from slurm_colloc.estimate.files import Job, Read, files_of
from slurm_colloc.estimate.places import (
    VARIABLE,
    TooMuchError,
    as_outside,
    by_habit,
    by_path,
    defaults,
    goes_to,
    import_roots,
    is_of_tool,
)
from slurm_colloc.estimate.seeds_and_sizes import word_sets
from slurm_colloc.estimate.texts import Seen, Texts
from slurm_colloc.estimate.words import INDEX, REFERENCE, Reader

# Before the family of what is known by its command alone, or as a session of a launcher.
BY_COMMAND, BY_SESSION = "command-", "session-"
_NO_QUOTES = str.maketrans("", "", "\"'")
# sbatch puts this before a command given to --wrap, and a newline behind it.
WRAPPED = b"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n"
_ASSIGNED = r"(?:^|[\s;(])(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=|\b(?:for|read(?:\s+-\w+)*)\s+(\w+)"
_CONSTANT = r"(?m)(?:^|[;\s])([A-Za-z_]\w*)=[\"']?([\w./~+${}-]+)"
# Commands in whose place a shell would put a folder.
_PLACE = (
    r"\$\(\s*(?:builtin\s+)?(?:(?:cd|realpath|readlink\s+-\w+)\s+\"?([^\s()\"]+)\"?(?:\s*(?:&&|;)\s*pwd)?"
    r"|dirname\s+\"?([^\s()\"]+)\"?|pwd)\s*\)"
)
_WORD = r"[^\s\"'=;|&<>()`]+"
_VALUE = r"\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|]*"
_LONGER = r"\$\{?\w+\}?:(?![-=+?])|:\$\{?\w+\}?"
_OWN_ENVIRONMENT = r"\b(?:activate|apptainer|singularity|enroot|docker|podman|--container-image|conda\s+run)\b"

# Variables of a session that a script may name without being another job for it.
_EVERYBODYS = word_sets(
    {
        "everybody's": "HOME USER LOGNAME PATH PWD OLDPWD SHELL TERM LANG HOSTNAME TMPDIR TMP TEMP LD_LIBRARY_PATH"
        " PYTHONPATH CUDA_VISIBLE_DEVICES SCRATCH WORK DISPLAY IFS UID RANDOM SECONDS HOST"
        " OMP_NUM_THREADS MASTER_PORT MASTER_ADDR LOCAL_SCRATCH CONDA_PREFIX"
    }
)["everybody's"]
# Variables of a session are no difference to a program: they say how its user came and what is shown.
_OF_SESSION = ("SSH", "XDG", "DBUS", "VSCODE", "TMUX", "TERM", "LC_", "LS_", "KRB5", "VIRTUAL_ENV", "SHLVL", "_")
# Slurm tells a script this of its own request, and it may choose what runs.
OF_REQUEST = ("SLURM_JOB_NAME",)


class Signature(NamedTuple):
    """The key of a job; ``names`` are those of its numbers, in the order of the values in ``text``.

    It was made of ``words`` and ``read``, which say what differs.
    """

    text: str
    names: tuple[str, ...]
    words: tuple[str, ...] = ()
    read: Read = Read({}, True, frozenset())


class Parts(NamedTuple):
    """A signature taken apart; ``values`` is None where there are more numbers than a file's name holds."""

    family: str
    values: tuple[float, ...] | None
    written: str
    program: str
    folder: str

    @property
    def is_certain(self) -> bool:
        """Return whether all files were looked at that the job may read."""
        return not self.program.startswith("x")


def signature(
    script: bytes,
    script_args: Sequence[str],
    gpu_count: int,
    told_apart: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    folder: str = "",
    handed: Collection[str] = (),
    array: str = "",
    texts: Texts | None = None,
) -> Signature:
    """Return what submissions of one job have in common.

    Args:
        script: its text; lines of directives, comments and messages do not count.
        script_args: its own arguments.
        gpu_count: GPUs it asks for.
        told_apart: anything else that makes it another job.
        environ: its environment; the variables count that the script names and does not set.
        folder: the one that it will run in; a path below it is the same elsewhere.
        handed: variables that were set for this job alone, which count although only its program may name them.
        array: the indices of its tasks, written one way; they count where they may choose what runs.
        texts: files of its folder that were read before.
    """
    variables = environ or {}
    body, script_args = followed(shell_lines(script.decode(errors="surrogateescape")), script_args)
    came_from, folder = folder, goes_to(body, folder, variables)
    reader = Reader((folder, variables.get("HOME", "")))
    lines = reader.text(body)
    words = reader.words(script_args)
    outside, set_first = _from_outside(body, variables), _set_first(body)
    outside += [name for name in OF_REQUEST if name in reader.used and name in variables]
    alone = sorted(_not_everybodys(handed) & set(variables) - set_first - set(outside))
    text_said = "\n".join([body, " ".join(script_args)])
    may_ask = [*_not_everybodys(variables), *([INDEX] if array else [])]
    read = _read(text_said, reader, body, (folder, came_from), variables, may_ask, texts)
    # Only the program asks for these; a key of each stands here, as it may be a secret.
    by_program = sorted(read.variables - set_first - {*outside, *alone, INDEX})
    values = [reader.one(f"${name}", variables[name]) for name in (*outside, *alone)] + alone
    values += [f"{name}={reader.one(f'${name}', variables[name], _short)}" for name in by_program]
    try:
        if INDEX in read.variables:  # what asks for it is to be read each time
            read = read._replace(seen=Seen())
        is_chosen = INDEX in read.variables and not only_seeds(INDEX, read.contents.values())
    except TooMuchError:
        is_chosen, read = True, read._replace(fits=False)
    if array and (is_chosen or reader.asks_index(body)):
        values.append(f"{INDEX}={_short(array)}")
    words = [str(gpu_count), *told_apart, lines, *words, "$", *values, _environment(body, variables)]
    text = f"{digest(_joined(words))}.{reader.written()}~{read.key}~{_folder_key(folder)}"
    return Signature(text, tuple(reader.names), tuple(words), read)


def _read(
    text_said: str,
    reader: Reader,
    body: str,
    folders: Sequence[str],
    variables: Mapping[str, str],
    candidates: Sequence[str],
    texts: Texts | None,
) -> Read:
    """Return what the files hold that the words of a script and its arguments lead to."""
    text_said = _placed(text_said)
    constants = {
        name: value for name, value in re.findall(_CONSTANT, text_said) if name not in REFERENCE.findall(value)
    }
    values = {**variables, **constants, "PWD": folders[0], "SLURM_SUBMIT_DIR": folders[-1]}
    text = reads = reader.reads(text_said)
    for _ in range(3):
        text = VARIABLE.sub(lambda match: values.get(match[1] or match[2], match[0]), text)
    written = set(re.findall(_WORD, text_said)) - set(re.findall(_WORD, reads))
    script, home = body.encode(errors="surrogateescape"), variables.get("HOME", "")
    may_ask = [name for name in candidates if not name.startswith(_OF_SESSION)]
    theirs = sorted(name for name in may_ask if is_of_tool(name, text))
    text = as_outside("\n".join([text, *(variables[name] for name in theirs if name in variables)]), folders[0])
    roots, fits = list[str](), True
    habits, programs = by_habit(text), list[str]()
    try:
        roots, programs = import_roots(text, values, folders[0]), list(by_path(text, variables, folders[0]))
    except TooMuchError:
        fits = False
    text = "\n".join([text, *habits, *programs])
    job = Job(text, script, sorted(reader.labels), written, folders, home, may_ask, roots, defaults(values))
    read = files_of(job, texts or Texts())
    return read._replace(fits=read.fits and fits, variables=read.variables | set(theirs))


def _placed(text: str) -> str:
    """Return a text with the places in it that a shell would ask for: those above a folder, twice at most."""
    for _ in range(2 * ("$(" in text)):
        text = re.sub(_PLACE, lambda match: match[1] or (f"{match[2]}/.." if match[2] else "$PWD"), text)
    return text


def command_signature(
    script_path: str, script_args: Sequence[str], gpu_count: int, told_apart: Sequence[str] = (), folder: str = ""
) -> str:
    """Return what a past job is known by whose script's text is not: its file, its arguments, and where it ran.

    Accounting keeps a command line with blanks between its words and no quotes, so words are told apart by blanks.

    Args:
        script_path: as it was given, below ``folder`` where it is relative.
        script_args: its own arguments.
        gpu_count: GPUs it asks for.
        told_apart: anything else that makes it another job.
        folder: the one that it was submitted from.
    """
    reader = Reader((folder,))
    bare = " ".join(script_args).translate(_NO_QUOTES)
    words = reader.words(bare.split())
    # Its folder counts: a/run.sh and b/run.sh are two jobs.
    path = os.path.normpath(os.path.join(folder, script_path))
    family = digest(_joined([str(gpu_count), *told_apart, path, *words]))
    return f"{BY_COMMAND}{family}.{reader.written()}~~{_folder_key(folder)}"


def apart_by(cluster: str, tasks: int | None = None) -> tuple[str, ...]:
    """Return what makes submissions of one text several jobs.

    One home may serve several clusters.
    "srun python train.py" starts so many programs on the GPU, of which the text says nothing.
    """
    return (cluster, *([f"{tasks} tasks"] if tasks and tasks > 1 else []))


def names_from_outside(script: bytes, variables: Collection[str] | None = None) -> list[str]:
    """Return the variables, of these or of any, whose values at the submission make a script another job."""
    body = shell_lines(script.decode(errors="surrogateescape"))
    references = set(REFERENCE.findall(body))
    reader = Reader(())
    reader.text(body)
    of_slurm = [*references.intersection(OF_REQUEST), *([INDEX] if INDEX in body and reader.asks_index(body) else [])]
    return [*_from_outside(body, references if variables is None else variables), *of_slurm]


def parts_of(text: str) -> Parts | None:
    """Return a signature taken apart; None of a text that is none, or none of this release."""
    family, _, rest = text.partition(".")
    pieces = rest.split("~")
    if len(pieces) != 3:
        return None
    written, program, folder = pieces
    if written.startswith("x"):
        return Parts(family, None, written, program, folder)
    try:
        values = tuple(map(float, written.split("_"))) if written else ()
    except ValueError:
        return None
    return Parts(family, values, written, program, folder)


def is_same(one: Parts, other: Parts) -> bool:
    """Return whether two submissions are the same job: relatives of which no number differs and all was read."""
    numbers = {(parts.written, parts.program) for parts in (one, other)}
    return is_relative(one, other) and len(numbers) == 1 and one.is_certain


def is_relative(one: Parts, other: Parts) -> bool:
    """Return whether only numbers differ, in one folder or wherever the files are that both read."""
    is_here = one.folder == other.folder or bool(one.program)
    return (one.family, but_numbers(one.program)) == (other.family, but_numbers(other.program)) and is_here


def but_numbers(key: str) -> str:
    """Return what a file, or a job's files, are known by without numbers that change no need of a GPU."""
    return key.partition("-")[0]


def _short(text: str) -> str:
    return digest(text)[:8]


def _folder_key(folder: str) -> str:
    # The same folder, whether it was named with a slash at its end or not.
    return _short(folder.rstrip("/"))


def _joined(parts: Sequence[str]) -> bytes:
    # Length-prefixed, so that moving a character from one argument to the next makes another key.
    encoded = [part.encode(errors="surrogateescape") for part in parts]
    return b"".join(b"%d:" % len(part) + part for part in encoded)


def _from_outside(body: str, variables: Collection[str]) -> list[str]:
    """Return the variables that the script is handed: those it names, does not set, and not everybody has."""
    return sorted(_not_everybodys(set(REFERENCE.findall(body)) & set(variables)) - _set_first(body))


def _not_everybodys(names: Collection[str]) -> set[str]:
    return {name for name in set(names) - _EVERYBODYS if not name.startswith(("SLURM", "SBATCH", "CONDA", "MODULE"))}


def _set_first(body: str) -> set[str]:
    """Return the variables that a script sets before it asks for them: "BS=${BS:-64}" asks first."""
    # The first place of each counts: a later one stands before it here.
    asked_at = {match[1]: match.start() for match in [*REFERENCE.finditer(body)][::-1]}
    set_at = {match[1] or match[2]: match for match in [*re.finditer(_ASSIGNED, body)][::-1]}
    return {
        name
        for name, match in set_at.items()
        if match.start() < asked_at.get(name, len(body))
        and not _asks_itself(name, body[match.end() : match.end() + 4096])
    }


def _asks_itself(name: str, rest: str) -> bool:
    """Return whether what a variable is set to hangs on what it was, but for a path that is made longer."""
    value = re.match(_VALUE, rest)
    return value is not None and name in REFERENCE.findall(re.sub(_LONGER, "", value[0]))


def _environment(body: str, variables: Mapping[str, str]) -> str:
    """Return the environment that is active at the submission, where the script chooses none itself."""
    active = variables.get("VIRTUAL_ENV") or variables.get("CONDA_DEFAULT_ENV") or ""
    if not active or re.search(_OWN_ENVIRONMENT, body):
        return ""
    return active.rstrip("/").rpartition("/")[2]
