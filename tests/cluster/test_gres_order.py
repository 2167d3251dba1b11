# SPDX-License-Identifier: Apache-2.0
"""What ORDER.md says of gres, on real Slurm: slurmd first drains no node and harms no job, slurmctld first drains.

A reconfigure does nothing of it on 22.05, and all of it on later releases, whose daemons then start anew.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.cluster.daemons import ids_of
from tests.cluster.fixtures import RELEASE, new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.ports import answers
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

WAIT_S = 60.0
STAYS = "touch began; until [ -e go ]; do sleep 0.1; done"


@pytest.fixture
def bare() -> Iterator[tuple[Lab, dict[str, str]]]:
    """A running lab without shares, and the two files as they are to be."""
    lab = new_lab()
    folder = lab.root / "etc"
    wanted = {name: (folder / name).read_text() for name in ("slurm.conf", "gres.conf")}
    (folder / "slurm.conf").write_text(
        re.sub(r",(mps|shard):\d+|,mps,shard|gres/mps,gres/shard,", "", wanted["slurm.conf"])
    )
    lines = [line for line in wanted["gres.conf"].splitlines() if not re.search("Name=(mps|shard)", line)]
    (folder / "gres.conf").write_text("\n".join(lines) + "\n")
    with running(lab, bare=True):
        yield lab, wanted


def _restart(lab: Lab, name: str, argv: list[str], ids: tuple[int, int] | None) -> None:
    lab.book.stop([next(record for record in reversed(lab.book.records()) if record.name == name)])
    lab.start_daemon(name, argv, ids)


def _slurmds(lab: Lab) -> None:
    for node in ("g1", "g2", "m1", "c1"):
        _restart(lab, f"slurmd-{node}", ["slurmd", "-N", node, "-D"], None)


def _slurmctld(lab: Lab) -> None:
    _restart(lab, "slurmctld", ["slurmctld", "-D"], ids_of("slurm"))
    wait_for(lambda: answers(lab.ports.numbers["slurmctld"]), "slurmctld does not come back")


def _node(lab: Lab, wanted: str) -> str:
    """Return what Slurm says of g1 once it matches ``wanted``, or at last."""
    end = time.monotonic() + WAIT_S
    while True:
        told = lab.run(["scontrol", "show", "node", "g1"]).stdout
        if re.search(wanted, told) or time.monotonic() > end:
            return told
        time.sleep(0.2)


def _tracked(lab: Lab) -> str:
    told = lab.run(["scontrol", "show", "config"], check=True).stdout
    return next(line for line in told.splitlines() if line.startswith("AccountingStorageTRES"))


def _apply(lab: Lab, wanted: dict[str, str]) -> None:
    for name, text in wanted.items():
        (lab.root / "etc" / name).write_text(text)


def test_slurmd_first(bare: tuple[Lab, dict[str, str]]) -> None:
    lab, wanted = bare
    out = lab.root / "out"
    argv = ["sbatch", "--parsable", "--gres=gpu:1", "-w", "g1", "--wrap", STAYS]
    job = lab.run_as("alice", argv, cwd=out, check=True).stdout.strip()
    # Slurm calls it running before its slurmd has launched it, which would then fail.
    wait_for((out / "began").exists, "the job does not begin")
    _apply(lab, wanted)
    lab.run(["scontrol", "reconfigure"], check=True)
    time.sleep(2)
    if RELEASE == "22.05":
        assert "mps" not in _node(lab, "State=")  # a reconfigure does nothing of it
        assert "gres/mps" not in _tracked(lab)
        _slurmds(lab)
        _slurmctld(lab)
    told = _node(lab, r"Gres=gpu:h100:2,mps:h100:200")
    assert "Gres=gpu:h100:2,mps:h100:200" in told
    assert "DRAIN" not in told
    assert "gres/mps" in _tracked(lab)
    (out / "go").touch()
    assert lab.wait_jobs([job])[int(job)] == "COMPLETED"
    argv = ["sbatch", "--parsable", "--gres=mps:50", "-w", "g1", "--wrap", "true"]
    share = lab.run_as("alice", argv, cwd=lab.root / "out", check=True).stdout.strip()
    assert lab.wait_jobs([share])[int(share)] == "COMPLETED"


@pytest.mark.skipif(RELEASE == "22.05", reason="there a reconfigure takes nothing away")
def test_a_reconfigure_of_later_releases_takes_away_too(bare: tuple[Lab, dict[str, str]]) -> None:
    lab, wanted = bare
    before = {name: (lab.root / "etc" / name).read_text() for name in wanted}
    for texts, found in ((wanted, True), (before, False)):
        _apply(lab, texts)
        lab.run(["scontrol", "reconfigure"], check=True)
        told = _node(lab, "Gres=gpu:h100:2,mps:h100:200\n" if found else "Gres=gpu:h100:2\n")
        assert ("mps:h100:200" in told, "gres/mps" in _tracked(lab)) == (found, found)
        assert "DRAIN" not in told


def test_slurmctld_first(bare: tuple[Lab, dict[str, str]]) -> None:
    lab, wanted = bare
    _apply(lab, wanted)
    _slurmctld(lab)
    told = _node(lab, "reported lower than configured")
    assert "DRAIN" in told
    assert "gres/mps count reported lower than configured (0 < 200)" in told
    _slurmds(lab)
    assert "DRAIN" in _node(lab, r"Gres=gpu:h100:2,mps:h100:200")  # and stays so
    lab.run(["scontrol", "update", "nodename=g1", "state=resume"], check=True)
    assert "DRAIN" not in _node(lab, "State=IDLE ")
