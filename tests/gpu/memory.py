# SPDX-License-Identifier: Apache-2.0
"""What of the sampler's memory is whose: `python -m tests.gpu.memory`. Also: do kept power readings give the energy?"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from tests.gpu.loads import Job, running


def show(label: str) -> None:
    """Print this process's resident memory by kind."""
    wanted = ("VmHWM", "VmRSS", "RssAnon", "RssFile", "RssShmem")
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    print(
        label, {line[0]: round(int(line[1]) / 1024, 1) for line in lines if line[0].rstrip(":") in wanted}, flush=True
    )


def largest() -> None:
    """Print the mappings that hold most."""
    sizes: dict[str, int] = {}
    name = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            name = words[5] if len(words) > 5 else "anonymous"
        elif words[0] == "Rss:":
            sizes[name] = sizes.get(name, 0) + int(words[1])
    for name, kib in sorted(sizes.items(), key=lambda item: -item[1])[:14]:
        print(f"  {kib / 1024:7.2f} MiB {name}", flush=True)


def energy() -> None:
    """Print energy by the counter, by kept power readings, and by one reading times the interval."""
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    seen_us, began_s = int(time.time() * 1e6), time.monotonic()
    for _ in range(5):
        time.sleep(10.0)
        now_s, now = time.monotonic(), pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        _, kept = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_TOTAL_POWER_SAMPLES, seen_us)
        times = [item.timeStamp for item in kept]
        mean_w = statistics.fmean(item.sampleValue.uiVal for item in kept) / 1000
        spot_w = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
        elapsed_s, span_s = now_s - began_s, (max(times) - min(times)) / 1e6
        print(f"counter {(now - before) / 1000:.0f} J, one reading {spot_w * elapsed_s:.0f} J", flush=True)
        print(f"  kept {mean_w * elapsed_s:.0f} J from {len(kept)} readings of {span_s:.2f} s", flush=True)
        before, began_s, seen_us = now, now_s, max(times)


def main() -> None:
    """Print it all."""
    show("Python")
    import slurm_colloc.cli.sampling  # noqa: F401

    show("+ sampling")
    import pynvml

    show("+ pynvml")
    pynvml.nvmlInit()
    show("+ nvmlInit")
    from slurm_colloc.gpu.nvml import NvmlReader

    reader = NvmlReader()
    show("+ reader")
    for _ in range(5):
        time.sleep(0.2)
        reader.read()
    show("+ five readings")
    largest()
    with running([Job("1", "blinking")], os.environ) as (load,):
        while load.done() < 20:
            time.sleep(0.1)
        energy()
    reader.close()
    show("closed")


if __name__ == "__main__":
    main()
