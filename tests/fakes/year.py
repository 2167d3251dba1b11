# SPDX-License-Identifier: Apache-2.0
"""A year of 1,000 GPUs and slices as a store has it: runs of 2,000 users, and the facts of their days.

Each unit has one run after the other, of minutes to nine hours. Of the last days there are samples, of those before
the facts that are made of such samples. Figures of runs are drawn by the hash of their number, so that they are always
the same.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.usage_model import MEASURED
from slurm_colloc.facts.aggregate import find_runs
from slurm_colloc.facts.day_facts import facts_path, make_facts
from slurm_colloc.store import decisions, parquet
from slurm_colloc.store.sacct_rows import ALLOCATION_COLUMNS
from slurm_colloc.store.sample_tables import HOSTS, SHARES, Table, typed
from slurm_colloc.store.samples import DAY, RAW_DAY, day_and_hour
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window

CLUSTER, UNITS = "bench", 1000
HOURS: parquet.Hours = {("a000", "00"): (1000, 0)}
A100, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"
SITE = f"""schema = 1
cluster = "{CLUSTER}"
slurm_release = "24.11"
[[pool]]
name = "a"
nodes = "a[000-087]"
partitions = ["gpu"]
gpu_type = "a100"
gpu_model = "{A100}"
gpus_per_node = 8
gpu_mem_mib = 40448
sm_count = 108
[[pool]]
name = "h"
nodes = "h[088-112]"
partitions = ["gpu"]
gpu_type = "h100"
gpu_model = "{H100}"
gpus_per_node = 8
gpu_mem_mib = 81079
sm_count = 132
[[pool]]
name = "m"
nodes = "m[113-125]"
partitions = ["gpu"]
gpu_model = "{A100}"
gpu_mem_mib = 40448
sm_count = 108
[[pool.slice]]
type = "a100_1g.5gb"
profile = "1g.5gb"
mem_mib = 4864
sm_count = 14
quantity = 4
[[pool.slice]]
type = "a100_3g.20gb"
profile = "3g.20gb"
mem_mib = 19968
sm_count = 42
quantity = 4
"""
# By unit: 700 A100s, 200 H100s, 100 slices.
NODE = "if(unit < 700, 'a', if(unit < 900, 'h', 'm')) || printf('%03d', unit // 8)"
_GRES = """CASE WHEN unit < 700 THEN 'gres/gpu:a100=1,gres/gpu=1' WHEN unit < 900 THEN 'gres/gpu:h100=1,gres/gpu=1'
    ELSE 'gres/gpu:a100_1g.5gb=1,gres/gpu=1' END"""
_NAMES = "['train', 'sweep lr=3e-4,bs=8', 'bash', 'lammps-scan-014', 'eval|b', 'résumé 2']"


class Size(NamedTuple):
    """How much there is; of the last ``raw_days`` there are samples, one a minute."""

    runs: int
    users: int
    days: int
    raw_days: int


def make_runs(database: DuckDBPyConnection, size: Size, since_s: int) -> None:
    """Make the table ``ran`` of runs that come one after the other on each unit."""
    slot_s = size.days * DAY * UNITS // size.runs
    database.execute(f"""
        CREATE TABLE ran AS
        SELECT number, number % {UNITS} AS unit, 1000000 + number AS id, {NODE} AS node,
               printf('u%04d', ({size.users} * (hash(number, 1) % 10000 / 10000.0) ** 2)::INTEGER) AS user,
               {since_s} + number // {UNITS} * {slot_s} + (hash(number, 2) % {slot_s // 10})::BIGINT AS start_s,
               start_s + 60 + (hash(number, 3) % {slot_s * 8 // 10})::BIGINT AS end_s
        FROM (SELECT unnest(range({size.runs})) AS number)
    """)


class Kind(NamedTuple):
    """Where a store differs from a plain year: who makes ``ran``, and SQL for columns of its tables.

    ``on_units`` is ``ran`` with a row for each unit. Without ``hosts`` there are no rows of what jobs did besides.
    """

    make_runs: Callable[[DuckDBPyConnection, Size, int], None] = make_runs
    on_units: str = "ran"
    runs: Mapping[str, str] = {}
    samples: Mapping[str, str] = {}
    hosts: Mapping[str, str] = {}
    decided: str = "number % 50 = 0"
    decisions: Mapping[str, str] = {}


PLAIN = Kind()


class _Sampled(NamedTuple):
    """Of which runs a table has rows, whose they are, and what is in them."""

    table: Table
    source: str
    owners: str
    columns: Mapping[str, str]


def write_year(folder: Path, size: Size, since_s: int, kind: Kind = PLAIN) -> int:
    """Write the store, and return how many rows of samples it has."""
    store = Store(str(folder))

    def fill(database: DuckDBPyConnection, _: str) -> None:
        kind.make_runs(database, size, since_s)
        known = {
            "cluster": f"'{CLUSTER}'",
            **dict.fromkeys(("job_id", "job_id_raw"), "id::VARCHAR"),
            "user": '"user"',
            "account": "printf('lab%03d', hash(\"user\") % 300)",
            "partition": "'gpu'",
            "qos": "'normal'",
            "state": "if(hash(number, 4) % 5 = 0, 'FAILED', 'COMPLETED')",
            "submit_s": "start_s - 60",
            "start_s": "start_s",
            "end_s": "end_s",
            "suspended_s": "0",
            "node_list": "node",
            "job_name": f"{_NAMES}[1 + (hash(number, 5) % 6)::BIGINT]",
            "gres": _GRES,
            "work_dir": "''",
            "ingested_s": str(since_s + size.days * DAY),
            **kind.runs,
        }
        columns = (f'{known.get(name, "NULL")}::{of} AS "{name}"' for name, of in ALLOCATION_COLUMNS.items())
        database.execute(f"CREATE TABLE taken AS SELECT {', '.join(columns)} FROM ran")

    store.take("sacct", fill)
    store.write_log("sacct", {"rows_in": size.runs, "used": size.runs, "steps": 0, "rejected": {}})
    with store.samples.work("bench") as work, parquet.connection(work or "", parquet.THREADS, "1GB") as database:
        assert work is not None
        kind.make_runs(database, size, since_s)
        _write_decisions(database, folder, work, kind)
        tables = [_Sampled(SHARES, kind.on_units, "[id::VARCHAR, '']", {**_SAMPLED, **kind.samples})]
        if kind.hosts:
            tables.append(_Sampled(HOSTS, "ran", "[id::VARCHAR]", {**_SAMPLED, **kind.hosts}))
        with store.connect(since_s, since_s) as made:
            find_runs(made, Window(since_s, since_s + size.days * DAY, since_s + size.days * DAY))
            rows = 0
            for number, day_s in enumerate(range(since_s, since_s + size.days * DAY, DAY)):
                grain_s = 60 if number >= size.days - size.raw_days else 900
                paths = [
                    (_write_day(database, folder, day_s, work, of.table, _rows(day_s, grain_s, *of)),) for of in tables
                ]
                if grain_s > 60:
                    paths = [_write_facts(made, store, day_s, paths, work)]
                (count,) = database.execute(f"SELECT count(*) FROM {parquet.read(paths[0])}").fetchone() or (0,)
                rows += int(count)
            return rows


def _write_facts(
    database: DuckDBPyConnection, store: Store, day_s: int, paths: Sequence[tuple[str]], work: str
) -> tuple[str]:
    """Write a day's facts in place of its samples, and return where they are."""
    day = day_and_hour(day_s)[0]
    path = facts_path(store.samples.folder, CLUSTER, day)
    shares, hosts = (paths[0], paths[1] if len(paths) > 1 else ())
    make_facts(database, store, day, (shares, hosts), path, (HOURS, ""), work)
    for (spent,) in paths:
        shutil.rmtree(Path(spent).parents[1])
    return (path,)


def _write_day(database: DuckDBPyConnection, folder: Path, day_s: int, work: str, table: Table, query: str) -> str:
    """Write a day of samples, and return where they are."""
    path = os.path.join(folder, table.name, CLUSTER, day_and_hour(day_s)[0], "a000", RAW_DAY)
    parquet.write(database, query, path, HOURS, work, 0o600)
    return path


def around(salt: int, least: int, most: int) -> str:
    """Return SQL for a figure of a run, another one in each hour."""
    return f"({least * 128} + hash(number, at_s // 3600, {salt}) % {(most - least) * 128}) / 128.0"


# Column -> SQL over the runs on a unit, of both tables.
_SAMPLED = {
    "cluster": f"'{CLUSTER}'",
    "node": "node",
    "at_s": "at_s",
    "interval_s": "at_s - from_s",
    "uuid": "printf('GPU-%04dc2d5-9f1e-4a67-b3d4-000000000000', unit)",
    "job_id": "job_id",
    "unit_gpus": "if(unit < 900, 1, 1 / 7)",
    "whole_sm_part": "if(unit < 900, 1, 14 / 108)",
    "gpu_model": f"if(unit < 700 OR unit >= 900, '{A100}', '{H100}')",
    "profile": "if(unit < 900, '', '1g.5gb')",
    "process_count": "(job_id != '')::INTEGER",
    "gpu_util_pct": f"if(unit < 900, {around(1, 10, 100)}, NULL)",
    "sm_active_pct": around(2, 2, 70),
    "energy_j": "100.0 * (at_s - from_s)",
    "gpu_mem_used_mib": "1000 + hash(number, 3) % 39000",
    "method": f"'{MEASURED}'",
    "sharers": "1",
}


def _rows(day_s: int, grain_s: int, table: Table, source: str, owners: str, columns: Mapping[str, str]) -> str:
    """Return a query of a day's rows, each of them once for each of its owners."""
    until_s = day_s + DAY
    chosen = ", ".join(f"{columns.get(name, 'NULL')} AS {name}" for name in table.columns)
    order = ", ".join(name for name in ("node", "uuid", "job_id", "at_s") if name in table.columns)
    return f"""
        SELECT {typed(table)} FROM (SELECT {chosen} FROM (
            SELECT *, greatest(start_s, {day_s}, (slot - 1) * {grain_s}) AS from_s,
                   least(end_s, {until_s}, slot * {grain_s}) AS at_s, unnest({owners}) AS job_id
            FROM (SELECT *, unnest(range(greatest(start_s, {day_s}) // {grain_s} + 1,
                                         (least(end_s, {until_s}) - 1) // {grain_s} + 2)) AS slot
                  FROM {source} WHERE start_s < {until_s} AND end_s > {day_s})
        )) ORDER BY {order}
    """


def _write_decisions(database: DuckDBPyConnection, folder: Path, work: str, kind: Kind) -> None:
    """Write what csub decided of one run in fifty."""
    known = {
        "cluster": f"'{CLUSTER}'",
        "user": '"user"',
        "job_id": "id::VARCHAR",
        "at_s": "start_s - 60",
        "signature": "printf('sig%04d', number % 3000)",
        "mode": "'exclusive'",
        "rung": "['hint', 'history', 'probe'][1 + number % 3]",
        "gpu_mem_q99_mib": "20000 + number % 20000",
        "sm_active_q95_pct": "50",
        "shadow": "false",
        "would": "''",
        **kind.decisions,
    }
    columns = (f'{known.get(name, "NULL")}::{of} AS "{name}"' for name, of in decisions.COLUMNS.items())
    select = f"SELECT {', '.join(columns)} FROM ran WHERE {kind.decided}"
    parquet.write(database, select, os.path.join(folder, "decisions.parquet"), {}, work, 0o600)
