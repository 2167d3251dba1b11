# SPDX-License-Identifier: Apache-2.0
"""Job runs from sacct: live, or from text that a site exported.

Live rows are asked for with a delimiter that nobody can guess, new at each call (a job may be named after a known one,
and would then forge rows), and, by -p rather than -P, with that delimiter at the end of each row too, so that names
with pipes and newlines stay whole. No row is lost in silence: what cannot be read is counted
with its reason.
"""

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from slurm_colloc.errors import InputError
from slurm_colloc.model import AllocationRow
from slurm_colloc.process import ask
from slurm_colloc.slurm.gres import parse_tres_gres
from slurm_colloc.slurm.parse import parse_state

# JobName comes last: in text with an ordinary delimiter it may hold that delimiter, and then the rest is the name.
FIELDS = (
    *("JobIDRaw", "JobID", "Cluster", "User", "Account", "Partition", "QOS", "State", "Submit", "Start", "End"),
    *("Suspended", "AllocTRES", "NodeList", "JobName"),
)
NEEDED = ("JobID", "User", "State", "Start", "End", "AllocTRES")
DAY_S = 86400
_EPOCH_DIGITS = 11  # until the year 5138


class Parsed(NamedTuple):
    """Rows of one source; ``steps`` are job steps, which repeat their job's allocation and are not counted."""

    rows: tuple[AllocationRow, ...]
    rows_in: int
    steps: int
    rejected: Mapping[str, int]


def read_live(since_s: float, until_s: float, timeout_s: float, environment: Mapping[str, str]) -> Parsed:
    """Ask sacct for every run that overlaps [since, until).

    Raises:
        ProcessError: sacct fails or does not answer in time.
    """
    delimiter = f"\x1f{secrets.token_hex(8)}\x1f"
    argv = ["sacct", "-a", "-D", "-X", "-p", "-n", "--noconvert", f"--delimiter={delimiter}"]
    argv += ["-S", _stamp(since_s), "-E", _stamp(until_s), "-o", ",".join(FIELDS)]
    output = ask(argv, timeout_s, {**environment, "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"})
    return parse_terminated(output.decode(errors="surrogateescape"), delimiter)


def _stamp(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))


def day_windows(since_s: float, until_s: float) -> Iterator[tuple[float, float]]:
    """Yield the whole days, midnight to midnight UTC, that [since, until) touches.

    Whole ones, because a day's slice replaces what the store has of that day.
    """
    day = int(since_s // DAY_S)
    while day * DAY_S < until_s:
        yield float(day * DAY_S), float((day + 1) * DAY_S)
        day += 1


def day_name(at_s: float) -> str:
    """Return the UTC day of ``at_s``, the name of that day's slice in the store."""
    return time.strftime("%Y-%m-%d", time.gmtime(at_s))


def parse_terminated(text: str, delimiter: str) -> Parsed:
    """Parse the rows that ``read_live`` asks for, ``delimiter`` between columns and before each row's newline."""
    rows = text.split(f"{delimiter}\n")
    leftover = rows.pop()
    parsed = _parse([row.split(delimiter) for row in rows], FIELDS, None)
    if not leftover:
        return parsed
    rejected = Counter({"the output ends within a row": 1})
    return parsed._replace(rows_in=parsed.rows_in + 1, rejected=Counter(parsed.rejected) + rejected)


def parse_text(text: str, fields: Sequence[str], delimiter: str = "|", zone: tzinfo | None = None) -> Parsed:
    """Parse ``sacct -P`` text that a site exported.

    Args:
        text: the rows, with or without a header line.
        fields: the columns' names in order.
        delimiter: as given to sacct.
        zone: of times without one; None refuses such times, because a wrong zone shifts every hour.

    Raises:
        InputError: a column that is needed is missing.
    """
    missing = [name for name in NEEDED if name not in fields]
    if missing:
        raise InputError(f"sacct columns {', '.join(missing)} are missing; export with -o {','.join(FIELDS)}")
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    header = lines[0].split(delimiter) if lines else []
    if {"JobID", "State", "Start"} <= set(header):
        if header[: len(fields)] != list(fields):
            raise InputError(f"the text's own header names other columns: --fields {','.join(header)}")
        lines = lines[1:]
    last_is_name = fields[-1] == "JobName"
    return _parse([line.split(delimiter, len(fields) - 1 if last_is_name else -1) for line in lines], fields, zone)


def _parse(rows: Sequence[Sequence[str]], fields: Sequence[str], zone: tzinfo | None) -> Parsed:
    found, steps = [], 0
    rejected: Counter[str] = Counter()
    for values in rows:
        if len(values) != len(fields):
            rejected[f"{len(values)} columns instead of {len(fields)}"] += 1
            continue
        record = dict(zip(fields, values, strict=True))
        if "." in record["JobID"]:
            steps += 1
            continue
        try:
            found.append(_row(record, zone))
        except InputError as error:
            rejected[str(error)] += 1
    return Parsed(tuple(found), len(rows), steps, rejected)


def _row(record: Mapping[str, str], zone: tzinfo | None) -> AllocationRow:
    if not record["JobID"]:
        raise InputError("the row has no JobID")
    return checked(
        AllocationRow(
            cluster=record.get("Cluster", ""),
            job_id=record["JobID"],
            job_id_raw=record.get("JobIDRaw") or record["JobID"],
            user=record["User"],
            account=record.get("Account", ""),
            partition=record.get("Partition", ""),
            qos=record.get("QOS", ""),
            state=parse_state(record["State"]),
            submit_s=parse_time(record.get("Submit", ""), zone),
            start_s=parse_time(record["Start"], zone),
            end_s=parse_time(record["End"], zone),
            suspended_s=parse_duration(record.get("Suspended", "")),
            gres=parse_tres_gres(record["AllocTRES"]),
            node_list=record.get("NodeList", ""),
            job_name=record.get("JobName", ""),
        )
    )


def checked(row: AllocationRow) -> AllocationRow:
    """Return ``row`` if its times can be those of a run.

    Raises:
        InputError: it ends before it starts, as local times do when summer time ends.
    """
    if row.start_s is not None and row.end_s is not None and row.end_s < row.start_s:
        raise InputError("the run ends before it starts")
    return row


def parse_time(text: str, zone: tzinfo | None) -> int | None:
    """Return a time in epoch seconds: digits, or ISO with an offset or in ``zone``; Unknown, None and empty are None.

    Raises:
        InputError: anything else.
    """
    if text in ("", "Unknown", "None", "0"):
        return None
    if text.isascii() and text.isdigit() and len(text) <= _EPOCH_DIGITS:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"time '{text}' is neither epoch seconds nor ISO 8601") from None
    if moment.tzinfo is None:
        if zone is None:
            raise InputError("times without a zone; say which zone with --timezone")
        moment = moment.replace(tzinfo=zone)
    return int(moment.timestamp())


def parse_duration(text: str) -> int:
    """Return seconds of ``[days-]hours:minutes:seconds[.fraction]``, rounded down; empty is 0.

    Raises:
        InputError: anything else.
    """
    if not text:
        return 0
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    try:
        if len(parts) > 3:
            raise ValueError("more than three parts")
        numbers = [float(part) for part in parts]
        whole = timedelta(
            days=int(days or 0), **dict(zip(("seconds", "minutes", "hours"), reversed(numbers), strict=False))
        )
    except (ValueError, OverflowError):
        raise InputError(f"duration '{text}' is not [days-]hours:minutes:seconds") from None
    return int(whole.total_seconds())
