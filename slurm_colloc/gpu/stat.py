# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of one process in /proc/PID/stat."""

from contextlib import suppress
from typing import NamedTuple


class Stat(NamedTuple):
    """One process: a pid alone is used again, with ``start_ticks``, the time at which it began, it is not.

    ``cpu_ticks`` are its own and those of the children that it waited for. One that has ``ended`` waits for its parent.
    """

    pid: int
    parent: int
    start_ticks: int
    command: str
    ended: bool
    cpu_ticks: int


def parse_stat(content: bytes) -> Stat | None:
    """Return what the line says; None for any other text. The name in parentheses may itself hold any of them."""
    pid, _, rest = content.partition(b" (")
    name, _, rest = rest.rpartition(b")")
    fields = rest.split(None, 20)
    with suppress(ValueError, IndexError):
        cpu_ticks = sum(map(int, fields[11:15]))
        ended = fields[0] in (b"Z", b"X")
        return Stat(int(pid), int(fields[1]), int(fields[19]), name.decode(errors="replace"), ended, cpu_ticks)
    return None
