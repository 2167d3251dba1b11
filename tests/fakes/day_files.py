# SPDX-License-Identifier: Apache-2.0
"""A store of flushed days as the agents of 1000 GPUs leave it after compaction, and the runs that used them.

Nodes of 8 GPUs, read every 10 s. What runs on a node changes every few hours: jobs of 1 to 8 GPUs, some GPUs with two
jobs, some with none. Each figure is in the steps that the store keeps, so that sums in whole numbers are the truth.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import duckdb

from slurm_colloc.core.usage_model import MEASURED
from slurm_colloc.store import parquet
from slurm_colloc.store.sample_tables import SHARES, typed
from slurm_colloc.store.samples import RAW_DAY, Samples, day_and_hour
from tests.fakes.sacct_rows import DAY_S, GPU_NODES, PARTS, SHARDS_PER_GPU, Made

CLUSTER = "bench"
PERIOD_S = 10
GPUS = 8
# What a node runs at a time: how many GPUs, and how many jobs on them.
PATTERNS = (
    ((8, 1),),
    ((4, 1), (4, 1)),
    ((4, 1), (2, 1), (1, 1), (1, 0)),
    ((1, 1),) * 8,
    ((2, 1), (2, 1), (1, 1), (1, 1), (1, 2), (1, 2)),
)
_HELD = {
    "node": "VARCHAR",
    "uuid": "VARCHAR",
    "job_id": "VARCHAR",
    "sharers": "INTEGER",
    "from_s": "BIGINT",
    "to_s": "BIGINT",
}


class Held(NamedTuple):
    """A GPU in the hands of one job, or of none (""), for some time."""

    node: str
    uuid: str
    job_id: str
    sharers: int
    from_s: int
    to_s: int


class Written(NamedTuple):
    """What was written, and what it adds up to."""

    samples: int
    size_bytes: int
    until_s: int
    allocated_gpu_hours: float
    sm_used_gpu_hours: float


def last_s(samples: int, since_s: int) -> int:
    """Return when all GPUs together have given about this many samples."""
    return since_s + round(samples / (GPU_NODES * GPUS)) * PERIOD_S


def plan(since_s: int, until_s: int) -> Iterator[tuple[Made | None, list[Held]]]:
    """Yield each run (None: nobody's time) with the GPUs that it held; always the same."""
    draw = random.Random(1)
    number = 5_000_000
    for index in range(1, GPU_NODES + 1):
        # The nodes with shards are those that the site's file knows.
        node, from_s = f"s{index:03}", since_s
        while from_s < until_s:
            to_s = min(until_s, from_s + PERIOD_S * draw.randrange(360, 4320))
            gpu = 0
            for gpus, on_it in draw.choice(PATTERNS):
                uuids = [f"GPU-{index:04}c2d5-9f1e-4a67-b3d4-{gpu + each:012}" for each in range(gpus)]
                gpu += gpus
                # Each reading has a row for what is nobody's, too.
                yield None, [Held(node, uuid, "", on_it, from_s, to_s) for uuid in uuids]
                for _ in range(on_it):
                    number += 1
                    job = _run(number, node, (from_s, to_s), gpus, on_it)
                    yield job, [Held(node, uuid, job.job_id, on_it, from_s, to_s) for uuid in uuids]
            from_s = to_s


def _run(number: int, node: str, ran: tuple[int, int], gpus: int, sharers: int) -> Made:
    tres = f"cpu=8,gres/gpu:a100={gpus},gres/gpu={gpus},mem=64G,node=1"
    parts = PARTS * gpus
    if sharers > 1:
        shards = SHARDS_PER_GPU // sharers
        tres, parts = f"cpu=8,gres/shard={shards},mem=64G,node=1", PARTS * shards // SHARDS_PER_GPU
    lasted_s = ran[1] - ran[0]
    user = f"u{number * 7919 % 1000:04}"
    return Made(
        number, str(number), user, "gpu", "COMPLETED", ran[0] - 60, ran[0], ran[1], lasted_s, 8, tres, node, "train",
        0 if sharers > 1 else gpus, parts,
    )  # fmt: skip


def write_days(folder: Path, samples: int, since_s: int) -> Written:
    """Write about this many samples, beginning at ``since_s``, as days that are closed."""
    until_s = last_s(samples, since_s)
    held: list[Held] = []
    part_seconds = 0
    for job, gpus in plan(since_s, until_s):
        held += gpus
        part_seconds += job.parts * job.elapsed_s if job else 0
    count = steps = 0
    with Samples(str(folder)).work("bench") as work, duckdb.connect() as database:
        assert work is not None
        unnested = ", ".join(f"unnest(?::{kind}[]) AS {name}" for name, kind in _HELD.items())
        database.execute(
            f"CREATE TABLE held AS SELECT {unnested}", [list(column) for column in zip(*held, strict=True)]
        )
        for day_s in range(since_s // DAY_S * DAY_S, until_s + 1, DAY_S):
            day = day_and_hour(day_s)[0]
            for node in (f"s{index:03}" for index in range(1, GPU_NODES + 1)):
                database.execute(f"CREATE OR REPLACE TABLE readings AS {_readings(node, day_s, day_s + DAY_S)}")
                path = os.path.join(folder, SHARES.name, CLUSTER, day, node, RAW_DAY)
                known = {(node, f"{hour:02}"): (1_000_000, 0) for hour in range(24)}
                parquet.write(database, "SELECT * FROM readings", path, known, work, 0o600)
                found = database.execute(
                    "SELECT count(*) FILTER (job_id = ''), sum((sm_active_pct * 128)::BIGINT) FROM readings"
                ).fetchone()
                assert found is not None
                count, steps = count + found[0], steps + int(found[1] or 0)
    size = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    return Written(count, size, until_s, part_seconds / PARTS / 3600, steps * PERIOD_S / 128 / 100 / 3600)


def _readings(node: str, from_s: int, to_s: int) -> str:
    """Return a query of a node's rows of [from, to), in the order of the flushed files.

    Each job has a middle of its own for each figure, and each reading lies within 6 % of it.
    """

    def around(salt: int, least: int, most: int, steps: int) -> str:
        middle = f"{least * steps} + hash(job_id, {salt}) % {(most - least) * steps}"
        return f"(({middle} + hash(uuid, job_id, at_s, {salt}) % {12 * steps}) / {steps}.0 / greatest(sharers, 1))"

    def whole_steps(value: str, steps: int) -> str:
        return f"round({value} * {steps}) / {steps}"

    busy = {
        name: whole_steps(around(salt, least, most, 128), 128)
        for salt, (name, least, most) in enumerate(
            (
                ("gpu_util_pct", 40, 88),
                ("gr_active_pct", 40, 88),
                ("sm_active_pct", 20, 70),
                ("sm_occupancy_pct", 5, 40),
                ("tensor_active_pct", 0, 50),
                ("dram_active_pct", 5, 60),
            )
        )
    }
    of_job = {
        **busy,
        "energy_j": whole_steps(around(7, 2000, 6000, 16), 16),
        "gpu_mem_used_mib": f"{around(8, 4000, 36000, 1)}::BIGINT",
    }
    columns = {
        "cluster": f"'{CLUSTER}'",
        "node": "node",
        "at_s": "at_s",
        "interval_s": str(PERIOD_S),
        "uuid": "uuid",
        "job_id": "job_id",
        "unit_gpus": "1",
        "whole_sm_part": "1",
        "gpu_model": "'NVIDIA A100-SXM4-40GB'",
        "profile": "''",
        "process_count": "(job_id != '')::INTEGER",
        "direct_count": "(job_id != '')::INTEGER",
        **{name: f"if(job_id = '', 0, {value})" for name, value in of_job.items()},
        "method": f"'{MEASURED}'",
        "sharers": "sharers",
    }
    assert list(columns) == list(SHARES.columns)
    times = f"range(greatest(from_s + {PERIOD_S}, {from_s}), least(to_s + {PERIOD_S}, {to_s}), {PERIOD_S})"
    return (
        f"SELECT {typed(SHARES)} FROM (SELECT {', '.join(f'{value} AS {name}' for name, value in columns.items())} "
        f"FROM (SELECT *, unnest({times}) AS at_s FROM held WHERE node = '{node}')) ORDER BY uuid, job_id, at_s"
    )
