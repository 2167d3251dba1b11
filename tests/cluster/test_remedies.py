# SPDX-License-Identifier: Apache-2.0
"""Each line that a judgement gives is sent to a real Slurm, which gives the job what the line says, or nothing more."""

from __future__ import annotations

import pytest

from slurm_colloc.facts.judgement import NO_GPU, STYLES, fewer, option_for
from tests.cluster.lab import Lab
from tests.cluster.nodes import MIG_TYPE_PREFIX

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
    job = done.stdout.split()[-1]
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
