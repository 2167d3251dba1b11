# SPDX-License-Identifier: Apache-2.0
"""Shadow mode on real Slurm: jobs are as sbatch submits them, and the report says what would have become of them."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.model import because
from slurm_colloc.core.wording import words
from slurm_colloc.placement.speed import on_slice
from tests.cluster.lab import SYSTEM_PATH, Lab
from tests.cluster.site import agents, write_site
from tests.cluster.user import SLICE, User, job_id

pytestmark = pytest.mark.cluster

# Long enough that seconds rounded by Slurm are less than a tenth of it.
SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:h100:1 -t 5
#CSUB --gpu-footprint=mem=7G,sm=11
COLLOC_SIMULATED_GPU_LOAD=mem={mem},util=60,sm=11 sleep 25
"""
# What tells one submission from the next, and where it ran.
OWN = {
    "JobId",
    "ArrayJobId",
    "Priority",
    "SubmitTime",
    "EligibleTime",
    "AccrueTime",
    "StartTime",
    "EndTime",
    "LastSchedEval",
    "Reason",
}
OWN |= {"JobState", "StdErr", "StdOut", "BatchHost", "NodeList", "RunTime", "Scheduler", "SuspendTime", "PreemptTime"}
SMALLEST = f"gpu:{SLICE}_1g.10gb:1"


@pytest.fixture
def site(lab: Lab) -> Path:
    return write_site(
        lab, "shadow-site", extra={"policy": '"shadow"', "sharing.order": '["mig"]', "sharing.ask_free": "true"}
    )


@pytest.fixture
def alice(lab: Lab, site: Path) -> User:
    user = User(lab, "alice", site)
    user.script(SCRIPT.format(mem="6G"), "fits.sh")
    user.script(SCRIPT.format(mem="12G"), "grew.sh")
    user.script(SCRIPT.format(mem="6G").replace("#CSUB", "#"), "unknown.sh")
    return user


@pytest.mark.parametrize(
    "words", [["fits.sh", "a b", "--explain"], ["-p", "all", "--array=0-1", "fits.sh"], ["-n2", "grew.sh"]]
)
def test_slurm_has_the_job_that_sbatch_would_have_submitted(alice: User, words: list[str]) -> None:
    by_csub = alice.run("csub", "--hold", *words)
    by_sbatch = alice.run("sbatch", "--hold", *words)
    jobs = [job_id(done) for done in (by_csub, by_sbatch)]
    assert (by_csub.stderr, by_sbatch.stderr) == ("", "")
    shown = [{name: value for name, value in alice.shown(job).items() if name not in OWN} for job in jobs]
    # 26.05 shows it: the line as sbatch was called. csub calls the one that it found, by its whole path.
    lines = [one.pop("SubmitLine", "") for one in shown]
    assert lines[0] in (lines[1], f"{shutil.which('sbatch', path=SYSTEM_PATH)}{lines[1].removeprefix('sbatch')}")
    assert shown[0] == shown[1]
    scripts = [alice.lab.run(["scontrol", "write", "batch_script", job, "-"], check=True).stdout for job in jobs]
    alice.lab.run(["scancel", *jobs], check=True)
    assert scripts[0] == scripts[1] == (alice.home / next(word for word in words if word.endswith(".sh"))).read_text()


def test_the_report_says_what_would_have_become_of_them(lab: Lab, site: Path, alice: User) -> None:
    environment = {"COLLOC_CONF": str(site / "site.toml")}
    with agents(lab, site):
        submitted = {name: alice.run("csub", name) for name in ("fits.sh", "grew.sh", "unknown.sh")}
        assert [done.stderr for done in submitted.values()] == [""] * 3
        jobs = {name: job_id(done) for name, done in submitted.items()}
        # Plain sbatch, one after the other: what one used is known to the next.
        plain = []
        for _ in range(2):
            plain.append(job_id(alice.run("sbatch", "unknown.sh")))
            lab.wait_jobs([*plain, *jobs.values()], timeout=120)
            time.sleep(1)  # of what ended in the very second of a submission nobody knows whether it was before
        lab.wait_accounted([*plain, *jobs.values()])
    assert all("gres/gpu:h100" in alice.allocated(job) for job in (*jobs.values(), *plain))
    lab.run(["colloc", "ingest", "--since", "1h"], env=environment, check=True, timeout=120)

    shown = _reported(lab, environment)
    assert [piece["piece"] for piece in shown["pieces"]] == [SMALLEST]
    total = shown["total"]
    assert (total["runs"], total["fitted"], total["out_of_memory"]) == (2, 1, 1), shown["not_judged"]
    # 25 s of a GPU, of which a seventh would have done, slower on 16 of 132 SMs for a job of 11 %.
    slower = on_slice(11.0, 132 / 16).upper
    assert 24.9 / 3600 < total["allocated_gpu_hours"] < 60 / 3600
    assert total["piece_gpu_hours"] == pytest.approx(slower * total["allocated_gpu_hours"] / 7, rel=0.02)
    # Slices were free, and nobody waited for any.
    assert total["waits_known"] == 1
    assert next((one["why"], one["runs"]) for one in shown["left"]) == (words(because("would-not-need")), 1)
    assert "OUT OF MEM" in lab.run(["colloc", "report", "--shadow"], env=environment, check=True).stdout


def _reported(lab: Lab, environment: dict[str, str]) -> dict[str, Any]:
    done = lab.run(["colloc", "report", "--shadow", "--format=json"], env=environment, check=True, timeout=60)
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown
