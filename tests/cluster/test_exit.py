# SPDX-License-Identifier: Apache-2.0
"""A center that has csub's package and gives it up while jobs wait: all of them end well, and nothing is left."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc import __version__
from slurm_colloc.rebind.program import WATCHED_AFTER_S
from tests.cluster.fixtures import CHECKOUT, RELEASE, install_checkout, new_lab, running
from tests.cluster.machine import Machine, build_package
from tests.cluster.processes import processes_with
from tests.cluster.releases import HOST
from tests.cluster.site import write_site
from tests.cluster.test_rebind import LOOK, SCRIPT, SMALL, learn, waiting
from tests.cluster.user import User, tres
from tests.unit.programs import need_program
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

PACKAGE = f"slurm-colloc-csub-{__version__}"
PYTHON = f"/opt/slurm_colloc-{__version__}/bin/python"
LATE = "docs/how-to/late-binding.md"
PIECE, WHOLE = tres(SMALL), tres("gpu:1")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine with csub's package and a site with late binding, and with nothing else of ours."""
    need_program("dpkg-deb")
    lab = new_lab()
    if lab.release != HOST:
        pytest.skip("packages are for the machine's own Slurm")
    package = build_package(tmp_path, "--csub")
    made = Machine(lab)
    try:
        install_checkout(lab)
        with running(lab, bare=True):
            shutil.copy(package, lab.root / "out/csub.deb")
            extra = {"sharing.order": '["mig"]', "sharing.late_binding": '"on"'}
            site = write_site(lab, agent=False, extra=extra)
            shutil.rmtree(lab.root / "opt")  # wrote the site, which this package does not
            made.done(f"dpkg -i {lab.root}/out/csub.deb && install -d /etc/slurm_colloc")
            made.done(f"mv {site}/site.toml /etc/slurm_colloc/site.toml")
            yield made
    finally:
        made.end()


def _asks(user: User, job: str) -> set[str]:
    shown = user.shown(job)
    return {shown[name] for name in ("TresPerJob", "TresPerNode") if shown.get(name)}


def _set(machine: Machine, **words: str) -> None:
    for key, word in words.items():
        machine.done(f"grep -q '^{key} = ' /etc/slurm_colloc/site.toml")
        machine.done(f"sed -i 's/^{key} = .*/{key} = \"{word}\"/' /etc/slurm_colloc/site.toml")


def test_everything_off_and_away_under_waiting_jobs(machine: Machine) -> None:
    lab = machine.lab
    user = User(lab, "alice", lab.root / "site")
    user.environment = {}
    user.script(SCRIPT)
    user.script(SCRIPT.replace("echo step", "echo another step"), "other.sh")
    user.script(
        "#!/bin/sh\n#SBATCH -t 5 --gres=gpu:1\nCOLLOC_SIMULATED_GPU_LOAD=mem=6G,util=60,sm=11 sleep 4\n", "first.sh"
    )
    first = user.submit("first.sh")
    assert lab.wait_jobs([first])[int(first)] == "COMPLETED"
    assert list((user.home / ".local/share/slurm_colloc").glob(f"evidence/**/{first}.json"))

    late = user.submit("-H", "--gres=gpu:1", "train.sh")
    unknown = user.submit("-H", "--gres=gpu:1", "other.sh")
    placed = user.submit("-H", "--gres=gpu:1", "--gpu-footprint=mem=4G,sm=5", "train.sh")
    learn(user, "--gres=gpu:1", "train.sh")

    def is_bound() -> bool:
        assert user.run(PYTHON, "-I", "-c", LOOK).stderr == ""
        change = waiting(user, late)["change"]
        return isinstance(change, dict) and bool(change["is_told"])

    wait_for(is_bound, f"job {late} is not changed")
    assert [_asks(user, job) for job in (late, unknown, placed)] == [{PIECE}, {WHOLE}, {PIECE}]

    _set(machine, policy="off", late_binding="off")
    (loop,) = re.findall(r"^for user in .*done$", (CHECKOUT / LATE).read_text(), re.MULTILINE)
    listed = machine.done(loop)
    knows_a_way_back = RELEASE != "22.05"
    kept = json.loads(user.run("colloc", "late", "--format=json").stdout)
    [change] = [job["change"] for job in kept["jobs"] if job["job_id"] == late]
    assert (change["undone_s"] is not None, f"scancel {late}," in listed) == (knows_a_way_back, not knows_a_way_back)
    if not knows_a_way_back:
        user.run("scancel", late)
        late = user.submit("-H", "--gres=gpu:1", "train.sh")
    # What a decision of the submission gave stays, as a job that the user asked for.
    assert [_asks(user, job) for job in (late, unknown, placed)] == [{WHOLE}, {WHOLE}, {PIECE}]

    purged = machine.sh(f"dpkg --purge {PACKAGE}")
    said = [line for line in purged.stderr.splitlines() if "directory '/opt'" not in line]
    assert (purged.returncode, said) == (0, [])
    machine.done("rm -r /etc/slurm_colloc")
    as_ever = user.run("sbatch", "-H", "--gres=gpu:1", "train.sh").stdout.split()[-1]
    jobs = [late, unknown, placed, as_ever]
    lab.run(["scontrol", "release", *jobs], check=True)
    assert set(lab.wait_jobs(jobs).values()) == {"COMPLETED"}
    assert all((user.home / f"out.{job}").read_text().endswith("step\nend\n") for job in jobs)

    assert [path for path in machine.written() if re.search("colloc|csub", path)] == []
    # A look that has changed a job comes back to it once, WATCHED_AFTER_S later.
    wait_for(lambda: not list(processes_with(PYTHON)), "a process of the package is left", WATCHED_AFTER_S + 30)
    ours = {str(path.relative_to(user.home)) for path in user.home.rglob("*slurm_colloc*")}
    assert ours == {".local/share/slurm_colloc"}
