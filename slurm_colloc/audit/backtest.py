# SPDX-License-Identifier: Apache-2.0
"""Rules over past windows as cron would have run them: whom they would have named, and who would have had mail.

All of it is pure: each run's findings come in, what would have gone out comes back.
"""

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from itertools import chain, pairwise
from math import fsum

from slurm_colloc.audit.ladder import (
    ACTION,
    DONE,
    FIRST,
    NOTHING,
    SECOND,
    SENT,
    Notification,
    Planned,
    kept_from_users,
    key_of,
    plan,
    seen_s,
    still,
)
from slurm_colloc.audit.rules import Entry
from slurm_colloc.audit_model import RUNS, Audited, Key
from slurm_colloc.backtest_model import Step, Tally
from slurm_colloc.config_audit import Notices
from slurm_colloc.errors import ConfigError


def windows(since: datetime, until: datetime, step: timedelta, window: timedelta) -> list[tuple[datetime, datetime]]:
    """Return the windows of the runs in (since, until], the last of which ends ``until``, in whole seconds.

    The first of them may reach back before ``since``.
    """
    last = until.replace(microsecond=0)
    count = -(-(last - since) // step)
    ends = [last - number * step for number in reversed(range(count))]
    return [(end - window, end) for end in ends if end > since]


def mail_day(at: datetime, step: timedelta, settings: Notices) -> date | None:
    """Return the day on which a run's mails go: its own, or of a day without mails the next that has them.

    None where a run comes before that: what was found then is told by that one.

    Raises:
        ConfigError: there is no such day.
    """
    for days in range(7):
        day = at.date() + timedelta(days=days)
        if settings.is_workday(day):
            return None if days and (at + step).date() <= day else day
    raise ConfigError("'notices.workdays' leaves no day on which mails go")


def would_notify(
    ran: Sequence[Audited], known: Sequence[Entry], cluster: str | None, step: timedelta, settings: Notices
) -> list[list[Planned]]:
    """Return the steps that each run would have taken, if every mail was handed over and nobody waived anything.

    ``known`` are the rules; ``cluster`` is the site's own, whose users alone are told, None where that is not known.
    """
    telling = {entry.name for entry in known if entry.tells_users}
    told: dict[Key, list[Notification]] = {}
    notices = []
    for run in ran:
        findings = [one for one in run.findings if not kept_from_users(one, cluster, telling)]
        day, at_s = mail_day(run.until, step, settings), run.until.timestamp()
        due = plan(findings, chain.from_iterable(told.values()), (), at_s, settings, works=day is not None)
        made = [one for one in due if one.step != NOTHING]
        for finding in findings:
            before = told.get(key_of(finding), ())
            told[key_of(finding)] = [still(one, finding, at_s, settings) for one in before]
        for one in made:
            key = key_of(one.finding)
            state = DONE if one.step == ACTION else SENT
            told[key].append(
                Notification(*key, one.finding.digest, one.step, seen_s(one.finding, at_s), at_s, "", state)
            )
        notices.append(made)
    return notices


def steps_of(
    ran: Sequence[Audited],
    notices: Sequence[Sequence[Planned]],
    known: Sequence[Entry],
    step: timedelta,
    settings: Notices,
) -> tuple[Step, ...]:
    """Return what came of each run."""
    return tuple(
        Step(
            run.since,
            run.until,
            mail_day(run.until, step, settings),
            run.whole.jobs,
            run.whole.jobs_measured,
            run.whole.coverage_pct,
            _tally([run], [made], known),
            tuple(_tally([run], [made], (entry,), entry) for entry in known),
        )
        for run, made in zip(ran, notices, strict=True)
    )


def in_all(
    ran: Sequence[Audited], notices: Sequence[Sequence[Planned]], known: Sequence[Entry]
) -> tuple[tuple[Tally, ...], Tally]:
    """Return what came of all runs, by rule and of all rules."""
    return tuple(_tally(ran, notices, (entry,), entry) for entry in known), _tally(ran, notices, known)


def _tally(
    ran: Sequence[Audited], notices: Sequence[Sequence[Planned]], of: Sequence[Entry], one: Entry | None = None
) -> Tally:
    """Return what came of these rules, or of the ``one`` that is all of them."""
    rule, code = (one.name, one.rule.code) if one else ("", "")
    names, jobs_of = {entry.name for entry in of}, {entry.name for entry in of if entry.rule.source == RUNS}
    judged = sum(any(_could_judge(run, entry.form) for entry in of) for run in ran)
    if not judged:
        return Tally(rule, code, len(ran), 0, *[None] * 8)
    found = [(run, finding) for run in ran for finding in run.findings if finding.rule in names]
    of_runs = zip(ran, notices, strict=True)
    made = [(run.until, due) for run, steps in of_runs for due in steps if due.finding.rule in names]
    jobs = (run.behind[key_of(finding)] for run, finding in found if finding.rule in jobs_of)
    # Neither of several rules nor of windows that overlap: an hour would count twice.
    summed = one and all(before.until <= after.since for before, after in pairwise(ran))
    return Tally(
        rule=rule,
        code=code,
        steps=len(ran),
        steps_judged=judged,
        findings=len(found),
        users=len({finding.user for _, finding in found if finding.user}),
        jobs=len(frozenset().union(*jobs)) if jobs_of else None,
        gpu_hours=fsum(finding.gpu_hours for _, finding in found) if summed else None,
        first_notices=sum(due.step == FIRST for _, due in made),
        second_notices=sum(due.step == SECOND for _, due in made),
        mails=len({(due.finding.user, until) for until, due in made if due.step != ACTION}),
        actions=sum(due.step == ACTION for _, due in made),
    )


def _could_judge(run: Audited, name: str) -> bool:
    """Return whether a rule could have found something, or had nothing to look at while others had."""
    rows, judged = run.rules.get(name, (0, 0))
    return judged > 0 or (rows == 0 and any(count > 0 for _, count in run.rules.values()))
