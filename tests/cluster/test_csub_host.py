# SPDX-License-Identifier: Apache-2.0
"""Cores and host memory go with the piece of a GPU: a node of 4 GPUs and 120 cores, shared as the site h100-mps is."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator

import pytest

from slurm_colloc.core.model import Reason, because
from slurm_colloc.core.wording import words
from tests.cluster import broken
from tests.cluster.fixtures import CHECKOUT, RELEASE, new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.nodes import NVIDIA_MAJOR
from tests.cluster.site import write_site
from tests.cluster.user import SLICE, User, job_id, tres
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

CORES, GPUS, OF_GPU = 120, 4, 30
LIGHT = "--gpu-footprint=mem=8G,sm=10"
TWELVE = 12
PARTITIONS = f"""\
PartitionName=h100 Nodes=g1 DefCpuPerGPU={OF_GPU} DefMemPerGPU=2000 ExclusiveUser=YES Default=YES DefaultTime=60
PartitionName=slices Nodes=m1 DefCpuPerGPU={OF_GPU} DefMemPerGPU=2000 DefaultTime=60
PartitionName=whole Nodes=g2 DefCpuPerGPU={OF_GPU} DefMemPerGPU=2000 DefaultTime=60
"""
BY_FOUR = ""
JOB = "#!/bin/bash\n#SBATCH --gres=gpu:1 -t 5\nsleep 100\n"


def wide_nodes() -> Lab:
    """Make a lab whose nodes say that they have 120 cores, and g1 four GPUs."""
    lab = new_lab(PARTITIONS)
    broken.replace(lab.slurm_conf, "PartitionName=all Nodes=ALL Default=YES", "PartitionName=all Nodes=ALL")
    broken.replace(lab.slurm_conf, "CPUs=8 CoresPerSocket=8", f"CPUs={CORES} CoresPerSocket={CORES}")
    broken.replace(lab.slurm_conf, "gpu:h100:2,mps:200", f"gpu:h100:{GPUS},mps:{GPUS}00")
    gres = lab.root / "etc/gres.conf"
    broken.replace(gres, "Name=mps Count=200", f"Name=mps Count={GPUS}00 Flags=all_sharing")
    folder, last = lab.root / "dev/g1", "nvidia1\n"
    lines = ""
    for number in range(2, GPUS):
        try:
            os.mknod(folder / f"nvidia{number}", 0o600 | stat.S_IFCHR, os.makedev(NVIDIA_MAJOR, number))
        except PermissionError:
            pytest.skip("needs the right to make device files")
        lines += f"NodeName=g1 Name=gpu Type=h100 File={folder}/nvidia{number}\n"
    broken.replace(gres, f"{folder}/{last}", f"{folder}/{last}{lines}")
    return lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with running(wide_nodes()) as lab:
        yield lab


@pytest.fixture(scope="module")
def alice(lab: Lab) -> User:
    """Alice is at the shipped site h100-mps, whose node is g1."""
    state = lab.root / "part"
    text = (CHECKOUT / "site-configs/h100-mps/site.toml").read_text()
    for pattern, value in (
        (r"^nodes = .*", 'nodes = "g1"\nmem_per_node_mib = 8000'),
        (r"^slurm_release = .*", f'slurm_release = "{RELEASE}"'),
        (r"^cpus_per_gpu = .*", r"\g<0>\nmem_per_gpu_mib = 2000"),
        (r"^state = .*", f'state = "{state}"'),
        (r"^decisions = .*", f'decisions = "{state}/decisions"\n[timeouts]\ndecide_s = 20'),
        (r"^agent = true", "agent = false"),
    ):
        text = re.sub(pattern, value, text, flags=re.MULTILINE)
    for folder, mode in ((state, 0o755), (state / "store", 0o700), (state / "decisions", 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
    (state / "site.toml").write_text(text)
    return User(lab, "alice", state)


@pytest.fixture(scope="module")
def bob(lab: Lab) -> User:
    """Bob's site is written by `colloc site init`; from 'whole' jobs go to slices."""
    site = write_site(lab, "init", agent=False)
    path = site / "site.toml"
    text, count = re.subn(r'(\[\[partition\]\]\nname = "whole".*\n)', r'\1pieces_in = ["slices"]\n', path.read_text())
    assert count == 1
    path.write_text(text)
    return User(lab, "bob", site)


@pytest.fixture(autouse=True)
def _nothing_runs(lab: Lab) -> Iterator[None]:
    yield
    for name in ("alice", "bob"):
        lab.run(["scancel", "-u", name], check=True)
    wait_for(lambda: not lab.run(["squeue", "-h"], check=True).stdout, "jobs do not end")


def begun(user: User, done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return what scontrol shows of a job that csub submitted, once it runs."""
    job = job_id(done)
    user.lab.wait_state(job)
    return user.shown(job)


def running_at_once(user: User) -> int:
    """Return how many of twelve jobs run once no more of them begin."""
    jobs = [user.submit("--mem=500M", LIGHT, user.script(JOB)) for _ in range(TWELVE)]
    states: dict[str, str] = {}

    def settled() -> bool:
        shown = [user.shown(job) for job in jobs]
        states.update({job: one["JobState"] for job, one in zip(jobs, shown, strict=True)})
        return all(one["JobState"] == "RUNNING" or one["Reason"] in ("Resources", "Priority") for one in shown)

    wait_for(settled, f"{states}")
    return list(states.values()).count("RUNNING")


def test_twelve_light_jobs_run_at_once(lab: Lab, alice: User) -> None:
    assert running_at_once(alice) == TWELVE


@pytest.mark.parametrize(
    ("options", "cores", "mem", "said"),
    [
        ([], 3, "2000M", because("host-memory-limit", jobs=4, each_mib=2000, pieces=28)),
        (["--mem=100M"], 3, "100M", None),
        (["--mem=100M", "--ntasks=1"], 3, "100M", None),
        (["--mem=100M", "-N1", "--ntasks=2"], 4, "100M", BY_FOUR),
        (["--mem=100M", "--ntasks-per-node=2"], 4, "100M", BY_FOUR),
        (["--mem=100M", "-c60"], 60, "100M", because("cores-limit", jobs=2, cores_each=60, pieces=28)),
        (["--mem=3G"], 3, "3G", because("host-memory-limit", jobs=2, each_mib=3072, pieces=28)),
        # Nobody knows what it needs, and fewer cores would bring less.
        (["--mem-per-cpu=10M"], 30, "300M", because("cores-limit", jobs=4, cores_each=30, pieces=28)),
        (["--mem=100M", "--cpus-per-gpu=8"], 8, "100M", because("cores-limit", jobs=15, cores_each=8, pieces=28)),
        (["--mem=100M", "--mincpus=7"], 7, "100M", because("cores-limit", jobs=17, cores_each=7, pieces=28)),
    ],
)
def test_a_share(alice: User, options: list[str], cores: int, mem: str, said: Reason | None) -> None:
    done = alice.run("csub", "--explain", LIGHT, *options, alice.script(JOB))
    shown = begun(alice, done)
    assert (shown["TresPerNode"], shown["NumCPUs"]) == (tres("mps:13"), str(cores)), done.stderr
    assert f"mem={mem}," in (shown.get("AllocTRES") or shown["TRES"])
    assert (words(said) in done.stderr) if said else ("such job" not in done.stderr)


@pytest.mark.parametrize(
    ("partition", "options", "cores"),
    [
        ("slices", [], 3),
        ("slices", ["-N1", "--ntasks=2"], 4),
        ("slices", ["--mincpus=7"], 7),
        ("slices", ["--cpus-per-gpu=8"], 8),
        ("slices", ["-c9"], 9),
        ("slices", ["--mem-per-cpu=10M"], 30),
        # From here it goes to the partition 'slices'.
        ("whole", [], 3),
        ("whole", ["-c9"], 9),
    ],
)
def test_a_slice(bob: User, partition: str, options: list[str], cores: int) -> None:
    done = bob.run("csub", "--explain", "-p", partition, LIGHT, *options, bob.script(JOB))
    shown = begun(bob, done)
    assert shown["Partition"] == "slices", done.stderr
    assert (shown["TresPerNode"], shown["NumCPUs"]) == (tres(f"gpu:{SLICE}_1g.10gb:1"), str(cores)), done.stderr


def test_what_was_measured_goes_with_the_share(bob: User) -> None:
    load = (
        "#!/bin/bash\n#SBATCH --gres=gpu:1 -t 5 -p h100\nCOLLOC_SIMULATED_GPU_LOAD=mem=6G,util=60,sm=10 sleep 5\nwait\n"
    )
    first = begun(bob, bob.run("csub", bob.script(load)))
    assert first["NumCPUs"] == str(OF_GPU)
    bob.lab.wait_jobs([first["JobId"]])
    done = bob.run("csub", "--explain", bob.script(load))
    shown = begun(bob, done)
    assert (shown["TresPerNode"], shown["NumCPUs"]) == (tres("mps:10"), "3"), done.stderr
    found = re.search(r"--mincpus=3 --mem=(\d+)M", done.stderr)
    assert found, done.stderr
    assert 2000 // 10 <= int(found[1]) < 2000  # what it was seen to use, less than what comes with a GPU
    assert re.search(rf"\({found[1]} MiB .*\b40\b", done.stderr)


def test_a_pack_has_the_cores_of_its_gpu(alice: User) -> None:
    done = alice.run("csub", "--pack", LIGHT, "-a0-3", "--mem=100M", alice.script(JOB))
    shown = begun(alice, done)
    assert (shown["TresPerNode"], shown["NumCPUs"]) == (tres("gpu:1"), str(OF_GPU)), done.stderr
    assert "mem=400M," in (shown.get("AllocTRES") or shown["TRES"])
