# SPDX-License-Identifier: Apache-2.0
"""Each line that a judgement gives is sent to a real Slurm, which gives the job what the line says, or nothing more."""

from __future__ import annotations

import json
import re

import pytest

from slurm_colloc.core.config_audit import WEEK
from slurm_colloc.facts.judgement import NO_GPU, STYLES, fewer, option_for
from tests.cluster.lab import Lab
from tests.cluster.nodes import MIG_TYPE_PREFIX
from tests.cluster.site import agents, write_site
from tests.cluster.user import User

pytestmark = pytest.mark.cluster

# How a script asks for two GPUs, by the option of each style.
ASKS = {
    "gres": ("--gres=gpu:h100:2", "--gres=gpu:2"),
    "gpus": ("--gpus=h100:2", "--gpus=2", "-G2"),
    "gpus-per-node": ("--gpus-per-node=h100:2", "--gpus-per-node=2"),
}


def given(lab: Lab, directive: str, option: str) -> str:
    """Return what a job whose script has this directive is to get by this option."""
    script = f"#!/bin/sh\n#SBATCH -p gpu -t 5 {directive}\nsleep 1\n"
    send = f'printf "%s" "$1" > remedy.sh && exec sbatch --hold {option} remedy.sh'
    done = lab.run_as("alice", ["sh", "-c", f"cd && {send}", "sh", script])
    assert done.returncode == 0, f"{directive} {option}: {done.stderr}"
    return _got(lab, done.stdout.split()[-1])


def _got(lab: Lab, job: str) -> str:
    """Return what a job is to get, and cancel it."""
    shown = lab.run(["scontrol", "-o", "show", "job", job], check=True).stdout
    lab.run(["scancel", job], check=True)
    (tres,) = (word.removeprefix("TRES=") for word in shown.split() if word.startswith("TRES="))
    return ",".join(part for part in tres.split(",") if part.startswith(("gres/", "node=")))


@pytest.mark.parametrize("style", STYLES)
def test_fewer_gpus_and_none_replace_what_a_script_asks_for(lab: Lab, style: str) -> None:
    for directive in ASKS[style]:
        one = given(lab, directive, option_for(fewer("gpu:h100:2", 1), style))
        assert one == "node=1,gres/gpu=1,gres/gpu:h100=1"
        assert given(lab, directive, option_for(NO_GPU, style)) == "node=1"


def test_the_option_of_another_style_would_not_replace_it(lab: Lab) -> None:
    # It takes two nodes: why the line has the option that the job had.
    assert given(lab, "--gpus=h100:2", "--gres=gpu:h100:1") == "node=2,gres/gpu=2,gres/gpu:h100=2"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("--gres=mps:25", "gres/mps=25"),
        ("--gres=shard:1", "gres/shard=1"),
        (f"--partition=mig --gres=gpu:{MIG_TYPE_PREFIX}1g.10gb:1", f"gres/gpu=1,gres/gpu:{MIG_TYPE_PREFIX}1g.10gb=1"),
    ],
)
def test_a_piece_replaces_a_gpu(lab: Lab, options: str, what: str) -> None:
    assert given(lab, "--gres=gpu:h100:1", options) == f"node=1,{what}"


# --- whole lines, as they are printed ---

LOAD = "COLLOC_SIMULATED_GPU_LOAD=mem=6G,util=60,sm=11"
# What each job asks for and does, and what the job gets that its printed line submits.
JOBS = {
    "fits.sh": ("--gres=gpu:h100:1", f"{LOAD} sleep 45", None),
    "fewer.sh": ("--gpus=h100:2", f"CUDA_VISIBLE_DEVICES=0 {LOAD} sleep 45", "node=1,gres/gpu=1,gres/gpu:h100=1"),
    "unused.sh": ("--gpus-per-node=h100:1", "sleep 45", "node=1"),
}
_LOW = "min_gpu_hours=0.0001"
RULES = (
    f'[{{code="COL001", bounds={{{_LOW}, shortest_min=0}}}}, {{code="COL007", bounds={{{_LOW}}}}}, '
    f'{{code="COL003", bounds={{{_LOW}, below_pct=100, shortest_min=0, running_min=0}}}}]'
)
NOTICES = {
    "notices.mode": '"users"',
    "notices.sender": '"hpc@example.org"',
    "notices.address": '"{user}@example.org"',
    "notices.admins": '["hpc@example.org"]',
    "notices.workdays": json.dumps(WEEK),
}
# A line by itself, behind a prompt or a word of what it is for; and one within a sentence.
LINES = re.compile(r"^ +(?:\$|see:|[A-Z][a-z ]+:)? +((?:cd|COLLOC_CONF=|colloc|csub|sbatch) ?\S.*)$", re.MULTILINE)
QUOTED = re.compile(r"'((?:colloc|csub|sbatch) [^']+)'")


def typed(text: str) -> set[str]:
    """Return what a text has its reader type."""
    return {*LINES.findall(text), *QUOTED.findall(text)}


def test_each_whole_line_that_is_printed_does_what_it_says(lab: Lab) -> None:
    site = write_site(lab, "remedies", extra={"audit.rule": RULES, **NOTICES})
    alice, root = User(lab, "alice", site), {"COLLOC_CONF": str(site / "site.toml")}
    ids = {}
    with agents(lab, site):
        for name, (asks, does, _) in JOBS.items():
            alice.script(f"#!/bin/sh\n#SBATCH -p gpu -t 5 {asks}\n{does}\n", name)
            done = alice.run("sh", "-c", f"cd {alice.home} && exec sbatch {name} --epochs 3")
            ids[name] = done.stdout.split()[-1]
        lab.wait_jobs(ids.values(), timeout=180)
        lab.wait_accounted(ids.values())
    lab.run(["colloc", "ingest", "--since", "1h"], env=root, check=True, timeout=120)
    lab.run(["chmod", "-R", "a+rX", site / "store"], check=True)

    told = {name: lab.run(["colloc", "job", job], env=root, check=True).stdout for name, job in ids.items()}
    mine = alice.run("colloc", "me", "--since", "1h").stdout
    audit = lab.run(["colloc", "audit", "run", "--since", "1h"], env=root).stdout
    mails = lab.run(["colloc", "audit", "run", "--notify", "--dry-run"], env=root).stdout
    report = lab.run(["colloc", "report", "--since", "1h"], env=root, check=True).stdout
    assert all(f"--gpus{more}" in told[name] for name, more in (("fewer.sh", "=h100:1"), ("unused.sh", "-per-node=0")))
    lines = {line: name for name, text in told.items() for line in typed(text)}
    lines |= dict.fromkeys(typed(mine + audit + mails + report) - lines.keys(), "")
    kinds = {"csub", "sbatch", "colloc job", "colloc audit run", "colloc audit explain", "colloc report"}
    assert {kind for kind in kinds if any(f"{kind} " in line for line in lines)} == kinds, lines
    for line, name in lines.items():
        done = alice.run("bash", "-c", f"cd {alice.home}; {_filled(line, ids)}")
        # 1: an audit found what it had found.
        assert done.returncode == int("audit run" in line), f"{line}: {done.stderr}"
        if " && " in line:
            got, wanted = _got(lab, done.stdout.split()[-1]), name and JOBS[name][2]
            assert got == wanted if wanted else "gres/gpu:h100=1" not in got, line


def _filled(line: str, ids: dict[str, str]) -> str:
    """Return a line with a job's id and a script where it leaves them open."""
    return re.sub(r"\b(?:JOB|ID)\b", ids["fits.sh"], line).replace("SCRIPT", "fits.sh")
