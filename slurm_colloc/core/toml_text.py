# SPDX-License-Identifier: Apache-2.0
"""The lines of a site.toml that people read: each key with where its value is from, and what is not a key as a comment.

Names of clusters, nodes, partitions and cards come from outside: none of them ends a line.
"""

import re
from collections.abc import Mapping

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.units import printable

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def key_line(key: str, value: object, source: str = "") -> str:
    """Return ``key = value  # source``.

    Raises:
        InputError: a text that TOML cannot hold.
    """
    line = f"{key} = {value_text(value, key)}"
    return f"{line}  # {printable(source)}" if source else line


def note(text: str) -> str:
    """Return a line of comment."""
    return f"# {printable(text)}"


def value_text(value: object, key: str = "value") -> str:
    """Return a value as TOML writes it.

    Raises:
        InputError: bytes outside UTF-8 in a text.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_text(item, key) for item in value) + "]"
    if isinstance(value, Mapping):
        names = (name if _BARE.fullmatch(name) else value_text(name, key) for name in value)
        pairs = (f"{name} = {value_text(item, key)}" for name, item in zip(names, value.values(), strict=True))
        return "{ " + ", ".join(pairs) + " }"
    if value is None:
        return "not set"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str):
        return str(value)
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InputError(
            f"'{printable(value)}' has bytes outside UTF-8, so site.toml cannot hold it as {key}: rename it"
        )
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in escaped) + '"'
