# SPDX-License-Identifier: Apache-2.0
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit import asked
from tests.unit.asked import IDLE
from tests.unit.golden import Printed
from tests.unit.made import HOUR, near, run
from tests.unit.stored import busy, stored
from tests.unit.test_audit import audited
from tests.unit.test_col001_tail import hours

ask = partial(asked.ask, "COL001", about="jobs")
one = partial(asked.one, "COL001", about="jobs")
none = partial(asked.none, "COL001", about="jobs")
# An hour, and no kernel yet; and a day that worked until four hours ago.
NEVER: dict[str, Any] = IDLE | {
    "end_s": None,
    "to_s": 3600.0,
    "span_s": 3600.0,
    "tail_s": 3600.0,
    "allocated": 1.0,
    "util_measured": 1.0,
    "sm_measured": 1.0,
}
ONCE: dict[str, Any] = {"end_s": None, "tail_s": 14_400.0}


def test_what_it_says(printed: Printed) -> None:
    found = one(NEVER | {"job_id": "4711_2"})
    assert (found.subject, found.user, found.about, found.gpu_hours) == ("4711_2", "ann", "job", 1.0)
    printed("rules", found.evidence, found.reproduce, one(ONCE | {"unseen_s": 1800.0}).evidence, case="running")


@pytest.mark.parametrize(
    "fields",
    [
        {"end_s": 3600},
        {"tail_s": 3599.0},
        {"tail_s": None, "unseen_s": None},
        # its last reading is old
        {"unseen_s": 7201.0},
        # a minute of it was not seen
        {"util_measured": 0.98, "sm_measured": 0.98},
        {"util_used": None, "sm_used": None},
        {"strong": False},
        {"coverage_pct": 59.0},
        {"coverage_pct": None},
        {"allocated": None},
        {"allocated": 0.0},
        {"suspended_s": 1},
        # a slice has one counter only, which others can take away
        {"whole": False, "util_used": None, "util_measured": 0.0},
        # it worked, or loaded something to wait with: the longer bound
        {"util_used": 0.001},
        {"sm_used": 0.001},
        {"peak_mib": 30_000},
    ],
)
def test_no_job_is_named_on_weak_evidence_or_below_a_bound(fields: dict[str, Any]) -> None:
    one(NEVER)
    assert none(NEVER | fields)


def test_a_share_of_a_gpu_is_judged_by_its_sms() -> None:
    # GPU_UTIL of the whole GPU tells whether they can be believed.
    share = {"whole": False, "blocked": None, "util_used": None, "util_measured": 0.0}
    assert "(SM activity 0)" in one(NEVER | share).evidence


def test_a_job_that_worked_or_waits_for_requests_has_longer(printed: Printed) -> None:
    one(ONCE)
    assert none(ONCE | {"tail_s": 14_399.0})
    waits = IDLE | ONCE | {"peak_mib": 30_000}
    printed("rules", one(waits).evidence)
    assert none(waits | {"tail_s": 14_399.0})
    assert none(waits, bounds={"sliding_warning_min": 300.0})
    one(NEVER | {"tail_s": 1800.0}, bounds={"first_warning_min": 30.0})
    assert none({"end_s": None}, bounds={"sliding_warning_min": 0.0, "first_warning_min": 0.0})


def test_where_no_memory_is_known_it_may_wait_for_requests() -> None:
    one(NEVER)
    assert none(NEVER | {"peak_mib": None})


def test_its_evidence_is_as_old_as_its_last_reading() -> None:
    assert one(NEVER).newest_s == 3600.0
    assert one(NEVER | {"tail_s": 9000.0, "unseen_s": 600.0}).newest_s == 3000.0


def test_its_idleness_began_no_later_than_it_says() -> None:
    assert one(NEVER).idle_since_s == 0.0
    # An hour without readings, wherever it was, may have been one of work.
    late = ONCE | {"tail_s": 20_000.0, "util_measured": 23.0, "sm_measured": 23.0, "unseen_s": 600.0}
    assert one(late).idle_since_s == near(86_400.0 - 600 - 20_000 + 3600 - 600)


def test_what_was_last_taken_in_long_ago_is_not_now() -> None:
    one(NEVER, until_s=3600.0 + 7200)
    answered, found = ask(NEVER, until_s=3600.0 + 7201)
    assert (answered.rows, answered.judged, found) == (1, 0, [])
    assert none(NEVER | {"unseen_s": 600.0}, until_s=3600.0 + 6601)
    # Jobs that ended are none of its business.
    assert ask(NEVER | {"end_s": 3600})[0].rows == 0


def test_each_job_is_a_finding_of_its_own() -> None:
    _, found = ask(NEVER, NEVER | {"user": "bob"}, NEVER | {"end_s": 3600}, NEVER | {"cluster": "d"})
    assert [(one.cluster, one.subject, one.user) for one in found] == [
        ("c", "1", "ann"),
        ("c", "2", "bob"),
        ("d", "4", "ann"),
    ]


def test_a_store(tmp_path: Path, printed: Printed) -> None:
    running = [run("1", end_s=None, state="RUNNING")]
    store = stored(tmp_path / "a", running, hours(1, 2, 3))
    (found,) = audited(store, "COL001", 0.0, 8.0 * HOUR, "jobs")
    assert (found.subject, found.gpu_hours) == ("1", near(5.0))
    printed("rules", found.evidence, case="running")
    # Until the seventh hour it is four hours, until the sixth three; nine hours later nobody knows.
    assert len(audited(store, "COL001", 0.0, 7.0 * HOUR, "jobs")) == 1
    assert audited(store, "COL001", 0.0, 6.0 * HOUR, "jobs") == []
    assert audited(store, "COL001", 0.0, 10.5 * HOUR, "jobs") == []
    # A run that began before the window: what it did then is not known here, that it is idle is.
    (found,) = audited(store, "COL001", 4.0 * HOUR, 8.0 * HOUR, "jobs")
    assert found.gpu_hours == pytest.approx(4.0)
    # It works again.
    store = stored(tmp_path / "b", running, [*hours(1, 2, 3), *busy(8.25 * HOUR)])
    assert audited(store, "COL001", 0.0, 8.25 * HOUR, "jobs") == []
    # Its first run was requeued, and idle; the second has just begun.
    again = [run("1", end_s=7 * HOUR, state="REQUEUED"), run("1", start_s=7 * HOUR + 900, end_s=None, state="RUNNING")]
    assert audited(stored(tmp_path / "c", again, hours(1, 2, 3)), "COL001", 0.0, 8.0 * HOUR, "jobs") == []


def test_what_was_said_while_it_ran_is_not_said_again_when_it_has_ended(printed: Printed) -> None:
    ended = IDLE | {"job_id": "7"}
    assert asked.one("COL001", ended, told=("8",)).gpu_hours == 24.0
    (found,) = asked.ask("COL001", ended, IDLE | {"job_id": "8"}, told=("7",))[1]
    assert [line.job_id for line in found.jobs] == ["8"]
    printed("rules", *found.excluded)
    assert asked.none("COL001", ended, told=("7",))
