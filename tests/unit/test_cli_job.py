# SPDX-License-Identifier: Apache-2.0
"""colloc job at a shell: whose jobs are shown, and what is said where a program or the store is silent."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.cli.colloc import job as command
from slurm_colloc.core.model import because
from slurm_colloc.estimate.records import drop_decision, drop_evidence
from slurm_colloc.slurm.job_visibility import Visible
from slurm_colloc.slurm.jobs import _FIELDS
from tests.unit.golden import Printed
from tests.unit.made import DELIMITER, decision, evidence, run
from tests.unit.programs import colloc, program
from tests.unit.shell import SITE
from tests.unit.stored import INGESTED_S, busy, stored
from tests.unit.test_jobs import row

SACCT = r"""
echo "$*" >> "{folder}/calls"
for word; do case $word in --delimiter=*) end=${word#--delimiter=} ;; esac; done
[ -e "{folder}/rows" ] && sed "s/|/$end/g" "{folder}/rows"
exit 0
"""


class Site:
    """A store of ann's and bob's jobs, and a Slurm that knows what is in the file ``rows``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.store = str(folder / "store")
        monkeypatch.setattr(command, "now", lambda: INGESTED_S)
        monkeypatch.setattr("slurm_colloc.cli.colloc.output.now", lambda: INGESTED_S)
        monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        # Not a terminal's, here: lines stay whole.
        monkeypatch.setenv("COLUMNS", "40")
        program(folder, "sacct", SACCT.replace("{folder}", str(folder)), monkeypatch)
        program(folder, "scontrol", "echo 'Invalid job id specified' >&2\nexit 1\n", monkeypatch)
        stored(self.store, [run("61"), run("62", user="bob")], busy(900, 1800, 2700, 3600, job="61")).write_log("a", {})

    def rows(self, *rows: str) -> None:
        text = "".join(rows).replace(DELIMITER, "|")
        (self.folder / "rows").write_text(text)

    def by_csub(self, job_id: str, *ran: str, **fields: Any) -> None:
        """Let ann, at a site, have submitted this job by csub; of the runs ``ran`` there is evidence."""
        (self.folder / "site.toml").write_text(SITE.format(order='"mig"', agent="false"))
        data = self.folder / "data/slurm_colloc"
        drop_decision(str(data / "decisions"), decision(job_id, cluster="lab", rung="exact", **fields))
        for raw_id in ran:
            drop_evidence(str(data), evidence(raw_id, 6000, sm_active_mean_pct=1.0, sampled_s=3500.0))

    def told(self, *argv: str) -> tuple[int, str, str]:
        status = colloc("job", "--store", self.store, *argv)
        return status, colloc.out, colloc.err


@pytest.fixture
def as_ann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(command, "own_name", lambda: "ann")
    monkeypatch.setattr(command, "visible_here", lambda folder, config: Visible(False, "ann", (), "PrivateData=jobs"))
    return Site(tmp_path, monkeypatch)


def test_why_is_a_ticket_about_what_csub_did(as_ann: Site, printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    as_ann.by_csub(
        "61", given="mps:10", mode="mps", reasons=(because("hint", hint="mem=4G,sm=10"),), rule="'auto' for all"
    )
    monkeypatch.setenv("COLLOC_CONF", str(as_ann.folder / "site.toml"))
    as_ann.rows(row("61", Submit="-60", Start="0", End="3600", JobName="train"))
    assert colloc("why", "--store", as_ann.store, "61") == 0
    printed("why", colloc.out)
    assert colloc.out.count("\n") <= 6
    as_ann.rows(row("63"))
    assert colloc("why", "--store", as_ann.store, "63") == 0
    printed("why", colloc.out)
    as_ann.rows()
    assert colloc("why", "--store", as_ann.store, "64") == 2


def test_store_and_slurm_tell_one_story(as_ann: Site, printed: Printed) -> None:
    as_ann.rows(row("61", Submit="-60", Start="0", End="3600", JobName="train"))
    status, out, err = as_ann.told("61")
    assert (status, err) == (0, "")
    printed("job", out)
    assert out.count("\njob ") + out.startswith("job ") == 1
    assert len((as_ann.folder / "calls").read_text().splitlines()) == 1


def test_somebody_elses_job_is_not_there(as_ann: Site, printed: Printed) -> None:
    unknown = as_ann.told("77")
    as_ann.rows(row("62", User="bob", Submit="0", Start="0", End="3600"))
    others = as_ann.told("62")
    assert (others[0], others[1]) == (2, "")
    assert others[2].replace("'62'", "") == unknown[2].replace("'77'", "")
    assert "bob" not in others[2]
    printed("job", others[2])


def test_without_a_store_the_message_is_whole(as_ann: Site, tmp_path: Path, printed: Printed) -> None:
    as_ann.rows(row("63", User="ann", State="COMPLETED"))
    status, _, err = as_ann.told("63", "--store", str(tmp_path / "none"))
    assert status == 0
    printed("job", err)


def test_whoever_keeps_the_store_sees_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Site(tmp_path, monkeypatch).told("62")[1].startswith("job 62 'train' of bob, ")


def test_a_fresh_job_has_a_story_without_the_store(as_ann: Site, printed: Printed) -> None:
    as_ann.rows(row("63", User="ann", State="COMPLETED"))
    status, out, err = as_ann.told("63")
    assert status == 0
    printed("job", out, err)
    shown = json.loads(as_ann.told("63", "--format", "json")[1])
    assert (shown["runs"], shown["stories"][0]["slurm"]["user"]) == ([], "ann")


def test_a_host_without_slurm_has_the_stores_story(
    as_ann: Site, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    for name in ("sacct", "scontrol"):
        program(as_ann.folder, name, "exit 1\n", monkeypatch)
    status, out, _ = as_ann.told("61")
    assert status == 0
    assert "took" not in out
    unknown = as_ann.told("77")
    assert unknown[0] == 2
    printed("job", unknown[2])


@pytest.fixture
def at_site(as_ann: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("COLLOC_CONF", str(as_ann.folder / "site.toml"))
    return as_ann


def test_the_raw_id_of_a_task_is_that_task(at_site: Site) -> None:
    at_site.by_csub("70")
    stored(at_site.store, [run(f"70_{task}", job_id_raw=raw) for task, raw in (("1", "71"), ("2", "70"))])
    at_site.rows(row("70_1", JobIDRaw="71", Start="0", End="3600"))
    status, by_raw, _ = at_site.told("71")
    assert (status, by_raw) == (0, at_site.told("70_1")[1])
    assert "  csub gave  gpu:h100_2g.20gb:1" in by_raw
    at_site.rows()
    assert re.findall("^job (70.*?) ", at_site.told("70")[1], re.MULTILINE) == ["70_1", "70_2"]


def test_without_the_sites_store_ones_own_evidence_speaks(at_site: Site, printed: Printed) -> None:
    at_site.by_csub("80", "80")
    at_site.rows(row("80", Start="0", End="3600"))
    status, out, err = at_site.told("80", "--store", str(at_site.folder / "none"))
    assert (status, err) == (0, "")
    # The center's site file has a spool; what csub decided before lies at home, as does what it measured.
    spool = at_site.folder / "spool"
    spool.mkdir(mode=0o1777)
    with (at_site.folder / "site.toml").open("a") as stream:
        stream.write(f'[paths]\ndecisions = "{spool}"\n')
    assert at_site.told("80", "--store", str(at_site.folder / "none"))[:2] == (0, out)
    stored(at_site.store, [run("80", cluster="lab")])
    printed("job", out, at_site.told("80")[1])


def test_ones_own_history_says_nothing_of_others_jobs(
    at_site: Site, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    at_site.by_csub("80", "80")
    found = decision("80", cluster="lab", rung="exact")
    monkeypatch.setattr(command, "_decision", lambda *_: found)
    monkeypatch.setattr(command, "own_name", lambda: "root")
    at_site.rows(row("80", Start="0", End="3600"))
    out = at_site.told("80", "--store", str(at_site.folder / "none"))[1]
    printed("job", *(line for line in out.splitlines() if line.startswith("  next time")))
    assert "6000 MiB" not in out


@pytest.mark.parametrize("job", ["61;62", "-x", "61.batch", "*", "\x1b[2J", "abc", "61_[1-3]"])
def test_what_is_no_job_is_not_asked_for(as_ann: Site, job: str, printed: Printed) -> None:
    status, out, err = as_ann.told("--", job) if job.startswith("-") else as_ann.told(job)
    assert (status, out) == (2, "")
    assert "\x1b" not in err
    printed("job", err.partition("'")[0], err.rpartition("'")[2])  # but for what was asked for
    assert not (as_ann.folder / "calls").exists()


def test_the_row_of_the_fake_is_that_of_sacct() -> None:
    assert row().count(DELIMITER) == len(_FIELDS)
