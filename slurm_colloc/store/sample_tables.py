# SPDX-License-Identifier: Apache-2.0
"""The tables of what was sampled: their columns, how a NodeSample becomes rows, and queries that keep each row once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.usage_model import ADDITIVE, AttributedUse, NodeSample
from slurm_colloc.store import schema
from slurm_colloc.store.equivalents import unit_gpus
from slurm_colloc.store.parquet import read


class Table(NamedTuple):
    """One kind of rows: ``one`` tells whose reading it is among those of one time, ``device`` what was read."""

    name: str
    columns: Mapping[str, str]
    device: tuple[str, ...]
    sums: tuple[str, ...]

    @property
    def one(self) -> tuple[str, ...]:
        """Return what, with ``at_s``, names a row."""
        return (*self.device, "job_id")


SHARES = Table(
    "samples",
    {column.name: column.kind for column in schema.SAMPLES},
    device=("cluster", "uuid"),
    sums=("energy_j",),
)
HOSTS = Table(
    "hosts",
    {column.name: column.kind for column in schema.HOSTS},
    device=("cluster", "node"),
    sums=("cpu_s", "read_mib", "written_mib"),
)
TABLES = (SHARES, HOSTS)

# Random low bits do not compress, and no counter is that exact: percentages keep steps of 1/128, energy of 1/16 J, what
# a job does besides of 1/1024 (s, MiB). Powers of two, so that a FLOAT holds them exactly and sums stay exact; times
# keep milliseconds.
_STEPS = dict.fromkeys(ADDITIVE, 128) | dict.fromkeys(SHARES.sums, 16) | dict.fromkeys(HOSTS.sums, 1024)

# These rows are beyond all days, or of an interval longer than one.
_LONGEST = {"at_s": "1e12", "interval_s": "86400"}


def joined(table: Table, newer: str, older: Sequence[str]) -> str:
    """Return a query of ``newer`` (a table or query's name) and of the files ``older``, in an order that compresses.

    Each row comes once, and a pass that both have is that of the newer rows.
    """
    same = " AND ".join(f"n.{name} = o.{name}" for name in (*table.device, "at_s"))
    pass_rows = (
        f" UNION ALL BY NAME SELECT * FROM {read(older)} o WHERE NOT EXISTS (SELECT 1 FROM {newer} n WHERE {same})"
        if older
        else ""
    )
    order = ", ".join((*table.one, "at_s"))
    return f"SELECT {typed(table)} FROM ({trimmed(table, f'SELECT * FROM {newer}{pass_rows}')}) ORDER BY {order}"


def typed(table: Table) -> str:
    """Return the columns of ``table``, each cast to its type."""
    return ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in table.columns.items())


def trimmed(table: Table, select: str, of: Sequence[str] = ()) -> str:
    """Return the rows of ``select``, each once, no interval beginning before the reading ahead of it.

    The time ``of`` a device, or of what else is named, counts once, also where two samplers ran at a time or the clock
    was set back.
    """
    before = (
        f"max(at_s) OVER (PARTITION BY {', '.join(of or table.device)} ORDER BY at_s "
        "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE GROUP)"
    )
    left = "least(interval_s, coalesce(round(at_s - before_s, 3), interval_s))"
    sums = "".join(f", {name} * coalesce({left} / nullif(interval_s, 0), 1) AS {name}" for name in table.sums)
    return (
        f"SELECT * EXCLUDE (before_s) REPLACE ({left} AS interval_s{sums}) FROM (SELECT *, {before} AS before_s FROM "
        f"(SELECT DISTINCT ON ({', '.join((*table.one, 'at_s'))}) * FROM ({select}) ORDER BY ALL))"
    )


def insert(database: DuckDBPyConnection, table: Table, rows: Iterable[tuple[Any, ...]]) -> None:
    values = [list(column) for column in zip(*rows, strict=True)]
    if not values:
        return
    columns = []
    for number, (name, kind) in enumerate(table.columns.items(), 1):
        column = f"unnest(${number}::{'DOUBLE' if kind == 'FLOAT' else kind}[])"
        if name in _STEPS:
            # A value that no FLOAT can hold is no reading.
            column = f"TRY_CAST(round({column} * {_STEPS[name]}) / {_STEPS[name]} AS FLOAT)"
        elif name in ("at_s", "interval_s"):
            column = f"round(least({column}, {_LONGEST[name]}), 3)"
        columns.append(column)
    database.execute(f"INSERT INTO {table.name} SELECT {', '.join(columns)}", values)


def share_rows(cluster: str, sample: NodeSample, shares: Sequence[AttributedUse]) -> Iterator[tuple[Any, ...]]:
    devices_by_uuid = {device.uuid: device for device in sample.devices}
    sharers: dict[str, int] = {}
    for share in shares:
        sharers[share.uuid] = sharers.get(share.uuid, 0) + (share.job_id != "")
    sums: dict[tuple[str, str], float] = {}
    for share in shares:
        device = devices_by_uuid[share.uuid]
        yield (
            cluster,
            sample.node,
            sample.at_s,
            sample.interval_s,
            share.uuid,
            share.job_id,
            unit_gpus(device.profile, device.model),
            device.sm_count / device.whole_sm_count if device.whole_sm_count else 1.0,
            device.model,
            device.profile,
            share.process_count,
            share.direct_count,
            *(_stepped(sums, (share.uuid, name), getattr(share, name)) for name in ADDITIVE),
            share.gpu_mem_used_mib,
            share.method,
            sharers[share.uuid],
        )


def _stepped(sums: dict[tuple[str, str], float], which: tuple[str, str], part: float | None) -> float | None:
    """Return a part of a device's reading in whole steps, so that these add up to the reading in whole steps.

    The sum so far is rounded and not the part: nothing is lost where each of many is less than a step.
    """
    if part is None or not isfinite(part):
        return part
    before = sums.get(which, 0.0)
    sums[which] = before + part
    steps = _STEPS[which[1]]
    return (round(sums[which] * steps) - round(before * steps)) / steps
