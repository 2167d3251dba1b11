# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/proof.py from its first call to its tables, with programs that sleep on a made-up GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.fixtures import CHECKOUT, RELEASE
from tests.cluster.lab import Lab
from tests.gpu import proof_plan
from tests.gpu.proof_report import read

ARMS = [arm for arm in proof_plan.ARMS if arm not in proof_plan.PARTITIONS]
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(RELEASE != "22.05", reason="it brings the machine's own Slurm")]


def test_every_arm_runs_each_job_and_csub_learns_from_the_first(lab: Lab, tmp_path: Path) -> None:
    argv = [str(lab.bin / "python"), "-m", "tests.gpu.proof", str(tmp_path), "--bounds", "1.6"]
    size = ["--dry", "--rounds", "1", "--jobs", "5", "--median-s", "2", "--minutes", "6"]
    done = subprocess.run([*argv, *size], cwd=CHECKOUT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows, cells = read(tmp_path / "rows.jsonl"), read(tmp_path / "cells.jsonl")
    assert [cell["arm"] for cell in cells] == [*ARMS], done.stdout
    assert {(row["arm"], row["state"]) for row in rows} == {(arm, "COMPLETED") for arm in ARMS}
    given = {arm: [row["given"].partition(":")[0] for row in rows if row["arm"] == arm] for arm in ARMS}
    assert set(given["sbatch"]) == {"as asked"}
    assert "mps" in given["warm"]
    assert all(cell["report_allocated_gpu_hours"] > 0 for cell in cells if "expert" not in cell["arm"])
    # For each second that a job ran: how long that was differs by more than what a share spares, on a busy machine.
    ran = {arm: sum(row["ended_s"] - row["began_s"] for row in rows if row["arm"] == arm) for arm in ARMS}
    held = {cell["arm"]: cell.get("report_allocated_gpu_hours", 0.0) / ran[cell["arm"]] for cell in cells}
    assert held["warm"] < held["sbatch"]
    shown = subprocess.run([*argv, "--report"], cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=True)
    assert all(f"| {arm}" in shown.stdout for arm in ARMS)
