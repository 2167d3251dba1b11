# SPDX-License-Identifier: Apache-2.0
"""The variables of sharing on real Slurm: they reach what a task starts, and what they do not reach is found."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest

from slurm_colloc.gpu.failure import Outcome
from tests.cluster import apptainer
from tests.cluster.fixtures import RELEASE
from tests.cluster.lab import Lab
from tests.cluster.packs import JOIN, Packs, a_spec
from tests.fakes import mps_control

pytestmark = pytest.mark.cluster

# What a lab's users need to have their names.
NAMES = "PATH,HOME,TMPDIR,LD_PRELOAD,NSS_WRAPPER_PASSWD,NSS_WRAPPER_GROUP"


@pytest.fixture
def alice(lab: Lab) -> Iterator[Packs]:
    yield Packs(lab, "alice")
    lab.run(["scancel", "-u", "alice"])


def environment(alice: Packs, name: str) -> dict[str, str]:
    lines = (alice.home / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize("exported", ["NONE", NAMES, "ALL"])
def test_a_step_inside_a_task_is_under_the_same_daemon(alice: Packs, exported: str) -> None:
    show = "/usr/bin/env >task.$CSUB_PACK_TASK; srun -n1 /usr/bin/env >step.$CSUB_PACK_TASK"
    code, said = alice.ended(alice.submit(a_spec(2, commands=(show, show)), "", f"--export={exported}"))
    assert (code, "one at a time" in said) == ("0:0", False), said
    task, step = environment(alice, "task.1"), environment(alice, "step.1")
    ours = [name for name in task if name.startswith(("CUDA_", "XLA_", "TF_", "APPTAINER", "SINGULARITY", "CSUB_"))]
    assert len(ours) > 10
    assert {name: step.get(name) for name in ours} == {name: task[name] for name in ours}
    assert step["SLURM_CSUB_TASK"] == "1"
    assert ("HOME" in step) == (exported != "NONE")


def test_a_step_inside_a_task_sees_the_gpu_as_the_daemon_numbers_it(alice: Packs) -> None:
    """Slurm would call it by its number on the node, of which the daemon's clients know nothing."""
    half = ("-w", "g1", "-c", "4")
    other = alice.submit(a_spec(1, commands=("echo here; sleep 60",)), "", *half)
    assert alice.wait_for("out.1") == "here\n"
    show = "srun -n1 /usr/bin/env >step.$CSUB_PACK_TASK; echo $SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES"
    code, said = alice.ended(alice.submit(a_spec(2, commands=(show, show)), "", *half))
    output = (alice.home / "out.1").read_text()  # before the other's shell adds that its sleep was ended
    alice.run("scancel", other)
    assert (code, output) == ("0:0", "1 0\n"), said
    assert environment(alice, "step.1")["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize("how", ["env -i /bin/sh -c", "/usr/bin/srun --export=NONE -n1 /bin/sh -c"])
def test_a_task_past_the_daemon_is_run_again_alone(alice: Packs, how: str) -> None:
    cuda = f"exec 7<dev/nvidia0 8<dev/{mps_control.CONTEXT}"
    (alice.home / "dev").mkdir(exist_ok=True)
    for name in ("nvidia0", mps_control.CONTEXT):
        (alice.home / "dev" / name).touch()
        (alice.home / "dev" / name).chmod(0o644)
    strays = f"[ -e seen ] && exit 0; touch seen; {how} 'cd {alice.home}; {cuda}; sleep 300; :'; exit 3"
    client = f"{cuda}; {alice.python} -I -c \"{JOIN}\" $$; sh -c 'sleep 40; :'; exit 0"
    job = alice.submit(a_spec(2, commands=(strays, client)))
    code, said = alice.ended(job, timeout=150)
    assert code == "0:0", said
    told = alice.told(job)
    assert [(task.outcome, task.attempts) for task in told.tasks] == [(Outcome.DONE, 2), (Outcome.DONE, 1)]
    assert any(note.startswith("task 1 ") and "MPS" in note for note in told.notes)
    assert re.search(r"\btask 1 .*\b2: not under mps", said)


@pytest.mark.skipif(RELEASE == "22.05", reason="Apptainer needs the libraries of the later releases' Debian")
def test_a_container_is_under_the_same_daemon(alice: Packs) -> None:
    box = alice.home / "box"
    shutil.rmtree(box, ignore_errors=True)
    apptainer.make_box(box)
    join = f'/usr/bin/python3 -I -c "{JOIN}" $$ && echo joined'
    show = "echo [$CUDA_MPS_PIPE_DIRECTORY] [$CUDA_VISIBLE_DEVICES] [$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT]"
    (alice.home / "inside").write_text(f"{show}\n{join}\n")
    (alice.home / "inside").chmod(0o644)
    kinds = ("", "--cleanenv", "--contain", "--cleanenv --contain", "--containall --pid")
    run = f"{apptainer.program()} exec --bind /usr:/usr {{}} {box} /bin/sh <inside"
    commands = tuple(run.format(kind) for kind in kinds)
    job = alice.submit(a_spec(2, commands=("echo $CUDA_MPS_PIPE_DIRECTORY >pipe; sleep 1", *commands)), "")
    code, said = alice.ended(job, timeout=120)
    outputs = [(alice.home / f"out.{number}").read_text() for number in range(2, 2 + len(kinds))]
    assert code == "0:0", outputs
    pipe = (alice.home / "pipe").read_text().strip()
    for output in outputs:
        assert output.splitlines()[:2] == [f"[{pipe}] [0] [0=1000M]", "joined"], said
