# SPDX-License-Identifier: Apache-2.0
"""csub --canary and --probe on real Slurm: what is measured first, and that the rest runs once, whatever happens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.user import SLICE, User
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:h100:1 -t 5\n"
LOAD = "COLLOC_SIMULATED_GPU_LOAD=mem=6G,util=60,sm=11 sleep {}\n"
MARK = 'echo "$SLURM_ARRAY_TASK_ID" >>ran\n'
# A first task is still there when something is done to it, however slow the machine.
STAYS = "until [ -e go ]; do sleep 0.1; done\n"
SMALL = f"gres/gpu:{SLICE}_1g.10gb"


class Person(User):
    """A user who lets the first task be measured."""

    def measured(self, *argv: str) -> tuple[str, str, str]:
        """Submit and return the ids of the first job, its companion and the rest."""
        done = self.run("csub", *argv)
        assert done.returncode == 0, done.stderr
        rest = done.stdout.split()[-1]
        found = re.search(rf"csub: job {rest}: job (\d+) measures .*; then job (\d+) submits this one", done.stderr)
        assert found, done.stderr
        return found[1], found[2], rest

    def told(self, job: str) -> str:
        """Return what colloc job says of how it was measured first."""
        found = re.search("^measured first: (.*)$", self.run("colloc", "job", job).stdout, re.MULTILINE)
        assert found
        return found[1]

    def ran(self) -> list[str]:
        """Return which tasks ran, each as often as it did."""
        path = self.home / "ran"
        return sorted(path.read_text().split()) if path.exists() else []

    def tasks(self, job: str) -> list[str]:
        """Return the states of a job's tasks."""
        return self.lab.run(["squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%T"]).stdout.split()

    def made(self, before: list[str]) -> list[str]:
        """Return the jobs, an array once, that were submitted since."""
        text = self.lab.run(["squeue", "-h", "-t", "all", "-u", self.name, "-o", "%F"]).stdout
        return sorted(set(text.split()) - set(before), key=int)


@pytest.fixture(scope="module")
def site(lab: Lab) -> Path:
    return write_site(lab, "first-site", agent=False, extra={"probe.partition": '"gpu"'})


@pytest.fixture
def alice(lab: Lab, site: Path) -> Iterator[Person]:
    user = Person(lab, "alice", site)
    user.run("rm", "-rf", ".local/share/slurm_colloc", "ran", "go")
    yield user
    lab.run(["scancel", "-u", "alice"])


def test_the_rest_of_an_array_runs_on_the_piece_that_its_first_task_needed(alice: Person) -> None:
    script = alice.script(HEAD + MARK + LOAD.format(4))
    first, companion, rest = alice.measured("--canary", "--array=2-4%2", script)
    assert alice.shown(rest)["ArrayTaskId"] == "3-4%2"
    alice.lab.wait_jobs([companion], timeout=120)
    said = alice.told(rest)
    found = re.fullmatch(rf"job {first} was measured; the rest runs as job (\d+) on gpu:{SLICE}_1g.10gb:1", said)
    assert found, said
    sized = found[1]
    assert set(alice.tasks(rest)) == {"CANCELLED"}
    assert set(alice.lab.wait_jobs([sized]).values()) == {"COMPLETED"}
    assert alice.ran() == ["2", "3", "4"]
    assert SMALL in alice.allocated(sized)
    assert "gres/gpu:h100" in alice.allocated(first)
    for job in (first, companion, rest, sized):
        assert alice.told(job) == said
    text = alice.lab.run_as("alice", ["scontrol", "write", "batch_script", sized, "-"]).stdout
    assert f"sized by job {first}, which was measured first" in text


def test_a_first_task_that_fails_leaves_the_rest_as_asked(alice: Person) -> None:
    script = alice.script(HEAD + MARK + LOAD.format(2) + "[ $SLURM_ARRAY_TASK_ID != 1 ]\n")
    first, _, rest = alice.measured("--canary", "--array=1-3", script)
    assert alice.lab.wait_jobs([first]) == {int(first): "FAILED"}
    assert set(alice.lab.wait_jobs([rest], timeout=120).values()) == {"COMPLETED"}
    assert alice.ran() == ["1", "2", "3"]
    assert alice.told(rest) == f"job {rest} stays as asked: job {first} ended as FAILED"
    assert "gres/gpu:h100" in alice.allocated(rest)


CANCELS: list[tuple[Callable[[str, str, str], list[str]], list[str]]] = [
    (lambda first, companion, rest: [first], ["1", "2", "3"]),
    (lambda first, companion, rest: [companion], ["1", "2", "3"]),
    (lambda first, companion, rest: [rest], ["1"]),
    (lambda first, companion, rest: [f"{rest}_3"], ["1", "2"]),
    (lambda first, companion, rest: [first, rest], ["1"]),
]


@pytest.mark.parametrize(("which", "ran"), CANCELS, ids=["first", "companion", "rest", "a task of it", "both"])
def test_what_its_user_cancels_is_cancelled_and_nothing_else(
    alice: Person, which: Callable[[str, str, str], list[str]], ran: list[str]
) -> None:
    before = alice.jobs()
    script = alice.script(HEAD + MARK + LOAD.format(4) + STAYS)
    jobs = alice.measured("--canary", "--array=1-3", script)
    wait_for(lambda: alice.ran() == ["1"])
    assert alice.told(jobs[0]) == f"job {jobs[0]} is measured first; the rest waits for it"
    alice.run("scancel", *which(*jobs))
    alice.run("touch", "go")
    alice.lab.wait_jobs(jobs, timeout=120)
    assert alice.ran() == ran
    if jobs[1] in which(*jobs):
        assert alice.told(jobs[0]) == f"the companion of job {jobs[0]} ended without a result: the rest runs as asked"
    assert alice.made(before) == sorted(jobs, key=int), "nothing was submitted in its place"


def test_a_probe_that_was_cut_sizes_the_job_and_writes_to_a_file_of_its_own(alice: Person) -> None:
    script = alice.script(HEAD.replace("-t 5", "-t 5 -o own.out") + 'echo "[$CSUB_PROBE]"\n' + LOAD.format("$1"))
    first, companion, rest = alice.measured("--probe", script, "200")
    shown = alice.shown(first)
    assert shown["TimeLimit"] == "00:03:00"
    alice.lab.run(["scontrol", "update", f"jobid={first}", "TimeLimit=1"], check=True)  # for which nobody waits here
    assert shown["Partition"] in ("gpu,all", "gpu", "all"), "its own too, whichever takes it"
    alice.lab.wait_jobs([companion], timeout=240)
    assert alice.lab.wait_jobs([first]) == {int(first): "TIMEOUT"}
    said = alice.told(rest)
    found = re.fullmatch(rf"job {first} was measured; the rest runs as job (\d+) on gpu:{SLICE}_1g.10gb:1", said)
    assert found, said
    wait_for(lambda: (alice.home / "own.out").exists())
    wait_for(lambda: (alice.home / "own.out").read_text() == "[]\n")
    assert (alice.home / f"csub-probe-{first}.out").read_text().startswith("[1]\n")
    text = alice.lab.run_as("alice", ["scontrol", "write", "batch_script", found[1], "-"]).stdout
    assert "GPU memory had stopped growing" in text


def test_a_probe_does_not_wait_for_a_partition_that_takes_no_jobs(lab: Lab) -> None:
    lab.run(["scontrol", "create", "partition=debug", "nodes=g1", "maxtime=5", "state=down"], check=True)
    try:
        extra = {"probe.partition": '"debug"'}
        carol = Person(lab, "carol", write_site(lab, "first-down", agent=False, extra=extra))
        first, companion, rest = carol.measured("--probe", "-p", "gpu", carol.script(HEAD + LOAD.format(4)))
        carol.lab.wait_jobs([companion], timeout=120)
        assert carol.shown(first)["Partition"] == "gpu"
        found = re.search(r"the rest runs as job (\d+) on", carol.told(rest))
        assert found, carol.told(rest)
        assert set(lab.wait_jobs([found[1]], timeout=120).values()) == {"COMPLETED"}
    finally:
        lab.run(["scancel", "-u", "carol"])
        lab.run(["scontrol", "delete", "partition=debug"])


def test_a_rest_for_which_another_job_waits_keeps_its_id(alice: Person) -> None:
    script = alice.script(HEAD + MARK + LOAD.format(4) + STAYS)
    first, companion, rest = alice.measured("--canary", "--array=1-3", script)
    after = alice.submit(f"--dependency=afterok:{rest}", "--wrap", "true")
    alice.run("touch", "go")
    alice.lab.wait_jobs([companion], timeout=120)
    assert alice.told(first) == f"job {rest} stays as asked: job {after} waits for it"
    assert alice.lab.wait_jobs([after], timeout=120) == {int(after): "COMPLETED"}
    assert alice.ran() == ["1", "2", "3"]


def test_a_companion_that_is_killed_before_it_cancels_and_runs_again_goes_on(alice: Person) -> None:
    script = alice.script(HEAD + MARK + LOAD.format(4) + STAYS)
    first, companion, rest = alice.measured("--canary", "--array=1-3", script)
    before = alice.jobs()
    sized = died_of_its_scancel(alice, first, companion, before, "kill -9 $PPID")
    assert set(alice.tasks(sized)) == {"PENDING"}
    alice.lab.run(["scontrol", "release", companion], check=True)
    assert set(alice.lab.wait_jobs([sized], timeout=120).values()) == {"COMPLETED"}
    assert set(alice.tasks(rest)) == {"CANCELLED"}
    assert alice.ran() == ["1", "2", "3"]
    assert alice.told(rest) == f"job {first} was measured; the rest runs as job {sized}"


def test_a_companion_that_is_killed_behind_its_cancel_and_runs_again_leaves_the_sized_job(alice: Person) -> None:
    script = alice.script(HEAD + MARK + LOAD.format(4) + STAYS)
    first, companion, rest = alice.measured("--canary", "--array=1-3", script)
    sized = died_of_its_scancel(alice, first, companion, alice.jobs(), '/usr/bin/scancel "$@"; kill -9 $PPID')
    alice.lab.run(["scontrol", "release", companion], check=True)
    alice.lab.wait_jobs([companion, sized], timeout=120)
    assert set(alice.tasks(rest)) == {"CANCELLED"}
    assert alice.ran() == ["1", "2", "3"]
    assert alice.told(first) == f"job {first} was measured; the rest runs as job {sized}"


def died_of_its_scancel(alice: Person, first: str, companion: str, before: list[str], code: str) -> str:
    """Run the companion's program, which dies as it calls scancel, and return the sized job."""
    alice.lab.run(["scontrol", "hold", companion], check=True)
    alice.run("touch", "go")
    alice.lab.wait_jobs([first])
    folder = alice.home / "bin"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    (folder / "scancel").write_text(f"#!/bin/sh\n{code}\n")
    (folder / "scancel").chmod(0o755)
    path = f"{folder}:{alice.lab.environment('alice')['PATH']}"
    [record] = (alice.home / ".local/share/slurm_colloc/followup").glob(f"*/measured-{first}")
    program = (str(alice.lab.bin / "python"), "-I", "-m", "slurm_colloc.followup.companion", str(record))
    assert alice.run(*program, PATH=path).returncode == -9
    [sized] = alice.made(before)
    return sized


def test_where_no_companion_can_be_submitted_all_runs_as_asked(lab: Lab) -> None:
    extra = {"recovery.partition": '"nowhere"'}
    bob = Person(lab, "bob", write_site(lab, "first-refused", agent=False, extra=extra))
    done = bob.run("csub", "--canary", "--array=1-2", bob.script(HEAD + MARK))
    assert "; this job begins as asked when that has ended, without being sized: its companion" in done.stderr
    rest = done.stdout.split()[-1]
    assert set(lab.wait_jobs([rest]).values()) == {"COMPLETED"}
    assert bob.ran() == ["1", "2"]


def test_a_companion_that_is_lost_between_its_two_steps_leaves_no_second_run(alice: Person) -> None:
    """Nobody is left to withdraw the sized job: it goes when the rest, which runs as asked, has ended well."""
    script = alice.script(HEAD + MARK + LOAD.format(4) + STAYS)
    first, companion, rest = alice.measured("--canary", "--array=1-3", script)
    sized = died_of_its_scancel(alice, first, companion, alice.jobs(), "kill -9 $PPID")
    alice.run("/usr/bin/scancel", companion)
    assert set(alice.lab.wait_jobs([rest], timeout=120).values()) == {"COMPLETED"}
    assert set(alice.lab.wait_jobs([sized], timeout=120).values()) == {"CANCELLED"}
    assert alice.ran() == ["1", "2", "3"]


@pytest.mark.parametrize("dependency", ["singleton", "afterany:{}"])
def test_what_the_user_wants_to_wait_for_is_waited_for(alice: Person, dependency: str) -> None:
    script = alice.script(HEAD + MARK + LOAD.format(4))
    other = alice.submit("--colloc=off", "-J", "train.sh", "--wrap", "sleep 3; echo other >>ran")
    wanted = f"--dependency={dependency.format(other)}"
    first, companion, rest = alice.measured("--canary", wanted, "--array=1-3", script)
    alice.lab.wait_jobs([companion], timeout=120)
    found = re.search(r"the rest runs as job (\d+) on", alice.told(first))
    assert found, alice.told(first)
    assert set(alice.lab.wait_jobs([found[1]], timeout=120).values()) == {"COMPLETED"}
    assert set(alice.tasks(rest)) == {"CANCELLED"}
    assert (alice.home / "ran").read_text().split()[:2] == ["other", "1"]
    assert alice.ran() == ["1", "2", "3", "other"]
