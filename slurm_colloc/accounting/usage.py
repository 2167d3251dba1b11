# SPDX-License-Identifier: Apache-2.0
"""Adds up runs by user, account, partition and the like."""

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.decisions import OF_RUNS
from slurm_colloc.accounting.parquet import named
from slurm_colloc.errors import InputError
from slurm_colloc.usage_model import GroupUsage

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
    return f"{_SUM.format(value)} FILTER ({condition})"


def _of_metric(metric: str) -> dict[str, str]:
    used, of = f"{metric}_used", f"{metric}_measured"
    known = f"{used} IS NOT NULL AND {of} > 0"
    return {
        of: _hours(of, f"{used} IS NOT NULL"),
        used: _hours(used),
        f"{metric}_idle": _hours(f"{of} - {used}", f"{used} IS NOT NULL"),
        f"{metric}_pcts": _hours(f"100 * {used} / nullif({of}, 0)", known),
        f"{metric}_known": f"count(*) FILTER ({known})",
    }


_SIZED, _COVERED = "allocated IS NOT NULL", "coverage_pct IS NOT NULL"
# What is added up over runs; plain means and coverage are quotients of two of them.
_SUMS = {
    "jobs": "count(*)",
    "measured": "count(*) FILTER (measured)",
    "unsized": "count(*) FILTER (gpus IS NULL)",
    "allocated": _hours("allocated"),
    "held": _hours("held", _SIZED),
    "held_unknown": _hours("held_unknown"),
    **_of_metric("util"),
    **_of_metric("sm"),
    "sm_beyond": _hours("sm_beyond"),
    "held_idle": _hours("held_idle_hours", _SIZED),
    "energy_kwh": _hours("energy_j / 3.6e6"),
    "covered": _hours("allocated * coverage_pct", _COVERED),
    "coverage_known": _hours("allocated", _COVERED),
}
_RUNS_ADDED = ", ".join(f"{value} AS {name}" for name, value in _SUMS.items())
_KINDS_ADDED = ", ".join(
    f"coalesce(sum({name}), 0)::BIGINT AS {name}" if value.startswith("count") else f"sum({name})::DOUBLE AS {name}"
    for name, value in _SUMS.items()
)
# A million values are made DECIMAL once: a group's sums, and those of all, are of the sums of its kinds of GPU.
_GROUPS = f"""
WITH of_kinds AS MATERIALIZED (
    SELECT {{key}} AS name, {{kind}} AS of_kind, {_RUNS_ADDED}, max(peak_mib) AS peak_mib,
           list(DISTINCT methods) AS methods
    FROM {{runs}} GROUP BY 1, 2
),
added AS (
    SELECT name, of_kind, grouping(name) AS whole, grouping(of_kind) AS all_kinds, {_KINDS_ADDED},
           max(peak_mib) AS peak_mib, list_sort(list_distinct(flatten(flatten(list(methods))))) AS methods
    FROM of_kinds GROUP BY GROUPING SETS ((name, of_kind), (name), ())
)
SELECT all_kinds, name AS group_name, if(whole = 1, $total, if(all_kinds = 1, name, of_kind)) AS name, jobs,
       measured AS jobs_measured, unsized AS jobs_without_size,
       -- Of no run at all the sums are 0; of runs of which no size is known they are not known.
       if(jobs = 0, 0, allocated) AS allocated_gpu_hours, if(jobs = 0, 0, held) AS held_gpu_hours,
       coalesce(held_unknown, 0) AS held_unknown_hours,
       coalesce(util_measured, 0) AS util_measured_gpu_hours, util_used AS util_used_gpu_hours,
       util_idle AS util_idle_gpu_hours, 100 * util_used / nullif(util_measured, 0) AS util_weighted_pct,
       util_pcts / nullif(util_known, 0) AS util_plain_pct,
       coalesce(sm_measured, 0) AS sm_measured_gpu_hours, sm_used AS sm_used_gpu_hours,
       sm_idle AS sm_idle_gpu_hours, sm_beyond AS sm_beyond_gpu_hours,
       100 * sm_used / nullif(sm_measured, 0) AS sm_weighted_pct, sm_pcts / nullif(sm_known, 0) AS sm_plain_pct,
       held_idle AS held_idle_gpu_hours, peak_mib AS gpu_mem_peak_mib, energy_kwh,
       covered / nullif(coverage_known, 0) AS coverage_pct, coalesce(coverage_known, 0) AS coverage_known_gpu_hours,
       coalesce(methods, []) AS methods
FROM added
ORDER BY whole, if(all_kinds = 1, NULL, added.name), coalesce(sm_idle, util_idle, 0) DESC, allocated DESC,
         added.name, of_kind
"""


def group_usage(database: DuckDBPyConnection, by: str) -> list[GroupUsage]:
    """Return one GroupUsage for each value of ``by`` among the runs of ``usage``, those with most idle first, then all.

    Raises:
        InputError: ``by`` is not one of GROUPINGS.
    """
    return _added_up(database, *source(by), "NULL")[0]


def whole_usage(database: DuckDBPyConnection) -> GroupUsage:
    """Return what all runs of ``usage`` come to, as the last of ``group_usage`` does."""
    return _added_up(database, "''", "usage", "NULL")[0][-1]


def group_and_kind_usage(database: DuckDBPyConnection, by: str) -> tuple[list[GroupUsage], dict[str, list[GroupUsage]]]:
    """Return what ``group_usage`` does, and by group one GroupUsage for each kind of GPU, those with most idle first.

    Raises:
        InputError: ``by`` is not one of GROUPINGS.
    """
    return _added_up(database, *source(by), "kind")


def _added_up(
    database: DuckDBPyConnection, key: str, runs: str, kind: str
) -> tuple[list[GroupUsage], dict[str, list[GroupUsage]]]:
    groups: list[GroupUsage] = []
    kinds: dict[str, list[GroupUsage]] = {}
    for row in named(database, _GROUPS.format(key=key, kind=kind, runs=runs), {"total": "total"}):
        all_kinds, group_name = row.pop("all_kinds"), row.pop("group_name")
        of = groups if all_kinds else kinds.setdefault(group_name, [])
        of.append(GroupUsage(**{**row, "methods": tuple(row["methods"])}))
    return groups, kinds


def source(by: str) -> tuple[str, str]:
    """Return SQL for the name of a run's group, and for the runs that have it.

    Raises:
        InputError: ``by`` is not one of GROUPINGS.
    """
    if by not in GROUPINGS:
        raise InputError(f"'--by {by}' is not one of {', '.join(GROUPINGS)}")
    runs = f"({OF_RUNS})" if by == "signature" else "usage"
    column = f'"{GROUPINGS[by]}"'
    return f"CASE WHEN {column} = '' THEN '(not known)' ELSE coalesce({column}, '(not by csub)') END", runs
