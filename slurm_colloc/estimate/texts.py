# SPDX-License-Identifier: Apache-2.0
"""Texts of a folder's files that were read before, for as long as inode, size and times say that they are the same.

One file for each folder that is submitted from, used where there are more than a few files to read. Unless it lies on
a disk of this host a file is opened all the same, for without that a network file system may tell times of a minute
ago. Programs and settings are kept whole behind the texts: the form of one is made once it was edited.
"""

import json
import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from slurm_colloc import __version__
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import read_own
from slurm_colloc.estimate.content import ending_of
from slurm_colloc.estimate.digest import digest
from slurm_colloc.estimate.places import mark_of

ENDING = ".texts"
_FEW, _LIMIT_BYTES, _SEAL_BYTES = 16, 4 * 1024 * 1024, 64
_LETTERS = "latin-1"  # names may be any bytes
# A submission waits so long for the forms of what files were before they were edited, of the last so many edits.
_MOST_S, _MOST_EDITS = 0.03, 8
FORM_BYTES = 128 * 1024


class Text(NamedTuple):
    """The part of a file that counts: ``leads`` are paths elsewhere that it names, ``roots`` folders that it looks for
    modules in, ``listed`` names beside calls that list folders, ``labels`` its names of runs, ``modules`` a binary's.
    """

    key: str
    names: Collection[bytes] = ()
    labels: Collection[bytes] = ()
    modules: Collection[bytes] = ()
    listed: Collection[bytes] = ()
    is_text: bool = False
    is_program: bool = False
    leads: Collection[str] = ()
    roots: Collection[str] = ()


_NOTHING = Text("")


class Seen(NamedTuple):
    """What was seen as a job's files were read: the same files, to the same end, for as long as all of it holds.

    ``key`` is of the job, what lies in its folders, and all this; empty where nothing is to be relied on. ``marks`` are
    those of all else that was looked at, ``variables`` those of the environment that the files name.
    """

    key: str = ""
    marks: Mapping[str, str] = {}
    variables: tuple[str, ...] = ()


class Texts:
    """The texts of one folder's jobs; nothing is known and nothing kept if there is no path of a file.

    ``last`` are the files of the last submission of the same script, and what was seen then; ``marks`` of what is now.
    """

    def __init__(self, data_folder: str = "", runs_in: str = "") -> None:
        key = digest(runs_in)
        self.path = os.path.join(data_folder, "submitted", f"{key}{ENDING}") if data_folder else ""
        self._asked, self._known, self._new = 0, dict[str, list[Any]](), dict[str, list[Any]]()
        self._before, self._contents, self._until_s = dict[str, bytes](), dict[str, bytes](), 0.0
        self.marks: dict[str, str] = {}
        self.last: tuple[Mapping[str, str], Seen] = {}, Seen()

    def see(self, path: str) -> None:
        """Note that a file or folder is looked at; before that, so that a change in between is one to the next."""
        self.marks[path] = mark_of(path)

    def size_of(self, path: str) -> int:
        """Return the size of what is there; -1 where nothing is."""
        size = mark_of(path, "0")
        self.marks.setdefault(path, size)
        return int(size) if size.isdecimal() else -1

    def entries(self, folder: str, most: int) -> list[os.DirEntry[str]]:
        """Return so many entries of a folder by name; a folder that cannot be read has none."""
        self.see(folder)
        with suppress(OSError, ValueError), os.scandir(folder) as entries:
            return sorted(islice(entries, most), key=lambda entry: entry.name)
        return []

    def expect(self, count: int) -> None:
        """Load what is known before so many files are asked for, if they are more than a few."""
        if count >= _FEW and self.path and not self._known:
            with suppress(StoreError, ValueError):
                body, _, seal = read_own(self.path, _LIMIT_BYTES).rpartition(b"\0")
                release, head, *contents = body.split(b"\0")
                # Else it is damaged, or of another release.
                if seal == digest(body).encode() and release == __version__.encode():
                    self._known = json.loads(head)
                    self._before = dict(zip(self._known, contents, strict=True))

    def find(self, path: str) -> tuple[str, Text]:
        """Return what is known of a file, and the mark with which that holds: empty where nothing is."""
        self._asked += 1
        if self._asked == _FEW:
            self.expect(_FEW)
        with suppress(KeyError):
            mark, key, words, *rest, _ = self._known[path]
            return mark, Text._make((key, *(text.encode(_LETTERS).split() for text in words), *rest))
        return "", _NOTHING

    def add(self, path: str, mark: str, text: Text, content: bytes) -> None:
        """Keep a text, and all of a program; one that has no mark would never hold."""
        if not mark:
            return
        words = [b" ".join(one).decode(_LETTERS) for one in (text.names, text.labels, text.modules, text.listed)]
        more = text.is_text, text.is_program, list(text.leads), list(text.roots)
        self._new[path] = [mark, text.key, words, *more, {}]
        is_whole = text.is_program and len(content) <= FORM_BYTES and b"\0" not in content
        self._contents[path] = content if is_whole else b""

    def keeps(self, path: str, key: str) -> bool:
        """Return whether the form of a file that is known by this can be made once it was edited."""
        text = self._new.get(path) or self._known.get(path) or ("", "")
        content = self._contents.get(path, self._before.get(path))
        return bool(self.path and self._asked >= _FEW and text[1] == key and content)

    def forms(self, path: str) -> dict[str, str]:
        """Return the forms that a file had before, by what it was known by then."""
        text = self._known.get(path, ["", "", {}])
        forms: dict[str, str] = text[-1]
        self._until_s = self._until_s or time.monotonic() + _MOST_S
        if self._before.get(path) and text[1] not in forms and time.monotonic() < self._until_s:
            from slurm_colloc.estimate.forms import form_of  # after an edit alone

            forms[text[1]] = form_of(self._before[path], ending_of(path))
        return forms

    def written(self) -> bytes:
        """Return what is to be written; empty where nothing is."""
        is_known = all(self._known.get(path, [""])[0] == text[0] for path, text in self._new.items())
        if self._asked < _FEW or not self.path or is_known:
            return b""
        contents = self._before | self._contents
        for path, text in self._new.items():
            text[-1] = dict(list(self.forms(path).items())[-_MOST_EDITS:])
        for texts in (self._known | self._new, self._new):
            head = __version__, json.dumps(texts)
            body = b"\0".join([*map(str.encode, head), *(contents[path] for path in texts)])
            if len(body) < _LIMIT_BYTES - _SEAL_BYTES:
                return b"\0".join([body, digest(body).encode()])
        return b""
