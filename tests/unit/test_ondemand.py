# SPDX-License-Identifier: Apache-2.0
"""Open OnDemand with csub in its cluster file's bin_overrides: what its Slurm adapter calls, and what it reads of it.

The call is that of OSC/ood_core at 86b6 of August 2026 (lib/ood_core/job/adapters/slurm.rb: submit, submit_string,
call): sbatch's options, then --parsable, then -M and the cluster; the script on standard input, its shell in front of
it; variables of the job and SLURM_CONF in the environment. It takes what stands before the first semicolon of standard
output for the job's id, and raises an error where the exit status is not 0. The script is that of the Jupyter app.
"""

from __future__ import annotations

import pytest

from tests.unit.shell import DEFINITE, Shell

JUPYTER = """#!/bin/bash

cd /home/ann/ondemand/data/sys/dashboard/batch_connect/sys/jupyter/output/0f8b1c
echo "Setting environment variable"
export host=$(hostname)
[[ -e "before.sh" ]] && source "before.sh"
echo "Script starting..."
"./script.sh" &
SCRIPT_PID=$!
source "after.sh"
wait ${SCRIPT_PID} || clean_up 1
"""
HINT = "--gpu-footprint=mem=4G,sm=1"
ENVIRON = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SESSION_ID": "0f8b1c", "OOD_SESSION": "two words"}


def call(*native: str, cluster: str = "lab") -> list[str]:
    """Return the arguments of one submission; ``native`` are those of the app's form."""
    asked = ["-D", "/tmp", "-J", "sys/dashboard/sys/jupyter", "-o", "/tmp/output.log", "-p", "gpu", "-t", "01:00:00"]
    return [*asked, "--export", "NONE", *native, "--parsable", "-M", cluster]


@pytest.fixture
def portal(shell: Shell) -> Shell:
    """A user whose sbatch answers as with --parsable and -M: the id, and the cluster behind a semicolon."""
    for number in range(2):
        shell.behave(number, 'echo "4711;lab"; exit 0\n')
    return shell


def job_id(stdout: str) -> str:
    """Return what the adapter makes of standard output."""
    return stdout.strip().split(";")[0]


def handed_over(portal: Shell, number: int = 0) -> str:
    return (portal.folder / f"script.{number}").read_text()


@pytest.mark.parametrize("native", [(), ("--gpus-per-node", "1"), ("--gres=gpu:1",), ("-n", "4")])
def test_a_session_reaches_sbatch_as_it_was_and_its_id_comes_back(portal: Shell, native: tuple[str, ...]) -> None:
    done = portal.run(*call(*native), input=JUPYTER, environ=ENVIRON)
    assert (done.returncode, job_id(done.stdout)) == (0, "4711")
    [argv] = portal.calls()
    assert argv == call(*native)
    assert handed_over(portal) == JUPYTER


@pytest.mark.parametrize("told", ["form", "script"])
def test_a_session_that_says_what_it_needs_gets_a_slice(portal: Shell, told: str) -> None:
    """Without the site's own cluster after -M it would keep its GPU, as it does with another."""
    script, native = (JUPYTER, ("--gres=gpu:1", HINT)) if told == "form" else (
        JUPYTER.replace("\n", f"\n#CSUB {HINT}\n", 1), ("--gres=gpu:1",)
    )  # fmt: skip
    for cluster in ("lab", "elsewhere"):
        done = portal.run(*call(*native, cluster=cluster), input=script, environ=ENVIRON)
        assert (done.returncode, job_id(done.stdout)) == (0, "4711")
    own, other = portal.calls()
    assert "--gres=gpu:h100_1g.10gb:1" in own
    assert "--gres=gpu:h100_1g.10gb:1" not in other
    assert own[: len(call("--gres=gpu:1"))] == call("--gres=gpu:1")
    assert [handed_over(portal, number) for number in (0, 1)] == [script, script]
    assert [decision["given"] for decision in portal.decisions()] == ["gpu:h100_1g.10gb:1", "as asked"]


def test_a_refusal_is_one_to_the_portal(portal: Shell) -> None:
    portal.behave(0, f'echo "{DEFINITE}" >&2; exit 1\n')
    portal.behave(1, f'echo "{DEFINITE}" >&2; exit 1\n')
    done = portal.run(*call("--gres=gpu:1"), input=JUPYTER, environ=ENVIRON)
    assert done.returncode == 1
    assert DEFINITE in done.stderr
    assert done.stdout == ""
