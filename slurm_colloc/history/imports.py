# SPDX-License-Identifier: Apache-2.0
"""Which files beside a Python program it imports by name: a text is read, nothing is run, and nothing else followed."""

import os
import re
from collections.abc import Iterator
from itertools import islice

# What an import stands in first; a program that is longer than this is not written by hand.
_READ_BYTES = 64 * 1024
_MOST_ENTRIES, _MOST_FILES = 2000, 24
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]++([\w.]++)[ \t]++import[ \t]*(\([^)]{0,4096}\)|[^\n;#]*)|import[ \t]+([^\n;#]+))",
    re.MULTILINE,
)
_NAME = re.compile(r"(?:^|,)\s*([^\W\d][\w.]*)")


def imported_files(code: bytes, folders: tuple[str, ...]) -> list[str]:
    """Return the paths of the files that a program imports, as far as they may lie below these folders.

    Args:
        code: of the program.
        folders: its own, and others where modules may lie.
    """
    if b"import" not in code:
        return []
    modules = dict.fromkeys(_modules(code[:_READ_BYTES]))
    found: dict[str, None] = {}
    for folder in dict.fromkeys(folders):
        here = _names(folder)
        for module in modules:
            top, *rest = module.split(".")
            if f"{top}.py" in here:
                found[os.path.join(folder, f"{top}.py")] = None
            elif top in here:
                place = os.path.join(folder, top, *rest)
                found |= dict.fromkeys([f"{place}.py"] if rest else [])
                found[os.path.join(place, "__init__.py")] = None
    return list(islice(found, _MOST_FILES))


def _modules(code: bytes) -> Iterator[str]:
    """Yield what is imported; of "from a import b" both, for b may be a module of a's."""
    for source, names, plain in _IMPORT.findall(code):
        listed = _NAME.findall((names or plain).decode(errors="replace").strip("() \t\\"))
        package = source.decode(errors="replace").lstrip(".")
        if package:
            yield package
        yield from (f"{package}.{name}" if package else name for name in listed)


def _names(folder: str) -> frozenset[str]:
    """Return what lies in a folder; nothing where that is too much to look at, or cannot be."""
    try:
        with os.scandir(folder or ".") as entries:
            names = frozenset(entry.name for entry in islice(entries, _MOST_ENTRIES + 1))
    except (OSError, ValueError):
        return frozenset()
    return names if len(names) <= _MOST_ENTRIES else frozenset()
