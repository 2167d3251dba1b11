# SPDX-License-Identifier: Apache-2.0
"""Which Python program a batch script runs, and how: read from the text, for csub --trace alone.

Whatever could make it another program, or run it in another environment than that of the submission, is a reason not
to trace.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_CHOOSES = re.compile(r"^(?:source|\.|conda|mamba|micromamba|module|ml|spack|load_module)$")
_CONTAINER = re.compile(r"\b(?:apptainer|singularity|enroot|docker|podman|charliecloud|ch-run|shifter)\b|--container-")
_FLOW = frozenset({"for", "while", "until", "if", "case", "function", "select", "eval", "cd", "pushd", "exec", "trap"})
_SILENT = frozenset(
    {"echo", "printf", "set", "export", "mkdir", "hostname", "date", "nvidia-smi", "ulimit", "pwd", "env", "true"}
    | {"wait", "sleep", "unset", "umask", "cat", "ls", "rm", "cp", "touch", "time", "free", "lscpu", "nproc", "sync"}
    | {"exit"}
)
_PYTHON = re.compile(r"(?:^|/)python(?:3(?:\.\d+)?)?$")
_ASSIGNS = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*|[0-9@*])\}|([A-Za-z_]\w*|[0-9@*]))")
_OPERATORS = frozenset({";", "&&", "&", "||"})
_ALONE = {"SLURM_JOB_ID": "0", "SLURM_JOBID": "0", "SLURM_NTASKS": "1", "SLURM_NNODES": "1", "SLURM_PROCID": "0"}
_ALONE.update(SLURM_LOCALID="0", SLURM_NODEID="0", SLURM_CPUS_PER_TASK="1", SLURM_JOB_NUM_NODES="1", SLURM_GPUS="1")
_ALONE.update(SLURM_JOB_NAME="job", SLURM_SUBMIT_DIR=".", SLURM_TMPDIR="/tmp", CUDA_VISIBLE_DEVICES="0")  # noqa: S108
# What torchrun and accelerate tell a program that has no others beside it.
_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
_LAUNCHERS = frozenset({"torchrun", "accelerate", "torch.distributed.run", "torch.distributed.launch"})
_LAUNCH_FLAGS = frozenset(
    {"--standalone", "--no_python", "--use_env", "--multi_gpu", "--no-python", "--use_deepspeed", "--use_fsdp", "--cpu"}
)


class Program(NamedTuple):
    """How to run a job's program: the Python, its script or ``-m module`` with arguments, variables set for it."""

    python: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]


class _Unclear(Exception):
    pass


def find_program(text: str, arguments: Sequence[str], environ: Mapping[str, str], python: str = "") -> Program | str:
    """Return the one Python program of a script, or why it is not certain.

    Args:
        text: the script, of a shell.
        arguments: its own.
        environ: of the submission.
        python: the Python to run it by, whatever environment the script chooses; empty: that of PATH.
    """
    try:
        return _find(text, arguments, environ, python)
    except _Unclear as error:
        return str(error)


def _find(text: str, arguments: Sequence[str], environ: Mapping[str, str], python: str) -> Program | str:
    variables = {**environ, **_ALONE}
    own: dict[str, str] = {}
    found: list[tuple[str, list[str], dict[str, str]]] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        for words in _commands(line):
            exported = words[0] == "export"
            expanded = [part for word in words[exported:] for part in _expand(word, variables, arguments)]
            set_here, rest = _assigned(expanded)
            if not rest or exported:
                variables.update(set_here)
                own.update(set_here)
                continue
            command = _command(rest, bool(python))
            if command is not None:
                told = _RANK if _LAUNCHERS & set(rest) else {}
                found.append((*command, {**own, **set_here, **told}))
    if len(found) != 1:
        return f"it runs {len(found)} Python programs, not one" if found else "it runs no Python program"
    [(name, argv, given)] = found
    path = _on_path(python or name, variables.get("PATH", ""))
    if path is None:
        return f"there is no '{python or name}'"
    return Program(path, tuple(argv), given)


def _commands(line: str) -> list[list[str]]:
    """Return the commands of one line as words; what is behind a pipe or goes to a file does not count."""
    if "$(" in line or "`" in line or "<<" in line:
        if re.match(r"\s*(?:echo|printf|export\s+\w+=|\w+=)", line) and not re.search(r"\bpython|torchrun", line):
            return []
        raise _Unclear("its script takes words from the output of a command, or reads a text of its own")
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        words = list(lexer)
    except ValueError as error:
        raise _Unclear(f"its script cannot be read: {error}") from error
    commands: list[list[str]] = [[]]
    silent = False
    for number, word in enumerate(words):
        if word in _OPERATORS:
            commands.append([])
            silent = False
        elif word in ("|", "|&"):
            silent = True
        elif word.startswith((">", "<", "&>")):
            if commands[-1] and commands[-1][-1] in ("1", "2"):
                commands[-1].pop()
            silent = True
        elif word in ("(", ")", "{", "}", "!") or (set(word) <= set("();")):
            raise _Unclear("its script groups commands")
        elif not silent:
            commands[-1].append(word)
        elif words[number - 1].startswith((">", "<", "&>")) and "|" not in words[:number]:
            silent = False
    return [command for command in commands if command]


def _expand(word: str, variables: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    if word in ("$@", "$*", "${@}", "${*}"):
        return list(arguments)

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name.isdigit():
            return arguments[int(name) - 1] if 0 < int(name) <= len(arguments) else ""
        if name not in variables:
            raise _Unclear(f"what '${name}' holds is not known before the job runs")
        return variables[name]

    expanded = _VARIABLE.sub(value, word)
    if "${" in expanded:
        raise _Unclear(f"what '{word}' holds is not known before the job runs")
    return [expanded] if expanded else []


def _assigned(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    found: dict[str, str] = {}
    for number, word in enumerate(words):
        match = _ASSIGNS.fullmatch(word)
        if not match:
            return found, list(words[number:])
        found[match[1]] = match[2]
    return found, []


def _command(words: list[str], python_given: bool) -> tuple[str, list[str]] | None:
    """Return the Python and what it is to run; None of a command that is none and does not matter."""
    if _CONTAINER.search(" ".join(words)):
        raise _Unclear("it runs in a container")
    name = words[0]
    if _CHOOSES.match(name):
        if python_given:
            return None
        raise _Unclear(f"its script chooses an environment ('{name}'); give its Python by --trace-python=PATH")
    if name in _FLOW:
        raise _Unclear(f"its script has '{name}', whose course is not followed")
    if name in ("srun", "nohup", "time", "stdbuf", "taskset", "numactl", "env"):
        rest = list(words[1:])
        while rest and not (_PYTHON.search(rest[0]) or rest[0] in ("torchrun", "accelerate")):
            rest.pop(0)
        if not rest:
            return None
        words = rest
        name = words[0]
    if name == "torchrun":
        return "python3", _launched(words[1:])
    if name == "accelerate":
        return ("python3", _launched(words[2:])) if words[1:2] == ["launch"] else None
    if _PYTHON.search(name):
        argv = words[1:]
        while argv and argv[0] in ("-u", "-O", "-B", "-s"):
            argv.pop(0)
        if argv[:1] == ["-W"]:
            argv = argv[2:]
        if argv[:1] == ["-m"] and argv[1:2] in (["torch.distributed.run"], ["torch.distributed.launch"]):
            return name, _launched(argv[2:])
        if not argv or (argv[0].startswith("-") and argv[0] != "-m"):
            raise _Unclear(f"what '{' '.join(words[:2])}' runs is no file")
        return name, argv
    if name in _SILENT or "python" not in " ".join(words):
        return None
    raise _Unclear(f"'{name}' is not known")


def _launched(words: Sequence[str]) -> list[str]:
    """Return what a launcher of processes runs, if it starts one."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        flag, equals, value = rest.pop(0).partition("=")
        if flag in _LAUNCH_FLAGS or equals or flag in ("-m", "--module"):
            if flag in ("-m", "--module") and not equals:
                return ["-m", *rest]
        elif rest:
            value = rest.pop(0)
        if flag.replace("_", "-") in ("--nproc-per-node", "--num-processes") and value not in ("1", "gpu", "auto"):
            raise _Unclear(f"it starts {value} processes")
    if not rest:
        raise _Unclear("what its launcher starts is not clear")
    return rest


def _on_path(name: str, path: str) -> str | None:
    places = [name] if "/" in name else [os.path.join(folder or ".", name) for folder in path.split(":")]
    return next(
        (os.path.abspath(place) for place in places if os.path.isfile(place) and os.access(place, os.X_OK)), None
    )
