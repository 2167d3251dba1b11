# SPDX-License-Identifier: Apache-2.0
"""What makes two submissions the same job, and what makes them relatives that differ in numbers.

Read from the text alone, by rules that docs/explanation/estimate.md lists. A signature is one word that can be a file's
name: ``FAMILY.VALUES~PROGRAM~FOLDER``. The family stands for everything but numbers; jobs of one family give the same
numbers the same names, in the same order.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.estimate.arguments import ARGUMENT, followed
from slurm_colloc.estimate.content import only_seeds, shell_lines
from slurm_colloc.estimate.digest import digest
from slurm_colloc.estimate.files import OF_A_SEED, Read, files_of
from slurm_colloc.estimate.option_names import IS_NUMBER, is_always_noise, is_choice, is_label, is_noise
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
from slurm_colloc.estimate.texts import Texts

# Before the family of what is known by its command alone.
BY_COMMAND = "command-"
_NO_QUOTES = str.maketrans("", "", "\"'")
# What sbatch puts before a command given to --wrap; behind it a newline.
WRAPPED = b"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n"
_MOST_NUMBERS, _LONGEST = 24, 140
# Of use to few submissions, and so compiled (100 us each) by the first that needs them.
_DATE = (
    r"(?<!\d)20[0-3]\d[-_./]?(?:0[1-9]|1[0-2])[-_./]?(?:0[1-9]|[12]\d|3[01])"
    r"(?:[-_T. ]?[0-2]\d[-_:.h]?[0-5]\d(?:[-_:.m]?[0-5]\d)?)?(?!\d)"
)
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_ASSIGNED = r"(?:^|[\s;(])(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=|\b(?:for|read(?:\s+-\w+)*)\s+(\w+)"
_FILE = re.compile(r"(?<![\w./~+-])[\w./~+-]*\w\.\w+")
# Where something is only put, or looked for: what a copy is made of stays.
_PUTS = re.compile(
    r"(?m)>>?\s*[^\s;&|]+|\btee\s+(?:-a\s+)?[^\s;&|]+|(?<![\w-])(?:mkdir|rm|touch)\b[^;&|\n]*"
    r"|\[\[?\s+!?\s*-[defnrswxzL]\s+[^\s\]]+"
    # To the end of a command, also where there is no second word: each is looked at once.
    r"|\b(?:cp|mv|rsync|ln)\b(?P<of>[^;&|\n]*?)(?:\s{1,8}[^\s;&|]+(?=\s*(?:$|[;&|]))|(?=[;&|\n]|\Z))"
)
_LOOP = re.compile(r"(\bfor\s+(\w{1,40})\s+in\s)[^;\n]*")
# What runs beside what follows it: "2>&1" and "&&" are none.
_AT_ONCE = re.compile(r"(?<![>&<])&(?![>&])|\b(?:parallel|xargs|screen|tmux|coproc|sem)\b")
# More than one word, of which a shell makes options of their own.
_SEVERAL = re.compile(r"\s(?:-|[\w.]+=)")
_RESULTS_PATH = re.compile(r"(?<![\w./~$}-])(?:\./)?(?:outputs?|results?|work_dirs?|runs?|logs?)/[\w/-]+(?![\w./])")
_SHOWN_AT = re.compile(r"(>>?\s?)(?:\./)?(?:outputs?|results?|runs?|logs?)/[\w./-]+\.(?:txt|log|out|err)(?![\w./])")
_CONSTANT = re.compile(r"(?m)(?:^|[;\s])([A-Za-z_]\w*)=[\"']?([\w./~+${}-]+)")
# What a shell would put in place of a command that says where something is.
_PLACE = re.compile(
    r"\$\(\s*(?:builtin\s+)?(?:(?:cd|realpath|readlink\s+-\w+)\s+\"?([^\s()\"]+)\"?(?:\s*(?:&&|;)\s*pwd)?"
    r"|dirname\s+\"?([^\s()\"]+)\"?|pwd)\s*\)"
)
_WORD = re.compile(r"[^\s\"'=;|&<>()`]+")
_VALUE = r"\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|]*"
_LONGER = r"\$\{?\w+\}?:(?![-=+?])|:\$\{?\w+\}?"
_INDEX = "SLURM_ARRAY_TASK_ID"
# What is reckoned of an array's index alone, and a variable that holds nothing else.
_OF_INDEX = r"\$\(\((?:[\s\d+*/%-]|\$?\{?SLURM_ARRAY_TASK_ID\}?)++\)\)"
_IS_INDEX = r"(?m)^[ \t]*([A-Za-z_]\w*)=[\"']?\$\{?SLURM_ARRAY_TASK_ID\}?[\"']?\s*$"
# Where a variable counts without a dollar: reckoned with, compared, or as the name in another one; and handed on.
_RECKONS = r"(?m)\(\([^\n]{0,1000}?\)\)|\[[^\n]{0,1000}?\]|\$\{!\w+|\b(?:let|expr|test)\s[^;\n]*|\bcase\s+\S+\s+in\b"
_EXPORTS, _EXPORTS_ALL = r"(?m)\b(?:export|declare|typeset)\b[^;\n]*", r"(?m)^\s*set\s+(?:-\w*a|-\w*o\s+allexport)"
_BARE = r"[A-Za-z_]\w*"
_LIST = r"[\[(]?[\d.+-]+(?:,[\d.+-]+)+[\])]?"
# An option that may well be a seed's: "-s $SEED".
_OF_SEED = r"(?i)-{1,2}s"
_OWN_ENVIRONMENT = r"\b(?:activate|apptainer|singularity|enroot|docker|podman|--container-image|conda\s+run)\b"

# Variables of a session that a script may name without being another job for it.
_EVERYBODYS = frozenset(
    {"HOME", "USER", "LOGNAME", "PATH", "PWD", "OLDPWD", "SHELL", "TERM", "LANG", "HOSTNAME", "TMPDIR", "TMP", "TEMP"}
    | {"LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "SCRATCH", "WORK", "DISPLAY", "IFS", "UID", "RANDOM"}
    | {"SECONDS", "HOST", "OMP_NUM_THREADS", "MASTER_PORT", "MASTER_ADDR", "LOCAL_SCRATCH", "CONDA_PREFIX"}
)
# Of a program's variables those of a session are no difference: where it came from, and how it is shown.
_OF_SESSION = ("SSH", "XDG", "DBUS", "VSCODE", "TMUX", "TERM", "LC_", "LS_", "KRB5", "VIRTUAL_ENV", "SHLVL", "_")
# What Slurm tells a script of its own request, and what may choose what runs.
OF_REQUEST = ("SLURM_JOB_NAME",)


class Signature(NamedTuple):
    """What a job is known by; ``names`` are those of its numbers, in the order of the values in ``text``.

    ``words`` and ``read`` are what it was made of: to say what differs.
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
        told_apart: whatever else makes it another job.
        environ: what its environment will hold; the variables count that the script names and does not set.
        folder: where it will run; what is below is the same elsewhere.
        handed: variables that were set for this job alone, which count although only its program may name them.
        array: the indices of its tasks, written one way; they count where they may choose what runs.
        texts: what was read before of the files in its folder.
    """
    variables = environ or {}
    body, script_args = followed(shell_lines(script.decode(errors="surrogateescape")), script_args)
    came_from, folder = folder, goes_to(body, folder, variables)
    reader = _Reader((folder, variables.get("HOME", "")))
    lines = reader.text(body)
    words = reader.words(script_args)
    outside = _from_outside(body, variables)
    outside += [name for name in OF_REQUEST if name in reader.used and name in variables]
    alone = sorted(_not_everybodys(handed) & set(variables) - _set_first(body) - set(outside)) if handed else []
    said = "\n".join([body, " ".join(script_args)])
    may_ask = [*_not_everybodys(variables), *([_INDEX] if array else [])]
    read = _read(said, reader, body, (folder, came_from), variables, may_ask, texts)
    # What only the program asks for; a key of it, as it may be a secret.
    others = sorted(read.variables - _set_first(body) - {*outside, *alone, _INDEX})
    given = [reader.one(f"${name}", variables[name]) for name in (*outside, *alone)] + alone
    given += [f"{name}={reader.one(f'${name}', variables[name], _short)}" for name in others]
    is_chosen = _INDEX in read.variables and not only_seeds(_INDEX, read.contents.values())
    if array and (is_chosen or reader.asks_index(body)):
        given.append(f"{_INDEX}={_short(array)}")
    words = [str(gpu_count), *told_apart, lines, *words, "$", *given, _environment(body, variables)]
    text = f"{digest(_joined(words))}.{reader.written()}~{read.key}~{_folder_key(folder)}"
    return Signature(text, tuple(reader.names), tuple(words), read)


def _read(
    said: str,
    reader: "_Reader",
    body: str,
    folders: Sequence[str],
    variables: Mapping[str, str],
    asked: Sequence[str],
    texts: Texts | None,
) -> Read:
    """Return what the files hold that the words of a script and its arguments lead to."""
    said = _placed(said)
    constants = {name: value for name, value in _CONSTANT.findall(said) if name not in _REFERENCE.findall(value)}
    known = {**variables, **constants, "PWD": folders[0], "SLURM_SUBMIT_DIR": folders[-1]}
    text = reads = reader.reads(said)
    for _ in range(3):
        text = VARIABLE.sub(lambda found: known.get(found[1] or found[2], found[0]), text)
    written = set(_WORD.findall(said)) - set(_WORD.findall(reads))
    own, home = body.encode(errors="surrogateescape"), variables.get("HOME", "")
    may_ask = [name for name in asked if not name.startswith(_OF_SESSION)]
    theirs = [name for name in may_ask if is_of_tool(name, text)]
    text = as_outside("\n".join([text, *(variables[name] for name in theirs if name in variables)]), folders[0])
    roots, fits = list[str](), True
    habits, programs = by_habit(text), list[str]()
    try:
        roots, programs = import_roots(text, known, folders[0]), list(by_path(text, variables, folders[0]))
    except TooMuchError:
        fits = False
    text = "\n".join([text, *habits, *programs])
    read = files_of(text, own, sorted(reader.labels), written, folders, home, may_ask, roots, texts, defaults(known))
    return read._replace(fits=read.fits and fits, variables=read.variables | set(theirs))


def _placed(text: str) -> str:
    """Return a text with the places in it that a shell would ask for: those above a folder, twice at most."""
    for _ in range(2):
        text = _PLACE.sub(lambda found: found[1] or (f"{found[2]}/.." if found[2] else "$PWD"), text)
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
        told_apart: whatever else makes it another job.
        folder: where it was submitted from.
    """
    reader = _Reader((folder,))
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
    asked = set(_REFERENCE.findall(body))
    told = [*asked.intersection(OF_REQUEST), *([_INDEX] if _asks_index(body) else [])]
    return [*_from_outside(body, asked if variables is None else variables), *told]


def _asks_index(body: str) -> bool:
    """Return whether the index of an array's task may choose what runs."""
    reader = _Reader(())
    reader.text(body)
    return reader.asks_index(body)


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
    return is_relative(one, other) and one.written == other.written and one.is_certain


def is_relative(one: Parts, other: Parts) -> bool:
    """Return whether only numbers differ, in one folder or wherever the files are that both read."""
    is_here = one.folder == other.folder or bool(one.program)
    return one.family == other.family and one.program == other.program and is_here


def _short(text: str) -> str:
    return digest(text.encode(errors="surrogateescape"))[:8]


def _folder_key(folder: str) -> str:
    # The same folder, whether it was named with a slash at its end or not.
    return _short(folder.rstrip("/"))


def _joined(parts: Sequence[str]) -> bytes:
    # Length-prefixed, so that moving a character from one argument to the next makes another key.
    encoded = [part.encode(errors="surrogateescape") for part in parts]
    return b"".join(b"%d:" % len(part) + part for part in encoded)


def _from_outside(body: str, variables: Collection[str]) -> list[str]:
    """Return the variables that the script is handed: those it names, does not set, and not everybody has."""
    named = _not_everybodys(set(_REFERENCE.findall(body)) & set(variables))
    return sorted(named - _set_first(body)) if named else []


def _not_everybodys(names: Collection[str]) -> set[str]:
    found = set(names) - _EVERYBODYS
    return {name for name in found if not name.startswith(("SLURM", "SBATCH", "CONDA", "MODULE"))}


def _set_first(body: str) -> set[str]:
    """Return the variables that a script sets before it asks for them: "BS=${BS:-64}" asks first."""
    asked: dict[str, int] = {}
    for found in _REFERENCE.finditer(body):
        asked.setdefault(found[1], found.start())
    first: dict[str, re.Match[str]] = {}
    for found in re.finditer(_ASSIGNED, body):
        first.setdefault(found[1] or found[2], found)
    return {
        name
        for name, found in first.items()
        if found.start() < asked.get(name, len(body)) and not _asks_itself(name, body[found.end() : found.end() + 4096])
    }


def _asks_itself(name: str, rest: str) -> bool:
    """Return whether what a variable is set to hangs on what it was, but for a path that is made longer."""
    value = re.match(_VALUE, rest)
    return value is not None and name in _REFERENCE.findall(re.sub(_LONGER, "", value[0]))


def _environment(body: str, variables: Mapping[str, str]) -> str:
    """Return the environment that is active at the submission, where the script chooses none itself."""
    active = variables.get("VIRTUAL_ENV") or variables.get("CONDA_DEFAULT_ENV") or ""
    if not active or re.search(_OWN_ENVIRONMENT, body):
        return ""
    return active.rstrip("/").rpartition("/")[2]


def _reckoned(body: str) -> set[str]:
    return {name for part in re.findall(_RECKONS, body) for name in re.findall(_BARE, part)}


def _exported(body: str) -> set[str]:
    if re.search(_EXPORTS_ALL, body):
        return set(re.findall(_BARE, body))
    handed = {name for part in re.findall(_EXPORTS, body) for name in re.findall(_BARE, part)}
    return {name for name in handed if not is_always_noise(name)}


def _of_seeds(loop: re.Match[str], counted: Collection[str]) -> str:
    """Return the head of a loop without its words where each is only a seed, a label or a place of results."""
    return loop[0] if loop[2] in counted else f"{loop[1]}*"


class _Reader:
    """Takes the numbers out of words, and what only tells runs apart."""

    def __init__(self, folders: Sequence[str]) -> None:
        self.names: list[str] = []
        self.labels: set[str] = set()
        self._values: list[str] = []
        self.used: frozenset[str] = frozenset()
        self._folders = [folder.rstrip("/") for folder in folders if len(folder.rstrip("/")) > 1]

    def written(self) -> str:
        text = "_".join(self._values)
        if len(self._values) > _MOST_NUMBERS or len(text) > _LONGEST:
            return f"x{digest(text.encode())}"
        return text

    def text(self, body: str) -> str:
        # A name or a folder in a variable may choose what runs: a model, a file; each may be part of another.
        for _ in range(4):
            asked = self._asked(_PUTS.sub(r"\g<of>", ARGUMENT.sub(self._but_noise, body)))
            if self.used.issuperset(asked):
                break
            self.used |= asked
        # Which seeds they are is no difference; how many is, where they run at once.
        counted = self.used | _reckoned(body) | _exported(body)
        seeds = body if _AT_ONCE.search(body) else _LOOP.sub(lambda found: _of_seeds(found, counted), body)
        return self._plain(ARGUMENT.sub(self._replace, seeds))

    def _asked(self, body: str) -> frozenset[str]:
        """Return the variables that a text asks for; of a seed only where it is reckoned with, or an option's value."""
        behind = (found for found in ARGUMENT.finditer(body) if not re.fullmatch(_OF_SEED, found["name"]))
        values = {found["value"].strip("\"'${}") for found in behind if found["name"].startswith("-")}
        sizing = values | _reckoned(body)
        return frozenset(name for name in _REFERENCE.findall(body) if name in sizing or not is_always_noise(name)) | (
            frozenset(filter(is_always_noise, sizing))
        )

    def asks_index(self, body: str) -> bool:
        """Return whether an array's index stands for more than a seed, a label or a place of results."""
        body = re.sub(_OF_INDEX, f"${_INDEX}", body) if _INDEX in body else ""
        of_none = set(re.findall(_IS_INDEX, body)) - self.used - _reckoned(body) - _exported(body)
        body = re.sub(r"(?m)^[ \t]*(\w+)=.*", lambda found: "" if found[1] in of_none else found[0], body)
        return _INDEX in _PUTS.sub(r"\g<of>", ARGUMENT.sub(self._but_noise, body))

    def reads(self, body: str) -> str:
        """Return a script's text without its results' places, and without what it writes there and reads again."""
        bare = ARGUMENT.sub(self._but_noise, body)
        puts = list(_PUTS.finditer(bare))
        put = {os.path.basename(word) for found in puts for word in _FILE.findall(found[0])[-1:]}
        left = _FILE.sub(lambda found: "" if os.path.basename(found[0]) in put else found[0], _PUTS.sub(" ", bare))
        return "\n".join([left, *(found["of"] for found in puts if found["of"])])

    def words(self, arguments: Sequence[str]) -> list[str]:
        """Return a script's own arguments, of which any number counts, the bare ones by their place."""
        found: list[str] = []
        name = ""
        for number, word in enumerate(arguments, 1):
            flag, equals, value = word.partition("=")
            if name and not word.startswith("--") and not (word.startswith("-") and not IS_NUMBER.fullmatch(word)):
                found.append(self.one(name, word))
                name = ""
            elif equals and not value.startswith("="):
                found.append(f"{flag}={self.one(flag, value)}")
                name = ""
            elif word.startswith("-"):
                found.append(word)
                name = word
            else:
                found.append(self.one(f"argument {number}", word))
        return found

    def one(self, name: str, value: str, plain: Callable[[str], str] | None = None) -> str:
        """Return what stands for one value in the family; ``plain`` is of what is neither a number nor noise."""
        bare = value.strip("\"'")
        if is_noise(name, bare) and not _SEVERAL.search(bare):
            if is_label(name):
                self.labels.add(bare)
            # How many seeds there are counts: they may run at once.
            return (
                self._plain(value)
                if self._is_used(name)
                else "*" * (1 + bare.count(",") if re.fullmatch(_LIST, bare) else 1)
            )
        if IS_NUMBER.fullmatch(bare) and not is_choice(name):
            self.names.append(name.lstrip("-+$").encode("ascii", "replace").decode())
            # As a number, so that 64 and 64.0 are one; written shortly.
            self._values.append(f"{float(bare.replace('_', '')):.12g}")
            return "#"
        return (plain or self._plain)(value)

    def _is_used(self, name: str) -> bool:
        return name.lstrip("$") in self.used

    def _but_noise(self, found: re.Match[str]) -> str:
        name, value = found["name"], found["value"].strip("\"'")
        only_tells_apart = is_noise(name, f"/{value}" if value.startswith("$") else value)
        return "" if only_tells_apart and not self._is_used(name) else found[0]

    def _replace(self, found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        return f"{name}={self.one(name, value)}"

    def _plain(self, text: str) -> str:
        for folder in self._folders:
            text = text.replace(f"{folder}/", "").replace(folder, ".")
        text = _RESULTS_PATH.sub("*", _SHOWN_AT.sub(r"\1*", text))
        text = OF_A_SEED.sub("seed*", text)
        return re.sub(_DATE, "@", text) if "20" in text else text
