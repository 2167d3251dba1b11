# SPDX-License-Identifier: Apache-2.0
"""The SPANK plugin in real Slurm: its options, and what a task gets or loses of what csub set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import spank
from tests.cluster.fixtures import new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.user import job_id

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab(spank.SLURM_CONF, spank.SCRIPTS)
    spank.prepare(lab)
    with running(lab, bare=True):
        yield lab


@pytest.fixture(autouse=True)
def no_node_is_drained(lab: Lab) -> Iterator[None]:
    yield
    lab.run(["scancel", "-u", "alice"])
    lab.run(["scancel", "-u", "bob"])
    states = lab.run(["sinfo", "-h", "-p", "all", "-N", "-o", "%T"], check=True).stdout.split()
    assert states
    assert not [state for state in states if "drain" in state or "down" in state]


MPS = ("-p", "gpu", "-w", "g1", "--gres=mps:25")


@pytest.mark.parametrize(
    ("program", "option", "fault"),
    [
        ("sbatch", "--colloc=mps", "--colloc is none of auto, off and exclusive:REASON"),
        ("srun", "--colloc=", "--colloc is none of"),
        ("salloc", "--colloc=exclusive:", "--colloc lacks its reason"),
        ("sbatch", "--colloc=exclusive:a\nb", "--colloc is longer than 255 bytes, or has one that is not printable"),
        ("srun", "--colloc=%s%n%s", "--colloc is none of"),
        ("salloc", "--gpu-footprint=6G", "--gpu-footprint is none of mem=SIZE"),
        ("sbatch", "--gpu-footprint=mem=6", "--gpu-footprint has no memory size"),
        ("srun", "--gpu-footprint=mem=6G,sm=0.5", "--gpu-footprint has no percentage"),
        ("salloc", "--gpu-footprint=sm=30", "--gpu-footprint lacks mem=SIZE"),
    ],
)
def test_a_wrong_option_refuses_the_submission(lab: Lab, program: str, option: str, fault: str) -> None:
    last = ["--wrap", "true"] if program == "sbatch" else ["true"]
    done = lab.run_as("alice", [program, option, *last])
    assert done.returncode != 0
    assert f"{program}: error: {fault}" in done.stderr
    assert done.stdout == ""
    assert lab.run(["squeue", "-h", "-t", "all", "-u", "alice", "-n", option]).stdout == ""


@pytest.mark.parametrize("program", ["sbatch", "srun", "salloc"])
def test_the_options_reach_lua(lab: Lab, program: str) -> None:
    last = ["--wrap", "true"] if program == "sbatch" else ["true"]
    options = ["--colloc=exclusive:a b; $(c)", "--gpu-footprint=mem=6G,sm=30"]
    done = lab.run_as("alice", [program, *options, *last], env={"SHOW_FILTER": "1"})
    assert done.returncode == 0, done.stderr
    assert "filter exclusive:a b; $(c) mem=6G,sm=30" in done.stderr
    assert '"spank:colloc":"exclusive:a b; $(c)","spank:gpu-footprint":"mem=6G,sm=30"' in done.stderr
    saw = "_SLURM_SPANK_OPTION_colloc_colloc=exclusive:a b; $(c)|_SLURM_SPANK_OPTION_colloc_gpu_footprint=mem=6G,sm=30"
    assert f"saw [{saw}]" in done.stderr
    none = lab.run_as("alice", [program, *last], env={"SHOW_FILTER": "1"})
    assert "filter nil nil" in none.stderr
    assert "saw []" in none.stderr


def test_directives_are_options_too(lab: Lab) -> None:
    script = "#!/bin/sh\n#SBATCH --colloc=off\n#SBATCH --gpu-footprint=mem=1G\ntrue\n"
    done = lab.run_as("alice", ["sbatch"], input=script)
    assert "_SLURM_SPANK_OPTION_colloc_colloc=off|_SLURM_SPANK_OPTION_colloc_gpu_footprint=mem=1G" in done.stderr
    wrong = lab.run_as("alice", ["sbatch"], input=script.replace("mem=1G", "mem=0G"))
    assert (wrong.returncode != 0, "has no memory size" in wrong.stderr) == (True, True)


# As the block of a job on a share does: what it sets, and its mark.
BLOCK = """\
export TF_FORCE_GPU_ALLOW_GROWTH=true CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100
export COLLOC_SET="$SLURM_JOB_ID TF_FORCE_GPU_ALLOW_GROWTH=true CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100"
"""
SHOW = "echo ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-} ${TF_FORCE_GPU_ALLOW_GROWTH-} ${COLLOC_SET-}"


@pytest.mark.parametrize("words", [(), ("mps=/bin/false", "mps_state=/run", "timeout_s=1", "strange")])
def test_a_step_has_what_csub_set_and_another_job_has_not(lab: Lab, words: tuple[str, ...]) -> None:
    """Slurm limits a step's threads to its share anew; words that are none of the plugin's change nothing."""
    spank.write_plugstack(lab, *words)
    out, other = (lab.root / f"out/{name}-{len(words)}" for name in ("set", "other"))
    steps = f"srun -n1 sh -c '{SHOW}'\nsbatch -Q -W -o {other} {' '.join(MPS)} --wrap '{SHOW}'"
    done = lab.run_as("alice", ["sbatch", "-W", "-o", str(out), *MPS, "--wrap", BLOCK + steps], timeout=90)
    assert done.returncode == 0, (done.stderr, out.read_text())
    percentage, growth, job, *set_ = out.read_text().split()
    assert (percentage, growth, job, len(set_)) == ("100", "true", job_id(done), 2)
    assert other.read_text() == "25\n"
