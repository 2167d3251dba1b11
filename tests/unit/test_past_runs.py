# SPDX-License-Identifier: Apache-2.0
"""Past runs as the planner asks for them."""

from pathlib import Path

from slurm_colloc.facts.run_rows import past_runs
from slurm_colloc.store.store import Store
from tests.unit.programs import colloc


def test_a_job_waits_from_when_it_could_start(tmp_path: Path) -> None:
    """After its dependencies, its --begin and its hold: an Eligible that no such moment can be is none."""
    names = "JobID|Cluster|User|Partition|State|Submit|Eligible|Start|End|AllocTRES|NodeList"
    rows = [
        f"{number}|c|ann|gpu|COMPLETED|100|{eligible}|500|900|gres/gpu=1|g1"
        for number, eligible in enumerate(("400", "Unknown", "", "90", "600", "2026-01-01T00:00:00"))
    ]
    text, store = tmp_path / "sacct.txt", tmp_path / "store"
    text.write_text("\n".join([names, *rows]) + "\n")
    assert colloc("ingest", "--store", str(store), "--sacct-file", str(text)) == 0
    found = {row["job_id"]: row["submit_s"] for row in past_runs(Store(str(store)), "c", 0.0, 1e10)}
    assert found == {"0": 400, **dict.fromkeys("12345", 100)}


def test_the_planner_knows_of_which_array_a_run_is_a_task(tmp_path: Path) -> None:
    """A requeued task is none of those with which it was submitted."""
    names = "JobID|JobIDRaw|Cluster|User|Partition|State|Submit|Eligible|Start|End|AllocTRES|NodeList"
    ids = ("9_0|11|c|ann|gpu|COMPLETED|100", "9_1|12|c|ann|gpu|COMPLETED|100", "9_1|12|c|ann|gpu|COMPLETED|950")
    rows = [f"{row}|{at_s}|{at_s}|{at_s + 400}|gres/gpu=1|g1" for at_s, row in zip((100, 500, 960), ids, strict=True)]
    text, store = tmp_path / "sacct.txt", tmp_path / "store"
    text.write_text("\n".join([names, *rows, "13|13|c|ann|gpu|COMPLETED|1|1|2|9|gres/gpu=1|g1"]) + "\n")
    assert colloc("ingest", "--store", str(store), "--sacct-file", str(text)) == 0
    found = [(row["array"], row["submit_s"]) for row in past_runs(Store(str(store)), "c", 0.0, 1e10)]
    assert found == [("", 1), ("9@100", 100), ("9@100", 500), ("9@950", 960)]
