# SPDX-License-Identifier: Apache-2.0
"""Day one: what accounting knows of jobs that ran before csub places the first submission of each."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.core.model import because
from slurm_colloc.core.wording import words
from tests.cluster.fixtures import new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.site import agents, write_site
from tests.cluster.user import User

pytestmark = pytest.mark.cluster

SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:h100:1 -t 5 -p gpu
{load}sleep 4
wait
"""
LOAD = "COLLOC_SIMULATED_GPU_LOAD=mem=6G,util=60,sm=11 "


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A cluster of its own: no other test is to find in accounting what these leave there."""
    with running(new_lab()) as lab:
        yield lab


def blob(util_pct: float, memory_mib: int) -> str:
    node = {"gpu_utilization": {"0": util_pct}, "gpu_used_memory": {"0": memory_mib * 2**20}}
    text = json.dumps({"nodes": {"g1": node}, "total_time": 600, "gpus": 1})
    return "JS1:" + base64.b64encode(gzip.compress(text.encode())).decode()


def run_plain(user: User, *words: str, comment: str = "", folder: Path | None = None) -> str:
    """Run a job by plain sbatch to its end, as before there was a csub."""
    where = f'cd {folder or user.home} && exec sbatch "$@"'
    done = user.run("bash", "-c", where, "sh", *words)
    job = done.stdout.split()[-1]
    if comment:
        user.lab.run(["scontrol", "update", f"jobid={job}", f"admincomment={comment}"], check=True)
    user.lab.wait_jobs([job])
    user.lab.wait_accounted([job])
    return job


def explained(user: User, *words: str) -> str:
    done = user.run("bash", "-c", f'cd {user.home} && exec csub --explain --dry-run "$@"', "sh", *words)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_user_fills_their_own(lab: Lab) -> None:
    """Jobstats' figures of plain jobs, by their command."""
    bob = User(lab, "bob", write_site(lab, "bootstrap-own", agent=False))
    bob.script(SCRIPT.format(load=""), "past.sh")
    run_plain(bob, "--comment=two words", "past.sh", "--batch", "64", "--n=x y", comment=blob(1.0, 6000))
    second = run_plain(bob, "past.sh", "--epochs", "3", comment=blob(1.0, 6000))
    run_plain(bob, "past.sh", "--batch", "99")
    bootstrap = ("colloc", "history", "bootstrap", "--since", "1h", "--shortest", "0")
    by_command = bob.run(*bootstrap)
    assert by_command.returncode == 0, by_command.stderr
    assert "2 runs used (2 measured by jobstats); " in by_command.stderr
    assert "nobody measured its peak of GPU memory" in by_command.stderr
    told = explained(bob, "past.sh", "--batch", "64", "--n=x y")
    assert "= 6900 for the job" in told, told
    assert "past jobs ran the same command" in told
    assert "'jobstats'" in told
    assert "past jobs ran the same command" not in explained(bob, "past.sh", "--batch", "65", "--n=x y")
    twice = bob.run(*bootstrap)
    assert "0 records written" in twice.stderr
    kept = list((bob.home / ".local/share/slurm_colloc/evidence").rglob(f"{second}.json"))
    assert len(kept) == 1
    # A script that was edited since is known by its command all the same.
    bob.script(SCRIPT.format(load="true; "), "past.sh")
    assert "past jobs ran the same command" in explained(bob, "past.sh", "--epochs", "3")


def test_root_fills_everybodys(lab: Lab) -> None:
    """Agents saw carol's plain jobs; her first csub of the same command takes a share."""
    site = write_site(lab, "bootstrap-all")
    environment = {"COLLOC_CONF": str(site / "site.toml")}
    carol = User(lab, "carol", site)
    carol.script(SCRIPT.format(load=LOAD), "plain.sh")
    with agents(lab, site):
        run_plain(carol, "plain.sh", "--epochs", "3")
    ingest = ["colloc", "ingest", "--since", "1h"]
    lab.run(ingest, env=environment, check=True, timeout=120)
    assert words(because("no-earlier-run")) in explained(carol, "plain.sh", "--epochs", "3")
    done = lab.run(["colloc", "history", "bootstrap", "--all", "--since", "1h"], env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1 measured by samples" in done.stderr
    for _ in range(2):
        told = explained(carol, "plain.sh", "--epochs", "3")
        assert "= 7066 for the job" in told, told
        assert "--gres=mps:11" in told
        # An ingest writes the histories anew, and what was found of the past stays.
        lab.run(ingest, env=environment, check=True, timeout=120)
    refused = carol.run("colloc", "history", "bootstrap", "--all")
    assert (refused.returncode, "--all is for root" in refused.stderr) == (2, True)
