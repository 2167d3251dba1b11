# SPDX-License-Identifier: Apache-2.0
"""Jobs that run out of GPU memory on real Slurm, and the companions that run them again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.user import SLICE, User

pytestmark = pytest.mark.cluster

HEAD = "#!/bin/sh\n#SBATCH --gres=gpu:1 -p mig -t 5\n"
OOM = "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB'; exit 1\n"
# Runs out of memory on a slice of this kind and not on others; Slurm tells a job what it has by its step's gres.
ON_SMALL = f"scontrol show job $SLURM_JOB_ID | grep -q '1g.10gb=' && {{ {OOM.strip()}; }}\necho done\n"
FOOTPRINT = "--gpu-footprint=mem=4G,sm=5"


class Trainer(User):
    """A user whose jobs run out of memory."""

    def submitted(self, *argv: str, **env: str) -> tuple[str, str]:
        """Submit by csub and return the ids of the job and of its companion ("" without)."""
        done = self.run("csub", *argv, **env)
        assert done.returncode == 0, done.stderr
        companion = re.search(r"job (\d+) submits it again on more", done.stderr)
        return done.stdout.split()[3], companion[1] if companion else ""

    def ended(self, companion: str) -> str:
        """Wait for a companion's end and return its state."""
        return next(iter(self.lab.wait_jobs([companion], timeout=120).values()))

    def next_job(self, job: str) -> str:
        """Return the job as which another was submitted again, by the last line of its output."""
        last = self.output(job).splitlines()[-1]
        found = re.fullmatch(r"csub: job \S+ ran out of GPU memory on \S+; submitted again as job (\d+)", last)
        assert found, last
        return found[1]

    def companion_of(self, job: str) -> str:
        """Return the companion of a job that a companion submitted."""
        [found] = self.known(f"csub-retry-{job}")
        return found

    def output(self, job: str) -> str:
        return (self.home / f"slurm-{job}.out").read_text()

    def others(self, before: list[str]) -> list[str]:
        return sorted(set(self.jobs()) - set(before), key=int)


@pytest.fixture(scope="module")
def site(lab: Lab) -> Path:
    return write_site(lab, "again-site", agent=False)


@pytest.fixture
def alice(lab: Lab, site: Path) -> Iterator[Trainer]:
    user = Trainer(lab, "alice", site)
    yield user
    lab.run(["scancel", "-u", "alice"])
    user.run("rm", "-rf", ".local/share/slurm_colloc")


def test_a_job_that_ran_out_of_memory_runs_again_on_the_next_larger_slice(alice: Trainer) -> None:
    script = alice.script(HEAD + ON_SMALL + 'echo "$MARK $1 $PWD"\n')
    job, companion = alice.submitted("--requeue", FOOTPRINT, script, "a b", MARK="my mark")
    assert alice.ended(companion) == "COMPLETED"
    second = alice.next_job(job)
    became = f"job {job} ran out of GPU memory on gpu:{SLICE}_1g.10gb:1; submitted again as job {second}"
    assert f"GPU memory: {became}\n" in alice.run("colloc", "job", job).stdout
    assert alice.lab.wait_jobs([second]) == {int(second): "COMPLETED"}
    assert f"gres/gpu:{SLICE}_1g.10gb" in alice.allocated(job)
    assert f"gres/gpu:{SLICE}_2g.20gb" in alice.allocated(second)
    assert alice.output(second) == f"done\nmy mark a b {alice.home}\n"
    assert alice.shown(second)["JobName"] == "train.sh"
    assert alice.ended(alice.companion_of(second)) == "CANCELLED"
    text = alice.lab.run_as("alice", ["scontrol", "write", "batch_script", second, "-"]).stdout
    ran_out = f"job {job} ran out of GPU memory on gpu:{SLICE}_1g.10gb:1"
    assert f"again after {ran_out}" in text
    assert f"GPU memory: {ran_out}; submitted again as job {second}\n" in alice.run("colloc", "job", job).stdout
    # A companion that is requeued submits nothing twice.
    before, said = alice.jobs(), alice.output(job)
    [folder] = (alice.home / ".local/share/slurm_colloc/followup").glob(f"*/{job}")
    python = alice.lab.bin / "python"
    done = alice.run(str(python), "-I", "-m", "slurm_colloc.followup.companion", str(folder), SLURM_JOB_ID=companion)
    assert (done.returncode, done.stderr) == (0, "")
    assert (alice.others(before), alice.output(job)) == ([], said)
    third, _ = alice.submitted("-H", FOOTPRINT, script, "a b")
    assert f"gpu:{SLICE}_2g.20gb:1" in alice.shown(third)["TresPerNode"]


def test_it_gives_up_after_the_second_time(alice: Trainer) -> None:
    job, companion = alice.submitted("--requeue", FOOTPRINT, alice.script(HEAD + OOM))
    alice.ended(companion)
    second = alice.next_job(job)
    alice.ended(alice.companion_of(second))
    third = alice.next_job(second)
    before = alice.jobs()
    alice.ended(alice.companion_of(third))
    last = alice.output(third).splitlines()[-1]
    assert re.match(rf"csub: job {third} .* gpu:{SLICE}_3g\.40gb:1; .*\b2 times", last)
    assert "--gpu-footprint=mem=" in last
    time.sleep(2)
    assert alice.others(before) == []


@pytest.mark.parametrize("code", ["echo 'ImportError: no module'; exit 1", "exit 0"])
def test_what_ends_otherwise_is_left_alone(alice: Trainer, code: str) -> None:
    before = alice.jobs()
    job, companion = alice.submitted("--requeue", FOOTPRINT, alice.script(f"{HEAD}{code}\n"))
    state = alice.ended(companion)
    assert state == ("CANCELLED" if code == "exit 0" else "COMPLETED")
    assert "csub:" not in alice.output(job)
    assert alice.others(before) == [job, companion]


def test_of_an_array_the_tasks_that_ran_out_run_again(alice: Trainer) -> None:
    code = f"[ $SLURM_ARRAY_TASK_ID = 0 ] && exit 3\n[ $((SLURM_ARRAY_TASK_ID % 2)) = 0 ] && exit 0\n{ON_SMALL}"
    script = alice.script(HEAD + "#SBATCH -o all.%a\n" + code)
    job, companion = alice.submitted("--requeue", "--array=0-5%2", FOOTPRINT, script)
    assert alice.ended(companion) == "COMPLETED"
    words = {number: (alice.home / f"all.{number}").read_text() for number in range(6)}
    assert [number for number, text in words.items() if "csub: job" in text] == [1, 3, 5]
    found = re.search(rf"csub: job {job}_3 ran out .* submitted again as job (\d+)", words[3])
    assert found, words[3]
    second = found[1]
    states = alice.lab.wait_jobs([second])
    assert list(states.values()) == ["COMPLETED"] * 3
    rows = alice.lab.run(["squeue", "-h", "-t", "all", "-r", "-j", second, "-o", "%K"]).stdout.split()
    assert sorted(rows) == ["1", "3", "5"]
    # The first attempt's words survive in files of one name.
    assert (alice.home / "all.3").read_text().endswith("done\n")
    assert "CUDA out of memory" in (alice.home / "all.3").read_text()
