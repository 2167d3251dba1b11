# SPDX-License-Identifier: Apache-2.0
"""How much jobs slow each other on one GPU: `python -m tests.gpu.mixes TABLE.csv [--minutes 9]`.

One NVIDIA GPU with MPS and the libraries of tests/gpu/slowdowns.py, which nobody else uses. Six jobs at a time, of its
table and of tests/gpu/proof.py, heavy, medium and light, are clients of one MPS server without a limit on their
threads. Each runs by itself, then in mixes of two to four, then by itself again, in the same process on the same two
cores, so that what a strange host does is in both. A row is one job of one mix: its steps per second there, and the
mean of the two by itself with the SM activity of the GPU meanwhile. No setting of the card is changed.

In mixes_h100.csv the mixes named 1-... are of an earlier program, which ran each job by itself once, minutes before,
and two to six together; in those named "twice" each job was limited to twice its activity alone.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import random
import select
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.gpu import footprint_job
from tests.gpu.footprints import add_rows, read_table
from tests.gpu.slowdowns import best, under_mps

COLUMNS = (
    *("mix", "command", "gpu_model", "limit_pct", "state", "alone_steps_per_s", "alone_sm_active_pct", "steps_per_s"),
    "device_sm_active_pct",
)
_ALONE_S, _TOGETHER_S, _BEFORE_S, _AFTER_S, _READY_S, _WARM_UP = 0.9, 1.5, 0.3, 0.3, 60.0, 4
# A step that takes longer is waited for each time: what is queued on the GPU would outlast the time that is measured.
_LONG_STEP_S = 0.03
# Where heavy, medium and light begin, in percent of SM activity, and how many of each are in a group.
_KINDS = ((60.0, 2), (20.0, 2), (0.0, 2))
# Which of a group's two heavy, two medium and two light jobs run together.
_TOGETHER = (
    *("H0 L0", "H0 L1", "H1 L0", "H1 L1", "H0 M0", "H1 M1", "H0 H1", "M0 M1", "H0 L0 L1", "H1 L0 L1", "M0 M1 L0"),
    *("M0 L0 L1", "H1 M0 L1", "M0 M1 L0 L1", "M1 L0", "L0 L1"),
)

_BERT = (
    "python train.py --library transformers --model bert --batch-size 32 --task train --optimizer adam --seq-len 512"
)
_RESNET = "python train.py --library torchvision --batch-size 32 --task train --optimizer sgd --model"
# Pairs of which others have published slowdowns: much memory and little compute, light, or starved, beside heavy.
PUBLISHED = (
    _BERT,
    "python train.py --library own --model mlp --batch-size 256 --task train --optimizer adam --hold-mib 30720",
    f"{_RESNET} resnet18 --image-size 32 --sync-every 10",
    f"{_RESNET} resnet50 --host-ms 200 --loader serial",
)


class Group(NamedTuple):
    """Jobs that are clients at the same time, and which of them, by their number, run together."""

    name: str
    commands: tuple[str, ...]
    mixes: tuple[tuple[int, ...], ...]


def plan(active_pct: Mapping[str, float], seed: int = 2) -> list[Group]:
    """Return the groups: PUBLISHED, then each heavy job in one, with others that come equally often."""
    chance, left = random.Random(seed), dict(active_pct)
    of_kind = list[Iterator[str]]()
    for least_pct, _ in _KINDS:
        here = [one for one, pct in left.items() if pct >= least_pct]
        left = {one: pct for one, pct in left.items() if pct < least_pct}
        chance.shuffle(here)
        of_kind.append(itertools.cycle(here) if of_kind else iter(here))
    names = {f"{kind}{i}": number for number, (kind, i) in enumerate(itertools.product("HML", range(2)))}
    mixes = tuple(tuple(names[one] for one in mix.split()) for mix in _TOGETHER)
    groups = [Group("published", PUBLISHED, tuple((0, i) for i in range(1, len(PUBLISHED))))]
    while True:
        chosen = [
            one for jobs, (_, count) in zip(of_kind, _KINDS, strict=True) for one in itertools.islice(jobs, count)
        ]
        if len(chosen) < len(names):
            return groups
        groups.append(Group(f"{seed}-{len(groups)}", tuple(chosen), mixes))


class _Steps:
    """A job's steps, in a process that has begun CUDA."""

    def __init__(self, given: argparse.Namespace, built: Any) -> None:
        import torch

        self._wait = torch.cuda.synchronize
        self._step, self._loader = footprint_job.make_step(given, built), footprint_job.Loader(given)
        self._sync_every = 1
        for _ in range(_WARM_UP):
            began_s = time.monotonic()
            self._step()
            self._wait()
        if time.monotonic() - began_s < _LONG_STEP_S:
            self._sync_every = given.sync_every

    def until(self, end_s: float) -> tuple[int, float]:
        """Run until then, and return how many steps were done and how long they took."""
        began_s, count = time.monotonic(), 0
        while time.monotonic() < end_s:
            self._loader.wait()
            self._step()
            count += 1
            if count % self._sync_every == 0:
                self._wait()
        self._wait()
        return count, time.monotonic() - began_s


class _Program:
    """A process that has built one network on the host and runs it, in a process of its own, whenever it is asked."""

    def __init__(self, command: str) -> None:
        (self._asks, self._ask), (self._answers, self._answer) = os.pipe(), os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(self._asks)
            os.close(self._answer)
            return
        os.setpgid(0, 0)
        import torch

        torch.set_num_threads(1)
        given = footprint_job.parse(shlex.split(command)[2:])
        built = footprint_job.network(given)
        self._say({"state": "BUILT"})
        while ask := self._heard():
            if "cores" not in ask:  # the end, for one that failed
                continue
            if not os.fork():
                self._serve(given, built, ask)
            os.wait()
        os._exit(0)

    def ask(self, **words: object) -> None:
        """Ask it for something."""
        os.write(self._ask, json.dumps(words).encode() + b"\n")

    def answer(self, until_s: float) -> dict[str, Any]:
        """Return what it says."""
        if not select.select([self._answers], [], [], max(0.0, until_s - time.monotonic()))[0]:
            return {"state": "SILENT"}
        return dict(json.loads(os.read(self._answers, 4096) or '{"state": "DEAD"}'))

    def end(self) -> None:
        """End it and the process that it may have."""
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _heard(self) -> dict[str, Any]:
        return dict(json.loads(os.read(self._asks, 4096) or "{}"))

    def _say(self, words: Mapping[str, object]) -> None:
        os.write(self._answer, json.dumps(words).encode())

    def _serve(self, given: argparse.Namespace, built: Any, ask: Mapping[str, Any]) -> None:
        try:
            os.sched_setaffinity(0, set(ask["cores"]))
            steps = _Steps(given, built)
            self._say({"state": "READY"})
            while "from_s" in (ask := self._heard()):
                time.sleep(max(0.0, ask["from_s"] - _BEFORE_S - time.monotonic()))
                steps.until(ask["from_s"])
                count, took_s = steps.until(ask["until_s"])
                steps.until(ask["until_s"] + _AFTER_S)
                self._say({"state": "COMPLETED", "steps_per_s": count / took_s})
        except BaseException as error:  # noqa: BLE001 - the row says that it failed
            print(f"{given}: {error!r}"[:600], file=sys.stderr, flush=True)
            self._say({"state": "FAILED"})
        os._exit(0)


def _together(programs: Sequence[_Program], seconds: float, reader: Any) -> tuple[list[dict[str, Any]], float | None]:
    """Run some for so long; return what each says and the GPU's SM activity meanwhile."""
    from_s = time.monotonic() + _BEFORE_S + 0.05
    for program in programs:
        program.ask(from_s=from_s, until_s=from_s + seconds)
    time.sleep(from_s + 0.05 - time.monotonic())
    reader.read()
    time.sleep(seconds - 0.1)
    active_pct = reader.read()[0][0].sm_active_pct
    return [program.answer(from_s + seconds + 20) for program in programs], active_pct


def run(group: Group, programs: Sequence[_Program], reader: Any) -> Iterator[dict[str, Any]]:
    """Run one group and yield the rows of its mixes."""
    own = sorted(os.sched_getaffinity(0))
    for number, program in enumerate(programs):
        program.ask(cores=[own[(2 * number + one) % len(own)] for one in (0, 1)])
    until_s = time.monotonic() + _READY_S
    if any(program.answer(until_s)["state"] != "READY" for program in programs):
        print(f"group {group.name} is left out: not all of its jobs began", flush=True)
        for program in programs:
            program.ask(end=True)
        return
    before = [_together([program], _ALONE_S, reader) for program in programs]
    found = [(mix, *_together([programs[one] for one in mix], _TOGETHER_S, reader)) for mix in group.mixes]
    after = [_together([program], _ALONE_S, reader) for program in programs]
    alone = [[(said.get("steps_per_s"), pct) for (said,), pct in two] for two in zip(before, after, strict=True)]
    for program in programs:
        program.ask(end=True)
    for mix, answers, device_pct in found:
        for one, said in zip(mix, answers, strict=True):
            rates, active = zip(*alone[one], strict=True)
            yield {
                "mix": f"{group.name}: {' '.join(map(str, mix))}",
                "command": group.commands[one],
                "gpu_model": reader.units()[0].model,
                "limit_pct": 100,
                **said,
                "alone_steps_per_s": sum(rates) / 2 if None not in rates else "",
                "alone_sm_active_pct": sum(active) / 2 if None not in active else "",
                "device_sm_active_pct": device_pct,
            }


def measure(path: Path, todo: Sequence[Group], until_s: float) -> int:
    """Run the groups as far as the time goes; return how many are left."""
    from slurm_colloc.gpu.nvml import NvmlReader

    commands = dict.fromkeys(command for group in todo for command in group.commands)
    programs = {command: _Program(command) for command in commands}
    built_s = time.monotonic() + 150
    built = {one for one, program in programs.items() if program.answer(built_s)["state"] == "BUILT"}
    print(f"{len(built)} of {len(programs)} networks are built, {until_s - time.monotonic():.0f} s left", flush=True)
    reader, left = NvmlReader(), len(todo)
    for group in todo:
        if time.monotonic() > until_s:
            break
        left -= 1
        if set(group.commands) <= built:
            rows = list(run(group, [programs[one] for one in group.commands], reader))
            add_rows(path, COLUMNS, rows)
            print(f"{until_s - time.monotonic():5.0f} s left, group {group.name}: {len(rows)} rows", flush=True)
    for program in programs.values():
        program.end()
    return left


def commands_and_activity() -> dict[str, float]:
    """Return the jobs with the SM activity of each by itself; whose host decodes is left out, for it has two cores."""
    here, rows = Path(__file__).parent, list[dict[str, str]]()
    for table in ("slowdowns_h100.csv", "proof_h100/rates.csv"):
        with (here / table).open(newline="") as stream:
            rows += [row for row in csv.DictReader(stream) if "--decode" not in row["command"]]
    return {one: float(points[100]["sm_active_pct"]) for one, points in best(rows).items() if 100 in points}


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=9.0)
    given = parser.parse_args()
    until_s = time.monotonic() + given.minutes * 60 - 80.0  # what has begun takes up to so long
    there = {row["mix"].partition(":")[0] for row in read_table(given.table, COLUMNS)}
    todo = [group for group in plan(commands_and_activity(), given.seed) if group.name not in there]
    with under_mps(len(todo)):
        print(f"{measure(given.table, todo, until_s)} groups are left", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
