# SPDX-License-Identifier: Apache-2.0
"""A month of 1,000 GPUs and slices in which each audit rule has something to judge and something to find.

It is a year's store (year.py) with what rules ask for besides: rows of what jobs did on their hosts, cores, memory and
time limits, shares by MPS, runs on two GPUs, runs of a day beside those of minutes, and runs that still run. A habit is
a user's: one of ``USERS_PER_HABIT`` has it in half of his runs, the others have none, and about one user in five has
some.
"""

from __future__ import annotations

from duckdb import DuckDBPyConnection

from slurm_colloc.store.samples import DAY
from tests.fakes import year
from tests.fakes.year import UNITS, Kind, Size, around

# What a user does wrong -> the rule that is about it. Others are found by what is drawn of all runs.
HABITS = {
    "zero": "COL001",
    "low": "COL003",
    "empty": "COL001",
    "tail": "COL001",
    "parked": "COL001",
    "cores": "COL008",
    "memory": "COL009",
    "limit": "COL011",
    "starved": "COL012",
    "outside": "COL014",
    "over": "COL010",
}
USERS_PER_HABIT = 60
# One unit in ten has runs of so many slots; its neighbour is the second GPU of these.
_LONG = 32
SITE = year.SITE.replace('gpu_type = "a100"\n', 'gpu_type = "a100"\ncpus_per_node = 96\nmem_per_node_mib = 1048576\n')
SITE = SITE.replace('gpu_type = "h100"\n', 'gpu_type = "h100"\ncpus_per_node = 96\nmem_per_node_mib = 1048576\n')
SITE = SITE.replace("sm_count = 132\n", "sm_count = 132\nmps_per_gpu = 100\n")
_SLOTS = f"if(unit % 10 = 0, {_LONG}, 1)"


def make_runs(database: DuckDBPyConnection, size: Size, since_s: int) -> None:
    """Make the table ``ran``, and ``on_units`` with a row for each unit of a run."""
    a_slot = UNITS * (0.8 + 0.1 / _LONG)
    slots = max(1, int(-(-size.runs // a_slot)))
    slot_s, until_s = size.days * DAY // slots, since_s + size.days * DAY
    database.execute(f"""
        CREATE TABLE ran AS
        SELECT number, unit, 1000000 + number AS id, {year.NODE} AS node,
               CASE WHEN unit % 10 = 0 THEN 2 ELSE 1 END AS units,
               printf('u%04d', least({size.users} - 1, floor({size.users} * (hash(number, 1) % 10000 / 10000.0) ** 2))
                      ::INTEGER) AS user,
               {since_s} + number // {UNITS} * {slot_s} + (hash(number, 2) % ({slot_s} * of // 10))::BIGINT AS start_s,
               start_s + 60 + (hash(number, 3) % ({slot_s} * of * 8 // 10))::BIGINT AS drawn_s,
               -- Who runs in the last slot still runs.
               if(number // {UNITS} + of >= {slots}, {until_s} + 3600, least(drawn_s, {until_s})) AS end_s,
               CASE WHEN end_s > {until_s} AND hash(number, 7) % 8 = 0 THEN 'zero'
                    WHEN hash(number, 9) % 2 = 0 THEN {list(HABITS)}[1 + (hash("user") % {USERS_PER_HABIT})::BIGINT] END
                    AS habit
        FROM (SELECT slot * {UNITS} + unit AS number, unit, {_SLOTS} AS of
              FROM range({UNITS}) units(unit), range({slots}) slots(slot)
              WHERE unit % 10 != 1 AND slot % {_SLOTS} = 0 ORDER BY number LIMIT {size.runs})
        WHERE start_s < {until_s}
    """)
    database.execute("CREATE VIEW on_units AS SELECT * REPLACE (unnest([unit, unit + 1][:units]) AS unit) FROM ran")


def _is(habit: str) -> str:
    return f"habit IS NOT DISTINCT FROM '{habit}'"


_CPUS = f"if({_is('cores')}, 30, 6)"
_MEM = f"if({_is('memory')}, 400, 64)"
_TYPED = "CASE WHEN unit < 700 THEN 'gpu:a100' WHEN unit < 900 THEN 'gpu:h100' ELSE 'gpu:a100_1g.5gb' END"
_MPS = "unit BETWEEN 850 AND 899 AND unit % 10 > 1"
# When of a run with habits its GPUs work.
_WORKS = """CASE habit WHEN 'zero' THEN false WHEN 'parked' THEN false
    WHEN 'tail' THEN at_s < start_s + 0.3 * (end_s - start_s) WHEN 'empty' THEN at_s > start_s + 0.5 * (end_s - start_s)
    ELSE true END"""
_BUSY = f"coalesce({_WORKS}, true)"
# Of one user in ten runs may need little; the others fill most of what a GPU has.
_PEAK = f"""CASE WHEN {_is("zero")} THEN 400 WHEN hash("user", 1) % 10 = 0 THEN 1000 + hash(number, 3) % 39000
    WHEN {_MPS} THEN if({_is("over")}, 50000, 20000) + hash(number, 3) % 19000
    WHEN unit BETWEEN 700 AND 899 THEN 60000 + hash(number, 3) % 20000 ELSE 25000 + hash(number, 3) % 15000 END"""


def kind(size: Size, since_s: int) -> Kind:
    """Return what such a month has and a year has not."""
    runs_on = f"end_s > {since_s + size.days * DAY}"
    return Kind(
        make_runs,
        on_units="on_units",
        runs={
            "end_s": f"if({runs_on}, NULL, end_s)",
            "state": f"if({runs_on}, 'RUNNING', if(hash(number, 4) % 5 = 0, 'FAILED', 'COMPLETED'))",
            "node_list": "node",
            "gres": f"if({_MPS}, 'gres/mps=50', 'gres/' || {_TYPED} || '=' || units || ',gres/gpu=' || units) || "
            f"printf(',cpu=%d,mem=%dG,node=%d', {_CPUS} * units, {_MEM} * units, 1)",
            "limit_min": f"ceil((end_s - start_s) / 60 * if({_is('limit')}, 30, 1.3 + hash(number, 11) % 100 / 100))",
        },
        samples={
            "process_count": f"if(job_id != '', if({_is('empty')} AND NOT {_BUSY}, 0, 1), "
            "(hash(node) % 25 = 0)::INTEGER)",
            "direct_count": f"if({_MPS} AND job_id != '', ({_is('outside')})::INTEGER, NULL)",
            "gpu_util_pct": f"CASE WHEN unit >= 900 THEN NULL WHEN NOT {_BUSY} THEN 0 "
            f"WHEN habit IN ('low', 'starved') THEN {around(1, 20, 50)} ELSE {around(1, 40, 100)} END",
            "sm_active_pct": f"CASE WHEN NOT {_BUSY} THEN 0 WHEN {_is('low')} THEN {around(2, 1, 10)} "
            f"WHEN {_is('starved')} THEN {around(2, 5, 30)} ELSE {around(2, 2, 70)} END",
            "gpu_mem_used_mib": _PEAK,
        },
        hosts={
            "cpu_s": f"(at_s - from_s) * {_CPUS} * units * if({_is('starved')}, 0.97, {around(6, 20, 70)} / 100)",
            "host_mem_mib": f"if({_is('memory')}, 4000, 2000 + hash(number, 8) % 30000)",
            "read_mib": f"(at_s - from_s) * {around(10, 0, 50)}",
            "written_mib": f"(at_s - from_s) * {around(12, 0, 5)}",
        },
        decided="hash(number, 13) % 50 = 0",
        decisions={
            "signature": "printf('sig%d', hash(number, 5) % 6)",
            "mode": f"CASE WHEN unit >= 900 THEN 'mig' WHEN {_MPS} THEN 'mps' ELSE 'exclusive' END",
            # One user in sixty needs more than he is taken to need, and one far less.
            "gpu_mem_q99_mib": f'({_PEAK}) * CASE hash("user") % {USERS_PER_HABIT} WHEN 20 THEN 0.6 WHEN 21 THEN 3 '
            "ELSE 1.25 END",
        },
    )
