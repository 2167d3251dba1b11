# SPDX-License-Identifier: Apache-2.0
"""Days on which people are told."""

from collections.abc import Callable, Collection
from datetime import date

from slurm_colloc.config_audit import Notices
from slurm_colloc.errors import ConfigError, StoreError
from slurm_colloc.files import read_bounded

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MOST_BYTES = 1024 * 1024


def works_by(settings: Notices) -> Callable[[date], bool]:
    """Return what says of a day whether people are told on it.

    Raises:
        ConfigError: the file of holidays cannot be read, or a line of it is no day.
    """
    holidays = parse_holidays(_text(settings.holidays), settings.holidays) if settings.holidays else frozenset()
    return lambda day: is_workday(day, settings.workdays, holidays)


def is_workday(day: date, workdays: Collection[str], holidays: Collection[date]) -> bool:
    """Return whether ``day`` is one of the ``workdays`` of a week ("mon", ...) and no holiday."""
    return _DAYS[day.weekday()] in workdays and day not in holidays


def parse_holidays(text: str, source: str) -> frozenset[date]:
    """Return the days in a file of one day a line, such as 2026-12-25; ``#`` begins a comment.

    Raises:
        ConfigError: a line is none; ``source`` names the file.
    """
    found = set()
    for number, line in enumerate(text.splitlines(), 1):
        day = line.partition("#")[0].strip()
        if not day:
            continue
        try:
            found.add(date.fromisoformat(day))
        except ValueError:
            raise ConfigError(f"'{source}', line {number}: '{day}' is no day such as 2026-12-25") from None
    return frozenset(found)


def _text(path: str) -> str:
    try:
        return read_bounded(path, _MOST_BYTES).decode(errors="replace")
    except StoreError as error:
        raise ConfigError(f"'notices.holidays': {error}") from error
