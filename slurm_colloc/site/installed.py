# SPDX-License-Identifier: Apache-2.0
"""Compares installed files with rendered ones; slurm.conf and gres.conf by meaning."""

import difflib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.files import read_bounded
from slurm_colloc.site.render import Kind, SiteFile
from slurm_colloc.slurm.hostlist import expand, fold
from slurm_colloc.slurm.setup import parse_weights

_LIMIT_BYTES = 16 * 1024 * 1024
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
_WORD = re.compile(r"""(?<!\w)([A-Za-z]\w*)\s*=\s*("[^"]*"|'[^']*'|\S*)""")
# Lists of which a site has more words than ours.
_LISTS = ("grestypes", "accountingstoragetres", "jobsubmitplugins", "clifilterplugins", "prologflags")
_WEIGHTS = "tresbillingweights"
_SUBJECTS = {"nodename": "NodeName", "partitionname": "PartitionName"}
# What a line is about, and its key -> the value; about a node ("NodeName", "g1").
Settings = dict[tuple[str, str], dict[str, str]]
_FILES = re.compile(r"File=(\S*)(.*)", re.DOTALL)


class Compared(NamedTuple):
    """One file: ``state`` is 'same', 'differs', 'missing', 'not readable' or 'left over'; ``lines`` say how and why."""

    name: str
    path: str
    state: str
    lines: tuple[str, ...]


def compare(files: Iterable[SiteFile], root: str = "/", owners: Collection[int] = ()) -> list[Compared]:
    """Return how each file that has a place compares with what is there, below ``root``.

    With ``owners``, those uids alone may be able to change the file; anybody may be where there are none. Of what is
    built elsewhere nobody knows the contents.
    """
    return [_compare(file, root, owners) for file in files if file.installed]


def left_over(files: Iterable[SiteFile], root: str) -> list[Compared]:
    """Return those of ``files``, which this site does not have, that are there: of an earlier site.toml."""
    paths = ((file, os.path.join(root, file.installed.lstrip("/"))) for file in files)
    why = ("this site no longer has it: remove it when nothing calls it any more",)
    return [Compared(file.name, path, "left over", why) for file, path in paths if os.path.lexists(path)]


def _compare(file: SiteFile, root: str, owners: Collection[int]) -> Compared:
    path = os.path.join(root, file.installed.lstrip("/"))
    try:
        # What is installed may well be a link to where it is kept.
        real = os.path.realpath(path)
        if not os.path.lexists(real):
            return Compared(file.name, path, "missing", ())
        text = read_bounded(real, _LIMIT_BYTES).decode(errors="replace")
        lines = (
            *(_others(real, os.path.realpath(root), owners, part=file.kind == Kind.PART) if owners else ()),
            *(_changes(file, path, text) if file.kind != Kind.BUILT else ()),
        )
    except (InputError, StoreError) as error:
        return Compared(file.name, path, "not readable", (str(error),))
    return Compared(file.name, path, "differs" if lines else "same", lines)


def _others(path: str, top: str, owners: Collection[int], *, part: bool) -> Iterator[str]:
    """Yield how others than ``owners`` could change what root runs from ``path``: the file, or a folder that it is in.

    Of a ``part`` the file's mode alone counts: slurm.conf may well be kept by the user of slurmctld.
    """
    place = path
    while True:
        found = os.stat(place)
        mode = stat.S_IMODE(found.st_mode)
        if mode & _WRITABLE and (place == path or not mode & stat.S_ISVTX):
            yield f"{place} has mode {mode:04o}, so that others may change or replace it: chmod go-w {place}"
        if part:
            return
        if found.st_uid not in owners:
            yield f"{place} belongs to uid {found.st_uid}, not to root: chown root {place}"
        if place in (top, "/"):
            return
        place = os.path.dirname(place)


def _changes(file: SiteFile, path: str, text: str) -> Iterator[str]:
    """Yield how a file differs; of a whole one a line's end counts, by which cron and systemd tell lines."""
    if file.kind == Kind.PART:
        yield from (_calls if file.installed.endswith(".lua") else differences)(file.text, text)
        return
    new, old = file.text.splitlines(keepends=True), text.splitlines(keepends=True)
    for line in difflib.unified_diff(old, new, path, file.name, lineterm="", n=1):
        content = line.removesuffix("\n")
        if content == line and line[:1] in "+- " and not line.startswith(("--- ", "+++ ")):
            content += "  (no newline at its end)"
        yield content


def _calls(part: str, installed: str) -> Iterator[str]:
    """Yield the lines that call ours and are not in a script of the site's; how deep they stand there is its own."""
    there = {line.strip() for line in installed.splitlines()}
    for line in map(str.strip, part.splitlines()):
        if "colloc" in line and not line.startswith("--") and line not in there:
            yield f"it lacks the line: {line}"


def differences(part: str, installed: str) -> Iterator[str]:
    """Return what of ``part`` does not hold in ``installed``, in words; what it has beyond that is its own."""
    wanted, there = parse_settings(part), parse_settings(installed)
    said: dict[tuple[str, str], list[str]] = {}
    for (subject, name), keys in wanted.items():
        # A line of gres.conf without NodeName= is every node's.
        around = {**there.get(("", ""), {}), **there.get((subject, name), {})}
        found = {key.lower(): value for key, value in around.items()}
        for key, value in keys.items():
            if lacks := _lacking(key.lower(), value, found):
                has = f"{found[key.lower()]} is there" if found.get(key.lower()) else "nothing of it is there"
                listed = key.lower() in (*_LISTS, _WEIGHTS)
                what = f"{key} lacks {lacks}" if listed else f"{key}={lacks} is wanted, {has}"
                said.setdefault((subject, what), []).append(name)
    for (subject, what), names in said.items():
        yield f"{subject}={fold(names)}: {what}" if subject else what
    if re.search(r"^\s*include\s", installed, re.IGNORECASE | re.MULTILINE):
        yield "it includes other files, which are not looked into: what stands there counts as missing here"


def _lacking(key: str, wanted: str, found: Mapping[str, str]) -> str:
    """Return what of ``wanted`` ``found`` does not have: how GPUs are found, and what they cost, is the site's."""
    has = found.get(key, "")
    if key in _LISTS:
        return ",".join(word for word in wanted.split(",") if word.lower() not in has.lower().split(","))
    if key == "taskprolog":
        return "" if has else wanted  # the site's own calls ours
    if key == _WEIGHTS:
        billed = {name for name, weight in parse_weights(has).items() if weight}
        return ",".join(word for word in wanted.split(",") if word.lower().partition("=")[0] not in billed)
    detected = found.get("autodetect", "off").lower() != "off"
    by_hand = any(re.match(r"gpu(:|$)", name) for name in found)
    if key == "autodetect":
        return "" if detected or by_hand else wanted
    if re.match(r"gpu(:|$)", key) and wanted.startswith("File="):
        return "" if detected or _files(wanted) == _files(has) else wanted
    return "" if has == wanted else wanted


def _files(value: str) -> int:
    """Return how many device files a gres has, whatever they are called."""
    return len(list(_names(value.removeprefix("File=")))) if value.startswith("File=") else 0


def parse_settings(text: str) -> Settings:
    """Return what each node, each partition and the whole cluster is told, from slurm.conf or gres.conf.

    A list of gres or device files is brought into one order; lines of one gres are added up.
    """
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    defaults: dict[str, dict[str, list[str]]] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = {key: value.strip("\"'") for key, value in _WORD.findall(re.split(r"(?<!\\)#", line)[0])}
        if not words:
            continue
        first = next(iter(words))
        subject = _SUBJECTS.get(first.lower(), "")
        name = words.pop(first) if subject else ""
        of_all = defaults.get(subject, {})
        settings = dict(_settings(words))
        if name.upper() == "DEFAULT":
            defaults.setdefault(subject, {}).update({key: [value] for key, value in settings.items()})
            continue
        for each in _names(name) if subject == "NodeName" else (name,):
            there = found.setdefault((subject, each), {key: [*values] for key, values in of_all.items()})
            for key, value in settings.items():
                there.setdefault(key, []).append(value)
    return {what: {key: _together(values) for key, values in told.items()} for what, told in found.items()}


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


def _together(values: list[str]) -> str:
    """Return what lines about one thing come to: files and counts of a gres add up, else the last line counts."""
    files = [match for value in values if (match := _FILES.match(value))]
    if len(files) == len(values) > 1 and len({match[2] for match in files}) == 1:
        return f"File={fold(match[1] for match in files)}{files[0][2]}"
    if all(value.startswith("Count=") for value in values):
        return " and ".join(values)
    return values[-1]


def _value(key: str, value: str) -> str:
    if key.lower() == "file":
        return fold([value])
    return ",".join(sorted(value.split(","))) if key.lower() in ("gres", "tresbillingweights") else value


def _names(text: str) -> Iterable[str]:
    try:
        return expand(text)
    except InputError:
        return (text,)
