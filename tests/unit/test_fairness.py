# SPDX-License-Identifier: Apache-2.0
"""Who waited and who gained: waits and hours by account before pieces began and after."""

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.model import Gres
from slurm_colloc.core.sharing_model import Fairness
from slurm_colloc.core.usage_model import AllocationRow
from slurm_colloc.feedback.fairness import fairness, pieces_began_s
from tests.unit.golden import Printed
from tests.unit.made import HOUR, decision, near, run
from tests.unit.programs import colloc
from tests.unit.shell import SITE
from tests.unit.stored import stored

DAY = 24 * HOUR
BEGAN = 2 * DAY


def waited(
    job: str, submit_s: int, wait_h: float, gpus: tuple[Gres, ...] = (Gres("gpu", "h100", 1),), **more: Any
) -> AllocationRow:
    start_s = submit_s + int(wait_h * HOUR)
    fields: dict[str, Any] = {"end_s": start_s + 2 * HOUR, "gres": gpus, "cluster": "lab"} | more
    return run(job, submit_s=submit_s, start_s=start_s, **fields)


SLICE = (Gres("gpu", "h100_1g.10gb", 1),)
ROWS = [
    waited("1", DAY, 2.0),
    waited("2", DAY, 4.0, user="bob"),
    # It began again: its second run has not waited so long as it seems.
    waited("3", DAY, 1.0, end_s=DAY + 2 * HOUR),
    waited("3", DAY, 9.0),
    waited("4", DAY, 6.0, (Gres("gpu", "h100", 4),), account="big"),
    waited("5", BEGAN + HOUR, 0.5, SLICE),
    waited("6", BEGAN + HOUR, 1.0, (Gres("gpu", "h100", 4),), account="big"),
    # Of another cluster, before the window, and without a GPU.
    waited("7", DAY, 7.0, cluster="other"), waited("8", -DAY, 7.0), waited("9", DAY, 7.0, ()),
]  # fmt: skip


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "site.toml").write_text(SITE.format(order='"mig"', agent="false"))
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    store = stored(tmp_path / "store", ROWS)
    made = [
        decision("0", at_s=100.0, shadow=True, mode="mig", cluster="lab"),
        decision("1", at_s=200.0, mode="exclusive", cluster="lab"),
        decision("7", at_s=300.0, mode="mig", cluster="other"),
        decision("5", at_s=float(BEGAN), mode="mig", cluster="lab"),
    ]
    store.write_decisions([("ann", one) for one in made])
    store.write_log("a", {})
    ends = ("--since", "1970-01-01T00:00:00+00:00", "--until", "1970-01-05T00:00:00+00:00")
    return ["report", "--rollout", "--store", store.samples.folder, *ends]


def test_waits_and_hours_by_account_and_class_before_and_after(command: list[str], printed: Printed) -> None:
    assert colloc(*command, "--format", "json") == 0
    found = json.loads(colloc.out)
    assert found["pieces_began"].startswith("1970-01-03T00:00:00")
    rows = {(one["account"], one["job_class"], one["after"]): Fairness(**one) for one in found["fairness"]}
    several, lab = "several GPUs", "lab"
    assert list(rows) == [
        ("big", several, False),
        ("big", several, True),
        (lab, "a piece", True),
        (lab, "one GPU", False),
    ]
    before = rows["lab", "one GPU", False]
    assert (before.runs, before.users, before.waits_known, before.wait_median_h) == (4, 2, 3, 2.0)
    assert (before.wait_p90_h, before.gpu_hours, before.gpu_hours_per_day) == (near(3.6), 7.0, 3.5)
    after = rows["lab", "a piece", True]
    assert (after.wait_median_h, after.gpu_hours, after.gpu_hours_per_day) == (0.5, near(2 / 7), near(1 / 7))
    assert [rows["big", "several GPUs", late].wait_median_h for late in (False, True)] == [6.0, 1.0]
    assert colloc(*command) == 0
    printed("report-rollout", colloc.out)


def test_a_job_waits_from_when_it_could_have_started(tmp_path: Path) -> None:
    store = stored(tmp_path, [waited("1", DAY, 5.0)])
    with store.connect() as database:
        database.execute("CREATE OR REPLACE VIEW allocations AS SELECT * REPLACE (submit_s + 3 * 3600 AS eligible_s) "
                         "FROM readings")  # fmt: skip
        (one,) = fairness(database, "lab", 0, 2 * DAY, 3 * DAY)
        assert (one.wait_median_h, pieces_began_s(database, "lab")) == (2.0, None)


def test_nothing_is_said_where_pieces_did_not_begin_in_the_window(command: list[str]) -> None:
    assert colloc(*command[:-2], "--until", "1970-01-02T00:00:00+00:00", "--format", "json") == 0
    found = json.loads(colloc.out)
    assert (found["fairness"], bool(found["pieces_began"])) == ([], True)
    assert colloc(command[0], "--harm", *command[2:], "--format", "json") == 0
    assert json.loads(colloc.out)["fairness"] == []
