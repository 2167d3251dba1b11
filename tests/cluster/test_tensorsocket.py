# SPDX-License-Identifier: Apache-2.0
"""The how-to's pack of one data loader and three trainings, by the real TensorSocket, where a Python has it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.test_csub_pack import Packer
from tests.doc_examples import blocks
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

# An environment's folder with torch (of the CPU, too) and tensorsocket: some 900 MB that no other test needs.
ENVIRONMENT = os.environ.get("COLLOC_TENSORSOCKET", "")


@pytest.mark.skipif(not ENVIRONMENT, reason="COLLOC_TENSORSOCKET names no environment with torch and tensorsocket")
def test_one_loader_feeds_three_trainings(lab: Lab) -> None:
    alice = Packer(lab, "alice", write_site(lab, "tensorsocket"))
    alice.environment["PATH"] = f"{Path(ENVIRONMENT).absolute() / 'bin'}:{alice.environment['PATH']}"
    loader, train, commands = (one.text for one in blocks() if one.page == "docs/how-to/tensorsocket.md")
    # In its first start the trainings never begin; in the second they begin first, beside what the first loader left.
    first = "import os, time\nagain = 'SLURM_RESTART_COUNT' in os.environ\n"
    alice.script(f"{first}time.sleep(3 if again else 0)\n{loader}", "loader.py")
    alice.script(f"{first}time.sleep(0 if again else 600)\n{train}", "train.py")
    commands = commands.replace("gpu:h100:1", "gpu:1 -p gpu -o out/%a.txt").replace("--time=1:00:00", "--time=3")
    job = alice.submit("pack", "--requeue", alice.script(commands, "commands.txt"))
    wait_for(lambda: list(alice.home.glob(f"ports-{job}*")), "the loader tells no ports")
    lab.run(["scontrol", "requeue", job], check=True)
    lab.wait_state(job, "PENDING")
    lab.run(["scontrol", "update", f"jobid={job}", "StartTime=now"], check=True)
    lab.wait_state(job, "RUNNING")
    assert "4 tasks: 4 succeeded" in alice.told(job)
    for task in (2, 3, 4):
        seen = re.findall(rf"^--seed={task - 1} (\d) (\d+)$", alice.output(f"{task}.txt"), re.MULTILINE)
        assert seen == [("0", "4032"), ("1", "4032")]
