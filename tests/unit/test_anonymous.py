# SPDX-License-Identifier: Apache-2.0
"""Names kept out of reports: no format has one, and no figure is of fewer users than asked for."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.cli.colloc.anonymous import without_jobs
from slurm_colloc.core.chart_model import Charts, GroupDetail, IdleRun
from slurm_colloc.core.errors import InputError, StoreError
from slurm_colloc.core.files import own_secret
from slurm_colloc.core.model import Decision, Gres
from slurm_colloc.facts.anonymous import pseudonym, small_groups
from slurm_colloc.report.formats import FORMATS, PARQUET
from tests.unit.golden import Printed
from tests.unit.made import decision, run
from tests.unit.programs import colloc
from tests.unit.reports import report
from tests.unit.shell import SITE
from tests.unit.stored import busy, sampled, stored

WINDOW = ("--since", "1970-01-01T00:00Z", "--until", "1970-01-01T02:00Z")
GROUPS = st.dictionaries(
    st.text(max_size=3), st.frozensets(st.integers(0, 12).map(str), min_size=1, max_size=8), max_size=8
)


@given(GROUPS, st.integers(2, 6))
def test_no_row_is_of_fewer_users_and_none_can_be_told_from_the_others(
    users: Mapping[str, frozenset[str]], least: int
) -> None:
    everybody = frozenset().union(*users.values()) if users else frozenset()
    try:
        small = small_groups(users, least)
    except InputError:
        assert len(everybody) < least
        return
    together = frozenset[str]().union(*(users[name] for name in small))
    shown = {name: of for name, of in users.items() if name not in small}
    assert all(len(of) >= least for of in shown.values())
    # The total less all that is shown is the row of the small ones.
    assert not small or (len(together) >= least and len(small) > 1)


@given(GROUPS, st.integers(2, 6))
def test_nothing_is_added_up_without_need(users: Mapping[str, frozenset[str]], least: int) -> None:
    if all(len(of) >= least for of in users.values()):
        assert small_groups(users, least) == frozenset()


def test_a_small_group_alone_takes_the_next_larger_one_with_it(printed: Printed) -> None:
    users = {"a": frozenset("u"), "b": frozenset("uvwxy"), "c": frozenset("stuvwxyz")}
    assert small_groups(users, 3) == {"a", "b"}
    with printed.raises("report-groups", InputError, r"\b3 users"):
        small_groups({"a": frozenset("uv")}, 3)


@given(st.binary(min_size=32, max_size=32), st.text(max_size=20), st.text(max_size=20))
def test_pseudonyms_are_stable_and_differ_by_name_kind_and_key(key: bytes, one: str, other: str) -> None:
    assert pseudonym(key, "user", one) == pseudonym(key, "user", one)
    assert (pseudonym(key, "user", one) == pseudonym(key, "user", other)) == (one == other)
    others = {pseudonym(key, "user", one), pseudonym(key[1:] + b"x" + key[:1], "user", one)}
    assert len({part.partition("-")[2] for part in (*others, pseudonym(key, "account", one))}) == 3


def test_the_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = own_secret(str(path), 32)
    assert (len(key), path.stat().st_mode & 0o777, os.listdir(tmp_path)) == (32, 0o600, ["key"])
    assert own_secret(str(path), 32) == key
    path.chmod(0o640)
    with pytest.raises(StoreError, match="of mode 0600"):
        own_secret(str(path), 32)
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(StoreError, match="no secret of 32 bytes"):
        own_secret(str(path), 32)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        own_secret(str(path), 32)


# Not what a pseudonym can end with: "qos-" and letters.
SECRETS = ("zoe-q", "lab-q", "night-q", "name-q", "sig-q", "47110815")


@pytest.fixture
def store(tmp_path: Path) -> str:
    job = run("47110815", user="zoe-q", account="lab-q", qos="night-q", job_name="name-q")
    others = [run(str(number), user=f"u{number}", account="big") for number in range(1, 5)]
    made = stored(tmp_path / "store", [job, *others], busy(900, 1800, job="47110815"))
    found: Decision = decision("47110815", user="zoe-q", signature="sig-q", at_s=0.0)
    made.write_decisions([("zoe-q", found)])
    made.write_log("a", {"rows_in": 5, "used": 5, "steps": 0, "rejected": {}})
    return str(tmp_path / "store")


@pytest.mark.parametrize("by", ["user", "account", "qos", "signature", "partition", "gpu"])
def test_with_pseudonyms_no_format_names_anybody_or_any_job(store: str, by: str, tmp_path: Path) -> None:
    asked = ("report", "--store", store, "--by", by, *WINDOW)
    for form in (form for form in FORMATS if form != PARQUET):
        assert colloc(*asked, "--format", form) == 0
        named = colloc.out
        runs = tmp_path / "runs.csv"
        assert colloc(*asked, "--format", form, "--pseudonyms", "--runs", str(runs)) == 0
        shown = colloc.out
        assert not [secret for secret in SECRETS if secret in shown + runs.read_text()], form
        if by in ("user", "account", "qos", "signature"):
            assert any(secret in named for secret in SECRETS)  # else the test looks at nothing
            assert f"{by}-" in shown
        assert "zoe-q" not in runs.read_text()
        assert "user-" in runs.read_text()


def test_pseudonyms_change_no_figure_and_are_the_same_in_the_next_report(store: str) -> None:
    def rows(*options: str) -> dict[str, tuple[float, int]]:
        assert colloc("report", "--store", store, "--format", "json", *WINDOW, *options) == 0
        report = json.loads(colloc.out)
        assert [one["jobs"] for one in report["predictions"]] == [1]
        return {group["name"]: (group["allocated_gpu_hours"], group["jobs"]) for group in report["groups"]}

    named, once, again = rows(), rows("--pseudonyms"), rows("--pseudonyms")
    assert once == again
    assert sorted(named.values()) == sorted(once.values())
    assert not named.keys() & once.keys()


def test_small_groups_are_one_row_in_which_all_is_counted(store: str, printed: Printed) -> None:
    asked = ("report", "--store", store, "--by", "account", *WINDOW)
    assert colloc(*asked, "--min-group", "2", "--format", "json") == 0
    report = json.loads(colloc.out)
    assert [(group["name"], group["jobs"]) for group in report["groups"]] == [("(fewer than 2 users)", 5)]
    assert report["predictions"] == []
    printed("report-groups", *report["names"])
    assert (report["groups"][0]["gpu_mem_peak_mib"], report["total"]["sm_used_gpu_hours"]) == (None, None)
    assert colloc(*asked, "--min-group", "6") == 2
    assert "6 users" in colloc.err


def test_no_figure_is_of_fewer_users_not_even_one_that_only_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.toml").write_text(SITE.format(order="", agent="true"))
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    rows = [run(str(number), user=f"u{number}", cluster="lab") for number in range(1, 5)]
    measured = [busy(900, 1800, job=str(number), uuid=f"GPU-{number}") for number in (1, 2)]
    made = stored(tmp_path / "store", rows)
    sampled(made, [*measured[0], *measured[1]], "lab")
    made.write_log("a", {"rows_in": 4, "used": 4, "steps": 0, "rejected": {}})
    asked = ("report", "--store", str(tmp_path / "store"), "--by", "account", *WINDOW)

    def shown(least: str) -> Mapping[str, Any]:
        assert colloc(*asked, "--format", "json", "--min-group", least) == 0
        found: Mapping[str, Any] = json.loads(colloc.out)
        return found

    assert shown("2")["total"]["sm_used_gpu_hours"] > 0
    few = shown("3")
    assert {few["total"][name] for name in ("sm_used_gpu_hours", "util_used_gpu_hours", "energy_kwh")} == {None}
    assert (few["total"]["allocated_gpu_hours"], few["total"]["sm_measured_gpu_hours"]) == (4.0, 0.0)
    assert (few["charts"], few["fits"], few["collocation"]) == (None, [], [])
    assert colloc(*asked, "--format", "html", "--min-group", "3") == 0
    assert "this report was made without it" in colloc.out


@pytest.mark.parametrize(("sized", "shown"), [(1, False), (2, True)])
def test_gpu_hours_known_of_fewer_users_are_left_out_and_nothing_else_is_said_of_the_runs(
    tmp_path: Path, sized: int, *, shown: bool
) -> None:
    """Without a site.toml nobody knows what part of a GPU gres/mps is: its users have no GPU-hours."""
    share = (Gres("mps", "", 50),)
    rows = [run(str(number), user=f"u{number}") for number in range(1, 5)]
    rows[sized:] = [row._replace(gres=share) for row in rows[sized:]]
    samples = [one for row in rows for one in busy(900, 1800, job=row.job_id, uuid=f"GPU-{row.job_id}")]
    stored(tmp_path / "store", rows, samples).write_log("a", {"rows_in": 4, "used": 4, "steps": 0, "rejected": {}})
    asked = ("report", "--store", str(tmp_path / "store"), "--by", "account", *WINDOW, "--min-group", "2")
    assert colloc(*asked, "--format", "json") == 0
    report = json.loads(colloc.out)
    for group in (*report["groups"], report["total"]):
        of_sized = ("allocated_gpu_hours", "held_gpu_hours", "sm_used_gpu_hours", "sm_weighted_pct", "coverage_pct")
        assert [group[name] is not None for name in of_sized] == [shown] * len(of_sized)
        assert (group["jobs"], group["jobs_measured"], group["jobs_without_size"]) == (4, 4, 4 - sized)
        assert group["gpu_mem_peak_mib"] == 3000
    assert colloc(*asked) == 0
    text = colloc.out
    assert ("figures are left out" in text) is not shown
    assert "No run" not in text


def test_charts_name_no_single_job() -> None:
    detail = GroupDetail("user-x", (), (), (IdleRun("47110815", "name-q", "gpu:1", 1.0, 0.5),))
    shown = without_jobs(report(charts=Charts((), (), "UTC", (), (detail, detail))))
    assert "47110815" not in repr(shown)
    assert shown.charts
    assert [one.name for one in shown.charts.details] == ["user-x", "user-x"]


def test_a_text_can_be_shown_without_names_too(tmp_path: Path) -> None:
    names = ("JobIDRaw", "User", "Account", "State", "Submit", "Start", "End", "Suspended", "AllocTRES", "Cluster")
    more = ("JobID", "Partition", "QOS", "NodeList", "JobName")
    times = "1970-01-01T00:00:00|1970-01-01T00:00:00|1970-01-01T01:00:00"
    rows = [
        f"{job}|{user}|{account}|COMPLETED|{times}|00:00:00|gres/gpu=1|c|{job}|gpu|normal|g1|train"
        for job, user, account in ((1, "zoe_9", "lab_9"), (2, "ann_9", "big_9"), (3, "bob_9", "big_9"))
    ]
    text = tmp_path / "sacct.txt"
    text.write_text("\n".join(["|".join((*names, *more)), *rows, ""]))
    asked = ("report", "--sacct-file", str(text), "--timezone", "UTC", *WINDOW, "--format", "csv", "--by", "account")
    assert colloc(*asked, "--pseudonyms") == 0
    shown = colloc.out
    assert shown.count("\naccount-") == 2
    assert "_9" not in shown
    assert colloc(*asked, "--min-group", "3") == 0
    assert colloc.out.splitlines()[1].startswith("(fewer than 3 users),3,")
