# SPDX-License-Identifier: Apache-2.0
"""The files that a job may read: code and settings beneath its folder and beneath the paths among its words.

Their contents count and not their times. Where a folder's files of one kind are chosen by name, those that no word of
the job and no file that it reads names do not count. Looked at is only so much; where there is more, that is said.
"""

import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from slurm_colloc.estimate.content import (
    ASIDE,
    CACHES,
    COMPILED,
    OF_TOOLS,
    RESULTS_FOLDERS,
    SHELL,
    WEIGHTS,
    WRITTEN_BY_PROGRAMS,
    as_word,
    elsewhere,
    ending_of,
    is_named,
    is_read_by_name,
    kind_of,
    names_in,
    said,
)
from slurm_colloc.estimate.digest import digest

_MOST_FILES, _MOST_BYTES, _MOST_S = 256, 2 * 1024 * 1024, 0.1
_MOST_FOLDERS, _MOST_ENTRIES, _MOST_IN_FOLDER, _MOST_WORDS = 256, 10_000, 2000, 64
# A folder that begins with so many files of data, or has so many folders and no code, holds data.
_MANY_DATA, _MANY_FOLDERS = 200, 64
# What is larger is data, of which the size counts, in steps of an eighth; and code of that length nobody writes.
_TEXT_BYTES, _CODE_BYTES = 256 * 1024, 1024 * 1024
_SYSTEM = re.compile(r"/(?:usr|opt|etc|s?bin|lib\w*|run|boot|dev|proc|sys)(?:/|$)")
_PSEUDO = re.compile(r"/(?:dev|proc|sys|run)/")
_WORD = re.compile(r"[^\s\"'=;|&<>()`,$*?{}\[\]]+")
_ROUNDS = 3


class Read(NamedTuple):
    """What a job may read: a short digest by path; ``fits`` says that this is all of it, ``named`` which of them stand
    among the job's words, ``variables`` which of the environment they name.
    """

    files: Mapping[str, str]
    fits: bool
    named: frozenset[str]
    variables: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """Return what these files are known by, wherever they lie: empty where there are none."""
        found = sorted(f"{os.path.basename(path)}={content}" for path, content in self.files.items())
        key = digest("\n".join(found).encode(errors="surrogateescape"), 4) if found else ""
        return key if self.fits else f"x{key}"


def files_of(
    text: str,
    own: bytes,
    labels: Collection[str],
    written: Collection[str],
    folders: Sequence[str],
    home: str,
    variables: Collection[str] = (),
) -> Read:
    """Return what a job may read.

    Args:
        text: its words.
        own: what its script says, which is no file that it reads.
        labels: what the run is called: no difference, but where a file says something of that name.
        written: words for where it leaves its results.
        folders: where it will run, and before that, where it goes elsewhere.
        home: its user's.
        variables: of its environment, by name.
    """
    # A folder may end with a slash.
    folders = [os.path.normpath(folder or ".") for folder in folders]
    looked = _Looked(folders[0], home, frozenset(_WORD.findall(text)), time.monotonic() + _MOST_S)
    for path in _paths(text, folders, home):
        looked.at(path)
    looked.beneath(folders[0])
    found = looked.read(text, own, labels, {os.path.basename(word.rstrip("/")) for word in written})
    return found._replace(variables=frozenset(filter(looked.names_variable, variables)))


def _paths(text: str, folders: Sequence[str], home: str) -> Iterator[str]:
    words = dict.fromkeys(word for word in _WORD.findall(text) if "/" in word or "." in word)
    for word in islice(words, _MOST_WORDS):
        word = home + word[1:] if word.startswith("~/") and home else word
        yield from dict.fromkeys(os.path.normpath(os.path.join(folder, word)) for folder in folders)


class _Looked:
    """Folders that were looked at, and what lies in them."""

    def __init__(self, folder: str, home: str, words: Collection[str], until_s: float) -> None:
        self._folder, self._words, self._until_s, self._home = folder, words, until_s, home
        # Of these only what lies in them directly and folders that a word names: beneath is all that a user has.
        self._too_wide = {
            "/",
            "/tmp",  # noqa: S108
            "/home",
            os.path.normpath(home or "/"),
        }
        self._named: set[str] = set()
        self._found: dict[str, list[str]] = {}
        self._seen: set[tuple[int, int]] = set()
        self._entries = 0
        self._fits = True
        self._passed: list[str] = []
        self._said: Collection[bytes] = ()

    def names_variable(self, name: str) -> bool:
        """Return whether code or settings that were read name a variable."""
        return name.encode(errors="surrogateescape") in self._said

    def at(self, path: str) -> None:
        """Look at what a word names."""
        if _PSEUDO.match(path):
            return
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            # "conf/small" is conf/small.yaml.
            if not self._is_below(path) and os.path.dirname(path) not in self._too_wide:
                self.beneath(os.path.dirname(path))
            return
        if stat.S_ISDIR(found.st_mode):
            self._named.add(path)
            self.beneath(path)
        elif stat.S_ISREG(found.st_mode):
            self._named.add(path)
            if kind_of(os.path.basename(path)) == "code" and not self._is_below(path):
                self.beneath(os.path.dirname(path))

    def _is_below(self, path: str) -> bool:
        return self._folder not in self._too_wide and path.startswith(f"{self._folder}/")

    def beneath(self, root: str) -> None:
        """Look at a folder and those beneath it."""
        if _SYSTEM.match(root):
            return
        folders = [root]
        for folder in folders:
            names, below = self._entries_of(folder, folder == root or os.path.basename(folder) in self._words)
            if names:
                self._found[folder] = names
            if folder in self._too_wide:
                self._passed += [name for name in below if name not in self._words]
                below = [name for name in below if name in self._words]
            paths = [os.path.join(folder, name) for name in below if name not in CACHES or name in self._words]
            folders += [path for path in paths if path not in self._too_wide]

    def _entries_of(self, folder: str, is_root: bool) -> tuple[list[str], list[str]]:
        """Return the names of files and folders in a folder: of none that was looked at, or holds data or results."""
        names: list[str] = []
        below: list[str] = []
        if len(self._seen) >= _MOST_FOLDERS or self._entries >= _MOST_ENTRIES or time.monotonic() > self._until_s:
            self._fits = False
            return names, below
        is_data = True
        try:
            found = os.stat(folder)
            if (found.st_dev, found.st_ino) in self._seen:
                return names, below
            self._seen.add((found.st_dev, found.st_ino))
            with os.scandir(folder) as entries:
                for entry in islice(entries, _MOST_IN_FOLDER + 1):
                    self._entries += 1
                    if not entry.name.startswith(".") or entry.name == ".env":
                        (below if entry.is_dir() else names).append(entry.name)
                        is_data = (
                            is_data and len(names) <= _MANY_DATA and kind_of(entry.name) not in ("code", "settings")
                        )
                    if is_data and len(names) == _MANY_DATA and not is_root:
                        return [], []
        except (OSError, ValueError):
            return [], []
        if len(names) + len(below) > _MOST_IN_FOLDER:
            self._fits = self._fits and not is_root
            return [], []
        if "pyvenv.cfg" in names or "conda-meta" in below:
            return [], []
        if not any(kind_of(name) == "code" for name in names):
            below = below if len(below) <= _MANY_FOLDERS else []
            is_run = any(ending_of(name) in WEIGHTS or ".tfevents." in name for name in names)
            if not is_root and (is_run or re.fullmatch(RESULTS_FOLDERS, os.path.basename(folder))):
                below = names = []
        return sorted(names), sorted(below)

    def _follow(self, chosen: "_Chosen", written: Collection[str]) -> bool:
        """Look at what the files that count name elsewhere, code and settings alone; return whether there was any."""
        before = len(chosen.files)
        known = set(self._found)
        for where, word in chosen.leads(_MOST_WORDS):
            word = self._home + word[1:] if word.startswith("~/") else word
            if (
                re.fullmatch(RESULTS_FOLDERS, os.path.basename(os.path.dirname(word)))
                or os.path.basename(word) in written
            ):
                continue
            for folder in dict.fromkeys((self._folder, where)):
                path = os.path.normpath(os.path.join(folder, word))
                if _SYSTEM.match(path) or path in self._too_wide:
                    continue
                if is_read_by_name(path):
                    chosen.add(path)
                elif os.path.isdir(path):
                    self.beneath(path)
        chosen.from_folders(
            {folder: names for folder, names in self._found.items() if folder not in known}, self._named
        )
        return len(chosen.files) > before

    def read(self, text: str, own: bytes, labels: Collection[str], written: Collection[str]) -> Read:
        """Return what counts of all that was found."""
        words = names_in(" ".join([text, *labels]).encode(errors="surrogateescape"))
        chosen = _Chosen(words, own, labels, self._until_s, (self._folder, self._named))
        for path in sorted(self._named):
            chosen.add(path)
        left = {
            folder: [name for name in names if not (name in written and kind_of(name) != "code")]
            for folder, names in self._found.items()
        }
        chosen.from_folders(left, self._named)
        for _ in range(_ROUNDS):
            if not self._follow(chosen, written):
                break
        chosen.files |= {f"name {label.decode(errors='replace')}": "" for label in chosen.labels}
        named = frozenset(
            path for path in chosen.files if path in self._named or is_named(os.path.basename(path), words, words)
        )
        self._said = chosen.said
        # Modules may lie in folders that were passed by.
        passed = any(map(chosen.has_read, self._passed))
        return Read(chosen.files, self._fits and chosen.fits and not passed, named)


class _Chosen:
    """The files that count, and all names that stand in them."""

    def __init__(
        self,
        words: set[bytes],
        own: bytes,
        labels: Collection[str],
        until_s: float,
        places: tuple[str, Collection[str]],
    ) -> None:
        self._folder, self._places = places
        self.files: dict[str, str] = {}
        self.said: set[bytes] = set()
        self._leads: dict[tuple[str, str], None] = {}
        self._followed = 0
        self._own = own
        self._asked, self.labels = frozenset(map(as_word, labels)), set[bytes]()
        self.fits = True
        self._words, self._names, self._until_s, self._bytes = frozenset(words), set(words), until_s, 0
        self._by_name: set[tuple[str, str]] = set()

    def leads(self, most: int) -> list[tuple[str, str]]:
        """Return what was named since the last time, with the folder of what names it, and no more than so many."""
        found = list(self._leads)[self._followed : most]
        self._followed += len(found)
        return found

    def has_read(self, name: str) -> bool:
        """Return whether a file that counts says something of that name."""
        return as_word(name) in self._names - self._words

    def from_folders(self, folders: Mapping[str, list[str]], named: Collection[str]) -> None:
        """Add what is named, and again what that names; then the kinds of files of which none in a folder is named."""
        waiting = {(folder, name) for folder, names in folders.items() for name in names}
        while waiting:
            found = {
                one
                for one in waiting
                if self._is_read(*one, one[0] in named or as_word(os.path.basename(one[0])) in self._words)
            }
            found = found or {one for one in waiting if self._may_be_read(*one)}
            if not found:
                break
            for folder, name in sorted(found):
                self.add(os.path.join(folder, name))
            waiting -= found

    def _is_read(self, folder: str, name: str, in_named: bool) -> bool:
        kind, ending, whole = kind_of(name), ending_of(name), as_word(name)
        if kind == "results":
            return False
        if kind == "data":
            is_weight = in_named and ending in WEIGHTS
            return is_weight or whole in self._names or is_named(name, self._words, self._words)
        composed = kind != "code" or b"importlib" in self._names
        if (
            whole in self._names
            if ending in SHELL
            else is_named(name, self._names, self._names if composed else self._words)
        ):
            self._by_name.add((folder, ending))
            return True
        return ending in COMPILED or name in ("__init__.py", "__main__.py")

    def _may_be_read(self, folder: str, name: str) -> bool:
        ending = ending_of(name)
        by_name = (folder, ending) in self._by_name and f"*.{ending}".encode() not in self._names
        kind, base = kind_of(name), os.path.basename(folder)
        is_read = kind == "settings" and not ASIDE.fullmatch(base)
        if ending in WRITTEN_BY_PROGRAMS:
            # Beneath what a word names they are read by their place.
            is_read = any(f"{folder}/".startswith(f"{place}/") for place in self._places) or folder == self._folder
        if kind == "code" and ending not in SHELL:
            is_read = as_word(base) in self._names or not any(
                kind_of(os.path.basename(path)) == "code" for path in self.files
            )
        return is_read and not by_name and not OF_TOOLS.fullmatch(name)

    def add(self, path: str) -> None:
        """Read a file, or look at its size."""
        if path in self.files:
            return
        name = os.path.basename(path)
        kind = kind_of(name)
        if len(self.files) >= _MOST_FILES or self._bytes >= _MOST_BYTES or time.monotonic() > self._until_s:
            self.fits = False
            return
        content, size = _content(path, _CODE_BYTES if kind == "code" else _TEXT_BYTES)
        if size < 0:
            return
        self._bytes += len(content)
        if kind == "code" and size > _CODE_BYTES:
            self.fits = False
        if not content and size:
            self.files[path] = f"{_eighths(size)} eighths" if kind != "settings" else f"{size} {_begins(path)}"
            return
        if b"\0" not in content[:1024]:
            content = said(content, ending_of(name))
            if content == self._own:  # the job's own script, of which its words count
                return
            names = names_in(content)
            self._names |= names
            if kind in ("code", "settings"):
                self.said |= names
                self._leads |= dict.fromkeys((os.path.dirname(path), word) for word in sorted(elsewhere(content)))
            self.labels |= self._asked & names
        self.files[path] = digest(content, 8)


def _eighths(size: int) -> int:
    """Return a size in eighths of the power of two below it, counted from 1: so few bytes more are no difference."""
    power = size.bit_length() - 1
    return power * 8 + (size * 8 >> power) - 8


def _begins(path: str) -> str:
    """Return a key of the first part of a file that is too long to be read: settings stand before data, if at all."""
    with suppress(OSError, ValueError), open(path, "rb") as stream:
        return digest(stream.read(_TEXT_BYTES), 8)
    return ""


def _content(path: str, most_bytes: int) -> tuple[bytes, int]:
    """Return what a file holds, and its size (below 0: no file); of a larger one no content."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return b"", -1
            content = os.read(descriptor, most_bytes) if found.st_size <= most_bytes else b""
            return content, found.st_size
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return b"", -1
