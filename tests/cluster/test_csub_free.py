# SPDX-License-Identifier: Apache-2.0
"""Free GPUs on real Slurm: the slices full and a whole GPU free, and the other way round."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.core.model import because
from slurm_colloc.core.wording import sentence
from slurm_colloc.estimate.snapshot import write_snapshot
from tests.cluster.daemons import all_idle
from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.user import SLICE, User, tres
from tests.unit.made import HOUR, evidence
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

# The type says that no slice will do: as asked it gets a whole GPU.
GPU_JOB = "#!/bin/bash\n#SBATCH --gres=gpu:h100:1 -t 120 -H\nsleep 1\n"
SMALL = f"gpu:{SLICE}_1g.10gb"


@pytest.fixture
def site(lab: Lab) -> Path:
    return write_site(lab, "free-site", extra={"sharing.order": '["mig"]', "sharing.ask_free": "true"})


@pytest.fixture
def alice(lab: Lab, site: Path) -> Iterator[User]:
    """A user whose job ran for an hour on a whole GPU and fits any slice."""
    user = User(lab, "alice", site)
    user.script(GPU_JOB)
    shown = user.run("csub", "--dry-run", "--colloc=off", "--format=json", "train.sh").stdout
    signature = json.loads(shown)["request"]["signature"]
    known = evidence(signature=signature, peak_mib=4000, sm_active_mean_pct=5.0, elapsed_s=float(HOUR))
    uid = lab.users["alice"].uid
    (site / "history").mkdir(exist_ok=True)
    (site / "history").chmod(0o711)
    write_snapshot(str(site / f"history/{uid}.sqlite"), [known], uid)
    for path in (site / "spool").glob("*/free-*"):  # what the test before was told holds for a minute
        path.unlink()
    yield user
    lab.run(["scancel", "-u", "alice"])
    lab.run(["scancel", "-u", "bob"])
    # A node whose jobs are being ended is not one on which another starts at once.
    wait_for(lambda: all_idle(lab), "the nodes do not become idle")


def fill(lab: Lab, *options: str) -> None:
    """Start a job of bob's that takes these, and wait until it runs."""
    argv = ["sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap=sleep 300"]
    lab.wait_state(lab.run_as("bob", argv, check=True).stdout)


def test_full_slices_are_left_for_a_free_whole_gpu(lab: Lab, alice: User) -> None:
    for profile, number in (("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1)):
        fill(lab, "-p", "mig", f"--gres=gpu:{SLICE}_{profile}:{number}")
    done = alice.run("csub", "train.sh")
    job = alice.shown(done.stdout.split()[3])
    assert tres("gpu:h100:1") in (job.get("TresPerNode"), job.get("TresPerJob")), done.stderr
    explained = alice.run("csub", "--dry-run", "--explain", "train.sh").stderr
    slices = because("not-free", option=f"{SMALL}:1")
    assert sentence([because("free-now", option="as asked"), slices]) in explained


def test_a_free_slice_is_taken_while_whole_gpus_are_full(lab: Lab, alice: User) -> None:
    fill(lab, "-w", "g1", "--gres=gpu:2")
    fill(lab, "-w", "g2", "--gres=shard:4")
    fill(lab, "-w", "g2", "--gres=gpu:1")
    done = alice.run("csub", "train.sh")
    job = alice.shown(done.stdout.split()[3])
    assert tres(f"{SMALL}:1") in (job.get("TresPerNode"), job.get("TresPerJob")), done.stderr
    whole = because("not-free", option="as asked")
    assert sentence([because("free-now", option=f"{SMALL}:1"), whole]) in done.stderr
