# SPDX-License-Identifier: Apache-2.0
"""What 'colloc site doctor' says of sharing that cannot work, on real clusters, beside what Slurm does there."""

from __future__ import annotations

import pytest

from tests.cluster import broken
from tests.cluster.fixtures import RELEASE, running
from tests.cluster.lab import Lab
from tests.cluster.test_doctor import GIVEN_TWICE, found

pytestmark = pytest.mark.cluster

# The lab's own: no cgroups, mps of one GPU of g1 at a time, and shares beside whole GPUs.
OF_THE_LAB = {"DOC016", "DOC030", "DOC031", "DOC032", *GIVEN_TWICE}
SLEEP = "--wrap=sleep 300"


def submit(lab: Lab, *options: str) -> str:
    """Return the id of a job of alice's, or what sbatch said."""
    done = lab.run_as("alice", ["sbatch", "--parsable", "-o", "/dev/null", *options, SLEEP])
    return done.stdout.strip() or done.stderr


def shown(lab: Lab, form: str) -> dict[str, str]:
    done = lab.run(["squeue", "-h", "-t", "all", "-o", f"%A {form}"], check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_jobs_on_shares_are_kept_apart() -> None:
    with running(broken.apart(RELEASE)) as lab:
        findings = found(lab, user="alice")[0]
        of_partitions = {"DOC080", "DOC081", "DOC082", "DOC083", "DOC085"}
        of_settings = {"DOC062", "DOC074", "DOC087", "DOC088", "DOC089", "DOC091", "DOC103"}
        assert set(findings) == OF_THE_LAB | of_partitions | of_settings
        assert [subject for subject, _ in findings["DOC080"]] == ["partition 'whole'"]
        assert findings["DOC088"] == [
            ("g2 in partition 'cores'", "DefCpuPerGPU=5 by 2 GPUs is 10, and a job may have 8 CPUs of a node"),
            ("g2 in partition 'capped'", "DefCpuPerGPU=4 by 2 GPUs is 8, and a job may have 3 CPUs of a node"),
        ]
        for partition, gres in (("pair", "shard:1"), ("cores", "gpu:2"), ("capped", "gpu:1"), ("memory", "gpu:2")):
            assert "Requested node configuration is not available" in submit(lab, "-p", partition, f"--gres={gres}")
        first, second = (submit(lab, "-w", "g1", "--gres=mps:10") for _ in range(2))
        lab.wait_state(first)
        third = submit(lab, "-w", "m1", "-p", "single")
        lab.wait_state(third)
        assert shown(lab, "%T")[second] == "PENDING", "a share of a tenth has all memory"


def test_programs_that_fail_or_belong_to_all() -> None:
    with running(broken.unruly(RELEASE)) as lab:
        findings = found(lab, env={"SLURMD_NODENAME": "g2"})[0]
        of_scripts = {*(f"DOC00{number}" for number in range(1, 8)), "DOC101", "DOC102"}
        assert set(findings) - {"DOC020"} == OF_THE_LAB | of_scripts | {"DOC017", "DOC084", "DOC090"}
        assert findings["DOC101"] == [(f"Prolog '{lab.root}/etc/prolog.sh'", "its mode is 0777")]
        job = submit(lab, "-w", "g2", "--gres=shard:1", "-t", "1")
        lab.wait_state(job)
        assert shown(lab, "%C")[job] == "8", "of one core, all of the socket"
        lab.run(["scancel", job], check=True)
        (lab.root / "etc/prolog.sh").chmod(0o644)
        assert found(lab)[0]["DOC100"] == [(f"Prolog '{lab.root}/etc/prolog.sh'", "its mode is 0644, and root runs it")]
        (lab.root / "etc/prolog.sh").unlink()
        broken.forget_shares(lab)
        findings, gaps, _ = found(lab)
        assert findings["DOC015"] == [("GresTypes of slurm.conf", "it lacks mps, shard, of which gres.conf has lines")]
        assert "there is none on this machine" in gaps["DOC100"]
        assert "Invalid generic resource (gres) specification" in submit(lab, "--gres=shard:1")
        on_node = found(lab, env={"SLURMD_NODENAME": "g2"})[0]
        assert on_node["DOC100"] == [(f"Prolog '{lab.root}/etc/prolog.sh'", "there is none on this node")]
