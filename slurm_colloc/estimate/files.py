# SPDX-License-Identifier: Apache-2.0
"""The files that a job may read: code and settings beneath its folder and beneath the paths among its words.

Their contents count and not their times. If a folder's files of one kind are chosen by name, those that no word of the
job and no file that it reads names do not count. Only so much is looked at; ``fits`` says whether that was all.
"""

import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from slurm_colloc import __version__
from slurm_colloc.estimate.chosen import MOST_IN_FOLDER, Chosen, Contents
from slurm_colloc.estimate.content import (
    ASIDE,
    CACHES,
    RESULTS_FOLDERS,
    WEIGHTS,
    as_word,
    ending_of,
    is_beside_weights,
    is_named,
    is_read_by_name,
    kind_of,
    names_in,
)
from slurm_colloc.estimate.digest import digest
from slurm_colloc.estimate.places import SYSTEM, TooMuchError, at_home, is_of_kernel, mark_of
from slurm_colloc.estimate.texts import Seen, Texts

_MOST_S = 0.1
_MOST_FOLDERS, _MOST_ENTRIES, _MOST_WORDS, _MOST_BESIDE, _MOST_LED = 256, 10_000, 64, 32, 8
# A folder that begins with so many files of data, or has so many folders and no code, holds data.
_MANY_DATA, _MANY_FOLDERS = 200, 64
_PSEUDO = "/dev/", "/proc/", "/sys/", "/run/"
_WORD = r"[^\s\"'=;|&<>()`,$*?{}\[\]]+"
# An option by whose name a program may write there.
_WRITES_TO = (
    r"(?<![\w-])--?\w*(?:work|save|ckpt|checkpoint|cache|exp|out|log|dest|store|tmp|temp|run)[\w-]{0,40}"
    r"[= ]([\w./~-]+)"
)
# "PYTHONPATH=a:b" names two; the second of "-B code:/code" is a place in a container.
_LISTS = r"(PATH=|LIBS=|LIB=)?[\"']?(?<![\w./~+:-])([\w./~+-]+):([\w./~+:-]*)"
# A file that is one of several for each seed is another if its contents are.
_OF_A_SEED = r"(?i)(?<![a-z])seed[_-]?\d+"
_ROUNDS = 3
# A package of code has one of these.
_OF_PACKAGES = "Project.toml", "pyproject.toml", "setup.py", "package.json", "Cargo.toml", "DESCRIPTION"
# A library takes its settings from variables that begin so, among them the part of the GPU that it takes.
_OF_LIBRARIES = {b"xla": b"jax", b"jax": b"jax", b"tf": b"tensorflow", b"pytorch": b"torch", b"cupy": b"cupy"}
# The run's name stands among the files if one of them says something of that name.
OF_LABEL = "name "
# A program takes its settings from variables of the names of its own fields, with a prefix, by these.
_FROM_ENVIRONMENT = b"environ", b"getenv", b"envvar", b"_env", b"env_", b"ENV\n", b"BaseSettings", b"LightningCLI"
# A script does so if it asks for a variable by another one, or for all of them.
_ASKS_ALL = r"\$\{!|\b(?:env|printenv|compgen)\b"


def without_seed(text: str) -> str:
    """Return a text with stars for the numbers of its seeds."""
    return re.sub(_OF_A_SEED, "seed*", text)


class Read(NamedTuple):
    """The files that a job may read: a short digest by path; ``fits`` says that this is all, ``named`` which are
    among the job's words, ``variables`` which of the environment they name, ``contents`` what code and settings hold,
    ``seen`` what was seen on the way.
    """

    files: Mapping[str, str]
    fits: bool
    named: frozenset[str]
    variables: frozenset[str] = frozenset()
    contents: Contents = Contents()
    seen: Seen = Seen()

    @property
    def key(self) -> str:
        """Return what these files are known by, wherever they lie: empty where there are none."""
        contents = sorted({f"{without_seed(os.path.basename(path))}={content}" for path, content in self.files.items()})
        key = digest("\n".join(contents), 4) if contents else ""
        return key if self.fits else f"x{key}"


class Job(NamedTuple):
    """What a job may read is found by this.

    Attributes:
        text: its words.
        script: its script's text, which is no file that it reads.
        labels: names of the run: no difference, unless a file says something of that name.
        written: words for places of its results.
        folders: the one that it will run in, and the one before, if it goes elsewhere.
        home: its user's.
        variables: names of its environment.
        roots: folders beside its own from which modules may come.
        defaults: files of its home, by the name of what reads them.
    """

    text: str
    script: bytes
    labels: Collection[str]
    written: Collection[str]
    folders: Sequence[str]
    home: str
    variables: Collection[str]
    roots: Sequence[str]
    defaults: Mapping[bytes, Sequence[str]]


def files_of(job: Job, texts: Texts) -> Read:
    """Return what a job may read; ``texts`` has what was read before."""
    # A folder may end with a slash.
    folders = [os.path.normpath(folder or ".") for folder in job.folders]
    written = sorted({os.path.basename(word.rstrip("/")) for word in job.written})
    looked = _Looked(job._replace(folders=folders, written=written, variables=sorted(job.variables)), texts)
    for path in _paths(job.text, folders, job.home):
        looked.at(path)
    for path in _paths(" ".join(_several(job.text)), folders, job.home):
        looked.aside(path)
    looked.beneath(folders[0])
    state, (files, seen) = looked.state(), texts.last
    if state and seen == _sealed(state, seen.marks, seen.variables) and looked.are_as_before(seen.marks):
        return Read(files, True, frozenset(), frozenset(seen.variables), seen=seen)
    read = looked.read()
    variables = tuple(looked.variables())
    # What took too long to be looked at would be looked at in vain, and then be read.
    is_kept = state and read.fits and all(texts.marks.values()) and not looked.is_late()
    seen = _sealed(state, texts.marks, variables) if is_kept else Seen()
    return read._replace(variables=frozenset(variables), seen=seen)


def _sealed(state: str, marks: Mapping[str, str], variables: tuple[str, ...]) -> Seen:
    """Return what was seen with a key of it all: where that differs, it is damaged, or of another job."""
    return Seen(digest(repr((state, marks, variables))), marks, variables)


def _paths(text: str, folders: Sequence[str], home: str) -> Iterator[str]:
    words = dict.fromkeys(word for word in re.findall(_WORD, text) if "/" in word or "." in word)
    for word in islice(words, _MOST_WORDS):
        word = at_home(word, home or "~")
        yield from dict.fromkeys(os.path.normpath(os.path.join(folder, word)) for folder in folders)


def _several(text: str) -> Iterator[str]:
    """Yield the places of words that name several, apart by colons."""
    for is_path, path, rest in re.findall(_LISTS, text) if ":" in text else ():
        yield from (path, *rest.split(":")) if is_path else (path,)


class _Looked:
    """Folders that were looked at, and what lies in them."""

    def __init__(self, job: Job, texts: Texts) -> None:
        self._job, self._texts = job, texts
        self._folder, self._words = job.folders[0], frozenset(re.findall(_WORD, job.text))
        self._until_s = time.monotonic() + _MOST_S
        # Only files directly in these, and folders that a word names: beneath is all that a user has.
        self._too_wide = {
            "/",
            "/tmp",  # noqa: S108
            "/home",
            os.path.normpath(job.home or "/"),
        }
        # Whether what a word names is a folder.
        self._named: dict[str, bool] = {}
        self._found: dict[str, list[str]] = {}
        self._seen: set[tuple[int, int]] = set()
        self._entries = 0
        self._fits = True
        # What is found before anything is read is found anew at each submission.
        self._see: Callable[[str], None] = lambda path: None
        self._passed: list[str] = []
        self._data: list[str] = []
        self._led: list[str] = []
        self._said: frozenset[bytes] = frozenset()
        self._weighty: set[str] = set()

    def variables(self) -> Iterator[str]:
        """Yield the variables that code or settings name, or take settings from as from those like them."""
        text = b"\n".join(self._said) + b"\n"
        small = set(text.lower().split(b"\n")) if any(map(text.__contains__, _FROM_ENVIRONMENT)) else set[bytes]()
        for name in self._job.variables:
            word = name.encode(errors="surrogateescape")
            prefix = word.lower().partition(b"_")[0]
            like = {word.lower(), prefix, prefix + b"_", *([b"lightningcli"] if prefix == b"pl" else ())}
            if word in self._said or like & small or _OF_LIBRARIES.get(prefix) in self._said:
                yield name

    def at(self, path: str) -> None:
        """Look at what a word names."""
        if path.startswith(_PSEUDO):
            return
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            # "conf/small" is conf/small.yaml.
            if not self._is_below(path) and os.path.dirname(path) not in self._too_wide:
                self.beneath(os.path.dirname(path))
            return
        if stat.S_ISDIR(status.st_mode):
            self._named[path] = True
            self.beneath(path)
        elif stat.S_ISREG(status.st_mode):
            self._named[path] = False
            if kind_of(os.path.basename(path)) == "code" and not self._is_below(path):
                self.beneath(os.path.dirname(path))

    def aside(self, path: str) -> None:
        """Look at a folder that is one of several in a word, but for the job's own and those above it."""
        if not f"{self._folder}/".startswith(f"{path}/") and path not in self._too_wide and os.path.isdir(path):
            self.beneath(path)

    def state(self) -> str:
        """Return a key of the job and of what was found for it; empty where that is not all."""
        # What runs leave behind comes and goes, and is never read.
        names = [
            (folder, [name for name in found if kind_of(name) != "results"]) for folder, found in self._found.items()
        ]
        found = self._named, self._data, self._passed, sorted(self._weighty)
        return digest(repr((__version__, self._job, names, found))) if self._fits else ""

    def are_as_before(self, marks: Mapping[str, str]) -> bool:
        """Return whether all is as it was that was looked at before; the time that takes is not the files'."""
        began_s = time.monotonic()
        is_same = all(mark_of(path, mark) == mark and not self.is_late() for path, mark in marks.items())
        self._until_s += time.monotonic() - began_s
        return is_same

    def is_late(self) -> bool:
        return time.monotonic() > self._until_s

    def _is_below(self, path: str) -> bool:
        return self._folder not in self._too_wide and path.startswith(f"{self._folder}/")

    def beneath(self, root: str) -> None:
        """Look at a folder and those beneath it."""
        if SYSTEM.match(root):
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
        """Return the files and folders in a folder; one that was seen before, or holds data or results, has none."""
        names: list[str] = []
        below: list[str] = []
        if len(self._seen) >= _MOST_FOLDERS or self._entries >= _MOST_ENTRIES or self.is_late():
            self._fits = False
            return names, below
        is_data = True
        self._see(folder)
        try:
            status = os.stat(folder)
            place = status.st_dev, status.st_ino
            if is_of_kernel(status) or place in self._seen:
                return names, below
            self._seen.add(place)
            with os.scandir(folder) as entries:
                for entry in islice(entries, MOST_IN_FOLDER + 1):
                    self._entries += 1
                    if entry.is_symlink():
                        self._see(entry.path)
                    if not entry.name.startswith(".") or entry.name == ".env":
                        (below if entry.is_dir() else names).append(entry.name)
                        is_data = is_data and len(names) <= _MANY_DATA and not is_read_by_name(entry.name)
                    if is_data and len(names) == _MANY_DATA and not is_root:
                        self._data.append(folder)
                        return [], []
        except (OSError, ValueError):
            return [], []
        if len(names) + len(below) > MOST_IN_FOLDER:
            self._fits = self._fits and not is_root
            return [], []
        if "pyvenv.cfg" in names or "conda-meta" in below:
            return [], []
        if not any(kind_of(name) == "code" for name in names):
            below = below if len(below) <= _MANY_FOLDERS else []
            places = (place for place in self._named if not f"{self._folder}/".startswith(f"{place}/"))
            is_run = any(ending_of(name) in WEIGHTS or ".tfevents." in name for name in names)
            is_run = is_run and not any(folder.startswith(f"{place}/") for place in places)
            if not is_root and (is_run or re.fullmatch(RESULTS_FOLDERS, os.path.basename(folder))):
                self._weighty |= {folder} if is_run else set()
                names = [
                    name for name in names if kind_of(name) == "settings" and (not is_run or is_beside_weights(name))
                ]
                below = []
        return sorted(names), sorted(below)

    def _follow(self, chosen: Chosen) -> bool:
        """Look at what the files that count name elsewhere, of data at its size; return whether there was any."""
        before = len(chosen.files)
        folders_before = set(self._found)
        for tool, paths in self._job.defaults.items():
            for path in paths if tool in chosen.names else ():
                chosen.add(at_home(path, self._job.home))
        for where, word in chosen.leads(_MOST_WORDS):
            word = at_home(word, self._job.home)
            if (
                re.fullmatch(RESULTS_FOLDERS, os.path.basename(os.path.dirname(word)))
                or os.path.basename(word) in self._job.written
            ):
                continue
            for folder in dict.fromkeys((self._folder, where)):
                path = os.path.normpath(os.path.join(folder, word))
                if SYSTEM.match(path) or path in self._too_wide:
                    continue
                if is_read_by_name(path):
                    chosen.add(path)
                    continue
                self._texts.see(path)
                if os.path.isdir(path):
                    self._led.append(path)
                    if word.startswith("../") or any(os.path.exists(f"{path}/{name}") for name in _OF_PACKAGES):
                        self.beneath(path)
                    elif len(self._led) <= _MOST_LED and (names := self._entries_of(path, is_root=False)[0]):
                        self._found[path] = names
                elif kind_of(os.path.basename(path)) == "data":
                    chosen.add_size(path, 0)
        for root in dict.fromkeys((*self._job.roots, *chosen.roots)):
            self._at_root(os.path.normpath(at_home(root, self._job.home)), chosen)
        chosen.from_folders(
            {folder: names for folder, names in self._found.items() if folder not in folders_before}, self._named
        )
        return len(chosen.files) > before

    def _at_root(self, root: str, chosen: Chosen) -> None:
        """Look at the modules in a folder of the search path that a file which counts has the name of."""
        if SYSTEM.match(root) or root == self._folder:
            return
        for name in chosen.named_in(root):
            path = os.path.join(root, name)
            if is_read_by_name(name) or ".so" in name:
                chosen.add(path)
                continue
            self._texts.see(package := os.path.join(path, "__init__.py"))
            if path not in self._too_wide and (root not in self._too_wide or os.path.exists(package)):
                self.beneath(path)

    def _add_sizes(self, chosen: Chosen) -> None:
        """Add how large data is that no file names: a folder's largest, as one that is added may be larger."""
        text, written = self._job.text, self._job.written
        patterns = (
            word.partition("*")[0]
            for word in re.findall(r"[\w./~*-]+", text if "*" in text else "")
            if "/" in word and "*" in word
        )
        globbed = {os.path.normpath(os.path.join(self._folder, os.path.dirname(pattern))) for pattern in patterns}
        places = {os.path.basename(word.rstrip("/")) for word in re.findall(_WRITES_TO, text if "-" in text else "")}
        named = {path for path, is_folder in self._named.items() if is_folder}
        # A word or a program names a folder of data beneath the job's own.
        below = {path for folder in (*self._data, *self._found) for path in (folder, os.path.dirname(folder))}
        for folder in filter(self._is_below, below):
            base = os.path.basename(folder)
            if base in self._words or as_word(base) in chosen.listed:
                named.add(folder)
        for folder in sorted(named | globbed | set(self._led[:_MOST_LED])):
            base = os.path.basename(folder)
            inside = f"{self._folder}/".startswith(f"{folder}/") or folder in self._too_wide or SYSTEM.match(folder)
            if (
                inside
                or base in written
                or base in places
                or re.fullmatch(ASIDE, base)
                or re.fullmatch(RESULTS_FOLDERS, base)
            ):
                continue
            chosen.add_largest(folder, is_globbed=folder in globbed)
        if not any(kind_of(os.path.basename(path)) == "code" for path in chosen.files):
            data = [
                name for name in self._found.get(self._folder, ()) if kind_of(name) == "data" and name not in written
            ]
            for name in data[:_MOST_BESIDE]:
                chosen.add_size(os.path.join(self._folder, name))

    def read(self) -> Read:
        """Return what counts of all that was found."""
        self._see = self._texts.see
        script, labels, written = self._job.script, self._job.labels, self._job.written
        words = names_in(" ".join([self._job.text, *labels]).encode(errors="surrogateescape"))
        found = chain.from_iterable(self._found.values())
        self._texts.expect(sum(map(is_read_by_name, found)))
        chosen = Chosen(words, script, labels, self._until_s, (self._folder, self._named), self._texts)
        for path in sorted(self._named):
            chosen.add(path)
            for beside in self._beside(path) if ending_of(path) in WEIGHTS else ():
                chosen.add(beside)
        folders = {
            folder: [name for name in names if not (name in written and kind_of(name) != "code")]
            for folder, names in self._found.items()
        }
        chosen.weighty |= self._weighty
        try:
            chosen.from_folders(folders, self._named)
            for _ in range(_ROUNDS):
                if not self._follow(chosen):
                    break
        except TooMuchError:
            self._fits = False
        self._add_sizes(chosen)
        chosen.files |= {f"{OF_LABEL}{label.decode(errors='replace')}": "" for label in chosen.told()}
        named = frozenset(
            path for path in chosen.files if path in self._named or is_named(os.path.basename(path), words, words)
        )
        self._said = frozenset(
            chosen.said
            | (names_in(script) | {b"ENV"} if re.search(_ASKS_ALL, script.decode(errors="replace")) else set())
        )
        # Modules may lie in folders that were passed by.
        passed = any(map(chosen.has_read, self._passed))
        fits = self._fits and chosen.fits and not passed
        return Read(chosen.files, fits, named, contents=chosen.contents)

    def _beside(self, path: str) -> Iterator[str]:
        """Yield the settings that lie with weights which a word names, or in the folder above."""
        folder = os.path.dirname(path)
        for place in (folder, os.path.dirname(folder)):
            if not f"{self._folder}/".startswith(f"{place}/") and place not in self._too_wide:
                entries = self._texts.entries(place, MOST_IN_FOLDER)
                yield from (entry.path for entry in entries if is_beside_weights(entry.name))
