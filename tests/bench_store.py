# SPDX-License-Identifier: Apache-2.0
"""What samples cost: `python -m tests.bench_store` (part of `make bench`). Times are this machine's alone.

A node of 8 GPUs, read every 10 s, with values that are drawn and not constant; half of its GPUs run one job, the other
half four each, with seven processes on every GPU.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_colloc.core.config import Observe
from slurm_colloc.core.usage_model import DeviceSample, HostSample, NodeSample, ProcessSample
from slurm_colloc.facts.compact import compact
from slurm_colloc.observe.journal import append
from slurm_colloc.store.store import Store
from tests.unit.made import HOUR, device, process, run, seen
from tests.unit.stored import sampled

GPUS, PROCESSES, PERIOD_S = 8, 7, 10
# Of a GPU: six percentages, energy, memory, processes, method, neighbours. Of a job: CPU, memory, bytes read, written.
METRICS = {"samples": 11, "hosts": 4, "facts": 11}
SITE_SAMPLES = 1000 * 30 * 86_400 // PERIOD_S
BEGAN_S = 1_767_225_600
DAY_S = 24 * HOUR


def main() -> int:
    """Measure bytes of each form, and the time of flushing and of compaction."""
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "site.toml").write_text(
            f'schema = 1\ncluster = "c"\nslurm_release = "22.05"\n[paths]\nstate = "{root}"\n'
        )
        (root / "store").mkdir()
        for passed in rounds(draw, BEGAN_S, HOUR):
            append(f"{root}/journal", passed)
        size = sum(path.stat().st_size for path in root.rglob("*.journal"))
        wall_s, peak_mib = flush(root)
        print(f"flushing an hour ({size / 1e6:.1f} MB of journal): {wall_s:.2f} s, {peak_mib:.0f} MiB at peak")
        report("an hour flushed", root, HOUR)
        store = Store(f"{root}/day")
        jobs = [
            1000 + index if index < GPUS // 2 else 2000 + 4 * index + part for index in range(GPUS) for part in range(4)
        ]
        store.write_allocations("a", [run(str(job), BEGAN_S, BEGAN_S + DAY_S) for job in sorted(set(jobs))], 2e9)
        sampled(store, list(rounds(draw, BEGAN_S, DAY_S)))
        report("24 hours flushed", root / "day", DAY_S)
        for name, age in (("joined, with facts", 2), ("facts alone", 20)):
            began = time.perf_counter()
            for _ in range(2):
                compact(store, Observe(), BEGAN_S + DAY_S * (1 + age), anyway=True)
            report(name, root / "day", DAY_S, f", made in {time.perf_counter() - began:.1f} s")
    return 0


def flush(root: Path) -> tuple[float, float]:
    """Run colloc flush as its timer does; return its wall time and the peak of its memory."""
    environment = {**os.environ, "COLLOC_CONF": f"{root}/site.toml"}
    argv = [sys.executable, "-m", "slurm_colloc.cli.colloc", "flush", "--node", "g1"]
    began = time.perf_counter()
    subprocess.run(argv, env=environment, check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def report(name: str, root: Path, seconds: int, more: str = "") -> None:
    """Print what lies under ``root`` for each GPU sample and metric, and what a large site would keep."""
    passes = seconds // PERIOD_S - 1
    jobs = GPUS // 2 + GPUS // 2 * 4
    print(f"{name}{more}")
    for table, of in (("samples", GPUS), ("hosts", jobs), ("facts", GPUS)):
        size = sum(path.stat().st_size for path in root.rglob("*.parquet") if f"/{table}/" in str(path))
        site_gb = SITE_SAMPLES * size / (passes * GPUS) / 1e9
        print(
            f"    {table:<8}{size / 1e6:7.2f} MB, {size / (passes * of) / METRICS[table]:5.2f} bytes a sample-metric, "
            f"{site_gb:6.2f} GB where there are {SITE_SAMPLES / 1e6:.0f} million GPU samples"
        )


def rounds(draw: random.Random, began_s: float, seconds: int) -> Iterator[NodeSample]:
    """Yield a node's passes."""
    last_s = began_s
    for number in range(1, seconds // PERIOD_S):
        at_s = began_s + number * PERIOD_S + draw.uniform(0, 0.01)
        yield one_pass(draw, at_s, at_s - last_s)
        last_s = at_s


def one_pass(draw: random.Random, at_s: float, interval_s: float) -> NodeSample:
    """Return one pass with drawn values."""
    devices, processes, hosts = [], [], []
    for index in range(GPUS):
        unit, on_it = gpu(draw, index)
        devices.append(unit)
        processes += on_it
    for job in sorted({one.job_id for one in processes}):
        hosts.append(
            HostSample(job, draw.uniform(1, 160), draw.randrange(64_000), draw.uniform(0, 9000), draw.uniform(0, 90))
        )
    return seen(at_s, devices, processes, hosts=hosts, interval_s=interval_s)


def gpu(draw: random.Random, index: int) -> tuple[DeviceSample, list[ProcessSample]]:
    """Return a GPU's reading and the processes on it."""
    uuid = f"GPU-{index}0c2d5b8-9f1e-4a67-b3d4-5e6f708192a{index}"
    jobs = [1000 + index] if index < GPUS // 2 else [2000 + 4 * index + part for part in range(4)]

    def around(middle: float) -> float:
        return min(100.0, max(0.0, draw.gauss(middle, 12)))

    on_it = [
        process(
            str(jobs[number % len(jobs)]),
            4000 + 10 * index + number,
            uuid,
            gpu_mem_used_mib=draw.randrange(2000, 11_000),
            sm_util_pct=float(draw.randrange(15)),
        )
        for number in range(PROCESSES)
    ]
    unit = device(
        uuid,
        gpu_util_pct=float(round(around(80))),
        gr_active_pct=around(78),
        sm_active_pct=around(50),
        sm_occupancy_pct=around(25),
        tensor_active_pct=around(30),
        dram_active_pct=around(40),
        gpu_mem_used_mib=draw.randrange(30_000, 81_000),
        power_w=draw.gauss(450, 60),
        energy_j=draw.gauss(4500, 600),
    )
    return unit, on_it


if __name__ == "__main__":
    sys.exit(main())
