# SPDX-License-Identifier: Apache-2.0
"""How fast jobs run on a part of a GPU's SMs: `python -m tests.gpu.slowdowns TABLE.csv [--minutes 9]`.

One NVIDIA GPU with MPS, PyTorch, torchvision, timm and transformers, which nobody else uses. Each configuration of
tests/gpu/footprint_job.py runs once on the whole GPU and once under each of LIMITS_PCT as the active thread percentage
of an MPS client, alone. A row has the steps per second and what GPM and NVML said meanwhile. Each point is a process:
the limit holds from the beginning of CUDA on. Libraries are imported once, all networks are built on the host before
anything is measured (what works on the host meanwhile slows a job of small kernels by half), and processes are forked
before CUDA begins. Rows are appended as they come; what is there is not run again. No setting of the card is changed.

A job that waits for its host shares cores with strangers: its points differ by 15 % from time to time. Each
configuration therefore keeps to two cores, and those of which a kernel runs for less than BUSY_PCT of the time are
measured PASSES times; `best` takes the fastest row of each point, for what interferes only slows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import select
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.gpu import footprint_job
from tests.gpu.footprints import add_rows, read_table

# Of 132 SMs an H100's slices have 16 (1g), 32 (2g), 60 (3g) and 132 (7g); 92 is a share above a half.
LIMITS_PCT = (100, 70, 46, 25, 13)
COLUMNS = (
    *("command", "gpu_model", "limit_pct", "sm_count", "state", "steps_per_s", "step_spread_pct", "gpu_util_pct"),
    *("gr_active_pct", "sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct", "power_w"),
    "gpu_mem_used_mib",
)
BUSY_PCT, PASSES = 80.0, 3
_CONTROL = "nvidia-cuda-mps-control"
_WARM_UP, _LEAST_STEPS, _PARTS = 4, 6, 5
_WHOLE_S, _PIECE_S, _LONGEST_S = 1.1, 0.65, 45.0


def plan() -> list[str]:
    """Return the commands, the kinds of job taking turns, so that a run cut short has some of each."""
    kinds = (_cifar(), _images(), _texts(), _starved(), _others(), _inference())
    return [one for turn in itertools.zip_longest(*kinds) for one in turn if one]


def _command(library: Any, model: Any, batch: Any, how: str, **more: object) -> str:
    task, dtype, optimizer = how.split()
    options = {"library": library, "model": model, "batch_size": batch, "task": task, "dtype": dtype}
    options |= {"optimizer": optimizer} if task == "train" else {}
    pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in (options | more).items()]
    return shlex.join(("python", "train.py", *itertools.chain(*pairs)))


def _cifar() -> list[str]:
    runs = [("resnet18", 32), ("mobilenet_v3_small", 128), ("resnet34", 64), ("efficientnet_b0", 64), ("resnet18", 128)]
    runs += [("resnet18", 512), ("mobilenet_v3_small", 32), ("efficientnet_b0", 128), ("resnet34", 128)]
    return [
        _command("torchvision", model, batch, "train fp32 sgd", image_size=32, sync_every=1 + 9 * (i % 2))
        for i, (model, batch) in enumerate(runs)
    ]


def _images() -> list[str]:
    runs = [
        *[("torchvision", "resnet50", 32, "fp32 sgd"), ("torchvision", "mobilenet_v2", 64, "bf16 adam")],
        *[("torchvision", "vgg16", 32, "fp32 sgd"), ("torchvision", "efficientnet_b0", 64, "bf16 sgd")],
        *[("torchvision", "resnet50", 64, "bf16 adam"), ("torchvision", "vit_b_16", 32, "bf16 adam")],
        *[("timm", "convnext_tiny", 32, "bf16 adam"), ("torchvision", "densenet121", 32, "fp32 sgd")],
        *[("torchvision", "inception_v3", 32, "fp32 sgd"), ("timm", "xception41", 32, "bf16 sgd")],
        *[("timm", "vit_small_patch16_224", 32, "fp32 adam"), ("torchvision", "resnet50", 16, "bf16 sgd")],
        *[("timm", "mixer_b16_224", 16, "bf16 adam"), ("torchvision", "swin_t", 16, "bf16 adam")],
        *[("torchvision", "mobilenet_v2", 32, "fp32 sgd"), ("torchvision", "resnet18", 64, "fp32 sgd")],
    ]
    return [
        _command(
            library,
            model,
            batch,
            f"train {how}",
            image_size=299 if "inception" in model else 224,
            sync_every=1 + 9 * (i % 2),
        )
        for i, (library, model, batch, how) in enumerate(runs)
    ]


def _texts() -> list[str]:
    runs = [("bert", 8, 128, "bf16 adam"), ("gpt2", 4, 256, "fp32 adam"), ("bert-small", 32, 128, "bf16 adam")]
    runs += [("gpt2-medium", 2, 256, "bf16 adam"), ("xlnet", 8, 128, "fp32 adam"), ("bert", 32, 256, "bf16 adam")]
    runs += [("gpt2", 2, 128, "bf16 adam"), ("bert-small", 8, 64, "fp32 adam"), ("gpt2-large", 2, 512, "bf16 adam")]
    return [_command("transformers", m, b, f"train {how}", seq_len=s, sync_every=10) for m, b, s, how in runs]


def _starved() -> list[str]:
    """Return those whose host decodes: serially, as a notebook does, or ahead of the steps, as a DataLoader does."""
    runs = [
        ("torchvision", "resnet50", 64, "bf16 sgd", 30, "serial"),
        ("torchvision", "resnet18", 64, "fp32 sgd", 60, "ahead"),
        ("torchvision", "vgg16", 32, "bf16 sgd", 20, "serial"),
        ("timm", "vit_small_patch16_224", 64, "bf16 adam", 80, "ahead"),
        ("torchvision", "resnet50", 32, "fp32 sgd", 60, "serial"),
        ("torchvision", "resnet50", 64, "bf16 sgd", 60, "ahead"),
        ("timm", "convnext_tiny", 32, "bf16 adam", 15, "serial"),
        ("torchvision", "vit_b_16", 32, "bf16 adam", 50, "ahead"),
        ("torchvision", "densenet121", 32, "fp32 sgd", 120, "ahead"),
        ("torchvision", "vgg16", 64, "fp32 sgd", 300, "serial"),
    ]
    return [_command(a, b, c, f"train {how}", host_ms=ms, loader=loader) for a, b, c, how, ms, loader in runs]


def _others() -> list[str]:
    runs = [
        *[("own", "unet", 4, "fp32 adam", {"image_size": 256}), ("own", "dlrm", 2048, "fp32 sgd", {})],
        *[("own", "lstm", 64, "fp32 adam", {}), ("own", "mlp", 256, "fp32 adam", {"sync_every": 10})],
        *[("own", "unet", 1, "bf16 adam", {"image_size": 256}), ("own", "dlrm", 32768, "fp32 sgd", {})],
        ("own", "mlp", 8192, "fp32 adam", {"sync_every": 10}),
        ("own", "dcgan", 128, "fp32 adam", {"image_size": 64}),
        ("torchvision", "maskrcnn_resnet50_fpn", 2, "fp32 sgd", {"image_size": 512}),
        ("own", "lstm", 512, "bf16 adam", {}),
    ]
    return [_command(a, b, c, f"train {how}", **more) for a, b, c, how, more in runs]


def _inference() -> list[str]:
    runs = [
        *[("torchvision", "resnet50", 1, "infer fp32 -"), ("transformers", "gpt2-large", 1, "generate bf16 -")],
        *[("torchvision", "resnet50", 64, "infer bf16 -"), ("torchvision", "vit_b_16", 8, "infer bf16 -")],
        *[("transformers", "bert", 16, "infer bf16 -"), ("transformers", "gpt2-medium", 16, "generate bf16 -")],
        *[("own", "unet", 2, "infer fp32 -"), ("torchvision", "resnet50", 256, "infer bf16 -")],
        *[("transformers", "gpt2-large", 8, "infer bf16 -"), ("timm", "convnext_tiny", 16, "infer fp32 -")],
        *[("torchvision", "vit_b_16", 128, "infer bf16 -"), ("transformers", "gpt2-large", 32, "generate bf16 -")],
    ]
    return [_command(*one) for one in runs]


def missing(commands: Iterable[str], rows: Sequence[dict[str, str]]) -> list[tuple[str, list[int]]]:
    """Return the limits that each command still lacks, pass by pass; one that failed is not tried again."""
    there = Counter((row["command"], int(row["limit_pct"])) for row in rows)
    failed = {row["command"] for row in rows if row["state"] != "COMPLETED"}
    busy = {row["command"] for row in rows if float(row["gr_active_pct"] or 0) >= BUSY_PCT}
    todo = [
        (one, [limit for limit in LIMITS_PCT if there[one, limit] < number])
        for number in range(1, PASSES + 1)
        for one in commands
        if one not in failed and (number == 1 or (there[one, LIMITS_PCT[0]] and one not in busy))
    ]
    return [(one, limits) for one, limits in todo if limits]


def best(rows: Iterable[dict[str, str]]) -> dict[str, dict[int, dict[str, str]]]:
    """Return by command and limit the fastest of the rows measured."""
    found: dict[str, dict[int, dict[str, str]]] = {}
    for row in rows:
        points, limit_pct = found.setdefault(row["command"], {}), int(row["limit_pct"])
        if row["state"] == "COMPLETED":
            points[limit_pct] = max(row, points.get(limit_pct, row), key=lambda one: float(one["steps_per_s"]))
    return found


def _measured(given: argparse.Namespace, built: Any, limit_pct: int) -> dict[str, Any]:
    """Run one point in this process, which CUDA has not begun in."""
    os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(limit_pct)
    import torch

    from slurm_colloc.gpu.nvml import NvmlReader

    step, loader = footprint_job.make_step(given, built), footprint_job.Loader(given)
    for _ in range(_WARM_UP):
        loader.wait()
        step()
    torch.cuda.synchronize()
    reader = NvmlReader()
    reader.read()
    rates, seconds = [], (_WHOLE_S if limit_pct == LIMITS_PCT[0] else _PIECE_S) / _PARTS
    for _ in range(_PARTS):
        began, count = time.monotonic(), 0
        while count < -(-_LEAST_STEPS // _PARTS) or time.monotonic() - began < seconds:
            loader.wait()
            step()
            count += 1
            if count % given.sync_every == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        rates.append(count / (time.monotonic() - began))
    reading = reader.read()[0][0]
    middle = statistics.median(rates)
    return {
        "state": "COMPLETED",
        "gpu_model": reader.units()[0].model,
        "sm_count": torch.cuda.get_device_properties(0).multi_processor_count,
        "steps_per_s": middle,
        "step_spread_pct": 100 * (max(rates) - min(rates)) / middle,
        **{name: getattr(reading, name) for name in COLUMNS[7:]},
    }


def _answered(given: argparse.Namespace, built: Any, limit_pct: int) -> dict[str, Any]:
    """Run one point in a process of its own, and return what it wrote."""
    came, out = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            found = _measured(given, built, limit_pct)
        except BaseException as error:  # noqa: BLE001 - the row says that it failed
            print(f"{given}: {error!r}"[:600], file=sys.stderr, flush=True)
            found = {"state": "GPU_OOM" if "out of memory" in str(error) else "FAILED"}
        os.write(out, json.dumps(found).encode())
        os._exit(0)
    os.close(out)
    text = b"".join(_until_end(came, time.monotonic() + _LONGEST_S))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(came)
    found = json.loads(text) if text else {"state": "FAILED"}
    return dict(found)


def _until_end(stream: int, until_s: float) -> Iterator[bytes]:
    while select.select([stream], [], [], max(0.0, until_s - time.monotonic()))[0]:
        if not (more := os.read(stream, 65536)):
            return
        yield more


class _Config:
    """A process that builds one configuration's network on the host and, when asked, measures its points."""

    def __init__(self, command: str, limits_pct: Sequence[int], cores: set[int]) -> None:
        self._go, self.command = os.pipe(), command
        self._came, out = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(out)
            return
        import torch

        os.sched_setaffinity(0, cores)
        torch.set_num_threads(1)  # a pool of threads would not be there in a fork
        given = footprint_job.parse(shlex.split(command)[2:])
        built = footprint_job.network(given)
        os.write(out, b"\n")
        os.read(self._go[0], 1)
        for limit_pct in limits_pct:
            row = {"command": command, "limit_pct": limit_pct, **_answered(given, built, limit_pct)}
            os.write(out, json.dumps(row).encode() + b"\n")
            if row["state"] != "COMPLETED":
                break
        os._exit(0)

    def built(self) -> None:
        """Return when its network is built, or when that failed."""
        select.select([self._came], [], [], _LONGEST_S)

    def rows(self) -> list[dict[str, Any]]:
        """Measure, and return what came."""
        os.write(self._go[1], b"1")
        until_s = time.monotonic() + _LONGEST_S * 2
        lines = b"".join(_until_end(self._came, until_s)).strip().splitlines()
        self.end()
        return [json.loads(line) for line in lines] or [
            {"command": self.command, "limit_pct": LIMITS_PCT[0], "state": "FAILED"}
        ]

    def end(self) -> None:
        """End it; points that hang are its children and have their own limit."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        for one in (*self._go, self._came):
            os.close(one)


def measure(path: Path, todo: Sequence[tuple[str, list[int]]], until_s: float) -> int:
    """Measure as far as the time goes; return how many configurations are left."""
    configs, own = list[_Config](), sorted(os.sched_getaffinity(0))
    cores = len(own)
    for position, one in enumerate(todo):
        first = 2 * position % cores
        configs.append(_Config(*one, {own[first], own[(first + 1) % cores]}))
        if position >= cores:
            configs[position - cores].built()
    for config in configs[-cores:]:
        config.built()
    while configs and time.monotonic() < until_s:
        rows = configs.pop(0).rows()
        add_rows(path, COLUMNS, rows)
        steps = [f"{row['steps_per_s']:.1f}" if row.get("steps_per_s") else row["state"] for row in rows]
        print(f"{until_s - time.monotonic():5.0f} s left", rows[0]["command"][16:], *steps, flush=True)
    for config in configs:
        config.end()
    return len(configs)


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--only", default="", help="configurations whose command holds this")
    given = parser.parse_args()
    until_s = time.monotonic() + given.minutes * 60 - 12.0  # what has begun takes up to so long
    rows = read_table(given.table, COLUMNS)
    todo = missing([one for one in plan() if given.only in one], rows)
    left = run(given.table, todo, until_s)
    print(f"{left} configurations are left" + (", call again" if left else ""))


def run(table: Path, todo: Sequence[tuple[str, list[int]]], until_s: float) -> int:
    """Measure under an MPS daemon of our own, and return how many are left."""
    with under_mps(len(todo)):
        return measure(table, todo, until_s)


@contextlib.contextmanager
def under_mps(count: int) -> Iterator[None]:
    """Import the libraries once, and run an MPS daemon meanwhile."""
    import timm
    import torch
    import torchvision
    import transformers

    print([one.__version__ for one in (torch, torchvision, timm, transformers)], f"{count} to do", flush=True)
    with mps_daemon():
        yield


@contextlib.contextmanager
def mps_daemon() -> Iterator[None]:
    """Run an MPS daemon whose clients what is started meanwhile will be."""
    pipe = tempfile.mkdtemp(prefix="r-", dir="/tmp")
    own = {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": pipe}
    os.environ |= own
    subprocess.run([_CONTROL, "-d"], check=True)
    try:
        yield
    finally:
        subprocess.run([_CONTROL], input=b"quit\n", check=False)
        shutil.rmtree(pipe, ignore_errors=True)
        for name in own:
            del os.environ[name]


if __name__ == "__main__":
    main()
