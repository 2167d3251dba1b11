# SPDX-License-Identifier: Apache-2.0
"""What a replay of a queue costs: `python -m tests.bench_plan` (part of `make bench`); exit status 1 above bounds.

A thousand GPUs at a load of 95 %, jobs that come by day and in bursts, and Slurm's own depth of backfill. Times are of
this machine's processor alone, memory is the highest of the process.
"""

from __future__ import annotations

import math
import random
import resource
import sys
import time
from statistics import fmean

from slurm_colloc.plan.model import Job, NodeKind, Priority, Scheduler, Shape, Site
from slurm_colloc.plan.replay import replay

SIZES = (10_000, 20_000, 50_000, 100_000)
NODES, GPUS, CPUS, MEM_MIB = 125, 8, 64, 1_000_000
LOAD, DAY_S = 0.95, 86400.0
MOST_S, MOST_MIB = 60.0, 1024.0


def site() -> Site:
    """Return the thousand GPUs."""
    nodes = tuple(NodeKind(f"g{at}", ("gpu",), (("h100", GPUS),), CPUS, MEM_MIB) for at in range(NODES))
    return Site(nodes, Scheduler(), Priority(age=1000, fair_share=10_000, size=1000))


def jobs(count: int, seed: int = 33) -> list[Job]:
    """Return so many jobs of sixty users: most of one GPU, twice as many by day as by night, a fifth in bursts."""
    rng = random.Random(seed)
    bodies = []
    for _ in range(count):
        gpus = rng.choices((1, 2, 4, 8), (0.70, 0.14, 0.10, 0.06))[0]
        bodies.append((gpus, min(max(30.0, rng.lognormvariate(0, 1.6) * 2400), 3 * DAY_S)))
    span_s = sum(gpus * run_s for gpus, run_s in bodies) / (LOAD * NODES * GPUS)
    found: list[Job] = []
    burst_s, user = 0.0, 0
    for number, (gpus, run_s) in enumerate(bodies):
        if rng.random() < 0.8 or not number:
            burst_s, user = rng.uniform(0, span_s), rng.randrange(60)
            if rng.random() < 0.5 * (1 - math.sin(2 * math.pi * burst_s / DAY_S)):
                burst_s = rng.uniform(0, span_s)
        cpus, mem_mib = gpus * rng.choice((4, 8)), gpus * rng.choice((16_000, 64_000))
        limit_s = max(600.0, run_s * rng.choice((1.3, 2.0, 4.0, 8.0)))
        shape = Shape("h100", gpus, cpus, mem_mib)
        found.append(Job(number, burst_s, run_s, limit_s, f"u{user}", f"a{user % 8}", "gpu", "normal", shape))
    return found


def main() -> int:
    """Print for each size how long a replay takes and how long its jobs waited."""
    print(f"{'JOBS':>8} {'CPU S':>8} {'MS/JOB':>8} {'MIB':>6}  MEAN WAIT")
    took_s = mib = 0.0
    for count in SIZES:
        made = jobs(count)
        began = time.process_time()
        done = replay(site(), made)
        took_s = time.process_time() - began
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        assert len(done.started) == count
        waited_h = fmean(one.wait_s for one in done.started) / 3600
        print(f"{count:>8} {took_s:>8.1f} {1000 * took_s / count:>8.2f} {mib:>6.0f}  {waited_h:.2f} h", flush=True)
    return int(took_s > MOST_S or mib > MOST_MIB)


if __name__ == "__main__":
    sys.exit(main())
