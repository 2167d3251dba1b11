# SPDX-License-Identifier: Apache-2.0
"""Who is told of what and when: without a clock, a store or a mail service."""

from datetime import date
from typing import Any

from slurm_colloc.audit.escalation import (
    ACTION,
    DOUBTFUL,
    FIRST,
    NOTHING,
    SECOND,
    SENT,
    Notification,
    Waiver,
    plan,
    still,
)
from slurm_colloc.core.audit_model import JOB, Finding
from slurm_colloc.core.config_audit import Notices
from tests.unit.golden import Printed
from tests.unit.noticed import finding

DAY = 86_400.0
NOW = 100 * DAY
QUIET = Notices(quiet_days=14)
CANCELS = Notices(actions={"COL001": "cancel"}, job_wait_min=60)


def told(ago_s: float = 20 * DAY, step: int = FIRST, state: str = SENT, **fields: Any) -> Notification:
    one = Notification("COL001", "user", "c", "ann", "old", step, NOW - DAY, NOW - ago_s, "<1@x>", state)
    return one._replace(**fields)


def step(found: Finding, *before: Notification, settings: Notices = QUIET, **more: Any) -> tuple[int, str]:
    (due,) = plan([found], before, more.pop("waivers", ()), NOW, settings, **more)
    return due.step, due.why


def about_job(**fields: Any) -> Finding:
    one = finding(rule="COL001", code="COL001", about=JOB, subject="7", newest_s=NOW - 60, digest="run")
    return one._replace(**{"idle_since_s": NOW - 9 * 3600.0} | fields)


def of_job(ago_s: float, step: int = FIRST, state: str = SENT) -> Notification:
    return told(ago_s, step, state, rule="COL001", about=JOB, subject="7", digest="run", last_seen_s=NOW - 900)


def test_what_is_new_is_told_and_not_again_within_the_quiet_period(printed: Printed) -> None:
    new, quiet = step(finding()), step(finding(), told(13.9 * DAY))
    assert (new[0], quiet[0]) == (FIRST, NOTHING)
    printed("audit", new[1], quiet[1])
    # Other evidence is no other finding: it is the subject that is told.
    assert step(finding(digest="new"), told(13.9 * DAY))[0] == NOTHING
    for other in ({"rule": "long ones"}, {"cluster": "d"}, {"subject": "bob"}):
        assert step(finding(**other), told(DAY))[0] == FIRST


def test_the_second_notice_needs_something_newer_than_the_first(printed: Printed) -> None:
    taken, why = step(finding(newest_s=NOW - 19 * DAY), told())
    assert taken == SECOND
    printed("audit", why)
    # Fewer of the same runs make another digest, and nobody has done anything since.
    assert step(finding(newest_s=NOW - 21 * DAY, digest="fewer"), told())[0] == NOTHING
    assert step(finding(newest_s=None, digest="other"), told())[0] == SECOND
    assert step(finding(newest_s=None, digest="old"), told())[0] == NOTHING
    assert step(finding(newest_s=NOW - DAY), told(40 * DAY), told(15 * DAY, SECOND))[0] == SECOND


def test_what_was_not_found_for_a_quiet_period_begins_anew() -> None:
    assert step(finding(), told(40 * DAY, last_seen_s=NOW - 15.1 * DAY)) == (FIRST, "new")
    assert step(finding(), told(40 * DAY, SECOND, last_seen_s=NOW - 15.1 * DAY))[0] == FIRST


def test_nobody_counts_as_told_whose_mail_is_in_doubt(printed: Printed) -> None:
    same, new = (step(finding(digest=digest), told(state=DOUBTFUL)) for digest in ("old", "new"))
    assert (same[0], new[0]) == (NOTHING, FIRST)
    assert step(finding(digest="new"), told(DAY, state=DOUBTFUL))[0] == NOTHING
    printed("audit", same[1], new[1])


def test_nobody_answerable_a_waiver_and_a_holiday() -> None:
    assert step(finding(user="", subject="node7"))[0] == NOTHING
    assert step(finding(), works=False) == (NOTHING, "no workday")
    for rule, subject, until_s, expected in (
        ("", "", None, NOTHING),
        ("COL001", "", NOW + 1, NOTHING),
        ("COL001", "", NOW, FIRST),
        ("COL003", "", None, FIRST),
        ("", "other", None, FIRST),
    ):
        waiver = Waiver("ann", rule, subject, until_s, "root", "a course")
        assert step(finding(), waivers=[waiver])[0] == expected
    assert step(finding(), waivers=[Waiver("bob", "", "", None, "root", "")])[0] == FIRST


def test_a_job_is_acted_on_after_two_notices_and_a_deadline(printed: Printed) -> None:
    hour = 3600.0
    first, second = of_job(4 * hour), of_job(2.1 * hour, SECOND)
    assert step(about_job(), settings=CANCELS)[0] == FIRST
    assert step(about_job(), of_job(0.9 * hour), settings=CANCELS)[0] == NOTHING
    assert step(about_job(), of_job(hour), settings=CANCELS)[0] == SECOND
    assert step(about_job(), first, of_job(1.9 * hour, SECOND), settings=CANCELS)[0] == NOTHING
    acts = step(about_job(), first, second, settings=CANCELS)
    done = of_job(hour, ACTION, "done")._replace(message="cancel")
    acted = step(about_job(), first, second, done, settings=CANCELS)
    assert (acts[0], acted[0]) == (ACTION, NOTHING)
    printed("audit", acts[1], acted[1])
    for state in ("begun", "failed"):
        assert step(about_job(), first, second, of_job(hour, ACTION, state), settings=CANCELS)[0] == ACTION


def test_a_job_is_not_acted_on_otherwise() -> None:
    hour = 3600.0
    first, second = of_job(4 * hour), of_job(2 * hour, SECOND)
    for settings in (QUIET, CANCELS._replace(actions={"COL003": "cancel"})):
        for job in (about_job(), about_job(digest="next run"), about_job(idle_since_s=NOW - 60)):
            assert step(job, first, settings=settings) == (NOTHING, "told of this job")
        assert step(about_job(), settings=settings)[0] == FIRST
    # Nor of what works on some of its GPUs.
    assert step(about_job(idle_since_s=None), first, second, settings=CANCELS) == (NOTHING, "told of this job")
    for one, two in ((DOUBTFUL, SENT), (SENT, DOUBTFUL)):
        before = (of_job(4 * hour, state=one), of_job(2 * hour, SECOND, state=two))
        assert step(about_job(), *before, settings=CANCELS)[0] == NOTHING
    assert step(about_job(), second, settings=CANCELS)[0] == NOTHING
    # It has not been seen idle since the second notice, or since the deadline: it may be at work.
    assert step(about_job(newest_s=NOW - 3 * hour), first, second, settings=CANCELS)[0] == NOTHING
    why = "told twice, and no reading is from after the deadline"
    second_before = of_job(4 * hour, SECOND)
    for newest_s in (NOW - 3 * hour, NOW - 2 * hour):
        assert step(about_job(newest_s=newest_s), of_job(6 * hour), second_before, settings=CANCELS) == (NOTHING, why)
    assert step(about_job(newest_s=NOW - 1.9 * hour), of_job(6 * hour), second_before, settings=CANCELS)[0] == ACTION
    # It was requeued: this run has had no notice yet.
    assert step(about_job(digest="next run"), first, second, settings=CANCELS) == (FIRST, "new")
    assert step(about_job(), first, second, settings=CANCELS, works=False)[0] == NOTHING
    # Only what is about a job has a job to act on.
    user = finding(rule="COL001", newest_s=NOW)
    settings = CANCELS._replace(quiet_days=1.0)
    before = (told(4 * DAY, rule="COL001"), told(2 * DAY, SECOND, rule="COL001"))
    assert step(user, *before, settings=settings)[0] == SECOND


def test_a_job_that_worked_meanwhile_begins_anew() -> None:
    hour = 3600.0
    old = [one._replace(last_seen_s=NOW - 6 * hour) for one in (of_job(9 * hour), of_job(7 * hour, SECOND))]
    # Seen idle six hours ago, and idle since five: it worked in between, however soon that was.
    job = about_job(idle_since_s=NOW - 5 * hour)
    (due,) = plan([job], old, (), NOW, CANCELS)
    assert (due.step, due.finding.digest) == (FIRST, "run+1")
    again = of_job(4 * hour)._replace(digest="run+1")
    (due,) = plan([job], [*old, again], (), NOW, CANCELS)
    assert (due.step, due.finding.digest) == (SECOND, "run+1")
    second = of_job(2.1 * hour, SECOND)._replace(digest="run+1")
    assert step(job, *old, again, second, settings=CANCELS)[0] == ACTION
    assert step(job, *old, second, settings=CANCELS)[0] == NOTHING


def test_a_spell_ends_by_what_the_job_did_and_not_by_the_calendar() -> None:
    hour = 3600.0
    # Nobody looked for a day: it was idle all the while.
    night = of_job(24 * hour)._replace(last_seen_s=NOW - 24 * hour)
    assert step(about_job(idle_since_s=NOW - 30 * hour), night, settings=CANCELS)[0] == SECOND
    # It was seen idle a quarter of an hour ago, and worked for a minute since.
    assert step(about_job(idle_since_s=NOW - 840), of_job(4 * hour), settings=CANCELS) == (FIRST, "new")
    # What counts is the reading by which it was found, not when the run looked at it.
    stale = of_job(2 * hour)._replace(last_seen_s=NOW - 4 * hour)
    assert step(about_job(idle_since_s=NOW - 3 * hour), stale, settings=CANCELS) == (FIRST, "new")
    seen = still(stale, about_job(idle_since_s=NOW - 5 * hour), NOW, CANCELS)
    assert seen.last_seen_s == NOW - 60
    assert still(stale, about_job(idle_since_s=NOW - 3 * hour), NOW, CANCELS) == stale


def test_workdays() -> None:
    assert [Notices().is_workday(date(2026, 12, day)) for day in (24, 26)] == [True, False]
