# SPDX-License-Identifier: Apache-2.0
"""What sharing one GPU yields, by csub on a real Slurm: `python -m tests.gpu.pack FOLDER [--rounds N] [--only A,B]`.

FOLDER and the machine are those of tests/gpu/slurm.py; PyTorch and torchvision must be there. Trainings of
torchvision's networks on made-up images run one alone, seven by time-slicing, seven under an MPS daemon started by
hand, seven by `csub --pack`, and seven gres/mps jobs under one daemon and under seven; in every round each of them
once. Prints images a second over the time when all of them trained, SM activity over that time, and joules for a
thousand images.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.gpu.reader import UnitReading
from slurm_colloc.placement.speed import beside
from tests.gpu import slurm
from tests.gpu.mps import ILLEGAL

CHECKOUT = Path(__file__).resolve().parents[2]
TASKS, TRAINED_S = 7, 20.0
TRAIN = """
import json, os, sys, time, torch, torchvision
size, seconds, out = sys.argv[1], float(sys.argv[2]), sys.argv[3]
sizes = {"small": ("resnet18", 32, 32), "medium": ("resnet50", 64, 128), "large": ("resnet152", 224, 32)}
net, side, batch = sizes[size]
net = getattr(torchvision.models, net)(num_classes=10).cuda()
best = torch.optim.SGD(net.parameters(), 0.01)
x, y = torch.randn(batch, 3, side, side, device="cuda"), torch.randint(10, (batch,), device="cuda")
def step():
    best.zero_grad(); torch.nn.functional.cross_entropy(net(x), y).backward(); best.step()
for _ in range(20):
    step()
torch.cuda.synchronize()
began, done, marks = time.time(), 0, []
while time.time() - began < seconds:
    for _ in range(5 if size == "small" else 1):
        step()
        done += batch
    torch.cuda.synchronize()
    marks.append((time.time(), done))
with open(out + ".part", "w") as stream:
    json.dump({"marks": marks, "mib": torch.cuda.max_memory_allocated() >> 20,
               "threads": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")}, stream)
os.rename(out + ".part", out)
print("trained", done, "images")
"""
SITE = """schema = 1
cluster = "gpulab"
slurm_release = "22.05"
default_partition = "all"
policy = "auto"
[paths]
state = "{root}/state-of-colloc"
[sharing]
max_slowdown = 1.25
order = ["mps"]
[[partition]]
name = "all"
max_time_min = 30
[[pool]]
name = "h100"
nodes = "n1"
partitions = ["all"]
gpu_type = "h100"
gpus_per_node = 1
gpu_mem_mib = {mem_mib}
sm_count = {sm_count}
mps_per_gpu = 100
"""
# What csub decides about: alike, and a light one beside a heavy one.
PAIRS = {
    "two medium": ("medium", "medium"),
    "two large": ("large", "large"),
    "small and large": ("small", "large"),
    "medium and large": ("medium", "large"),
}
HINTS = {"small": "mem=1100M,sm=17", "medium": "mem=6G,sm=70", "large": "mem=9G,sm=90"}


class Trained(NamedTuple):
    """What the trainings of one phase did: images a second of each while all of them trained, and of the GPU then."""

    rates: tuple[float, ...]
    reading: UnitReading | None
    seconds: float


class Bench:
    """A folder of results, the sampler, and what is submitted how."""

    def __init__(self, root: Path, reader: NvmlReader) -> None:
        self.root, self.reader = root, reader
        self.program = root / "train.py"
        self.program.write_text(TRAIN)
        self._number = 0

    def fresh(self) -> Path:
        """Return a new folder for the results of one phase."""
        self._number += 1
        folder = self.root / f"phase{self._number}"
        folder.mkdir()
        return folder

    def script(self, folder: Path, size: str) -> Path:
        """Return a batch script of one training; its result is named by its task or job."""
        path = folder / "job.sh"
        name = "${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
        path.write_text(f"#!/bin/sh\n{sys.executable} {self.program} {size} {TRAINED_S} {folder}/{name}.json\n")
        return path

    def by_hand(self, sizes: Sequence[str], environment: Mapping[str, str]) -> Trained:
        """Start the trainings as a user would on the node."""
        folder = self.fresh()
        started = [
            subprocess.Popen(
                [sys.executable, str(self.program), size, str(TRAINED_S), f"{folder}/{number}.json"],
                env={**os.environ, **environment},
                stdout=subprocess.DEVNULL,
            )
            for number, size in enumerate(sizes)
        ]
        return self.watch(folder, len(sizes), lambda: any(one.poll() is None for one in started))

    def by_slurm(
        self, argv: Sequence[str], size: str, count: int, environments: Sequence[Mapping[str, str]]
    ) -> Trained:
        """Submit one job for each environment, and wait for all of them."""
        folder = self.fresh()
        script = self.script(folder, size)
        for environment in environments:
            done = subprocess.run(
                [*argv, "-D", str(folder), "-c", "2", str(script)],
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=True,
            )
            print(done.stdout.strip(), done.stderr.strip(), sep=" | ", flush=True)
        found = self.watch(folder, count, lambda: bool(slurm.ask("squeue", "-h").strip()))
        for path in folder.glob("*pack.out"):
            print(path.read_text(), flush=True)
        return found

    def watch(self, folder: Path, count: int, runs: Callable[[], bool]) -> Trained:
        """Wait for the end; read the GPU over the middle of the time in which all trained, as far as it can be told."""
        readings: list[tuple[float, UnitReading]] = []
        ended = threading.Event()

        def read() -> None:
            while not ended.wait(1.0):
                units, _ = self.reader.read()
                readings.append((time.time(), units[0]))

        thread = threading.Thread(target=read)
        thread.start()
        while runs():
            time.sleep(0.2)
        ended.set()
        thread.join()
        marks = [json.loads(path.read_text())["marks"] for path in sorted(folder.glob("*.json"))]
        if len(marks) != count:
            for path in folder.iterdir():
                if path.suffix == ".out":
                    print(path, path.read_text()[-2000:], flush=True)
            raise SystemExit(f"{len(marks)} of {count} trainings ended well, see above")
        since, until = max(one[0][0] for one in marks), min(one[-1][0] for one in marks)
        inside = [reading for at_s, reading in readings if since + 1 < at_s < until]
        return Trained(tuple(_rate(one, since, until) for one in marks), _mean(inside), until - since)


def _rate(marks: Sequence[tuple[float, int]], since: float, until: float) -> float:
    inside = [(at_s, done) for at_s, done in marks if since <= at_s <= until]
    (first_s, first), (last_s, last) = inside[0], inside[-1]
    return (last - first) / (last_s - first_s)


def _mean(readings: Sequence[UnitReading]) -> UnitReading | None:
    if not readings:
        return None

    def mean(name: str) -> float:
        return statistics.fmean(getattr(one, name) or 0.0 for one in readings)

    return readings[0]._replace(
        gpu_util_pct=mean("gpu_util_pct"),
        sm_active_pct=mean("sm_active_pct"),
        dram_active_pct=mean("dram_active_pct"),
        energy_j=mean("energy_j"),
        gpu_mem_used_mib=max(one.gpu_mem_used_mib or 0 for one in readings),
    )


@contextlib.contextmanager
def daemon(folder: Path, become: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    """Run an MPS daemon by hand, as the driver's manual says; ``become`` makes a command another user's."""
    folder.mkdir()
    own = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/p", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/l"}
    words = [f"{name}={value}" for name, value in own.items()]
    folder.chmod(0o1777)
    subprocess.run([*become, "mkdir", *own.values()], check=True)
    subprocess.run([*become, "env", *words, "nvidia-cuda-mps-control", "-d"], check=True)
    try:
        yield own
    finally:
        subprocess.run([*become, "env", *words, "nvidia-cuda-mps-control"], input=b"quit\n", check=False)
        shutil.rmtree(folder, ignore_errors=True)


def phases(bench: Bench) -> dict[str, Callable[[], Trained]]:
    """Return what is compared; each takes its own daemons down again."""
    csub = [sys.executable, "-m", "slurm_colloc.cli.csub", "--gres=gpu:1"]
    sbatch = ["sbatch", f"--gres=mps:{100 // TASKS}"]

    def under(count: int, daemons: int, run: Callable[[list[dict[str, str]]], Trained]) -> Trained:
        with contextlib.ExitStack() as stack:
            made = [stack.enter_context(daemon(Path(f"/tmp/mps{number}"))) for number in range(daemons)]
            return run([made[number % daemons] for number in range(count)])

    def pack(size: str) -> Trained:
        options = ["--pack", f"--array=0-{TASKS - 1}", f"--gpu-footprint={HINTS[size]}", "--time=3"]
        return bench.by_slurm([*csub, *options], size, TASKS, [{}])

    return {
        "one alone": lambda: bench.by_slurm(csub, "small", 1, [{}]),
        "seven in turns": lambda: bench.by_hand(["small"] * TASKS, {}),
        "seven under MPS by hand": lambda: under(1, 1, lambda made: bench.by_hand(["small"] * TASKS, made[0])),
        "csub --pack": lambda: pack("small"),
        "seven gres/mps jobs of one daemon": lambda: under(
            TASKS, 1, lambda made: bench.by_slurm(sbatch, "small", TASKS, made)
        ),
        "seven gres/mps jobs of seven daemons": lambda: under(
            TASKS, TASKS, lambda made: bench.by_slurm(sbatch, "small", TASKS, made)
        ),
        **{f"{size} alone": partial(bench.by_slurm, csub, size, 1, [{}]) for size in ("medium", "large")},
        **{f"{name} in turns": partial(bench.by_hand, sizes, {}) for name, sizes in PAIRS.items()},
        **{
            f"{name} under MPS by hand": partial(under, 1, 1, partial(_by_hand_under, bench, sizes))
            for name, sizes in PAIRS.items()
        },
    }


def _by_hand_under(bench: Bench, sizes: Sequence[str], made: Sequence[Mapping[str, str]]) -> Trained:
    return bench.by_hand(sizes, made[0])


GREEDY = "import torch; held = []\nwhile True: held.append(torch.zeros(2**26, dtype=torch.uint8, device='cuda'))"


ACCIDENTS = {"out of memory": GREEDY, "illegal access": f"import time; time.sleep(15)\n{ILLEGAL}", "killed": ""}


def accidents(bench: Bench, names: Sequence[str]) -> None:
    """Let one of seven tasks run out of memory, fault, or be killed; print what the packs say of it."""
    for name in names:
        program, folder = ACCIDENTS[name], bench.fresh()
        (folder / "bad.py").write_text(program)
        train = f"{sys.executable} {bench.program} small {TRAINED_S} {folder}"
        lines = [f"{train}/{number}.json" for number in range(TASKS)]
        if program:
            lines[3] = f"{sys.executable} {folder}/bad.py"
        (folder / "tasks.txt").write_text("\n".join(lines) + "\n")
        argv = [sys.executable, "-m", "slurm_colloc.cli.csub", "pack", "--gres=gpu:1", "-c", "2", "-D", str(folder)]
        argv += ["--time=3", f"--gpu-footprint={HINTS['small']}", str(folder / "tasks.txt")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        print(name, "|", done.stdout.strip(), done.stderr.strip(), flush=True)
        if name == "killed":
            time.sleep(TRAINED_S)
            for path in Path("/proc").glob("[0-9]*/environ"):
                with contextlib.suppress(OSError):
                    if (
                        b"\0CSUB_PACK_TASK=4\0" in path.read_bytes()
                        and b"train.py" in (path.parent / "cmdline").read_bytes()
                    ):
                        print("kills", path, flush=True)
                        os.kill(int(path.parent.name), signal.SIGKILL)
        while slurm.ask("squeue", "-h").strip():
            time.sleep(0.3)
        print("trained to the end:", sorted(path.stem for path in folder.glob("*.json")))
        for path in folder.glob("*pack.out"):
            print(path.read_text(), flush=True)


def ready(packages: Path) -> Bench:
    """Start Slurm from these packages, with a site for csub, and return where to measure."""
    root = Path("/tmp/gpulab")
    root.mkdir()
    # Jobs start Python with -I, which hears no PYTHONPATH.
    Path(sysconfig.get_path("purelib"), "slurm_colloc-checkout.pth").write_text(f"{CHECKOUT}\n")
    slurm.unpack(packages)
    slurm.start(root)
    reader = NvmlReader()
    (unit,) = reader.units()
    reader.read()
    site = root / "site.toml"
    site.write_text(SITE.format(root=root, mem_mib=unit.mem_total_mib, sm_count=unit.sm_count))
    os.environ["COLLOC_CONF"] = str(site)
    return Bench(root, reader)


def main() -> None:
    """Run the phases in turns and print each round, and what they come to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--accidents", default="", help=f"let tasks fail beside others: {', '.join(ACCIDENTS)}")
    asked = parser.parse_args()
    bench = ready(asked.folder)
    found: dict[str, list[Trained]] = {}
    chosen = {name: run for name, run in phases(bench).items() if not asked.only or name in asked.only.split(",")}
    for number in range(asked.rounds):
        for name, run in chosen.items():
            trained = run()
            found.setdefault(name, []).append(trained)
            say(phase=name, round=number, **_figures(trained))
    accidents(bench, [name for name in asked.accidents.split(",") if name])
    if not found:
        return
    alone = statistics.median(sum(one.rates) for one in found[next(iter(found))])
    for name, rounds in found.items():
        totals = sorted(sum(one.rates) for one in rounds)
        say(
            phase=name,
            images_a_s=statistics.median(totals),
            spread=[totals[0], totals[-1]],
            times_first=statistics.median(totals) / alone,
        )
    compare(found)


def compare(found: Mapping[str, Sequence[Trained]]) -> None:
    """Print each pair's slowdowns beside what csub's formula foretells from the two alone."""
    alone = {"small": found.get("one alone"), "medium": found.get("medium alone"), "large": found.get("large alone")}
    for name, sizes in PAIRS.items():
        known = [rounds for size in sizes if (rounds := alone[size])]
        for how in ("in turns", "under MPS by hand"):
            rounds = found.get(f"{name} {how}", ())
            if len(known) < len(sizes) or not rounds:
                continue
            speeds = [statistics.median(sum(one.rates) for one in of) for of in known]
            active = [statistics.median(one.reading.sm_active_pct or 0.0 for one in of if one.reading) for of in known]
            say(
                pair=name,
                how=how,
                slowdowns=[
                    [round(speed / rate, 2) for speed, rate in zip(speeds, one.rates, strict=True)] for one in rounds
                ],
                sm_active_pct_alone=[round(value, 1) for value in active],
                foretold=[round(beside(own, sum(active) - own).expected, 2) for own in active],
                images_a_s_over_alone=[
                    round(sum(rate / speed for speed, rate in zip(speeds, one.rates, strict=True)), 2) for one in rounds
                ],
            )


def _figures(trained: Trained) -> dict[str, object]:
    total = sum(trained.rates)
    reading = trained.reading
    return {
        "images_a_s": total,
        "images_a_s_of_each": [round(rate) for rate in trained.rates],
        "watched_s": trained.seconds,
        "sm_active_pct": reading and reading.sm_active_pct,
        "gpu_util_pct": reading and reading.gpu_util_pct,
        "dram_active_pct": reading and reading.dram_active_pct,
        "gpu_mem_mib": reading and reading.gpu_mem_used_mib,
        "joules_a_1000_images": reading and 1000 * (reading.energy_j or 0.0) / total,
    }


def say(**figures: object) -> None:
    """Print one line of JSON, numbers short enough to read."""
    short = {name: round(value, 2) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps(short), flush=True)


if __name__ == "__main__":
    main()
