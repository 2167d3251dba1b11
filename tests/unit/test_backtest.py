# SPDX-License-Identifier: Apache-2.0
"""Rules tried on the past: whom cron would have told of what, and when."""

import csv
import io
import json
import shutil
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from rich.cells import cell_len

from slurm_colloc.accounting.store import Store
from slurm_colloc.audit.backtest import in_all, mail_day, steps_of, windows, would_notify
from slurm_colloc.audit.ladder import ACTION, FIRST, SECOND, key_of
from slurm_colloc.audit.rules import entries
from slurm_colloc.audit.timing import of_about
from slurm_colloc.audit_model import JOB, Audited, Finding
from slurm_colloc.backtest_model import Backtest
from slurm_colloc.config_audit import Audit, AuditRule, Notices
from slurm_colloc.errors import ConfigError
from slurm_colloc.report.backtest import as_csv, as_table
from slurm_colloc.report.layout import Terminal
from tests.unit.made import device, process, run, seen
from tests.unit.programs import colloc
from tests.unit.reports import group
from tests.unit.stored import at, sampled
from tests.unit.terminals import screen

DAY = timedelta(days=1)
MONDAY = datetime(2026, 1, 5, 6, tzinfo=UTC)
SET = (AuditRule("COL001"), AuditRule("COL002"), AuditRule("COL003", name="low"))
KNOWN = of_about(entries(Audit(rule=SET)), "others")[:3]
HOSTILE = '=cmd|"\r\n\x1b[31m<b>\u202e'


def finding(user: str = "ann", digest: str = "a", rule: str = "COL001") -> Finding:
    subject = user or "g1"
    return Finding(
        rule, rule, "warning", "user", "c", subject, user, "", 24.0, "", "", "", 100.0, ("measured",), (), digest
    )


def ran(day: int, *found: Finding, jobs: Sequence[int] = (1,), days: int = 1, judged: int = 1) -> Audited:
    until = MONDAY + day * DAY
    counts = {entry.name: (1, judged) for entry in KNOWN}
    behind = {key_of(one): frozenset(jobs) for one in found}
    return Audited(until - days * DAY, until, group(), counts, "", findings=found, behind=behind)


def told(runs: Sequence[Audited], quiet: int = 14) -> list[tuple[int, str, bool]]:
    """Return the notices as (number of the run, user, whether it is the first)."""
    notices = would_notify(runs, KNOWN, None, DAY, Notices(quiet_days=quiet))
    return [(number, one.finding.user, one.step == FIRST) for number, of in enumerate(notices) for one in of]


def tried(runs: Sequence[Audited], quiet: int = 14, window: int = 1) -> Backtest:
    notices = would_notify(runs, KNOWN, "c", DAY, Notices(quiet_days=quiet))
    rules, total = in_all(runs, notices, KNOWN)
    ends = runs[0].since, runs[-1].until
    steps = steps_of(runs, notices, KNOWN, DAY, Notices())
    return Backtest(*ends, 86_400, window * 86_400, quiet * 86_400, "", "", steps, rules, total)


def test_windows_end_with_the_last_and_are_of_whole_seconds() -> None:
    until = MONDAY.replace(microsecond=7)
    found = windows(until - 20 * DAY, until, 7 * DAY, 14 * DAY)
    assert [end for _, end in found] == [MONDAY - 14 * DAY, MONDAY - 7 * DAY, MONDAY]
    assert all(end - start == 14 * DAY for start, end in found)
    assert len(windows(MONDAY - 21 * DAY, MONDAY, 7 * DAY, 7 * DAY)) == 3, "an end at its beginning is no run of it"
    assert len(windows(MONDAY - 5 * DAY, MONDAY, 7 * DAY, 7 * DAY)) == 1


def test_a_user_is_told_once_in_a_quiet_period() -> None:
    daily = [ran(day, finding(digest=str(day))) for day in range(30)]
    assert told(daily) == [(0, "ann", True), (14, "ann", False), (28, "ann", False)]
    assert told(daily, quiet=30) == [(0, "ann", True)]
    # What a weekend finds waits for Monday's run.
    assert [day for day, _, _ in told(daily, quiet=5)] == [0, 7, 14, 21, 28]


def test_the_same_runs_are_not_told_of_twice() -> None:
    assert told([ran(day, finding()) for day in range(30)]) == [(0, "ann", True)]
    later = [ran(day, finding(digest="a" if day < 22 else "b")) for day in range(30)]
    assert told(later) == [(0, "ann", True), (22, "ann", False)]


def test_what_was_gone_for_a_quiet_period_is_new_again() -> None:
    runs = [ran(0, finding()), *(ran(day) for day in range(1, 16)), ran(16, finding(digest="b"))]
    assert told(runs) == [(0, "ann", True), (16, "ann", True)]
    assert told([runs[0], ran(14, finding(digest="b"))]) == [(0, "ann", True), (1, "ann", False)]
    assert told(runs, quiet=16) == [(0, "ann", True), (16, "ann", False)]


def test_rules_users_and_clusters_are_told_apart_and_nodes_are_nobody() -> None:
    others = [finding(), finding("bob"), finding(rule="COL002"), finding()._replace(cluster="d"), finding("")]
    assert len(told([ran(0, *others)])) == 4


def test_what_a_weekend_finds_is_told_on_the_monday_after_it() -> None:
    saturday = MONDAY + 5 * DAY
    assert mail_day(MONDAY, DAY, Notices()) == date(2026, 1, 5)
    assert mail_day(saturday, DAY, Notices()) is None, "Monday's run tells it"
    assert mail_day(saturday, 7 * DAY, Notices()) == date(2026, 1, 12), "no run comes before"
    with pytest.raises(ConfigError, match="leaves no day"):
        mail_day(MONDAY, DAY, Notices(workdays=()))
    both = [finding(), finding(rule="low")]
    shown = tried([ran(5, *both), ran(6, *both), ran(7, *both), ran(8, *both)])
    assert [step.mailed for step in shown.steps] == [None, None, date(2026, 1, 12), date(2026, 1, 13)]
    assert [step.total.mails for step in shown.steps] == [0, 0, 1, 0]
    assert (shown.total.findings, shown.total.first_notices, shown.total.mails) == (8, 2, 1)
    assert [(one.rule, one.mails) for one in shown.rules] == [("COL001", 1), ("COL002", 0), ("low", 1)]


def test_no_user_is_told_of_what_the_nightly_run_keeps_for_the_admins() -> None:
    silent = entries(Audit(rule=(AuditRule("COL001", tell="admins"), AuditRule("COL003", name="low"))))
    runs = [ran(0, finding(), finding("bob", rule="low"), finding("cy", rule="low")._replace(cluster="other"))]
    for cluster, users in (("c", ["bob"]), ("", []), (None, ["bob", "cy"])):
        notices = would_notify(runs, silent, cluster, DAY, Notices())
        assert [one.finding.user for of in notices for one in of] == users
    _, total = in_all(runs, notices, silent)
    assert (total.findings, total.first_notices, total.mails) == (3, 2, 2), "it is found all the same"


def idle(day: int, since: int = 0) -> Audited:
    read_s, since_s = ((MONDAY + one * DAY).timestamp() for one in (day, since))
    return ran(day, finding()._replace(about=JOB, newest_s=read_s, idle_since_s=since_s - 3600))


def test_jobs_are_acted_on_only_where_the_site_says_so() -> None:
    runs = [idle(day) for day in range(4)]
    # A second is what it takes from a notice to the next run's reading.
    daily = Notices(job_wait_min=719.0)
    asked = daily._replace(actions={"COL001": "cancel"})
    for settings, steps in ((daily, [FIRST]), (asked, [FIRST, SECOND, ACTION])):
        notices = would_notify(runs, KNOWN, "c", DAY, settings)
        assert [one.step for of in notices for one in of] == steps
    _, total = in_all(runs, notices, KNOWN)
    assert (total.mails, total.actions) == (2, 1)
    # It worked after the second notice.
    worked = [*runs[:2], *(idle(day, since=2) for day in (2, 3))]
    notices = would_notify(worked, KNOWN, "c", DAY, asked)
    assert [one.step for of in notices for one in of] == [FIRST, SECOND, FIRST, SECOND]


def test_runs_of_one_day_send_a_mail_each() -> None:
    hourly = [ran(0, finding()), ran(0, finding(rule="low"))]
    hourly[1] = hourly[1]._replace(until=hourly[1].until + timedelta(hours=1))
    notices = would_notify(hourly, KNOWN, "c", timedelta(hours=1), Notices())
    assert in_all(hourly, notices, KNOWN)[1].mails == 2


def test_runs_and_users_count_once_in_all() -> None:
    shown = tried([ran(0, finding(), finding("bob"), jobs=(1, 2)), ran(1, finding(digest="b"), jobs=(2, 3))])
    (zero, *_), total = shown.rules, shown.total
    assert (zero.findings, zero.users, zero.jobs, zero.gpu_hours) == (3, 2, 3, 72.0)
    assert (zero.first_notices, zero.second_notices, zero.mails) == (2, 0, 2)
    assert (total.findings, total.users, total.jobs, total.gpu_hours) == (3, 2, 3, None)
    assert [step.total.findings for step in shown.steps] == [2, 1]


def test_hours_of_windows_that_overlap_are_not_added_up() -> None:
    shown = tried([ran(day, finding(), days=7) for day in range(3)], window=7)
    assert shown.rules[0].gpu_hours is None
    assert [step.rules[0].gpu_hours for step in shown.steps] == [24.0] * 3
    assert "GPU-h: not added up, the windows overlap" in as_table(shown)


def test_what_could_not_be_judged_is_not_known() -> None:
    shown = tried([ran(0, judged=0), ran(1, judged=0)])
    assert shown.total[3:] == (0, *[None] * 8)
    assert "nothing could be judged by COL001, COL002, low" in as_table(shown)
    half = tried([ran(0, judged=0), ran(1)])
    assert (half.rules[0].steps_judged, half.rules[0].findings) == (1, 0)
    assert half.rules[1].jobs is None, "a rule about nodes has no jobs"
    nothing_there = dict.fromkeys((entry.name for entry in KNOWN), (0, 0))
    assert tried([ran(0)._replace(rules=nothing_there)]).total.findings is None
    of_others = tried([ran(0)._replace(rules=nothing_there | {"low": (1, 1)})])
    assert of_others.rules[0].findings == 0


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_the_table_fits_a_terminal(columns: int) -> None:
    hostile = finding(rule="low")._replace(user=HOSTILE, subject=HOSTILE)
    text = as_table(tried([ran(0, hostile), ran(1, judged=0)])._replace(file=HOSTILE), Terminal(columns))
    # The first column alone may be wider than a very narrow one.
    assert all(cell_len(line) <= max(columns, 25) for line in text.splitlines())
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_hostile_names_of_rules_are_harmless() -> None:
    shown = tried([ran(0, finding())])
    bad = shown._replace(rules=(shown.rules[0]._replace(rule=HOSTILE), *shown.rules[1:]))
    assert "'=cmd|" in as_csv(bad)
    assert "\x1b" not in as_csv(bad) + as_table(bad)


# --- the command ---

WEEKS = ("--until", "2026-02-02T00:00:00+00:00", "--since", "2026-01-05T00:00:00+00:00")


@pytest.fixture(scope="module")
def four_weeks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of four weeks: each Monday ann holds a GPU at zero use for a quarter of an hour, bob on one."""
    folder = tmp_path_factory.mktemp("four-weeks") / "store"
    kept = Store(str(folder))
    rows, rounds = [], []
    idle = device(gpu_util_pct=0.0, sm_active_pct=0.0, gpu_mem_used_mib=500)
    for week in range(4):
        start_s = at("2026-01-05T12:00") + week * 7 * 86_400
        user = "bob" if week == 2 else "ann"
        rows.append(run(str(week), start_s=start_s, end_s=start_s + 900, user=user, submit_s=start_s))
        rounds.append(seen(start_s + 900, [idle], [process(str(week), 7, gpu_mem_used_mib=500)], interval_s=900.0))
    kept.write_allocations("a", rows, at("2026-02-02T00:00"))
    kept.write_log("a", {"rows_in": 4, "used": 4, "steps": 0, "rejected": {}})
    sampled(kept, rounds)
    return folder


@pytest.fixture
def store(four_weeks: Path, tmp_path: Path) -> str:
    """Return a test's own copy of the store of four weeks."""
    return str(shutil.copytree(four_weeks, tmp_path / "store"))


@pytest.fixture
def proposed(tmp_path: Path) -> str:
    path = tmp_path / "proposed.toml"
    path.write_text('[[audit.rule]]\ncode = "COL001"\nbounds = { min_gpu_hours = 0.2 }\n')
    return str(path)


def test_rules_over_weeks(store: str, proposed: str) -> None:
    argv = ("audit", "backtest", "--store", store, *WEEKS, "--rules", proposed)
    assert colloc(*argv, "--format", "json") == 0
    first = colloc.out
    shown = json.loads(first)
    assert colloc.err == ""
    assert (shown["schema"], len(shown["steps"]), shown["window_s"], shown["quiet_s"]) == (1, 4, 604_800, 1_209_600)
    zero = next(one for one in shown["rules"] if one["rule"] == "COL001")
    assert zero == {
        "rule": "COL001",
        "code": "COL001",
        "steps": 4,
        "steps_judged": 4,
        "findings": 4,
        "users": 2,
        "jobs": 4,
        "gpu_hours": 1.0,
        # ann in the first week; in the second it is too early, in the fourth it is again; bob in the third.
        "first_notices": 2,
        "second_notices": 1,
        "mails": 3,
        "actions": 0,
    }
    assert [step["total"]["mails"] for step in shown["steps"]] == [1, 0, 1, 1]
    assert [step["mailed"] for step in shown["steps"]] == ["2026-01-12", "2026-01-19", "2026-01-26", "2026-02-02"]
    assert colloc(*argv, "--format", "json") == 0
    assert colloc.out == first, "the same each time"


def test_a_quiet_period_and_a_window_are_two_figures(store: str, proposed: str) -> None:
    argv = ("audit", "backtest", "--store", store, *WEEKS, "--rules", proposed, "--rule", "COL001", "--format", "json")
    assert colloc(*argv, "--quiet", "7d") == 0
    assert json.loads(colloc.out)["total"]["mails"] == 4
    assert colloc(*argv, "--window", "28d", "--quiet", "7d") == 0
    (zero,) = json.loads(colloc.out)["rules"]
    assert (zero["jobs"], zero["findings"], zero["gpu_hours"]) == (4, 6, None)


def test_as_a_table_and_as_csv(store: str, proposed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ("audit", "backtest", "--store", store, *WEEKS, "--rules", proposed)
    assert colloc(*argv) == 0
    lines = colloc.out.splitlines()
    assert next(line.split() for line in lines if line.startswith("COL001")) == [
        *("COL001", "4/4", "4", "2", "4", "1", "2", "1", "3"),
        *("1", "0", "1", "1"),
    ]
    assert colloc(*argv, "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(colloc.out)))
    assert [row["mails"] for row in rows if row["rule"] == "COL001"] == ["1", "0", "1", "1", "3"]
    with screen(monkeypatch, "stdout", 60) as shown:
        assert colloc(*argv) == 0
    assert "COL001" in shown.text
    assert all(cell_len(line) <= 60 + line.count("\x1b") * 4 for line in shown.text.splitlines())


def test_weeks_without_measurements_are_an_error(tmp_path: Path) -> None:
    kept = Store(str(tmp_path / "store"))
    kept.write_allocations("a", [run("1", start_s=at("2026-01-12T00:00"), end_s=at("2026-01-13T00:00"))], 1e10)
    kept.write_log("a", {"rows_in": 1, "used": 1, "steps": 0, "rejected": {}})
    assert colloc("audit", "backtest", "--store", str(tmp_path / "store"), *WEEKS, "--rule", "COL001") == 3
    assert "nothing can be said" in colloc.err
    assert next(line.split() for line in colloc.out.splitlines() if line.startswith("COL001"))[1:4] == ["0/4", "-", "-"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--step", "0d"), "--step '0d' is no span"),
        (("--quiet", "week"), "--quiet 'week' is no span"),
        (("--format", "html"), "not one of table, json, csv"),
        (("--rule", "COL003", "--about", "jobs"), "--about jobs leaves out COL003; give --about others"),
        (("--about", "jobs", "--window", "4h"), "'bounds.sliding_warning_min' of 240 min is not shorter"),
        (("--rule", "COL01"), "no rule in force is called 'COL01'"),
        (("--rules", "/nowhere.toml"), "cannot be read"),
    ],
)
def test_mistakes(store: str, argv: tuple[str, str], said: str) -> None:
    assert colloc("audit", "backtest", "--store", store, *WEEKS, *argv) == 2
    assert said in colloc.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[audit.rules]]\ncode = "COL001"\n', "unknown key 'audit.rules'; did you mean 'rule'?"),
        ('[[rule]]\ncode = "COL001"\n', "unknown key 'rule'"),
        ('[[audit.rule]]\ncode = "COL99"\n', "has code 'COL99'"),
        ("", "no rules in it; write them as [[audit.rule]]"),
    ],
)
def test_mistakes_in_proposed_rules(store: str, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    assert colloc("audit", "backtest", "--store", store, *WEEKS, "--rules", str(tmp_path / "bad.toml")) == 2
    assert said in colloc.err


def test_rules_that_tell_the_admins_alone_make_no_mails(store: str, tmp_path: Path) -> None:
    (tmp_path / "silent.toml").write_text(
        '[[audit.rule]]\ncode = "COL001"\ntell = "admins"\nbounds = { min_gpu_hours = 0.2 }\n'
    )
    argv = ("--store", store, *WEEKS, "--rules", str(tmp_path / "silent.toml"), "--rule", "COL001", "--step", "7d")
    assert colloc("audit", "backtest", *argv, "--format", "json") == 0
    shown = json.loads(colloc.out)
    assert (shown["admins_only"], shown["total"]["findings"], shown["total"]["mails"]) == (["COL001"], 4, 0)
    assert colloc("audit", "backtest", *argv) == 0
    said = " ".join(colloc.out.split())
    assert "; no mails about what COL001 finds, of which 'tell' lets the admins alone know" in said


def test_a_whole_site_file_may_be_proposed(store: str, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text(
        'schema = 1\ncluster = "c"\nslurm_release = "24.11"\n[audit]\nrule = [{code = "COL001", name = "x"}]\n'
    )
    argv = ("--rules", str(site), "--rule", "x")
    assert colloc("audit", "backtest", "--store", store, *WEEKS, *argv, "--format", "json") == 0
    assert json.loads(colloc.out)["total"]["findings"] == 0


def test_rules_about_jobs_are_tried_by_runs_as_their_timer_has_them(tmp_path: Path) -> None:
    began_s, minute = at("2026-01-05T12:00"), 60
    kept = Store(str(tmp_path / "store"))
    kept.write_allocations("a", [run("1", start_s=began_s, end_s=began_s + 10 * 3600)], at("2026-01-06T00:00"))
    kept.write_log("a", {})
    # Idle until four, at work for ten minutes, and idle again.
    rounds = []
    for after_s in range(minute, 10 * 3600, minute):
        used = 50.0 if 4 * 3600 <= after_s < 4 * 3600 + 600 else 0.0
        unit = device(gpu_util_pct=used, sm_active_pct=used, gpu_mem_used_mib=500)
        rounds.append(seen(began_s + after_s, [unit], [process("1", 7, gpu_mem_used_mib=500)], interval_s=60.0))
    sampled(kept, rounds)
    argv = ("audit", "backtest", "--store", str(tmp_path / "store"))
    hours = ("--since", "2026-01-05T12:15:00+00:00", "--until", "2026-01-05T21:45:00+00:00")
    assert colloc(*argv, *hours, "--format", "json", "--about", "jobs") == 0
    shown = json.loads(colloc.out)
    assert (shown["step_s"], shown["window_s"], shown["quiet_s"], shown["left_out"]) == (1800, 86_400, 3600, [])
    (tally,) = shown["rules"]
    assert [tally[name] for name in ("first_notices", "second_notices", "mails", "jobs")] == [1, 0, 1, 1]
    told = [step["until"][11:16] for step in shown["steps"] if step["total"]["mails"]]
    # An hour of idleness; who was told of the job is not told again, although it worked in between.
    assert told == ["13:15"]
    # By runs a day apart nothing would be known of it, and nothing is said.
    assert colloc(*argv, *WEEKS, "--rule", "COL001") in (0, 3)
    assert "not tried here: COL001, about running jobs; --about jobs\n" in colloc.out
