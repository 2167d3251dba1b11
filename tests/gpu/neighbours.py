# SPDX-License-Identifier: Apache-2.0
"""What 24 programs that no other table has do on one GPU: `python -m tests.gpu.neighbours TABLE.csv [--minutes 9]`.

One NVIDIA GPU with MPS and PyTorch that nobody else uses. The programs of tests/gpu/kinds.py run alone, twice
("alone"), twelve of them under two limits of SMs ("limited"), and 35 mixes of two to five, as the rule of csub would
fill a GPU, under one daemon ("mixed"), between which one of them shows by itself whether the machine drifts ("drift").
No setting of the card is changed. Rows are appended as they come; what is there is not run again.

All programs are processes that stay and wait until they are asked, so that a run begins warm. Each has two cores of its
own, and no two of a mix the same. Readings are those of the project's own sampler, one a second, and what it would make
of them: means, and of SM activity, busy time and DRAM activity the 95th percentile, in whole percent. In a mix they are
of the whole GPU, but for the memory, which is the program's. Busy is the time in which some kernel runs: gr_active_pct
by GPM, gpu_util_pct by the driver. slowdown is the mean rate of the rows "alone" over the row's.

neighbours_h200.csv is of 28 November 2026, of one H200 (driver 580.159.04, 16 cores): alone for 6 s and again for 6 to
12 s, limited for 8 s, mixed for 20 s (the first twelve 21 s). Of 20 programs the first row alone is of another machine
of the kind. tests/gpu/foretold.py judges by it what foretells slowdowns.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import itertools
import mmap
import os
import random
import signal
import statistics
import struct
import sys
import time
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_colloc.core.model import SharingMode
from slurm_colloc.core.units import demand_units
from slurm_colloc.core.usage_model import DeviceAllocation, DeviceSample, NodeSample, ProcessSample
from slurm_colloc.observe.evidence import EvidenceBuilder
from slurm_colloc.placement.speed import between
from tests.gpu.footprints import add_rows, read_table
from tests.gpu.slowdowns import mps_daemon

if TYPE_CHECKING:
    from tests.gpu.kinds import Program

COLUMNS = (
    *("part", "run", "program", "gpu_model", "at_s", "limit_pct", "sm_count", "beside", "state", "seconds", "steps"),
    *("steps_per_s", "spread_pct", "gpu_mem_used_mib", "sm_active_pct", "sm_active_q95_pct", "gr_active_pct"),
    *("gr_active_q95_pct", "gpu_util_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct"),
    *("dram_active_q95_pct", "power_w", "slowdown"),
)
NAMES = (
    *("molecules", "citations", "recurrence", "speech", "volumes", "contrast", "denoising", "digits", "decoding"),
    *("long filters", "bodies", "lattice", "waves", "eddies", "options", "spins", "radar", "boosting", "policy"),
    *("poisson", "documents", "words", "scene", "fields"),
)
# Small kernels, large ones, and large ones with pauses, four of each.
LIMITED = (
    *("molecules", "recurrence", "decoding", "eddies", "volumes", "bodies", "boosting", "scene"),
    *("waves", "options", "documents", "radar"),
)
# 14 and 43 of 132 SMs: those of the smallest slice, and a third.
LIMITS_PCT = (11, 33)
REFERENCE, MIXES, SHARES = "eddies", 35, 100
# What a job counted for by its SM activity, and all together, when this was measured; the bound is 1.25.
_COUNTS, _TOGETHER = ((0.0, 0.0), (40.0, 40.0), (75.0, 60.0), (90.0, 90.0), (100.0, 110.0)), 80.0
# What the shares of a mix come to, of 100: as full as the rule lets it be.
_LEAST_SHARES = 80
_SETTLES_S, _DRIFT_S, _STARTS_S, _WARM_UP = 0.6, 2.0, 100.0, 4
READY, FAILED = 1, 2
PAUSED, RUNS, ENDS = 0, 1, 2


class Run(NamedTuple):
    """Programs that run at the same time, and the share of the SMs that each is limited to."""

    part: str
    run: str
    programs: tuple[str, ...]
    limit_pct: int = 100


def shares(rows: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Return the shares of 100 that each program would get, by its first row alone; none for one too busy to share."""
    found: dict[str, int] = {}
    for row in rows:
        if row["part"] == "alone" and row["run"] == "1" and row["state"] == "COMPLETED":
            part = between(_COUNTS, float(row["sm_active_q95_pct"])) / _TOGETHER
            if part <= 7 / 8:
                found[row["program"]] = demand_units(part, SHARES)
    return found


def mixes(units: Mapping[str, int], seed: int = 1) -> list[Run]:
    """Return mixes of two to five that fill the shares, in which each program comes about equally often."""
    chance, used, found = random.Random(seed), collections.Counter[str](), dict[frozenset[str], Run]()
    names = [name for name in NAMES if name in units]
    for count in itertools.islice(itertools.cycle((2, 3, 4, 5)), 4 * MIXES):
        if len(found) == MIXES or len(names) < count:
            break
        tried = [tuple(sorted(chance.sample(names, count), key=NAMES.index)) for _ in range(4000)]
        good = [
            one
            for one in tried
            if _LEAST_SHARES <= sum(units[name] for name in one) <= SHARES
            and len({home(name, 8) for name in one}) == count
            and frozenset(one) not in found
        ]
        if good:
            best = min(good, key=lambda one: sum(used[name] ** 2 for name in one) / len(one))
            used.update(best)
            found[frozenset(best)] = Run("mixed", str(len(found) + 1), best)
    return list(found.values())


def home(name: str, pairs: int) -> int:
    """Return which pair of cores is the program's."""
    return NAMES.index(name) % pairs


def missing(rows: Sequence[Mapping[str, str]], part: str) -> list[Run]:
    """Return what a part still lacks."""
    if part == "mixed":
        there = {frozenset((row["program"], *row["beside"].split(" + "))) for row in rows if row["part"] == part}
        return [one for one in mixes(shares(rows)) if frozenset(one.programs) not in there]
    if part == "limited":
        planned = [Run(part, str(limit), (name,), limit) for name in LIMITED for limit in LIMITS_PCT]
    else:
        planned = [Run("alone", part[-1], (name,)) for name in NAMES]
    done = {(row["part"], row["run"], row["program"]) for row in rows if row["state"] == "COMPLETED"}
    return [one for one in planned if (one.part, one.run, *one.programs) not in done]


class Client:
    """A process that has made one program and runs it whenever it is asked; it shares a page with this one."""

    def __init__(self, name: str, program: Program, cores: Collection[int], device: str, limit_pct: int = 100) -> None:
        self.name, self._page = name, mmap.mmap(-1, mmap.PAGESIZE)
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.setpgid(0, 0)
                os.sched_setaffinity(0, cores)
                self._serve(program, limit_pct, device)
            except BaseException as error:  # noqa: BLE001 - the row says that it failed
                print(f"{name}: {error!r}"[:800], file=sys.stderr, flush=True)
                self._put("q", 16, FAILED)
            os._exit(0)

    def _put(self, kind: str, at: int, value: float) -> None:
        struct.pack_into(kind, self._page, at, value)

    def _got(self, kind: str, at: int) -> Any:
        return struct.unpack_from(kind, self._page, at)[0]

    @property
    def state(self) -> int:
        """Return whether it is ready, or failed."""
        return int(self._got("q", 16))

    @property
    def sms(self) -> int:
        """Return how many SMs it was told it has."""
        return int(self._got("q", 32))

    def counted(self) -> tuple[int, float]:
        """Return how many steps were done, and when the last of them was."""
        return self._got("q", 0), self._got("d", 8)

    def ask(self, what: int) -> None:
        """Let it run, pause or end."""
        self._put("q", 24, what)

    def end(self) -> None:
        """End it, and the processes that it has started."""
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _serve(self, program: Program, limit_pct: int, device: str) -> None:
        import torch

        torch.set_num_threads(1)
        if limit_pct < 100:
            os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(limit_pct)
        wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        step = program.make(device, **(program.tiny if device == "cpu" else {}))
        for _ in range(_WARM_UP):
            step()
            wait()
        if device == "cuda":
            self._put("q", 32, torch.cuda.get_device_properties(0).multi_processor_count)
        self._put("d", 8, time.monotonic())
        self._put("q", 16, READY)
        done = 0
        while (asked := self._got("q", 24)) != ENDS:
            if asked == PAUSED:
                time.sleep(0.002)
                self._put("d", 8, time.monotonic())
                continue
            for _ in range(program.sync_every):
                step()
            wait()
            done += program.sync_every
            self._put("q", 0, done)
            self._put("d", 8, time.monotonic())


class Watch:
    """The project's reader of GPUs and what its sampler makes of the readings, of one run."""

    def __init__(self) -> None:
        from slurm_colloc.gpu.nvml import NvmlReader

        self._reader = NvmlReader()
        self.unit = self._reader.units()[0]

    def begin(self) -> None:
        """Begin anew."""
        self._reader.read()
        self._sm, self._gr = (EvidenceBuilder("1", "", SharingMode.EXCLUSIVE) for _ in range(2))
        self._at_s, self._readings, self._evidence = time.monotonic(), list[Any](), list[Any]()
        self._memory: dict[int, int | None] = {}

    def look(self) -> None:
        """Take a reading."""
        (reading, *_), processes = self._reader.read()
        at_s = time.monotonic()
        self._memory = {one.pid: one.gpu_mem_used_mib for one in processes}
        unit = self.unit
        device = DeviceSample(
            *(unit.uuid, 0, unit.model, "", unit.mem_total_mib, unit.sm_count, unit.whole_sm_count),
            **{name: value for name, value in reading._asdict().items() if name != "uuid"},
        )
        mine = ProcessSample(unit.uuid, 1, None, "", "1", reading.gpu_mem_used_mib, None)
        holder = DeviceAllocation(unit.uuid, "1", None)
        seen = NodeSample(at_s, at_s - self._at_s, "", "", (device,), (mine,), (holder,), ())
        busy = seen._replace(devices=(device._replace(sm_active_pct=device.gr_active_pct),))
        self._evidence = [self._sm.add(seen), self._gr.add(busy)]
        self._at_s = at_s
        self._readings.append(reading)

    def found(self) -> dict[str, Any]:
        """Return the columns of what was seen."""
        names = ("gpu_util_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct", "power_w")
        values = {name: [getattr(one, name) for one in self._readings] for name in names}
        of_sm, of_gr = self._evidence
        return {
            **{name: statistics.mean(of) for name, of in values.items() if None not in of},
            "sm_active_pct": of_sm.sm_active_mean_pct,
            "sm_active_q95_pct": of_sm.sm_active_q95_pct,
            "gr_active_pct": of_gr.sm_active_mean_pct,
            "gr_active_q95_pct": of_gr.sm_active_q95_pct,
            "dram_active_q95_pct": of_sm.dram_active_q95_pct,
        }

    def memory_mib(self, pid: int) -> int | None:
        """Return what a process held."""
        return self._memory.get(pid)


class Blind:
    """What stands for a Watch where there is no GPU."""

    unit = types.SimpleNamespace(model="")

    def begin(self) -> None:
        """Do nothing."""

    def look(self) -> None:
        """Do nothing."""

    def found(self) -> dict[str, Any]:
        """Return nothing but an activity to plan by."""
        return {"sm_active_q95_pct": 20.0}

    def memory_mib(self, pid: int) -> int | None:
        """Return nothing."""


def _pace(counts: Sequence[tuple[int, float]]) -> float | None:
    (first, from_s), (last, to_s) = counts[0], counts[-1]
    return (last - first) / (to_s - from_s) if last > first else None


def measure(run: Run, clients: Mapping[str, Client], watch: Any, seconds: float) -> list[dict[str, Any]]:
    """Run programs together for so long and return a row of each."""
    mine = [clients[name] for name in run.programs]
    for client in mine:
        client.ask(RUNS)
    time.sleep(_SETTLES_S)
    watch.begin()
    began_s, counts = time.monotonic(), [[client.counted()] for client in mine]
    looks = max(1, round(seconds))
    for number in range(1, looks + 1):
        time.sleep(max(0.0, began_s + number * seconds / looks - time.monotonic()))
        watch.look()
        for of, client in zip(counts, mine, strict=True):
            of.append(client.counted())
    for client in mine:
        client.ask(PAUSED)
    found, at_s = watch.found(), time.time()
    rows = []
    for client, of in zip(mine, counts, strict=True):
        paces = [pace for pair in itertools.pairwise(of) if (pace := _pace(pair)) is not None]
        middle = _pace(of)
        rows.append(
            {
                "part": run.part,
                "run": run.run,
                "program": client.name,
                "gpu_model": watch.unit.model,
                "at_s": f"{at_s:.0f}",
                "limit_pct": run.limit_pct,
                "sm_count": client.sms,
                "beside": " + ".join(name for name in run.programs if name != client.name),
                "state": "COMPLETED" if middle else "SILENT",
                "seconds": of[-1][1] - of[0][1],
                "steps": of[-1][0] - of[0][0],
                "steps_per_s": middle,
                "spread_pct": 100 * (max(paces) - min(paces)) / middle if middle and paces else None,
                "gpu_mem_used_mib": watch.memory_mib(client.pid),
                **found,
            }
        )
    time.sleep(0.1)  # what is queued runs out
    return rows


def _told(rows: Sequence[Mapping[str, Any]]) -> str:
    def number(value: Any, digits: int = 0) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    first = rows[0]
    each = ", ".join(f"{row['program']} {number(row['steps_per_s'], 1)} ±{number(row['spread_pct'])}%" for row in rows)
    figures = "/".join(number(first.get(name)) for name in ("sm_active_pct", "gr_active_pct", "dram_active_pct"))
    return f"{first['part']} {first['run']} ({first['sm_count']} SMs) sm/busy/dram {figures}: {each}"


def await_ready(clients: Collection[Client], within_s: float) -> bool:
    """Return whether all have made their programs within this time."""
    began_s = time.monotonic()
    while time.monotonic() < began_s + within_s and not all(client.state for client in clients):
        time.sleep(0.1)
    late = [client.name for client in clients if client.state != READY]
    print(f"{len(clients)} programs in {time.monotonic() - began_s:.0f} s, not ready: {late}", flush=True)
    return not late


def _started(wanted: Sequence[tuple[str, int]], device: str) -> dict[tuple[str, int], Client]:
    from tests.gpu.kinds import PROGRAMS

    own, clients = sorted(os.sched_getaffinity(0)), dict[tuple[str, int], Client]()
    for name, limit_pct in wanted:
        first = 2 * home(name, max(1, len(own) // 2))
        clients[name, limit_pct] = Client(name, PROGRAMS[name], own[first : first + 2], device, limit_pct)
    await_ready(clients.values(), _STARTS_S)
    return clients


def stage(path: Path, parts: Sequence[str], until_s: float, seconds: Mapping[str, float], device: str) -> None:
    """Run some parts with the same processes, as far as the time goes."""
    if until_s - time.monotonic() < _STARTS_S / 2 or not any(missing(read_table(path, COLUMNS), one) for one in parts):
        return
    limits = LIMITS_PCT if parts == ("limited",) else (100,)
    names = LIMITED if parts == ("limited",) else NAMES
    clients = _started([(name, limit) for name in names for limit in limits], device)
    watch = Watch() if device == "cuda" else Blind()
    for part in parts:
        for run in missing(read_table(path, COLUMNS), part):
            mine = {name: clients[name, run.limit_pct] for name in run.programs}
            if time.monotonic() + seconds[run.part] + 4 > until_s:
                break
            if any(client.state != READY for client in mine.values()):
                print(f"left out: {run}", flush=True)
                continue
            if part == "mixed":
                drift = Run("drift", run.run, (REFERENCE,))
                add_rows(path, COLUMNS, measure(drift, {REFERENCE: clients[REFERENCE, 100]}, watch, _DRIFT_S))
            rows = measure(run, mine, watch, seconds[run.part])
            add_rows(path, COLUMNS, rows)
            print(f"{until_s - time.monotonic():4.0f} s left, {_told(rows)}", flush=True)
    for client in clients.values():
        client.end()


def with_slowdowns(rows: Sequence[Mapping[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the rows with the mean rate alone over that of each."""
    alone = collections.defaultdict[str, list[float]](list)
    for row in rows:
        if row["part"] == "alone" and row["steps_per_s"]:
            alone[row["program"]].append(float(row["steps_per_s"]))
    for row in rows:
        rates, own = alone[row["program"]], row["steps_per_s"]
        yield {**row, "slowdown": f"{statistics.mean(rates) / float(own):.4f}" if rates and own else ""}


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--parts", default="alone1 limited mixed alone2")
    parser.add_argument("--alone-s", type=float, default=12.0)
    parser.add_argument("--limited-s", type=float, default=10.0)
    parser.add_argument("--mixed-s", type=float, default=40.0)
    parser.add_argument("--tiny", action="store_true", help="no GPU: tiny sizes on the CPU, and no readings")
    given = parser.parse_args()
    until_s = time.monotonic() + given.minutes * 60
    seconds = {"alone": given.alone_s, "limited": given.limited_s, "mixed": given.mixed_s}
    import tests.gpu.kinds  # once, for all

    assert tuple(tests.gpu.kinds.PROGRAMS) == NAMES
    parts = given.parts.split()
    for _, group in itertools.groupby(parts, lambda part: part == "limited"):
        with contextlib.nullcontext() if given.tiny else mps_daemon():
            stage(given.table, tuple(group), until_s, seconds, "cpu" if given.tiny else "cuda")
    rows = list(with_slowdowns(read_table(given.table, COLUMNS)))
    with given.table.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    left = {part: len(missing(read_table(given.table, COLUMNS), part)) for part in parts}
    print(f"left: {left}; {until_s - time.monotonic():.0f} s left", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
