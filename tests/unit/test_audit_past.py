# SPDX-License-Identifier: Apache-2.0
"""Rules tried on the past: what they find by other bounds, and how many users each night would have mailed."""

import json
import shutil
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from slurm_colloc.audit.rules import entries
from slurm_colloc.audit.timing import first_mails, nights
from slurm_colloc.core.audit_model import Audited, Finding
from slurm_colloc.core.config_audit import Audit, Notices
from slurm_colloc.store.store import Store
from tests.unit.golden import Printed
from tests.unit.made import device, process, run, seen
from tests.unit.programs import colloc
from tests.unit.reports import group
from tests.unit.stored import at, sampled

DAY = timedelta(days=1)
MONDAY = datetime(2026, 1, 5, 6, tzinfo=UTC)
TELLING = {entry.name for entry in entries(Audit())}


def finding(user: str = "ann", digest: str = "a", rule: str = "COL001") -> Finding:
    subject = user or "g1"
    return Finding(
        rule, rule, "warning", "user", "c", subject, user, "", 24.0, "", "", "", 100.0, ("measured",), (), digest
    )


def night(day: int, *found: Finding, judged: int = 1) -> Audited:
    until = MONDAY + day * DAY
    return Audited(until - 7 * DAY, until, group(), {"COL001": (1, judged)}, "", findings=found)


def mails(looks: Sequence[Audited], cluster: str | None = "c", quiet: int = 14) -> dict[int, int | None]:
    """Return the mails by the day's number, of days with any or of which it is not known."""
    found = first_mails(looks, TELLING, cluster, Notices(quiet_days=quiet))
    return {(one.day - date(2026, 1, 5)).days: one.mails for one in found if one.mails != 0}


def test_nights_end_with_the_last() -> None:
    found = nights(MONDAY - 3 * DAY, MONDAY)
    assert [end for _, end in found] == [MONDAY - 2 * DAY, MONDAY - DAY, MONDAY]
    assert all(end - start == 7 * DAY for start, end in found)
    assert len(nights(MONDAY - DAY / 2, MONDAY)) == 1


def test_second_notices_are_not_counted() -> None:
    daily = [night(day, finding(digest=str(day))) for day in range(30)]
    assert mails(daily) == mails(daily, quiet=1) == {0: 1}


def test_what_was_gone_for_a_quiet_period_is_new_again() -> None:
    gone = [night(day) for day in range(1, 16)]
    assert mails([night(0, finding()), *gone, night(16, finding())]) == {0: 1, 16: 1}
    assert mails([night(0, finding()), *gone, night(16, finding())], quiet=16) == {0: 1}
    # It was found again and again, and not told anew.
    assert mails([night(0, finding()), *gone[:9], night(10, finding()), *gone[10:], night(16, finding())]) == {0: 1}


def test_what_a_weekend_finds_is_told_on_monday() -> None:
    days = [night(day, finding(), finding(rule="COL003")) for day in (5, 6, 7, 8)]
    assert [(one.day.day, one.mails) for one in first_mails(days, TELLING, "c", Notices())] == [(12, 1), (13, 0)]


def test_a_mail_is_for_a_user_of_this_cluster() -> None:
    others = [finding(), finding("bob"), finding(rule="COL003"), finding("eve")._replace(cluster="d"), finding("")]
    assert (mails([night(0, *others)]), mails([night(0, *others)], cluster=None)) == ({0: 2}, {0: 3})
    assert first_mails([night(0, *others)], {"COL003"}, "c", Notices())[0].mails == 1


def test_a_night_that_could_judge_nothing_is_not_known() -> None:
    assert mails([night(0, judged=0), night(1, finding())]) == {0: None, 1: 1}


# --- the command ---

# From a Saturday on, five nights; a week before each ann held a GPU, or later bob.
DAYS = ("--since", "2026-01-17T00:00:00+00:00", "--until", "2026-01-22T00:00:00+00:00")


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


def test_proposed_rules_over_past_weeks(store: str, proposed: str) -> None:
    argv = ("audit", "run", "--store", store, *DAYS, "--rule", "COL001")
    assert colloc(*argv, "--format", "json") == 0  # by its own bounds it finds nothing
    assert colloc(*argv, "--rules", proposed, "--format", "json") == 1
    shown = json.loads(colloc.out)
    assert [(one["user"], one["gpu_hours"]) for one in shown["findings"]] == [("bob", 0.25)]
    # ann is found on Sunday and told on Monday; bob's job ran on Monday.
    days = {"2026-01-19": 1, "2026-01-20": 1, "2026-01-21": 0, "2026-01-22": 0}
    assert {one["day"]: one["mails"] for one in shown["mails_by_day"]} == days
    assert colloc(*argv, "--rules", proposed, "--since", "2026-01-19T00:00:00+00:00") == 1
    table = [line.split() for line in colloc.out.splitlines()[-3:]]
    assert table == [["2026-01-20", "1"], ["2026-01-21", "0"], ["2026-01-22", "0"]]
    assert f" --store {store} --rules {proposed}" in colloc.out  # what shows it again has the same rules


@pytest.mark.parametrize("more", [("--user", "ann"), ("--about", "jobs"), ("--until", "now")])
def test_where_no_mails_are_counted(store: str, more: tuple[str, str]) -> None:
    assert colloc("audit", "run", "--store", store, *DAYS, *more, "--format", "json") in (0, 1, 3)
    assert "mails_by_day" not in json.loads(colloc.out)


def test_a_whole_site_file_may_be_proposed(store: str, tmp_path: Path) -> None:
    site = 'schema = 1\ncluster = "c"\nslurm_release = "24.11"\n'
    rule = '[[audit.rule]]\ncode = "COL001"\nname = "mine"\nbounds = { min_gpu_hours = 0.2 }\n'
    (tmp_path / "site.toml").write_text(site + rule)
    argv = ("--store", store, *DAYS, "--rules", str(tmp_path / "site.toml"), "--rule", "mine")
    assert colloc("audit", "run", *argv, "--format", "csv") == 1
    assert colloc.out.count("\n") == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[audit.rules]]\ncode = "COL001"\n', "unknown key 'audit.rules'; did you mean 'rule'?"),
        ('[[rule]]\ncode = "COL001"\n', "unknown key 'rule'"),
        ('[[audit.rule]]\ncode = "COL99"\n', "has code 'COL99'"),
        ("", "no rules in it; write them as [[audit.rule]]"),
        (None, "cannot be read"),
    ],
)
def test_mistakes_in_proposed_rules(store: str, tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "bad.toml").write_text(text)
    assert colloc("audit", "run", "--store", store, *DAYS, "--rules", str(tmp_path / "bad.toml")) == 2
    assert said in colloc.err


def test_proposed_rules_tell_nobody(store: str, proposed: str, printed: Printed) -> None:
    said = set()
    for more in ((), ("--dry-run",)):
        assert colloc("audit", "run", "--notify", "--store", store, "--rules", proposed, *more) == 2
        said.add(colloc.err)
    printed("audit", *said)
