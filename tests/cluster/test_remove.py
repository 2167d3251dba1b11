# SPDX-License-Identifier: Apache-2.0
"""Upgraded or taken away under running and waiting jobs: whose jobs end well, and what is left of us afterwards."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.fixtures import new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.processes import processes_with
from tests.cluster.site import write_site
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

STAYS = "until [ -e go ]; do sleep 0.2; done"
HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1 -t 5 -p gpu"
PLAIN = f"{HEAD}\ntouch plain.began\n{STAYS}\necho ended well\n"
PACK = f"{HEAD} --array=0-3\ntouch pack.began\n{STAYS}\necho task $SLURM_ARRAY_TASK_ID ended well\n"


@pytest.fixture
def center() -> Iterator[Lab]:
    """A lab of its own with the project in it: this test takes the project away."""
    with running(new_lab()) as lab:
        yield lab


def _submit(lab: Lab, site: Path, *argv: str) -> str:
    done = lab.run_as("alice", argv, env={"COLLOC_CONF": str(site / "site.toml")}, cwd=_home(lab), check=True)
    return str(done.stdout.split()[-1])


def _home(lab: Lab) -> Path:
    return Path(lab.environment("alice")["HOME"])


def test_taken_away_under_its_jobs(center: Lab) -> None:
    """What runs and what waits ends well, but for packs that wait: those need the program, and say so."""
    lab, home = center, _home(center)
    site = write_site(lab, agent=False)
    (home / "plain.sh").write_text(PLAIN)
    (home / "pack.sh").write_text(PACK)
    link = lab.root / "current"
    link.symlink_to(lab.root / "opt")  # as /opt/slurm_colloc leads to the release in use
    hint = "--gpu-footprint=mem=2G,sm=10"
    running = _submit(lab, site, f"{link}/bin/csub", hint, "-o", "running.out", "plain.sh")
    packed = _submit(lab, site, f"{link}/bin/csub", hint, "--pack", "pack.sh")
    waiting = _submit(lab, site, f"{link}/bin/csub", hint, "--hold", "-o", "waiting.out", "plain.sh")
    late = _submit(lab, site, f"{link}/bin/csub", hint, "--pack", "--hold", "pack.sh")
    lab.run(["colloc", "ingest", "--since", "1h"], env={"COLLOC_CONF": str(site / "site.toml")}, timeout=120)
    script = lab.run(["scontrol", "write", "batch_script", late, "-"]).stdout
    # A release that is installed beside this one, and the link that then leads to it, change nothing for these jobs.
    assert f"{lab.root}/opt/bin/python" in script
    assert str(link) not in script
    wait_for((home / "plain.began").exists, "the plain job does not begin")
    wait_for((home / "pack.began").exists, "no task of the pack begins")

    shutil.rmtree(lab.root / "opt")
    link.unlink()
    (home / "go").touch()
    lab.run(["scontrol", "release", waiting, late], check=True)
    ended = lab.wait_jobs([running, packed, waiting, late], timeout=120)

    assert (ended[int(running)], (home / "running.out").read_text()) == ("COMPLETED", "ended well\n")
    assert (ended[int(waiting)], (home / "waiting.out").read_text()) == ("COMPLETED", "ended well\n")
    assert ended[int(packed)] == "COMPLETED", [path.read_text() for path in home.glob(f"slurm-{packed}*")]
    assert ended[int(late)] == "FAILED"
    said = {path.name: path.read_text() for path in home.glob(f"*{late}*") if path.is_file()}
    assert "so this job cannot run here" in "".join(said.values()), sorted(path.name for path in home.iterdir())
    assert _resubmitted_as_it_is(lab) == "COMPLETED"
    _nothing_is_left(lab, site)


def _resubmitted_as_it_is(lab: Lab) -> str:
    """The user's own script never changed: sbatch takes it."""
    done = lab.run_as("alice", ["sbatch", "--parsable", "--array=0", "pack.sh"], cwd=_home(lab), check=True)
    return lab.wait_jobs([done.stdout.strip()])[int(done.stdout)]


def _nothing_is_left(lab: Lab, site: Path) -> None:
    """After all that docs/how-to/upgrade.md names is gone, no file of ours is left in the lab, nor a process."""
    for user in lab.users:
        for name in (".config", ".local/share"):
            shutil.rmtree(Path(lab.environment(user)["HOME"]) / name / "slurm_colloc", ignore_errors=True)
    for name in ("store", "history", "rendered", "audit", "journal", "spool"):
        shutil.rmtree(site / name, ignore_errors=True)
    (site / "site.toml").unlink()
    ours = re.compile(r"colloc|csub", re.IGNORECASE)
    logs = {"run", "log", "state", "spool", "db", "dbrun", "etc", "mrun"}  # Slurm's own memory of what was submitted
    left = [
        os.path.join(folder, name)
        for top in lab.root.iterdir()
        if top.is_dir() and top.name not in logs
        for folder, folders, names in os.walk(top)
        for name in (*folders, *names)
        if ours.search(name)
    ]
    assert left == []
    assert not any((lab.root / "site").glob("*/*"))
    assert list(processes_with(f"{lab.root}/opt/bin/python")) == []
