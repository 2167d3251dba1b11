# SPDX-License-Identifier: Apache-2.0
"""Packs whose tasks read from one loader on real Slurm: a made-up one on all releases, tensorsocket where torch is."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.runtime.queue import Outcome
from slurm_colloc.runtime.spec import Loader
from tests.cluster.install import do, let_all_read, pip_install
from tests.cluster.lab import Lab
from tests.cluster.packs import Packs, a_spec
from tests.cluster.releases import HOST
from tests.cluster.site import write_site
from tests.cluster.user import SMALL, User

pytestmark = pytest.mark.cluster

SERVE = """
import os, socket, time
server = socket.create_server(("", int(os.environ["CSUB_LOADER_PORT"])))
print("serves", os.getpid(), flush=True)
time.sleep(600)
"""
PRODUCE = """
import os, torch
from torch.utils.data import DataLoader, TensorDataset
from csub_loader import Producer
print("producer", flush=True)
open("pid", "w").write(str(os.getpid()))
numbers = torch.arange(4 * 41)
Producer(DataLoader(TensorDataset(numbers, -numbers), batch_size=4, shuffle=True)).serve()
"""
# Keeps the numbers of each epoch in a line; $1: epochs, $2: seconds for a batch, $3: after so many of which to do what.
# It waits for $TOGETHER of its kind: on a busy machine one may have read all before the next has loaded torch.
CONSUME = """
import glob, os, sys, time
from csub_loader import Consumer
open("here." + os.environ["CSUB_PACK_TASK"], "w").close()
while len(glob.glob("here.*")) < int(os.environ.get("TOGETHER", 0)):
    time.sleep(0.05)
epochs, pause_s = int(sys.argv[1]), float(sys.argv[2])
batches = Consumer(batch_size=4)
out = open("read." + os.environ["CSUB_PACK_TASK"], "w")
for epoch in range(epochs):
    for numbers, negative in batches:
        assert (numbers + negative).abs().sum() == 0
        print(*numbers.tolist(), file=out, end=" ", flush=True)
        time.sleep(pause_s)
        eval(sys.argv[3]) if len(sys.argv) > 3 else None
    print(file=out, flush=True)
"""


@pytest.fixture
def alice(lab: Lab) -> Iterator[Packs]:
    user = Packs(lab, "alice")
    for path in user.home.iterdir():
        if path.is_file():
            path.unlink()
    for name, text in (("serve.py", SERVE), ("producer.py", PRODUCE), ("consumer.py", CONSUME)):
        (user.home / name).write_text(text)
        (user.home / name).chmod(0o644)
    yield user
    lab.run(["scancel", "-u", "alice"])


@pytest.fixture(scope="module")
def torch_python(lab: Lab) -> str:
    """Return a Python that has tensorsocket and the build of torch for CPUs alone: any other takes gigabytes."""
    if lab.release != HOST:
        pytest.skip("the made-up loader stands for tensorsocket on this release's Python")
    argv = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    known = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    found = re.search(r"[\d.]+\+cpu", known)
    if found is None:
        pytest.skip("no build of torch for CPUs alone is to be had here")
    venv = lab.root / "torch"
    do(["/usr/bin/python3", "-m", "venv", "--without-pip", str(venv)])
    do([*pip_install(lab, venv), f"torch=={found[0]}", "tensorsocket==0.0.5"])
    let_all_read(venv)
    return str(venv / "bin/python")


def a_loader(command: str) -> Loader:
    return Loader(command, cpus=1, wait_s=60, output="loader.%j")


def gone(pid: str) -> bool:
    """Return whether a process has ended, though nobody may have asked yet how."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def epochs(alice: Packs, number: int) -> list[list[int]]:
    lines = (alice.home / f"read.{number}").read_text().splitlines()
    return [[int(word) for word in line.split()] for line in lines]


def test_a_loader_is_a_step_of_its_own_and_does_not_outlive_the_job(alice: Packs) -> None:
    spec = a_spec(2, commands=("echo $CSUB_LOADER_PORT",) * 3, loader=a_loader(f"{alice.python} serve.py"))
    job = alice.submit(spec)
    code, said = alice.ended(job)
    assert (code, "3 tasks: 3 succeeded" in said) == ("0:0", True), said
    ports = {(alice.home / f"out.{number}").read_text() for number in (1, 2, 3)}
    assert len(ports) == 1
    assert "the shared loader serves" in said
    words = (alice.home / f"loader.{job}").read_text().split()
    assert gone(words[1])
    alice.lab.wait_accounted([job])
    names = alice.lab.run(["sacct", "-n", "-P", "-j", job, "-o", "JobName"], check=True).stdout.split()
    assert names.count("loader") == 1


def test_a_cancelled_pack_ends_its_loader(alice: Packs) -> None:
    job = alice.submit(a_spec(1, commands=("echo here; sleep 100",), loader=a_loader(f"{alice.python} serve.py")))
    assert alice.wait_for("out.1") == "here\n"
    alice.run("scancel", job)
    alice.ended(job)
    [pid] = re.findall(r"serves (\d+)", (alice.home / f"loader.{job}").read_text())
    assert gone(pid)
    assert [task.outcome for task in alice.told(job).tasks] == [Outcome.STOPPED]


def test_a_requeued_pack_starts_its_loader_anew_and_repeats_no_task(alice: Packs) -> None:
    slow = "echo $CSUB_LOADER_PORT >>ports; echo here; [ -e go ] || sleep 100"
    spec = a_spec(1, commands=("date >>one", slow), loader=a_loader(f"{alice.python} serve.py"))
    job = alice.submit(spec, "", "--requeue")
    assert alice.wait_for("out.2") == "here\n"
    (alice.home / "go").touch()
    alice.lab.run(["scontrol", "requeue", job], check=True)
    code, said = alice.ended(job, timeout=240)
    assert (code, "1 task: 1 succeeded (1 more had done so before)" in said) == ("0:0", True), said
    assert len((alice.home / "one").read_text().splitlines()) == 1
    pids = re.findall(r"serves (\d+)", (alice.home / f"loader.{job}").read_text())
    assert [gone(pid) for pid in pids] == [True, True]
    assert len((alice.home / "ports").read_text().splitlines()) == 2


def test_two_packs_on_one_node_do_not_meet(alice: Packs) -> None:
    wait = "until [ $(cat port.* 2>/dev/null | wc -l) = 2 ]; do sleep 0.1; done"
    command = f"echo $CSUB_LOADER_PORT >port.$SLURM_JOB_ID; {wait}"
    spec = a_spec(1, commands=(command,), loader=a_loader(f"{alice.python} serve.py"))
    jobs = [alice.submit(spec, "", "-w", "g1", "-c", "2") for _ in range(2)]
    assert [alice.ended(job)[0] for job in jobs] == ["0:0"] * 2
    assert len({(alice.home / f"port.{job}").read_text() for job in jobs}) == 2


def test_all_consumers_read_the_same_batches_also_one_that_comes_late(alice: Packs, torch_python: str) -> None:
    read = f"TOGETHER=3 {torch_python} consumer.py 3 0.01"
    spec = a_spec(3, commands=(read,) * 4, loader=a_loader(f"{torch_python} producer.py"))
    code, said = alice.ended(alice.submit(spec), timeout=120)
    assert (code, "4 tasks: 4 succeeded" in said) == ("0:0", True), said
    first, second, third, late = (epochs(alice, number) for number in (1, 2, 3, 4))
    assert [len(set(one)) for one in first] == [160] * 3
    # Those that joined in one epoch or the next have read the same ones from then on.
    common = [one for one in first if one in second and one in third]
    assert len(common) >= 1
    assert len({tuple(one) for one in first}) == 3
    assert [len(set(one)) for one in late] == [160] * 3


def test_a_producer_that_is_killed_costs_time_and_no_result(alice: Packs, torch_python: str) -> None:
    kill = "os.path.exists('killed') or (open('killed', 'w'), os.kill(int(open('pid').read()), 9))"
    read = f'{torch_python} consumer.py 2 0.01 "{kill}"'
    spec = a_spec(
        2, commands=(read, f"{torch_python} consumer.py 2 0.01"), loader=a_loader(f"{torch_python} producer.py")
    )
    job = alice.submit(spec)
    code, said = alice.ended(job, timeout=120)
    assert (code, "2 tasks: 2 succeeded" in said) == ("0:0", True), said
    assert "the shared loader ended with status" in said
    assert [task.attempts for task in alice.told(job).tasks] == [2, 2]
    assert [[len(set(one)) for one in epochs(alice, number)] for number in (1, 2)] == [[160] * 2] * 2


def test_a_consumer_that_is_killed_leaves_the_others_theirs(alice: Packs, torch_python: str) -> None:
    dies = f'{torch_python} consumer.py 3 0.01 "epoch and os.kill(os.getpid(), 9)"'
    # At the end of an epoch too, where its producer looks for it.
    ends = f"{torch_python} consumer.py 1 0.01; exit 5"
    whole = f"{torch_python} consumer.py 4 0.01"
    spec = a_spec(3, commands=(dies, whole, ends), loader=a_loader(f"{torch_python} producer.py"))
    job = alice.submit(spec)
    code, said = alice.ended(job, timeout=120)
    assert (code, "3 tasks: 1 succeeded" in said) == ("1:0", True), said
    assert [len(set(one)) for one in epochs(alice, 2)] == [160] * 4
    assert [task.attempts for task in alice.told(job).tasks] == [1, 1, 1]


def test_from_csubs_call_to_the_last_batch(lab: Lab, alice: Packs, torch_python: str) -> None:
    user = User(lab, "alice", write_site(lab, "loader-site", agent=False))
    user.environment["PATH"] = f"{alice.fake}:{Path(torch_python).parent}:{lab.environment('alice')['PATH']}"
    user.script("#SBATCH --gres=gpu:1 -p gpu -t 5\n" + "python3 consumer.py 2 0.01\n" * 3, "tasks")
    job = user.submit("pack", SMALL, "--shared-loader=producer.py", "-c", "1", "tasks")
    assert set(lab.wait_jobs([job], timeout=120).values()) == {"COMPLETED"}
    assert [[len(set(one)) for one in epochs(alice, number)] for number in (1, 2, 3)] == [[160] * 2] * 3
    assert "producer" in (user.home / f"slurm-{job}.loader.out").read_text()
