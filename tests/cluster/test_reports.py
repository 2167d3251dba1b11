# SPDX-License-Identifier: Apache-2.0
"""colloc job, me and top on a real cluster: real sacct, scontrol and squeue, agents with simulated GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.site import agents, write_site
from tests.cluster.user import User

pytestmark = pytest.mark.cluster

SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:h100:1 -t 5 -p gpu
COLLOC_SIMULATED_GPU_LOAD=mem=6G,util=60,sm=11 sleep {load_s}
sleep 4
"""


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Path]:
    folder = write_site(lab, "reports")
    with agents(lab, folder):
        yield folder


def plain(user: User, *words: str) -> str:
    """Submit by sbatch, without csub."""
    done = user.run("bash", "-c", f'cd {user.home} && exec sbatch "$@"', "sh", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_a_jobs_story_from_its_first_second_to_the_next_submission(lab: Lab, site: Path) -> None:
    alice, bob = User(lab, "alice", site), User(lab, "bob", site)
    as_root = {"COLLOC_CONF": str(site / "site.toml")}
    # Long enough for several looks on a busy machine.
    alice.script(SCRIPT.format(load_s=30), "story.sh")
    job = plain(alice, "story.sh", "--epochs", "3")
    lab.wait_state(job)

    fresh = alice.run("colloc", "job", job)
    assert fresh.returncode == 0, fresh.stderr
    assert f"job {job} 'story.sh' of alice, RUNNING\n" in fresh.stdout
    assert " to now so far in partition gpu on g" in fresh.stdout
    assert "  given      gpu:h100:1\n  used       not known here" in fresh.stdout

    lab.wait_jobs([job])
    lab.wait_accounted([job])
    lab.run(["colloc", "ingest", "--since", "1h"], env=as_root, check=True, timeout=120)
    text = lab.run(["colloc", "job", job], env=as_root, check=True).stdout
    assert "exit code 0:0" in text, text
    assert re.search(r"^ {13}\|[▁▂▃▄▅▆▇█ ]{60}\| 0 to 6144 MiB, the peak$", text, re.MULTILINE), text
    # After the load nothing was used; that is no gap.
    assert re.search(r"^ {13}\|[ ▁▂]*▂▁+ *\| 0 to 100 %$", text, re.MULTILINE), text
    fit = "gpu:nvidia_h100_80gb_hbm3_1g.10gb:1 (mig): its memory peak was 6144 MiB, and it used 11."
    assert f"  would fit  {fit}" in text or "  would fit  mps:" in text, text

    (command,) = re.findall(r"^  next time  \$ (.*)$", text, re.MULTILINE)
    (expected,) = re.findall(r"submitted so it gets ([^\s,]+)", text)
    tried = alice.run("bash", "-c", command.replace(" csub ", " csub --dry-run --explain "))
    assert tried.returncode == 0, tried.stderr
    assert f" ({expected}) in place of " in tried.stderr
    done = alice.run("bash", "-c", command)
    assert done.stdout.startswith("Submitted batch job "), done.stderr
    lab.run(["scancel", done.stdout.split()[-1]], check=True)

    # This Slurm hides nobody's jobs, but the store is closed: bob sees what sacct tells him, and no use.
    others = bob.run("colloc", "job", job)
    assert others.returncode == 0, others.stderr
    assert "  used       not known here" in others.stdout
    assert "  SM  " not in others.stdout
    assert bob.run("colloc", "job", "999999").returncode == 2
