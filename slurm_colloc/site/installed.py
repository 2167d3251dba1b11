# SPDX-License-Identifier: Apache-2.0
"""What is installed against what was rendered: files line by line, parts of slurm.conf and gres.conf by meaning."""

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from slurm_colloc.errors import StoreError
from slurm_colloc.files import read_bounded
from slurm_colloc.site.render import Rendered

_LIMIT_BYTES = 16 * 1024 * 1024
_MOST_LINKS = 40  # as the kernel
_WORD = re.compile(r"""([A-Za-z]\w*)\s*=\s*("[^"]*"|'[^']*'|\S*)""")
# Lists of which a site has more words than ours.
_LISTS = ("grestypes", "accountingstoragetres")
_SUBJECTS = {"nodename": "NodeName", "partitionname": "PartitionName"}
# What a line is about, and its key -> the value; about a node ("NodeName", "g1").
Settings = dict[tuple[str, str], dict[str, str]]


class Compared(NamedTuple):
    """One file: ``state`` is 'same', 'differs', 'missing' or 'not readable'; ``lines`` say what differs."""

    name: str
    path: str
    state: str
    lines: tuple[str, ...]


def compare(files: Iterable[Rendered], root: str = "/") -> list[Compared]:
    """Return how each file that has a place compares with what is there, below ``root``."""
    return [_compare(file, root) for file in files if file.installed]


def _compare(file: Rendered, root: str) -> Compared:
    path = os.path.join(root, file.installed.lstrip("/"))
    try:
        # What is installed may well be a link to where it is kept.
        real = _real(file.installed, root)
        if not os.path.lexists(real):
            return Compared(file.name, path, "missing", ())
        text = read_bounded(real, _LIMIT_BYTES).decode(errors="replace")
    except StoreError as error:
        return Compared(file.name, path, "not readable", (str(error),))
    lines = tuple(differences(file.text, text) if file.part else _changes(file, path, text))
    return Compared(file.name, path, "differs" if lines else "same", lines)


def _real(path: str, root: str) -> str:
    """Return where ``path`` of an image lies here, by the image's own links: one to ``/etc`` is to the image's.

    Raises:
        StoreError: links that lead nowhere in the end.
    """
    top = found = os.path.realpath(root)
    wanted = path.split("/")[::-1]
    links = 0
    while wanted:
        name = wanted.pop()
        if name in ("", "."):
            continue
        if name == "..":
            found = top if found == top else os.path.dirname(found)
            continue
        step = os.path.join(found, name)
        if not os.path.islink(step):
            found = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise StoreError(f"file '{path}' cannot be read: too many links")
        target = os.readlink(step)
        wanted += target.split("/")[::-1]
        if target.startswith("/"):
            found = top
    return found


def _changes(file: Rendered, path: str, text: str) -> Iterator[str]:
    """Return how a whole file differs; a line's end counts, by which cron and systemd tell lines."""
    new, old = file.text.splitlines(keepends=True), text.splitlines(keepends=True)
    for line in difflib.unified_diff(old, new, path, file.name, lineterm="", n=1):
        content = line.removesuffix("\n")
        if content == line and line[:1] in "+- " and not line.startswith(("--- ", "+++ ")):
            content += "  (no newline at its end)"
        yield content


def differences(part: str, installed: str) -> Iterator[str]:
    """Return what of ``part`` does not hold in ``installed``, in words; what it has beyond that is its own."""
    wanted, there = parse_settings(part), parse_settings(installed)
    by_what: dict[tuple[str, str, str, str], list[str]] = {}
    for (subject, name), keys in wanted.items():
        # A line of gres.conf without NodeName= is every node's.
        around = {**there.get(("", ""), {}), **there.get((subject, name), {})}
        found = {key.lower(): value for key, value in around.items()}
        for key, value in keys.items():
            if key.lower() in _LISTS:
                have = found.get(key.lower(), "").split(",")
                value = ",".join(word for word in value.split(",") if word not in have)
            has = found.get(key.lower(), "")
            if value and has != value:
                by_what.setdefault((subject, key, value, has), []).append(name)
    for (subject, key, value, has), names in by_what.items():
        of = f"{subject}={_fold(names)}: " if subject else ""
        if key.lower() in _LISTS:
            yield f"{of}{key} lacks {value}"
        else:
            yield f"{of}{key}={value} is wanted, {f'{has} is there' if has else 'nothing of it is there'}"
    if re.search(r"^\s*include\s", installed, re.IGNORECASE | re.MULTILINE):
        yield "it includes other files, which are not looked into: what stands there counts as missing here"


def parse_settings(text: str) -> Settings:
    """Return what each node, each partition and the whole cluster is told, from slurm.conf or gres.conf.

    A list of gres or device files is brought into one order; lines of one gres are added up.
    """
    found: Settings = {}
    defaults: dict[str, dict[str, str]] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = {key: value.strip("\"'") for key, value in _WORD.findall(re.split(r"(?<!\\)#", line)[0])}
        if not words:
            continue
        first = next(iter(words))
        subject = _SUBJECTS.get(first.lower(), "")
        name = words.pop(first) if subject else ""
        settings = dict(_settings(words))
        if name.upper() == "DEFAULT":
            defaults.setdefault(subject, {}).update(settings)
            continue
        for each in _names(name) if subject == "NodeName" else (name,):
            _add(found.setdefault((subject, each), dict(defaults.get(subject, {}))), settings)
    return found


def _settings(words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield key and value; a line about a gres is one value, by the gres."""
    if "name" not in {key.lower() for key in words}:
        yield from ((key, _value(key, value)) for key, value in words.items())
        return
    told = {key.lower(): _value(key, value) for key, value in words.items()}
    name, kind = told.pop("name"), told.pop("type", "")
    if "autodetect" in told:
        yield "AutoDetect", told.pop("autodetect")
    yield f"{name}:{kind}" if kind else name, " ".join(f"{key.title()}={value}" for key, value in sorted(told.items()))


def _add(there: dict[str, str], new: Mapping[str, str]) -> None:
    for key, value in new.items():
        if value.startswith("File=") and there.get(key, "").startswith("File="):
            there[key] = "File=" + _fold([there[key].removeprefix("File="), value.removeprefix("File=")])
        elif value.startswith("Count=") and there.get(key, "").startswith("Count="):
            there[key] += f" and {value}"
        else:
            there[key] = value


def _value(key: str, value: str) -> str:
    if key.lower() == "file":
        return _fold([value])
    return ",".join(sorted(value.split(","))) if key.lower() in ("gres", "tresbillingweights") else value


def _names(text: str) -> Iterable[str]:
    try:
        return list(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return (text,)


def _fold(names: Iterable[str]) -> str:
    try:
        return str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return ",".join(names)
