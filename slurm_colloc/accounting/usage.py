# SPDX-License-Identifier: Apache-2.0
"""Runs added up by user, account and the like, where they lie."""

from collections.abc import Sequence
from typing import Any

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.decisions import OF_RUNS
from slurm_colloc.errors import InputError
from slurm_colloc.measured import GroupUsage

# What reports group by -> the column of a run.
GROUPINGS = {
    "user": "user",
    "account": "account",
    "partition": "partition",
    "qos": "qos",
    "gpu": "kind",
    "signature": "signature",
}

# Not one of a group's figures may depend on the order of its runs: DECIMAL sums do not, those of DOUBLE do.
_SUM = "sum(({})::DECIMAL(38, 18))"


def _hours(value: str, condition: str = "true") -> str:
    return f"({_SUM.format(value)} FILTER ({condition}))::DOUBLE"


def _plain(used: str, of: str) -> str:
    known = f"{used} IS NOT NULL AND {of} > 0"
    return f"({_SUM.format(f'100 * {used} / nullif({of}, 0)')} FILTER ({known}) / count(*) FILTER ({known}))::DOUBLE"


_SIZED = "allocated IS NOT NULL"
_GROUPS = f"""
WITH sized AS (
    SELECT {{key}} AS name,
           * REPLACE (if({_SIZED}, util_used, NULL) AS util_used, if({_SIZED}, sm_used, NULL) AS sm_used),
           util_used IS NOT NULL OR sm_used IS NOT NULL AS measured
    FROM {{runs}}
),
added AS (
    SELECT {{names}}, count(*) AS jobs, count(*) FILTER (measured) AS measured,
           count(*) FILTER (NOT ({_SIZED})) AS unsized, {_hours("allocated")} AS allocated,
           {_hours("held", _SIZED)} AS held,
           coalesce({_hours("held_unknown")}, 0) AS held_unknown,
           coalesce({_hours("util_measured", "util_used IS NOT NULL")}, 0) AS util_measured,
           {_hours("util_used")} AS util_used,
           {_hours("util_measured - util_used", "util_used IS NOT NULL")} AS util_idle,
           {_plain("util_used", "util_measured")} AS util_plain,
           coalesce({_hours("sm_measured", "sm_used IS NOT NULL")}, 0) AS sm_measured, {_hours("sm_used")} AS sm_used,
           {_hours("sm_measured - sm_used", "sm_used IS NOT NULL")} AS sm_idle,
           {_plain("sm_used", "sm_measured")} AS sm_plain,
           {_hours("held_idle_hours", _SIZED)} AS held_idle, max(peak_mib) AS peak_mib,
           {_hours("energy_j / 3.6e6")} AS energy_kwh,
           {_hours("allocated * coverage_pct", "coverage_pct IS NOT NULL")}
               / nullif({_hours("allocated", "coverage_pct IS NOT NULL")}, 0) AS coverage_pct,
           coalesce({_hours("allocated", "coverage_pct IS NOT NULL")}, 0) AS coverage_known,
           list_sort(list_distinct(flatten(list(DISTINCT methods)))) AS methods
    FROM sized GROUP BY {{sets}}
)
SELECT {{titles}}, jobs, measured, unsized,
       if(jobs > 0 AND jobs = unsized, NULL, coalesce(allocated, 0)), if(jobs = 0, 0, held), held_unknown,
       util_measured, util_used, util_idle, 100 * util_used / nullif(util_measured, 0), util_plain,
       sm_measured, sm_used, sm_idle, 100 * sm_used / nullif(sm_measured, 0), sm_plain,
       held_idle, peak_mib, energy_kwh, coverage_pct, coverage_known, coalesce(methods, [])
FROM added ORDER BY {{order}}, coalesce(sm_idle, util_idle, 0) DESC, allocated DESC, {{last}}
"""


def group_usage(database: DuckDBPyConnection, by: str) -> list[GroupUsage]:
    """Return one GroupUsage for each value of ``by`` among the runs of ``usage``, those with most idle first, then all.

    Raises:
        InputError: ``by`` is not one of GROUPINGS.
    """
    key, runs = source(by)
    query = _GROUPS.format(
        names="name, grouping(name) AS whole",
        sets="GROUPING SETS ((name), ())",
        titles="if(whole = 1, $total, name)",
        order="whole",
        last="name",
        key=key,
        runs=runs,
    )
    return [_usage(row) for row in database.execute(query, {"total": "total"}).fetchall()]


def kind_usage(database: DuckDBPyConnection, by: str) -> dict[str, list[GroupUsage]]:
    """Return for each value of ``by`` a GroupUsage for each kind of GPU, those with most idle first.

    Raises:
        InputError: ``by`` is not one of GROUPINGS.
    """
    key, runs = source(by)
    query = _GROUPS.format(
        names="name, kind", sets="name, kind", titles="name, kind", order="name", last="kind", key=key, runs=runs
    )
    found: dict[str, list[GroupUsage]] = {}
    for name, *row in database.execute(query).fetchall():
        found.setdefault(name, []).append(_usage(row))
    return found


def source(by: str) -> tuple[str, str]:
    """Return SQL for the name of a run's group, and for the runs that have it.

    Raises:
        InputError: ``by`` is not one of GROUPINGS.
    """
    if by not in GROUPINGS:
        raise InputError(f"'--by {by}' is not one of {', '.join(GROUPINGS)}")
    runs = f"({OF_RUNS})" if by == "signature" else "usage"
    return f"coalesce(\"{GROUPINGS[by]}\", '(not by csub)')", runs


def _usage(row: Sequence[Any]) -> GroupUsage:
    return GroupUsage(*row)._replace(methods=tuple(row[-1]))
