# SPDX-License-Identifier: Apache-2.0
"""Mails day by day, as weeks from Monday on, JSON or CSV."""

import json
from datetime import timedelta

from slurm_colloc.backtested import Calendar, Day
from slurm_colloc.report import spreadsheet
from slurm_colloc.report.layout import NO_TERMINAL, Terminal, folded
from slurm_colloc.units import printable

SCHEMA = 1
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_CELL = 9
_NO_RUN = "."
LEGEND = (
    "Each day: notices in mails, as 5 in 2. '.': no run of that day judged anything, so nothing is known. "
    "(In brackets): a day on which no mails go."
)


def as_text(calendar: Calendar, terminal: Terminal = NO_TERMINAL) -> str:
    """Return a line for each week."""
    lines = [f"{'':10}" + "".join(f"{name:>{_CELL}}" for name in _DAYS) + "    mails"]
    for week in _weeks(calendar.days):
        cells = {day.day.weekday(): _cell(day) for day in week}
        monday = week[0].day - timedelta(days=week[0].day.weekday())
        mails = [day.mails for day in week if day.mails is not None]
        shown = "".join(f"{cells.get(number, ''):>{_CELL}}" for number in range(7))
        lines.append(f"{monday.isoformat()}{shown}{sum(mails) if mails else _NO_RUN:>9}")
    notes = [line for text in (LEGEND, printable(calendar.source)) for line in folded(text, terminal.columns)]
    return "\n".join([*lines, "", *notes]) + "\n"


def _weeks(days: tuple[Day, ...]) -> list[list[Day]]:
    weeks: list[list[Day]] = []
    for day in days:
        if not weeks or day.day.weekday() == 0:
            weeks.append([])
        weeks[-1].append(day)
    return weeks


def _cell(day: Day) -> str:
    text = _NO_RUN if day.mails is None else f"{day.notices} in {day.mails}" if day.mails else "0"
    return text if day.works else f"({text})"


def as_json(calendar: Calendar) -> str:
    """Return the days as JSON, null for not known."""
    days = [{**day._asdict(), "day": day.day.isoformat()} for day in calendar.days]
    return json.dumps({"schema": SCHEMA, "source": calendar.source, "days": days}, indent=2) + "\n"


def as_csv(calendar: Calendar) -> str:
    """Return a row for each day."""
    return spreadsheet.as_csv(Day._fields, ((day.day.isoformat(), *day[1:]) for day in calendar.days))
