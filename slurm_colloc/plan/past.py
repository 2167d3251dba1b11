# SPDX-License-Identifier: Apache-2.0
"""Past runs -> the jobs of a replay, each with what it waited and what was measured of it. Pure."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import ceil
from typing import NamedTuple

from slurm_colloc.core.config import Pool, SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.gpu.mig import parse_profile
from slurm_colloc.plan.model import Job, Shape
from slurm_colloc.plan.site import kind_of_pool
from slurm_colloc.slurm.gres import DEVICES, parse_tres_gres, parse_tres_host
from slurm_colloc.slurm.hostlist import expand

# As long as nothing in Slurm's tables: a run of which no limit is known delays all who would have to be over before it.
_NO_LIMIT_S = 365 * 86400.0
# Slurm looks at the queue at least once a minute (sched_interval), and notices then that a task may go.
_NOTICED_S = 60
PIECES, ONE = "slices and shares", "1 GPU"
CLASSES = (PIECES, ONE, "2 and 3 GPUs", "4 to 7 GPUs", "8 GPUs and more")


class Use(NamedTuple):
    """The memory peak of a run, as measured, and its mean SM activity over the time in which kernels ran."""

    gpu_model: str
    peak_mib: int
    sm_active_pct: float


class Run(NamedTuple):
    """A job and what became of it; ``counted`` is false of one that was submitted before the window."""

    job: Job
    waited_s: float
    shown: str
    kind: str
    counted: bool
    use: Use | None

    @property
    def begun_s(self) -> float:
        """Return when it began."""
        return self.job.submit_s + (self.waited_s if self.counted else 0.0)


class Past(NamedTuple):
    """The runs of a window, those that cannot be replayed by the reason, and the window itself.

    The use of ``assumed`` runs of one GPU is no measured one.
    """

    runs: tuple[Run, ...]
    rejected: Mapping[str, int]
    since_s: float
    until_s: float
    assumed: int = 0

    @property
    def span_s(self) -> float:
        """Return how long the window is."""
        return max(1.0, self.until_s - self.since_s)

    @property
    def counted(self) -> list[Run]:
        """Return the runs that were submitted in the window."""
        return [run for run in self.runs if run.counted]


class Allocated(NamedTuple):
    """A past run as the store has it; ``tres`` is its AllocTRES, ``array`` that of which it is a task."""

    job_id: str
    user: str
    account: str
    partition: str
    qos: str
    submit_s: int
    start_s: int
    end_s: int | None
    node_list: str
    tres: str
    limit_min: int | None
    array: str = ""


def past_of(
    runs: Sequence[Allocated],
    uses: Mapping[str, Use],
    config: SiteConfig,
    window: tuple[float, float],
    assumed: tuple[int, float] | None = None,
) -> Past:
    """Return the jobs of a window's runs.

    A run that is not over is as long as it was known to run. One that began before the window begins when it began.

    Args:
        runs: those of the window, in order of submission.
        uses: their measurements, by job id.
        config: the nodes of the site; a run on none of them is no run of it.
        window: [since, until).
        assumed: peak (MiB) and SM activity (percent) of runs of one GPU of which nothing was measured.
    """
    since_s, until_s = window
    replayable: list[Run] = []
    rejected: Counter[str] = Counter()
    guessed = 0
    at_once = throttles(runs, since_s)
    pools = {name: pool for pool in config.pool for name in expand(pool.nodes)}
    for number, run in enumerate(runs):
        try:
            shape, gres = _shape(run, pools)
        except InputError as error:
            rejected[str(error)] += 1
            continue
        end_s = max(until_s, run.start_s) if run.end_s is None else run.end_s
        limit_s = run.limit_min * 60.0 if run.limit_min else _NO_LIMIT_S
        run_s = float(max(1, end_s - run.start_s))
        job = Job(
            number,
            float(run.start_s if run.start_s < since_s else run.submit_s),
            run_s,
            max(limit_s, run_s),
            run.user,
            run.account,
            run.partition,
            run.qos,
            shape,
            run.array,
            at_once.get(run.array, 0),
        )
        use, kind = uses.get(run.job_id), class_of(shape, gres)
        counted = run.submit_s >= since_s
        if use is None and assumed and kind == ONE:
            use = Use(pools[expand(run.node_list)[0]].gpu_model, *assumed)
            guessed += counted
        replayable.append(Run(job, float(run.start_s - run.submit_s), gres, kind, counted, use))
    return Past(tuple(replayable), rejected, since_s, until_s, guessed)


def throttles(runs: Iterable[Allocated], since_s: float) -> dict[str, int]:
    """Return of each array with a throttle (``--array=0-99%8``) how many of its tasks may run at once.

    Slurm keeps the throttle only in the script or the command line. But a task that it held becomes eligible when
    another of its array ends, and then, each time, as many had run as ever did. Runs do not tell of what ended before
    ``since_s``.
    """
    arrays = defaultdict[str, list[Allocated]](list)
    for run in runs:
        arrays[run.array].append(run)
    arrays.pop("", None)
    limits = {}
    for array, tasks in arrays.items():
        ends = [(task.end_s, -1) for task in tasks if task.end_s is not None]
        moments = sorted([(task.start_s, 1) for task in tasks] + ends)
        running = [0, *accumulate(change for _, change in moments)]
        first_s = max(since_s + _NOTICED_S, min(task.submit_s for task in tasks))
        released = {task.submit_s for task in tasks if task.submit_s > first_s}
        before = [
            max(running[bisect_left(moments, (at_s - _NOTICED_S,)) : bisect_left(moments, (at_s,)) + 1])
            for at_s in released
        ]
        if before and min(before) == max(running):
            limits[array] = max(running)
    return limits


def _shape(run: Allocated, pools: Mapping[str, Pool]) -> tuple[Shape, str]:
    where = expand(run.node_list)
    if not where or not pools.keys() >= set(where):
        raise InputError("it ran on nodes that site.toml does not name")
    held = [gres for gres in parse_tres_gres(run.tres) if gres.name in DEVICES and gres.quantity]
    if len(held) != 1:
        raise InputError("it had GPUs of several kinds")
    (gres,) = held
    pool = pools[where[0]]
    whole_kind = kind_of_pool(pool)
    kind = (gres.type or whole_kind) if gres.name == "gpu" else gres.name
    shown = str(Gres(gres.name, kind if gres.name == "gpu" and kind == pool.gpu_type else gres.type, gres.quantity))
    host = parse_tres_host(run.tres)
    count = len(where)

    def each(amount: int | None) -> int:
        return ceil((amount or 0) / count)

    return Shape(kind, each(gres.quantity), each(host.cpus), each(host.mem_mib), count), shown


def class_of(shape: Shape, shown: str) -> str:
    """Return the class of a job by what it was given."""
    if shown.startswith(("mps", "shard")) or parse_profile(shape.kind):
        return PIECES
    return CLASSES[1 + bisect_right((2, 4, 8), shape.units_in_all)]
