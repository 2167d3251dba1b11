# SPDX-License-Identifier: Apache-2.0
"""Which rules a run asks over which windows, and what of it a site.toml cannot mean."""

from datetime import UTC, datetime

import pytest

from slurm_colloc.audit.rules import RULES, entries
from slurm_colloc.audit.timing import check_bounds, latest, of_about, window_days, windows
from slurm_colloc.core.audit_model import JOB, Audited
from slurm_colloc.core.config_audit import Audit, AuditRule
from slurm_colloc.core.errors import ConfigError, InputError
from tests.unit.golden import Printed
from tests.unit.noticed import finding
from tests.unit.reports import group

DAY = 86_400.0
KNOWN = entries(Audit())


def test_each_rule_is_asked_by_one_of_the_two_timers() -> None:
    jobs, others = of_about(KNOWN, "jobs"), of_about(KNOWN, "others")
    assert sorted(one.form for one in (*jobs, *others)) == sorted(one.form for one in of_about(KNOWN, ""))
    assert "COL001" in {entry.name for entry in jobs}
    assert (window_days("jobs"), window_days("others")) == (1.0, 7.0)
    for about, said in (("job", "neither jobs nor others"), ("others", "leaves out COL001; give --about jobs")):
        with pytest.raises(InputError, match=said):
            of_about(jobs, about)


@pytest.mark.parametrize("code", [code for code, rule in RULES.items() if rule.running])
def test_a_rule_about_jobs_says_since_when_and_looks_at_no_old_reading(code: str) -> None:
    rule = RULES[code].running
    assert rule
    assert rule.about == JOB
    assert "idle_since_s" in rule.figures
    assert "reading_age_min" in rule.bounds
    assert " fresh " in " AND ".join(rule.judged.values())


def test_a_bound_that_no_window_holds_is_refused(printed: Printed) -> None:
    known = entries(Audit(rule=(AuditRule("COL001", bounds={"sliding_warning_min": 1440.0}),)))
    check_bounds(known, 1.1)
    with printed.raises("audit", ConfigError, "sliding_warning_min.*1440 min"):
        check_bounds(known, 1.0)
    check_bounds(of_about(known, "others"), 0.1)


def test_missed_runs_are_made_up_for_window_by_window() -> None:
    until = 100 * DAY
    assert windows(until, 7, None) == [(93 * DAY, until)]
    assert windows(until, 7, 93 * DAY) == [(93 * DAY, until)]
    assert windows(until, 7, 92.9 * DAY) == [(86 * DAY, 93 * DAY), (93 * DAY, until)]
    assert windows(until, 7, 70 * DAY)[0] == windows(until, 7, 0.0)[0] == (72 * DAY, 79 * DAY)
    assert windows(until, 7, 101 * DAY) == [(93 * DAY, until)]  # a clock that was set back


def test_what_several_windows_found_is_said_once() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    then, now, bob = finding(evidence="then"), finding(evidence="now"), finding(subject="bob")
    assert latest([Audited(at, at, group(), {}, "", findings=found) for found in ((then, bob), (now,))]) == [now, bob]
