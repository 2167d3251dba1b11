# SPDX-License-Identifier: Apache-2.0
"""The data of a page's charts."""

from collections.abc import Mapping, Sequence

from duckdb import DuckDBPyConnection

from slurm_colloc.core.chart_model import Charts, GroupDetail, IdleRun, UtilAgainstSm
from slurm_colloc.core.usage_model import GroupUsage
from slurm_colloc.facts.over_time import Bins, use_over_time, use_over_week
from slurm_colloc.facts.usage import source
from slurm_colloc.store.queries import named, query
from slurm_colloc.store.window import Window

_CELL_PCT = 5.0
_IDLEST = 5


def charts_of(
    database: DuckDBPyConnection,
    by: str,
    window: Window,
    bins: Bins,
    installed_gpus: float | None,
    kinds: Mapping[str, Sequence[GroupUsage]],
) -> Charts:
    """Return what there is to draw of a database that was aggregated with ``bins``.

    Args:
        database: aggregated, of a store.
        by: one of GROUPINGS, what the details are of.
        window: that was aggregated.
        bins: the same.
        installed_gpus: what the site has of GPUs, None where that is not known.
        kinds: of ``used_hours_by_kind``.
    """
    so_far_s = min(window.until_s, window.now_s)
    key, runs = source(by)
    whole, by_group = use_over_time(database, key, runs, installed_gpus, so_far_s)
    idlest: dict[str, list[IdleRun]] = {}
    for run in named(database, query("idlest_runs", key=key, runs=runs, most=_IDLEST)):
        idlest.setdefault(run.pop("name"), []).append(IdleRun(**run))
    return Charts(
        over_time=whole,
        week=tuple(use_over_week(database, window.since_s, window.until_s, so_far_s)),
        zone=bins.zone,
        util_against_sm=tuple(
            UtilAgainstSm(**row) for row in named(database, query("util_against_sm", cell_pct=_CELL_PCT))
        ),
        details=tuple(
            GroupDetail(name, tuple(by_group.get(name, ())), tuple(of), tuple(idlest.get(name, ())))
            for name, of in kinds.items()
        ),
    )
