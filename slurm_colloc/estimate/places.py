# SPDX-License-Identifier: Apache-2.0
"""Places outside its folder that a job reads from: PATH, Python's search path, the habits of its tools."""

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import islice

from slurm_colloc.estimate.seeds_and_sizes import word_sets

_MOST_S = 0.05
_MOST_FOLDERS, _MOST_ENTRIES, _MOST_BYTES = 16, 4000, 64 * 1024
# A file that was changed so shortly before may be changed once more within one tick of the file system's clock.
_SETTLED_NS = 2_000_000_000
# A FIFO or a terminal in a file's place neither hangs a submission nor becomes its own.
_AT_ONCE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
# The mark of what is not there.
_NOWHERE = "-"
SYSTEM = re.compile(r"/(?:usr|opt|etc|s?bin|lib\w*|run|boot|dev|proc|sys)(?:/|$)")
_COMMAND = r"(?<![\w./$=-])[A-Za-z][\w.+-]*"
_PATH = r"\bPATH=[\"']?([^\s\"';]+)"
# A tool of this name reads these, unless told otherwise.
_HABITS = word_sets(
    {
        "poe pdm hatch pixi rye taskipy uv": "pyproject.toml",
        "julia": "Project.toml Manifest.toml",
        "just": "justfile Justfile .justfile",
        "task": "Taskfile.yml Taskfile.yaml",
        "npm npx yarn pnpm bun": "package.json",
        "invoke inv": "tasks.py",
        "doit": "dodo.py",
        "nox": "noxfile.py",
        "tox": "tox.ini",
        "fab": "fabfile.py",
        "rake": "Rakefile",
    }
)
_CONTAINERS = word_sets({"containers": "apptainer singularity docker podman nvidia-docker srun enroot"})["containers"]
# A folder bound into a container, and its place there: "-B code:/code:ro", "source=code,target=/code".
_BOUND = r"(?<![\w./~+:-])([\w./~+-]+):(/[\w./+-]*\w)"
_MOUNTED = r"\b(?:src|source)=([\w./~+-]+),(?:dst|destination|target)=(/[\w./+-]*\w)"
_ENVIRONMENT = (
    r"(?<![^\s\"';=])([^\s\"';=]+)/bin/(?:activate|python[\d.]*|torchrun|accelerate)\b"
    r"|\b(?:activate|conda\s+run\s+(?:-n|-p|--name|--prefix))\s+([^\s\"';&|]+)|\b(uv|poetry|pipenv|hatch)\s+run\b"
)
# Half a millisecond to compile, for the few scripts that have one of these.
_OF_ENVIRONMENTS = "activate", "conda", "uv", "poetry", "pipenv", "hatch", *map("/bin/{}".format, ("p", "t", "ac"))
_CONDAS = ("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "~/micromamba", "~/.conda")
# A module that leads to an editable package has its name and its folder so.
_MAPPED = r"'[\w.]+': '(/[^'\n]+)'"
# A program makes its search path longer by these.
LENGTHENERS = frozenset(b"path load_all addpath LOAD_PATH PYTHONPATH addsitedir".split())
_LONGER = rb"(?:sys\.path|load_all|addpath|LOAD_PATH|PYTHONPATH|package\.path|addsitedir)\b[^\n]{0,400}"
_QUOTED = rb"[\"']([^\"'\n]{1,200})[\"']"
_ABOVE = rb"\.parent\b|parents\[|dirname|pardir"

VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_GOES = r"cd\s+[\"']?([^\s\"'|;&]+)[\"']?(?:\s*(?:\|\|\s*exit\b.*|;))?"
_SETS_UP = r"#!|(?:module|ml|source|\.|conda|export|set|eval|unset|ulimit|umask|\w+=\S*$)"


class TooMuchError(Exception):
    """There is more to look through than a submission may wait for."""


def goes_to(body: str, folder: str, variables: Mapping[str, str]) -> str:
    """Return the folder that a script goes to before all else but the setting up of its environment."""
    values = {**variables, "PWD": folder, "SLURM_SUBMIT_DIR": folder}
    for line in body.split("\n"):
        if line.startswith("cd") and (match := re.fullmatch(_GOES, line)):
            path = VARIABLE.sub(lambda one: values.get(one[1] or one[2], one[0]), match[1])
            path = at_home(path, variables.get("HOME", "~"))
            return folder if "$" in path else os.path.normpath(os.path.join(folder, path))
        if not re.match(_SETS_UP, line):
            break
    return folder


def by_habit(text: str) -> list[str]:
    """Return what the tools that a script calls read though it names none of it, in its folder or in one above."""
    called = set(re.findall(_COMMAND, text))
    names = [name for tools, files in _HABITS.items() if not called.isdisjoint(tools.split()) for name in sorted(files)]
    return [f"{above}{name}" for name in names for above in ("./", "../", "../../")]


def defaults(variables: Mapping[str, str]) -> dict[bytes, list[str]]:
    """Return the files in a home that hold the defaults of what a job calls or imports, by its name."""
    cache = variables.get("HF_HOME") or f"{variables.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return {
        b"accelerate": [f"{cache}/accelerate/default_config.{ending}" for ending in ("yaml", "json")],
        b"deepspeed": ["~/.deepspeed_env"],
        b"keras": ["~/.keras/keras.json"],
        b"theano": ["~/.theanorc"],
    }


def as_outside(text: str, folder: str) -> str:
    """Return a text in which what a container has at a place of its own is where it lies outside."""
    for pattern in (_BOUND, _MOUNTED) if set(re.findall(_COMMAND, text)) & _CONTAINERS else ():
        for outside, inside in re.findall(pattern, text):
            path = os.path.join(folder, outside)
            text = re.sub(rf"(?<![\w./~:-]){re.escape(inside)}(?![\w.-])", lambda _, path=path: path, text)  # type: ignore[misc]
    return text


def is_of_tool(variable: str, text: str) -> bool:
    """Return whether a variable has the name of a tool before its own that a text calls: APPTAINER_BIND."""
    tool = variable.partition("_")[0].lower().removesuffix("env")
    tools = {"apptainer", "singularity"} if tool in ("apptainer", "singularity") else {tool}
    return bool(tools & set(re.findall(_COMMAND, text)))


def by_path(text: str, variables: Mapping[str, str], folder: str) -> Iterator[str]:
    """Yield the user's own programs that a script calls, as its PATH finds them.

    Raises:
        TooMuchError: it is too long or too slow.
    """
    until_s = time.monotonic() + _MOST_S
    called, home = set(re.findall(_COMMAND, text)), variables.get("HOME", "")
    written = re.findall(_PATH, text) if "PATH=" in text else []
    places = dict.fromkeys(":".join([*written, variables.get("PATH", "")]).split(":"))
    for number, place in enumerate(places):
        if number >= 4 * _MOST_FOLDERS:
            raise TooMuchError(place)
        path = os.path.join(folder, at_home(place.replace("${HOME}", "~").replace("$HOME", "~"), home))
        # An environment's own programs come and go with it.
        if not place or "$" in path or SYSTEM.match(path) or os.path.exists(f"{path}/activate"):
            continue
        yield from (os.path.join(path, name) for name in _entries(path, until_s) if name in called)


def import_roots(text: str, variables: Mapping[str, str], folder: str) -> list[str]:
    """Return the folders from which modules come beside the job's own: PYTHONPATH's, and those of editable packages.

    Raises:
        TooMuchError: there are too many, or finding them is too slow.
    """
    home, until_s = variables.get("HOME", ""), time.monotonic() + _MOST_S
    paths = ":".join(variables.get(name, "") for name in ("PYTHONPATH", "LD_LIBRARY_PATH"))
    roots = [one for one in paths.split(":") if one.startswith("/")]
    for environment in dict.fromkeys(islice(_environments(text, variables, folder), _MOST_FOLDERS)):
        libraries = f"{at_home(environment, home)}/lib"
        for library in _entries(libraries, until_s):
            if library.startswith("python"):
                roots += _editable(f"{libraries}/{library}/site-packages", until_s)
    folders = [root for root in dict.fromkeys(roots) if not SYSTEM.match(root)]
    if len(folders) > _MOST_FOLDERS:
        raise TooMuchError(folders[-1])
    return folders


def _environments(text: str, variables: Mapping[str, str], folder: str) -> Iterator[str]:
    for path, name, tool in re.findall(_ENVIRONMENT, text) if any(map(text.__contains__, _OF_ENVIRONMENTS)) else ():
        if path or "/" in name:
            yield path or name if (path or name).startswith("~") else os.path.join(folder, path or name)
        elif name:
            yield from (f"{conda}/envs/{name}" for conda in _CONDAS)
        elif tool:
            yield f"{folder}/.venv"
    yield from filter(None, (variables.get("VIRTUAL_ENV"), variables.get("CONDA_PREFIX")))
    yield "~/.local"


def _editable(packages: str, until_s: float) -> Iterator[str]:
    for name in _entries(packages, until_s):
        if name.endswith((".pth", ".egg-link")):
            yield from (line for line in _text(f"{packages}/{name}", until_s).split("\n") if line.startswith("/"))
        elif name.startswith("__editable__") and name.endswith(".py"):
            yield from map(os.path.dirname, re.findall(_MAPPED, _text(f"{packages}/{name}", until_s)))


def _text(path: str, until_s: float) -> str:
    content, size, _ = content_of(path, _MOST_BYTES)
    if size > _MOST_BYTES or time.monotonic() > until_s:
        raise TooMuchError(path)
    return content.decode(errors="surrogateescape")


def roots_in(content: bytes, folder: str) -> Iterator[str]:
    """Yield the folders that a program in ``folder`` adds to the places of its modules; a home's have a tilde."""
    for line in re.findall(_LONGER, content):
        above = os.path.dirname(folder)
        if re.search(_ABOVE, line):
            yield above
        for word in re.findall(_QUOTED, line):
            path = word.decode(errors="surrogateescape")
            yield from (path,) if path.startswith(("/", "~/")) else (f"{folder}/{path}", f"{above}/{path}")


def at_home(path: str, home: str) -> str:
    """Return a path with its user's home for a tilde."""
    return home + path[1:] if path.startswith("~/") else path


def _entries(folder: str, until_s: float) -> list[str]:
    if time.monotonic() > until_s:
        raise TooMuchError(folder)
    with suppress(OSError, ValueError), os.scandir(folder) as entries:
        names = sorted(entry.name for entry in islice(entries, _MOST_ENTRIES + 1))
        if len(names) > _MOST_ENTRIES:
            raise TooMuchError(folder)
        return names
    return []


def content_of(path: str, most_bytes: int, mark_before: str = "") -> tuple[bytes, int, str]:
    """Return what a file holds, its size (below 0: no file) and its mark, by which it is known again.

    A larger file, and one whose mark is ``mark_before``, is not read.
    """
    try:
        # A device is not even opened: that alone may do something.
        status = os.stat(path)
        if not _is_file(status):
            return b"", -1, _mark(status)
        if mark_before and not _is_remote(status) and _mark(status) == mark_before:
            return b"", status.st_size, mark_before
        descriptor = os.open(path, _AT_ONCE)
        try:
            status = os.fstat(descriptor)
            if not _is_file(status):
                return b"", -1, _mark(status)
            mark = _mark(status)
            is_read = status.st_size <= most_bytes and not (mark and mark == mark_before)
            # No more room than it needs: 1 MiB for each small file takes as long as all else.
            return os.read(descriptor, status.st_size) if is_read else b"", status.st_size, mark
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return b"", -1, _NOWHERE


def mark_of(path: str, mark_before: str = "") -> str:
    """Return what a file or folder is known by, read or not; empty where it has only just become what it is.

    Where its size alone was the mark before, it is the mark: many files of data are asked for that, and none is opened.
    """
    try:
        status = os.stat(path)
        if mark_before.isdecimal():
            return str(status.st_size)
        if _is_remote(status) and (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            os.close(os.open(path, _AT_ONCE))
            status = os.stat(path)
        return _mark(status)
    except (OSError, ValueError):
        return _NOWHERE


def _is_remote(status: os.stat_result) -> bool:
    """Return whether this may be the file of a network file system, whose times may be of a minute ago until it is
    opened: no disk of this host holds it.
    """
    return not os.major(status.st_dev)


def _mark(status: os.stat_result) -> str:
    """Return what a file is known by; empty where it has only just become what it is."""
    if time.time_ns() - status.st_ctime_ns < _SETTLED_NS:
        return ""
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _is_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and not is_of_kernel(status)


def is_of_kernel(status: os.stat_result) -> bool:
    """Return whether something lies in /proc, /sys or /dev, whatever link leads there."""
    return status.st_dev in _of_kernel()


@cache
def _of_kernel() -> frozenset[int]:
    root = os.stat("/").st_dev
    devices = set()
    for folder in ("/proc", "/sys", "/dev"):
        with suppress(OSError):
            devices.add(os.stat(folder).st_dev)
    return frozenset(devices - {root})
