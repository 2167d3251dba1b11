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

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    """A step that was taken: which, of what evidence, by which message, and what became of that.

    ``last_seen_s`` is as ``seen_s`` of what was found last. ``since_s`` is when it was handed over, and of an action
    when it was taken.
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
    by_key: dict[Key, list[Notification]] = {}
    for notification in notifications:
        by_key.setdefault(key_of(notification), []).append(notification)
    return [Planned(*_due(finding, by_key, waivers, now_s, settings, works)) for finding in findings]


def _due(
    finding: Finding,
    notifications: Mapping[Key, Sequence[Notification]],
    waivers: Sequence[Waiver],
    now_s: float,
    settings: Notices,
    works: bool,
) -> tuple[Finding, int, str]:
    if not finding.user:
        return finding, NOTHING, "nobody is answerable for it"
    for waiver in waivers:
        if _waives(waiver, finding, now_s):
            return finding, NOTHING, f"waived by {waiver.by}: {waiver.why}"
    if not works:
        return finding, NOTHING, "no workday"
    before = notifications.get(key_of(finding), ())
    acts = finding.rule in settings.actions and finding.idle_since_s is not None
    if finding.about == JOB and not acts and before:
        return finding, NOTHING, "told of this job"
    series = _series(finding, before, now_s, settings)
    if finding.about == JOB:  # each spell has evidence of its own
        spells = {notification.digest for notification in before if _of_run(notification, finding)} - {
            notification.digest for notification in series
        }
        finding = finding._replace(digest=f"{finding.digest}+{len(spells)}" if spells else finding.digest)
    if not series:
        return finding, FIRST, "new"
    last = series[-1]
    if last.step == ACTION:
        reason = f"acted on: {last.message}" if last.state == DONE else f"{last.message} is impossible for this job"
        return finding, NOTHING, reason
    if last.state != SENT:
        return finding, *_untold(finding, last, now_s, settings)
    return finding, *_after(finding, series, now_s, settings)


def _waives(waiver: Waiver, finding: Finding, now_s: float) -> bool:
    return (
        waiver.user == finding.user
        and waiver.rule in ("", finding.rule, finding.code)
        and waiver.subject in ("", finding.subject)
        and (waiver.until_s is None or now_s < waiver.until_s)
    )


def _series(
    finding: Finding, notifications: Sequence[Notification], now_s: float, settings: Notices
) -> list[Notification]:
    """Return the steps that this finding goes on from, the last one last."""
    since_s = same_since_s(finding, now_s, settings)
    if finding.about == JOB:  # a job that was requeued is a new one
        notifications = [
            notification
            for notification in notifications
            if _of_run(notification, finding) and notification.last_seen_s >= since_s
        ]
    if all(notification.last_seen_s < since_s for notification in notifications):
        return []
    # An action that failed, or was cut short, is none.
    steps = (
        notification
        for notification in notifications
        if notification.step != ACTION or notification.state in (DONE, UNABLE)
    )
    return sorted(steps, key=lambda notification: (notification.since_s, notification.step))


def _of_run(notification: Notification, finding: Finding) -> bool:
    return notification.digest.partition("+")[0] == finding.digest.partition("+")[0]


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


def _untold(finding: Finding, last: Notification, now_s: float, settings: Notices) -> tuple[int, str]:
    """Return the step, and why, that follows a notice that is in doubt: the same step, of newer evidence."""
    if finding.digest == last.digest or now_s < last.since_s + settings.quiet_days * DAY_S:
        return NOTHING, f"its notice is in doubt: {last.message}"
    return last.step, "the one before is in doubt"


def _after(finding: Finding, series: Sequence[Notification], now_s: float, settings: Notices) -> tuple[int, str]:
    """Return the step, and why, that follows a notice that was handed over."""
    last = series[-1]
    job = finding.about == JOB
    if job:
        wait_s = 60 * (settings.job_wait_min if last.step == FIRST else deadline_min(settings))
    else:
        wait_s = settings.quiet_days * DAY_S
    if now_s < last.since_s + wait_s:
        return NOTHING, "told, and the quiet period is not over"
    newer = finding.digest != last.digest if finding.newest_s is None else finding.newest_s > last.since_s
    if not newer:
        return NOTHING, "told, and nothing newer was found"
    if not job or last.step == FIRST:
        return SECOND, "still found after the quiet period"
    if {notification.step for notification in series if notification.state == SENT} != {FIRST, SECOND}:
        return NOTHING, "not both of its notices were handed over"
    if finding.newest_s is None or finding.newest_s <= last.since_s + wait_s:
        return NOTHING, "told twice, and no reading is from after the deadline"
    return ACTION, "told twice, and the deadline is over"
