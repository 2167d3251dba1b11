# SPDX-License-Identifier: Apache-2.0
"""csub pack --resume on real Slurm: from the call to what the second job ran."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.user import SMALL, User
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster


@pytest.fixture
def alice(lab: Lab) -> Iterator[User]:
    user = User(lab, "alice", write_site(lab, "resume-site"))
    yield user
    lab.run(["scancel", "-u", "alice"])


def test_a_cancelled_array_is_resumed_and_each_task_is_done_once(lab: Lab, alice: User) -> None:
    home = Path(lab.environment("alice")["HOME"])
    script = alice.script(
        "#!/bin/bash\n#SBATCH --gres=gpu:1 -p gpu -t 5\n#SBATCH --array=1-4\n#SBATCH -o resumed.%a\n"
        'echo "$SLURM_ARRAY_TASK_ID $1" >>ran\n[ "$SLURM_ARRAY_TASK_ID" != 3 ] || [ -e resumed ] || sleep 100\n'
    )
    job = alice.submit("--pack", SMALL, script, "with word")
    wait_for(lambda: (home / "ran").exists() and "3 with" in (home / "ran").read_text())
    refused = alice.run("csub", "pack", f"--resume={job}")
    assert (refused.returncode, "is still running" in refused.stderr) == (2, True), refused.stderr
    lab.run(["scancel", job], check=True)
    lab.wait_jobs([job], timeout=60)
    (home / "resumed").touch()
    before = (home / "ran").read_text().split("\n")[:-1]
    again = alice.run("csub", "pack", f"--resume={job}", "--parsable")
    assert again.returncode == 0, again.stderr
    new = again.stdout.strip()
    lab.wait_jobs([new], timeout=60)
    ran = (home / "ran").read_text().split("\n")[:-1]
    done = set(before) - {"3 with word"}
    assert sorted(ran[len(before) :]) == sorted({f"{number} with word" for number in range(1, 5)} - done)
    finished = alice.run("csub", "pack", f"--resume={job}")
    assert (finished.returncode, finished.stdout) == (0, "")
    assert "tasks are done" in finished.stderr
    shown = alice.run("colloc", "job", new).stdout
    assert "  task 3     done" in shown
    assert "pack" in alice.run("colloc", "history").stdout
