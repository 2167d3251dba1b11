# SPDX-License-Identifier: Apache-2.0
"""Which of the files that were found count, and what each of them is known by."""

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

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
    is_beside_weights,
    is_named,
    kind_of,
    names_in,
    said,
)
from slurm_colloc.estimate.digest import digest
from slurm_colloc.estimate.places import LENGTHENERS, TooMuchError, content_of, roots_in
from slurm_colloc.estimate.texts import Text, Texts

_MOST_FILES, _MOST_BYTES, MOST_IN_FOLDER = 256, 2 * 1024 * 1024, 2000
# Files whose text was kept are read for so long, as those of which none was.
_MOST_S = 0.1
# Larger files are data, whose size counts, in steps of an eighth; nobody writes code of that length.
_TEXT_BYTES, _CODE_BYTES = 256 * 1024, 1024 * 1024
_MOST_SIZES, _MOST_BESIDE = 256, 32
_BINARY = (b"\x7fELF", b"PK\x03\x04")
_PROGRAMS = frozenset({"", "so", "exe", "jar", "pyz", "whl", "mexa64"})
# A program reads whatever lies in a folder by these.
_LISTERS = frozenset(b"glob listdir list_files files scandir iterdir readdir walk ImageFolder load_dataset".split())
_LISTS = rb"glob|listdir|list[._]files|scandir|iterdir|readdir|os\.walk|ImageFolder|load_dataset"
# A line of a program has one of these if it writes the file which it names.
_WRITES = rb"(?i)[\"']\s*,\s*(?:mode\s*=\s*)?[\"'][wax]|dump|save|write|\.to_\w+\(|>"
_PARTS, _PART_BYTES = 16, 64 * 1024


class Chosen:
    """The files that count; ``names`` are all that stand in them and among the words."""

    def __init__(
        self,
        words: set[bytes],
        script: bytes,
        labels: Collection[str],
        until_s: float,
        places: tuple[str, Collection[str]],
        texts: Texts,
    ) -> None:
        self._folder, self._places = places
        self.files: dict[str, str] = {}
        self._heard: list[Collection[bytes]] = []
        self._leads: dict[tuple[str, str], None] = {}
        self.roots: dict[str, None] = {}
        self.listed: set[bytes] = set()
        self.weighty: set[str] = set()
        self._followed = 0
        self._own, self._texts = digest(script, 8), texts
        self._asked, self.contents = set(map(as_word, labels)), Contents(texts)
        self.said = self.contents.said
        self.fits = True
        self._words, self.names, self._until_s, self._bytes = frozenset(words), set(words), until_s, 0
        self._by_name: set[tuple[str, str]] = set()

    def leads(self, most: int) -> list[tuple[str, str]]:
        """Return what was named since the last time, with the folder of what names it, and no more than so many."""
        leads_new = list(self._leads)[self._followed : most]
        self._followed += len(leads_new)
        return leads_new

    def named_in(self, folder: str) -> list[str]:
        """Return what lies in a folder of which a file that counts has the name."""
        names = [entry.name for entry in self._texts.entries(folder, MOST_IN_FOLDER)]
        return [
            name
            for name in names
            # All of a package of R is read.
            if as_word(name).partition(b".")[0] in self.said or (name == "R" and "DESCRIPTION" in names)
        ]

    def add_size(self, path: str, least_bytes: int = _TEXT_BYTES) -> None:
        """Add the size of a file, where it is too long to be text unless told otherwise."""
        size = self._texts.size_of(path)
        if size > least_bytes:
            self.files.setdefault(path, f"{_eighths(size)} eighths")

    def add_largest(self, folder: str, *, is_globbed: bool) -> None:
        """Add the size of the largest file of a folder of data, and of one that is run through what settings it has."""
        sizes, names = _sizes(folder, self._texts)
        settings = [name for name in names if kind_of(name) == "settings"] if is_globbed else []
        keys = [_said_in(os.path.join(folder, name), self._texts) for name in settings[:_MOST_BESIDE]]
        if any(sizes):
            self.files[f"{folder}/*"] = " ".join([f"{_eighths(max(sizes))} eighths", *keys])

    def told(self) -> list[bytes]:
        """Return what the run is called of which a file that counts says something."""
        return sorted(label for label in self._asked if any(label in names for names in self._heard))

    def has_read(self, name: str) -> bool:
        """Return whether a file that counts says something of that name."""
        return as_word(name) in self.names - self._words

    def from_folders(self, folders: Mapping[str, list[str]], named: Collection[str]) -> None:
        """Add what is named, and again what that names; then the kinds of files of which none in a folder is named."""
        folders_named = [one for one in named if not f"{self._folder}/".startswith(f"{one}/") or one == self._folder]
        in_named = {
            folder
            for folder in folders
            if any(f"{folder}/".startswith(f"{place}/") for place in folders_named)
            or as_word(os.path.basename(folder)) in self._words
        }
        # What a run left behind is never read, and what a name says is asked once.
        waiting = {
            (folder, name): kind
            for folder, names in folders.items()
            for name in names
            if (kind := kind_of(name)) != "results"
        }
        self.weighty |= {folder for folder, name in waiting if ending_of(name) in WEIGHTS}
        while waiting:
            files_read = [one for one, kind in waiting.items() if self._is_read(*one, kind, one[0] in in_named)]
            if not files_read:
                has_code = any(kind_of(os.path.basename(path)) == "code" for path in self.files)
                files_read = [one for one, kind in waiting.items() if self._may_be_read(*one, kind, has_code)]
            if not files_read:
                break
            for folder, name in sorted(files_read):
                self.add(os.path.join(folder, name))
                del waiting[folder, name]

    def _is_read(self, folder: str, name: str, kind: str, in_named: bool) -> bool:
        ending, whole = ending_of(name), as_word(name)
        if kind == "data":
            is_weight = in_named and ending in WEIGHTS
            is_module = re.search(r"\.so[\d.]*$", name) and (in_named or whole.partition(b".")[0] in self.names)
            return bool(is_weight or is_module) or whole in self.names or is_named(name, self._words, self._words)
        if folder in self.weighty and is_beside_weights(name):
            # A pipeline has a folder for each of its parts.
            return in_named or not self.names.isdisjoint(map(as_word, folder.split("/")[-2:]))
        if kind == "settings" and re.fullmatch(RESULTS_FOLDERS, base := os.path.basename(folder)):
            return whole in self.said and self.contents.ask_for(f"{base}/{name}")
        if kind == "settings" and whole not in self._words and whole in self.said and self.contents.write(name):
            return False
        composed = kind != "code" or b"importlib" in self.names
        if (
            whole in self.names
            if ending in SHELL
            else is_named(name, self.names, self.names if composed else self._words)
        ):
            self._by_name.add((folder, ending))
            return True
        return ending in COMPILED or name in ("__init__.py", "__main__.py")

    def _may_be_read(self, folder: str, name: str, kind: str, has_code: bool) -> bool:
        ending, base = ending_of(name), os.path.basename(folder)
        by_name = (folder, ending) in self._by_name and f"*.{ending}".encode() not in self.names
        is_read = kind == "settings" and folder not in self.weighty
        is_read = is_read and not (re.fullmatch(ASIDE, base) or re.fullmatch(RESULTS_FOLDERS, base))
        is_read = is_read and not (as_word(name) in self.said and self.contents.write(name))
        if ending in WRITTEN_BY_PROGRAMS:
            # Beneath what a word names they are read by their place.
            is_read = any(f"{folder}/".startswith(f"{place}/") for place in self._places) or folder == self._folder
        if kind == "code" and ending not in SHELL:
            is_read = not has_code or as_word(base) in self.names
        return is_read and not by_name and not re.fullmatch(OF_TOOLS, name)

    def add(self, path: str) -> None:
        """Read a file, or look at its size."""
        if path in self.files:
            return
        name = os.path.basename(path)
        kind = kind_of(name)
        if len(self.files) >= _MOST_FILES or self._bytes >= _MOST_BYTES or time.monotonic() > self._until_s:
            self.fits = False
            return
        mark_before, text = self._texts.find(path)
        content, size, mark = content_of(path, _CODE_BYTES if kind == "code" else _TEXT_BYTES, mark_before)
        self._texts.marks[path] = mark
        if size < 0:
            return
        if kind == "code" and size > _CODE_BYTES:
            self.fits = False
        if not (mark and mark == mark_before):
            if not content and size:
                is_program = kind == "data" and ending_of(name) in _PROGRAMS and _is_program(path)
                by_content = kind == "settings" or is_program
                began = _begins(path, size if is_program else 0) if by_content else ""
                self.files[path] = f"{size} {began}" if by_content else f"{_eighths(size)} eighths"
                return
            text = _text_of(path, kind, content)
            self._texts.add(path, mark, text, content)
        self._bytes += size
        if text.key == self._own:  # the job's own script, of which its words count
            return
        self.names.update(text.names)
        if text.is_text:
            self._heard.append(text.names)
            self._asked.update(text.labels)
        if text.is_program:
            self.contents.add(path, content)
            self.listed.update(text.listed)
            self.roots |= dict.fromkeys(text.roots)
            self._leads |= dict.fromkeys((os.path.dirname(path), word) for word in text.leads)
        self.said.update(text.names if text.is_program else text.modules)
        self.files[path] = text.key


def _text_of(path: str, kind: str, content: bytes) -> Text:
    """Return what counts of what a file holds."""
    if b"\0" in content[:1024]:
        # A program names what it opens, and the libraries that it is linked with.
        is_linked = content.startswith(_BINARY)
        named = {name for name in names_in(content) if b"." in name} if is_linked else ()
        return Text(digest(content, 8), named, modules={name.partition(b".")[0] for name in named})
    ending = ending_of(os.path.basename(path))
    if content.startswith(b"#!") and kind == "data":
        kind, ending = "code", "py" if b"python" in content[:64] else "sh"
    labels = set[str]()
    content = said(content, ending, labels)
    names = names_in(content)
    text = Text(digest(content, 8), names, is_text=True, labels=sorted(map(as_word, labels)))
    if kind not in ("code", "settings"):
        return text
    # The names tell at once whether there is any such line.
    listed = names_in(b" ".join(_lines_with(_LISTS, content))) if names & _LISTERS else ()
    roots = tuple(roots_in(content, os.path.dirname(path))) if names & LENGTHENERS else ()
    leads = sorted(elsewhere(content))
    return text._replace(is_program=True, leads=leads, roots=roots, listed=listed)


class Contents(Mapping[str, bytes]):
    """The contents of code and settings, by path; a file of which all that counts was kept is read when asked.

    ``said`` are the names that stand in them, ``texts`` what is kept of them and of what they were.
    """

    def __init__(self, texts: Texts | None = None) -> None:
        self._held: dict[str, bytes] = {}
        self.texts = texts or Texts()
        self._took_s = 0.0
        self.said: set[bytes] = set()

    def ask_for(self, name: str) -> bool:
        """Return whether one of them names a file, and none writes it in a line that names it."""
        return any(_lines_of(name, text) for text in self.values()) and not self.write(name)

    def ask_for_own(self, path: str) -> bool:
        """Return whether one of them asks for one of them: for a module by its name alone."""
        name = os.path.basename(path)
        word = name if kind_of(name) == "settings" else name.partition(".")[0]
        return path in self and as_word(word) in self.said and self.ask_for(word)

    def write(self, name: str) -> bool:
        """Return whether one of them writes a file of that name."""
        return any(re.search(_WRITES, line) for text in self.values() for line in _lines_of(name, text))

    def add(self, path: str, content: bytes) -> None:
        self._held[path] = content

    def __getitem__(self, path: str) -> bytes:
        """Return what a file holds.

        Raises:
            TooMuchError: reading those that were not held takes too long.
        """
        if not self._held[path]:
            if self._took_s > _MOST_S:
                raise TooMuchError(path)
            began_s = time.monotonic()
            self._held[path] = content_of(path, _CODE_BYTES)[0]
            self._took_s += time.monotonic() - began_s
        return self._held[path]

    def __contains__(self, path: object) -> bool:
        return path in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


def _lines_of(name: str, text: bytes) -> list[bytes]:
    word = name.encode(errors="surrogateescape")
    return [line for line in text.split(b"\n") if word in line] if word in text else []


def _eighths(size: int) -> int:
    """Return a size in eighths of the power of two below it, counted from 1: a few bytes more are no difference."""
    power = size.bit_length() - 1
    return power * 8 + (size * 8 >> power) - 8


def _begins(path: str, size: int = 0) -> str:
    """Return a key of the first part of a file that is too long to be read: settings stand before data, if at all.

    A program so large is read in parts of the rest, too, the last among them: its build's mark or its table of contents
    makes it another after it was built anew.
    """
    with suppress(OSError, ValueError), open(path, "rb") as stream:
        parts = [stream.read(_TEXT_BYTES)]
        for number in range(1, _PARTS + 1 if size else 0):
            stream.seek((size - _PART_BYTES) * number // _PARTS)
            parts.append(stream.read(_PART_BYTES))
        return digest(b"".join(parts), 8)
    return ""


def _is_program(path: str) -> bool:
    with suppress(OSError, ValueError), open(path, "rb") as stream:
        return stream.read(4).startswith(_BINARY)
    return False


def _sizes(folder: str, texts: Texts) -> tuple[list[int], list[str]]:
    """Return how large the files are in a folder of data and in those beneath, and the names of those in it.

    A folder that has code anywhere gives none: its files are looked at by name.
    """
    sizes: list[int] = []
    names: list[str] = []
    folders = [folder]
    for below in folders:
        entries = texts.entries(below, MOST_IN_FOLDER)
        for entry in (entry for entry in entries if not entry.name.startswith(".")):
            if entry.is_dir(follow_symlinks=False):
                is_deep = below != folder or len(folders) > _MOST_BESIDE
                folders += [] if is_deep or entry.name in CACHES else [entry.path]
            elif kind_of(entry.name) == "code":
                return [], []
            elif len(sizes) < _MOST_SIZES:
                names += [entry.name] if below == folder else []
                sizes.append(max(0, texts.size_of(entry.path)))
    return sizes, names


def _lines_with(pattern: bytes, content: bytes) -> Iterator[bytes]:
    for line in content.split(b"\n"):
        last = 0
        for match in re.finditer(pattern, line):
            # Each part of one long line is taken about once.
            if match.start() >= last:
                last = match.end() + 200
                yield line[max(0, match.start() - 200) : last]


def _said_in(path: str, texts: Texts) -> str:
    texts.see(path)
    content, size, _ = content_of(path, _TEXT_BYTES)
    return digest(said(content, ending_of(path)), 8) if content else str(size)
