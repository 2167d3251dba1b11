# SPDX-License-Identifier: Apache-2.0
"""Job runs from sacct: live, a day at a time.

Rows are asked for with a delimiter that nobody can guess, new at each call (a job may be named after a known one, and
would then forge rows), and, by -p rather than -P, with that delimiter at the end of each row too, so that names with
pipes and newlines stay whole. The header says what the delimiter is, so that a text that a site exported in this way
(docs/how-to/accounting.md) is read as live rows are.
"""

import math
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, tzinfo
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.process import ask
from slurm_colloc.core.units import time_limit_min
from slurm_colloc.core.usage_model import AllocationRow
from slurm_colloc.slurm.gres import SHOWN
from slurm_colloc.sources.means import JobMeans

# JobName comes last: it may hold the delimiter of the text, and then the rest is the name.
FIELDS = (
    *("JobIDRaw", "JobID", "Cluster", "User", "Account", "Partition", "QOS", "State", "Submit", "Start", "End"),
    *("Suspended", "AllocTRES", "NodeList", "JobName"),
)
NEEDED = ("JobID", "User", "State", "Start", "End", "AllocTRES")
DAY_S = 86400
_EPOCH_DIGITS = 11  # until the year 5138
_MOST_REASONS = 20
# ElapsedRaw alone says of a copied text how long its unfinished runs had run.
# TimelimitRaw is of no use to reports, and a text without it is read as before.
LIMIT = "TimelimitRaw"
# A job could have started from then on: after its dependencies, its --begin and its hold.
ELIGIBLE = "Eligible"
EXPORT = (*FIELDS[:-1], LIMIT, ELIGIBLE, "ElapsedRaw", FIELDS[-1])


class Parsed(NamedTuple):
    """Rows of one source; ``steps`` are job steps, which repeat their job's allocation and are not counted.

    ``means``, where the source brings some, are of the rows, each in the place of its run.
    """

    rows: tuple[AllocationRow, ...]
    rows_in: int
    steps: int
    rejected: Mapping[str, int]
    means: tuple[JobMeans | None, ...] = ()


def bounded(reasons: Mapping[str, int]) -> dict[str, int]:
    """Return the most frequent of these reasons, the others as one: users' words make any number of them."""
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(count for _, count in ranked[_MOST_REASONS:])
    return dict(ranked[:_MOST_REASONS]) | ({"other reasons": rest} if rest else {})


def ask_fields(timeout_s: float, environment: Mapping[str, str], more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return which of FIELDS, and of ``more``, this release's sacct has.

    Raises:
        ProcessError: sacct fails or does not answer in time.
        InputError: it lacks one that is needed.
    """
    return choose_fields(ask(["sacct", "-e"], timeout_s, environment).decode(errors="replace"), more)


def choose_fields(listed: str, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return which of FIELDS, and of ``more``, are among those that ``sacct -e`` lists.

    Raises:
        InputError: one that is needed is not.
    """
    names = set(listed.split())
    check_fields(tuple(names))
    # JobName stays last.
    return tuple(name for name in (*FIELDS[:-1], *more, FIELDS[-1]) if name in names)


def check_fields(fields: Sequence[str]) -> None:
    """Raise InputError where a needed column is missing or one is named twice."""
    missing = [name for name in NEEDED if name not in fields]
    if missing:
        raise InputError(f"sacct columns {', '.join(missing)} are missing; export with -o {','.join(EXPORT)}")
    check_once(fields)


def check_once(fields: Sequence[str]) -> None:
    """Raise InputError where a column is named twice."""
    twice = sorted({name for name in fields if fields.count(name) > 1})
    if twice:
        raise InputError(f"column '{twice[0]}' is named twice; export each one once")


def ask_rows(
    since_s: float,
    until_s: float,
    fields: Sequence[str],
    timeout_s: float,
    environment: Mapping[str, str],
    user: str = "",
    *,
    steps: bool = False,
) -> bytes:
    """Ask sacct for every run that overlaps [since, until), with a header; with ``user`` that user's alone.

    Raises:
        ProcessError: sacct fails or does not answer in time.
    """
    argv = ["sacct", *(["-u", user] if user else ["-a"]), "-D", *([] if steps else ["-X"]), "-p", "--noconvert"]
    argv.append(f"--delimiter=\x1f{secrets.token_hex(8)}\x1f")
    argv += ["-S", _stamp(since_s), "-E", _stamp(until_s), "-o", ",".join(fields)]
    return ask(argv, timeout_s, {**environment, "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"})


def ask_tracked(timeout_s: float, environment: Mapping[str, str]) -> None:
    """Raise InputError where this cluster's accounting does not track GPUs.

    Raises:
        ProcessError: sacctmgr fails or does not answer in time.
    """
    argv = ["sacctmgr", "-n", "-P", "show", "tres", "format=type,name"]
    check_tracked(ask(argv, timeout_s, environment).decode(errors="replace"))


def check_tracked(listed: str) -> None:
    """Raise InputError where ``sacctmgr show tres`` lists no gres/gpu: each job would seem to have had no GPU."""
    if not any(line.split("|")[:2] == ["gres", "gpu"] for line in listed.splitlines()):
        raise InputError(
            "this cluster's accounting does not track GPUs, so that nothing is known of what jobs had of them: add "
            "gres/gpu, and each type as gres/gpu:TYPE, to AccountingStorageTRES in slurm.conf and restart slurmctld"
        )


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


def shown_id(match: re.Match[str]) -> str:
    """Return the id that users write, of a line that names an array's task or a component beside the raw id."""
    if match["array"]:
        return f"{match['array']}_{match['task']}"
    return f"{match['het']}+{match['offset']}" if match["het"] else match["raw"]


def checked(row: AllocationRow) -> AllocationRow:
    """Return ``row`` if its times can be those of a run.

    Raises:
        InputError: it ends before it starts, as local times do when summer time ends.
    """
    if row.start_s is not None and row.end_s is not None and row.end_s < row.start_s:
        raise InputError("the run ends before it starts")
    return row


def parse_limit(text: str) -> int | None:
    """Return the minutes of a time limit as Slurm prints it; None where there is none (UNLIMITED), or it says none."""
    with suppress(InputError):
        limit_min = time_limit_min(text)
        return None if math.isinf(limit_min) else int(limit_min)
    return None


def parse_time(text: str, zone: tzinfo | None) -> int | None:
    """Return a time in epoch seconds; Unknown, None and empty are None.

    Args:
        text: digits, or ISO 8601.
        zone: the zone of a time without an offset; None: this machine's, by the clocks of that day.

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
        raise InputError(f"time '{text[:SHOWN]}' is neither epoch seconds nor ISO 8601") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp())
