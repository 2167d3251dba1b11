# SPDX-License-Identifier: Apache-2.0
"""What the talks' pair and tools do on one GPU: `python -m tests.gpu.talk FOLDER [--minutes 5] [--cpu]`.

One NVIDIA GPU with MPS, PyTorch, torchvision, tensorsocket 0.0.5 and ncu that nobody else uses. No setting of the card
is changed. Rows are appended to FOLDER/talk.csv and FOLDER/profilers.csv as they come. With --cpu all is tried in tiny
sizes without a GPU, and nothing is read.

pair       a DLRM with 28 GB of tables beside ResNet152: each alone, both in turns (no MPS), both under one MPS daemon,
           so many rounds, every other one in the opposite order. All four processes stay and wait until they are asked.
loaders    four trainings of ResNet18 under the daemon, on four cores in all, that learn from JPEGs on disk: each with a
           loader of its own (one process that decodes), and all from one shared loader (four that decode), as in
           docs/how-to/tensorsocket.md. A step is a batch of BATCH images. Where batches in GPU memory do not come, the
           shared loader keeps them in host memory.
profilers  ncu and PyTorch's profiler on a small training: on the whole GPU, as a client of the daemon with a quarter of
           the threads, and as such beside a training.

talk_h200.csv and talk_profilers_h200.csv are of one H200 (driver 580.159.04, 16 cores, ncu 2025.3.1, PyTorch 2.11) of
29 November 2026. The last row of the profilers is of the two commands of docs/how-to/profile.md, by hand, on another
machine of the kind.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.gpu import footprint_job
from tests.gpu.footprints import add_rows, read_table
from tests.gpu.neighbours import COLUMNS, RUNS, Blind, Client, Run, Watch, await_ready, measure, with_slowdowns
from tests.gpu.slowdowns import mps_daemon

if TYPE_CHECKING:
    from tests.gpu.kinds import Program

PAIR = {
    "dlrm": "--library own --model dlrm --batch-size 512 --task train --optimizer sgd --table-rows 4250000",
    "resnet152": "--library torchvision --model resnet152 --batch-size 36 --task train --optimizer sgd",
}
TINY = {"dlrm": " --table-rows 99 --batch-size 8", "resnet152": " --model resnet18 --batch-size 2 --image-size 32"}
ALONE, IN_TURNS, UNDER_MPS = "alone", "in turns", "under MPS"
EACH, ONE, ONE_ON_HOST = "a loader each", "one loader", "one loader, batches in host memory"
WHOLE, SHARE, BESIDE = "whole GPU", "share", "share beside a training"
TRAININGS, BATCH, SIDE, FILES, LOADER_CORES, RUNS_AT_MOST, QUARTER = 4, 64, 128, 256, 4, 6, "25"
PROFILER_COLUMNS = ("tool", "how", "status", "kernels", "kernels_us", "seconds", "said")
# Windows of the pair and of the loaders; what a loader has kept ready is used up before its window.
PAIR_S, LOADERS_S, USES_UP_S, STARTS_S, LOADERS_START_S, PROFILER_S = 10.0, 10.0, 5.0, 60.0, 35.0, 40.0
# What is left for the parts that follow.
AFTER_PAIR_S, AFTER_LOADERS_S = 165.0, 65.0


class Bench(NamedTuple):
    """Where and how long something is measured."""

    folder: Path
    device: str
    watch: Any
    until_s: float
    scale: float

    def left(self, reserved_s: float, needed_s: float) -> bool:
        """Return whether there is time for something and what follows."""
        return time.monotonic() + self.scale * (reserved_s + needed_s) < self.until_s

    def windows(self, run: Run, clients: Sequence[Client], seconds: float) -> list[dict[str, Any]]:
        """Measure a run, keep and print its rows, and return them."""
        rows = measure(run, {one.name: one for one in clients}, self.watch, self.scale * seconds)
        add_rows(self.folder / "talk.csv", COLUMNS, rows)
        for row in rows:
            told = [f"{row[name]:.3g}" if row.get(name) else "-" for name in ("steps_per_s", "spread_pct")]
            told += [f"{row[name]:.0f}" if row.get(name) else "-" for name in ("sm_active_pct", "gpu_mem_used_mib")]
            left_s = self.until_s - time.monotonic()
            print(f"{left_s:4.0f} s left", run.part, run.run, row["program"], *told, row["state"], flush=True)
        return rows


def _known(words: str, tiny: str) -> Program:
    """Return a program of footprint_job as a Client runs it."""
    from tests.gpu.kinds import Program

    def make(device: str, more: str = "") -> Callable[[], None]:
        return footprint_job.make_step(footprint_job.parse((words + more).split()), device=device)

    return Program(make, {"more": tiny})


def _cores(first: int, count: int) -> list[int]:
    own = sorted(os.sched_getaffinity(0))
    return [own[(first + number) % len(own)] for number in range(count)]


def _pair_clients(device: str) -> list[Client]:
    return [
        Client(name, _known(words, TINY[name]), _cores(2 * number, 2), device)
        for number, (name, words) in enumerate(PAIR.items())
    ]


def pair(bench: Bench, plain: Sequence[Client], rounds: int) -> None:
    """Run the pair, of which processes outside of MPS are there already."""
    served = _pair_clients(bench.device)
    if await_ready([*plain, *served], STARTS_S):
        together = tuple(PAIR)
        cases = [(Run(ALONE, "", (name,)), plain) for name in PAIR]
        cases += [(Run(IN_TURNS, "", together), plain), (Run(UNDER_MPS, "", together), served)]
        for number in range(1, rounds + 1):
            for run, clients in cases if number % 2 else cases[::-1]:
                if bench.left(AFTER_PAIR_S, PAIR_S):
                    bench.windows(run._replace(run=str(number)), clients, PAIR_S)
    for client in [*plain, *served]:
        client.end()


class Images:
    """Pictures on disk, each decoded, cropped and scaled when it is asked for; an epoch does not end here."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("*.jpeg"))

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, number: int) -> tuple[Any, int]:
        import numpy
        import torch
        from PIL import Image

        with Image.open(self._paths[number % len(self._paths)]) as image:
            left, top = (random.uniform(0, 0.1 * side) for side in image.size)
            box = (left, top, left + 0.9 * image.width, top + 0.9 * image.height)
            small = image.convert("RGB").resize((SIDE, SIDE), box=box)
        return torch.from_numpy(numpy.array(small)).permute(2, 0, 1).contiguous(), number % footprint_job.CLASSES


def _write_images(folder: Path) -> None:
    import numpy
    from PIL import Image

    chance = numpy.random.default_rng(0)
    folder.mkdir()
    for number in range(FILES):
        small = chance.integers(0, 255, (94, 125, 3), dtype=numpy.uint8)
        Image.fromarray(small).resize((500, 375)).save(folder / f"{number}.jpeg", quality=90)
    sizes = [path.stat().st_size for path in folder.iterdir()]
    print(f"{FILES} images of {statistics.mean(sizes) / 1000:.0f} kB", flush=True)


def _loader(folder: Path, processes: int) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(Images(folder), batch_size=BATCH, shuffle=True, num_workers=processes)


def _training(batches: Callable[[], Iterator[Any]]) -> Program:
    """Return a training of ResNet18 by batches that come from somewhere."""
    import torch
    import torchvision

    from tests.gpu.kinds import Program

    def make(device: str, every: int = 1) -> Callable[[], None]:
        net = torchvision.models.resnet18(num_classes=footprint_job.CLASSES).to(device)
        best, given = torch.optim.SGD(net.parameters(), 0.01), batches()

        def step() -> None:
            images, labels = next(given)
            values = images.to(device, non_blocking=True)[..., ::every, ::every].float().div_(255)
            best.zero_grad()
            torch.nn.functional.cross_entropy(net(values), labels.to(device)).backward()
            best.step()

        return step

    return Program(make, {"every": 4}, sync_every=4)


def _own_batches(folder: Path) -> Iterator[Any]:
    return iter(_loader(folder, 1))


def _shared_batches(ports: Sequence[int]) -> Iterator[Any]:
    from tensorsocket import TensorConsumer

    return iter(TensorConsumer(port=ports[0], ack_port=ports[1], heart_ports=tuple(ports[2:]), batch_size=BATCH))


def _produce(folder: Path, ports: Sequence[int], on_host: bool) -> None:
    """Be the shared loader, for ever."""
    os.setpgid(0, 0)
    os.sched_setaffinity(0, _cores(0, LOADER_CORES))
    if on_host:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch
    from tensorsocket import TensorProducer

    torch.set_num_threads(1)
    images = _loader(folder, LOADER_CORES)
    producer = TensorProducer(
        images, port=ports[0], ack_port=ports[1], heart_ports=tuple(ports[2:]), producer_batch_size=2
    )
    while len(producer.hb.consumers) < TRAININGS:
        time.sleep(0.1)
    for _ in producer:
        pass


@contextlib.contextmanager
def _shared_loader(folder: Path, on_host: bool) -> Iterator[list[int]]:
    free = [socket.create_server(("", 0)) for _ in range(4)]
    ports = [one.getsockname()[1] for one in free]
    for one in free:
        one.close()
    process = get_context("fork").Process(target=_produce, args=(folder, ports, on_host))
    process.start()
    try:
        yield ports
    finally:
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(process.pid or 0, signal.SIGKILL)
        process.join()


def loaders(bench: Bench) -> None:
    """Run four trainings with a loader each and with one for all, twice, and what did not come once more."""
    folder, shared, todo, done = bench.folder / "images", ONE, [ONE, EACH, EACH, ONE], Counter[str]()
    _write_images(folder)
    while todo and done.total() < RUNS_AT_MOST and bench.left(AFTER_LOADERS_S, LOADERS_S + USES_UP_S + 8):
        wanted = todo.pop(0)
        part = shared if wanted == ONE else wanted
        done[part] += 1
        with contextlib.ExitStack() as stack:
            batches = partial(_own_batches, folder)
            if wanted == ONE:
                ports = stack.enter_context(_shared_loader(folder, part == ONE_ON_HOST))
                batches = partial(_shared_batches, ports)
            names = [f"training {number}" for number in range(1, TRAININGS + 1)]
            clients = [Client(name, _training(batches), _cores(0, LOADER_CORES), bench.device) for name in names]
            for client in clients:
                client.ask(RUNS)
            if await_ready(clients, LOADERS_START_S):
                time.sleep(bench.scale * USES_UP_S)
                rows = bench.windows(Run(part, str(done[part]), tuple(names)), clients, LOADERS_S)
                if any(row["state"] != "COMPLETED" for row in rows):
                    todo.append(wanted)
            elif part == ONE:
                shared = ONE_ON_HOST
                todo.append(ONE)
            for client in clients:
                client.end()
    shutil.rmtree(folder)


PROFILED = """
import json, tempfile, torch
n = torch.nn
net = n.Sequential(n.Conv2d(3, WIDTH, 3), n.ReLU(), n.Conv2d(WIDTH, WIDTH, 3), n.ReLU(),
                   n.AdaptiveAvgPool2d(1), n.Flatten(), n.Linear(WIDTH, 10)).to("DEVICE")
best = torch.optim.SGD(net.parameters(), 0.01)
x, y = torch.randn(64, 3, 64, 64, device="DEVICE"), torch.randint(10, (64,), device="DEVICE")
def step():
    best.zero_grad(); n.functional.cross_entropy(net(x), y).backward(); best.step()
"""
# Each ends with a line of what it saw, as JSON; ncu prints a table instead.
PLAIN = f"{PROFILED}for _ in range(30): step()\nprint(float(net(x).sum()))\n"
BY_TORCH = f"""{PROFILED}
with torch.profiler.profile(schedule=torch.profiler.schedule(wait=10, warmup=2, active=5, repeat=1)) as profiler:
    for _ in range(20):
        step()
        profiler.step()
# It writes beside the file and renames: of /dev/null that would make a plain file, for everybody.
with tempfile.TemporaryDirectory() as folder:
    profiler.export_chrome_trace(folder + "/trace.json")
seen = [one.device_time_total for one in profiler.events() if one.device_type == torch.autograd.DeviceType.CUDA
        and not one.name.startswith(("ProfilerStep", "Optimizer"))]
print(json.dumps({{"kernels": len(seen), "kernels_us": sum(seen)}}))
"""
NCU = "ncu --clock-control none --launch-skip 100 --launch-count 5 --csv --page raw"
TOOLS = {"ncu": (NCU, PLAIN), "torch.profiler": ("", BY_TORCH)}


def seen_by_ncu(text: str) -> dict[str, Any]:
    """Return what ncu's table says: kernels and their time in microseconds."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    units, *kernels = csv.DictReader(lines) if len(lines) > 1 else ({},)
    name = "gpu__time_duration.sum"
    scale = {"ns": 0.001, "us": 1.0, "ms": 1000.0}.get(units.get(name, ""), 1.0)
    times = [scale * float(row[name].replace(",", "")) for row in kernels]
    return {"kernels": len(times), "kernels_us": sum(times)}


def _profiled(bench: Bench, tool: str, how: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run one profiler, keep all that it says, and return its row."""
    words, program = TOOLS[tool]
    began_s, status, text = time.monotonic(), "", ""
    program = program.replace("DEVICE", bench.device).replace("WIDTH", "256" if bench.device == "cuda" else "4")
    argv = [*words.split(), sys.executable, "-c", program]
    try:
        process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
    except OSError as error:
        status, text = "not there", str(error)
    else:
        try:
            text, status = process.communicate(timeout=PROFILER_S)[0], str(process.returncode)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, status = process.communicate()[0], "no end"
    with (bench.folder / "profilers.log").open("a") as log:
        log.write(f"--- {tool}, {how}: {status}\n{text}\n")
    if tool == "ncu":
        seen = seen_by_ncu(text)
    else:
        found = re.search(r"^\{.*\}$", text, re.MULTILINE)
        seen = json.loads(found[0]) if found else {"kernels": 0, "kernels_us": 0.0}
    said = [line for line in text.splitlines() if re.match(r"==ERROR==|\w*Error\b", line)]
    seconds = time.monotonic() - began_s
    return {"tool": tool, "how": how, "status": status, **seen, "seconds": seconds, "said": " | ".join(said)[:500]}


def profilers(bench: Bench) -> None:
    """Try each profiler on the whole GPU, on a share, and on a share beside a training."""
    words = "--library torchvision --model resnet18 --batch-size 64 --task train --optimizer sgd"
    neighbour = Client("neighbour", _known(words, TINY["resnet152"]), _cores(4, 2), bench.device)
    share = {**os.environ, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": QUARTER}
    alone = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
    await_ready([neighbour], STARTS_S)
    for how, environment in ((WHOLE, alone), (SHARE, share), (BESIDE, share)):
        if how == BESIDE:
            neighbour.ask(RUNS)
        for tool in reversed(TOOLS):
            if bench.left(0, 15):
                row = _profiled(bench, tool, how, environment)
                add_rows(bench.folder / "profilers.csv", PROFILER_COLUMNS, [row])
                print(*row.values(), flush=True)
    neighbour.end()


def slowdowns(rows: Sequence[Mapping[str, str]], how: str, program: str) -> dict[str, float]:
    """Return by round how many times as long as alone, on average, a program of the pair took."""
    return {row["run"]: float(row["slowdown"]) for row in rows if (row["part"], row["program"]) == (how, program)}


def pair_table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the lines of the table of the pair: each round's slowdowns, and the work of both in times that of one."""
    lines = []
    for how in (IN_TURNS, UNDER_MPS):
        first, second = (slowdowns(rows, how, name) for name in PAIR)
        for number in sorted(first):
            work = 1 / first[number] + 1 / second[number]
            lines.append(f"| {how} | {number} | {first[number]:.2f} | {second[number]:.2f} | {work:.2f} |")
    return lines


def loader_table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the lines of the table of loaders: images a second of all trainings, and the GPU's load, of each run."""
    found: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for row in rows:
        if row["part"] in (EACH, ONE, ONE_ON_HOST):
            found.setdefault((row["part"], row["run"]), []).append(row)
    return [
        f"| {part} | {number} | {BATCH * sum(float(row['steps_per_s']) for row in of):,.0f} | "
        f"{float(of[0]['sm_active_pct']):.0f} % | {float(of[0]['gr_active_pct']):.0f} % |"
        for (part, number), of in sorted(found.items())
        if all(row["steps_per_s"] for row in of)
    ]


def report(folder: Path) -> None:
    """Print what was found."""
    rows = read_table(folder / "talk.csv", COLUMNS)
    alone = [f"{name} {slowdowns(rows, ALONE, name)}" for name in PAIR]
    print(*alone, *pair_table(rows), *loader_table(rows), sep="\n")
    for row in read_table(folder / "profilers.csv", PROFILER_COLUMNS):
        print(*row.values())


def main() -> None:
    """Measure all, as far as the time goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=5.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="no GPU: tiny sizes on the CPU, and no readings")
    given = parser.parse_args()
    until_s = time.monotonic() + given.minutes * 60
    import tensorsocket  # once, for all
    import torch
    import torchvision

    device, daemon = ("cpu", contextlib.nullcontext()) if given.cpu else ("cuda", mps_daemon())
    given.folder.mkdir(parents=True, exist_ok=True)
    print([one.__version__ for one in (torch, torchvision)], tensorsocket.__name__, flush=True)
    plain = _pair_clients(device)
    with daemon:
        watch = Blind() if given.cpu else Watch()
        bench = Bench(given.folder, device, watch, until_s, 0.5 if given.cpu else 1.0)
        pair(bench, plain, given.rounds)
        loaders(bench)
        profilers(bench)
    path = given.folder / "talk.csv"
    rows = list(with_slowdowns(read_table(path, COLUMNS)))
    path.unlink()
    add_rows(path, COLUMNS, rows)
    report(given.folder)
    os._exit(0)


if __name__ == "__main__":
    main()
