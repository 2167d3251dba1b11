# SPDX-License-Identifier: Apache-2.0
"""Jobs of public shapes for the proof of `colloc site need`, and what the planner says of them. Pure.

A minute of a site is a second here (SECONDS): job times, and the five minutes by which a class may wait longer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from slurm_colloc.core.config import Partition, Pool, Sharing, SiteConfig
from slurm_colloc.plan.change import Asked, otherwise, resized
from slurm_colloc.plan.model import Job, Shape
from slurm_colloc.plan.need import MORE_S, Bound, Need, need
from slurm_colloc.plan.past import PIECES, Past, Run, Use, class_of
from slurm_colloc.plan.scenario import Scenario
from slurm_colloc.plan.sharing import Sharing as Pieces
from slurm_colloc.plan.sharing import share
from slurm_colloc.plan.site import Rules, rules_of, site_of

RECORDED = Path(__file__).resolve().parent / "recorded/need"
# Jobs by GPUs as published, of more than eight as eight, halved from two up: the test cluster is small. Philly and
# Helios are 15,000 rows of each in DIR-LAB/Gen-Parallel-Workloads; MIT Supercloud is its GPU jobs of a thousand, from
# the authors' notebook (HPCA'22); alex is cc-backend's job.db (NHR@FAU).
SHAPES = {
    "philly": {1: 11963 + 375, 2: 905, 4: 1757},
    "helios": {1: 5939 + 544, 2: 647, 4: 3319},
    "supercloud": {1: 842 + 135, 2: 17, 4: 7},
    "alex": {1: 250 + 13, 2: 6, 4: 34},
}
SECONDS = 60.0
SPAN_S, SEED, LOAD = 240.0, 56, 1.05
RUN_LEAST_S, RUN_MEDIAN_S, RUN_SIGMA, RUN_MOST_S = 8.0, 8.0, 1.0, 60.0
LIMIT_FACTORS = (1.5, 3.0, 6.0)
# So many of the jobs of one GPU are measured.
MEASURED = 0.8
MODEL, KIND, PARTITION = "NVIDIA H100 80GB HBM3", "h100", "plan"
GPUS, CPUS, MEM_MIB = 8, 128, 1_024_000
# Of each kind so many shares are a GPU.
SHARES = {"mps": 100, "shard": 10}
FULL = 4 * GPUS
SCHEDULER = (
    "sched_min_interval=0,default_queue_depth=10000,bf_interval=5,bf_resolution=1,bf_window=120,bf_max_job_test=1000,"
    "bf_continue"
)
PRIORITY = {"PriorityWeightFairshare": "0", "PriorityWeightAge": "0"}
STARTS = 8
# The bound of the command, in the time of the trace.
BOUND = Bound(more_s=MORE_S / SECONDS)


class Told(NamedTuple):
    """A job of a trace: submitted at a time after the first, as whom, with which request, to sleep for so long.

    ``peak_mib`` and ``sm_pct`` are its use, 0 where nobody measured it.
    """

    submit_s: float
    user: str
    gpus: int
    cpus: int
    mem_mib: int
    limit_min: int
    run_s: float
    peak_mib: int = 0
    sm_pct: float = 0.0


def trace(shape: str) -> list[Told]:
    """Return the jobs of a shape, one by one and in bursts of one user, over the time in which they fill all GPUs."""
    rng = random.Random(f"{shape} {SEED}")
    sizes = SHAPES[shape]
    found: list[Told] = []
    given = 0.0
    while given < LOAD * FULL * SPAN_S:
        burst, user = (
            1 if rng.random() < 0.7 else rng.randint(2, 6),
            rng.choices(("alice", "bob", "carol"), (9, 4, 7))[0],
        )
        gpus, at = rng.choices(tuple(sizes), tuple(sizes.values()))[0], rng.random()
        for _ in range(burst):
            run_s = round(min(RUN_LEAST_S + rng.lognormvariate(0, RUN_SIGMA) * RUN_MEDIAN_S, RUN_MOST_S), 1)
            limit_min = -int(-(1.3 * run_s + 5) * rng.choice(LIMIT_FACTORS) // 60)
            measured = gpus == 1 and rng.random() < MEASURED
            peak_mib, sm_pct = (rng.randrange(2000, 30_000), round(rng.uniform(2, 40), 1)) if measured else (0, 0.0)
            cpus, mem_mib = gpus * rng.choice((2, 4, 8)), gpus * rng.choice((8, 16, 64)) * 1000
            found.append(Told(at, user, gpus, cpus, mem_mib, limit_min, run_s, peak_mib, sm_pct))
            given += gpus * run_s
    return sorted(one._replace(submit_s=round(one.submit_s * SPAN_S, 1)) for one in found)


def past_of(jobs: Sequence[Told], waited_s: Mapping[int, float]) -> Past:
    """Return the window of these jobs with what they waited."""
    runs = []
    for number, one in enumerate(jobs):
        shape, shown = Shape(KIND, one.gpus, one.cpus, one.mem_mib), f"gpu:{KIND}:{one.gpus}"
        limit_s = 60.0 * one.limit_min
        job = Job(number, one.submit_s, one.run_s, limit_s, one.user, "ml", PARTITION, "normal", shape)
        use = Use(MODEL, one.peak_mib, one.sm_pct) if one.peak_mib else None
        runs.append(Run(job, waited_s.get(number, 0.0), shown, class_of(shape, shown), True, use))
    return Past(tuple(runs), {}, 0.0, jobs[-1].submit_s + 1)


class Planner(NamedTuple):
    """The planner of a site of four nodes, by its shares and its release of Slurm."""

    shares: str
    release: str

    @property
    def config(self) -> SiteConfig:
        mps, shards = (number if name == self.shares else 0 for name, number in SHARES.items())
        pool = Pool("h", "n[1-4]", (PARTITION,), KIND, MODEL, GPUS, 81559, 132, mps, shards, CPUS, MEM_MIB)
        sharing = Sharing(order=(self.shares,), mps_daemon="site" if self.shares == "mps" else "none")
        partition = (Partition(PARTITION, mps_users="all"),)
        return SiteConfig(1, "c", self.release, PARTITION, pool=(pool,), partition=partition, sharing=sharing)

    @property
    def rules(self) -> Rules:
        return rules_of({**PRIORITY, "SchedulerParameters": SCHEDULER, "SLURM_VERSION": self.release})

    def as_replayed(self, jobs: Sequence[Told]) -> Past:
        """Return jobs with the waits that the replay gives them today."""
        return past_of(jobs, self.waits(past_of(jobs, {}), FULL, None))

    def need(self, past: Past) -> int:
        """Return the fewest GPUs that keep the bound with sharing."""
        answer = self.answer(past)
        assert answer.shared is not None, answer
        return answer.shared

    def answer(self, past: Past) -> Need:
        """Return what the planner says of a window."""
        return need(past, self.config, self.rules, Asked(), BOUND, (), lambda *_: None)

    def pieces(self, past: Past, gpus: int) -> Pieces:
        """Return who has which share of so many GPUs."""
        return share(past, resized(self.config, {"h": gpus}), 1.0)

    def waits(self, past: Past, gpus: int, pieces: Pieces | None) -> dict[int, float]:
        """Return what jobs wait on so many GPUs, with their shares or without."""
        site = site_of(resized(self.config, {"h": gpus}), self.rules)
        return Scenario(otherwise(past.runs, pieces, Asked()), site, starts=STARTS).wait_s


def mean_waits(past: Past, waits: Mapping[int, float], pieces: Pieces) -> dict[str, float]:
    """Return the mean wait of each class, those on shares one of their own."""
    classes: dict[str, list[float]] = {}
    for run in past.runs:
        name = PIECES if run.job.number in pieces.pieces else run.kind
        classes.setdefault(name, []).append(waits[run.job.number])
    return {name: fmean(waits) for name, waits in sorted(classes.items())}


class Recording(NamedTuple):
    """A trace as real Slurm ran it: on how many GPUs of today, as said and less, and when what began and ended."""

    planner: Planner
    gpus: Mapping[str, int]
    past: Past
    times_s: Mapping[str, Sequence[tuple[int, int, int]]]

    def waits(self, name: str) -> dict[int, float]:
        """Return what each job waited on the GPUs of this name."""
        return {number: float(start_s - submit_s) for number, (submit_s, start_s, _) in enumerate(self.times_s[name])}

    def pieces(self, name: str) -> Pieces:
        """Return who had which share there: nobody today."""
        return self.planner.pieces(self.past, self.gpus[name]) if name != "today" else NOBODY

    def most_held(self, name: str) -> float:
        """Return the GPUs that jobs had at once at most, their shares as parts."""
        pieces, changes = self.pieces(name).pieces, []
        for number, (_, start_s, end_s) in enumerate(self.times_s[name]):
            units = SHARES[self.planner.shares]
            gpus = pieces[number].units / units if number in pieces else self.past.runs[number].job.shape.units
            changes += [(start_s, gpus), (end_s, -gpus)]
        return max(accumulate(gpus for _, gpus in sorted(changes)))


NOBODY = Pieces({}, 0, 0, 0, 0)


def recording(path: Path) -> Recording:
    """Read a recording; each job runs as long as it ran today."""
    head, *rows = map(json.loads, path.read_text().splitlines())
    jobs = [Told(**{name: row[name] for name in Told._fields}) for row in rows]
    times_s = {name: [tuple(row[name]) for row in rows] for name in head["gpus"]}
    ran = [
        job._replace(submit_s=float(submit_s), run_s=float(max(1, end_s - start_s)))
        for job, (submit_s, start_s, end_s) in zip(jobs, times_s["today"], strict=True)
    ]
    waited_s = {number: float(start_s - submit_s) for number, (submit_s, start_s, _) in enumerate(times_s["today"])}
    return Recording(Planner(head["shares"], head["release"]), head["gpus"], past_of(ran, waited_s), times_s)
