# SPDX-License-Identifier: Apache-2.0
"""What the policy in Lua costs slurmctld: `python -m tests.bench_policy` (part of `make bench`).

A table of so many known jobs; a job is judged from its job_desc to the decision, the first time with the table's load,
which is the worst call. Times are this machine's alone; of Lua 5.1, Debian's, unless another is named.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from slurm_colloc.estimate.policy_table import KnownJob, model_hash, table_text
from tests.unit.lua import ONE, Loaded

JOBS, CALLS, LOADS = 100_000, 2000, 7
MODEL = "NVIDIA H100 80GB HBM3"
FOLDER = "/lustre/projects/somewhere/users/ann/experiments/2026-11"
# The clock is Lua's side of the call, so that what the bridge to Python costs is not counted.
LOOP = """
function(hooks, jobs, clock)
   local times = {}
   collectgarbage("collect")
   for at = 1, #jobs do
      local began = clock()
      hooks.job_submit(jobs[at])
      times[at] = clock() - began
   end
   return times
end
"""


def known(number: int) -> KnownJob:
    """Return one of many users' jobs."""
    return KnownJob(1000 + number % 500, f"train-{number}", FOLDER, 3000, 10, 30, 5, MODEL)


def resident_mib() -> float:
    """Return the memory of this process."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure_loads(version: str, path: Path) -> tuple[Loaded, Any]:
    """Print what the first call costs, in which the table is read."""
    loads, grown = [], 0.0
    piece = {"gres": ONE, "mem_mib": 9984, "sm": 16, "whole_sm": 132, "model": model_hash(MODEL)}
    for _ in range(LOADS):
        loaded = Loaded(version)
        hooks = loaded.new(str(path), policy="shadow", pieces=[piece])
        job = loaded.job(name="train-1", user_id=1001, work_dir=FOLDER)
        before, began = resident_mib(), time.perf_counter()
        hooks.job_submit(job)
        loads.append(time.perf_counter() - began)
        grown = max(grown, resident_mib() - before)
        assert job.admin_comment, "the job was not found"
    print(f"the call that loads: {in_ms(loads)}, {grown:.1f} MiB more")
    return loaded, hooks


def measure_jobs(loaded: Loaded, hooks: Any, what: str, name: str, folder: str, count: int) -> None:
    """Print what any other call costs."""
    numbers = [at * 37 % JOBS for at in range(count)]
    jobs = [loaded.job(name=name.format(number), user_id=1000 + number % 500, work_dir=folder) for number in numbers]
    times = loaded.lua.eval(LOOP)(hooks, loaded.to_lua(jobs), loaded.lua.eval("os.clock"))
    print(f"{what}: {in_ms(list(times.values()))}")


def in_ms(times_s: list[float]) -> str:
    """Return median and worst in words."""
    return f"median {median(times_s) * 1e3:.3f} ms, worst {max(times_s) * 1e3:.3f} ms"


def main() -> int:
    """Print what a job costs, what a load costs, and the memory."""
    version = sys.argv[1] if sys.argv[1:] else "lua51"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.table"
        began = time.perf_counter()
        path.write_bytes(table_text(map(known, range(JOBS)), time.time()))
        took_s = time.perf_counter() - began
        print(f"{version}: {JOBS} known jobs, {path.stat().st_size / 1e6:.1f} MB, written in {took_s:.1f} s")
        loaded, hooks = measure_loads(version, path)
        measure_jobs(loaded, hooks, "a known job", "train-{}", FOLDER, CALLS)
        measure_jobs(loaded, hooks, "an unknown job", "other-{}", FOLDER, CALLS)
        measure_jobs(loaded, hooks, "the longest names", "n" * 256, "/" * 1024, CALLS // 10)
    return 0


if __name__ == "__main__":
    sys.exit(main())
