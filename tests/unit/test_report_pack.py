# SPDX-License-Identifier: Apache-2.0
"""What colloc says of a pack's tasks, from what its jobs wrote down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.model import Decision, SharingMode, because
from slurm_colloc.estimate.records import drop_decision
from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.ledger import LedgerWriter, ledger_path
from slurm_colloc.pack.report import pack_text, read_pack
from slurm_colloc.pack.resume import note_resumed
from slurm_colloc.pack.spec import Task
from slurm_colloc.pack.starts_and_retries import Start
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.job_visibility import own_name
from tests.cluster.packs import a_spec
from tests.unit.golden import Printed
from tests.unit.programs import colloc
from tests.unit.test_job_story import ROW


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "site.toml").write_text('schema = 1\ncluster = "lab"\nslurm_release = "22.05"\n')
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))


def written(
    name: str, ends: list[tuple[int, Outcome, int, str]], job: dict[str, str] | None = None, **fields: Any
) -> None:
    """Write a ledger in which those tasks end; one that ends twice has two attempts."""
    spec = a_spec(4, **{"array": "1-4", **fields})
    ledger = LedgerWriter(ledger_path("lab", name), print)
    ledger.header(spec, job or {})
    attempts: dict[int, int] = {}
    for number, outcome, status, said in ends:
        attempts[number] = attempts.get(number, 0) + 1
        start = Start(Task(number), attempts[number], spec.load)
        ledger.start(start)
        ledger.end(start, outcome, status, said, f"{name}.{number}")
    ledger.close()


def told(name: str) -> str:
    pack = read_pack("lab", name)
    assert pack is not None
    return pack_text(pack)


def test_each_task_has_a_line(printed: Printed) -> None:
    ends = [(1, Outcome.DONE, 0, ""), (2, Outcome.GPU_OOM, 1, "CUDA out of memory"), (2, Outcome.DONE, 0, "")]
    written("7", [*ends, (3, Outcome.FAILED, -11, "bad\x1b[2Jword")])
    ledger = LedgerWriter(ledger_path("lab", "7"), print)
    ledger.note("stopped by SIGTERM", "stop")
    ledger.close()
    printed("job", told("7"))


def test_of_many_tasks_those_that_are_not_done_come_first() -> None:
    ends = [(number, Outcome.DONE, 0, "") for number in range(1, 200)]
    written("7", [*ends, (200, Outcome.TIME_LIMIT, 15, "")], array="1-201")
    lines = told("7").splitlines()
    assert [line.split(",")[0] for line in lines[2:5]] == [
        "  task 200   time limit",
        "  task 201   not run",
        "  task 1     done",
    ]
    assert (len(lines), lines[-1]) == (53, "  and 151 tasks more: 151 done")


def test_an_array_of_packs_is_one_pack_and_each_job_of_it_its_own(printed: Printed) -> None:
    for part in (0, 1):
        job = {"SLURM_ARRAY_TASK_ID": str(part)}
        written(f"7_{part}", [(part + 1, Outcome.DONE, 0, "")], job, jobs=2)
    printed("job", told("7"), told("7_1"))
    Path(ledger_path("lab", "7_0")).write_text("")
    printed("job", told("7"))


def test_what_a_later_pack_did_is_not_to_be_done(printed: Printed) -> None:
    written("7", [(1, Outcome.DONE, 0, "")])
    written("8", [(2, Outcome.DONE, 0, ""), (3, Outcome.DONE, 0, "")], only=(2, 3, 4), resumes="7")
    note_resumed("lab", "7", "8")
    printed("job", told("7"))
    assert "resumed" not in told("8")


def test_a_task_without_an_end_is_said() -> None:
    written("7", [])
    ledger = LedgerWriter(ledger_path("lab", "7"), print)
    ledger.start(Start(Task(1), 1, a_spec().load))
    ledger.close()
    assert "  task 1     no end known\n" in told("7")


def test_what_is_no_pack_is_none() -> None:
    assert read_pack("lab", "12") is None


@pytest.mark.parametrize(("end", "state", "advised"), [("Unknown", "RUNNING", 0), ("1700000060", "TIMEOUT", 1)])
def test_a_job_asks_slurm_whether_its_pack_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, state: str, advised: int,
) -> None:  # fmt: skip
    written("7", [(1, Outcome.DONE, 0, "")])
    ended = None if end == "Unknown" else int(end)
    row = ROW._replace(job_id="7", raw_id="7", user=own_name(), state=state, end_s=ended)
    monkeypatch.setattr(CliClient, "accounted", lambda self, job_id: (row,))
    assert colloc("job", "7") == 0
    assert ("3 tasks still to be done" in colloc.out, colloc.out.count("--resume")) == (True, advised)


def test_a_pack_is_shown_without_a_store(capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    written("7", [(1, Outcome.DONE, 0, "")])
    assert colloc("job", "7") == 0
    said = capsys.readouterr()
    assert "  task 1     done" in said.out
    printed("job", *(line for line in said.err.splitlines() if ": what " in line))
    assert colloc("job", "7", "--format", "json") == 0
    pack = json.loads(capsys.readouterr().out)["pack"]
    assert [task["outcome"] for task in pack["tasks"]] == ["done", None, None, None]
    assert pack["tasks"][0]["step"] == "7.1"
    assert (pack["missing"], pack["outcomes"]) == ([2, 3, 4], {"done": 1, "not run": 3})
    assert colloc("job", "8") == 2
    Path(ledger_path("lab", "7")).write_text("")
    assert colloc("job", "7") == 2
    printed("job", *(line for line in capsys.readouterr().err.splitlines() if ": what " in line))


def test_the_history_marks_packs(tmp_path: Path, printed: Printed) -> None:
    written("7", [(1, Outcome.DONE, 0, "")])
    for job_id, reason in (("7", "pack"), ("8", "pack"), ("9", "slice-holds")):
        decision = Decision(
            *(job_id, "lab", float(job_id), "ann", "sweep", "s", "gpu:1", "gpu:1", SharingMode.MPS, "hint"),
            *(None, None, (because(reason),)),
        )
        drop_decision(str(tmp_path / "data/slurm_colloc/decisions"), decision)
    assert colloc("history") == 0
    blocks = colloc.out.partition("submissions:\n")[2].split("\n")
    assert [line.endswith("  pack") for line in blocks if "sweep" in line] == [True, True, False]
    printed("history", *(line for line in blocks if line.startswith("    ")))
    assert colloc("history", "--format", "json") == 0
    assert [one["pack"] for one in json.loads(colloc.out)["submissions"]] == [True, True, False]
