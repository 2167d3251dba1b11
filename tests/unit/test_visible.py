# SPDX-License-Identifier: Apache-2.0
"""Whose runs somebody may see: what Slurm says, what follows from it, and that nothing else is read."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_colloc.cli.colloc import visible_store as seen
from slurm_colloc.core.errors import ProcessError
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.collocation import collocation, stray_use
from slurm_colloc.facts.counts import unaccounted_hours
from slurm_colloc.facts.usage import used_hours_by
from slurm_colloc.report.formats import FORMATS, PARQUET
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.job_visibility import EVERYBODY, Rights, Visible, parse_rights, visible_to
from slurm_colloc.slurm.parse import parse_config
from slurm_colloc.store.rights import jobs_of_others
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.unit.golden import Printed
from tests.unit.made import HOUR, RECORDED, RELEASES, device, process, run
from tests.unit.made import seen as round_of
from tests.unit.reports import group, report
from tests.unit.stored import busy, stored

NOBODY = Rights(64030, frozenset({"jobs"}), "None", ())


def test_whoever_keeps_the_store_and_root_see_all_of_it_without_slurm() -> None:
    assert visible_to("root", 0, keeps_store=False, rights=None) == EVERYBODY
    assert visible_to("colloc", 990, keeps_store=True, rights=None) == EVERYBODY


def test_without_an_answer_of_slurm_only_ones_own_runs_are_shown_and_it_is_said(printed: Printed) -> None:
    found = visible_to("ann", 1000, keeps_store=False, rights=None)
    assert (found.everybody, found.user, found.accounts) == (False, "ann", ())
    printed("report", found.whose)


@pytest.mark.parametrize("hidden", ["jobs", "usage", "users"])
def test_private_data_leaves_a_user_with_his_own_runs_and_a_coordinator_with_those_of_his_accounts(
    hidden: str, printed: Printed
) -> None:
    rights = NOBODY._replace(private=frozenset({hidden, "nodes"}))
    assert visible_to("ann", 1000, keeps_store=False, rights=rights)[:3] == (False, "ann", ())
    found = visible_to("ann", 1000, keeps_store=False, rights=rights._replace(accounts=("lab", "sub")))
    assert found[:3] == (False, "ann", ("lab", "sub"))
    printed("report", found.whose, case=hidden)


@pytest.mark.parametrize(
    "rights",
    [
        NOBODY._replace(private=frozenset()),
        NOBODY._replace(private=frozenset({"nodes", "reservations"})),
        NOBODY._replace(level="Operator"),
        NOBODY._replace(level="Administrator"),
        NOBODY._replace(slurm_uid=1000),
    ],
)
def test_what_slurm_shows_is_shown(rights: Rights) -> None:
    assert visible_to("ann", 1000, keeps_store=False, rights=rights) == EVERYBODY


@pytest.mark.parametrize("release", RELEASES)
def test_rights_are_read_from_what_each_release_answers(release: str) -> None:
    folder = RECORDED / f"slurm-{release}/sacctmgr"
    database, user = (folder / "config.txt").read_text(), (folder / "user.txt").read_text()
    slurm = parse_config((RECORDED / f"slurm-{release}/setup/config.txt").read_text())
    found = parse_rights(slurm, database, user)
    assert found.slurm_uid is not None
    assert (found.private, found.level, found.accounts) == (frozenset(), "None", ("ml", "subacct"))
    hidden = database.replace("PrivateData            = none", "PrivateData            = jobs,Users")
    of_database = "PrivateData = none\nSlurmDBD configuration:" + hidden.partition("SlurmDBD configuration:")[2]
    assert parse_rights(slurm, of_database, "").private == {"jobs", "users"}
    assert parse_rights({**slurm, "PrivateData": "usage"}, database, "").private == {"usage"}


def test_a_user_whom_the_accounting_does_not_know_has_no_level_and_no_account() -> None:
    assert parse_rights({}, "", "") == Rights(None, frozenset(), "", ())


def test_what_is_not_visible_is_in_no_figure(tmp_path: Path) -> None:
    rows = [run("1"), run("2", user="bob", account="other"), run("3", user="cy", account="led"), run("4", user="")]
    stray = round_of(HOUR, [device("GPU-9")], [process("", uuid="GPU-9")], interval_s=900.0)
    rounds = [*busy(900, 1800, job="1"), *busy(900, job="2", uuid="GPU-1"), *busy(900, job="3", uuid="GPU-2"), stray]
    store = stored(tmp_path, rows, rounds)

    def figures(visible: Visible) -> tuple[dict[str, float | None], object]:
        store.visible = visible
        with store.connect(0, 2 * HOUR) as database:
            aggregate(database, store, Window(0, 2 * HOUR, 1e10))
            hours = {group.name: group.allocated_gpu_hours for group in used_hours_by(database, "user")}
            around = stray_use(database), [one for one in collocation(database) if one.jobs != 1]
            return hours, (*around, unaccounted_hours(database)[0])

    assert figures(EVERYBODY)[0] == {"ann": 1, "bob": 1, "cy": 1, "(not known)": 1, "total": 4}
    assert figures(EVERYBODY)[1] != ([], [], 0.0)
    assert figures(Visible(False, "ann")) == ({"ann": 1, "total": 1}, ([], [], 0.0))
    assert figures(Visible(False, "ann", ("led",)))[0] == {"ann": 1, "cy": 1, "total": 2}
    for nobody in ("", "x' OR '1'='1", "\udcff"):
        assert figures(Visible(False, nobody))[0] == {"total": 0}


def test_a_report_of_some_runs_says_so_and_without_names_where_it_has_none() -> None:
    whole = report(group())
    own = Visible(False, "zoe-q", ("lab-q",), "PrivateData=jobs")
    for form in (form for form in FORMATS if form != PARQUET):
        named, nameless = (str(FORMATS[form](whole._replace(visible=words))) for words in (own.whose, own.nameless))
        assert all((word in named) is (form != "csv") for word in ("zoe-q", "lab-q", "PrivateData=jobs"))
        assert not re.search("zoe-q|lab-q", nameless)
        if form in ("table", "html"):
            assert f", by user, {own.nameless.partition(' (')[0]}" in nameless


def test_who_asks_is_asked_of_slurm_only_where_it_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def rights(_: CliClient, name: str) -> Rights:
        asked.append(name)
        raise ProcessError("slurmctld is away")

    monkeypatch.setattr(CliClient, "rights", rights)
    monkeypatch.setattr("slurm_colloc.store.rights.own_name", lambda: "ann")
    uid = tmp_path.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: uid)
    assert seen.visible_here(str(tmp_path), None) == EVERYBODY
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert seen.visible_here(str(tmp_path), None) == EVERYBODY
    assert asked == []
    monkeypatch.setattr("os.geteuid", lambda: uid + 1)
    assert seen.visible_here(str(tmp_path), None).user == "ann"
    assert asked == ["ann"]
    said = "whose runs you may see is not known, so only your own are shown: slurmctld is away"
    assert said in capsys.readouterr().err


def test_where_accounting_shows_nobody_elses_jobs_reports_do_not_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm 26.05 says PrivateData=none of a slurmdbd.conf that has it, and hides jobs all the same."""
    rows = [run(str(number), number, user=user, account="lab") for number, user in enumerate(("bob", "cy", "ann"), 1)]
    stored(tmp_path, [*rows, run("4", 4, user="led", account="led"), run("5", 5, user="")])
    folder, uid = str(tmp_path), tmp_path.stat().st_uid + 1
    open_to_all = Rights(64030, frozenset(), "None", ("led",), in_database=True)
    asked: list[Sequence[str]] = []

    def visible(rights: Rights, *shown: str) -> Visible:
        def answer(_: CliClient, raw_ids: Sequence[str]) -> frozenset[str]:
            asked.append(raw_ids)
            return frozenset(shown) & frozenset(raw_ids)

        monkeypatch.setattr(CliClient, "rights", lambda *_: rights)
        monkeypatch.setattr(CliClient, "shown", answer)
        return seen.visible_here(folder, None)

    monkeypatch.setattr("slurm_colloc.store.rights.own_name", lambda: "ann")
    monkeypatch.setattr("os.geteuid", lambda: uid)
    assert visible(open_to_all, "1", "2") == EVERYBODY
    assert visible(open_to_all, "2") == EVERYBODY  # the other is too old for it
    hidden = visible(open_to_all, "3", "4")
    assert (hidden.everybody, hidden.user, hidden.accounts) == (False, "ann", ("led",))
    assert asked == [["2", "1"]] * 3
    for rights in (open_to_all._replace(level="Operator"), open_to_all._replace(slurm_uid=uid),
                   open_to_all._replace(in_database=False)):  # fmt: skip
        assert visible(rights) == EVERYBODY
    assert not visible(open_to_all._replace(private=frozenset({"usage"}))).everybody
    assert len(asked) == 3
    rows_of = ("bob", "ann'; --", "")
    assert [jobs_of_others(Store(folder), "c", user, ()) for user in rows_of] == [
        ["4", "3", "2"], ["4", "3", "2", "1"], ["4", "3", "2", "1"],
    ]  # fmt: skip
