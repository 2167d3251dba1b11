# SPDX-License-Identifier: Apache-2.0
"""Jobs that begin inside a running job of their user, on real Slurm."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.history.records import parse_decision
from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.user import User

pytestmark = pytest.mark.cluster

HOST = ("-p", "gpu", "--gres=gpu:1", "-c", "4", "--mem=1G", "-t", "20", "--gpu-footprint=mem=9G,sm=90")
LIGHT = ("--join=auto", "-p", "gpu", "--gres=gpu:1", "--mem=300M", "-t", "5", "--gpu-footprint=mem=30G,sm=5")
WORK = "#!/bin/bash\n#SBATCH -J light\necho began on $(hostname) gpu $CUDA_VISIBLE_DEVICES as $1 [$MARK] in $PWD\n"


class Joiner(User):
    """One of the lab's users with a job that runs."""

    def host(self, *options: str, text: str = "sleep 300\n") -> str:
        """Start a job with a GPU and return its id once its memory is measured."""
        script = self.script(f"#!/bin/sh\n{text}", "host.sh")
        job = self.submit(*HOST, *options, "-o", "host.out", script)
        self.until(lambda: self.lab.run(["sstat", "-a", "-n", "-P", "-j", job, "-o", "MaxRSS"]).stdout.strip("0\n"))
        return job

    def join(self, text: str, *options: str, args: tuple[str, ...] = (), **env: str) -> str:
        """Join and return the step."""
        done = self.run("csub", *LIGHT, *options, self.script(WORK + text), *args, **env)
        assert done.stdout.startswith("Joined job "), done.stderr
        return done.stdout.split()[-1]

    def until(self, true: Callable[[], object], tries: int = 300) -> None:
        for _ in range(tries):
            if true():
                return
            time.sleep(0.1)
        raise AssertionError("it did not come about")

    def states(self, step: str) -> dict[str, str]:
        argv = ["sacct", "-n", "-P", "-j", step.partition(".")[0], "-o", "JobID,State,ExitCode"]
        rows = [line.split("|") for line in self.lab.run(argv, check=True).stdout.splitlines()]
        return {row[0]: f"{row[1].split()[0]} {row[2]}" for row in rows}

    def companion(self, job: str) -> list[str]:
        """Return the jobs that wait for this one's end."""
        rows = self.lab.run(["squeue", "-h", "-u", self.name, "-t", "PD", "-o", "%A %j"]).stdout.splitlines()
        return [row.split()[0] for row in rows if row.endswith(f"csub-retry-{job}")]

    def end(self, job: str) -> None:
        """End a job, and wait for whoever waits for that."""
        waiting = self.companion(job)
        self.lab.run(["scancel", job], check=True)
        self.lab.wait_jobs([job, *waiting], timeout=90)

    def lights(self) -> list[str]:
        """Return the jobs called light, of which there are none while they run as steps."""
        return self.known("light")


@pytest.fixture(scope="module")
def site(lab: Lab) -> Path:
    return write_site(lab, "join-site", agent=False)


@pytest.fixture
def dave(lab: Lab, site: Path) -> Iterator[Joiner]:
    user = Joiner(lab, sorted(lab.users)[0], site)
    lab.run(["scancel", "-u", user.name])
    for path in user.home.glob("*.out"):
        path.unlink()
    yield user
    lab.run(["scancel", "-u", user.name])
    user.until(lambda: not lab.run(["squeue", "-h", "-u", user.name]).stdout)


def test_a_light_job_begins_at_once_and_goes_on_without_csub(dave: Joiner) -> None:
    host = dave.host()
    before = dave.lights()
    step = dave.join("sleep 3; echo done; exit 5\n", args=("a b",), MARK="m x")
    assert step == f"{host}.0"
    output = dave.home / f"slurm-{step}.out"
    dave.until(lambda: output.read_text().endswith("done\n"))
    said = output.read_text()
    assert f" as a b [m x] in {dave.home}\n" in said
    assert " gpu 0 " in said or " gpu 1 " in said
    dave.until(lambda: dave.states(step).get(step) == "FAILED 5:0")
    assert dave.states(step)[host] == "RUNNING 0:0"
    story = dave.run("colloc", "job", step).stdout
    assert f"step {step} 'light' inside job {host}: FAILED, exit code 5:0\n" in story
    assert f"  output     {output}\n" in story
    assert json.loads(dave.run("colloc", "job", step, "--format=json").stdout)["decision"]["job_id"] == step
    running = dave.lab.run(["ps", "-eo", "args"]).stdout.splitlines()
    assert not [line for line in running if "srun" in line and str(dave.home) in line]
    dave.end(host)
    assert dave.lights() == before


def test_a_host_that_ends_early_costs_a_second_run_and_no_third(dave: Joiner) -> None:
    host = dave.host()
    before = dave.lights()
    step = dave.join("trap 'exit 0' TERM\nfor i in $(seq 300); do sleep 0.1; done\n", "-t", "1")
    assert len(dave.companion(host)) == 1
    dave.end(host)
    new = set(dave.lights()) - set(before)
    assert len(new) == 1, dave.run("colloc", "job", step).stdout
    [again] = new
    assert dave.shown(again)["TimeLimit"] == "00:02:00"
    assert f"submitted again as job {again}\n" in dave.run("colloc", "job", step).stdout
    dave.lab.run(["scancel", again])
    dave.lab.wait_jobs([again])
    assert not dave.companion(again)
    assert step == f"{host}.0"


def test_what_the_user_cancels_is_not_run_again(dave: Joiner) -> None:
    host = dave.host()
    before = dave.lights()
    step = dave.join("sleep 200\n")
    dave.lab.run_as(dave.name, ["scancel", step], check=True)
    dave.until(lambda: dave.states(step).get(step, "").startswith("CANCELLED"))
    time.sleep(1.5)  # Slurm counts in seconds
    dave.end(host)
    assert dave.lights() == before


def test_a_wrapper_that_is_killed_is_an_end_of_its_own(dave: Joiner) -> None:
    host = dave.host()
    before = dave.lights()
    step = dave.join("kill -9 $PPID; sleep 200\n")
    dave.until(lambda: "RUNNING" not in dave.states(step).get(step, "RUNNING"))
    time.sleep(1.5)
    dave.end(host)
    assert dave.lights() == before


def test_two_do_not_join_one_job_and_the_second_is_submitted_as_usual(dave: Joiner) -> None:
    host = dave.host()
    dave.join("sleep 100\n")
    script = dave.script(WORK)
    done = dave.run("csub", "-H", *LIGHT, script)
    assert done.stdout.startswith("Submitted batch job ")
    assert "not joined: '-H'" in done.stderr
    done = dave.run("csub", *LIGHT, "--dry-run", script)
    assert f"not joined: job {host}: another job has joined it already" in done.stderr


NOT_JOINED = [
    (("--gpu-footprint=mem=30G,sm=40",), "their SM activity comes to 130 %"),
    (("--gpu-footprint=mem=75G,sm=5",), "MiB do not hold"),
    (("-t", "40"), "it has 20 min left"),
    (("-c", "5"), "it has 4 cores"),
    (("--mem=2G",), "MiB do not hold 2048"),
    (("--mem=1023M",), "MiB do not hold 1023"),
]


def test_what_does_not_fit_is_submitted_as_usual_and_says_why(dave: Joiner) -> None:
    host = dave.host()
    script = dave.script(WORK)
    for options, why in NOT_JOINED:
        done = dave.run("csub", *LIGHT, *options, "--dry-run", script)
        assert f"not joined: job {host}: " in done.stderr, options
        assert why in done.stderr, options


def test_a_dry_run_shows_the_command_and_starts_nothing(dave: Joiner) -> None:
    host = dave.host()
    narrowed = {"SQUEUE_PARTITION": "mig", "SQUEUE_NAMES": "another"}
    done = dave.run("csub", *LIGHT, "--dry-run", "--explain", dave.script(WORK), **narrowed)
    assert f"--jobid={host} --overlap --exact" in done.stdout
    assert "together" in done.stderr
    assert not dave.companion(host)
    assert dave.states(f"{host}.0").keys() == {host, f"{host}.batch"}


def test_a_task_of_an_array_is_called_as_its_user_calls_it(dave: Joiner) -> None:
    array = dave.submit(*HOST, "-a", "3", dave.script("#!/bin/sh\nsleep 300\n", "host.sh"))
    dave.until(lambda: dave.lab.run(["squeue", "-h", "-t", "R", "-j", array]).stdout)
    for wish in ("--join=auto", f"--join={array}"):
        done = dave.run("csub", *LIGHT, wish, "--dry-run", dave.script(WORK))
        assert f"not joined: job {array}_3: it is a task of an array" in done.stderr


def test_what_was_decided_is_recorded_and_what_both_use_is_no_evidence(dave: Joiner, site: Path) -> None:
    host = dave.host()
    step = dave.join("sleep 2\n")
    [folder] = {path.parent for path in (site / "spool").glob(f"*/*-{host}.json")}
    found = [parse_decision(path.read_bytes()) for path in sorted(folder.glob("*.json"))]
    joined = [one for one in found if one.job_id == step]
    assert [one.given for one in joined] == [f"joined job {host}"]
    last = [one for one in found if one.job_id == host][-1]
    assert last.signature.endswith("-joined")
    assert list((dave.home / ".local/share/slurm_colloc/evidence").glob(f"*/*/{host}.json.joined"))
    assert json.loads(next(folder.glob(f"*-{step}.json")).read_text())["mode"] == "join"
