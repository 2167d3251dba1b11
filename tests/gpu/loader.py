# SPDX-License-Identifier: Apache-2.0
"""What one loader for all tasks of a pack saves: `python -m tests.gpu.loader FOLDER [--rounds N] [--pause SECONDS]`.

FOLDER and the machine are those of tests/gpu/slurm.py; PyTorch and torchvision must be there. FOLDER/wheels holds the
wheels of tensorsocket 0.0.5 (pure Python, 14 kB), of tornado (abi3, 0.5 MB) and of pyzmq (0.9 MB; for Python 3.11 one
of cp311, from 3.12 on cp312-abi3), all for Linux x86-64: `pip download --no-deps --only-binary :all: --python-version
3.12 --platform manylinux_2_28_x86_64 tensorsocket==0.0.5 tornado pyzmq`. They are unpacked, nothing is installed.

Four trainings of one pack decode and change the same JPEGs: each with a loader of its own, and all from one, with the
same cores in all. Each line of JSON: images a second trained on while all four trained, the cores that were busy then,
and batches whose images were not those of their labels. With --pause one of four stops reading for so long.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.gpu import slurm
from tests.gpu.pack import Bench, ready, say

TASKS, TRAINED_S, CORES = 4, 20.0, 16
# Of the shared loader, and of a task beside it.
LOADER_CORES, CORES_BESIDE = 8, 2
HINT = "--gpu-footprint=mem=4G,sm=20"
# The number of an image is written into its first pixels, so that images can be told to be those of their labels.
DATA = """
import io, os, torch, torchvision
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
SIDE, BATCH, IMAGES = 128, 32, 2048
class Images(Dataset):
    def __init__(self):
        make = torch.Generator().manual_seed(1)
        low = torch.randint(0, 256, (64, 3, 16, 16), generator=make, dtype=torch.uint8)
        large = torch.nn.functional.interpolate(low.float(), size=256, mode="bilinear").byte()
        self.jpegs = []
        for one in large:
            out = io.BytesIO()
            transforms.functional.to_pil_image(one).save(out, "JPEG", quality=90)
            self.jpegs.append(out.getvalue())
        self.change = transforms.Compose([
            transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.4, 0.4, 0.4), transforms.ToTensor(),
        ])
    def __len__(self):
        return IMAGES
    def __getitem__(self, number):
        from PIL import Image
        image = self.change(Image.open(io.BytesIO(self.jpegs[number % 64])).convert("RGB"))
        image[:, 0, 0] = float(number)
        return image, torch.tensor(number)
def loader(workers):
    torch.set_num_threads(1)
    return DataLoader(Images(), BATCH, shuffle=True, num_workers=workers, persistent_workers=True, drop_last=True)
"""
PRODUCE = """
import sys
from data import loader
from csub_loader import Producer
if __name__ == "__main__":
    Producer(loader(int(sys.argv[1]))).serve()
"""
TRAIN = """
import json, os, sys, time, torch, torchvision
from data import BATCH, loader
workers, seconds, out, pause = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], float(sys.argv[4])
def main():
    net = torchvision.models.resnet18(num_classes=10).cuda()
    best = torch.optim.SGD(net.parameters(), 0.01)
    if workers:
        batches = loader(workers)
    else:
        from csub_loader import Consumer
        batches = Consumer(BATCH)
    began, done, wrong, devices, marks, paused = 0.0, 0, 0, set(), [], not pause
    while not began or time.time() - began < seconds:
        for x, numbers in batches:
            devices.add(x.device.type)
            x, numbers = x.cuda(non_blocking=True), numbers.cuda(non_blocking=True)
            wrong += int((x[:, 0, 0, 0].round().long() != numbers).any())
            best.zero_grad()
            torch.nn.functional.cross_entropy(net(x / 255), numbers % 10).backward()
            best.step()
            torch.cuda.synchronize()
            now = time.time()
            began = began or now
            done += BATCH
            marks.append((now, done))
            if not paused and now - began > 3:
                paused = True
                time.sleep(pause)
            if now - began >= seconds:
                break
    with open(out + ".part", "w") as stream:
        json.dump({"marks": marks, "wrong": wrong, "devices": sorted(devices)}, stream)
    os.rename(out + ".part", out)
if __name__ == "__main__":
    main()
"""


def unpack_wheels(folder: Path, into: Path) -> None:
    """Put what the wheels hold where Python of all jobs finds it.

    Raises:
        SystemExit: one is missing, or does not fit this machine.
    """
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(into)
    os.environ["PYTHONPATH"] = ":".join(filter(None, [str(into), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, "-c", "import tensorsocket"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the wheels in {folder} do not serve this Python: {done.stderr.strip().splitlines()[-1]}")


class Cores:
    """Reads once a second how long the processes of this machine have run on a core, those of this one apart."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, dict[int, int]]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Cores:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._ended.wait(1.0):
            self.seen.append((time.time(), ticks()))

    def busy(self, since: float, until: float) -> float | None:
        """Return how many cores were busy on average between two times, None where that was too short."""
        inside = [one for one in self.seen if since <= one[0] <= until]
        if len(inside) < 2:
            return None
        (first_s, before), (last_s, after) = inside[0], inside[-1]
        ran = sum(count - before.get(pid, 0) for pid, count in after.items())
        return ran / os.sysconf("SC_CLK_TCK") / (last_s - first_s)


def ticks() -> dict[int, int]:
    """Return the ticks that each process but this one has run."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = int(words[11]) + int(words[12])
    found.pop(os.getpid(), None)
    return found


def phases(bench: Bench, pause_s: float) -> Iterator[tuple[str, list[str], int]]:
    """Yield the name of each way to load, csub's options for it, and how many workers each task has."""
    each = CORES // TASKS
    yield "four loaders", ["-c", str(each)], each - 1
    producer = f"{sys.executable} {bench.root}/producer.py {LOADER_CORES - 1}"
    shared = ["-c", str(CORES_BESIDE), f"--shared-loader={producer}", f"--loader-cpus={LOADER_CORES}"]
    yield "one loader" + (f", one pauses for {pause_s:g} s" if pause_s else ""), shared, 0


def run(bench: Bench, name: str, options: list[str], workers: int, pause_s: float, seconds: float) -> None:
    """Run one phase and print what it came to, or what went wrong."""
    folder = bench.fresh()
    script = folder / "job.sh"
    result = f"{folder}/$SLURM_ARRAY_TASK_ID.json"
    pause = f"$([ $SLURM_ARRAY_TASK_ID = 0 ] && echo {pause_s if not workers else 0} || echo 0)"
    script.write_text(
        f'#!/bin/sh\nexec {sys.executable} {bench.root}/train.py {workers} {seconds} "{result}" {pause}\n'
    )
    csub = [sys.executable, "-m", "slurm_colloc.cli.csub", "--gres=gpu:1", "--pack", f"--pack-tasks={TASKS}", HINT]
    argv = [*csub, f"--array=0-{TASKS - 1}", "--time=2", "-D", str(folder), *options, str(script)]
    with Cores() as cores:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        print(done.stdout.strip(), done.stderr.strip(), sep=" | ", flush=True)
        try:
            trained = bench.watch(folder, TASKS, lambda: bool(slurm.ask("squeue", "-h").strip()))
        except SystemExit as error:
            say(phase=name, failed=str(error))
            return
        finally:
            for path in sorted(folder.glob("*.pack.out")):
                print(path.read_text(), flush=True)
    told = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    since, until = max(one["marks"][0][0] for one in told), min(one["marks"][-1][0] for one in told)
    reading = trained.reading
    say(
        phase=name,
        images_a_s=sum(trained.rates),
        slowest=min(trained.rates),
        fastest=max(trained.rates),
        watched_s=trained.seconds,
        cores_busy=cores.busy(since, until),
        batches_wrong=sum(one["wrong"] for one in told),
        batches=sum(len(one["marks"]) for one in told),
        tensors_on=sorted({device for one in told for device in one["devices"]}),
        sm_active_pct=reading and reading.sm_active_pct,
        gpu_mem_mib=reading and reading.gpu_mem_used_mib,
    )


def main() -> None:
    """Run both ways in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0)
    asked = parser.parse_args()
    unpack_wheels(asked.folder / "wheels", Path("/tmp/gpulab-wheels"))
    bench = ready(asked.folder)
    for name, text in (("data.py", DATA), ("producer.py", PRODUCE), ("train.py", TRAIN)):
        (bench.root / name).write_text(text)
    for _ in range(asked.rounds):
        for name, options, workers in phases(bench, asked.pause):
            run(bench, name, options, workers, asked.pause, TRAINED_S + asked.pause)


if __name__ == "__main__":
    main()
