# SPDX-License-Identifier: Apache-2.0
"""The SPANK plugin, the policy in Lua and colloc-mps in one Slurm, and taken away under running and waiting jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.fixtures import CHECKOUT, new_lab, running
from tests.cluster.kit import Kit
from tests.cluster.processes import processes_with
from tests.cluster.site import installed
from tests.cluster.test_policy import SLICE, know
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

SHARES = """\
PartitionName=one Nodes=g1 ExclusiveUser=YES OverSubscribe=FORCE:4 MaxTime=INFINITE DefaultTime=10
"""
WHOLE = ("--gres=gpu:1", "-p", "all")


@pytest.fixture
def kit() -> Iterator[Kit]:
    """A lab of its own: this test takes everything away."""
    lab = new_lab(SHARES)
    conf = lab.slurm_conf
    conf.write_text(conf.read_text().replace("PartitionName=gpu ", "PartitionName=gpu OverSubscribe=FORCE:4 "))
    with running(lab):
        made = Kit(lab)
        yield made
    made.remove()


def _batch(kit: Kit, *words: str, command: str = "srun -n1 true") -> str:
    argv = ["sbatch", "--parsable", "-o", f"{kit.lab.root}/out/%j", *words, "--wrap", command]
    done = kit.lab.run_as("alice", argv)
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    return str(done.stdout.strip())


def _asked(kit: Kit, job: str) -> str:
    return kit.lab.run(["scontrol", "show", "job", job], check=True).stdout


def _jobs_run(kit: Kit, step: str) -> None:
    """Each way to submit works and says nothing of ours that went wrong; no node is drained."""
    lab = kit.lab
    jobs = [_batch(kit, *WHOLE), _batch(kit, "-p", "cpu")]
    done = lab.run_as("alice", ["srun", *WHOLE, "true"])
    assert (done.returncode, "error" in done.stderr) == (0, False), (step, done.stderr)
    done = lab.run_as("alice", ["salloc", *WHOLE, "srun", "-n1", "true"])
    assert (done.returncode, "error" in done.stderr) == (0, False), (step, done.stderr)
    assert set(lab.wait_jobs(jobs).values()) == {"COMPLETED"}, step
    said = {job: (lab.root / f"out/{job}").read_text() for job in jobs}
    assert set(said.values()) == {""}, (step, said)
    wait_for(lambda: not {one for one in kit.states() if "drain" in one or "down" in one}, f"{step}: {kit.states()}", 5)


def test_all_of_it_at_work_and_taken_away_under_its_jobs(kit: Kit) -> None:
    lab = kit.lab
    kit.install()
    know(lab, "known")
    _jobs_run(kit, "installed")
    moved = _batch(kit, "-J", "known", "-H", *WHOLE)
    assert SLICE in _asked(kit, moved)
    kept = _batch(kit, "-J", "known", "-H", "--colloc=off", "--gpu-footprint=mem=6G", *WHOLE)
    assert SLICE not in _asked(kit, kept)
    shared = [kit.submit("alice") for _ in range(2)]
    (pipe,) = {kit.pipe("alice", job) for job in shared}
    assert Path(pipe) == kit.node.folder(kit.user("alice")) / "pipe"
    late = kit.submit("alice", "-H")
    kit.let_go("alice", shared[0])
    held = [moved, kept]

    _take_away(kit)

    kit.lab.run(["scontrol", "release", *held, str(late)], check=True)
    assert set(lab.wait_jobs(held).values()) == {"COMPLETED"}
    assert [(lab.root / f"out/{job}").read_text() for job in held] == ["", ""]
    assert kit.pipe("alice", late) == ""
    kit.let_go("alice", late)
    _jobs_run(kit, "gone")
    _nothing_is_left(kit)


def _take_away(kit: Kit) -> None:
    """Step 4 of docs/how-to/upgrade.md, and what share-gpus.md says under the same heading."""
    lab, etc = kit.lab, kit.etc
    for name in ("job_submit.lua", "cli_filter.lua"):
        kit.edit(etc / name, "colloc")
    _jobs_run(kit, "our lines out of the scripts")
    kit.edit(lab.slurm_conf, "Plugins=lua")
    kit.reconfigure()
    for name in ("job_submit.lua", "cli_filter.lua"):
        (etc / name).unlink()
    _jobs_run(kit, "the scripts gone")
    (etc / "plugstack.conf.d/colloc.conf").unlink()
    _jobs_run(kit, "the plugin's line gone")
    (kit.libexec / "colloc_spank.so").unlink()
    _jobs_run(kit, "the plugin gone")
    (etc / "taskprolog.sh").write_text(kit.own_task_prolog)
    lab.slurm_conf.write_text(kit.own_conf)
    kit.reconfigure()
    _jobs_run(kit, "the prologs' lines gone")
    running = lab.run(["squeue", "-h", "-t", "R", "-o", "%A"]).stdout.split()
    kit.let_go("alice", *map(int, running))
    _end_daemons(kit)


def _end_daemons(kit: Kit) -> None:
    """The epilogs of jobs that ended since no longer did it."""
    page = (CHECKOUT / "docs/how-to/share-gpus.md").read_text().partition("## Take it away")[2]
    (command,) = re.findall(r"^(SLURM_JOB_ID=0 .*colloc-mps start)$", page, re.MULTILINE)
    command = kit.placed(command).replace("$(hostname -s)", "g1")
    wait_for(lambda: kit.lab.run(["squeue", "-h", "-t", "R,CG"]).stdout == "", "jobs run")
    assert kit.node.daemons(), "nothing is left to end"
    done = kit.lab.run(["sh", "-c", command])
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert not kit.node.daemons()
    assert not [path for path in kit.node.state.iterdir() if path.is_dir() and path.name != ".gone"]


def _nothing_is_left(kit: Kit) -> None:
    """What ORDER.md names goes, and nothing of ours is in the lab but Slurm's own memory of jobs."""
    lab = kit.lab
    for here in map(Path, installed(kit.rendered)):
        if here.is_relative_to(lab.root):
            here.unlink(missing_ok=True)
    ours = re.compile(r"colloc|csub")
    left = [path for top in ("etc", "libexec", "cron.d", "logrotate.d") for path in (lab.root / top).rglob("*")]
    assert [path for path in left if ours.search(path.name) and not path.is_dir()] == []
    calls = ("slurm.conf", "plugstack.conf", "taskprolog.sh")
    told = {name: [line for line in (kit.etc / name).read_text().splitlines() if "colloc" in line] for name in calls}
    own = str(lab.root)
    assert not [line for lines in told.values() for line in lines if "colloc" in line.replace(own, "")], told
    assert list(processes_with(f"{lab.root}/libexec")) == []
    assert list(processes_with(f"{lab.root}/opt/bin")) == []
