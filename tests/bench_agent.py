# SPDX-License-Identifier: Apache-2.0
"""What sampling costs a node: `python -m tests.bench_agent` (`make bench`).

8 GPUs with 7 processes each, on the made-up driver with the CPU time that the real calls took on an H100, and a made-up
/proc of 1,500 processes. Passes ten seconds apart by their own clocks, without the waiting; then a true run. Last, real
processes of hostile kinds, each beside as many that sleep (`python -m tests.bench_agent hostile`: these alone).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slurm_colloc.core import clock
from slurm_colloc.core.usage_model import HostSample
from slurm_colloc.gpu import nvml, proc
from slurm_colloc.gpu.hostuse import HostUse
from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.gpu.proc import ProcessTable, Stat
from slurm_colloc.observe.journal import append
from slurm_colloc.observe.sampler import Sampler, Told
from slurm_colloc.slurm.jobs import HeldHere
from tests.fakes.devices import Load, Process, gpus
from tests.fakes.driver import Driver
from tests.unit import fake_proc

GPUS, JOBS_PER_GPU, WORKERS, PROCESSES = 8, 7, 4, 1500
PASSES, PERIOD_S, TRUE_RUN_S = 120, 10.0, 20
PARTS = ("driver", "proc", "host", "journal")
TARGET_CPU_PCT, TARGET_MIB = 0.2, 40.0
BUSY = Load(77.0, 76.0, 70.0, 30.0, 20.0, 25.0, 30000.0, 450.0)
FIRST_PID, FIRST_JOB = 1000, 5000
HOSTILE, HOSTILE_PASSES = 5000, 24
# Of fewer processes: the kernel takes minutes to end a line of 5,000.
FEWER = {"threads": 10, "line": 5, "job": 5}
# Linux takes no more than 6 MiB of arguments, and no argument beyond 128 KiB.
LONG = ("x" * 131000,) * 40
STEPD = "slurmstepd: [7.batch]"
# What they are, how fakes/crowd.c makes them, their name, and their arguments.
CROWDS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("asleep", "", "python", ("python",)),
    ("arguments of 5 MB", "", "python", LONG),
    ("called slurmstepd", "", "slurmstepd", (STEPD,)),
    ("so, and 5 MB", "", "slurmstepd", (STEPD, *LONG)),
    ("so, and not dumpable", "closed", "slurmstepd", (STEPD, *LONG)),
    ("so, in 65,536 groups", "groups", "slurmstepd", (STEPD,)),
    ("names like stat's", "", ") R 1 (", ("python",)),
    ("ten threads in each", "threads", "python", ("python",)),
    ("one line of ancestors", "line", "python", ("python",)),
    ("so, in a job", "job", "python", (STEPD,)),
)
# The kernel's memory.stat has some forty lines.
MEMORY_STAT = ("anon", "file", "kernel", "shmem", *(f"figure_{number}" for number in range(40)))
IMPORTS = {
    "Python alone": "",
    "what sampling needs": "import slurm_colloc.gpu.nvml, slurm_colloc.observe.sampler, slurm_colloc.observe.journal",
    "and the site's file": "import slurm_colloc.gpu.nvml, slurm_colloc.observe.sampler, slurm_colloc.observe.journal, "
    "slurm_colloc.core.config, tomllib",
    "and typer": "import slurm_colloc.gpu.nvml, slurm_colloc.observe.sampler, slurm_colloc.observe.journal, "
    "slurm_colloc.core.config, tomllib, typer",
}


class TimedTable(ProcessTable):
    """A ProcessTable that counts the CPU time spent in it and the files it read."""

    def __init__(self, root: str) -> None:
        self.spent_s, self.reads, self.read_bytes, self._depth = 0.0, 0, 0, 0
        super().__init__(root)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began_s, self._depth = time.thread_time(), self._depth + 1
        yield
        self._depth -= 1
        if not self._depth:
            self.spent_s += time.thread_time() - began_s

    def refresh(self) -> None:
        with self._timed():
            super().refresh()

    def status(self, pid: int) -> Stat | None:
        with self._timed():
            return super().status(pid)

    def job_of_pid(self, pid: int) -> str:
        with self._timed():
            return super().job_of_pid(pid)

    def read(self, pid: int | str, name: str) -> bytes:
        self.reads += 1
        content = super().read(pid, name)
        self.read_bytes += len(content)
        return content


class TimedHostUse(HostUse):
    """A HostUse that counts the CPU time spent in it."""

    spent_s = 0.0

    def read(self, table: ProcessTable, jobs: Iterable[str]) -> tuple[HostSample, ...]:
        began_s = time.thread_time()
        found = super().read(table, jobs)
        self.spent_s += time.thread_time() - began_s
        return found


def populate(root: Path) -> None:
    """Write a /proc, and cgroups: each job has two slurmstepd, its script, a GPU process and that one's workers."""
    cgroups = root.parent / "cgroup"
    (root / "self").mkdir()
    (root / "self/mountinfo").write_text(f"30 23 0:26 / {cgroups} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n")
    for number in range(GPUS * JOBS_PER_GPU):
        pid, job = FIRST_PID + 10 * number, str(FIRST_JOB + number)
        folder = f"/system.slice/slurmstepd.scope/job_{job}"
        for place, step in enumerate(("extern", "batch")):
            cgroup = f"0::{folder}/step_{step}/slurm"
            fake_proc.add(root, pid + place, 1, "slurmstepd", cgroup, f"slurmstepd: [{job}.{step}]", uid=0)
        cgroup = f"0::{folder}/step_batch/user/task_0"
        (cgroups / folder[1:]).mkdir(parents=True)
        (cgroups / folder[1:] / "cpu.stat").write_text("usage_usec 1\nuser_usec 1\nsystem_usec 0\n")
        (cgroups / folder[1:] / "memory.stat").write_text("".join(f"{name} 4096\n" for name in MEMORY_STAT))
        fake_proc.add(root, pid + 2, pid + 1, "bash", cgroup)
        fake_proc.add(root, pid + 3, pid + 2, "python", cgroup)
        for worker in range(WORKERS):
            fake_proc.add(root, pid + 4 + worker, pid + 3, "pt_data_worker", cgroup)
    for other in range(PROCESSES - len(list(root.iterdir()))):
        fake_proc.add(root, 5000 + other, 1, "kworker")


def machine(costs: bool) -> Driver:
    """Return the driver, each GPU shared by seven jobs' processes."""
    driver = Driver(gpus(GPUS), time.monotonic, costs)
    for number, gpu in enumerate(driver.gpus):
        first = FIRST_PID + 10 * JOBS_PER_GPU * number + 3
        gpu.does(BUSY, *(Process(first + 10 * job, 3000, 7 + job) for job in range(JOBS_PER_GPU)))
    return driver


def measure(root: str, journal: str, true_run: bool) -> None:
    """Sample in this process and print what it took, as JSON."""
    driver = machine(costs=True)
    ticking: dict[str, Any] = {"now_s": time.monotonic()}
    tick = time.monotonic if true_run else lambda: ticking["now_s"]
    driver._clock = tick
    replaced = {"pynvml": driver, "sees_host_pids": lambda: True, "time": SimpleNamespace(monotonic=tick)}
    vars(nvml).update(replaced)
    vars(proc).update(time=replaced["time"])
    if not true_run:
        vars(clock).update(now=lambda: tick() + driver.epoch_s)
    table, host_use = TimedTable(root), TimedHostUse()
    told = Told(lambda job: HeldHere(((int(job) - FIRST_JOB) // JOBS_PER_GPU,), 1.0))
    for _ in range(GPUS * JOBS_PER_GPU):  # a few at a pass: that is once for a job
        told.ask_of(table.jobs())
    sampler = Sampler(NvmlReader(), "g1", 1.0 if true_run else PERIOD_S, table=table, host_use=host_use, told=told)
    sampler.sample(clock.now(), tick())
    driver.spent_s = table.spent_s = host_use.spent_s = appended_s = 0.0
    table.reads = 0
    passes = TRUE_RUN_S if true_run else PASSES
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    for number in range(passes):
        if true_run:
            time.sleep(max(0.0, began_s + number + 1 - time.monotonic()))
        else:
            ticking["now_s"] += PERIOD_S
        seen = sampler.sample(clock.now(), tick())
        before_s = time.thread_time()
        append(journal, seen)
        appended_s += time.thread_time() - before_s
    cpu_s = time.process_time() - began_cpu_s
    assert len(seen.processes) == GPUS * JOBS_PER_GPU == len({one.job_id for one in seen.processes})
    assert len(seen.holders) == len(seen.hosts) == GPUS * JOBS_PER_GPU
    assert {host.written_mib for host in seen.hosts} == {0.0}
    found = {
        "cpu_ms": cpu_s / passes * 1000,
        "driver_ms": driver.spent_s / passes * 1000,
        "proc_ms": table.spent_s / passes * 1000,
        "host_ms": host_use.spent_s / passes * 1000,
        "journal_ms": appended_s / passes * 1000,
        "reads": table.reads / passes,
        "lasted_s": time.monotonic() - began_s,
        "peak_mib": peak_mib(),
        "fake_read_us": read_us(ProcessTable(root), FIRST_PID),
        "real_read_us": read_us(ProcessTable(), os.getpid()),
    }
    print(json.dumps(found))


def number_of(kind: str) -> int:
    """Return how many processes there are of a kind."""
    return HOSTILE // FEWER.get(kind, 1)


@contextmanager
def crowd(program: str, kind: str, name: str, arguments: tuple[str, ...]) -> Iterator[int]:
    """Have so many processes there and yield the last one's pid; all are ended, even if this process is killed."""
    environment = {"KIND": kind, "NAME": name, "COUNT": str(number_of(kind))}
    most = 64 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]
    running = subprocess.Popen(
        arguments,
        executable=program,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, most),
    )
    assert running.stdout
    try:
        yield int(running.stdout.readline() or sys.exit(f"no crowd of kind '{kind}'"))
    finally:
        with suppress(ProcessLookupError):
            while True:
                os.killpg(running.pid, signal.SIGKILL)
                running.poll()
                time.sleep(0.1)


def measure_crowd(program: str, number: int) -> None:
    """Sample a crowd, of which the last has a GPU, in this process and print what it took, as JSON."""
    _, kind, name, arguments = CROWDS[number]
    ticking = {"now_s": time.monotonic()}
    replaced = {"time": SimpleNamespace(monotonic=lambda: ticking["now_s"])}
    driver = Driver(gpus(GPUS), replaced["time"].monotonic)
    vars(nvml).update(replaced, pynvml=driver, sees_host_pids=lambda: True)
    vars(proc).update(replaced)
    before = ProcessTable().jobs()
    with crowd(program, kind, name, arguments) as pid:
        for gpu in driver.gpus:
            gpu.does(BUSY, Process(pid, 3000, 7))
        began_s = time.process_time()
        table = TimedTable("/proc")
        sampler = Sampler(NvmlReader(), "g1", PERIOD_S, table=table)
        spent_s = []
        for _ in range(HOSTILE_PASSES):
            seen = sampler.sample(ticking["now_s"])
            spent_s.append(time.process_time() - began_s)
            began_s = time.process_time()
            ticking["now_s"] += PERIOD_S
        assert len(table.pids()) >= number_of(kind)
        assert {process.job_id for process in seen.processes} == {"7" if kind == "job" else ""}
        assert kind == "job" or "7" not in table.jobs() - before
    first_s, *later_s = spent_s
    found = {"first": first_s, "mean": sum(later_s) / len(later_s), "most": max(later_s), "bytes": table.read_bytes}
    print(json.dumps(found))


def hostile() -> None:
    """Print what a pass over hostile processes takes, beside one over as many that sleep."""
    print("\nreal processes: CPU ms of a pass, and by how much that is more than of those asleep")
    print(f"{'':<24}{'number':>9}{'first':>9}{'mean':>9}{'most':>9}{'KiB read':>10}{'first':>8}{'mean':>8}{'most':>8}")
    asleep: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/crowd"
        source = Path(__file__).parent / "fakes/crowd.c"
        subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-pthread", "-o", program, source], check=True)
        os.chmod(folder, 0o755)
        for number, (what, kind, *_) in enumerate(CROWDS):
            if kind == "groups" and os.geteuid() != 0:
                print(f"{what:<24} only root can make them here without newgidmap")
                continue
            found = child("crowd", program, str(number))
            asleep = asleep or found
            ratios = "".join(f"{found[name] / asleep[name]:8.2f}" for name in ("first", "mean", "most"))
            times = "".join(f"{found[name] * 1000:9.2f}" for name in ("first", "mean", "most"))
            print(f"{what:<24}{number_of(kind):9}{times}{found['bytes'] / 1024:10.0f}{ratios}", flush=True)


def read_us(table: ProcessTable, pid: int) -> float:
    """Return the CPU time of reading a file of a process, in microseconds: the mean of those that are read most."""
    began_s = time.thread_time()
    for _ in range(1000):
        for name in ("stat", "cgroup", "io"):
            table.read(pid, name)
    return (time.thread_time() - began_s) / 3000 * 1e6


def peak_mib() -> float:
    """Return the peak resident memory of this process's own program: getrusage would count its parent's, too."""
    with open("/proc/self/status") as stream:
        return next(int(line.split()[1]) / 1024 for line in stream if line.startswith("VmHWM:"))


def child(*arguments: str) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "tests.bench_agent", *arguments]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def report(name: str, found: dict[str, float], period_s: float) -> float:
    """Print one measurement and return its part of a core, in percent."""
    parts = [found[f"{part}_ms"] for part in PARTS]
    # The kernel's files take longer to read than the made-up ones.
    more_ms = found["reads"] * (found["real_read_us"] - found["fake_read_us"]) / 1000
    cpu_ms = found["cpu_ms"] + more_ms
    share_pct = cpu_ms / (period_s * 1000) * 100
    columns = [cpu_ms, *parts, found["cpu_ms"] - sum(parts), more_ms, found["reads"]]
    print(f"{name:<22}{''.join(f'{value:9.2f}' for value in columns)}{share_pct:9.3f}{found['peak_mib']:8.1f}")
    return share_pct


def main() -> int:
    """Measure and print."""
    print(f"sampling {GPUS} GPUs with {JOBS_PER_GPU} jobs each on a node of {PROCESSES} processes, CPU ms a pass")
    headings = ("all", "driver", "/proc", "host", "journal", "rest", "kernel", "reads", "% core")
    print(f"{'':<22}{''.join(f'{heading:>9}' for heading in headings)}{'MiB':>8}")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        root = Path(folder) / "proc"
        root.mkdir()
        populate(root)
        slow = child(str(root), f"{folder}/journal", "")
        slow_pct = report(f"0.1 Hz ({PASSES} passes)", slow, PERIOD_S)
        report("1 Hz, from those", slow, 1.0)
        true = child(str(root), f"{folder}/journal", "true")
        report(f"1 Hz, {true['lasted_s']:.0f} s in truth", true, 1.0)
    print("\nresident memory in MiB after")
    for name, code in IMPORTS.items():
        code += "\nprint(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        print(f"  {name:<24}{int(done.stdout) / 1024:6.1f}")
    peak = max(slow["peak_mib"], true["peak_mib"])
    missed = slow_pct > TARGET_CPU_PCT or peak > TARGET_MIB
    print(
        f"targets at 0.1 Hz: {TARGET_CPU_PCT} % of a core, {TARGET_MIB:g} MiB: {'missed' if missed else 'met'} "
        f"({slow_pct:.3f} %, {peak:.1f} MiB)"
    )
    hostile()
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["hostile"]:
        hostile()
    elif sys.argv[1:2] == ["crowd"]:
        measure_crowd(sys.argv[2], int(sys.argv[3]))
    elif len(sys.argv) > 1:
        measure(sys.argv[1], sys.argv[2], bool(sys.argv[3]))
    else:
        sys.exit(main())
