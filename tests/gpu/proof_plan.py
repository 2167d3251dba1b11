# SPDX-License-Identifier: Apache-2.0
"""What tests/gpu/proof.py runs: tasks of a published trace, when they arrive, and which arm comes when; all pure.

carma.csv has the 60 submissions of CARMA's trace t1 (itu-rad/CARMA, Apache-2.0, commit e044017) with what each task is:
its batch size, the minutes it took on an A100 and the GPU memory that it held there.
"""

from __future__ import annotations

import csv
import math
import random
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_colloc.placement import speed
from slurm_colloc.placement.packing import MPS_SERVER_MIB

_DRAWS = 300
TRACE = Path(__file__).with_name("carma.csv")
# GPU memory on an A100 below which a task is of this class.
CLASSES_MIB = {"light": 2048, "medium": 10240, "heavy": 10**6}
# The trace was made for as many GPUs.
TRACE_GPUS = 4
# Arms in the order of the first round. Those behind "sbatch" need what was measured in it, but for the two by hand.
ARMS = ("sbatch", "warm", "expert", "late", "cold", "packs", "expert-unbounded", "warm-all", "warm-each")
LEARNED = ("warm", "packs", "warm-all", "warm-each")
# The partition of an arm of several users, where it is not the default one, whose nodes serve one user at a time.
PARTITIONS = {"warm-all": "together", "warm-each": "each"}
BY_HAND = ("expert", "expert-unbounded")
# Mixes that are submitted at once and are not drawn from the trace: so many programs with so many seeds each.
SWEEPS = {"sweep": (1, 20), "siblings": (5, 5)}
# The same whatever slowdown is allowed.
UNBOUND = ("sbatch", "expert-unbounded")
# What Python, the libraries and the network take to be there, and what a cell takes beside its jobs.
STARTUP_S, AROUND_S = 9.0, 15.0
_TEXT = "--library transformers --model {model} --seq-len 512 --optimizer adam"
_IMAGES = "--library {library} --model {model} --image-size {side} --optimizer sgd"
_PROGRAMS = {
    "xception": _IMAGES.format(library="timm", model="xception41", side=299),
    "inception": _IMAGES.format(library="torchvision", model="inception_v3", side=299),
    "UNet": "--library own --model unet --image-size 384 --optimizer adam",
    "DLRM": "--library own --model dlrm --optimizer sgd",
    "MaskRCNN": _IMAGES.format(library="torchvision", model="maskrcnn_resnet50_fpn", side=800),
    "BERT_base": _TEXT.format(model="bert"),
    "BERT_large": _TEXT.format(model="bert-large"),
    "gpt2_large": _TEXT.format(model="gpt2-large"),
    "xlnet_base": _TEXT.format(model="xlnet"),
    "xlnet_large": _TEXT.format(model="xlnet-large"),
}
# ImageNet and VOC are files; of CIFAR, which fits into memory, the runs with this batch size read files as well: with
# them half of the trace's tasks decode.
_FILES, _CIFAR_FILES_BATCH, _DECODERS = ("imagenet", "voc"), 64, 4
# Which a script of one process names.
_LEAST_CORES = 2


class Task(NamedTuple):
    """One submission of the trace."""

    submitted_s: float
    name: str
    model: str
    dataset: str
    batch: int
    gpus: int
    minutes: float
    gpu_mem_mib: int

    @property
    def size(self) -> str:
        """Return its class by footprint."""
        return next(name for name, most in CLASSES_MIB.items() if self.gpu_mem_mib < most)

    def command(self, gpus: int) -> str:
        """Return what its script runs where there are so many GPUs, but for the number of steps.

        On one GPU a task of two takes one, and one's part of the batch.
        """
        side = 32 if self.dataset == "cifar100" else 224
        words = _PROGRAMS.get(self.model) or _IMAGES.format(library="torchvision", model=self.model, side=side)
        files = self.dataset in _FILES or (side == 32 and self.batch == _CIFAR_FILES_BATCH)
        more = f" --decode {_DECODERS}" if files else ""
        taken = min(self.gpus, gpus)
        more += f" --gpus {taken}" if taken > 1 else ""
        batch = self.batch // self.gpus * taken
        return f"python3 train.py --task train --batch-size {batch} {words} --sync-every 10{more}"


class Planned(NamedTuple):
    """One job of a round: when it arrives, in seconds from the first, and how long its steps are to take alone."""

    number: int
    name: str
    size: str
    command: str
    arrives_s: float
    steady_s: float
    gpus: int = 1
    user: int = 0
    seed: int | None = None

    def with_steps(self, steps_per_s: float) -> str:
        """Return its command with as much work as takes so long where a step takes what was measured."""
        seed = "" if self.seed is None else " --seed $1"
        return f"{self.command}{seed} --steps {max(20, round(self.steady_s * steps_per_s))}"


class Cell(NamedTuple):
    """One arm of one round; ``bound`` is the slowdown that is allowed, None where any is."""

    mix: str
    round: int
    arm: str
    bound: float | None

    @property
    def name(self) -> str:
        """Return a name for a folder."""
        return "-".join(map(str, (self.mix, self.round, self.arm, *([self.bound] if self.bound else []))))


def read_trace(path: Path = TRACE) -> list[Task]:
    """Return the trace's submissions, in their order."""
    with path.open(newline="") as stream:
        return [
            Task(float(r["submitted_s"]), r["task"], r["model"], r["dataset"], *_numbers(r))
            for r in csv.DictReader(stream)
        ]


def _numbers(row: Mapping[str, str]) -> tuple[int, int, float, int]:
    return int(row["batch"]), int(row["gpus"]), float(row["minutes"]), int(row["gpu_mem_mib"])


def sample(trace: Sequence[Task], count: int, mix: str, round_: int) -> list[Task]:
    """Draw tasks, as many of each class as in the trace; a program comes as often as it does there.

    Of many draws the one is taken whose minutes are most like the trace's, by median and mean.

    Args:
        trace: all submissions.
        count: how many to draw.
        mix: "all", or the one class that is drawn.
        round_: seeds the draws.
    """
    of_mix = [task for task in trace if mix in ("all", task.size)]
    chance = random.Random(f"{mix} {round_}")

    def off(drawn: Iterable[Task]) -> float:
        own, of_trace = ([task.minutes for task in tasks] for tasks in (drawn, of_mix))
        by_median = statistics.median(own) / statistics.median(of_trace) - 1
        return abs(by_median) + abs(statistics.fmean(own) / statistics.fmean(of_trace) - 1)

    draws = [_drawn(of_mix, min(count, len(of_mix)), chance) for _ in range(_DRAWS)]
    most = max(map(len, draws))
    return sorted(min((one for one in draws if len(one) == most), key=off), key=trace.index)


def _drawn(tasks: Sequence[Task], count: int, chance: random.Random) -> list[Task]:
    drawn: list[Task] = []
    # The light programs, which come most often, fill up what is left.
    for size in reversed(CLASSES_MIB):
        here = [task for task in tasks if task.size == size]
        quota = count - len(drawn) if size == next(iter(CLASSES_MIB)) else round(count * len(here) / len(tasks))
        names = sorted({task.name for task in here})
        chance.shuffle(names)
        for alike in ([task for task in here if task.name == name] for name in names):
            if len(alike) <= quota:
                drawn += alike
                quota -= len(alike)
    return drawn


def plan(
    trace: Sequence[Task], count: int, mix: str, round_: int, median_s: float, gpus: int = 1, users: int = 1
) -> list[Planned]:
    """Return the jobs of a round.

    Durations shrink so that the median of the mix becomes ``median_s``. Arrivals shrink so that the
    load of each GPU, work that arrives over the time in which it does, is what it is in the trace.
    A program belongs to one of the users.
    """
    if mix in SWEEPS:
        return sweeps(trace, mix, round_, median_s)
    tasks = sample(trace, count, mix, round_)
    of_mix = [task.minutes for task in trace if mix in ("all", task.size)]
    shrink = median_s / (60 * statistics.median(of_mix))
    work = sum(task.minutes for task in tasks) / sum(task.minutes for task in trace)
    span_s = (trace[-1].submitted_s - trace[0].submitted_s) * shrink * TRACE_GPUS / gpus * work
    first_s, last_s = tasks[0].submitted_s, tasks[-1].submitted_s
    names = sorted({task.name for task in tasks})
    closer = span_s / max(1.0, last_s - first_s)
    return [
        Planned(
            number,
            one.name,
            one.size,
            one.command(gpus),
            (one.submitted_s - first_s) * closer,
            one.minutes * 60 * shrink,
            min(one.gpus, gpus),
            names.index(one.name) % users,
        )
        for number, one in enumerate(tasks)
    ]


def sweeps(trace: Sequence[Task], mix: str, round_: int, steady_s: float) -> list[Planned]:
    """Return loops over seeds, one behind the other and two jobs a second; each job takes as long alone.

    Their programs are drawn from the trace, each as likely as it is submitted there. One sweep is of a light one, as
    what people sweep is.
    """
    count, seeds = SWEEPS[mix]
    tasks = [task for task in trace if task.gpus == 1 and (count > 1 or task.size == "light")]
    random.Random(f"{mix} {round_}").shuffle(tasks)
    programs = list({task.command(1): task for task in tasks}.values())[:count]
    return [
        Planned(number, f"{one.name}-{which}", one.size, one.command(1), 0.5 * number, steady_s, seed=seed)
        for number, (which, one, seed) in enumerate(
            (which, one, seed) for which, one in enumerate(programs) for seed in range(seeds)
        )
    ]


def of_programs(planned: Sequence[Planned], programs: Collection[str]) -> list[Planned]:
    """Return the jobs of some of the sweeps, the first of which arrives at once; of all where none is named."""
    kept = [one for one in planned if not programs or one.name.rpartition("-")[2] in programs]
    return [one._replace(arrives_s=one.arrives_s - kept[0].arrives_s) for one in kept]


def cores_of(command: str) -> int:
    """Return how many cores a program can use: its own, and one for each thread that decodes."""
    return 1 + (_DECODERS if "--decode" in command else 0)


def limit_min(steady_s: float) -> int:
    """Return the time limit of a job, three times what it takes and a minute: users ask for more than they need."""
    return 1 + math.ceil(3 * (steady_s + STARTUP_S) / 60)


def script(name: str, command: str, steady_s: float, gpus: int = 1, extra: str = "") -> str:
    """Return a batch script as a user writes it; it names its cores: by DefCpuPerGPU no waiting job becomes a share."""
    cpus = max(cores_of(command), _LEAST_CORES)
    words = [f"--job-name={name}", f"--gres=gpu:{gpus}", f"-c {cpus}", f"--time={limit_min(steady_s)}", "--requeue"]
    return "".join(("#!/bin/bash\n", *(f"#SBATCH {word}\n" for word in words), f"{extra}{command}\n"))


def cells(mix: str, rounds: Sequence[int], bounds: Sequence[float], arms: Collection[str] = ARMS) -> Iterator[Cell]:
    """Yield what is to be run, the first bound in all rounds before the others; arms take turns in being first.

    The sbatch arm of a round comes before those that need what was measured in it.
    """
    for number, bound in enumerate(bounds):
        for round_ in rounds:
            here = [arm for arm in ARMS if arm in arms and not (number and arm in UNBOUND)]
            turn = round_ % len(here) if here else 0
            order = here[turn:] + here[:turn]
            if "sbatch" in order:
                first = min(order.index(arm) for arm in order if arm in ("sbatch", *LEARNED))
                order.remove("sbatch")
                order.insert(first, "sbatch")
            for arm in order:
                yield Cell(mix, round_, arm, None if arm in UNBOUND else bound)


def expected_s(cell: Cell, jobs: Sequence[Planned], done: Sequence[Mapping[str, object]], gpus: int = 1) -> float:
    """Return how long a cell may take: as the same arm did, else part of sbatch's, else its jobs in turn."""
    for arm, part in ((cell.arm, 1.05), ("sbatch", 0.6)):
        if known := [float(str(one["took_s"])) for one in done if one["arm"] == arm and one["mix"] == cell.mix]:
            return max(known) * part
    return sum(max(job.steady_s, 2.0) + STARTUP_S for job in jobs) / gpus + AROUND_S


def submissions(jobs: Sequence[Planned], *, packs: bool) -> list[tuple[float, list[Planned]]]:
    """Return what is submitted when: each job when it arrives; as packs those of one program, with the last of them."""
    alike: dict[object, list[Planned]] = {}
    for job in jobs:
        alike.setdefault(job.name if packs else job.number, []).append(job)
    return sorted(((max(job.arrives_s for job in group), group) for group in alike.values()), key=lambda one: one[0])


def is_ready(cell: Cell, done: Collection[Cell]) -> bool:
    """Tell whether what a cell needs was measured: of a round's own programs, in its sbatch arm."""
    return cell.arm not in LEARNED or Cell(cell.mix, cell.round, "sbatch", None) in done


class Need(NamedTuple):
    """What a task needs of the GPU and the node, as the expert has measured it alone."""

    gpu_mem_mib: float
    sm_active_pct: float
    cores: int
    gpus: int = 1


def need_of(row: Mapping[str, str], gpus: int = 1) -> Need:
    """Return what a program needs by its row of rates.csv."""
    mem, sm = float(row["gpu_mem_used_mib"] or 0), float(row["sm_active_pct"] or 100)
    return Need(mem, sm, cores_of(row["command"]), gpus)


def gpus_for(
    one: Need, running: Sequence[Collection[Need]], gpu_mem_mib: int, cores: int, bound: float | None
) -> tuple[int, ...]:
    """Return the GPUs on which an expert starts a task now, the least busy that will do; none: it waits.

    Args:
        one: the task; one of several GPUs has them to itself.
        running: what runs on each GPU.
        gpu_mem_mib: a GPU's memory.
        cores: the node's.
        bound: what each task may be slowed; None: only memory counts.
    """
    # A task of several GPUs runs on each of them and has its cores once.
    taken = sum(need.cores / need.gpus for beside in running for need in beside)
    if bound is not None and taken + one.cores > cores + 1e-9:
        return ()
    order = sorted(range(len(running)), key=lambda gpu: sum(need.sm_active_pct for need in running[gpu]))
    if one.gpus > 1:
        empty = [gpu for gpu in order if not running[gpu]]
        return tuple(empty[: one.gpus]) if len(empty) >= one.gpus else ()
    return next(((gpu,) for gpu in order if fits(one, running[gpu], gpu_mem_mib, bound)), ())


def fits(one: Need, beside: Collection[Need], gpu_mem_mib: int, bound: float | None) -> bool:
    """Tell whether a task may run beside those on one GPU: the memory must do, and nobody be too slow."""
    if any(need.gpus > 1 for need in beside):
        return False
    all_ = (one, *beside)
    if sum(need.gpu_mem_mib for need in all_) > gpu_mem_mib - MPS_SERVER_MIB:
        return False
    if bound is None:
        return True
    active = [need.sm_active_pct for need in all_]
    slowest = max(speed.beside(own, sum(active) - own).expected for i, own in enumerate(active))
    return not beside or slowest <= bound
