# SPDX-License-Identifier: Apache-2.0
"""The project's own table of footprints: `python -m tests.gpu.footprints TABLE.csv [--minutes 9]`.

One NVIDIA GPU with PyTorch, torchvision, timm and transformers. Every configuration of tests/gpu/footprint_job.py runs
in a process of its own: the first time alone, where its SM and DRAM activity (GPM) count, and again for its memory
alone, a few side by side where NVML shows which process is whose. Rows are appended as they come; what is there is not
run again. peak_mib is the process's memory by NVML, allocator_peak_mib the most that tensors held.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import select
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tests.gpu import footprint_job

COLUMNS = (
    *("at_s", "command", "gpu_model", "state", "peak_mib", "allocator_peak_mib"),
    *("sm_active_pct", "dram_active_pct"),
)
REPEATS = 3
_MEASURED_S, _MEMORY_S, _LONGEST_S = 1.5, 0.3, 60.0
_WARM_UP = 4
_SIDE_BY_SIDE = 6
_SPARE_MIB = 4096
# Batch sizes of training, to which one between the last two is added, and of inference.
_NETWORKS = {
    ("torchvision", "resnet18"): ((32, 64, 128, 256), (64, 256, 512)),
    ("torchvision", "resnet50"): ((16, 32, 64, 128), (32, 128, 256)),
    ("torchvision", "densenet121"): ((16, 32, 64), (32, 64, 128)),
    ("torchvision", "mobilenet_v3_large"): ((32, 64, 128), (64, 128, 256)),
    ("torchvision", "efficientnet_b0"): ((16, 32, 64), (64, 128, 256)),
    ("torchvision", "vgg16"): ((16, 32, 64), (32, 64, 128)),
    ("torchvision", "vit_b_16"): ((16, 32, 64), (32, 64, 128)),
    ("torchvision", "swin_t"): ((16, 32, 64), (32, 64, 128)),
    ("timm", "convnext_tiny"): ((16, 32, 64), (32, 64, 128)),
    ("timm", "mixer_b16_224"): ((16, 32, 64), (32, 64, 128)),
    ("timm", "vit_small_patch16_224"): ((32, 64, 128), (64, 128, 256)),
    ("timm", "regnety_032"): ((16, 32, 64), (32, 64, 128)),
    ("transformers", "bert"): ((8, 16, 32), (16, 32, 64)),
    ("transformers", "bert-small"): ((16, 32, 64), (32, 64, 128)),
    ("transformers", "gpt2"): ((4, 8, 16), (8, 16, 32)),
    ("transformers", "gpt2-medium"): ((4, 8, 16), (8, 16, 32)),
}
_SEQ_LENS = (64, 128, 512)
# Too much for any GPU of today.
_TOO_LARGE = (("torchvision", "vit_l_16", 1024), ("torchvision", "resnet152", 1024))


class Config(NamedTuple):
    """One configuration, as the words of its command behind "python train.py"."""

    words: tuple[str, ...]

    @property
    def command(self) -> str:
        """Return it as a user would write it."""
        return shlex.join(("python", "train.py", *self.words))


class Seen(NamedTuple):
    """What one run showed; None is not known."""

    state: str
    gpu_model: str
    peak_mib: float | None = None
    allocator_peak_mib: float | None = None
    sm_active_pct: float | None = None
    dram_active_pct: float | None = None


class Machine(Protocol):
    """Where configurations run."""

    def alone(self, config: Config) -> Seen:
        """Run one with the GPU to itself."""

    def together(self, configs: Sequence[Config]) -> list[Seen]:
        """Run some side by side for their memory."""

    def room_mib(self) -> float:
        """Return how much memory those that run side by side may need together; 0: none may."""


def _config(library: str, model: str, batch: int, task: str, dtype: str, optimizer: str, *more: str) -> Config:
    words = ["--library", library, "--model", model, "--batch-size", str(batch), "--task", task, "--dtype", dtype]
    return Config((*words, *(["--optimizer", optimizer] if task == "train" else []), *more))


def plan() -> list[Config]:
    """Return every configuration, the networks taking turns, so that a run cut short has some of each."""
    ways = [("fp32", "sgd"), ("bf16", "adam"), ("fp32", "adam"), ("bf16", "sgd")]
    found: list[tuple[int, Config]] = []
    for number, ((library, model), (train, infer)) in enumerate(_NETWORKS.items()):
        two = (ways[number % 4], ways[(number + 1) % 4])
        for place, batch in enumerate((*train, (train[-1] + train[-2]) // 2)):
            found += [(place, _config(library, model, batch, "train", *way)) for way in two]
        for place, batch in enumerate(infer):
            found += [(place, _config(library, model, batch, "infer", dtype, "none")) for dtype in ("bf16", "fp32")]
        if library == "transformers":
            for place, length in enumerate(_SEQ_LENS):
                found.append((place, _config(library, model, train[1], "train", *two[0], "--seq-len", str(length))))
    ordered = [config for _, config in sorted(found, key=lambda one: one[0])]
    return [*ordered, *(_config(*one, "train", "fp32", "adam") for one in _TOO_LARGE)]


def read_table(path: Path, columns: tuple[str, ...] = COLUMNS) -> list[dict[str, str]]:
    """Return the rows that are there; a last line that was cut off is taken out of the file."""
    if not path.exists():
        return []
    text = path.read_text()
    if text and not text.endswith("\n"):
        path.write_text(text[: text.rfind("\n") + 1])
    with path.open(newline="") as stream:
        reader = csv.DictReader(stream)
        rows = list(reader)
    if rows and tuple(reader.fieldnames or ()) != columns:
        raise SystemExit(f"'{path}' has other columns; give another name")
    return rows


def add_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a table."""
    is_new = not path.exists() or not path.stat().st_size
    with path.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
        if is_new:
            writer.writeheader()
        for row in rows:
            writer.writerow({name: f"{v:.6g}" if isinstance(v, float) else v for name, v in row.items()})


def missing(configs: Iterable[Config], rows: Iterable[dict[str, str]]) -> tuple[list[Config], list[Config]]:
    """Return what has not run at all, and what has not run often enough; one run shows that memory does not suffice."""
    runs = Counter(row["command"] for row in rows)
    ended = {row["command"] for row in rows if row["state"] != "COMPLETED"}
    todo = list(configs)
    first = [one for one in todo if not runs[one.command]]
    return first, [one for one in todo if runs[one.command] < REPEATS and one.command not in ended]


def batches(configs: Sequence[Config], peaks: dict[str, float], room_mib: float) -> list[list[Config]]:
    """Return the configurations in groups whose memory, known of earlier runs, fits side by side."""
    groups: list[list[Config]] = []
    left = 0.0
    for config in sorted(configs, key=lambda one: peaks.get(one.command, room_mib)):
        need = peaks.get(config.command, room_mib)
        if not groups or need > left or len(groups[-1]) >= _SIDE_BY_SIDE:
            groups.append([])
            left = room_mib
        groups[-1].append(config)
        left -= need
    return groups


class Table:
    """The rows, on disk as soon as they are known."""

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self._path, self._now = path, now
        self.rows = read_table(path)

    def add(self, config: Config, seen: Seen) -> None:
        """Append one run."""
        values = (self._now(), config.command, seen.gpu_model, seen.state, *seen[2:])
        written = dict(zip(COLUMNS, map(_written, values), strict=True))
        add_rows(self._path, COLUMNS, [written])
        self.rows.append(written)

    def peaks(self) -> dict[str, float]:
        """Return the largest peak of each command that completed, in MiB."""
        found: dict[str, float] = {}
        for row in self.rows:
            if row["state"] == "COMPLETED" and row["peak_mib"]:
                found[row["command"]] = max(found.get(row["command"], 0.0), float(row["peak_mib"]))
        return found


def _written(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return "" if value is None else str(value)


def fill(table: Table, configs: Sequence[Config], machine: Machine, time_left: Callable[[], float]) -> int:
    """Run what is missing as far as the time goes, and return how many configurations lack a run."""
    first, _ = missing(configs, table.rows)
    for config in first:
        if time_left() <= 0:
            break
        table.add(config, machine.alone(config))
    for _ in range(1, REPEATS):
        room, peaks = machine.room_mib(), table.peaks()
        seen_before = [one for one in missing(configs, table.rows)[1] if one.command in peaks]
        for group in batches(seen_before, peaks, room) if room else [[one] for one in seen_before]:
            if time_left() <= 0:
                break
            found = machine.together(group) if len(group) > 1 else [machine.alone(group[0])]
            for config, seen in zip(group, found, strict=True):
                table.add(config, seen)
    first, again = missing(configs, table.rows)
    return len({config.command for config in (*first, *again)})


class _Child:
    """A process of one configuration: it says when it is warm, works for a while, says what it saw, and stays."""

    def __init__(self, config: Config, seconds: float) -> None:
        self._from, out = os.pipe()
        stay, self._stay = os.pipe()
        self._said = b""
        self.pid = os.fork()
        if not self.pid:
            os.close(self._from)
            os.close(self._stay)
            _work(config, seconds, out, stay)
        os.close(out)
        os.close(stay)

    def says(self) -> dict[str, Any]:
        """Return its next word; one that ends or hangs says that it failed."""
        until = time.monotonic() + _LONGEST_S
        while b"\n" not in self._said:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            more = os.read(self._from, 65536) if ready else b""
            if not more:
                return {"state": "FAILED"}
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        """Let it go, and wait for its end: its memory is free then."""
        os.close(self._stay)
        os.close(self._from)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _work(config: Config, seconds: float, out: int, stay: int) -> None:
    import torch

    def say(**values: object) -> None:
        os.write(out, json.dumps(values).encode() + b"\n")

    def peak() -> float:
        return float(torch.cuda.max_memory_allocated() / 2**20)

    try:
        step = footprint_job.make_step(footprint_job.parse(config.words))
        for _ in range(_WARM_UP):
            step()
        torch.cuda.synchronize()
        say(state="WARM")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            step()
            torch.cuda.synchronize()
        say(state="COMPLETED", allocator_peak_mib=peak())
    except torch.cuda.OutOfMemoryError:
        say(state="GPU_OOM", allocator_peak_mib=peak())
    except BaseException as error:  # noqa: BLE001 - the row says that it failed
        print(f"{config.command}: {error!r}"[:500], file=sys.stderr, flush=True)
        say(state="FAILED")
    os.read(stay, 1)
    os._exit(0)


class Gpu:
    """The first GPU of this machine. CUDA is never begun in this process, so that it can fork."""

    def __init__(self) -> None:
        from slurm_colloc.gpu.nvml import NvmlReader

        self._reader, self._watch = NvmlReader(), NvmlReader()
        self._unit = self._reader.units()[0]
        import timm  # noqa: F401
        import torch  # noqa: F401
        import torchvision  # noqa: F401
        import transformers  # noqa: F401

        self._shows_pids = False
        self.alone(plan()[0])

    def _memory(self, pid: int, alone: bool) -> float | None:
        """Return a process's memory in MiB by NVML; in a container NVML may not know it, then of all that are there."""
        _, processes = self._watch.read()
        here = [one for one in processes if one.uuid == self._unit.uuid and one.gpu_mem_used_mib is not None]
        own = [one for one in here if one.pid == pid]
        self._shows_pids = self._shows_pids or bool(own)
        found = own or (here if alone else [])
        return float(sum(one.gpu_mem_used_mib or 0 for one in found)) or None

    def alone(self, config: Config) -> Seen:
        """See Machine."""
        child = _Child(config, _MEASURED_S)
        try:
            said = child.says()
            reading = None
            if said["state"] == "WARM":
                self._reader.read()
                said = child.says()
                readings, _ = self._reader.read()
                reading = next((one for one in readings if one.uuid == self._unit.uuid), None)
            return Seen(
                said["state"],
                self._unit.model,
                self._memory(child.pid, alone=True) if said["state"] != "FAILED" else None,
                said.get("allocator_peak_mib"),
                reading.sm_active_pct if reading else None,
                reading.dram_active_pct if reading else None,
            )
        finally:
            child.end()

    def together(self, configs: Sequence[Config]) -> list[Seen]:
        """See Machine."""
        children = [_Child(config, _MEMORY_S) for config in configs]
        try:
            found = []
            for child in children:
                said = child.says()
                said = child.says() if said["state"] == "WARM" else said
                # Beside others a lack of memory is theirs too.
                state = "FAILED" if said["state"] == "GPU_OOM" else said["state"]
                peak = self._memory(child.pid, alone=False) if state == "COMPLETED" else None
                found.append(Seen(state, self._unit.model, peak, said.get("allocator_peak_mib")))
            return found
        finally:
            for child in children:
                child.end()

    def room_mib(self) -> float:
        """See Machine."""
        return self._unit.mem_total_mib - _SPARE_MIB if self._shows_pids else 0.0


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--only", default="", help="configurations whose command holds this")
    given = parser.parse_args()
    until: float = time.monotonic() + given.minutes * 60
    configs = [one for one in plan() if given.only in one.command]
    table = Table(given.table)

    def time_left() -> float:
        # What has begun takes up to so long.
        return until - time.monotonic() - 10.0

    left = fill(table, configs, Gpu(), time_left)
    states = Counter(row["state"] for row in table.rows)
    print(f"{len(table.rows)} rows: {dict(states)}; {left} configurations are left, call again")


if __name__ == "__main__":
    main()
