# SPDX-License-Identifier: Apache-2.0
"""The piece that each run of a whole GPU would have fitted, by placement/fitted.py.

The database judges many runs where they lie: the ladder of pieces decides, which is the same for all runs of one model,
partition, account and QOS, so each ladder is made once and the first step that holds a run is picked.
"""

from collections.abc import Iterable, Sequence
from math import fsum
from typing import NamedTuple

import duckdb
from duckdb import DuckDBPyConnection

from slurm_colloc.core.chart_model import Fit
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import COMPLETED, Evidence, Gres
from slurm_colloc.core.usage_model import MIN_COVERAGE_PCT, JobUsage
from slurm_colloc.facts.aggregate import usages_of
from slurm_colloc.facts.collocation import make_idle_units
from slurm_colloc.facts.day_facts import FIX
from slurm_colloc.facts.judgement import NEVER_USED, Fitted, Judgement, RunFound
from slurm_colloc.facts.usage import source
from slurm_colloc.gpu.mig import tells_sm_activity
from slurm_colloc.placement.fitted import SM_DIGITS, Step, had_piece, has_pieces, known_names, ladder, past_request
from slurm_colloc.store.equivalents import SLICES, equivalent_in_pool
from slurm_colloc.store.queries import kinds_of, make_rows, named, query, records

TOTAL = "total"
_WHERE = 'SELECT DISTINCT "partition", account, qos, shown, model FROM measured_alone ORDER BY ALL'
_PLACES = kinds_of(
    "partition VARCHAR, account VARCHAR, qos VARCHAR, shown VARCHAR, model VARCHAR, ladder INTEGER, tells_sm BOOLEAN"
)
_STEPS = kinds_of(
    "ladder INTEGER, step INTEGER, unit VARCHAR, gpus DOUBLE, most_mib BIGINT, most_sm_pct DOUBLE, place VARCHAR"
)
_USAGE = kinds_of("run BIGINT, state VARCHAR, devices INTEGER, allocated DOUBLE, peak_mib BIGINT, whole BOOLEAN")
_MEASURED = kinds_of(
    "run BIGINT, model VARCHAR, sm_pct DOUBLE, is_bound BOOLEAN, alone_s DOUBLE, elapsed_s DOUBLE, "
    "partition VARCHAR, account VARCHAR, qos VARCHAR, shown VARCHAR"
)
_IDLE = kinds_of("run BIGINT, idle_units DOUBLE, fewer BOOLEAN, unit_nodes BIGINT")
# The fields of Fitted, of a row of run_fits.
_FOUND = """
coalesce(fit_why, '') AS why, coalesce(fit_unit, '') AS unit, fit_gpus AS gpus, fit_most_mib AS most_mib,
fit_freed AS freed_gpu_hours, asked_gpus, unused_gpus::BIGINT AS unused_gpus, spare AS spare_gpu_hours,
unit_nodes AS nodes, coalesce(fit_place, '') AS "partition"
"""


class _Fitted(NamedTuple):
    """Runs of one group on one ``kind`` of GPU that would have had the same piece; ``unit`` is None where none fits."""

    name: str
    kind: str
    partition: str
    known: bool
    unit: str | None
    gpus: float | None
    most_mib: int | None
    runs: int
    allocated_gpu_hours: float
    freed_gpu_hours: float
    spare_runs: int
    spare_gpu_hours: float


def fits_of(database: DuckDBPyConnection, by: str, config: SiteConfig, convention: str) -> tuple[Fit, ...]:
    """Return for each group what its runs would have fitted, those first of which most would be left, then "total".

    Groups of which too little was measured are not among them, and nobody is where the site has no pieces.

    Args:
        database: one that was aggregated.
        by: one of GROUPINGS.
        config: says what pieces there are, how much of a run must be measured, and what a piece must hold.
        convention: one of CONVENTIONS, by which a slice is part of its GPU.
    """
    if not has_pieces(config):
        return ()
    make_run_fits(database, config, convention)
    key, runs = source(by)
    rows = records(_Fitted, database, query("facts/sql/fits", key=key, runs=runs))
    by_name: dict[str, list[_Fitted]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    groups = [_added(name, group) for name, group in by_name.items() if _says(group)]
    if not groups:
        return ()
    return (*sorted(groups, key=lambda fit: (-fit.could_free_gpu_hours, fit.name)), _added(TOTAL, rows))


def _says(rows: Iterable[_Fitted]) -> bool:
    return any(row.known or row.spare_runs for row in rows)


def make_run_fits(
    database: DuckDBPyConnection, config: SiteConfig, convention: str = SLICES, part: str = "true"
) -> None:
    """Make the table ``run_fits`` of what each run of whole GPUs would have fitted, of that ``part`` of runs.

    It has whether that can be judged (``fit_judged``), else why not, and if so the first piece that holds the run, NULL
    where none does: its unit, its worth in whole GPUs, the largest memory peak in MiB that it holds, and what it would
    have left to others; its mean SM activity in percent while kernels ran; how many of several GPUs it never used.

    Args:
        database: one that was aggregated.
        config: as in ``fits_of``.
        convention: as in ``fits_of``.
        part: a condition on ``run``.
    """
    make_idle_units(database)
    measured = query("facts/sql/measured_alone", part=part, fix=FIX, digits=SM_DIGITS)
    database.execute(f"CREATE OR REPLACE TEMP TABLE measured_alone AS {measured}")
    _make_run_fits(database, config, convention, part, NEVER_USED)


def _make_run_fits(
    database: DuckDBPyConnection, config: SiteConfig, convention: str, part: str, never_used: str
) -> None:
    _make_ladders(database, config, convention)
    bounds = {"completed": COMPLETED, "least_pct": MIN_COVERAGE_PCT, "never_used": never_used}
    select = query("facts/sql/run_fits", part=part, **bounds)
    database.execute(f"CREATE OR REPLACE TEMP TABLE run_fits AS {select}")


def _make_ladders(database: DuckDBPyConnection, config: SiteConfig, convention: str) -> None:
    """Make the tables of the ladders, and of which of them the runs in ``measured_alone`` have."""
    names = known_names(config)
    places, steps = [], []
    ladders: dict[tuple[str, ...], int] = {}
    for where in database.execute(_WHERE).fetchall():
        partition, account, qos, shown, model = map(str, where)
        # Accounts and QOS of which no partition speaks are all alike: a site has more of them than ladders.
        account, qos = (name if not name or name.lower() in names else "?" for name in (account, qos))
        alike = partition, account, qos, shown, model
        if alike not in ladders:
            ladders[alike] = len(ladders)
            ladder_steps = ladder(past_request(shown, partition, account, qos), model, config)
            steps += [
                (ladders[alike], number, str(step.gres), step_gpus(step, convention), step.most_peak_mib,
                 step.most_sm_pct, step.partition)
                for number, step in enumerate(ladder_steps)
            ]  # fmt: skip
        places.append((*where, ladders[alike], tells_sm_activity(model)))
    for name, kinds, rows in (("fit_places", _PLACES, places), ("fit_steps", _STEPS, steps)):
        database.execute(f"DROP TABLE IF EXISTS {name}")
        make_rows(database, name, kinds, rows)


def step_gpus(step: Step, convention: str = SLICES) -> float | None:
    """Return what a piece is worth in whole GPUs, at most; None where a pool that may give it does not say."""
    unit = Gres(step.gres.name, step.gres.type, 1)
    equivalents = [equivalent_in_pool(unit, pool, convention) for pool in step.pools]
    sizes = [size for size in equivalents if size is not None]
    return max(sizes) * step.gres.quantity if sizes and len(sizes) == len(equivalents) else None


def key_of(run: JobUsage) -> tuple[str, str, float]:
    """Return what tells a run from others."""
    return run.cluster, run.job_id_raw, run.start_s


def fitted_of(database: DuckDBPyConnection, config: SiteConfig | None) -> dict[tuple[str, str, float], Fitted]:
    """Return what is found of each run of whole GPUs by cluster, raw id and start; ``database`` is aggregated."""
    if config is None:
        return {}
    make_run_fits(database, config)
    rows = named(database, f"SELECT cluster, job_id_raw, from_s, {_FOUND} FROM run_fits JOIN usage USING (run)")
    return {(row.pop("cluster"), row.pop("job_id_raw"), row.pop("from_s")): Fitted(**row) for row in rows}


def one_run(database: DuckDBPyConnection, run: int) -> RunFound:
    """Return a run by its number, with what is found of it; ``database`` has ``run_fits``."""
    (usage,) = usages_of(database, f"run = {run}")
    (fitted,) = records(Fitted, database, f"SELECT {_FOUND} FROM run_fits WHERE run = {run}") or (None,)
    return RunFound(usage, None, None, fitted)


class Kept(NamedTuple):
    """The evidence of a run of a whole GPU, and where it was: partition, account, QOS and its gres in Slurm's words."""

    evidence: Evidence
    where: tuple[str, str, str, str]
    allocated_gpu_hours: float = 0.0


def with_fitted(runs: Sequence[RunFound], config: SiteConfig) -> list[RunFound]:
    """Return the runs, those of which only their evidence tells with what it does, by the same query."""
    evidence = {
        number: Kept(run.evidence, (usage.partition, usage.account, usage.qos, usage.gres), usage.allocated_gpu_hours)
        for number, (run, usage) in enumerate((run, run.usage) for run in runs)
        if run.fitted is None and run.evidence and usage.allocated_gpu_hours is not None
        if not had_piece(run.evidence, usage.gres)
    }
    fitted = dict(zip(evidence, fitted_by_evidence(list(evidence.values()), config), strict=True))
    return [run._replace(fitted=fitted.get(number, run.fitted)) for number, run in enumerate(runs)]


def fitted_by_evidence(runs: Sequence[Kept], config: SiteConfig) -> list[Fitted]:
    """Return what is found of runs of whole GPUs of which a store has no samples, by the same query."""
    if not runs:
        return []
    rows, measured = [], []
    for number, (run, where, hours) in enumerate(runs):
        gpus = past_request(where[3], *where[:3]).gpu_count
        rows.append((number, run.state, gpus, hours, run.gpu_mem_peak_mib, True))
        if run.sm_active_mean_pct is not None:
            active_pct = round(run.sm_active_mean_pct, SM_DIGITS)
            measured.append((number, run.gpu_model, active_pct, False, run.sampled_s, run.elapsed_s, *where))
    with duckdb.connect() as database:
        make_rows(database, "usage", _USAGE, rows)
        make_rows(database, "measured_alone", _MEASURED, measured)
        make_rows(database, "idle_units", _IDLE, [])
        # The evidence of csub's own sampler tells what a run needed, not for how long it used its GPU.
        _make_run_fits(database, config, SLICES, "true", "false")
        return records(Fitted, database, f"SELECT {_FOUND} FROM run_fits ORDER BY run")


def fit_of(name: str, runs: Iterable[Judgement]) -> Fit | None:
    """Return what these runs would have fitted together; None where nothing can be said of any."""
    rows = [_row(name, judgement.found.usage, judgement.found.fitted) for judgement in runs if judgement.found.fitted]
    return _added(name, rows) if _says(rows) else None


def _row(name: str, usage: JobUsage, fitted: Fitted) -> _Fitted:
    return _Fitted(
        name,
        usage.gpu_type,
        usage.partition,
        not fitted.why,
        fitted.unit or None,
        fitted.gpus,
        fitted.most_mib,
        1,
        usage.allocated_gpu_hours or 0.0,
        fitted.freed_gpu_hours,
        int(fitted.spare_gpu_hours > 0),
        fitted.spare_gpu_hours,
    )


def _added(name: str, rows: Sequence[_Fitted]) -> Fit:
    judged = [row for row in rows if row.known]
    fitted = [row for row in judged if row.unit is not None]
    return Fit(
        name,
        known_gpu_hours=fsum(row.allocated_gpu_hours for row in judged),
        fits_gpu_hours=fsum(row.allocated_gpu_hours for row in fitted),
        freed_gpu_hours=fsum(row.freed_gpu_hours for row in fitted),
        unit=_enough_for_each(fitted),
        judged_runs=sum(row.runs for row in judged),
        fitting_runs=sum(row.runs for row in fitted),
        not_judged_runs=sum(row.runs for row in rows if not row.known),
        spare_runs=sum(row.spare_runs for row in rows),
        spare_gpu_hours=fsum(row.spare_gpu_hours for row in rows),
    )


def _enough_for_each(fitted: Iterable[_Fitted]) -> str:
    """Return the piece that holds each of these runs, the largest of theirs; empty where GPUs differ in it."""
    ordered = sorted(fitted, key=lambda row: (row.gpus or 0.0, row.most_mib or 0, row.unit or ""))
    units = {*{(row.kind, row.partition): row.unit for row in ordered}.values()}
    return (units.pop() or "") if len(units) == 1 else ""
