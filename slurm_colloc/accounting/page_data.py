# SPDX-License-Identifier: Apache-2.0
"""The data of a page's charts."""

from collections.abc import Mapping, Sequence

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.over_time import Bins, use_over_time, use_over_week
from slurm_colloc.accounting.parquet import named
from slurm_colloc.accounting.usage import source
from slurm_colloc.accounting.window import Window
from slurm_colloc.chart_model import Charts, GroupDetail, IdleRun, UtilAgainstSm
from slurm_colloc.usage_model import GroupUsage

_CELL_PCT = 5.0
_IDLEST = 5

# Each metric over its own covered time, as the samples have it.
_UTIL_AGAINST_SM = f"""
SELECT {{util}} AS util_from_pct, {{sm}} AS sm_from_pct, {_CELL_PCT}::DOUBLE AS cell_pct, count(*) AS runs,
       sum(allocated::DECIMAL(38, 18))::DOUBLE AS allocated_gpu_hours
FROM usage WHERE whole AND util_measured > 0 AND util_used IS NOT NULL AND sm_measured > 0 AND sm_used IS NOT NULL
GROUP BY ALL ORDER BY util_from_pct, sm_from_pct
"""


def _cell(part: str, width: float, last: float) -> str:
    """Return SQL for where the cell of a ratio begins, on whose edge floating point leaves nobody below it."""
    return f"({width} * least(floor(round({part} / {width}, 9)), {last / width}))::DOUBLE"


# Of each group's runs only those that may be among its idlest are sorted.
_RUNS_BY_IDLE = f"""
WITH idle AS (
    SELECT {{key}} AS name, job_id, job_name, shown, allocated, start_s, cluster,
           coalesce(sm_measured - sm_used, util_measured - util_used) AS hours
    FROM {{runs}} WHERE allocated IS NOT NULL AND coalesce(sm_measured - sm_used, util_measured - util_used) > 0
),
least_of AS (SELECT name, list_min(max(hours, {_IDLEST})) AS least_hours FROM idle GROUP BY name)
SELECT name, job_id, job_name, shown AS gres, allocated AS allocated_gpu_hours, hours AS idle_gpu_hours
FROM idle JOIN least_of USING (name) WHERE hours >= least_hours
QUALIFY row_number() OVER (PARTITION BY name ORDER BY hours DESC, job_id, cluster, start_s) <= {_IDLEST}
ORDER BY name, hours DESC, job_id, cluster, start_s
"""


def charts_of(
    database: DuckDBPyConnection,
    by: str,
    window: Window,
    bins: Bins,
    installed_gpus: float | None,
    kinds: Mapping[str, Sequence[GroupUsage]],
) -> Charts:
    """Return what there is to draw of a database that was swept with ``bins``.

    Args:
        database: swept, of a store.
        by: one of GROUPINGS, what the details are of.
        window: that was swept.
        bins: the same.
        installed_gpus: what the site has of GPUs, None where that is not known.
        kinds: of ``group_and_kind_usage``.
    """
    so_far_s = min(window.until_s, window.now_s)
    key, runs = source(by)
    whole, by_group = use_over_time(database, key, runs, installed_gpus, so_far_s)
    idlest: dict[str, list[IdleRun]] = {}
    for run in named(database, _RUNS_BY_IDLE.format(key=key, runs=runs)):
        idlest.setdefault(run.pop("name"), []).append(IdleRun(**run))
    return Charts(
        over_time=whole,
        week=tuple(use_over_week(database, window.since_s, window.until_s, so_far_s)),
        zone=bins.zone,
        util_against_sm=_util_against_sm(database),
        details=tuple(
            GroupDetail(name, tuple(by_group.get(name, ())), tuple(of), tuple(idlest.get(name, ())))
            for name, of in kinds.items()
        ),
    )


def _util_against_sm(database: DuckDBPyConnection) -> tuple[UtilAgainstSm, ...]:
    cells = {
        name: _cell(f"round(100 * {name}_used / {name}_measured, 6)", _CELL_PCT, 100 - _CELL_PCT)
        for name in ("util", "sm")
    }
    return tuple(UtilAgainstSm(**row) for row in named(database, _UTIL_AGAINST_SM.format(**cells)))
