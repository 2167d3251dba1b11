# SPDX-License-Identifier: Apache-2.0
"""Types of a backtest of audit rules.

As in model.py, units are the last word of a name, and None means not known and is never 0.
"""

from datetime import date, datetime
from typing import NamedTuple


class Tally(NamedTuple):
    """What one rule found and whom it would have told, in one run or in all; ``rule`` is empty for all rules.

    Of ``steps`` runs it could judge something in ``steps_judged``; where that is none, nothing else is known.
    ``users`` and ``jobs`` are each counted once. ``jobs`` is None of what is no job. ``gpu_hours`` is None where a sum
    would count an hour twice: of several rules, and of windows that overlap. ``mails`` are digests, one for each user
    and run; ``actions`` are jobs that would have been held or cancelled.
    """

    rule: str
    code: str
    steps: int
    steps_judged: int
    findings: int | None
    users: int | None
    jobs: int | None
    gpu_hours: float | None
    first_notices: int | None
    second_notices: int | None
    mails: int | None
    actions: int | None


class Step(NamedTuple):
    """One run of the rules over the window that ends ``until``: what there was to judge, and what came of it.

    ``mailed`` is the day on which its mails would have gone, None where they would have waited for the next run.
    """

    since: datetime
    until: datetime
    mailed: date | None
    runs: int
    runs_measured: int
    coverage_pct: float | None
    total: Tally
    rules: tuple[Tally, ...]


class Backtest(NamedTuple):
    """Rules over past windows, each ``window_s`` long and ``step_s`` after the one before; ``quiet_s`` between notices.

    ``file`` is where the rules are from, empty for the site's. ``visible`` says whose jobs these are, where they are
    not everybody's. ``left_out`` names rules about running jobs, which have runs of their own, ``admins_only`` those of
    whose findings no user is told.
    """

    since: datetime
    until: datetime
    step_s: int
    window_s: int
    quiet_s: int
    file: str
    visible: str
    steps: tuple[Step, ...]
    rules: tuple[Tally, ...]
    total: Tally
    left_out: tuple[str, ...] = ()
    admins_only: tuple[str, ...] = ()
