# SPDX-License-Identifier: Apache-2.0
"""Packs from csub's call to the last task's end on real Slurm, beside the same array by plain sbatch."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.core.model import because
from slurm_colloc.core.wording import words
from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.ledger import missing
from tests.cluster.fixtures import CGROUPS, in_cgroups, running
from tests.cluster.lab import Lab
from tests.cluster.packs import Packs
from tests.cluster.processes import processes_with
from tests.cluster.site import agents, write_site
from tests.cluster.user import SLICE, User

pytestmark = pytest.mark.cluster

FOOTPRINT = "--gpu-footprint=mem=9G,sm=20"
HEAD = "#SBATCH --array=0-9%4 --gres=gpu:1 -p gpu -t 5 -o out/%A_%a.txt\n"
END = "exit $((SLURM_ARRAY_TASK_ID == 3 ? 5 : 0))\n"


class Packer(User):
    """A user with an MPS control program on the PATH of his jobs."""

    def __init__(self, lab: Lab, name: str, site: Path) -> None:
        super().__init__(lab, name, site)
        self.packs = Packs(lab, name)
        self.environment["PATH"] = f"{self.packs.fake}:{lab.environment(name)['PATH']}"
        self.run("mkdir", "-p", "out")
        for path in (self.home / "out").iterdir():
            path.unlink()

    def output(self, name: str) -> str:
        return (self.home / "out" / name).read_text()

    def told(self, job: str) -> str:
        """Return what a pack said, once it has ended."""
        self.lab.wait_jobs([job])
        return self.output(f"slurm-{job}.pack.out")

    def ends(self, array: str) -> dict[str, str]:
        """Return the exit codes that sacct has for an array's tasks or a pack's, by their numbers."""
        self.lab.wait_accounted([array])
        argv = ["sacct", "-n", "-P", "-j", array, "-o", "JobID,JobName,ExitCode"]
        rows = [line.split("|") for line in self.lab.run(argv, check=True).stdout.splitlines()]
        packed = {name.removeprefix("task-"): code for _, name, code in rows if name.startswith("task-")}
        return packed or {task.partition("_")[2]: code for task, _, code in rows if "." not in task}


@pytest.fixture(scope="module")
def site(lab: Lab) -> Path:
    return write_site(lab, "pack-site", agent=False)


@pytest.fixture
def alice(lab: Lab, site: Path) -> Iterator[Packer]:
    yield Packer(lab, "alice", site)
    lab.run(["scancel", "-u", "alice"])


SHELL = (
    'echo "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT: $SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX"\n'
    'echo "mark [$MARK] args $# [$2] name $SLURM_JOB_NAME in $PWD umask $(umask) input $(readlink /proc/self/fd/0)"\n'
    'echo "nodes $SLURM_JOB_NUM_NODES $SLURM_NNODES step [$SLURM_STEP_ID$SLURM_STEPID]"\n'
    'echo "locale [$LC_CTYPE] gpus [${SLURM_JOB_GPUS:+set}] [$SLURM_STEP_GPUS]"\n'
)
PYTHON = (
    "import os, sys\n"
    "number = os.environ['SLURM_ARRAY_TASK_ID']\n"
    "print(number, sys.argv[1:], sys.flags, sorted(name for name in os.environ if name.startswith(('PY', 'LC_'))))\n"
    "sys.exit(5 if number == '3' else 0)\n"
)
SCRIPTS = {
    "bash": f"#!/bin/bash\n{HEAD}{SHELL}{END}",
    "none.sh": f"#!/bin/bash\n{HEAD}#SBATCH --export=NONE\n{SHELL}{END}",
    "list.sh": f"#!/bin/bash\n{HEAD}#SBATCH --export=PATH,MARK\n{SHELL}{END}",
    "python": f"#!/usr/bin/python3 -u\n{HEAD}{PYTHON}",
    "env.py": f"#!/usr/bin/env python3\n{HEAD}{PYTHON}",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_packs_tasks_end_as_those_of_the_array(alice: Packer, name: str) -> None:
    script = alice.script(SCRIPTS[name], name)
    done = alice.run("csub", "--pack", FOOTPRINT, script, "a", "b c", MARK="m x")
    pack = done.stdout.split()[-1]
    assert f"job {pack}: a pack of 10 tasks" in done.stderr
    array = alice.run("sbatch", script, "a", "b c", MARK="m x").stdout.split()[-1]
    states = alice.lab.wait_jobs([pack, array])
    assert states[int(pack)] == "FAILED"
    for number in range(10):
        packed, plain = alice.output(f"{pack}_{number}.txt"), alice.output(f"{array}_{number}.txt")
        added = "srun: error: g1: task 0: Exited with exit code 5\n" if number == 3 else ""
        assert packed.replace("error: g2:", "error: g1:") == plain + added
    assert alice.ends(pack) == alice.ends(array) == {str(n): "5:0" if n == 3 else "0:0" for n in range(10)}
    said = alice.told(pack)
    assert "10 tasks: 9 succeeded\n  failed: 3\n" in said
    one_at_a_time = words(because("pack-may-not-share", why="")).partition(":")[0]
    assert (one_at_a_time in said) == (name == "none.sh")


def test_tasks_are_dealt_out_over_several_jobs(alice: Packer) -> None:
    script = alice.script(f"#!/bin/sh\n{HEAD}echo $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT\n")
    job = alice.submit("--pack", FOOTPRINT, "--pack-jobs=2", script)
    jobs = alice.lab.wait_jobs([job])
    assert list(jobs.values()) == ["COMPLETED"] * 2
    assert [alice.output(f"{job}_{number}.txt") for number in range(10)] == [f"{n} of 10\n" for n in range(10)]
    assert ["5 tasks: 5 succeeded" in alice.told(str(one)) for one in jobs] == [True, True]


def test_scancel_leaves_the_tasks_time_to_save(alice: Packer) -> None:
    """Releases differ in whether a step's srun ends before what runs in it, and which of them is told first."""
    wait = "trap 'sleep 2; echo saved; exit 0' TERM; echo began; while :; do sleep 0.1; done"
    script = alice.script(f"#!/bin/bash\n{HEAD}[ $SLURM_ARRAY_TASK_ID = 0 ] || {{ {wait}; }}\n")
    job = alice.submit("--pack", FOOTPRINT, script)
    for number in (1, 2, 3, 4):
        assert alice.packs.wait_for(f"out/{job}_{number}.txt") == "began\n"
    alice.run("scancel", job)
    assert alice.lab.wait_jobs([job]) == {int(job): "CANCELLED"}
    assert all("saved\n" in alice.output(f"{job}_{number}.txt") for number in (1, 2, 3, 4))
    told = alice.packs.told(job)
    assert [task.outcome for task in told.tasks] == [Outcome.DONE] + [Outcome.STOPPED] * 4
    assert missing([told]) == tuple(range(1, 10))
    assert "1 succeeded\n  stopped: 1-4\n  not run: 5-9\n" in alice.told(job)
    assert alice.packs.leftovers() == []


def test_a_file_of_commands(alice: Packer) -> None:
    lines = "#SBATCH --gres=gpu:1 -p gpu -t 2 -o out/c.%a\n# what it is\necho one\n\necho 'a  b'; exit 3\necho 3 >&2\n"
    job = alice.submit("pack", FOOTPRINT, alice.script(lines, "commands"))
    assert "3 tasks: 2 succeeded\n  failed: 2\n" in alice.told(job)
    assert [alice.output(f"c.{n}").splitlines()[0] for n in (1, 2, 3)] == ["one", "a  b", "3"]
    assert alice.shown(job)["JobName"] == "commands"


def test_tasks_that_need_each_other_begin_and_fail_together(alice: Packer) -> None:
    """A server and two clients, who meet at a port of the node."""
    serve = """
import os, socket
server = socket.create_server(('localhost', 0))
open('out/port.new', 'w').write(str(server.getsockname()[1]))
os.rename('out/port.new', 'out/port')
clients = [server.accept()[0] for _ in range(2)]
for number, client in enumerate(clients):
    client.sendall(str(number).encode())
"""
    client = """
import os, socket, time
while not os.path.exists('out/port'):
    time.sleep(0.1)
print('got', socket.create_connection(('localhost', int(open('out/port').read()))).recv(1).decode())
"""
    alice.script(serve, "serve.py")
    alice.script(client, "client.py")
    head = f"#SBATCH --gres=gpu:1 -p gpu -t 2 -o out/t.%a\n#CSUB --pack-together {FOOTPRINT}\n"
    run = [f"exec python3 -I {name}.py" for name in ("serve", "client", "client")]
    job = alice.submit("pack", alice.script(head + "\n".join(run) + "\n", "commands"))
    assert "3 tasks: 3 succeeded" in alice.told(job)
    assert {alice.output(f"t.{number}") for number in (2, 3)} == {"got 0\n", "got 1\n"}
    (alice.home / "out/port").unlink()
    fails = "sleep 2; exit 3"
    job = alice.submit("pack", alice.script(head + "\n".join([fails, *run[1:]]) + "\n", "commands"))
    said = alice.told(job)
    assert "3 tasks: 0 succeeded\n  failed: 1\n  stopped: 2-3\n" in said
    assert "--resume" not in said
    assert alice.packs.leftovers() == []


def test_a_pack_in_a_slice(alice: Packer) -> None:
    """Where Slurm may give slices of any size, the smallest decides; one that is named is shared as a GPU is."""
    script = alice.script(f"#!/bin/sh\n{HEAD}echo $SLURM_ARRAY_TASK_ID\n")
    options = ("--gpu-footprint=mem=4G,sm=10", "-p", "mig")
    named = f"gpu:{SLICE}_3g.40gb:1"
    job = alice.submit("--pack", *options, f"--gres={named}", script)
    assert "10 tasks: 10 succeeded" in alice.told(job)
    assert alice.allocated(job)[f"gres/gpu:{SLICE}_3g.40gb"] == "1"
    done = alice.run("csub", "-H", "--pack", *options, script)
    assert re.search(rf"\b82\.5 % .*\b120 %.* on {SLICE}_1g\.10gb", done.stderr)
    assert alice.shown(done.stdout.split()[-1])["ArrayTaskId"] == "0-9%4"


USES = f"#!/bin/sh\n{HEAD}COLLOC_SIMULATED_GPU_LOAD=mem=6G,util=60,sm=11 sleep 4\nwait\n"


def test_what_a_pack_uses_is_nobodys_evidence(lab: Lab) -> None:
    site = write_site(lab, "pack-agents")
    bob = Packer(lab, "bob", site)
    as_root = {"COLLOC_CONF": str(site / "site.toml")}
    with agents(lab, site, "g1", "g2"):
        script = bob.script(USES)
        job = bob.submit("--pack", "--gpu-footprint=mem=7G,sm=20", script)
        bob.told(job)
        lab.wait_accounted([job])
        lab.run(["colloc", "ingest", "--since", "1h"], env=as_root, check=True, timeout=120)
        [run] = json.loads(lab.run(["colloc", "job", job, "--format=json"], env=as_root, check=True).stdout)["runs"]
        assert run["gpu_mem_peak_mib"] == 4 * 6144
        assert run["allocated_gpu_hours"] == pytest.approx(run["held_gpu_hours"], rel=0.2)
        for option in ("--explain", "--pack"):
            assert words(because("no-earlier-run")) in bob.run("csub", "--dry-run", option, script).stderr
        assert "exact, from" not in bob.run("colloc", "history").stdout
        report = lab.run(["colloc", "report", "--explain"], env=as_root, check=True).stdout
        assert re.search(r"'hint', 1 run: none\b", report)


GREEDY = "python3 -c 'held = bytearray(300 << 20); print(len(held))'"


@pytest.fixture(scope="module")
def carol() -> Iterator[Packer]:
    """A user of a lab whose jobs run in real cgroups."""
    with in_cgroups() as lab, running(lab):
        yield Packer(lab, "carol", write_site(lab, "pack-site", agent=False))


# Allowed is also what no driver serves.
OPENS = """\
import errno, os, sys
for name in sorted(os.listdir(sys.argv[1])):
    try:
        os.close(os.open(os.path.join(sys.argv[1], name), os.O_RDWR))
    except OSError as error:
        if error.errno == errno.EPERM:
            continue
    print(name)
"""


def test_in_cgroups_each_task_has_the_gpu(carol: Packer) -> None:
    devices = carol.lab.root / "dev/g1"
    for path in devices.iterdir():
        path.chmod(0o666)  # else nobody could tell the cgroup's refusal from that of the file's mode
    carol.script(OPENS, "opens.py")
    text = "python3 opens.py $GPUS\necho $CUDA_VISIBLE_DEVICES\nsetsid sleep 321.5 &\n"
    script = carol.script(f"#!/bin/sh\n{HEAD}{text}")
    job = carol.submit("--pack", FOOTPRINT, "-w", "g1", script, GPUS=str(devices))
    assert "10 tasks: 10 succeeded" in carol.told(job)
    said = {carol.output(f"{job}_{number}.txt") for number in range(10)}
    assert len(said) == 1, said
    assert said <= {"nvidia0\n0\n", "nvidia1\n0\n", "nvidia1\n1\n"}
    assert list(processes_with("321.5")) == []


@pytest.mark.skipif(CGROUPS == "v2", reason="memory is in v1's hands here")
def test_a_task_above_its_share_of_memory_dies_alone(carol: Packer) -> None:
    script = carol.script(f"#!/bin/sh\n{HEAD}[ $SLURM_ARRAY_TASK_ID != 2 ] || exec {GREEDY}\nsleep 2\n")
    began = time.monotonic()
    job = carol.submit("--pack", FOOTPRINT, "--mem=100M", script)
    said = carol.told(job)
    assert "10 tasks: 9 succeeded\n  host out of memory: 2\n" in said
    assert carol.ends(job)["2"] in ("0:125", "0:9", "137:0", "9:0")
    assert {task.attempts for task in carol.packs.told(job).tasks} == {1}
    assert time.monotonic() - began < 60
