# SPDX-License-Identifier: Apache-2.0
"""Jobs that run out of the memory of their piece on real Slurm, and begin again with more under the same id."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest

from tests.cluster import daemons
from tests.cluster.daemons import all_idle
from tests.cluster.fixtures import RELEASE
from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.test_rebind import bind, learn, user_of
from tests.cluster.user import SLICE, User
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

SMALL, LARGER = f"{SLICE}_1g.10gb", f"{SLICE}_2g.20gb"
OOM = "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB'; exit 1\n"
STEP = "timeout 20 srun -n1 sh -c 'echo step'; echo end\n"
# Runs out of memory in its first run, whatever that has.
ONCE = f'echo "run ${{SLURM_RESTART_COUNT:-0}} $1"\n[ -n "${{SLURM_RESTART_COUNT-}}" ] || {{ {OOM.strip()}; }}\n{STEP}'
HEAD = "#!/bin/bash\n#SBATCH -t 30 --requeue -o out.%j\n"
FOOTPRINT = "--gpu-footprint=mem=4G,sm=5"
FORMS = {
    "gres": ["--gres=gpu:h100:1"],
    "gpus": ["--gpus=h100:1"],
    "per-node": ["--gpus-per-node=h100:1"],
    "per-task": ["-n1", "--gpus-per-task=h100:1"],
    "cores": ["-c2", "--gres=gpu:h100:1"],
}


class Trainer(User):
    """A user whose jobs run out of memory."""

    def submitted(self, *argv: str) -> str:
        done = self.run("csub", *argv)
        assert done.returncode == 0, done.stderr
        assert "it begins again on more" in done.stderr
        return done.stdout.split()[3]

    def requeued(self, job: str, *, times: int = 1) -> None:
        """Wait until Slurm has counted so many new runs, and have the next begin at once."""
        wait_for(lambda: self.shown(job).get("Restarts") == str(times), f"job {job} does not begin again", 60)
        wait_for(lambda: self.shown(job)["JobState"] == "PENDING", f"job {job} does not wait", 60)
        # In the same second the node would take it for the run that it has just ended ("Job credential revoked").
        time.sleep(2)
        self.lab.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])

    def output(self, job: str, run: str = "") -> str:
        return (self.home / f"out.{job}{run}").read_text()

    def rows(self, job: str) -> list[str]:
        """Return each run's state and what it had of GPUs, in order."""
        self.lab.wait_accounted([job.partition("_")[0]])
        argv = ["sacct", "-a", "-D", "-X", "-n", "-P", "-j", job, "-o", "State,AllocTRES"]
        lines = self.lab.run(argv).stdout.splitlines()
        return [line.partition("|")[0] + " " + ",".join(_gpus(line.partition("|")[2])) for line in lines]


def _gpus(text: str) -> list[str]:
    return sorted(one for one in text.split(",") if one.startswith("gres/") and one != "gres/gpu=1")


def trainer(lab: Lab, mode: str) -> Trainer:
    extra = {"sharing.order": f'["{mode}"]', "sharing.mps_daemon": '"prolog"'}
    return Trainer(lab, "alice", write_site(lab, f"again-{mode}", agent=False, extra=extra))


@pytest.fixture(autouse=True)
def _ended(lab: Lab) -> Iterator[None]:
    yield
    lab.run(["scancel", "-u", "alice"])
    wait_for(lambda: all_idle(lab), "the nodes do not become idle")
    shutil.rmtree(lab.users["alice"].home / ".local/share/slurm_colloc", ignore_errors=True)


PIECES = {"mps": "gres/mps=6", "shard": "gres/shard=1", "mig": f"gres/gpu:{SMALL}=1"}


@pytest.mark.parametrize("mode", list(PIECES))
@pytest.mark.parametrize("form", list(FORMS))
def test_each_form_begins_again_with_what_was_asked(lab: Lab, form: str, mode: str) -> None:
    alice = trainer(lab, mode)
    job = alice.submitted(FOOTPRINT, *FORMS[form], "-p", "all", alice.script(HEAD + ONCE), "a b")
    if RELEASE == "22.05" and mode == "mig":
        assert lab.wait_jobs([job]) == {int(job): "FAILED"}
        wait_for(lambda: "for more: csub --gpu-footprint=mem=" in alice.output(job), "its last line is another")
        assert alice.rows(job) == [f"FAILED {PIECES[mode]}"]
        return
    alice.requeued(job)
    assert lab.wait_jobs([job]) == {int(job): "COMPLETED"}
    later = {"mps": "gres/mps=100", "shard": "gres/shard=4"}[mode] if RELEASE == "22.05" else "gres/gpu:h100=1"
    assert alice.rows(job) == [f"REQUEUED {PIECES[mode]}", f"COMPLETED {later}"]
    assert alice.output(job).splitlines() == ["run 1 a b", "step", "end"]
    first = alice.output(job, ".run1")
    assert first.startswith("run 0 a b\n")
    assert f"csub: job {job} ran out of GPU memory on " in first
    assert f"GPU memory: job {job} ran out of GPU memory on " in alice.run("colloc", "job", job).stdout
    assert alice.jobs().count(job) == 1


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 leaves no slice")
def test_on_slices_alone_the_next_larger_one_twice_and_no_more(lab: Lab) -> None:
    alice = trainer(lab, "mig")
    job = alice.submitted(FOOTPRINT, "--gres=gpu:1", "-p", "mig", alice.script(HEAD + OOM))
    alice.requeued(job)
    alice.requeued(job, times=2)
    assert lab.wait_jobs([job]) == {int(job): "FAILED"}
    had = [row.split(":")[-1].partition("=")[0] for row in alice.rows(job)]
    assert had == [SMALL, LARGER, f"{SLICE}_3g.40gb"]
    last = alice.output(job).splitlines()[-1]
    assert "2 times" in last
    assert "csub --gpu-footprint=mem=" in last
    time.sleep(3)
    assert alice.shown(job)["Restarts"] == "2"


@pytest.mark.parametrize("code", ["echo 'ImportError: no module'; exit 1", "exit 0"])
def test_what_ends_otherwise_is_left_alone(lab: Lab, code: str) -> None:
    alice = trainer(lab, "mps")
    job = alice.submitted(FOOTPRINT, "--gres=gpu:h100:1", alice.script(f"{HEAD}{code}\n"))
    assert set(lab.wait_jobs([job]).values()) == {"COMPLETED" if code == "exit 0" else "FAILED"}
    assert alice.shown(job)["Restarts"] == "0"
    assert "csub:" not in alice.output(job)


def test_near_its_time_limit_it_is_left_alone(lab: Lab) -> None:
    alice = trainer(lab, "mps")
    job = alice.submitted(FOOTPRINT, "--gres=gpu:h100:1", "--signal=B:USR1@3600", alice.script(HEAD + OOM))
    assert set(lab.wait_jobs([job]).values()) == {"FAILED"}
    assert alice.shown(job)["Restarts"] == "0"
    assert "for more: csub --colloc=off" in alice.output(job).splitlines()[-1]


def test_a_cancelled_job_is_not_brought_back(lab: Lab) -> None:
    alice = trainer(lab, "mps")
    job = alice.submitted(
        FOOTPRINT, "--gres=gpu:h100:1", alice.script(f"{HEAD}{OOM.split(';')[0]}\nsleep 60\nexit 1\n")
    )
    wait_for(lambda: (alice.home / f"out.{job}").exists() and "CUDA" in alice.output(job), "it does not begin")
    alice.run("scancel", job)
    assert set(lab.wait_jobs([job]).values()) == {"CANCELLED"}
    assert alice.shown(job)["Restarts"] == "0"


def test_of_an_array_each_task_that_ran_out_begins_again_by_itself(lab: Lab) -> None:
    alice = trainer(lab, "mps")
    code = f"[ $SLURM_ARRAY_TASK_ID = 0 ] && exit 3\n[ $((SLURM_ARRAY_TASK_ID % 2)) = 0 ] && exit 0\n{ONCE}"
    head = HEAD.replace("out.%j", "all.%a")
    job = alice.submitted(FOOTPRINT, "--gres=gpu:h100:1", "--array=0-3", alice.script(head + code))
    for task in (1, 3):
        alice.requeued(f"{job}_{task}")
    lab.wait_jobs([job])
    rows = {task: alice.rows(f"{job}_{task}") for task in range(4)}
    grown = "gres/mps=100" if RELEASE == "22.05" else "gres/gpu:h100=1"
    assert rows == {
        0: ["FAILED gres/mps=6"],
        1: ["REQUEUED gres/mps=6", f"COMPLETED {grown}"],
        2: ["COMPLETED gres/mps=6"],
        3: ["REQUEUED gres/mps=6", f"COMPLETED {grown}"],
    }
    assert "CUDA out of memory" in (alice.home / "all.3.run1").read_text()
    assert (alice.home / "all.3").read_text().splitlines()[-2:] == ["step", "end"]


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 changes no whole GPU to a share")
@pytest.mark.parametrize("mode", ["mps", "mig"])
@pytest.mark.parametrize("form", ["gres", "gpus", "per-task"])
def test_a_job_that_got_its_piece_while_it_waited_begins_again_as_it_was_asked(lab: Lab, form: str, mode: str) -> None:
    user = user_of(lab, mode)
    # The run that is known took an hour.
    user.script(HEAD.replace("-t 30", "-t 120") + ONCE)
    words = [*FORMS[form], "-p", "all", "train.sh"]
    job = user.submit("-H", *words)
    learn(user, *words)
    bind(user, job)
    alice = Trainer(lab, "alice", user.folder)
    alice.run("scontrol", "release", job)
    alice.requeued(job)
    assert lab.wait_jobs([job]) == {int(job): "COMPLETED"}
    assert alice.rows(job) == [f"REQUEUED {PIECES[mode]}", "COMPLETED gres/gpu:h100=1"]
    assert alice.output(job).splitlines()[-2:] == ["step", "end"]


BETWEEN = """#!/bin/sh
{real} "$@"
status=$?
[ "$1" = requeue ] && [ ! -e told ] && {{ touch told; {then}; }}
exit $status
"""


@pytest.mark.parametrize("then", ["sleep 60", "kill -9 $PPID"])
def test_killed_between_the_two_it_is_one_job_that_has_more_in_the_end(lab: Lab, then: str) -> None:
    """slurmctld is gone between the two calls, until Slurm has ended who waits for it; or the job's own process is."""
    alice = trainer(lab, "mps")
    own = alice.home / "bin"
    own.mkdir(exist_ok=True)
    real = lab.run(["which", "scontrol"]).stdout.strip()
    (own / "scontrol").write_text(BETWEEN.format(real=real, then=then))
    (own / "scontrol").chmod(0o755)
    (alice.home / "told").unlink(missing_ok=True)
    job = alice.submitted(FOOTPRINT, "--gres=gpu:h100:1", alice.script(HEAD + f"export PATH={own}:$PATH\n" + ONCE))
    wait_for(lambda: (alice.home / "told").exists(), "it is not requeued", 60)
    if then.startswith("sleep"):
        lab.book.stop([record for record in lab.book.records() if record.name == "slurmctld"], 15)
        time.sleep(6)
        daemons.start_slurmctld(lab)
    alice.requeued(job)
    alice.requeued(job, times=2)
    assert lab.wait_jobs([job], timeout=120) == {int(job): "COMPLETED"}
    grown = "gres/mps=100" if RELEASE == "22.05" else "gres/gpu:h100=1"
    assert alice.rows(job) == ["REQUEUED gres/mps=6"] * 2 + [f"COMPLETED {grown}"]
    assert alice.output(job).splitlines() == ["run 2 ", "step", "end"]
    assert alice.jobs().count(job) == 1
