# SPDX-License-Identifier: Apache-2.0
"""Words for a terminal, tables as CSV, and nouns as JSON. Nothing is imported here that a sampler should not carry."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, get_type_hints

from slurm_colloc.core.units import printable

# A job's name may have a thousand.
_NAME_CHARACTERS = 40
# Those of full width are the same to a spreadsheet that is set to Japanese.
_FORMULA = tuple("=+-@\t\r＝＋－＠")


def local(at_s: float) -> datetime:
    """Return a time as the clocks of this machine have it."""
    return datetime.fromtimestamp(at_s).astimezone()


def stamp(moment: datetime) -> str:
    """Return a time with its offset."""
    return moment.isoformat(sep=" ", timespec="seconds")


def window_in_words(since: datetime, until: datetime) -> str:
    """Return a window for people: whole days by their dates, the last one included, others to the minute."""
    zone = f"({', then '.join(dict.fromkeys(f'UTC{moment.isoformat()[-6:]}' for moment in (since, until)))})"
    clocks = {f" {moment:%H:%M:%S}" for moment in (since, until)}
    last = until - timedelta(days=1)
    if clocks != {" 00:00:00"} or last < since:
        return f"{_day(since)} {since:%H:%M} to {_day(until)} {until:%H:%M} {zone}"
    if since.day == until.day == 1 and (since.year, since.month) == (last.year, last.month):
        return f"{since:%B %Y} {zone}"
    # Words that both days have in common are said once.
    begun, end = _day(since).split(), _day(last).split()
    while len(begun) > 1 and begun[-1] == end[len(begun) - 1]:
        begun.pop()
    return f"{' '.join(begun)} to {_day(last)} {zone}" if _day(since) != _day(last) else f"{_day(last)} {zone}"


def _day(moment: datetime) -> str:
    return f"{moment.day} {moment:%B %Y}"


def minute(at_s: float) -> str:
    """Return a time to the minute."""
    return local(at_s).isoformat(sep=" ", timespec="minutes")


def short_name(text: str) -> str:
    """Return a name that somebody chose so that no mail and no page becomes unreadable by it."""
    name = printable(text)
    return name if len(name) <= _NAME_CHARACTERS else f"{name[: _NAME_CHARACTERS - 3]}..."


def inert(text: str) -> str:
    """Return ``text`` so that a spreadsheet shows it rather than evaluates it."""
    return "'" + printable(text) if text[:1] in _FORMULA else printable(text)


def csv_table(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table; None is an empty cell, and a text that a spreadsheet would evaluate begins with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows([inert(value) if isinstance(value, str) else value for value in row] for row in rows)
    return out.getvalue()


def csv_text(kind: type, nouns: Iterable[Any]) -> str:
    """Return nouns of a kind as a table, with their properties; several values of a field are one cell."""
    titles = [name for name, _ in members(kind)]
    rows = ([getattr(noun, title) for title in titles] for noun in nouns)
    return csv_table(titles, ([";".join(cell) if isinstance(cell, tuple) else cell for cell in row] for row in rows))


# Eighths of a line; the first is for 0 alone.
_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], top: float) -> str:
    """Return one sign for each value between 0 and ``top``, blank where there is none."""
    most = len(_BLOCKS)
    return "".join(
        " "
        if value is None
        else _BLOCKS[max(1, min(most, round(most * value / top)) - 1) if min(value, top) > 0 else 0]
        for value in values
    )


def json_text(schema: int, noun: Any) -> str:
    """Return a noun, or a mapping with nouns in it, as a file of JSON that names its schema; null for not known.

    It follows the types, so that it can forget no field.
    """
    return json.dumps({"schema": schema, **json_value(noun)}, indent=2) + "\n"


def json_value(value: Any) -> Any:
    """Return ``value`` as JSON has it: a noun by its fields and properties, times in ISO 8601."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: json_value(getattr(value, name)) for name, _ in members(type(value))}
    if isinstance(value, tuple | list):
        return [json_value(item) for item in value]
    return value


def members(noun: type) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a noun, and its properties, with their types."""
    yield from get_type_hints(noun).items()
    for name, member in vars(noun).items():
        if isinstance(member, property) and member.fget:
            yield name, get_type_hints(member.fget)["return"]
