# SPDX-License-Identifier: Apache-2.0
"""Words for a terminal. Nothing is imported here that a sampler should not carry."""

from datetime import datetime

from slurm_colloc.units import printable

# Those of full width are the same to a spreadsheet that is set to Japanese.
_FORMULA = tuple("=+-@\t\r＝＋－＠")


def local(at_s: float) -> datetime:
    """Return a time as the clocks of this machine have it."""
    return datetime.fromtimestamp(at_s).astimezone()


def stamp(moment: datetime) -> str:
    """Return a time with its offset."""
    return moment.isoformat(sep=" ", timespec="seconds")


def inert(text: str) -> str:
    """Return ``text`` so that a spreadsheet shows it rather than evaluates it."""
    return "'" + printable(text) if text[:1] in _FORMULA else printable(text)
