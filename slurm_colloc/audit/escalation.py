# SPDX-License-Identifier: Apache-2.0
"""Decides who is notified of which finding, first or again, and which jobs are held or cancelled: pure functions.

A finding is told when it is new. It is told again, as a second notice, after the quiet period, where something is newer
than the first. A finding that was absent for a quiet period and a day begins anew. Nothing counts as told that was not
handed over to the mail service. A job that runs is told of once, unless something is to be done to it.

Both notices about such a job are about one idle spell of this run of it. Each finding says since when the job idles:
if that is later than the last reading by which it was found before, the job worked in between, or nobody knows, and
all begins anew. After the second notice's deadline the job is acted on, where the site says so, if a reading from after
it shows it idle still.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from slurm_colloc.core.audit_model import JOB, Finding, Key
from slurm_colloc.core.config_audit import Notices

NOTHING, FIRST, SECOND, ACTION = range(4)
# A message becomes one of these. One that is DOUBTFUL was being handed over: it may have gone, and does not go again.
# One that was not taken is not kept: the next run tells of what is still found.
DOUBTFUL, SENT = "handing over", "handed over"
# An action becomes begun, and then one of these. A FAILED one is tried again, an UNABLE one, which Slurm never does, is
# not. Slurm had the command of a TRIED one, and may obey it yet: it did not answer, or the job ran on.
BEGUN, TRIED, DONE, FAILED, UNABLE = "begun", "tried", "done", "failed", "impossible"
DAY_S = 86_400.0


class Notification(NamedTuple):
    """A step that was taken about a finding: which one, by which message, and what became of that.

    A message about several findings is one of these for each. One that takes no step, as the admins' and the one about
    an action, has no ``rule``, and NOTHING as its step. The ``message`` of an ACTION is "hold" or "cancel".

    ``last_seen_s`` is as ``seen_s`` of what was found last. ``since_s`` is when it was handed over, and of an action
    when it was taken first; ``changed_s`` is since when it is in its state. ``topic`` is what a message is one of
    several of, and ``reply`` is what is known of a doubt or what Slurm said.
    """

    rule: str
    about: str
    cluster: str
    subject: str
    digest: str
    step: int
    last_seen_s: float
    since_s: float
    message: str
    state: str
    user: str = ""
    recipient: str = ""
    topic: str = ""
    reply: str = ""
    changed_s: float = 0.0


class Waiver(NamedTuple):
    """Why a user is not told of one rule or (empty) all, of one subject or all; ``until_s`` None: for good."""

    user: str
    rule: str
    subject: str
    until_s: float | None
    by: str
    why: str


class Planned(NamedTuple):
    """The step that is due for a finding now; ``why`` says why none is, or what the step rests on."""

    finding: Finding
    step: int
    why: str


def key_of(finding: Finding | Notification) -> Key:
    """Return what notices of a finding are kept by."""
    return finding.rule, finding.about, finding.cluster, finding.subject


def in_doubt(
    message: str, user: str, recipient: str, at_s: float, steps: Iterable[Planned] = (), topic: str = ""
) -> list[Notification]:
    """Return a message with these steps, or with none, as it is while it is handed over."""
    fields = at_s, message, DOUBTFUL, user, recipient, topic, "", at_s
    keys = [(*key_of(due.finding), due.finding.digest, due.step, seen_s(due.finding, at_s)) for due in steps]
    return [Notification._make((*key, *fields)) for key in keys or [("", "", "", "", "", NOTHING, at_s)]]


def kept_from_users(finding: Finding, cluster: str | None, telling: Collection[str]) -> str:
    """Return why nobody but the admins is told of a finding, whatever was told before; empty where its user may be.

    ``telling`` names the rules that tell users. A name is a person's on one cluster; the others have audits of their
    own. No cluster is another one where ``cluster`` is not known.
    """
    if cluster is not None and finding.cluster != cluster:
        return f"not told: of cluster '{finding.cluster}'"
    return "" if finding.rule in telling else "not told: 'audit.rule.tell' is 'admins'"


def plan(
    findings: Iterable[Finding],
    notifications: Iterable[Notification],
    waivers: Sequence[Waiver],
    now_s: float,
    settings: Notices,
    *,
    works: bool = True,
) -> list[Planned]:
    """Return what is due for each finding; ``works`` says whether people are told today at all."""
    before: dict[Key, list[Notification]] = {}
    for row in notifications:
        if row.step != ACTION or row.state in (DONE, UNABLE):  # one that failed, or was cut short, is none
            before.setdefault(key_of(row), []).append(row)
    return [
        _due(finding, before.get(key_of(finding), ()), waivers, now_s, settings, works=works) for finding in findings
    ]


def _due(
    finding: Finding,
    before: Sequence[Notification],
    waivers: Sequence[Waiver],
    now_s: float,
    settings: Notices,
    *,
    works: bool,
) -> Planned:
    if not finding.user:
        return Planned(finding, NOTHING, "nobody is answerable for it")
    for waiver in waivers:
        if _waives(waiver, finding, now_s):
            return Planned(finding, NOTHING, f"waived by {waiver.by}: {waiver.why}")
    if not works:
        return Planned(finding, NOTHING, "no workday")
    series = before
    if finding.about == JOB:
        if before and (finding.rule not in settings.actions or finding.idle_since_s is None):
            return Planned(finding, NOTHING, "told of this job")
        # A job that was requeued is a new one, and each of its spells has evidence of its own.
        run = [row for row in before if row.digest.partition("+")[0] == finding.digest.partition("+")[0]]
        series = [row for row in run if row.last_seen_s >= same_since_s(finding, now_s, settings)]
        if spells := len({row.digest for row in run} - {row.digest for row in series}):
            finding = finding._replace(digest=f"{finding.digest}+{spells}")
    return Planned(finding, *_next(finding, series, now_s, settings))


def _waives(waiver: Waiver, finding: Finding, now_s: float) -> bool:
    return (
        waiver.user == finding.user
        and waiver.rule in ("", finding.rule, finding.code)
        and waiver.subject in ("", finding.subject)
        and (waiver.until_s is None or now_s < waiver.until_s)
    )


def seen_s(finding: Finding, now_s: float) -> float:
    """Return when it was so: now, or of a job that runs at its last reading."""
    return finding.newest_s if finding.about == JOB and finding.newest_s is not None else now_s


def same_since_s(finding: Finding, now_s: float, settings: Notices) -> float:
    """Return when it must have been found, or later, to be the same still.

    That is since a job idles. Else a day more than the quiet period: runs of cron so far apart are no pause.
    """
    if finding.idle_since_s is not None:
        return finding.idle_since_s
    return now_s - (settings.quiet_days + 1) * DAY_S


def still(notification: Notification, finding: Finding, now_s: float, settings: Notices) -> Notification:
    """Return a step that was taken, of the same subject, with when that was found last."""
    if notification.last_seen_s < same_since_s(finding, now_s, settings):
        return notification
    return notification._replace(last_seen_s=seen_s(finding, now_s))


def deadline_min(settings: Notices) -> float:
    """Return the minutes from the second notice about a job until it is acted on: twice those between the notices."""
    return 2 * settings.job_wait_min


def _next(finding: Finding, series: Sequence[Notification], now_s: float, settings: Notices) -> tuple[int, str]:
    """Return the step, and why, that follows those that were taken."""
    if all(row.last_seen_s < same_since_s(finding, now_s, settings) for row in series):
        return FIRST, "new"
    last = max(series, key=lambda row: (row.since_s, row.step))
    if last.step == ACTION:
        done = last.state == DONE
        return NOTHING, f"acted on: {last.message}" if done else f"{last.message} is impossible for this job"
    quiet_s, job = settings.quiet_days * DAY_S, finding.about == JOB
    if last.state != SENT:  # the same step, of newer evidence
        if finding.digest == last.digest or now_s < last.since_s + quiet_s:
            return NOTHING, f"its notice is in doubt: {last.message}"
        return last.step, "the one before is in doubt"
    if job:
        quiet_s = 60 * (settings.job_wait_min if last.step == FIRST else deadline_min(settings))
    if now_s < last.since_s + quiet_s:
        return NOTHING, "told, and the quiet period is not over"
    newer = finding.digest != last.digest if finding.newest_s is None else finding.newest_s > last.since_s
    if not newer:
        return NOTHING, "told, and nothing newer was found"
    if not job or last.step == FIRST:
        return SECOND, "still found after the quiet period"
    if {row.step for row in series if row.state == SENT} != {FIRST, SECOND}:
        return NOTHING, "not both of its notices were handed over"
    if finding.newest_s is None or finding.newest_s <= last.since_s + quiet_s:
        return NOTHING, "told twice, and no reading is from after the deadline"
    return ACTION, "told twice, and the deadline is over"
