# SPDX-License-Identifier: Apache-2.0
"""Jobs with phases on a whole GPU, read ten times a second: `python -m tests.gpu.readings TABLE.csv`.

One NVIDIA GPU of Hopper or later with PyTorch and torchvision, which nobody else uses. The jobs run one after the
other; a row has the memory, the SM activity since the reading before (GPM; empty where it stood at 0 while kernels
ran) and the driver's plain GPU_UTIL. tests/unit/test_readings.py takes from the rows what an exporter would have been
scraped with once in so many seconds, and holds what is concluded from that against all of them.
"""

from __future__ import annotations

import csv
import multiprocessing
import sys
import time

PERIOD_S, WHOLE_S = 0.1, 66.0
# Library, model, batch, image size and milliseconds of the host for each step; for how many seconds it trains and
# validates (with how many times the batch), and pauses.
JOBS = (
    ("resnet18 steady", "torchvision resnet18 64 64 0", (66.0, 0.0, 1, 0.0)),
    ("resnet50 validates", "torchvision resnet50 32 224 0", (9.0, 3.0, 2, 1.0)),
    ("mobilenet starved", "torchvision mobilenet_v3_small 32 32 20", (11.0, 2.0, 4, 0.5)),
    ("perceptron pauses", "own mlp 4096 224 5", (4.0, 1.0, 1, 8.0)),
    ("vgg16 bursts", "torchvision vgg16 32 224 0", (1.5, 0.0, 1, 6.0)),
    ("unet grows", "own unet 4 128 30", (13.0, 4.0, 3, 2.0)),
    ("lstm rare bursts", "own lstm 64 224 0", (0.7, 0.0, 1, 13.0)),
    ("efficientnet host", "torchvision efficientnet_b0 16 128 60", (20.0, 5.0, 2, 3.0)),
)


def work(made: str, trains_s: float, validates_s: float, times: int, pauses_s: float) -> None:
    """Be the job."""
    import torch

    from tests.gpu import footprint_job

    library, model, batch, size, host_ms = made.split()
    words = f"--library {library} --model {model} --image-size {size}"
    train = f"{words} --batch-size {batch} --task train --optimizer sgd"
    infer = f"{words} --batch-size {int(batch) * times} --task infer"
    steps = [footprint_job.make_step(footprint_job.parse(one.split())) for one in (train, infer)]
    while True:
        for step, lasts_s in zip(steps, (trains_s, validates_s), strict=True):
            until = time.time() + lasts_s
            while time.time() < until:
                time.sleep(float(host_ms) / 1000)
                step()
                torch.cuda.synchronize()
        time.sleep(pauses_s)


def record(path: str) -> None:
    """Run the jobs, and write all readings of each."""
    import pynvml

    from slurm_colloc.gpu.nvml import NvmlReader

    reader = NvmlReader()
    reader.read()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    spawn = multiprocessing.get_context("spawn")
    with open(path, "w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(("job", "at_s", "gpu_mem_used_mib", "sm_active_pct", "gpu_util_pct"))
        for name, made, phases in JOBS:
            running = spawn.Process(target=work, args=(made, *phases), daemon=True)
            running.start()
            began = time.time()
            while (at_s := time.time() - began) < WHOLE_S:
                one = reader.read()[0][0]
                active = "" if one.sm_active_pct is None else round(one.sm_active_pct, 2)
                plain = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
                table.writerow((name, round(at_s, 2), one.gpu_mem_used_mib, active, plain))
                time.sleep(max(0.0, PERIOD_S - (time.time() - began - at_s)))
            running.kill()
            running.join()
            time.sleep(1)


if __name__ == "__main__":
    record(sys.argv[1])
