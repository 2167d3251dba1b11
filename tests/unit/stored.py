# SPDX-License-Identifier: Apache-2.0
"""A store with made-up runs and samples in it."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.usage_model import AllocationRow, GroupUsage, JobUsage, NodeSample
from slurm_colloc.facts.aggregate import aggregate, find_runs, usages_of
from slurm_colloc.facts.counts import count_runs
from slurm_colloc.facts.usage import used_hours_by
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.slurm.gres import parse_tres_gres
from slurm_colloc.sources.sacct_client import FIELDS, Parsed
from slurm_colloc.store.sacct_rows import ALLOCATION_COLUMNS, take_rows
from slurm_colloc.store.store import Store
from slurm_colloc.store.text_rows import Form, form_of
from slurm_colloc.store.window import Window
from tests.unit.made import HOUR, MIG_POOL, MPS_POOL, SHARD_POOL, device, process, seen, site

SHARES = site(MPS_POOL, SHARD_POOL, MIG_POOL)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


# Later than every "now" of these tests, unless a test is about it.
INGESTED_S = 1e6


def stored(
    folder: str | Path,
    rows: Sequence[AllocationRow],
    rounds: Sequence[NodeSample] = (),
    config: SiteConfig | None = None,
) -> Store:
    store = Store(str(folder), config)
    store.write_allocations("a", rows, INGESTED_S)
    sampled(store, rounds)
    return store


def runs_in_window(store: Store, since_s: float, until_s: float, now_s: float) -> tuple[int, int]:
    """Return how many runs overlap [since, until), and how many of them had no GPU."""
    with store.connect(since_s, until_s) as database:
        find_runs(database, Window(since_s, until_s, now_s))
        return count_runs(database)[:2]


class MadeHour:
    """An hour of a journal that was never written down."""

    def __init__(self, node: str, began_s: int, rounds: Sequence[NodeSample], rejected: int = 0) -> None:
        self.node, self.began_s, self.rounds = node, began_s, rounds
        self.read_bytes, self.rejected = len(rounds), rejected

    def __iter__(self) -> Iterator[NodeSample]:
        return iter(self.rounds)


def sampled(store: Store, rounds: Sequence[NodeSample], cluster: str = "c") -> None:
    """Flush these NodeSamples, each in its node and hour."""
    hours: dict[tuple[str, int], list[NodeSample]] = {}
    for one in rounds:
        hours.setdefault((one.node, int(one.at_s // HOUR * HOUR)), []).append(one)
    for (node, began_s), of in hours.items():
        with store.samples.work("flush", cluster, node) as work:
            assert work is not None
            store.samples.flush(cluster, MadeHour(node, began_s, of), attribute_sample, work)


def taken(
    text: str | bytes, fields: Sequence[str] = FIELDS, zone: tzinfo | None = None, end: str = "", now_s: float = 2e9
) -> Parsed:
    """Return what is taken in of a sacct text, which has ``end`` between columns and after each row (else '|')."""
    data = text if isinstance(text, bytes) else text.encode(errors="surrogateescape")
    with TemporaryDirectory() as folder, duckdb.connect() as database:
        path = Path(folder) / "sacct.txt"
        path.write_bytes(data)
        if end:
            form = Form(tuple(fields), end.encode(), f"{end}\n".encode(), b"")
        else:
            with path.open("rb") as stream:
                form = form_of(stream, fields)
        counted = take_rows(database, str(path), form, zone, now_s, folder)
        query = f"SELECT {', '.join(ALLOCATION_COLUMNS)} FROM taken ORDER BY ALL"
        found = database.execute(query.replace("user,", '"user",').replace("partition,", '"partition",')).fetchall()
    rows = [AllocationRow._make((*row[:12], parse_tres_gres(row[14]), *row[12:14], row[16])) for row in found]
    return Parsed(tuple(rows), counted.rows_in, counted.steps, dict(counted.rejected))


def grouped(usages: Sequence[JobUsage], by: str = "user") -> list[GroupUsage]:
    """Return these runs added up by group, and last all of them."""
    columns = {
        **{name: (name, "VARCHAR") for name in ("user", "account", "partition", "qos")},
        "kind": ("gpu_type", "VARCHAR"),
        "allocated": ("allocated_gpu_hours", "DOUBLE"),
        "held": ("held_gpu_hours", "DOUBLE"),
        "held_unknown": ("held_unknown_hours", "DOUBLE"),
        "util_measured": ("util_measured_gpu_hours", "DOUBLE"),
        "util_used": ("util_used_gpu_hours", "DOUBLE"),
        "sm_measured": ("sm_measured_gpu_hours", "DOUBLE"),
        "sm_used": ("sm_used_gpu_hours", "DOUBLE"),
        "sm_beyond": ("sm_beyond_gpu_hours", "DOUBLE"),
        "held_idle_hours": ("held_idle_gpu_hours", "DOUBLE"),
        "peak_mib": ("gpu_mem_peak_mib", "BIGINT"),
        "energy_j": ("energy_j", "DOUBLE"),
        "coverage_pct": ("coverage_pct", "DOUBLE"),
        "methods": ("methods", "VARCHAR[]"),
    }
    with duckdb.connect() as database:
        names = ", ".join(
            f'unnest(${number}::{kind}[]) AS "{name}"' for number, (name, (_, kind)) in enumerate(columns.items(), 1)
        )
        values = [[getattr(usage, field) for usage in usages] for field, _ in columns.values()]
        database.execute(f"CREATE TABLE given AS SELECT {names}", values)
        more = "NULL::DOUBLE AS billing_hours, "
        more += "allocated AS gpus, util_used IS NOT NULL OR sm_used IS NOT NULL OR allocated IS NULL AS measured"
        database.execute(f"CREATE TABLE usage AS SELECT *, {more} FROM given")
        return used_hours_by(database, by)


def job_usage(store: Store, since_s: float, until_s: float, now_s: float) -> list[JobUsage]:
    """Return every run that had a GPU, or a share of one, inside [since, until)."""
    with store.connect(since_s, until_s) as database:
        aggregate(database, store, Window(since_s, until_s, now_s))
        return usages_of(database)


def only(store: Store, since_s: float = 0, until_s: float = 1e10, now_s: float = 1e10) -> JobUsage:
    (usage,) = job_usage(store, since_s, until_s, now_s)
    return usage


def busy(
    *times: float, job: str = "1", uuid: str = "GPU-0", interval_s: float = 900.0, util: float | None = 50.0,
    sm: float | None = 20.0, mib: int | None = 3000,
) -> list[NodeSample]:  # fmt: skip
    unit = device(uuid, gpu_util_pct=util, sm_active_pct=sm, gpu_mem_used_mib=mib)
    mine = [process(job, uuid=uuid, gpu_mem_used_mib=mib)]
    return [seen(at_s, [unit], mine, interval_s=interval_s) for at_s in times]
