# SPDX-License-Identifier: Apache-2.0
"""Which letters standard output and error can show. Nothing is imported here that a sampler should not carry."""

import io
import os
import sys
from collections.abc import Mapping


def set_letters() -> None:
    """Have standard output and error escape the letters that they lack, instead of failing over them.

    In the locale C Python writes UTF-8, which is right for files; a terminal of that locale is taken at its word.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            plain = stream.isatty() and asks_for_ascii(environment_at_start())
            stream.reconfigure(encoding="ascii" if plain else None, errors="backslashreplace")


def asks_for_ascii(environment: Mapping[str, str]) -> bool:
    """Return whether a locale's variables, in POSIX' order, name the locale C, or none is set."""
    if environment.get("PYTHONIOENCODING") or environment.get("PYTHONUTF8"):
        return False
    names = (environment.get(variable, "") for variable in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next(filter(None, names), "C") in ("C", "POSIX")


def environment_at_start() -> Mapping[str, str]:
    """Return the environment as it was given: in os.environ Python puts C.UTF-8 in the place of C (PEP 538)."""
    try:
        with open("/proc/self/environ", encoding="utf-8", errors="replace") as stream:
            pairs = (item.partition("=") for item in stream.read().split("\0"))
            return {name: value for name, _, value in pairs}
    except OSError:  # not readable for a program with capabilities of its own
        return os.environ
