# SPDX-License-Identifier: Apache-2.0
"""The private cluster itself: it boots, jobs see what a real node shows them, and it leaves nothing behind."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.cluster import fixtures, jobs
from tests.cluster.lab import Lab, LabError
from tests.cluster.processes import is_alive, with_environment
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
bare_lab = fixtures.bare_lab

MIG = "nvidia_h100_80gb_hbm3_"
SHOW = "#!/bin/bash\necho $(id -u) $(id -un)\nenv\n"
WATCHED = ("/etc", "/run", "/var/lib/mysql", "/var/lib/slurm", "/var/lib/slurmdbd", "/usr/sbin", "/dev/shm")


def submit(lab: Lab, user: str, *options: str, script: str = SHOW) -> int:
    done = lab.run_as(user, ["sbatch", "--parsable", "-o", "job-%j.out", *options], input=script)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def output(lab: Lab, user: str, job: int) -> tuple[str, dict[str, str]]:
    assert set(lab.wait_jobs([job]).values()) == {"COMPLETED"}
    first, *rest = (lab.users[user].home / f"job-{job}.out").read_text().splitlines()
    return first, dict(line.split("=", 1) for line in rest if "=" in line)


@pytest.mark.parametrize(
    ("user", "options", "expected"),
    [
        ("alice", ["--gres=gpu:2", "-w", "g1"], {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "0,1"}),
        ("bob", ["--gres=mps:25"], {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25", "CUDA_VISIBLE_DEVICES": "0"}),
        ("carol", ["--gres=shard:1"], {"SLURM_SHARDS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0"}),
        ("alice", [f"--gres=gpu:{MIG}1g.10gb:2"], {"CUDA_VISIBLE_DEVICES": "0,1", "SLURMD_NODENAME": "m1"}),
        ("bob", [f"--gres=gpu:{MIG}2g.20gb:1"], {"CUDA_VISIBLE_DEVICES": "2", "SLURM_JOB_GPUS": "2"}),
        ("carol", [f"--gres=gpu:{MIG}3g.40gb:1"], {"CUDA_VISIBLE_DEVICES": "3", "SLURM_JOB_GPUS": "3"}),
    ],
    ids=["gpu", "mps", "shard", "mig-1g", "mig-2g", "mig-3g"],
)
def test_environment(bare_lab: Lab, user: str, options: list[str], expected: dict[str, str]) -> None:
    _, seen = output(bare_lab, user, submit(bare_lab, user, *options))
    assert {name: seen.get(name) for name in expected} == expected
    assert seen["SLURM_JOB_GPUS"] == seen["CUDA_VISIBLE_DEVICES"]
    described = json.loads((bare_lab.gpus_dir / f"{seen['SLURMD_NODENAME']}.json").read_text())["devices"]
    known = described[0]["slices"] or described
    assert all(int(index) < len(known) for index in seen["CUDA_VISIBLE_DEVICES"].split(","))


@pytest.mark.parametrize("user", ["alice", "bob", "carol"])
@pytest.mark.parametrize("export", ["ALL", "NONE"])
def test_users_are_real_uids_with_names(bare_lab: Lab, user: str, export: str) -> None:
    first, _ = output(bare_lab, user, submit(bare_lab, user, f"--export={export}"))
    assert first == f"{bare_lab.users[user].uid} {user}"
    assert "Permission denied" in bare_lab.run_as("dave", ["ls", bare_lab.users[user].home]).stderr


@pytest.mark.alone  # it looks at the whole machine, where other labs' tests make things, too
def test_down_leaves_nothing(bare_lab: Lab) -> None:
    before = _listing()
    lab = fixtures.new_lab()
    try:
        lab.up()
        # These shrug off SIGTERM and would outlive slurmd; the second has perhaps no process yet when down begins.
        stubborn = "#!/bin/bash\ntrap '' TERM\ntouch started\nsleep 321 & wait; sleep 322\n"
        submit(lab, "bob", script=stubborn)
        sampler = lab.spawn("sampler", ["sleep", "323"], user="alice")
        wait_for((lab.users["bob"].home / "started").exists)
        late = submit(lab, "carol", script=stubborn)
        while jobs.states(lab)[late] == "PENDING":
            pass
        records = lab.book.records()
        assert sampler in records
        assert all(map(is_alive, records))
    finally:
        lab.down()
    assert [r for r in records if is_alive(r)] == []
    time.sleep(0.5)
    assert with_environment([f"SLURM_CONF={lab.slurm_conf}"]) == []
    assert not lab.status().daemons
    lab.remove()
    assert _listing() == before


def test_a_failing_daemon_is_told_with_its_log_and_leaves_no_other() -> None:
    lab = fixtures.new_lab(extra_slurm_conf="SelectType=select/nonsense")
    said: list[str] = []
    with pytest.raises(LabError, match=r"slurmctld ended (at once|before it was ready).*\nlast lines of .*slurmctld"):
        lab.up(said.append)
    assert any("mariadbd: ready" in line for line in said)
    assert with_environment([f"SLURM_CONF={lab.slurm_conf}"]) == []
    lab.remove()


def _listing() -> dict[str, float]:
    """List what a lab must not touch, with modification times of plain files."""
    found = {}
    for top in map(Path, WATCHED):
        for path in top.rglob("*") if top.exists() else ():
            stat = path.lstat()
            found[str(path)] = 0 if path.is_dir() else stat.st_mtime
    return found
