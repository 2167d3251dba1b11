# SPDX-License-Identifier: Apache-2.0
"""What went out, or would have, day by day."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta, tzinfo

from slurm_colloc.audit.ladder import ACTION, SENT
from slurm_colloc.audit.state import MAIL, State
from slurm_colloc.backtested import Day, Step


def by_day(
    first: date,
    last: date,
    runs: Iterable[date],
    notices: Counter[date],
    mails: Counter[date],
    works: Callable[[date], bool],
) -> tuple[Day, ...]:
    """Return each day from ``first`` to ``last``; of one without a run, and without mail, nothing is known."""
    known = {*runs, *notices, *mails}
    days = (first + timedelta(days=number) for number in range((last - first).days + 1))
    return tuple(
        Day(day, works(day), notices[day] if day in known else None, mails[day] if day in known else None)
        for day in days
    )


def tried_by_day(steps: Sequence[Step], works: Callable[[date], bool]) -> tuple[Day, ...]:
    """Return what would have gone out on each day from the first run's to the last one's, or its mails'."""
    notices: Counter[date] = Counter()
    mails: Counter[date] = Counter()
    runs = set()
    for step in steps:
        found = step.total
        # What could not be judged is no day without mail.
        if found.mails is None or found.first_notices is None or found.second_notices is None:
            continue
        runs.add(step.until.date())
        if step.mailed and found.mails:
            mails[step.mailed] += found.mails
            notices[step.mailed] += found.first_notices + found.second_notices
    days = [step.until.date() for step in steps]
    return by_day(min(days), max([*days, *mails]), runs, notices, mails, works)


def sent_by_day(
    state: State, since: datetime, until: datetime, works: Callable[[date], bool], zone: tzinfo | None = None
) -> tuple[Day, ...]:
    """Return what was handed over on each day, of people's mails: the admins' summary is none."""

    def within(at_s: float) -> date | None:
        at = datetime.fromtimestamp(at_s, zone).astimezone(zone)
        return at.date() if since <= at < until else None

    runs = {within(at_s) for at_s in state.good_runs()}
    told = [within(one.since_s) for one in state.told() if one.state == SENT and one.step != ACTION]
    sent = [within(one.changed_s) for one in state.messages(SENT) if one.channel == MAIL and one.user]
    return by_day(
        since.date(),
        (until - timedelta(microseconds=1)).date(),
        filter(None, runs),
        Counter(filter(None, told)),
        Counter(filter(None, sent)),
        works,
    )
