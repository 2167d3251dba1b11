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

from slurm_colloc.history.named_files import files_of

# Before the family of what is known by its command alone.
BY_COMMAND = "command-"
_NO_QUOTES = str.maketrans("", "", "\"'")
_MOST_NUMBERS, _LONGEST = 24, 140
_NUMBER = r"[-+]?\d+(?:_\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?"
_IS_NUMBER = re.compile(_NUMBER)
# "--name value", "--name=value", "NAME=value", "a.b=value", and a short option's "-b 64".
_ARGUMENT = re.compile(
    r"(?P<name>(?<![\w.-])(?:--?[A-Za-z][\w.-]*|\+{0,2}[A-Za-z_][\w.]*(?==)))(?P<sep>=|[ \t]+)"
    r"(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|<>()\"'-][^\s;&|<>()\"']*|-\d[^\s;&|<>()]*)"
)
_WORDS_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Za-z][a-z]*|\d+")
# Of use to few submissions, and so compiled (100 us each) by the first that needs them.
_DATE = (
    r"(?<!\d)20[0-3]\d[-_./]?(?:0[1-9]|1[0-2])[-_./]?(?:0[1-9]|[12]\d|3[01])"
    r"(?:[-_T. ]?[0-2]\d[-_:.h]?[0-5]\d(?:[-_:.m]?[0-5]\d)?)?(?!\d)"
)
# Of a here-document: it starts as a comment does.
_DEFINES = re.compile(r"#\s*define\s")
_SAYS = re.compile(r"(?:echo|printf)\b[^>|`(;&]*$|(?:date|hostname|nvidia-smi|env|pwd|set\s+-[a-z]+)\s*$")
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_ASSIGNED = r"(?:^|[\s;(])(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=|\b(?:for|read(?:\s+-\w+)*)\s+(\w+)"
_FILE = re.compile(r"(?<![\w./~+-])[\w./~+-]*\w\.\w+")
# Where something is only put, or looked for: what a copy is made of stays.
_PUTS = re.compile(
    r"(?m)>>?\s*[^\s;&|]+|\btee\s+(?:-a\s+)?[^\s;&|]+|\b(?:mkdir|rm|touch)\b[^;&|\n]*"
    r"|\[\[?\s+!?\s*-[defrswxL]\s+[^\s\]]+"
    r"|\b(?:cp|mv|rsync|ln)\b(?P<of>[^;&|\n]*?)\s+[^\s;&|]+(?=\s*(?:$|[;&|]))"
)
_VALUE = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|]*")
_LONGER = re.compile(r"\$\{?\w+\}?:(?![-=+?])|:\$\{?\w+\}?")
_OWN_ENVIRONMENT = r"\b(?:activate|apptainer|singularity|enroot|docker|podman|--container-image|conda\s+run)\b"

_CONFIG_ENDINGS = (".py", ".yaml", ".yml", ".json", ".toml")

# What tells runs of one job apart and nothing else: where its results go, what it is called, its seed and its port.
_NOISE = frozenset(
    {"out", "output", "outdir", "outputs", "savedir", "logdir", "logfile", "ckptdir", "tag", "tags", "notes", "comment"}
    | {"seed", "seeds", "rng", "port", "timestamp"}
)
# Of these, what no other word could make use of.
_ALWAYS_NOISE = frozenset({"seed", "seeds", "rng", "port", "timestamp"})
_HOW_MANY = frozenset({"n", "num", "number"})
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
    | {"index", "threads", "smoothing", "clip", "tol", "lambda", "ratio", "prob", "p", "max_steps"}
)
# Beside one of these they may: --mask-ratio, --sample-rate, --clip-size.
_NOT_INERT = frozenset({"mask", "masking", "mlp", "ffn", "expand", "expansion", "sample", "sampling", "frame", "size"})
_RANKS = frozenset({"node", "local", "global", "machine"})
# As a whole: of a rollout kept on the GPU, of a low-rank adapter or of anything.
_MAY_SIZE = tuple(map(frozenset, ({"num", "steps"}, {"n", "steps"}, {"num", "step"}, {"n", "step"}, {"p"})))
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
    handed: Collection[str] = (),
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
        handed: variables that were set for this job alone, which count although only its program may name them.
    """
    variables = environ or {}
    reader = _Reader((folder, variables.get("HOME", "")))
    body = _body(script.decode(errors="surrogateescape"))
    lines = reader.text(body)
    words = reader.words(script_args)
    outside = _from_outside(body, variables)
    alone = sorted(_not_everybodys(handed) & set(variables) - _set_first(body) - set(outside)) if handed else []
    given = [reader.one(f"${name}", variables[name]) for name in (*outside, *alone)] + alone
    said = "\n".join([body, " ".join(script_args)])
    files = files_of(said, reader.reads(said), folder, variables, ran_s, _is_noise)
    settings = ["settings", files.settings] if files.settings else []
    known_by = [str(gpu_count), *told_apart, lines, *words, "$", *given, _environment(body, variables), *settings]
    family = digest(_joined(known_by))
    return Signature(f"{family}.{reader.written()}~{files.program}~{_folder_key(folder)}", tuple(reader.names))


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


def names_from_outside(script: bytes, variables: Collection[str] | None = None) -> list[str]:
    """Return the variables, of these or of any, whose values at the submission make a script another job."""
    body = _body(script.decode(errors="surrogateescape"))
    return _from_outside(body, set(_REFERENCE.findall(body)) if variables is None else variables)


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
    if words & (_GROWS | _NOT_INERT) or words in _MAY_SIZE:
        return False
    return bool(words & _INERT or ("rank" in words and words & _RANKS))


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
    is_number = bool(_IS_NUMBER.fullmatch(value))
    if words & _SIZES or (is_number and words & _HOW_MANY):
        return False
    only_a_name = words - {"name", "id"}
    if words & _NOISE or (only_a_name != words and only_a_name <= _ONLY_A_NAME):
        return True
    # What is to be run, not where it leaves its results: --exp_file exps/large.py, experiment=vision/large.
    is_choice = value.endswith(_CONFIG_ENDINGS) or (
        bool(words & {"exp", "experiment"}) and name.islower() and not name.startswith("-") and value[:1] not in "/.~$"
    )
    return bool(words & _NOISE_OR_SWITCH) and (is_number or ("/" in value and not is_choice))


def _body(text: str) -> str:
    """Return the lines of a script that do something, each on one line."""
    lines = []
    for number, line in enumerate(text.replace("\\\n", " ").splitlines()):
        bare = " ".join(line.split())
        is_comment = bare.startswith("#") and not _DEFINES.match(bare) and (number or not bare.startswith("#!"))
        if not bare or _SAYS.match(bare) or is_comment:
            continue
        lines.append(bare)
    return "\n".join(lines)


def _from_outside(body: str, variables: Collection[str]) -> list[str]:
    """Return the variables that the script is handed: those it names, does not set, and not everybody has."""
    named = _not_everybodys(set(_REFERENCE.findall(body)) & set(variables))
    if not named:
        return []
    return sorted(named - _set_first(body))


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
    value = _VALUE.match(rest)
    return value is not None and name in _REFERENCE.findall(_LONGER.sub("", value[0]))


def _environment(body: str, variables: Mapping[str, str]) -> str:
    """Return the environment that is active at the submission, where the script chooses none itself."""
    active = variables.get("VIRTUAL_ENV") or variables.get("CONDA_DEFAULT_ENV") or ""
    if not active or re.search(_OWN_ENVIRONMENT, body):
        return ""
    return active.rstrip("/").rpartition("/")[2]


class _Reader:
    """Takes the numbers out of words, and what only tells runs apart."""

    def __init__(self, folders: Sequence[str]) -> None:
        self.names: list[str] = []
        self._values: list[str] = []
        self._used: frozenset[str] = frozenset()
        self._folders = [folder.rstrip("/") for folder in folders if len(folder.rstrip("/")) > 1]

    def written(self) -> str:
        text = "_".join(self._values)
        if len(self._values) > _MOST_NUMBERS or len(text) > _LONGEST:
            return f"x{digest(text.encode())}"
        return text

    def text(self, body: str) -> str:
        # A name or a folder in a variable may choose what runs: a model, a file; each may be part of another.
        for _ in range(4):
            asked = _REFERENCE.findall(_PUTS.sub(r"\g<of>", _ARGUMENT.sub(self._but_noise, body)))
            if self._used.issuperset(asked):
                break
            self._used |= frozenset(asked)
        return self._plain(_ARGUMENT.sub(self._replace, body))

    def reads(self, body: str) -> str:
        """Return a script's text without its results' places, and without what it writes there and reads again."""
        bare = _ARGUMENT.sub(self._but_noise, body)
        put = {os.path.basename(word) for found in _PUTS.finditer(bare) for word in _FILE.findall(found[0])[-1:]}
        return _FILE.sub(
            lambda found: "" if os.path.basename(found[0]) in put else found[0], _PUTS.sub(r"\g<of>", bare)
        )

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
            return self._plain(value) if self._is_used(name) else "*"
        if _IS_NUMBER.fullmatch(bare):
            self.names.append(name.lstrip("-+$").encode("ascii", "replace").decode())
            # As a number, so that 64 and 64.0 are one; written shortly.
            self._values.append(f"{float(bare.replace('_', '')):.12g}")
            return "#"
        return self._plain(value)

    def _is_used(self, name: str) -> bool:
        return name.lstrip("$") in self._used and not _words(name) & _ALWAYS_NOISE

    def _but_noise(self, found: re.Match[str]) -> str:
        name, value = found["name"], found["value"].strip("\"'")
        is_noise = _is_noise(name, f"/{value}" if value.startswith("$") else value)
        return "" if is_noise and not self._is_used(name) else found[0]

    def _replace(self, found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        return f"{name}={self.one(name, value)}"

    def _plain(self, text: str) -> str:
        for folder in self._folders:
            text = text.replace(f"{folder}/", "").replace(folder, ".")
        return re.sub(_DATE, "@", text) if "20" in text else text
