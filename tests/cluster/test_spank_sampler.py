# SPDX-License-Identifier: Apache-2.0
"""The sampler that the SPANK plugin starts in plain batch jobs, and csub where the plugin is loaded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import spank
from tests.cluster.fixtures import new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.processes import processes_with
from tests.cluster.site import write_site
from tests.cluster.user import User, job_id
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:h100:1 -t 5
COLLOC_SIMULATED_GPU_LOAD=mem=6G,util=60,sm=11 sleep 5
wait
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab(spank.SLURM_CONF, spank.SCRIPTS)
    spank.prepare(lab)
    with running(lab):
        yield lab


@pytest.fixture(scope="module")
def site(lab: Lab) -> Path:
    """A site without agents; the plugin's line is changed while the cluster runs, and new jobs follow it."""
    site = write_site(lab, agent=False)
    spank.write_plugstack(lab, f"sampler={lab.root}/opt/bin/python", f"site={site}/site.toml")
    return site


@pytest.fixture
def carol(lab: Lab, site: Path) -> User:
    return User(lab, "carol", site)


def _samplers(lab: Lab, job: str) -> list[int]:
    """Return the samplers of a job once they have found out whether they are wanted."""
    return [pid for pid in processes_with("slurm_colloc") if _is_of(pid, lab, job)]


def _is_of(pid: int, lab: Lab, job: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
    named = f'"job": "{job}"' in words or f"--job={job}\0" in words or f"--job\0{job}\0" in words
    return named and str(lab.root) in words


def _settled(lab: Lab, job: str) -> list[int]:
    """Return the samplers of a job some seconds after the first one is there: a second one would be, too."""
    wait_for(lambda: _samplers(lab, job), f"no sampler of job {job}")
    time.sleep(2)
    return _samplers(lab, job)


def test_csub_learns_from_plain_sbatch(lab: Lab, carol: User) -> None:
    script = carol.script(SCRIPT + 'echo "$1" >/dev/null\n')
    done = carol.run("sbatch", "--export=ALL", script, "7", WANDB_NAME="x")
    job = job_id(done)
    assert lab.wait_jobs([job])[int(job)] == "COMPLETED"
    lab.wait_accounted([job])
    second = carol.run("csub", "--explain", "-H", script, "7")
    assert "1 completed run on" in second.stderr
    assert carol.shown(job_id(second))["TresPerNode"].endswith("nvidia_h100_80gb_hbm3_1g.10gb:1")


def test_it_runs_as_the_user_and_ends_with_the_job(lab: Lab, carol: User) -> None:
    wait = "until [ -e go ]; do sleep 0.1; done"
    job = job_id(carol.run("sbatch", "-o", "/dev/null", "--gres=gpu:1", "--wrap", wait))
    samplers = _settled(lab, job)
    assert len(samplers) == 1
    status = Path(f"/proc/{samplers[0]}/status").read_text()
    uid = lab.users["carol"].uid
    assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n" in status
    assert {f.name: str(f.readlink()) for f in Path(f"/proc/{samplers[0]}/fd").iterdir() if int(f.name) < 3} == {
        "0": "/dev/null",
        "1": "/dev/null",
        "2": "/dev/null",
    }
    carol.run("touch", "go")
    assert lab.wait_jobs([job])[int(job)] == "COMPLETED"
    wait_for(lambda: not _samplers(lab, job), "it outlives the job")


def test_a_killed_job_leaves_no_sampler(lab: Lab, carol: User) -> None:
    job = job_id(carol.run("sbatch", "-o", "/dev/null", "--gres=gpu:1", "--wrap", "sleep 60"))
    assert len(_settled(lab, job)) == 1
    lab.run(["scancel", "-s", "KILL", "-b", job])
    lab.wait_jobs([job])
    wait_for(lambda: not _samplers(lab, job), "it outlives the job")


def test_a_job_of_csub_is_measured_once(lab: Lab, carol: User) -> None:
    script = carol.script("#!/bin/bash\n#SBATCH --gres=gpu:1 -o /dev/null\nsleep 60\n", "own.sh")
    job = carol.submit(script)
    _settled(lab, job)
    # The plugin's own finds out that it is not wanted, which takes a Python's start.
    wait_for(lambda: len(_samplers(lab, job)) == 1, "two measure it")
    [pid] = _samplers(lab, job)
    assert "slurm_script" not in Path(f"/proc/{pid}/cmdline").read_text()
    lab.run(["scancel", job])


@pytest.mark.parametrize("option", ["--gres=none", "--gres=gpu:2"])
def test_others_are_not_measured(lab: Lab, carol: User, option: str) -> None:
    job = job_id(carol.run("sbatch", "-o", "/dev/null", "-p", "all", option, "--wrap", "sleep 60"))
    lab.wait_state(job)
    time.sleep(2.5)
    wait_for(lambda: not _samplers(lab, job), "it is measured")  # to find out takes a Python's start
    lab.run(["scancel", job])


def test_a_sampler_that_cannot_run_holds_no_job_up(lab: Lab, carol: User, site: Path) -> None:
    """No home, no Python there, a Python that fails: the job is what it was."""
    for words in ([f"sampler={lab.root}/opt/bin/python"], ["sampler=/nonesuch"], ["sampler=/bin/false", "strange=1"]):
        spank.write_plugstack(lab, *words)
        try:
            homeless = ["env", "HOME=/nonexistent", "sbatch", "-o", "quick", "--gres=gpu:1"]
            done = carol.run(*homeless, "--wrap", "echo done; exit 0")
            job = job_id(done)
            assert lab.wait_jobs([job])[int(job)] == "COMPLETED"
        finally:
            spank.write_plugstack(lab, f"sampler={lab.root}/opt/bin/python", f"site={site}/site.toml")
        assert (carol.home / "quick").read_text() == "done\n"


@pytest.mark.parametrize("program", ["csub", "sbatch"])
def test_csub_works_where_sbatch_has_its_options_too(lab: Lab, carol: User, program: str) -> None:
    """Also where csub is called sbatch, and where site.toml lists what sbatch knows by the plugin."""
    found = lab.run(["colloc", "site", "init", "-o", "-"]).stdout
    assert 'sbatch_options = ["colloc=", "gpu-footprint="]' in found
    site = write_site(lab, "site-with-options", agent=False, extra={"sbatch_options": '["colloc=", "gpu-footprint="]'})
    carol.environment["COLLOC_CONF"] = str(site / "site.toml")
    if program == "sbatch":
        front = lab.root / "as-sbatch"
        front.mkdir(exist_ok=True)
        (front / "sbatch").unlink(missing_ok=True)
        (front / "sbatch").symlink_to(lab.bin / "csub")
        carol.environment["PATH"] = f"{front}:{lab.environment('carol')['PATH']}"
    script = carol.script("#!/bin/bash\n#SBATCH --gres=gpu:1 -t 5\nsleep 1\n", "both.sh")
    small = "--gpu-footprint=mem=4G,sm=12"
    changed = carol.run(program, "-H", small, script)
    assert carol.shown(job_id(changed))["TresPerNode"].endswith("1g.10gb:1")
    left = carol.run(program, "-H", "--colloc=off", small, script)
    assert carol.shown(job_id(left))["TresPerNode"].endswith("gpu:1")
    lab.run(["scancel", "-u", "carol"])
