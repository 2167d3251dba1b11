# SPDX-License-Identifier: Apache-2.0
"""How much jobs slow each other on one GPU: `python -m tests.gpu.mixes TABLE.csv SLOWDOWNS.csv [--minutes 9]`.

One NVIDIA GPU with MPS and the libraries of tests/gpu/slowdowns.py, which nobody else uses. Mixes of two to six jobs of
its table run at the same time under MPS: without a limit on their threads (mode free), and some with twice the SM
activity that each has alone (mode twice). A row is one job of one mix; a mix of one job is that job alone. All jobs of
a mix run for the whole of the time that is measured, each on two cores of its own. No setting of the card is changed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.gpu import footprint_job
from tests.gpu.footprints import read_table
from tests.gpu.slowdowns import best

COLUMNS = ("mix", "mode", "command", "gpu_model", "limit_pct", "state", "steps_per_s", "device_sm_active_pct")
_CONTROL = "nvidia-cuda-mps-control"
_SECONDS, _LONGEST_S, _MOST_JOBS, _WARM_UP = 2.0, 40.0, 6, 4
_SUMS_PCT = (60.0, 80.0, 100.0, 100.0, 130.0)


_BERT = (
    "python train.py --library transformers --model bert --batch-size 32 --task train --optimizer adam --seq-len 512"
)
_RESNET = "python train.py --library torchvision --batch-size 32 --task train --optimizer sgd --model"
# Kinds of pairs of which others have published slowdowns.
PAIRS = {
    "much memory, little compute beside heavy": (
        "python train.py --library own --model mlp --batch-size 256 --task train --optimizer adam --hold-mib 30720",
        _BERT,
    ),
    "light beside heavy": (f"{_RESNET} resnet18 --image-size 32 --sync-every 10", _BERT),
    "starved beside heavy": (f"{_RESNET} resnet50 --host-ms 200 --loader serial", _BERT),
}


class Mix(NamedTuple):
    """Jobs that run at the same time, and the limit on each one's threads in percent."""

    name: str
    mode: str
    jobs: tuple[tuple[str, int], ...]


def plan(active_pct: Mapping[str, float], commands: int = 24, mixes: int = 60, seed: int = 1) -> list[Mix]:
    """Return the mixes: each job alone, then mixes whose SM activities come to about one of _SUMS_PCT, then PAIRS."""
    chance = random.Random(seed)
    by_activity = sorted(active_pct, key=lambda one: active_pct[one])
    step = len(by_activity) / commands
    chosen = [by_activity[int((number + 0.5) * step)] for number in range(commands)]
    alone = [Mix(f"alone {number}", "free", ((one, 100),)) for number, one in enumerate(chosen)]
    found = list[Mix]()
    for number in range(mixes):
        most_pct, jobs = _SUMS_PCT[number % len(_SUMS_PCT)], list[str]()
        for one in chance.sample(chosen, len(chosen)):
            fits = sum(active_pct[job] for job in (*jobs, one)) <= most_pct
            if fits and len(jobs) < 2 + number % (_MOST_JOBS - 1):
                jobs.append(one)
        if len(jobs) < 2:
            continue
        found.append(Mix(f"{number}", "free", tuple((job, 100) for job in jobs)))
        if number % 3 == 0:
            limits = tuple((job, min(100, max(4, round(2 * active_pct[job])))) for job in jobs)
            found.append(Mix(f"{number}", "twice", limits))
    of_pairs = dict.fromkeys(job for jobs in PAIRS.values() for job in jobs)
    alone += [Mix(f"alone, of a pair, {number}", "free", ((one, 100),)) for number, one in enumerate(of_pairs)]
    found += [Mix(name, "free", tuple((one, 100) for one in jobs)) for name, jobs in PAIRS.items()]
    return alone + found


def _measured(given: argparse.Namespace, built: Any, ask: Mapping[str, Any], ready: int, go: int) -> float:
    """Run one job of a mix in this process, which CUDA has not begun in; return its steps per second."""
    os.sched_setaffinity(0, set(ask["cores"]))
    os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(ask["limit_pct"])
    import torch

    step, loader = footprint_job.make_step(given, built), footprint_job.Loader(given)

    def steps_until(end_s: float) -> tuple[int, float]:
        began, count = time.monotonic(), 0
        while time.monotonic() < end_s:
            loader.wait()
            step()
            count += 1
            if count % given.sync_every == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        return count, time.monotonic() - began

    for _ in range(_WARM_UP):
        loader.wait()
        step()
    torch.cuda.synchronize()
    os.write(ready, b"r")
    start_s = float(os.read(go, 64))
    steps_until(start_s)
    count, took_s = steps_until(start_s + _SECONDS)
    steps_until(start_s + _SECONDS + 0.7)  # for those that were late
    return count / took_s


class _Program:
    """A process that has built one network on the host and runs it, in a process of its own, whenever it is asked."""

    def __init__(self, command: str) -> None:
        (self._asks, ask), (answers, self._answer) = os.pipe(), os.pipe()
        self.ask, self.answers = ask, answers
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
        os.write(self._answer, b"b")
        while text := os.read(self._asks, 4096):
            pid = os.fork()
            if not pid:
                self._run(given, built, json.loads(text))
            os.waitpid(pid, 0)
        os._exit(0)

    def end(self) -> None:
        """End it and the process that it may have."""
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _run(self, given: argparse.Namespace, built: Any, ask: Mapping[str, Any]) -> None:
        try:
            found = {"state": "COMPLETED", "steps_per_s": _measured(given, built, ask, self._answer, self._asks)}
        except BaseException as error:  # noqa: BLE001 - the row says that it failed
            print(f"{given}: {error!r}"[:600], file=sys.stderr, flush=True)
            found = {"state": "FAILED"}
        os.write(self._answer, json.dumps(found).encode())
        os._exit(0)


def _read(stream: int, until_s: float) -> bytes:
    if not select.select([stream], [], [], max(0.0, until_s - time.monotonic()))[0]:
        raise TimeoutError("a job of the mix does not answer")
    return os.read(stream, 4096)


def run(mix: Mix, programs: Mapping[str, _Program], reader: Any) -> list[dict[str, Any]]:
    """Run one mix and return its rows."""
    own, until_s = sorted(os.sched_getaffinity(0)), time.monotonic() + _LONGEST_S
    for number, (command, limit_pct) in enumerate(mix.jobs):
        cores = [own[(2 * number + one) % len(own)] for one in (0, 1)]
        os.write(programs[command].ask, json.dumps({"cores": cores, "limit_pct": limit_pct}).encode())
    first = {command: _read(programs[command].answers, until_s) for command, _ in mix.jobs}
    begun = [command for command, said in first.items() if said == b"r"]
    start_s = time.monotonic() + 0.4
    for command in begun:
        os.write(programs[command].ask, str(start_s).encode())
    time.sleep(max(0.0, start_s + 0.1 - time.monotonic()))
    reader.read()
    time.sleep(_SECONDS - 0.3)
    reading = reader.read()[0][0]
    rows = []
    for command, limit_pct in mix.jobs:
        said = _read(programs[command].answers, until_s) if command in begun else first[command]
        rows.append(
            {
                "mix": mix.name,
                "mode": mix.mode,
                "command": command,
                "gpu_model": reader.units()[0].model,
                "limit_pct": limit_pct,
                **json.loads(said),
                "device_sm_active_pct": reading.sm_active_pct,
            }
        )
    return rows


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    is_new = not path.exists() or not path.stat().st_size
    with path.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, restval="", lineterminator="\n")
        if is_new:
            writer.writeheader()
        for row in rows:
            writer.writerow({name: f"{v:.6g}" if isinstance(v, float) else v for name, v in row.items()})


def measure(path: Path, todo: Sequence[Mix], until_s: float) -> int:
    """Run the mixes as far as the time goes; return how many are left."""
    from slurm_colloc.gpu.nvml import NvmlReader

    commands = list(dict.fromkeys(command for mix in todo for command, _ in mix.jobs))
    programs = dict[str, _Program]()
    for command in commands:
        programs[command] = _Program(command)
    for command, program in programs.items():
        if _read(program.answers, time.monotonic() + 120) != b"b":
            raise RuntimeError(f"{command} was not built")
    reader, left = NvmlReader(), len(todo)
    for mix in todo:
        if time.monotonic() > until_s:
            break
        left -= 1
        rows = run(mix, programs, reader)
        _write(path, rows)
        said = [f"{row['steps_per_s']:.1f}" if row.get("steps_per_s") else row["state"] for row in rows]
        print(f"{until_s - time.monotonic():5.0f} s left, {mix.mode} {mix.name}:", *said, flush=True)
    for program in programs.values():
        program.end()
    return left


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    parser.add_argument("slowdowns", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    given = parser.parse_args()
    until_s = time.monotonic() + given.minutes * 60 - 10.0
    with given.slowdowns.open(newline="") as stream:
        wholes = {command: points[100] for command, points in best(csv.DictReader(stream)).items() if 100 in points}
    active_pct = {command: float(row["sm_active_pct"]) for command, row in wholes.items()}
    there = {(row["mix"], row["mode"]) for row in read_table(given.table, COLUMNS)}
    todo = [mix for mix in plan(active_pct) if (mix.name, mix.mode) not in there]
    import timm
    import torch
    import torchvision
    import transformers

    print([one.__version__ for one in (torch, torchvision, timm, transformers)], f"{len(todo)} to do", flush=True)
    pipe = tempfile.mkdtemp(prefix="r-", dir="/tmp")
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": pipe}
    subprocess.run([_CONTROL, "-d"], check=True)
    try:
        print(f"{measure(given.table, todo, until_s)} mixes are left", flush=True)
    finally:
        subprocess.run([_CONTROL], input=b"quit\n", check=False)
        shutil.rmtree(pipe, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
