# SPDX-License-Identifier: Apache-2.0
"""What Slurm tells a job of its GPU: on a piece of one a script finds what it would have found, or it is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.user import SMALL, User, job_id

pytestmark = pytest.mark.cluster

# Of each way to ask, the variable by which a script would learn of it.
ASKED = {
    "--gres=gpu:1": "SLURM_GPUS_ON_NODE",
    "--gres=gpu:h100:1": "SLURM_GPUS_ON_NODE",
    "--gpus=1": "SLURM_GPUS",
    "-G h100:1": "SLURM_GPUS",
    "--gpus-per-node=1": "SLURM_GPUS_PER_NODE",
    "--gpus-per-node=h100:1": "SLURM_GPUS_PER_NODE",
    "-n1 --gpus-per-task=1": "SLURM_GPUS_PER_TASK",
    "-n1 --gpus-per-task=h100:1": "SLURM_GPUS_PER_TASK",
    "--gpus=1 --cpus-per-gpu=2": "SLURM_CPUS_PER_GPU",
    "--gpus-per-node=1 --mem-per-gpu=700": "SLURM_MEM_PER_GPU",
}
# The partition that has such pieces, beside whole GPUs, and what the accounting calls them.
MODES = {
    "mig": ("all", "gres/gpu:nvidia_h100_80gb_hbm3_1g.10gb"),
    "mps": ("gpu", "gres/mps"),
    "shard": ("gpu", "gres/shard"),
}
TOLD = ("SLURM_GPUS", "SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_GPU", "SLURM_TRES_PER_TASK")


class Pair(NamedTuple):
    """What a script printed by sbatch and by csub, and whether csub's was on a piece of a GPU."""

    plain: list[str]
    ours: list[str]
    shared: bool


@pytest.fixture
def alice(lab: Lab) -> Iterator[User]:
    yield User(lab, "alice", lab.root)
    lab.run(["scancel", "-u", "alice"])


def pairs(lab: Lab, alice: User, mode: str, where: str, bodies: dict[str, str]) -> dict[str, Pair]:
    """Run a script by sbatch and by csub for each way to ask, as arguments or as directives."""
    extra = {"sharing.order": f'["{mode}"]', "sharing.mps_daemon": '"prolog"'}
    site = write_site(lab, f"told-{mode}", extra=extra)
    partition, piece = MODES[mode]
    jobs = {}
    for asked, body in bodies.items():
        directives = f"#SBATCH {asked.replace(' --', chr(10) + '#SBATCH --')}\n" if where == "directive" else ""
        words = ["-o", "told.%j", *(asked.split() if where == "argument" else [])]
        script = alice.script(f"#!/bin/sh\n{directives}{body}")
        by_sbatch = job_id(alice.run("sbatch", "-p", "gpu", *words, script))
        jobs[asked] = (
            by_sbatch,
            alice.submit("-p", partition, SMALL, *words, script, COLLOC_CONF=str(site / "site.toml")),
        )
    lab.wait_jobs([job for pair in jobs.values() for job in pair])
    said = {job: (alice.home / f"told.{job}").read_text().splitlines() for pair in jobs.values() for job in pair}
    return {
        asked: Pair(said[plain], said[ours], piece in alice.allocated(ours)) for asked, (plain, ours) in jobs.items()
    }


@pytest.mark.parametrize(("mode", "where"), [("mig", "argument"), ("mps", "directive"), ("shard", "argument")])
def test_a_script_that_reads_one_finds_what_it_would_have_found(lab: Lab, alice: User, mode: str, where: str) -> None:
    bodies = {asked: f'echo "[${name}]"\nsh -c \'echo "[${name}]"\'\n' for asked, name in ASKED.items()}
    found = pairs(lab, alice, mode, where, bodies)
    assert {asked: pair.ours for asked, pair in found.items()} == {asked: pair.plain for asked, pair in found.items()}
    by_gres = {asked for asked in ASKED if asked.startswith("--gres")}
    # Slurm names the slice's type where one was asked for, and that cannot be put right.
    typed = {asked for asked in ASKED if "h100" in asked} - by_gres
    assert {asked for asked, pair in found.items() if pair.shared} == (set(ASKED) - typed if mode == "mig" else by_gres)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_untrue_is_told_to_programs_of_the_job_and_its_steps_start(lab: Lab, alice: User, mode: str) -> None:
    """csub cannot know what programs read; srun reads these variables as its own options."""
    show = "env | grep ^SLURM_ | sort"
    found = pairs(lab, alice, mode, "directive", dict.fromkeys(ASKED, f"{show}\necho step\nsrun -n1 env && echo ok\n"))
    for asked, (plain, ours, shared) in found.items():
        assert shared, asked
        assert ours[-1] == "ok", (asked, ours[-1])
        told = [[line for line in lines[: lines.index("step")] if line.startswith(TOLD)] for lines in (plain, ours)]
        one = "SLURM_GPUS_ON_NODE=1"
        assert one in told[0], asked
        if mode == "mig" and "h100" not in asked:
            named = "nvidia_h100_80gb_hbm3_1g.10gb"
            assert [line.replace(f":{named}", "") for line in told[1]] == told[0], asked
            assert named not in "".join(line for line in told[1] if "TRES" not in line), asked
        elif mode == "mig":
            assert [line.replace("nvidia_h100_80gb_hbm3_1g.10gb", "h100") for line in told[1]] == told[0], asked
        else:
            assert told[1] == [one], asked


@pytest.mark.parametrize(("mode", "shared"), [("mig", True), ("mps", False), ("shard", True)])
def test_a_step_that_may_read_how_many_gpus_there_are_has_them(lab: Lab, alice: User, mode: str, shared: bool) -> None:
    """Under MPS Slurm takes SLURM_GPUS_ON_NODE from steps, whatever their script exports."""
    body = "srun -n1 sh -c 'echo [$SLURM_GPUS_ON_NODE]'\n"
    [found] = pairs(lab, alice, mode, "argument", {"--gres=gpu:1": body}).values()
    assert found == Pair(["[1]"], ["[1]"], shared)
