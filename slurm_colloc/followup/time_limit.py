# SPDX-License-Identifier: Apache-2.0
"""Jobs on pieces of GPUs that near their time limits: each is named, and given more time where the site allows it.

csub made the time limit of such a job longer by what a piece slows, as foretold. Where that was too little the job
would be killed for having saved others a GPU. Nobody can tell from outside how slow it is; so it gets no more than
``sharing.max_time_stretch`` lets a limit become, nor than a piece of that size can have taken (a quarter of a GPU makes
nothing more than four times as slow), nor than its partition allows, and it gets that once.

What the job had and how long it may run Slurm says. Its decision says only what was asked, and is a file of its user's:
a limit grows by ``sharing.max_time_stretch`` at most, whatever stands there.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from slurm_colloc.config import Pool, SiteConfig
from slurm_colloc.errors import ProcessError, StoreError
from slurm_colloc.files import read_bounded, write_atomic
from slurm_colloc.kinds import fits
from slurm_colloc.model import Decision, Gres
from slurm_colloc.placement.pieces import shares_per_gpu
from slurm_colloc.slurm.jobs import QueuedJob

# From this part of its time limit on a job nears it.
_NEAR = 0.8
_FILE, _MODE, _LIMIT_BYTES = "more_time.json", 0o600, 16 * 1024 * 1024


class Clock(Protocol):
    """What is asked of Slurm."""

    def queue(self, *filters: str) -> tuple[QueuedJob, ...]:
        """Return the jobs that wait or run."""

    def extend(self, job_id: str, limit_min: int) -> None:
        """Set a running job's time limit."""


def follow(decisions: Iterable[Decision], slurm: Clock, config: SiteConfig) -> Iterator[str]:
    """Yield each job on a piece that nears its time limit, in words, and what was done about it.

    Raises:
        StoreError: what was extended before cannot be read, or written.
    """
    known = {(one.user, one.job_id): one for one in decisions if one.limit_asked_min is not None}
    if not known:
        return
    try:
        running = slurm.queue("-r", "-t", "R")
    except ProcessError as error:
        yield f"which jobs near their time limits is not known: {error}"
        return
    extended = _read(config)
    for job in running:
        decision = known.get((job.user, job.array_id))
        piece = next((one for one in job.gres or () if _times_slower(one, job.partition, config) > 1), None)
        if decision is None or piece is None or job.ran_s is None or job.limit_s is None or math.isinf(job.limit_s):
            continue
        ran_min, limit_min = job.ran_s / 60, job.limit_s / 60
        if ran_min < _NEAR * limit_min:
            continue
        said = f"job {job.job_id} of {job.user} on {piece} has run {ran_min:.0f} of its {limit_min:.0f} min"
        most_min = most_time_min(limit_min, piece, job.partition, decision, config)
        if job.job_id in extended:
            yield f"{said}, and was given more before"
        elif most_min <= limit_min:
            yield f"{said}, and may have no more"
        elif not config.sharing.extend_time_limits:
            yield f"{said}; it might have {most_min} (sharing.extend_time_limits)"
        else:
            try:
                # Written first: what is cut short here must not be done twice.
                extended[job.job_id] = limit_min
                _write(extended, config)
                slurm.extend(job.job_id, most_min)
                yield f"{said}; it has {most_min} now"
            except ProcessError as error:
                yield f"{said}, and could not be given {most_min}: {error}"


def most_time_min(limit_min: float, piece: Gres, partition: str, decision: Decision, config: SiteConfig) -> int:
    """Return the longest time limit that a job on a piece may have, in whole minutes; ``limit_min`` is what it has."""
    stretch = config.sharing.max_time_stretch
    bounds = next((one for one in config.partition if one.name == partition), None)
    if bounds is None or decision.limit_asked_min is None:
        return 0
    slower = min(stretch, _times_slower(piece, partition, config))
    most_min = min(limit_min * stretch, decision.limit_asked_min * slower)
    return math.floor(min(most_min, math.inf if bounds.max_time_min is None else bounds.max_time_min))


def _times_slower(gres: Gres, partition: str, config: SiteConfig) -> float:
    """Return how much slower such a piece can be than a whole GPU; 1 for none, and where site.toml does not tell."""
    found = [_of_pool(gres, pool) for pool in config.pool if partition in pool.partitions]
    return min((times for times in found if times is not None), default=1.0)


def _of_pool(gres: Gres, pool: Pool) -> float | None:
    if gres.name == "gpu":
        parts = [one.sm_count for one in pool.slice if one.type == gres.type]
        return pool.sm_count / max(parts) if parts and pool.sm_count else None
    per_gpu = shares_per_gpu(pool, gres.name) if gres.name in ("mps", "shard") else 0
    return per_gpu / gres.quantity if per_gpu else None


def _path(config: SiteConfig) -> str:
    return os.path.join(config.state_folder, "history", _FILE)


def _read(config: SiteConfig) -> dict[str, float]:
    if not os.path.lexists(_path(config)):
        return {}
    try:
        kept = json.loads(read_bounded(_path(config), _LIMIT_BYTES))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"'{_path(config)}' is not of the expected form; remove it") from error
    if not isinstance(kept, dict) or not all(fits(one, float) for one in kept.values()):
        raise StoreError(f"'{_path(config)}' is not of the expected form; remove it")
    return kept


def _write(extended: Mapping[str, float], config: SiteConfig) -> None:
    # Ids come round again, long after: the newest count.
    newest = dict(list(extended.items())[-10_000:])
    write_atomic(_path(config), json.dumps(newest).encode(), _MODE)
