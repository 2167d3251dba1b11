# SPDX-License-Identifier: Apache-2.0
"""What makes two submissions the same job, and what makes them relatives that differ in numbers.

Read from the text alone, by rules that docs/explanation/estimate.md lists. A signature is one word that can be a file's
name: ``FAMILY.VALUES~PROGRAM~FOLDER``. The family stands for everything but numbers; jobs of one family give the same
numbers the same names, in the same order.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

try:  # what hashlib would give, without the 4 ms that loading OpenSSL costs each submission
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

# Before the family of what is known by its command alone.
BY_COMMAND = "command-"
_NO_QUOTES = str.maketrans("", "", "\"'")
_PROGRAM_LIMIT_BYTES = 1024 * 1024
_MOST_NUMBERS, _LONGEST = 24, 140
_NUMBER = r"[-+]?\d+(?:_\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?"
_IS_NUMBER = re.compile(_NUMBER)
# "--name value", "--name=value", "NAME=value", "a.b=value", and a short option's "-b 64".
_ARGUMENT = re.compile(
    r"(?P<name>(?<![\w-])(?:--?[A-Za-z][\w.-]*|\+{0,2}[A-Za-z_][\w.]*(?==)))(?P<sep>=|[ \t]+)"
    r"(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|<>()\"'-][^\s;&|<>()\"']*|-\d[^\s;&|<>()]*)"
)
_WORDS_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Za-z][a-z]*|\d+")
_DATE = re.compile(r"20\d\d[-_./]?[01]\d[-_./]?[0-3]\d(?:[-_T. ]?[0-2]\d[-_:.h]?[0-5]\d(?:[-_:.m]?[0-5]\d)?)?")
_SAYS = re.compile(r"(?:echo|printf)\b[^>|`(]*$|(?:date|hostname|nvidia-smi|env|pwd|set\s+-[a-z]+)\s*$")
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_ASSIGNED = re.compile(
    r"(?:^|[\s;(])(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=|\b(?:for|read(?:\s+-\w+)*)\s+(\w+)"
)
_PROGRAM = re.compile(r"(?<![\w./-])([\w./~+-]*\w\.(?:py|jl|R|lua|m|sh))(?![\w/])")
_OWN_ENVIRONMENT = re.compile(
    r"\b(?:activate|apptainer|singularity|enroot|docker|podman|--container-image|conda\s+run)\b"
)

# What tells runs of one job apart and nothing else: where its results go, what it is called, its seed and its port.
_NOISE = frozenset(
    {"out", "output", "outdir", "outputs", "savedir", "logdir", "logfile", "ckptdir", "tag", "tags", "notes", "comment"}
    | {"seed", "seeds", "rng", "port", "timestamp"}
)
# Of these some are switches, and what stands behind them is another word: only a path or a number belongs to them.
_NOISE_OR_SWITCH = frozenset(
    {"save", "log", "logs", "logging", "logger", "result", "results", "wandb", "tensorboard", "tb", "mlflow"}
    | {"experiment", "exp", "trial"}
)
# A size whose name holds such a word as well: --output-size, --log-alpha.
_SIZES = frozenset(
    {"size", "dim", "dims", "channel", "channels", "feature", "features", "class", "classes", "length", "len", "width"}
    | {"height", "layer", "layers", "unit", "units", "hidden", "token", "tokens", "depth", "batch", "model", "dataset"}
)
_ONLY_A_NAME = frozenset({"run", "job", "project", "group", "session", "exp", "experiment", "trial", "wandb"})
# Numbers that change how long or how well a job runs, not what it needs of a GPU.
_INERT = frozenset(
    {"lr", "learning", "rate", "epoch", "epochs", "step", "steps", "iter", "iters", "iterations", "decay", "wd"}
    | {"momentum", "dropout", "warmup", "patience", "beta", "beta1", "beta2", "gamma", "eps", "epsilon", "temperature"}
    | {"alpha", "interval", "freq", "frequency", "every", "worker", "workers", "timeout", "fold", "split", "idx"}
    | {"index", "rank", "threads", "smoothing", "clip", "tol", "lambda", "ratio", "prob", "p", "max_steps"}
)
# Numbers of which more never needs less memory.
_GROWS = frozenset(
    {
        "batch",
        "bs",
        "b",
        "bsz",
        "seq",
        "sequence",
        "length",
        "len",
        "tokens",
        "hidden",
        "dim",
        "dims",
        "width",
        "height",
    }
    | {"layers", "depth", "channels", "img", "image", "resolution", "res", "crop", "embed", "embedding", "heads"}
    | {"atoms", "particles", "grid", "nx", "ny", "nz", "units", "filters", "vocab"}
)
# Variables of a session that a script may name without being another job for it.
_EVERYBODYS = frozenset(
    {"HOME", "USER", "LOGNAME", "PATH", "PWD", "OLDPWD", "SHELL", "TERM", "LANG", "HOSTNAME", "TMPDIR", "TMP", "TEMP"}
    | {"LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "SCRATCH", "WORK", "DISPLAY", "IFS", "UID", "RANDOM"}
    | {"SECONDS", "HOST", "OMP_NUM_THREADS", "MASTER_PORT", "MASTER_ADDR", "LOCAL_SCRATCH", "CONDA_PREFIX"}
)


class Signature(NamedTuple):
    """What a job is known by; ``names`` are those of its numbers, in the order of the values in ``text``."""

    text: str
    names: tuple[str, ...]


class Parts(NamedTuple):
    """A signature taken apart; ``values`` is None where there are more numbers than a file's name holds."""

    family: str
    values: tuple[float, ...] | None
    written: str
    program: str
    folder: str


def signature(
    script: bytes,
    script_args: Sequence[str],
    gpu_count: int,
    told_apart: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    folder: str = "",
    ran_s: float | None = None,
) -> Signature:
    """Return what submissions of one job have in common.

    Args:
        script: its text; lines of directives, comments and messages do not count.
        script_args: its own arguments.
        gpu_count: GPUs it asks for.
        told_apart: whatever else makes it another job.
        environ: what its environment will hold; the variables count that the script names and does not set.
        folder: where it will run; what is below is the same elsewhere.
        ran_s: when it ran, of a past job: a program that was changed since is not the one that ran, and not known.
    """
    variables = environ or {}
    reader = _Reader((folder, variables.get("HOME", "")))
    body = _body(script.decode(errors="surrogateescape"))
    lines = reader.text(body)
    words = reader.words(script_args)
    given = [reader.one(f"${name}", variables[name]) for name in _from_outside(body, variables)]
    family = digest(_joined([str(gpu_count), *told_apart, lines, *words, "$", *given, _environment(body, variables)]))
    program = _program(body, script_args, folder, ran_s)
    return Signature(f"{family}.{reader.written()}~{program}~{_folder_key(folder)}", tuple(reader.names))


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


def names_from_outside(script: bytes) -> list[str]:
    """Return the variables whose values at the submission make a script another job."""
    body = _body(script.decode(errors="surrogateescape"))
    return _from_outside(body, set(_REFERENCE.findall(body)))


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
    """Return whether two submissions are the same job: the same program, or none that could be read, in one folder."""
    if (one.family, one.written, one.program) != (other.family, other.written, other.program):
        return False
    return bool(one.program) or one.folder == other.folder


def is_relative(one: Parts, other: Parts) -> bool:
    """Return whether one job's runs say something of the other: only numbers differ, or the program was edited since.

    The same words in another folder with another program are another job.
    """
    return one.family == other.family and (one.folder == other.folder or one.program == other.program != "")


def is_inert(name: str) -> bool:
    """Return whether a number of this name changes nothing of what a job needs of a GPU."""
    words = _words(name)
    return bool(words & _INERT) and not words & _GROWS


def grows(name: str) -> bool:
    """Return whether more of a number of this name never needs less memory."""
    return bool(_words(name) & _GROWS)


def digest(text: bytes) -> str:
    """Return a key of 32 characters for a text."""
    return blake2b(text, digest_size=16).hexdigest()


def _short(text: str) -> str:
    return digest(text.encode(errors="surrogateescape"))[:8]


def _folder_key(folder: str) -> str:
    # The same folder, whether it was named with a slash at its end or not.
    return _short(folder.rstrip("/"))


def _joined(parts: Sequence[str]) -> bytes:
    # Length-prefixed, so that moving a character from one argument to the next makes another key.
    encoded = [part.encode(errors="surrogateescape") for part in parts]
    return b"".join(b"%d:" % len(part) + part for part in encoded)


def _words(name: str) -> frozenset[str]:
    return frozenset(map(str.lower, _WORDS_OF_NAME.findall(name)))


def _is_noise(name: str, value: str) -> bool:
    words = _words(name)
    if words & _SIZES:
        return False
    only_a_name = words - {"name", "id"}
    if words & _NOISE or (only_a_name != words and only_a_name <= _ONLY_A_NAME):
        return True
    return bool(words & _NOISE_OR_SWITCH) and ("/" in value or bool(_IS_NUMBER.fullmatch(value)))


def _body(text: str) -> str:
    """Return the lines of a script that do something, each on one line."""
    lines = []
    for number, line in enumerate(text.replace("\\\n", " ").splitlines()):
        bare = " ".join(line.split())
        if not bare or _SAYS.match(bare) or (bare.startswith("#") and (number or not bare.startswith("#!"))):
            continue
        lines.append(bare)
    return "\n".join(lines)


def _from_outside(body: str, variables: Collection[str]) -> list[str]:
    """Return the variables that the script is handed: those it names, does not set, and not everybody has."""
    named = set(_REFERENCE.findall(body)) & set(variables)
    named = {name for name in named - _EVERYBODYS if not name.startswith(("SLURM", "SBATCH", "CONDA", "MODULE"))}
    if not named:
        return []
    assigned = {name for pair in _ASSIGNED.findall(body) for name in pair}
    return sorted(named - assigned)


def _environment(body: str, variables: Mapping[str, str]) -> str:
    """Return the environment that is active at the submission, where the script chooses none itself."""
    if _OWN_ENVIRONMENT.search(body):
        return ""
    active = variables.get("VIRTUAL_ENV") or variables.get("CONDA_DEFAULT_ENV") or ""
    return active.rstrip("/").rpartition("/")[2]


def _program(body: str, script_args: Sequence[str], folder: str, ran_s: float | None) -> str:
    """Return a short key of the program's text, empty where none can be read."""
    found = _PROGRAM.search(body) or _PROGRAM.search(" ".join(script_args))
    if not found:
        return ""
    try:
        descriptor = os.open(os.path.join(folder, found[1]), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            if ran_s is not None and os.fstat(descriptor).st_mtime > ran_s:
                return ""
            content = os.read(descriptor, _PROGRAM_LIMIT_BYTES)
        finally:
            os.close(descriptor)
    except OSError:
        return ""
    return blake2b(content, digest_size=4).hexdigest()


class _Reader:
    """Takes the numbers out of words, and what only tells runs apart."""

    def __init__(self, folders: Sequence[str]) -> None:
        self.names: list[str] = []
        self._values: list[str] = []
        self._folders = [folder.rstrip("/") for folder in folders if len(folder.rstrip("/")) > 1]

    def written(self) -> str:
        text = "_".join(self._values)
        if len(self._values) > _MOST_NUMBERS or len(text) > _LONGEST:
            return f"x{digest(text.encode())}"
        return text

    def text(self, body: str) -> str:
        return self._plain(_ARGUMENT.sub(self._replace, body))

    def words(self, arguments: Sequence[str]) -> list[str]:
        """Return a script's own arguments, of which any number counts, the bare ones by their place."""
        found: list[str] = []
        name = ""
        for number, word in enumerate(arguments, 1):
            flag, equals, value = word.partition("=")
            if name and not word.startswith("--") and not (word.startswith("-") and not _IS_NUMBER.fullmatch(word)):
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

    def one(self, name: str, value: str) -> str:
        """Return what stands for one value in the family."""
        bare = value.strip("\"'")
        if _is_noise(name, bare):
            return "*"
        if _IS_NUMBER.fullmatch(bare):
            self.names.append(name.lstrip("-+$").encode("ascii", "replace").decode())
            # As a number, so that 64 and 64.0 are one; written shortly.
            self._values.append(f"{float(bare.replace('_', '')):.12g}")
            return "#"
        return self._plain(value)

    def _replace(self, found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        return f"{name}={self.one(name, value)}"

    def _plain(self, text: str) -> str:
        for folder in self._folders:
            text = text.replace(f"{folder}/", "").replace(folder, ".")
        return _DATE.sub("@", text)
