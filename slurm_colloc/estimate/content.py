# SPDX-License-Identifier: Apache-2.0
"""The kind of a file by its name (code, settings, data, output of a run), and the part of it that matters for a job.

That part is without comments, messages and labels of runs.
"""

import json
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache, partial

from slurm_colloc.estimate.seeds_and_sizes import IS_NUMBER, is_label, is_noise, is_rate, word_sets

# Endings of names, in small letters; and other words.
_ENDINGS = word_sets(
    {
        "c": "c cc cpp cxx cu cuh h hh hpp hxx hip inl cl glsl comp",
        "fortran": "f f90 f95",
        "built": "rs go java kt scala cs swift zig wgsl metal",
        # A text in these may well hold "/*", as a pattern of paths does.
        "scripted": "js mjs cjs jsx ts mts tsx",
        "prose": "qmd rmd",
        "shell": "sh bash zsh ksh sbatch slurm pbs",
        "other code": "py pyx r jl m lua ipynb",
        "settings": "yaml yml json jsonc toml ini cfg conf config gin env properties xml mk cmake in inp lmp mdp top"
        " itp namd mdin nml smk rules jinja j2 tcl just jsonnet libsonnet pbtxt prototxt hocon",
        # Only runs write these.
        "results": "log out err o pyc lock xtc trr dcd edr cpt nc html md rst tmp png jpg jpeg gif svg pdf cache swp"
        " bak",
        # No other plain word begins a line that only tells; python does where an option or a word of conda's follows.
        "tellers": "echo printf date hostname pwd uname which ls free df lscpu whoami uptime id sleep head tail grep"
        " sort wc cat squeue scontrol module shopt ulimit umask env printenv python python2 python3 nvcc gcc conda"
        " mkdir",
        "weights": "safetensors bin pt pth ckpt gguf onnx h5",
        "keyed": "yaml yml json toml ini cfg conf env",
        "levels": "debug info warn warning error critical",
        "caches": "tmp __pycache__ node_modules site-packages wandb mlruns",
    }
)
C_LIKE, SHELL, WEIGHTS = _ENDINGS["c"], _ENDINGS["shell"], _ENDINGS["weights"]
COMPILED = C_LIKE | _ENDINGS["fortran"] | _ENDINGS["built"]
_CODE = COMPILED.union(SHELL, *map(_ENDINGS.__getitem__, ("scripted", "prose", "other code")))
WRITTEN_BY_PROGRAMS = frozenset({"json", "xml"})
_SETTINGS_NAMES = (
    r"(?:GNU)?[Mm]akefile|[Ss]nakefile|\.?[Jj]ustfile|Rakefile|INCAR|POSCAR|KPOINTS|in\..+|model\.xyz"
    r"|\w+(?:Dict|Properties)|fv\w+|inputs"
)
# These are nobody's but the tools' and the packages'; a job that needs one names it.
OF_TOOLS = (
    r"pyproject\.toml|setup\.(?:py|cfg)|(?:Julia)?Manifest\.toml|environment\.ya?ml|tox\.ini|package(?:-lock)?\.json"
)
# Settings that lie with weights and are read with them.
_BESIDE_WEIGHTS = r"(?i)[\w.-]*(?:config|index|param|args|cfg|settings)[\w.-]*\.(?:json|ya?ml|toml)"
CACHES = _ENDINGS["caches"]
RESULTS_FOLDERS = (
    r"(?i)logs?|.*[_-]logs?|outputs?|results?|runs?|checkpoints?|ckpts?|multirun|artifacts|work_dirs|tensorboard"
    r"|saves?|executed"
)
# Unless something names them.
ASIDE = r"tests?|docs?|examples?|notebooks?|analysis|figures?|plots?|assets|static|ci"
_OF_NAMES = bytes(c if chr(c).isalnum() or c in b"_.+" or c > 127 else 95 if c == 45 else 32 for c in range(256))
_OF_PATHS = bytes(c if chr(c).isalnum() or c in b"_.+-/~" or c > 127 else 32 for c in range(256))
_PART = rb"[^\W\d_]+|\d+"


@cache
def ending_of(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name else ""


@cache
def kind_of(name: str) -> str:
    """Return whether a file is code, settings, data, or what a run left behind, by its name."""
    ending = ending_of(name)
    if ending in _CODE:
        return "code"
    if ending in _ENDINGS["settings"] or re.fullmatch(_SETTINGS_NAMES, name):
        return "settings"
    return "results" if ending in _ENDINGS["results"] else "data"


def names_in(content: bytes) -> set[bytes]:
    """Return the words of a text that may name files; those with dots in parts, too."""
    words = set(content.translate(_OF_NAMES).split())
    dotted = [word for word in words if b"." in word]
    if dotted:
        words.update(word.strip(b".") for word in dotted)
        words.update(b".".join(dotted).split(b"."))
    if b"*." in content:
        words.update(re.findall(rb"\*\.\w+", content))
    return words


def elsewhere(content: bytes) -> set[str]:
    """Return the code and settings, and folders from the one above, that a text names elsewhere, or hidden: all else
    beneath the job's folder is looked at anyway.
    """
    text = b" " + content.translate(_OF_PATHS)
    # Most words begin otherwise, and are none by themselves here.
    words = {mark + rest.partition(b" ")[0] for mark in (b"/", b"~", b".") for rest in text.split(b" " + mark)[1:]}
    paths = {word.decode(errors="surrogateescape").rstrip("./") for word in words if not word.startswith(b"//")}
    return {word for word in paths if word.startswith(("../", "~/")) or word.count("/") > 1 or is_read_by_name(word)}


def is_read_by_name(path: str) -> bool:
    """Return whether a file is code or settings by its name."""
    return kind_of(path.rpartition("/")[2]) in ("code", "settings")


def is_beside_weights(name: str) -> bool:
    return bool(re.fullmatch(_BESIDE_WEIGHTS, name))


@cache
def as_word(name: str) -> bytes:
    return name.encode(errors="surrogateescape").replace(b"-", b"_")


def is_named(name: str, words: Collection[bytes], parts_of: Collection[bytes] = ()) -> bool:
    """Return whether a file's name, without its ending, is among words, or is made up of others."""
    whole, stem, parts = _parts(name)
    return stem in words or whole in words or (len(parts) > 1 and all(map(parts_of.__contains__, parts)))


@cache
def _parts(name: str) -> tuple[bytes, bytes, list[bytes]]:
    whole = as_word(name)
    stem = whole.rpartition(b".")[0] or whole
    return whole, stem, re.findall(_PART, stem)


# Each begins with a letter that is rare where it can: a text is searched ten times as fast.
_READ_BY_MACHINES = rb"(?![ \t]*(?:include|define|undef|if|ifdef|ifndef|elif|else|endif|pragma|import)\b)"
_COMMENT_LINE = rb"[ \t]*+#" + _READ_BY_MACHINES
# A comment behind code begins only where no quote follows: it could be within a text.
_COMMENT = rb"(?m)#(?<=[ \t]#)" + _READ_BY_MACHINES + rb"[^\n\"']{0,200}$"
_C = rb"(?m)^[ \t]*+//[^\n]*|(?<=[;{})])[ \t]{0,40}//[^\n\"]{0,200}$"
# Patterns as text are compiled where one is needed: few files of a kind are read at a submission.
_OTHER_COMMENTS = {
    **dict.fromkeys((*C_LIKE, *_ENDINGS["built"], *_ENDINGS["scripted"]), _C),
    **dict.fromkeys((*_ENDINGS["fortran"], "nml"), rb"(?m)^[ \t]*+![^\n]*"),
    **dict.fromkeys(("mdp", "top", "itp", "ini", "cfg"), rb"(?m)^[ \t]*+;[^\n]*|;[^\n\"']{0,200}$"),
    "m": rb"(?m)^[ \t]*+%[^\n]*|(?<=;)[ \t]{0,40}%[^\n']{0,200}$",
    "lua": rb"(?m)^[ \t]*+--[^\n]*",
}
# A program says something by these and does nothing else.
_MESSAGE = (
    rb"[ \t]*+(?:print|println|cat|message|disp|f?printf|log(?:ger|ging)?\.(?:debug|info|warning))[ \t]*\([^()*@]*\);?$"
)
# Three, since one of them all would be tried at each letter.
_OWN_PRINTS = rb"print(?<=\bprint)\s*=[^=]", rb"as(?<=\bas)\s+print\b", rb"def(?<=\bdef)\s+print\b"
# A setting on a line of its own.
_SETTING = rb"(?m)^([ \t\"'-]*+(?:export[ \t]++)?)([\w.+-]{1,80}+)([\"']?[ \t]*+[:=][ \t]*+)([^\n]{1,400})$"
_BLANKS = rb"(?<=\S)[ \t]+"
_RUN_NUMBER = (
    rb"(?i)((?<![a-z])(?:seed|port|(?:log|print|save|eval)_(?:interval|freq|every))[\"']?(?:[ \t]*+[:=][ \t]*+|[ \t]++)"
    rb"|velocity[ \t]+\S{1,40}[ \t]+create[ \t]+\S{1,40}[ \t]+)\d+\b"
)
_OF_RUNS = (b"seed", b"_interval", b"_freq", b"_every", b"velocity")
# Nearly each file imports something.
_PORT = rb"port(?<![a-z]port)[\"']?(?:[ \t]*+[:=][ \t]*+|[ \t]++)\d"
# A function, a class or a module says something of itself.
_TEXT = rb"(?:\"\"\"[^\"]*(?:\"(?!\"\")[^\"]*)*\"\"\"|'''[^']*(?:'(?!'')[^']*)*''')[ \t]*$"
_DOCSTRING = rb"(?m):[ \t]*\n\s{0,40}" + _TEXT
_FIRST_DOCSTRING = rb"(?m)\A\s*+" + _TEXT
# A line of a here-document that starts as a comment does.
_DEFINES = r"#\s*define\s"
# Commands that only tell: a job's node and time, the programs and files that are there.
_TELLS = (
    r"\s*(?:(?:echo|printf|date|hostname|nvidia-smi|pwd|uname|which|ls|free|df|lscpu|whoami|uptime|id|sleep"
    r"|head|tail|grep|sort|wc|cat|squeue|scontrol\s+show|module\s+(?:list|purge)|shopt|ulimit\s+-\w|umask\s+\d+)\b[^=:]*"
    r"|(?:env|printenv)(?:\s+[A-Z_]+)?|(?:python[\d.]*|nvcc|gcc|conda)\s+(?:--version|-V|list|info)"
    r"|(?:echo|printf|date|nvidia-smi|sleep)\b.*|mkdir\b[^$]*"
    r"|\w+=\1|)\s*".replace(r"\1", "\1")
)
_QUIETED = r"\d?>&\d|(?:\d|&)?>>?\s*/dev/null|\$\{\w+[^{}`]*\}|'[^']*'"
# Variables that say how much is logged.
_SAYS = (
    r"(?:PYTHON(?:UNBUFFERED|FAULTHANDLER|DONTWRITEBYTECODE)|JULIA_DEBUG|NCCL_DEBUG"
    r"|(?:\w+_)?(?:LOG_?LEVEL|VERBOSITY))=\w*"
)
_SETS = (
    r"set(?:\s+[-+][b-zA-Z]+|\s+[-+][b-zA-Z]*o\s+(?!allexport)\w+)+\s*"
    rf"|(?:export\s+)?(?:\b{_SAYS}\s*)+"
    r"|trap\s+(?:\"(?:echo|rm|date)\b[^\"'|;&]*\"|'(?:echo|rm|date)\b[^'|;&`(]*')\s+[\w\s]+"
)
# The output of a function, or of a whole block, is read by its caller.
_READS_TOLD = r"(?m)\w[ \t]*\(\s*\)|\bfunction\b|^[ \t]*(?:done|fi|[})])\s*[|>]"
_TO_ITS_FOLDER = r"cd\s+[\"']?\$\{?SLURM_SUBMIT_DIR\}?[\"']?(?:\s*\|\|\s*exit\b[\s\d]*)?"
_GOES = r"\b(?:cd|pushd)\s+(?![\"']?\$\{?SLURM_SUBMIT_DIR)"
# These start one program and say nothing of it.
_STARTS = (
    r"(?:exec (?=nice )|(?:/usr/bin/)?time (?:-[vp] )?(?=[^\s-])|nohup |stdbuf(?: -\w+)+ |ionice(?: -\w ?\d)* "
    r"|nice(?: -n ?-?\d+| -\d+)? |timeout (?:-\S+ )*[\d.]+[smhd]? "
    rf"|{_SAYS} "
    r"|srun(?: --unbuffered| -u)*(?: --ntasks=1| -n ?1)(?: --unbuffered| -u)* (?=[^\s-]))"
)
_INTERPRETER = r"(?<![\w./-])python3? (?:-[uBEs]+ |-W ?\w+ )*(?:\./)?(?=\S)"
_BESIDE = r"(?<=\s)[\"']?\$\{?SLURM_SUBMIT_DIR\}?/([\w./-]+)[\"']?"
_HERE = r"(?<!<)<<(?!<)-?\s*[\"']?(\w+)"
_MOST_TIDIED_BYTES, _MOST_OF_SHELL_BYTES = 256 * 1024, 32 * 1024
_BEHIND = r"\s#[^\"']{0,200}$"


def said(content: bytes, ending: str, labels: set[str] | None = None) -> bytes:
    """Return what decides of a file of this ending (without its dot): all of one so long that it takes a while.

    Names that settings give a run are added to ``labels``.
    """
    if len(content) > _MOST_TIDIED_BYTES or (ending in SHELL and len(content) > _MOST_OF_SHELL_BYTES):
        return content
    if ending == "ipynb":
        return _of_notebook(content)
    if ending in _ENDINGS["prose"]:
        content, ending = _of_report(content), "py"
    comment = _OTHER_COMMENTS.get(ending)
    if ending in C_LIKE:
        before, *rest = content.split(b"/*")
        content = before + b"".join(part.partition(b"*/")[2] for part in rest)
    content = (
        re.sub(comment, b"", content) if comment else re.sub(_COMMENT, b"", content) if b"#" in content else content
    )
    if ending in SHELL:
        content = shell_lines(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    lines = list(filter(None, map(bytes.rstrip, content.split(b"\n"))))
    if b"#" in content and ending not in C_LIKE:
        is_comment = re.compile(_COMMENT_LINE).match
        lines = [line for line in lines if not is_comment(line)]
    if ending not in _ENDINGS["keyed"] and not has_own_print(content):
        is_message = re.compile(_MESSAGE).match
        lines = [line for line in lines if line[-1] not in b");" or not is_message(line)]
    content = b"\n".join(lines)
    if ending == "py" and b"__doc__" not in content:
        content = re.sub(_DOCSTRING, b":", content)
        content = re.sub(_FIRST_DOCSTRING, b"", content).lstrip()
    if ending in _ENDINGS["keyed"]:
        content = re.sub(
            _BLANKS, b" ", re.sub(_SETTING, partial(_but_noise, set() if labels is None else labels), content)
        )
    small = content.lower()
    counts_runs = any(name in small for name in _OF_RUNS) or re.search(_PORT, small)
    return re.sub(_RUN_NUMBER, rb"\1*", content) if counts_runs else content


def has_own_print(content: bytes) -> bool:
    """Return whether a program has another function of the name print."""
    return b"print" in content and any(re.search(pattern, content) for pattern in _OWN_PRINTS)


def _but_noise(labels: set[str], match: re.Match[bytes]) -> bytes:
    name = match[2].decode(errors="replace")
    value = match[4].decode(errors="replace").strip(" \t\r,").strip("\"'")
    if not value or value[0] in "[{|>&":
        return match[0]
    if is_label(name):
        labels.add(value)
    return b"%s%s=*" % (match[1], match[2]) if says_nothing(name, value) else match[0]


def only_seeds(name: str, texts: Iterable[bytes]) -> bool:
    """Return whether programs ask for a variable only to seed random numbers, and to name what they write."""
    for text in (text for text in texts if name.encode() in text):
        names, seeds = {name.encode()}, 0
        for line in text.split(b"\n"):
            if names.isdisjoint(re.findall(_NAME, line)):
                continue
            if re.search(_SEEDS, line):
                seeds += 1
            # "i = int(os.environ[name])": the new name counts from here on.
            elif found := re.match(_ASSIGNED, line):
                names.add(found[1])
            else:
                return False
        if not seeds:
            return False
    return True


def says_nothing(name: str, value: str) -> bool:
    """Return whether a setting only tells runs apart, says how much is logged, or is a rate other than 0."""
    if name.lower().endswith("level") and value.lower() in _ENDINGS["levels"]:
        return True
    is_number = IS_NUMBER.fullmatch(value)
    return is_noise(name, value) or bool(is_rate(name) and is_number and float(value.replace("_", "")))


_NAME = rb"\w+"
_ASSIGNED = (
    rb"\s*(\w+)\s*(?:=|<-)\s*(?:int\(|as\.\w+\(|parse\(Int\w*,\s*)?(?:os\.environ(?:\.get)?[\[(]|os\.getenv\(|Sys\.getenv\(|ENV\[)"
    rb"[\w\"', ]*[\])]+\s*$"
)
_SEEDS = rb"(?i)(?:seed\w*|prngkey|\w*rng|randomstate|save\w*|print|write\w*|to_csv)[!\w.]*\s*\("


def _of_notebook(content: bytes) -> bytes:
    """Return the code of a notebook, without what running it wrote there."""
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        cells = json.loads(content)["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        return said("\n".join(code).encode(errors="surrogatepass"), "py")
    return content


def _of_report(content: bytes) -> bytes:
    """Return the head of a report, which may have parameters, and its code."""
    head, *parts = (b"\n" + content).split(b"\n```")
    head = head.partition(b"\n---")[2].partition(b"\n---")[0]
    return b"\n".join([head, *(part for part in parts[::2] if part.startswith(b"{"))])


def shell_lines(text: str) -> str:
    """Return the lines of a script that do something, each on one line."""
    lines, until = [], ""
    reads_told = re.search(_READS_TOLD, text)
    goes = re.search(_GOES, text)
    for number, line in enumerate(text.replace("\\\n", " ").splitlines()):
        bare = " ".join(line.split())
        bare = re.sub(_BEHIND, "", bare)
        is_comment = bare.startswith("#") and not re.match(_DEFINES, bare) and (number or not bare.startswith("#!"))
        if not bare or is_comment:
            continue
        if until:
            until = "" if bare == until else until
        elif match := re.search(_HERE, bare):
            until = match[1]
        elif (
            re.fullmatch(_SETS, bare)
            or (not goes and re.fullmatch(_TO_ITS_FOLDER, bare))
            or (not reads_told and _only_tells(bare))
        ):
            continue
        else:
            bare = _as_started(bare if goes or "SUBMIT_DIR" not in bare else re.sub(_BESIDE, r"\1", bare))
        lines.append(bare)
    return "\n".join(lines)


def _as_started(line: str) -> str:
    """Return a command without what starts it."""
    while match := re.match(_STARTS, line):
        line = line[match.end() :]
    # "-var seed 1" of LAMMPS sets the variable of that name.
    return re.sub(_INTERPRETER, "python ", re.sub(r"(?<= -var) (\w+) ", r".\1 ", line))


def _only_tells(line: str) -> bool:
    """Return whether each command of a line tells something to who reads the output, and none leaves anything."""
    program = line.partition(" ")[0]
    if "`" in line or line.startswith("#!") or (program.isalnum() and program not in _ENDINGS["tellers"]):
        return False
    bare, inside = re.sub(_QUIETED, "_", line), True
    while inside and (match := re.search(r"\$\(([^()]*)\)", bare)):
        inside = bool(re.match(r"date\b|hostname\b", match[1])) or _only_tells(match[1])
        bare = f"{bare[: match.start()]}\1{bare[match.end() :]}"
    bare = re.sub(r"\"[^\"]*\"", "_", bare)
    return (
        inside
        and not re.search(r"[<>(){}]|(?<!&)&(?!&)", bare)
        and all(re.fullmatch(_TELLS, one) for one in re.split(r"\|\|?|&&|;", bare))
    )
