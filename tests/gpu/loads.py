# SPDX-License-Identifier: Apache-2.0
"""Programs that do known things to a GPU, run as a job's processes would be and counting what they get done."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# Each runs ``step`` for ever; a step ends when the GPU has done it, and is counted then.
LOOP = """
import mmap, os, struct, time, torch
held = torch.zeros(int(os.environ.get("HELD_MIB", "0")) * 2**20, dtype=torch.uint8, device="cuda")
counter = mmap.mmap(os.open(os.environ["STEPS"], os.O_RDWR), 8)
{prepare}
done = 0
while True:
    {step}
    torch.cuda.synchronize()
    done += 1
    counter[:8] = struct.pack("q", done)
    {pause}
"""
NET = """
n = torch.nn
def block(i, o, s):
    return n.Sequential(n.Conv2d(i, o, 3, s, 1, bias=False), n.BatchNorm2d(o), n.ReLU(),
                        n.Conv2d(o, o, 3, 1, 1, bias=False), n.BatchNorm2d(o), n.ReLU())
net = n.Sequential(block(3, 64, 1), block(64, 128, 2), block(128, 256, 2), block(256, 512, 2),
                   n.AdaptiveAvgPool2d(1), n.Flatten(), n.Linear(512, 10)).cuda()
best = torch.optim.SGD(net.parameters(), 0.01)
x, y = torch.randn({batch}, 3, 32, 32, device="cuda"), torch.randint(10, ({batch},), device="cuda")
def train():
    best.zero_grad(); n.functional.cross_entropy(net(x), y).backward(); best.step()
"""
_MATMUL = "x = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16)"
PROGRAMS = {
    "resident": LOOP.format(prepare="", step="time.sleep(0.1)", pause=""),
    "tiny": LOOP.format(
        prepare="x = torch.randn(64, 64, device='cuda')", step="for _ in range(100): x = x * 1.0001", pause=""
    ),
    "train": LOOP.format(prepare=NET.format(batch=32), step="train()", pause=""),
    "big": LOOP.format(prepare=NET.format(batch=512), step="train()", pause=""),
    "half": LOOP.format(prepare=_MATMUL, step="x @ x", pause="time.sleep(0.002)"),
    "busy": LOOP.format(prepare=_MATMUL, step="for _ in range(4): x @ x", pause=""),
    "both": LOOP.format(
        prepare="xs = [torch.randn(8192, 8192, device=f'cuda:{i}', dtype=torch.bfloat16) for i in (0, 1)]",
        step="[x @ x for x in xs]; torch.cuda.synchronize(0); torch.cuda.synchronize(1)",
        pause="",
    ),
    # Three seconds of every six.
    "blinking": LOOP.format(
        prepare=_MATMUL, step="x @ x", pause="if time.time() % 6 > 3: time.sleep(6 - time.time() % 6)"
    ),
}
_PR_SET_NAME = 15


class Job(NamedTuple):
    """A load to run as a job of its own: id, program, MiB of GPU memory that it holds besides, index of its GPU."""

    job_id: str
    program: str
    held_mib: int = 0
    gpu: int = 0


class Started(NamedTuple):
    """A running load."""

    job: Job
    process: subprocess.Popen[bytes]
    steps: Path

    def done(self) -> int:
        """Return how many steps it has done so far."""
        return int.from_bytes(self.steps.read_bytes(), "little")


@contextlib.contextmanager
def running(jobs: Sequence[Job], environment: Mapping[str, str]) -> Iterator[list[Started]]:
    """Run the jobs side by side, each below a process that Slurm's step daemon would be."""
    with tempfile.TemporaryDirectory(prefix="loads-") as folder:
        started = [_start(job, Path(folder) / f"{job.job_id}.steps", environment) for job in jobs]
        try:
            yield started
        finally:
            for one in started:
                one.process.terminate()
            for one in started:
                one.process.wait()


def _start(job: Job, steps: Path, environment: Mapping[str, str]) -> Started:
    steps.write_bytes(bytes(8))
    own = {
        **environment,
        "SLURM_JOB_ID": job.job_id,
        "SLURM_JOB_GPUS": str(job.gpu),
        **({"CUDA_VISIBLE_DEVICES": str(job.gpu), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if job.gpu else {}),
        "HELD_MIB": str(job.held_mib),
        "STEPS": str(steps),
        # Called by another name, Python does not find itself.
        "PYTHON": sys.executable,
    }
    argv = [f"slurmstepd: [{job.job_id}.batch]", "-m", "tests.gpu.loads", job.program]
    return Started(job, subprocess.Popen(argv, executable=sys.executable, env=own), steps)


def main(program: str) -> None:
    """Be the step daemon of one job: run the program as a child and end with it."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"slurmstepd", 0, 0, 0)
    child = subprocess.Popen([os.environ["PYTHON"], "-c", PROGRAMS[program]])
    import signal

    signal.signal(signal.SIGTERM, lambda *_: child.kill())
    os._exit(abs(child.wait()))


if __name__ == "__main__":
    main(sys.argv[1])
