# SPDX-License-Identifier: Apache-2.0
"""The table of jobs of several GPUs: by user and by script, from a store."""

import csv
import io
import json
from pathlib import Path

import pytest

from slurm_colloc.core.model import Gres
from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.facts.several import SeveralBy
from slurm_colloc.store.ingest import keep_text
from slurm_colloc.store.store import Store
from tests.unit.golden import Printed
from tests.unit.made import HOUR, host, near, run
from tests.unit.programs import colloc
from tests.unit.shell import SITE
from tests.unit.stored import INGESTED_S, sampled, stored
from tests.unit.test_several_gpus import used

ENDS = ("--since", "1970-01-01T00:00:00+00:00", "--until", "1970-01-02T00:00:00+00:00")


def reading(rounds: list[NodeSample], job: str) -> list[NodeSample]:
    """Return the rounds of a job that read 900 MiB/s."""
    return [one._replace(hosts=(host(job, read_mib=900.0 * one.interval_s),)) for one in rounds]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the command of a report on the same script on one GPU and on four, of which one was used; and another."""
    (tmp_path / "site.toml").write_text(SITE.format(order='"mig"', agent="false"))
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    rows = [
        ("1", "ann", "sweep.sh", 1), ("2", "ann", "sweep.sh", 4), ("3", "ann", "big", 2), ("4", "bob", "slow", 2),
        ("5", "cid", "train", 8), ("6", "dan", "one", 1),
    ]  # fmt: skip
    text = ["JobID|Cluster|User|State|Submit|Start|End|AllocTRES|NodeList|JobName"]
    text += [
        f"{job}|c|{user}|COMPLETED|0|1|{HOUR + 1}|cpu=8,gres/gpu:h100={gpus},node=1|g{job}|{name}"
        for job, user, name, gpus in rows
    ]
    (tmp_path / "jobs.txt").write_text("\n".join(text) + "\n")
    rounds = [
        *used("1", 80.0), *used("2", 80.0, 0.0, 0.0, 0.0, node="g2"), *used("3", 90.0, 45.0, node="g3"),
        *reading(used("4", 20.0, 20.0, node="g4"), "4"),
    ]  # fmt: skip
    store = Store(str(tmp_path / "store"))
    keep_text(store, "jobs", str(tmp_path / "jobs.txt"), (), None, INGESTED_S)
    sampled(store, rounds)
    return ["report", "--several", "--store", store.samples.folder, *ENDS]


def test_by_user_gpus_asked_and_used_balance_waiting_lost_and_the_line(command: list[str], printed: Printed) -> None:
    assert colloc(*command) == 0
    printed("report-several", colloc.out)
    assert colloc(*command, "--format", "json") == 0
    rows = [SeveralBy(**row) for row in json.loads(colloc.out)["rows"]]
    assert [(one.user, one.gpus, one.runs) for one in rows] == [
        ("ann", 2, 1),
        ("ann", 4, 1),
        ("cid", 8, 1),
        ("bob", 2, 1),
    ]
    two, four, unseen, slow = rows
    assert (two.balance_median, two.used_gpus, two.lost_gpu_hours, two.line) == (0.75, 2, 0.0, "")
    assert (four.used_gpus, four.known_gpus, four.lost_gpu_hours) == (1, 4, 3.0)
    assert (four.line, four.command) == ("#SBATCH --gres=gpu:h100:1", "colloc job 2")
    assert (unseen.allocated_gpu_hours, unseen.known_runs, unseen.sm_pct) == (8.0, 0, None)
    # Reading is where bob's run was held up: all of its idle hours wait. Of the others no host was sampled.
    assert [one.waiting_gpu_hours for one in rows] == [None, None, None, near(2 * 0.8, 0.01)]
    assert (slow.lost_gpu_hours, unseen.lost_gpu_hours) == (0.0, None)


def test_by_script_one_gpu_stands_beside_several(command: list[str], printed: Printed) -> None:
    assert colloc(*command, "--by", "script", "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(colloc.out)))
    assert list(rows[0]) == list(SeveralBy._fields)
    sweeps = [
        (row["gpus"], row["gpu_hours_per_run"], round(float(row["sm_pct"]), 3))
        for row in rows
        if row["script"] == "sweep.sh"
    ]
    assert sweeps == [("1", "1.0", 80.0), ("4", "4.0", 20.0)]
    assert not [row for row in rows if row["user"] == "dan"], "of one GPU alone"
    assert colloc(*command, "--by", "script") == 0
    printed("report-several", colloc.out)


def test_without_a_site_nothing_is_known_to_be_lost(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLOC_CONF", "")
    assert colloc(*command, "--format", "json") == 0
    found = json.loads(colloc.out)
    assert {row["lost_gpu_hours"] for row in found["rows"]} == {None}
    assert [row["used_gpus"] for row in found["rows"] if row["gpus"] == 4] == [1]


def test_the_sites_own_bound_says_what_waits(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(path.read_text() + '[[audit.rule]]\ncode = "COL012"\nbounds = {read_mib_s = 1000.0}\n')
    assert colloc(*command, "--format", "json") == 0
    assert {row["waiting_gpu_hours"] for row in json.loads(colloc.out)["rows"]} == {None, 0.0}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--by", "account"], "is not one of user, script"),
        (["--pseudonyms"], "single users"),
        (["--top", "3"], "--top"),
    ],
)
def test_what_it_cannot_be_asked(command: list[str], more: list[str], why: str) -> None:
    assert colloc(*command, *more) == 2
    assert why in colloc.err


def test_shares_and_slices_are_no_jobs_of_several_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLOC_CONF", "")
    rows = [run("1", gres=(Gres("gpu", "h100_1g.10gb", 2),)), run("2", end_s=HOUR)]
    store = stored(tmp_path, rows)
    store.write_log("a", {})
    assert colloc("report", "--several", "--store", str(tmp_path), *ENDS, "--format", "json") == 0
    assert json.loads(colloc.out)["rows"] == []
