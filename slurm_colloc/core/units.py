# SPDX-License-Identifier: Apache-2.0
"""Every conversion between Slurm's, NVML's and our units; Slurm's K, M, G of a count are gres.py's.

Demand rounds up, capacity rounds down. A demand that rounds to zero is an error, because Slurm reads
``--mem=0`` as "the whole node".
"""

import math
import re
from collections.abc import Iterable

from slurm_colloc.core.errors import InputError

BYTES_PER_MIB = 1024 * 1024
# No node has so many devices; a text that names more may be anybody's.
MOST_DEVICES = 1024

# Keeps 0.25 * 100 = 25.000000000000004 from asking for 26 units.
_UNIT_SLACK = 1e-9
_MIB_PER_UNIT = {"": 1 / BYTES_PER_MIB, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}


def whole(text: str) -> int | None:
    """Return the whole number that ASCII digits spell, none beyond 64 bits; None for any other text.

    ``isdigit`` alone takes "²", at which int() fails, and int() fails at more than 4300 digits.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def demand_mib(text: str) -> int:
    """Return the MiB that hold the size ``text`` asks for, rounded up.

    Args:
        text: a number with a unit, ``9G``, ``512M``, ``1.5T``; the unit is 1024-based as in Slurm's --mem.

    Raises:
        InputError: no unit, not a number, zero or negative.
    """
    match = re.fullmatch(r"(?i)(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?", text.strip())
    if match is None:
        raise InputError(f"memory size '{text}' is not a number with a unit; write it like '9G' or '512M'")
    size = size_mib(float(match[1]), match[2].upper())
    if size > 2**53:  # a float beyond holds no whole number of MiB
        raise InputError(f"memory size '{text}' is beyond any GPU")
    mib = math.ceil(size)
    if mib == 0:
        raise InputError(f"memory size '{text}' is zero; a footprint needs at least 1M")
    return mib


def asked_mib(text: str) -> int | None:
    """Return the MiB of a size as Slurm's --mem takes it, MiB where it names no unit; None where it is none, or all."""
    try:
        return demand_mib(f"{text}M" if text.isdecimal() else text)
    except InputError:
        return None


def size_mib(amount: float, letter: str) -> float:
    """Return the MiB in ``amount`` of a unit, not rounded.

    Args:
        amount: how many of it.
        letter: "K", "M", "G", "T" or "P", each 1024 of the one before; "" is a byte.
    """
    return amount * _MIB_PER_UNIT[letter]


def capacity_mib(size_bytes: int) -> int:
    """Return the whole MiB inside ``size_bytes``, rounded down."""
    return size_bytes // BYTES_PER_MIB


def used_mib(size_bytes: int) -> int:
    """Return the MiB that ``size_bytes`` in use occupy, rounded up."""
    return -(-size_bytes // BYTES_PER_MIB)


def demand_units(fraction: float, units_per_whole: int) -> int:
    """Return how many of ``units_per_whole`` shares (mps, shards) hold ``fraction`` of a GPU; rounds up."""
    return max(1, math.ceil(fraction * units_per_whole - _UNIT_SLACK))


def most_of_whole(units: int, units_per_whole: int) -> float:
    """Return the largest fraction of a GPU for which ``demand_units`` asks for no more than ``units`` shares."""
    return (units + _UNIT_SLACK) / units_per_whole


def time_limit_min(text: str) -> float:
    """Return the minutes in a time limit as --time and Slurm's own output write it; infinite for none, as is zero.

    Raises:
        InputError: it is of none of time_span_s's forms.
    """
    span_s = math.inf if text == "-1" else time_span_s(text)
    # Slurm keeps whole minutes and rounds seconds up.
    return span_s if math.isinf(span_s) else float(math.ceil(span_s / 60)) or math.inf


def whole_minutes(duration_min: float) -> int:
    """Return a time limit as Slurm keeps it, rounded up: no job ever starts under a MaxTime of zero."""
    return math.ceil(duration_min)


def time_span_s(text: str) -> float:
    """Return the seconds in a time as Slurm writes and reads it; infinite for "UNLIMITED".

    Forms as in sbatch(1): ``minutes``, ``minutes:seconds``, ``hours:minutes:seconds``, ``days-hours``,
    ``days-hours:minutes``, ``days-hours:minutes:seconds``.

    Raises:
        InputError: none of them.
    """
    if text.lower() in ("unlimited", "infinite"):
        return math.inf
    match = re.fullmatch(r"(?a)(?:(?P<days>\d{1,6})-)?(?P<clock>\d{1,9}(?::\d{1,6}){0,2})", text)
    if match is None:
        raise InputError(f"time limit '{text}' is none of minutes, [days-]hours:minutes:seconds and days-hours")
    parts = [int(part) for part in match["clock"].split(":")]
    if match["days"] is None and len(parts) < 3:
        parts = [0, *parts]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return float(((int(match["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def joules(energy_mj: int) -> float:
    """Return NVML's millijoules as joules."""
    return energy_mj / 1000.0


def watts(milliwatts: int) -> float:
    """Return NVML's milliwatts in watts."""
    return milliwatts / 1000.0


def kilowatt_hours(energy_j: float) -> float:
    """Return joules as kilowatt-hours."""
    return energy_j / 3.6e6


def percent(text: str, what: str) -> float:
    """Return a share in percent given as ``30`` or ``30%``.

    Raises:
        InputError: not a number, zero, negative or above 100; or a decimal up to 1, which may be meant as a fraction.
    """
    number = text.strip().removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        raise InputError(f"{what} '{text}' is not a percentage; write it like '30' or '30%'") from None
    if "%" not in text and "." in number and 0 < value <= 1:
        raise InputError(f"{what} '{text}' may be a fraction or a percentage; write '{100 * value:g}%' or '{value:g}%'")
    if not 0 < value <= 100:  # also refuses nan
        raise InputError(f"{what} '{text}' lies outside 0 to 100 percent")
    return value


def clock_time(duration_s: float) -> str:
    """Return a time span as hours, minutes and seconds: ``12:03:04``."""
    minutes, seconds = divmod(round(duration_s), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def printable(text: str) -> str:
    """Return a text as one line, with what a terminal or a shell would act on made visible, such as an escape."""
    # Most texts are, and a page has many.
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def counted(count: int, what: str) -> str:
    """Return a number of things for people: ``1 task``, ``2 tasks``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def in_words(duration_s: float) -> str:
    """Return a duration for people, to two digits: ``40 s``, ``12 min``, ``1.5 h``, ``30 h``, ``2.5 d``."""
    # Days from two on: "30 h" is easier to grasp than "1.2 d".
    for size_s, least_s, unit in ((86400.0, 172800.0, "d"), (3600.0, 3600.0, "h"), (60.0, 60.0, "min")):
        if duration_s >= least_s:
            number = duration_s / size_s
            return f"{number:.2g} {unit}" if number < 99.5 else f"{number:.0f} {unit}"
    return f"{duration_s:.0f} s"


def at_least(percentage: float) -> str:
    """Return a percentage by tenths that it reaches."""
    return f"{math.floor(10 * percentage + 1e-9) / 10:g}"


def at_most(value: float) -> str:
    """Return a figure as ``significant`` does, of 0 or more, by one that it does not pass."""
    if value < 0.0001:
        return significant(value)
    unit = 10.0 ** min(0, math.floor(math.log10(value)) - 2)
    return significant(round(math.ceil(value / unit - 1e-9) * unit, 12))


def significant(value: float, digits: int = 3) -> str:
    """Return a figure to so many significant digits, and never by a power of ten."""
    if 0 < abs(value) < 0.0001:
        return "<0.0001" if value > 0 else "just below 0"
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def spans(numbers: Iterable[int]) -> str:
    """Return numbers as --array has them: "1-3,7"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def device_indices(text: str) -> tuple[int, ...]:
    """Return the numbers of devices in ``0,2-4``; none where it holds anything else, or more than a node has."""
    found: list[int] = []
    for item in filter(None, text.split(",")):
        first, dash, last = item.partition("-")
        low, high = whole(first), whole(last if dash else first)
        if low is None or high is None or high >= MOST_DEVICES or len(found) > MOST_DEVICES:
            return ()
        found += range(low, high + 1)
    return tuple(found)
