# SPDX-License-Identifier: Apache-2.0
"""What the agent costs on a real GPU: `python -m tests.gpu.cost`.

Its share of one core and its memory at 1 Hz and at 0.1 Hz beside four jobs; the throughput of a training with it
against without, in pairs of windows that take turns (the agent stopped and continued by signal); and what it says of
the duty cycle of a load that works three seconds of every six, sampled once in six.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.observe.journal import hours
from tests.gpu.loads import Job, Started, running

WINDOW_S, PAIRS = 2.5, 36
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The agent starts its interpreter anew without the working directory.
SOURCE = {"PYTHONPATH": str(Path(__file__).parents[2])}
SITE = """schema = 1
cluster = "test"
slurm_release = "22.05"
[observe]
agent = true
[paths]
state = "{folder}"
"""


@contextlib.contextmanager
def agent(folder: Path, period_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """Run the agent; its journal lies below ``folder``."""
    (folder / "site.toml").write_text(SITE.format(folder=folder))
    argv = [sys.executable, "-m", "slurm_colloc.cli.colloc", "agent", "--node", "n1", "--period", str(period_s)]
    process = subprocess.Popen(argv, env={**os.environ, **SOURCE, "COLLOC_CONF": str(folder / "site.toml")})
    try:
        time.sleep(3.0)
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait()


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def peak_rss_mib(pid: int) -> float:
    """Return the most memory that a process has held at a time."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def wait_for(started: list[Started]) -> None:
    """Wait until every load works."""
    while not all(one.done() > 20 for one in started):
        time.sleep(0.1)
    time.sleep(3.0)


def cost(period_s: float, watched_s: float) -> None:
    """Print what the agent takes while it samples."""
    with tempfile.TemporaryDirectory() as folder, agent(Path(folder), period_s) as process:
        before_s, began_s = cpu_s(process.pid), time.monotonic()
        time.sleep(watched_s)
        took_s, elapsed_s = cpu_s(process.pid) - before_s, time.monotonic() - began_s
        rounds = [seen for hour in hours(f"{folder}/journal") for seen in hour]
        size = sum(hour.size_bytes() for hour in hours(f"{folder}/journal"))
        say(
            period_s=period_s,
            core_pct=100 * took_s / elapsed_s,
            cpu_ms_a_pass=1000 * took_s * period_s / elapsed_s,
            peak_rss_mib=peak_rss_mib(process.pid),
            rounds=len(rounds),
            processes=len(rounds[-1].processes),
            journal_bytes_a_round=size / len(rounds),
        )


def throughput(program: str, period_s: float) -> None:
    """Print the ratio of a training's speed with the agent to that without, with its 95 % interval."""
    with running([Job("1", program)], os.environ) as (load,), tempfile.TemporaryDirectory() as folder:
        wait_for([load])
        with agent(Path(folder), period_s) as process:
            ratios = []
            for _ in range(PAIRS):
                speeds = {}
                for sent in random.sample([signal.SIGCONT, signal.SIGSTOP], 2):
                    process.send_signal(sent)
                    time.sleep(0.1)
                    before, began_s = load.done(), time.monotonic()
                    time.sleep(WINDOW_S)
                    speeds[sent] = (load.done() - before) / (time.monotonic() - began_s)
                ratios.append(speeds[signal.SIGCONT] / speeds[signal.SIGSTOP])
    resampled = sorted(statistics.fmean(random.choices(ratios, k=len(ratios))) for _ in range(4000))
    say(
        program=program,
        period_s=period_s,
        pairs=PAIRS,
        ratio=statistics.fmean(ratios),
        interval_95=[resampled[100], resampled[3899]],
        median=statistics.median(ratios),
    )


def duty_cycle() -> None:
    """Print GPU_UTIL and SM activity of a load that works half the time, as single readings and over the interval."""
    with running([Job("1", "blinking")], os.environ) as started:
        wait_for(started)
        reader = NvmlReader()
        reader.read()
        import pynvml

        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        found = []
        for phase in range(5):
            time.sleep(6.0 if phase else 6.5)
            spot = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
            ((reading,), _) = reader.read()
            found.append((spot, reading.gpu_util_pct, reading.sm_active_pct, reading.gr_active_pct))
        say(duty_cycle=found, kept=len(pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)[1]))


def calls() -> None:
    """Print what each of the driver's calls takes: median wall time and mean CPU time, in ms."""
    import pynvml

    reader = NvmlReader()
    opened = reader._units[0]
    handle = opened.handle
    fields = [pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, pynvml.NVML_FI_DEV_POWER_AVERAGE]
    gpm = opened._samples or []
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 5
    request.sample1, request.sample2 = gpm
    for position, number in enumerate((1, 2, 3, 5, 10)):
        request.metrics[position].metricId = number
    asked = {
        "gpm sample": lambda: pynvml.nvmlGpmSampleGet(handle, gpm[0]),
        "gpm metrics": lambda: pynvml.nvmlGpmMetricsGet(request),
        "gpu_util, kept readings": opened.gpu_util,
        "gpu_util, now": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle),
        "energy": opened.energy_j,
        "energy, field values": lambda: pynvml.nvmlDeviceGetFieldValues(handle, fields[:1]),
        "energy and power, field values": lambda: pynvml.nvmlDeviceGetFieldValues(handle, fields),
        "power, kept readings": lambda: pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_TOTAL_POWER_SAMPLES, 0),
        "process_sm_util": opened.process_sm_util,
        "memory": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2),
        "power": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        "compute": lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
        "graphics": lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
        "mps": lambda: pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle),
        "all": reader.read,
    }
    took: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in asked}
    for _ in range(60):
        time.sleep(0.12)
        for name, call in asked.items():
            began, began_cpu = time.perf_counter(), time.thread_time()
            with contextlib.suppress(pynvml.NVMLError):
                call()
            took[name][0].append((time.perf_counter() - began) * 1000)
            took[name][1].append((time.thread_time() - began_cpu) * 1000)
    say(
        calls_ms={
            name: [round(statistics.median(wall), 3), round(statistics.fmean(cpu), 3)]
            for name, (wall, cpu) in took.items()
        }
    )


def say(**figures: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(figures), flush=True)


def main(parts: Sequence[str]) -> None:
    """Measure everything, or the parts that are named: duty, calls, cost, throughput."""
    wanted = set(parts) or {"duty", "calls", "cost", "throughput"}
    if "duty" in wanted:
        duty_cycle()
    with running([Job(str(number), "train") for number in range(1, 5)], os.environ) as started:
        wait_for(started)
        if "calls" in wanted:
            calls()
        if "cost" in wanted:
            cost(1.0, 30.0)
            cost(10.0, 60.0)
    if "throughput" in wanted:
        throughput("big", 1.0)


if __name__ == "__main__":
    main(sys.argv[1:])
