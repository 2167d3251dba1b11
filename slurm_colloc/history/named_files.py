# SPDX-License-Identifier: Apache-2.0
"""The files that a script names and that decide what its job does: programs, and files of settings.

A few are read, the first part of each, without following what would hang; what cannot be read is passed over.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.history.digest import digest
from slurm_colloc.history.imports import imported_files

_PROGRAM_LIMIT_BYTES, _SETTINGS_LIMIT_BYTES = 1024 * 1024, 256 * 1024
_MOST_FILES = 8
# Behind none of the letters that a path has: where one fails, no later start within it is tried.
_PROGRAM = re.compile(r"(?<![\w./~+-])([\w./~+-]*\w\.(?:py|jl|R|lua|m|sh))(?![\w/])")
_MODULE = re.compile(r"\s-m\s+([A-Za-z_][\w.]*)")
_SOURCED = re.compile(r"(?:^|[\s;&|])(?:source|\.)\s+[\"']?([\w./~+-]+)")
_SETTINGS = re.compile(r"(?<![\w./~+-])([\w./~+-]*\w\.(?:ya?ml|toml|ini|cfg|conf|gin|jsonc?))(?![\w/])")
# Whose lines are the tasks of an array.
_LISTS = re.compile(r"(?<![\w./~+-])([\w./~+-]*\w\.(?:txt|csv|tsv|list|lst|args|params))(?![\w/])")
_READS_LINES = re.compile(r"SLURM_ARRAY_TASK_ID|\bread\b|\bxargs\b|\bmapfile\b|\breadarray\b")
_HYDRA_NAME = re.compile(r"(?:--config-name|-cn)[= ]\s*[\"']?([\w./-]+)|\bconfig_name\s*=\s*[\"']([\w./-]+)")
_HYDRA_PATH = re.compile(r"(?:--config-path|-cp)[= ]\s*[\"']?([\w./-]+)|\bconfig_path\s*=\s*[\"']([\w./-]+)")
_LITERAL = re.compile(r"[\"']([\w./-]+\.(?:ya?ml|toml))[\"']")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_CONSTANT = re.compile(r"(?m)(?:^|[;\s])([A-Za-z_]\w*)=[\"']?([\w./~+-]+)")
_SETTING = re.compile(r"[\"'\s-]*(?:export\s+)?([\w.+][\w.+-]*)[\"']?\s*[:=]\s*[\"']?(.*?)[\"']?,?$")


class Files(NamedTuple):
    """A short key of the programs' text, and one of what the files of settings say; each empty where there are none."""

    program: str
    settings: str


def files_of(
    body: str,
    read: str,
    folder: str,
    variables: Mapping[str, str],
    ran_s: float | None,
    is_noise: Callable[[str, str], bool],
) -> Files:
    """Return what the named files hold.

    Args:
        body: the script's lines and its arguments.
        read: the same without what only tells where results go.
        folder: where it will run.
        variables: what its environment will hold.
        ran_s: when it ran, of a past job: what was changed since is not what it read.
        is_noise: says of a name and a value that they only tell runs apart.
    """
    known = {**variables, **dict(_CONSTANT.findall(body)), "PWD": folder, "SLURM_SUBMIT_DIR": folder}
    text = _VARIABLE.sub(lambda found: known.get(found[1] or found[2], found[0]), read)
    home = variables.get("HOME", "")
    sourced = _SOURCED.findall(text)
    named = [name for name in dict.fromkeys(_PROGRAM.findall(text)) if name not in sourced]
    modules = [name.replace(".", "/") for name in _MODULE.findall(text)]
    programs: list[tuple[str, bytes]] = []
    for name in (*named, *(f"{module}{end}" for module in modules for end in (".py", "/__main__.py"))):
        path = _path(folder, name, home)
        content = _content(path, _PROGRAM_LIMIT_BYTES, ran_s) if len(programs) < _MOST_FILES else b""
        if content is None:  # changed since it ran
            programs = []
            break
        if content:
            programs.append((path, content))
    imported = _imported(programs, folder, ran_s)
    if imported is None:
        programs = []
    lists = _LISTS.findall(text) if _READS_LINES.search(body) else []
    paths = [_path(folder, name, home) for name in (*sourced, *_SETTINGS.findall(text), *lists)]
    paths += _of_programs(text, programs, folder)
    return Files(_key([content for _, content in programs] + (imported or [])), _settings(paths, ran_s, is_noise))


def _imported(programs: Sequence[tuple[str, bytes]], folder: str, ran_s: float | None) -> list[bytes] | None:
    """Return what the modules hold that programs of Python import from beside them; None where one changed since."""
    own = {path for path, _ in programs}
    found: list[bytes] = []
    left_bytes = _PROGRAM_LIMIT_BYTES
    for path, code in programs:
        for module in imported_files(code, (os.path.dirname(path), folder.rstrip("/"))) if path.endswith(".py") else ():
            content = _content(module, min(_SETTINGS_LIMIT_BYTES, left_bytes), ran_s) if module not in own else b""
            if content is None:
                return None
            own.add(module)
            found += [content] if content else []
            left_bytes -= len(content)
    return found


def _of_programs(text: str, programs: Sequence[tuple[str, bytes]], folder: str) -> Iterator[str]:
    """Yield where the files of settings may lie that programs name, or hydra by itself."""
    for path, content in programs or [("", b"")]:
        beside = os.path.dirname(path) or folder
        code = content.decode(errors="replace") if re.search(rb"\.ya?ml|\.toml|config_name", content) else ""
        for name in _LITERAL.findall(code):
            yield os.path.join(folder, name)
            yield os.path.join(beside, name)
        names = [a or b for a, b in _HYDRA_NAME.findall(f"{text}\n{code}")]
        places = [a or b for a, b in _HYDRA_PATH.findall(f"{text}\n{code}")] or ["conf", "config", "configs", "."]
        for name in names:
            bare = name.removesuffix(".yaml")
            yield from (os.path.join(beside, place, f"{bare}.yaml") for place in places)


def _settings(paths: Sequence[str], ran_s: float | None, is_noise: Callable[[str, str], bool]) -> str:
    said: list[bytes] = []
    for path in dict.fromkeys(map(os.path.normpath, paths)):
        content = _content(path, _SETTINGS_LIMIT_BYTES, ran_s)
        if content is None:
            # What it was nobody kept: a job like no other.
            return f"changed since {ran_s}"
        if content and (lines := _lines(content, is_noise)):
            said.append(lines)
        if len(said) >= _MOST_FILES:
            break
    return _key(said)


def _lines(content: bytes, is_noise: Callable[[str, str], bool]) -> bytes:
    """Return what settings say, without comments, blank lines and what only tells runs apart."""
    kept = []
    for line in content.decode(errors="surrogateescape").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _SETTING.match(line.rstrip()) if len(line) < 1000 else None
        kept.append(f"{found[1]}=*" if found and is_noise(found[1], found[2]) else line.rstrip())
    return "\n".join(kept).encode(errors="surrogateescape")


def _path(folder: str, name: str, home: str) -> str:
    return os.path.join(folder, home + name[1:] if name.startswith("~/") and home else name)


def _content(path: str, most_bytes: int, ran_s: float | None) -> bytes | None:
    """Return the first part of a file, empty where it cannot be read; None where it was changed since."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            if ran_s is not None and os.fstat(descriptor).st_mtime > ran_s:
                return None
            return os.read(descriptor, most_bytes)
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return b""


def _key(contents: Sequence[bytes]) -> str:
    if len(contents) > 1:
        contents = [bytes.fromhex("".join(map(digest, contents)))]
    return digest(contents[0], 4) if contents else ""
