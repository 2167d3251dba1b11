# SPDX-License-Identifier: Apache-2.0
"""`colloc site init` and `check` on a cluster of many shapes, as root and as a user, and after it was changed."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.config_file import parse_site
from tests.cluster import daemons
from tests.cluster.fixtures import new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.nodes import MEM_TOTAL_MIB, MODEL, SM_COUNT
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

# Nodes without a slurmd: FUTURE until they are set down. x1 without types, x2 of two cards and slices.
ODD = """\
AccountingStorageEnforce=associations,limits,qos
NodeName=x1 NodeAddr=127.0.0.1 Port=1 CPUs=8 RealMemory=8000 Gres=gpu:4 Feature=old,ib State=FUTURE
NodeName=x2 NodeAddr=127.0.0.1 Port=2 CPUs=8 RealMemory=8000 Gres=gpu:a100:1,gpu:h100:2,mps:100 State=FUTURE
NodeName=x3 NodeAddr=127.0.0.1 Port=3 CPUs=8 RealMemory=8000 Gres=gpu:b200:8 State=FUTURE
PartitionName=paid Nodes=g[1-2],x[1-2] MaxTime=1-00:00:00 TRESBillingWeights="CPU=1.0,GRES/gpu=8.0" \
ExclusiveUser=YES Hidden=YES AllowAccounts=phys
PartitionName=closed Nodes=x1 OverSubscribe=EXCLUSIVE AllowGroups=root MaxNodes=2
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with running(new_lab(ODD)) as lab:
        for argv in (
            ["sacctmgr", "-i", "add", "qos", "few", "set", "MaxTRESPerUser=gres/gpu=4"],
            ["sacctmgr", "-i", "modify", "account", "phys", "set", "GrpTRES=gres/gpu=8,gres/shard=4"],
            ["scontrol", "update", "nodename=x[1-2]", "state=down", "reason=fan Gres=gpu:h100:9 \x1b[31m"],
            # At once, and not in the midst of a test, when the controller comes to see it.
            ["scontrol", "update", "nodename=x[1-2]", "state=noresp"],
        ):
            lab.run(argv, check=True)
        yield lab


def colloc(lab: Lab, user: str | None, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = ["colloc", "site", *words]
    return lab.run_as(user, argv, env=env) if user else lab.run(argv, env=env)


def init(lab: Lab, user: str | None, *words: str, **env: str) -> Path:
    path = lab.root / "out" / f"{user or 'root'}.toml"
    done = colloc(lab, user, "init", "--force", "-o", str(path), "--gpu", f"h100={MODEL}", *words, **env)
    assert done.returncode == 0, done.stderr
    return path


def simulated(lab: Lab) -> Sequence[str]:
    return ("--set", f'observe.gpu_reader="simulated:{lab.gpus_dir}"')


def read(path: Path) -> SiteConfig:
    return parse_site(tomllib.loads(path.read_text()), str(path))


def check(lab: Lab, user: str | None, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return colloc(lab, user, "check", COLLOC_CONF=str(path), **env)


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.removeprefix("error: ") for line in done.stdout.splitlines() if line.startswith("error: ")]


def test_a_user_finds_what_root_finds(lab: Lab) -> None:
    """Partitions that are hidden from him or closed to his groups, too."""
    by_root, by_alice = init(lab, None), init(lab, "alice")
    assert by_root.read_text() == by_alice.read_text()
    config = read(by_alice)
    assert {partition.name for partition in config.partition} == {"all", "gpu", "mig", "paid", "closed"}
    assert [(pool.name, pool.gpu_type, pool.gpus_per_node) for pool in config.pool] == [
        ("g1", "h100", 2),
        ("g2", "h100", 2),
        ("m1", "", 0),
        ("x1", "", 4),
        ("x2 a100", "a100", 1),
        ("x2 h100", "h100", 2),
    ]
    for path, user in ((by_root, None), (by_alice, "alice")):
        done = check(lab, user, path)
        assert done.returncode == 0, done.stdout
        assert "note: 'x[1-2]': down, drained or silent" in done.stdout
        assert "note: node 'x2': " in done.stdout
    own = colloc(lab, "alice", "init", "--user", "--gpu", f"h100={MODEL}")
    assert own.returncode == 0, own.stderr
    assert colloc(lab, "alice", "check").returncode == 0


def test_the_driver_of_a_node_is_asked_there_and_told_elsewhere(lab: Lab) -> None:
    """On the node itself, and by the file that a job of alice's brings from one."""
    on_m1 = init(lab, "alice", *simulated(lab), SLURMD_NODENAME="m1")
    assert re.search("^sm_count = 60  # .* m1 ", on_m1.read_text(), re.MULTILINE)
    assert check(lab, "alice", on_m1, SLURMD_NODENAME="m1").returncode == 0
    home = Path(lab.environment("alice")["HOME"])
    job = f"COLLOC_CONF={on_m1} colloc site gpus"
    ran = lab.run_as("alice", ["srun", "-p", "gpu", "-w", "g1", "--gres=gpu:h100:1", "sh", "-c", job])
    assert ran.returncode == 0, ran.stderr
    (home / "g1.json").write_text(ran.stdout)
    out = lab.root / "out/told.toml"
    done = colloc(lab, "alice", "init", "--force", "-o", str(out), "--gpus", str(home / "g1.json"))
    assert done.returncode == 0, done.stderr
    pool = read(out).pool[0]
    assert (pool.gpu_model, pool.gpu_mem_mib, pool.sm_count) == (MODEL, MEM_TOTAL_MIB, SM_COUNT)
    wrong = out.read_text().replace(f"sm_count = {SM_COUNT}", "sm_count = 108", 1)
    out.write_text(wrong)
    compared = colloc(lab, "alice", "check", "--gpus", str(home / "g1.json"), COLLOC_CONF=str(out))
    assert compared.returncode == 1
    (said,) = errors(compared)
    assert said.startswith("pool 'g1', node 'g1': sm_count ")
    assert said.endswith(f": write sm_count = {SM_COUNT}")


def test_what_was_changed_is_said(lab: Lab) -> None:
    """Last: a node gets other GPUs, another one comes, a partition another time limit."""
    path = init(lab, "alice")
    conf = lab.slurm_conf
    text = conf.read_text().replace("Gres=gpu:4 Feature", "Gres=gpu:a100:3,shard:12 Feature")
    conf.write_text(text.replace("MaxTime=1-00:00:00", "MaxTime=12:00:00"))
    lab.book.stop([record for record in lab.book.records() if record.name == "slurmctld"], 15)
    daemons.start_slurmctld(lab)
    for name in ("x1", "x2", "x3"):
        lab.run(["scontrol", "update", f"nodename={name}", "state=down", "reason=made up"])
    show = ["scontrol", "-a", "show", "node", "-o"]
    wait_for(lambda: "x3" in lab.run(show).stdout, "x3 does not come")
    assert "Gres=gpu:a100:3,shard:12" in lab.run(show).stdout
    for user in (None, "alice"):
        done = check(lab, user, path)
        assert done.returncode == 1
        paid, untyped, a100, new = errors(done)
        assert (paid.startswith("partition 'paid': "), paid.endswith(" max_time_min = 720")) == (True, True)
        assert (untyped.startswith("pool 'x1'"), untyped.endswith(" gpus_per_node = 0")) == (True, True)
        assert (a100.startswith("node 'x1': "), "gpu:a100" in a100) == (True, True)
        assert new.startswith("node 'x3': ")
    again = init(lab, "alice")
    assert check(lab, "alice", again).returncode == 0
