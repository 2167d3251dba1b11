# SPDX-License-Identifier: Apache-2.0
"""What an answer of `colloc site need` costs: `python -m tests.bench_need [JOBS]`; exit status 1 above its bounds.

The thousand GPUs of tests/bench_plan.py as they were used; of half of the jobs of one GPU the use is known.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from slurm_colloc.core.config import Partition, Pool, Sharing, SiteConfig
from slurm_colloc.plan.change import Asked
from slurm_colloc.plan.need import Bound, need
from slurm_colloc.plan.past import ONE, Past, Run, Use, class_of
from slurm_colloc.plan.replay import replay
from slurm_colloc.plan.site import Rules, site_of
from tests.bench_plan import CPUS, GPUS, MEM_MIB, NODES, jobs, site

MOST_S = {20_000: 300.0, 100_000: 1200.0}
MODEL = "NVIDIA H100 80GB HBM3"


def counting(told: list[int]) -> Callable[[int, int], None]:
    """Return what keeps how many replays were done."""
    return lambda done, of: told.append(done)


def main() -> int:
    """Print of each size how long an answer takes, and what it says."""
    wanted = [int(text) for text in sys.argv[1:]] or list(MOST_S)
    late = False
    nodes, pool_of = f"g[0-{NODES - 1}]", (("gpu",), "h100", MODEL, GPUS, 81559, 132, 0, 10, CPUS, MEM_MIB)
    sharing = Sharing(order=("shard",))
    partition = (Partition("gpu"),)
    config = SiteConfig(
        1, "c", "24.11", "gpu", pool=(Pool("h", nodes, *pool_of),), partition=partition, sharing=sharing
    )
    rules = Rules(site().scheduler, site().priority, ())
    for count in wanted:
        made, rng = jobs(count), random.Random(4)
        began = replay(site_of(config, rules), made).started
        runs = []
        for one in began:
            shown = f"gpu:h100:{one.job.shape.units}"
            kind = class_of(one.job.shape, shown)
            known = kind == ONE and rng.random() < 0.5
            use = Use(MODEL, rng.randrange(2000, 30_000), rng.uniform(2, 40)) if known else None
            runs.append(Run(one.job, one.wait_s, shown, kind, True, use))
        runs.sort(key=lambda run: run.job.submit_s)
        until_s = max(run.job.submit_s for run in runs) + 1
        past = Past(tuple(runs), {}, 0.0, until_s)
        told: list[int] = []
        from_s = time.process_time()
        found = need(past, config, rules, Asked(), Bound(), (0.1, 0.3), counting(told))
        took_s = time.process_time() - from_s
        print(
            f"{count} jobs: {took_s:.0f} s of CPU, {told[-1] + 1} replays, {found.whole} and {found.shared} GPUs",
            flush=True,
        )
        late = late or took_s > MOST_S.get(count, 1e9)
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
