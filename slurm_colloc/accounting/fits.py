# SPDX-License-Identifier: Apache-2.0
"""What runs of whole GPUs would have fitted, by what was measured of them: a smaller slice of the same GPU, or none.

A run on one GPU would have fitted a slice that holds its memory peak with the site's headroom, and that has as many SMs
as it kept busy on average, so that it would have taken no longer. One on several GPUs fits no slice.
"""

from collections.abc import Iterable, Sequence
from math import fsum
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.equivalents import worth_in_pool
from slurm_colloc.accounting.parquet import make_rows
from slurm_colloc.accounting.usage import source
from slurm_colloc.charted import Fit
from slurm_colloc.config import SiteConfig
from slurm_colloc.model import Gres

TOTAL = "total"
_SLICE_KINDS = {"model": "VARCHAR", "type": "VARCHAR", "gpus": "DOUBLE", "mem_mib": "BIGINT", "sm_pct": "DOUBLE"}
_HOURS = "sum(({})::DECIMAL(38, 18))::DOUBLE"
# Floating point leaves a little above the 100 % of a slice that a run filled.
_FITS = f"""
WITH measured AS (
    SELECT {{key}} AS name, allocated, devices, model, peak_mib, round(100 * sm_used / sm_measured, 6) AS sm_pct
    FROM {{runs}}
    WHERE whole AND peak_mib IS NOT NULL AND sm_used IS NOT NULL AND sm_measured > 0
      AND coverage_pct >= $least_pct AND 100 * sm_measured >= $least_pct * allocated AND (devices > 1 OR model != '')
),
fitted AS (
    SELECT name, allocated, CASE WHEN devices = 1 THEN list_filter(slices, lambda one:
               one.mem_mib >= peak_mib + $headroom AND one.sm_pct >= m.sm_pct)[1] END AS slice
    FROM measured m LEFT JOIN (
        SELECT model, list({{{{'type': type, 'gpus': gpus, 'mem_mib': mem_mib, 'sm_pct': sm_pct}}}}
                           ORDER BY gpus, mem_mib, type) AS slices
        FROM slices GROUP BY model
    ) s USING (model)
)
SELECT name, slice.type, slice.gpus, slice.mem_mib, {_HOURS.format("allocated")},
       coalesce({_HOURS.format("allocated * (1 - slice.gpus)")}, 0)
FROM fitted GROUP BY ALL ORDER BY ALL
"""


class _Fitted(NamedTuple):
    """The runs of one group whose smallest slice is of one kind; ``unit`` is None of those that fit none."""

    name: str
    unit: str | None
    gpus: float | None
    mem_mib: int | None
    allocated_gpu_hours: float
    freed_gpu_hours: float


def fits_of(database: DuckDBPyConnection, by: str, config: SiteConfig, convention: str) -> tuple[Fit, ...]:
    """Return for each group what its runs would have fitted, those first of which most would be left, then "total".

    Groups of which too little was measured are not among them, and nobody is where the site has no slices.

    Args:
        database: swept, of a store.
        by: one of GROUPINGS.
        config: says what slices there are, how much of a run must be measured, and the headroom of memory.
        convention: one of CONVENTIONS, by which a slice is part of its GPU.
    """
    slices = _slices(config, convention)
    if not slices:
        return ()
    make_rows(database, "slices", _SLICE_KINDS, slices)
    key, runs = source(by)
    bounds = {"least_pct": config.audit.min_coverage_pct, "headroom": config.sharing.headroom_mib}
    rows = [_Fitted(*row) for row in database.execute(_FITS.format(key=key, runs=runs), bounds).fetchall()]
    if not rows:
        return ()
    by_name: dict[str, list[_Fitted]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    groups = [_fit(name, of) for name, of in by_name.items()]
    return (*sorted(groups, key=lambda fit: (-fit.freed_gpu_hours, fit.name)), _fit(TOTAL, rows))


def _slices(config: SiteConfig, convention: str) -> list[tuple[str, str, float, int, float]]:
    """Return the slices of all pools by model of their GPU; of two kinds with one type Slurm may give the lesser."""
    found: dict[tuple[str, str], tuple[float, int, float]] = {}
    for pool in config.pool:
        for part in pool.slice:
            gpus = worth_in_pool(Gres("gpu", part.type, 1), pool, convention)
            if not (pool.gpu_model and pool.sm_count and part.quantity and part.sm_count and part.mem_mib and gpus):
                continue
            sm_pct = 100 * part.sm_count / pool.sm_count
            before = found.get((pool.gpu_model, part.type), (gpus, part.mem_mib, sm_pct))
            lesser = (max(gpus, before[0]), min(part.mem_mib, before[1]), min(sm_pct, before[2]))
            found[pool.gpu_model, part.type] = lesser
    return [(*which, *what) for which, what in found.items()]


def _fit(name: str, rows: Sequence[_Fitted]) -> Fit:
    fitted = [row for row in rows if row.unit is not None]
    return Fit(
        name,
        known_gpu_hours=fsum(row.allocated_gpu_hours for row in rows),
        fits_gpu_hours=fsum(row.allocated_gpu_hours for row in fitted),
        freed_gpu_hours=fsum(row.freed_gpu_hours for row in fitted),
        unit=_smallest_of_most(fitted),
    )


def _smallest_of_most(fitted: Iterable[_Fitted]) -> str:
    """Return the smallest slice that at least half of the time fits, as it or a smaller one; empty where none fits."""
    ordered = sorted(fitted, key=lambda row: (row.gpus or 0.0, row.mem_mib or 0, row.unit or ""))
    half, so_far = fsum(row.allocated_gpu_hours for row in ordered) / 2, 0.0
    for row in ordered:
        so_far += row.allocated_gpu_hours
        if so_far >= half:
            return row.unit or ""
    return ""
