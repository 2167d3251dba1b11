# SPDX-License-Identifier: Apache-2.0
"""Words for a terminal. Nothing is imported here that a sampler should not carry."""

from datetime import datetime


def printable(text: str) -> str:
    """Return ``text`` with what a terminal would act on made visible: escapes, direction marks, newlines."""
    return "".join(character if character.isprintable() else "?" for character in text)


def stamp(moment: datetime) -> str:
    """Return a time with its offset."""
    return moment.isoformat(sep=" ", timespec="seconds")
