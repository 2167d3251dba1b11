# SPDX-License-Identifier: Apache-2.0
"""Slurm 26.05 finds made-up GPUs by itself (AutoDetect=full) and names them by UUID (Flags=env_uuid).

Its own plugin for NVIDIA's cards reads the driver's files below /proc, which can be made up; NVML cannot.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.cluster.fixtures import RELEASE, install_checkout, new_lab
from tests.cluster.lab import Lab
from tests.cluster.mps_nodes import SLURM_CONF, MpsLab, mps_lab
from tests.cluster.nodes import CPUS, MODEL, NVIDIA_MAJOR
from tests.cluster.site import agents, write_site
from tests.cluster.user import User

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(RELEASE != "26.05", reason="env_uuid and AutoDetect=full came with 26.05"),
]

CARD = "Model: \t\t {model}\nGPU UUID: \t {uuid}\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
COMMON = ("null", "zero", "full", "random", "urandom", "tty")


def make_cards(lab: Lab) -> list[str]:
    """Lay a driver's files, and devices, over those of the machine for all of the lab's commands; return the UUIDs."""
    units = json.loads((lab.gpus_dir / "g1.json").read_text())["devices"]
    devices, driver, bus_folder = lab.root / "devices", lab.root / "driver", lab.root / "bus"
    devices.mkdir()
    for name in COMMON:
        there = os.stat(f"/dev/{name}")
        os.mknod(devices / name, there.st_mode, there.st_rdev)
        (devices / name).chmod(0o666)
    for name in ("fd", "stdin", "stdout", "stderr"):
        (devices / name).symlink_to(os.readlink(f"/dev/{name}"))
    (devices / "shm").mkdir(mode=0o1777)
    (devices / "shm").chmod(0o1777)
    for unit in units:
        number, bus = unit["index"], f"0000:{unit['index']}b:00.0"
        folder = driver / "nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(CARD.format(model=MODEL, uuid=unit["uuid"], bus=bus, minor=number))
        (bus_folder / "nvidia" / bus).mkdir(parents=True)
        # Without cores of its own no job could have it.
        (bus_folder / "nvidia" / bus / "local_cpulist").write_text(f"0-{CPUS - 1}\n")
        os.mknod(devices / f"nvidia{number}", 0o666 | stat.S_IFCHR, os.makedev(NVIDIA_MAJOR, number))
    with lab.mounts.open("a") as table:
        for folder, over in ((driver, "/proc/driver"), (bus_folder, "/sys/bus/pci/drivers"), (devices, "/dev")):
            table.write(f"{folder} {over} none bind 0 0\n")
    conf = lab.root / "etc/gres.conf"
    named = "".join(f"NodeName=g1 Name=gpu Type=h100 File=/dev/nvidia{n} Flags=env_uuid\n" for n in range(len(units)))
    text = re.sub(r"(NodeName=g1 Name=gpu .*\n)+", f"NodeName=g1 AutoDetect=full\n{named}", conf.read_text())
    conf.write_text(text)
    return [unit["uuid"] for unit in units]


@pytest.fixture(scope="module")
def uuids() -> list[str]:
    return []


@pytest.fixture(scope="module")
def mps(uuids: list[str]) -> Iterator[MpsLab]:
    lab = new_lab(f"{SLURM_CONF}SlurmdDebug=verbose\n")
    uuids += make_cards(lab)
    with mps_lab(lab) as made:
        install_checkout(lab)
        yield made


def test_slurm_itself_finds_the_cards_and_names_them(mps: MpsLab, uuids: list[str]) -> None:
    """It says numbers beside them: by those colloc-mps and the made-up GPUs go."""
    assert "autodetect=full selected gpu/nvidia" in (mps.lab.root / "log/slurmd-g1.log").read_text()
    job = mps.submit("alice", gres="gpu:h100:2")
    told = mps.told("alice", job)
    assert (told["CUDA_VISIBLE_DEVICES"], told["SLURM_JOB_GPUS"]) == (",".join(uuids), "0,1")
    mps.let_go("alice", job)


def test_shares_have_their_daemon_as_without_it(mps: MpsLab) -> None:
    """Slurm names no UUID to a job on gres/mps; to the daemon's clients its one GPU is number 0."""
    whole = mps.submit("alice", gres="gpu:1")
    mps.told("alice", whole)
    jobs = [mps.submit("alice") for _ in range(2)]
    assert {mps.pipe("alice", job) for job in jobs} == {str(mps.node.folder(mps.user("alice"), 1) / "pipe")}
    assert {mps.told("alice", job)["CUDA_VISIBLE_DEVICES"] for job in jobs} == {"0"}
    assert len(mps.node.daemons()) == 1
    mps.let_go("alice", whole, *jobs)


SCRIPT = """#!/bin/bash
#SBATCH -p of-all --gres=gpu:h100:1 -t 5 -o out.%j
echo "$CUDA_VISIBLE_DEVICES"
COLLOC_SIMULATED_GPU_LOAD=mem=3G,util=40,sm=9 sleep 6
"""


@pytest.mark.parametrize("agent", [True, False])
def test_a_run_is_measured_and_the_next_one_has_a_share(mps: MpsLab, uuids: list[str], agent: bool) -> None:
    """By the agent on the node, or from inside the job."""
    lab = mps.lab
    extra = {"sharing.order": '["mps"]', "sharing.mps_daemon": '"prolog"'}
    user = User(lab, "bob", write_site(lab, f"uuid-{agent}", agent=agent, extra=extra))
    shutil.rmtree(user.home / ".local/share/slurm_colloc", ignore_errors=True)
    user.script(SCRIPT)
    with agents(lab, user.folder, "g1") if agent else nullcontext():
        first = user.submit("train.sh")
        lab.wait_jobs([first])
        assert (user.home / f"out.{first}").read_text().splitlines()[0] in uuids
        lab.wait_accounted([first])
        time.sleep(2)
    if agent:
        lab.run(["colloc", "ingest"], check=True, env={"COLLOC_CONF": str(user.folder / "site.toml")})
    second = user.submit("train.sh")
    lab.wait_jobs([second])
    assert int(user.allocated(second)["gres/mps"]) < 100
    assert (user.home / f"out.{second}").read_text().splitlines()[0] == "0"
