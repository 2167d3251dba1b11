# SPDX-License-Identifier: Apache-2.0
"""Texts of a folder's files that were read before, for as long as inode, size and times say that they are the same.

One file for each folder that is submitted from, used where there are more than a few files to read. A file is opened
all the same, for without that a network file system may tell times of a minute ago.
"""

import json
import os
from collections.abc import Collection
from contextlib import suppress
from typing import Any, NamedTuple

from slurm_colloc import __version__
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import read_own
from slurm_colloc.estimate.digest import digest

_FEW, _LIMIT_BYTES = 16, 4 * 1024 * 1024
_LETTERS = "latin-1"  # names may be any bytes


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


class Texts:
    """The texts of one folder's jobs; nothing is known and nothing kept if there is no path of a file."""

    def __init__(self, data_folder: str = "", runs_in: str = "") -> None:
        key = digest(runs_in)
        self.path = os.path.join(data_folder, "submitted", f"{key}.texts.json") if data_folder else ""
        self._asked, self._known, self._new = 0, dict[str, list[Any]](), dict[str, list[Any]]()

    def find(self, path: str) -> tuple[str, Text]:
        """Return what is known of a file, and the mark with which that holds: empty where nothing is."""
        self._asked += 1
        if self._asked == _FEW and self.path:
            with suppress(StoreError, ValueError, TypeError, RecursionError):
                version, kept = json.loads(read_own(self.path, _LIMIT_BYTES))
                self._known = kept if version == __version__ and isinstance(kept, dict) else {}
        with suppress(KeyError, ValueError, TypeError, AttributeError):
            mark, key, words, *rest = self._known[path]
            return mark, Text._make((key, *(text.encode(_LETTERS).split() for text in words), *rest))
        return "", _NOTHING

    def add(self, path: str, mark: str, text: Text) -> None:
        """Keep a text; one that has no mark would never hold."""
        if not mark:
            return
        words = [b" ".join(one).decode(_LETTERS) for one in (text.names, text.labels, text.modules, text.listed)]
        self._new[path] = [mark, text.key, words, text.is_text, text.is_program, list(text.leads), list(text.roots)]

    def written(self) -> str:
        """Return what is to be written; empty where nothing is."""
        # The first few were read before it was known that there are more.
        if (
            self._asked < _FEW
            or not self.path
            or all(self.find(path)[0] == text[0] for path, text in self._new.items())
        ):
            return ""
        for texts in (self._known | self._new, self._new):
            written = json.dumps((__version__, texts))
            if len(written) <= _LIMIT_BYTES:
                return written
        return ""
