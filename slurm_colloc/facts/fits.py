# SPDX-License-Identifier: Apache-2.0
"""The piece that each run of a whole GPU would have fitted, by placement/fitted.py.

Of many, where they lie: what decides is the ladder of pieces, which is the same for all runs of one model, partition,
account and QOS, so each ladder is made once and the database picks the first step that holds a run.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import fsum
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.chart_model import Fit
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import COMPLETED, Gres
from slurm_colloc.core.usage_model import MIN_COVERAGE_PCT
from slurm_colloc.core.wording import words
from slurm_colloc.facts.facts import FIX
from slurm_colloc.facts.one_job import RunFound
from slurm_colloc.facts.usage import source
from slurm_colloc.placement.fitted import (
    SM_DIGITS,
    Step,
    first_that_holds,
    had_whole,
    has_pieces,
    known_names,
    ladder,
    not_judged,
    past_request,
)
from slurm_colloc.store.equivalents import SLICES, equivalent_in_pool
from slurm_colloc.store.queries import make_rows, named, query

TOTAL = "total"
_WHERE = ("partition", "account", "qos", "shown", "model")
_PLACES = {**dict.fromkeys(_WHERE, "VARCHAR"), "ladder": "INTEGER"}
_STEPS = {"ladder": "INTEGER", "step": "INTEGER", "unit": "VARCHAR", "gpus": "DOUBLE", "most_mib": "BIGINT",
          "most_sm_pct": "DOUBLE"}  # fmt: skip


class _Fitted(NamedTuple):
    """Runs of one group that would have had the same piece; ``unit`` is None of those that fit none."""

    name: str
    known: bool
    unit: str | None
    gpus: float | None
    most_mib: int | None
    runs: int
    allocated_gpu_hours: float
    freed_gpu_hours: float


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
    rows = [_Fitted(**row) for row in named(database, query("fits", key=key, runs=runs))]
    by_name: dict[str, list[_Fitted]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    groups = [_added(name, of) for name, of in by_name.items() if any(row.known for row in of)]
    if not groups:
        return ()
    return (*sorted(groups, key=lambda fit: (-fit.freed_gpu_hours, fit.name)), _added(TOTAL, rows))


def make_run_fits(
    database: DuckDBPyConnection, config: SiteConfig, convention: str = SLICES, part: str = "true"
) -> None:
    """Make the table ``run_fits`` of what each run of whole GPUs would have fitted, of that ``part`` of runs.

    It has whether that can be judged (``fit_judged``), and if so the first piece that holds the run, NULL where none
    does: its unit, its worth in whole GPUs, and the largest memory peak in MiB that it holds; and the mean SM activity
    of the run in percent.

    Args:
        database: one that was aggregated.
        config: as in ``fits_of``.
        convention: as in ``fits_of``.
        part: a condition on ``run``.
    """
    measured = query("measured_alone", part=part, fix=FIX, digits=SM_DIGITS, completed=COMPLETED)
    database.execute(f"CREATE OR REPLACE TEMP TABLE measured_alone AS {measured}", {"least_pct": MIN_COVERAGE_PCT})
    _make_ladders(database, config, convention)
    database.execute(f"CREATE OR REPLACE TEMP TABLE run_fits AS {query('run_fits', part=part)}")


def _make_ladders(database: DuckDBPyConnection, config: SiteConfig, convention: str) -> None:
    """Make the tables of the ladders, and of which of them the runs in ``measured_alone`` have."""
    names = known_names(config)
    columns = ", ".join(f'"{name}"' for name in _WHERE)
    places, steps = [], []
    made: dict[tuple[str, ...], int] = {}
    for where in database.execute(f"SELECT DISTINCT {columns} FROM measured_alone ORDER BY ALL").fetchall():
        partition, account, qos, shown, model = map(str, where)
        # Accounts and QOS of which no partition speaks are all alike: a site has more of them than ladders.
        account, qos = (name if name.lower() in names else "?" if name else "" for name in (account, qos))
        alike = partition, account, qos, shown, model
        if alike not in made:
            made[alike] = len(made)
            found = ladder(past_request(shown, partition, account, qos), model, config)
            steps += [
                (made[alike], number, str(one.gres), step_gpus(one, convention), one.most_peak_mib,
                 one.most_sm_pct)
                for number, one in enumerate(found)
            ]  # fmt: skip
        places.append((*where, made[alike]))
    for name, kinds, rows in (("fit_places", _PLACES, places), ("fit_steps", _STEPS, steps)):
        database.execute(f"DROP TABLE IF EXISTS {name}")
        make_rows(database, name, kinds, rows)


def step_gpus(step: Step, convention: str = SLICES) -> float | None:
    """Return what a piece is worth in whole GPUs, at most; None where a pool that may give it does not say."""
    unit = Gres(step.gres.name, step.gres.type, 1)
    found = [equivalent_in_pool(unit, pool, convention) for pool in step.pools]
    known = [one for one in found if one is not None]
    return max(known) * step.gres.quantity if known and len(known) == len(found) else None


class RunFit(NamedTuple):
    """One run of whole GPUs: why nothing is said of what it would have fitted, or the piece, None where none holds it.

    ``gpus`` is what the piece is worth in whole GPUs.
    """

    found: RunFound
    why: str = ""
    step: Step | None = None
    gpus: float | None = None

    @property
    def unit(self) -> str:
        """Return the piece in Slurm's words; empty without one."""
        return str(self.step.gres) if self.step else ""

    @property
    def freed_gpu_hours(self) -> float:
        """Return what the piece would have left for others."""
        allocated = self.found.usage.allocated_gpu_hours
        return 0.0 if allocated is None or self.gpus is None else allocated * max(0.0, 1.0 - self.gpus)


def judge(found: RunFound, config: SiteConfig) -> RunFit | None:
    """Return what one run would have fitted; None of a run that had no whole GPU, or of which nobody knows what."""
    usage, run = found.usage, found.evidence
    if usage.allocated_gpu_hours is None or not had_whole(usage.gres):
        return None
    if run is None:
        return RunFit(found, "nothing was measured of it")
    if why := not_judged(run, usage.gres, found.alone_s):
        return RunFit(found, words(why))
    steps = ladder(past_request(usage.gres, usage.partition, usage.account, usage.qos), run.gpu_model, config)
    step = first_that_holds(steps, run.gpu_mem_peak_mib or 0, run.sm_active_mean_pct or 0.0)
    gpus = step_gpus(step) if step else None
    if step and gpus is None:
        return RunFit(found, f"site.toml does not tell what part of a GPU {step.gres} is")
    return RunFit(found, "", step, gpus)


def judged(runs: Iterable[RunFound], config: SiteConfig) -> Iterator[RunFit]:
    """Yield what each run of a whole GPU would have fitted."""
    yield from (one for run in runs if (one := judge(run, config)))


def fit_of(name: str, runs: Iterable[RunFit]) -> Fit | None:
    """Return what these runs would have fitted together; None where nothing can be said of any."""
    rows = [_row(name, one) for one in runs]
    return _added(name, rows) if any(row.known for row in rows) else None


def _row(name: str, one: RunFit) -> _Fitted:
    hours = one.found.usage.allocated_gpu_hours or 0.0
    most_mib = one.step.most_peak_mib if one.step else None
    return _Fitted(name, not one.why, one.unit or None, one.gpus, most_mib, 1, hours, one.freed_gpu_hours)


def _added(name: str, rows: Sequence[_Fitted]) -> Fit:
    known = [row for row in rows if row.known]
    fitted = [row for row in known if row.unit is not None]
    return Fit(
        name,
        known_gpu_hours=fsum(row.allocated_gpu_hours for row in known),
        fits_gpu_hours=fsum(row.allocated_gpu_hours for row in fitted),
        freed_gpu_hours=fsum(row.freed_gpu_hours for row in fitted),
        unit=_smallest_of_most(fitted),
        judged_runs=sum(row.runs for row in known),
        fitting_runs=sum(row.runs for row in fitted),
        not_judged_runs=sum(row.runs for row in rows if not row.known),
    )


def _smallest_of_most(fitted: Iterable[_Fitted]) -> str:
    """Return the smallest piece that at least half of the time fits, as it or a smaller one; empty where none fits."""
    ordered = sorted(fitted, key=lambda row: (row.gpus or 0.0, row.most_mib or 0, row.unit or ""))
    half, so_far = fsum(row.allocated_gpu_hours for row in ordered) / 2, 0.0
    for row in ordered:
        so_far += row.allocated_gpu_hours
        if so_far >= half:
            return row.unit or ""
    return ""
