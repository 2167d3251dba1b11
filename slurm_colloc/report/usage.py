# SPDX-License-Identifier: Apache-2.0
"""Real against allocated GPU use: all that a report says, and what its figures come to, whatever the format."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from math import fsum
from typing import Any, NamedTuple

from slurm_colloc.core.chart_model import Charts, Fit, SeveralGpus, Todo
from slurm_colloc.core.config import Prices
from slurm_colloc.core.sharing_model import Collocation, HarmRate, Prediction
from slurm_colloc.core.usage_model import GroupUsage, Lost, StrayUse


class UsageReport(NamedTuple):
    """All that a usage report says.

    ``runaways`` are runs whose end nobody knows. In ``unaccounted_hours`` of ``sampled_job_hours`` samples saw a job on
    a unit while accounting has no run of it.

    ``equivalents`` says by what a slice is part of a GPU. ``installed_gpu_hours`` is what the site's GPUs come to in
    the window so far, None where no site file says. ``rows_in`` = ``rows_used`` + ``job_steps`` + ``rejected``, which
    is by reason; None where they are not to be seen, being everybody's. ``lost`` says what those may have been.
    ``recorded`` is from when to when there are runs at all, where the window has none. ``ingested`` is until when runs
    are known (a text's own time), ``flushed`` when the last flushed hour of samples ended; None where it is not known.
    ``templates`` is the site's own folder of them. ``charts`` are there where they were asked for; ``fits`` are by
    group, the last one is of all, where site.toml knows of pieces of GPUs. ``visible`` says whose runs these are where
    they are not everybody's, ``names`` what became of the names. ``runs_begun_before`` of those with a GPU are in the
    window before, too; ``runs_without_length`` have neither an end nor a word on how long they have run, and no hours.
    ``runs_over_limit`` go on long after their time limit, and count with ``over_limit_gpu_hours``.
    Rows tell of runs: those of the window's ``runs``, those that repeat one, those of jobs that had not
    started, and those outside the window. ``types_without_size`` are left out of GPU-hours, and of
    ``types_taken_for_whole`` neither a site nor their names say that they are whole GPUs;
    ``types_sharing_memory`` are compute instances, which share memory with others. ``several`` is of runs of several
    whole GPUs, None of no such run. ``in_proportion`` says that the window cuts an hour of which no readings are left,
    so that what was measured in it counts in proportion. ``harm`` is of all runs on pieces, None where it was not asked
    for, or there are none; ``to_do`` has what leaves most first, of ``to_do_found`` things. ``billing`` says that
    tables show what Slurm bills.
    """

    cluster: str
    since: datetime
    until: datetime
    by: str
    equivalents: str
    groups: tuple[GroupUsage, ...]
    total: GroupUsage
    runs: int
    runs_without_gpu: int
    runaways: int
    unaccounted_hours: float
    sampled_job_hours: float
    installed_gpu_hours: float | None
    collocation: tuple[Collocation, ...]
    predictions: tuple[Prediction, ...]
    prices: Prices
    strays: tuple[StrayUse, ...]
    rows_in: int | None
    rows_used: int | None
    job_steps: int | None
    rejected: dict[str, int]
    recorded: tuple[datetime, datetime] | None
    ingested: datetime | None
    flushed: datetime | None
    so_far: bool
    of_text: bool
    templates: str
    charts: Charts | None = None
    fits: tuple[Fit, ...] = ()
    visible: str = ""
    names: tuple[str, ...] = ()
    lost: Lost = Lost()
    runs_begun_before: int = 0
    runs_without_length: int = 0
    runs_over_limit: int = 0
    over_limit_gpu_hours: float = 0.0
    rows_repeated: int = 0
    rows_not_started: int = 0
    rows_outside: int = 0
    types_without_size: tuple[str, ...] = ()
    types_taken_for_whole: tuple[str, ...] = ()
    types_sharing_memory: tuple[str, ...] = ()
    several: SeveralGpus | None = None
    several_by_size: tuple[SeveralGpus, ...] = ()
    in_proportion: bool = False
    harm: HarmRate | None = None
    to_do: tuple[Todo, ...] = ()
    to_do_found: int = 0
    billing: bool = False


METRICS = {"sm": "SM activity", "util": "GPU_UTIL"}


class Money(NamedTuple):
    """Cost of a group's GPU-hours and its measured energy, None without a price or a measurement."""

    gpu_cost: float | None
    energy_cost: float | None
    co2_kg: float | None


class OfInstalled(NamedTuple):
    """Allocated and used GPU-hours in percent of the GPUs installed; at least so much was used."""

    allocated_pct: float | None
    util_at_least_pct: float | None
    sm_at_least_pct: float | None


def money(group: GroupUsage, prices: Prices) -> Money:
    """Return what a group comes to at a site's prices."""

    def times(amount: float | None, price: float | None) -> float | None:
        return None if amount is None or price is None else amount * price

    co2_g = times(group.energy_kwh, prices.co2_g_per_kwh)
    return Money(
        gpu_cost=times(group.allocated_gpu_hours, prices.gpu_hour),
        energy_cost=times(group.energy_kwh, prices.kwh),
        co2_kg=None if co2_g is None else co2_g / 1000,
    )


def of_installed(report: UsageReport) -> OfInstalled:
    """Return how much of what is installed was allocated and used."""
    total, installed = report.total, report.installed_gpu_hours
    # A share's use beyond its count was of the same GPUs.
    sm = None if total.sm_used_gpu_hours is None else total.sm_used_gpu_hours + (total.sm_beyond_gpu_hours or 0)
    hours = (total.allocated_gpu_hours, total.util_used_gpu_hours, sm)
    return OfInstalled(*(percent(value, installed) for value in hours))


def saved_gpu_hours(times: Sequence[Collocation]) -> float | None:
    """Return how much more a whole GPU for each job would have taken, None for nothing."""
    saved, sampled = (fsum(getattr(time, field) for time in times) for field in ("saved_gpu_hours", "gpu_hours"))
    # Below that it is what floating point leaves of nothing.
    return saved if saved > 1e-6 * sampled else None


def percent(part: float | None, total: float | None) -> float | None:
    """Return a part in percent of the whole, None where either is not known or the whole is nothing."""
    return None if part is None or not total else 100 * part / total


class Use(NamedTuple):
    """GPU-hours used of those that were measured, by the metric of that name."""

    used_gpu_hours: float
    measured_gpu_hours: float
    metric: str

    @property
    def pct(self) -> float:
        """Return how much of the measured was used."""
        return 100 * self.used_gpu_hours / self.measured_gpu_hours

    @property
    def idle_gpu_hours(self) -> float:
        """Return what was measured and not used."""
        return self.measured_gpu_hours - self.used_gpu_hours

    def __str__(self) -> str:
        return f"{number(self.pct, 1)} %"


def use_by(usage: Any, metric: str) -> Use | None:
    """Return what was used by a metric, None where it was not measured.

    Args:
        usage: a run, or what runs come to; it has GroupUsage's used and measured GPU-hours of both metrics.
        metric: a key of METRICS.
    """
    used, measured = (getattr(usage, f"{metric}_{which}_gpu_hours") for which in ("used", "measured"))
    return Use(used, measured, METRICS[metric]) if used is not None and measured else None


def use_of(usage: Any) -> Use | None:
    """Return what was used by SM activity, else by GPU_UTIL; None where nothing was measured."""
    return use_by(usage, "sm") or use_by(usage, "util")


def metric_of(report: UsageReport) -> str:
    """Return the metric of what shows only one: SM activity where any run has it, for it tells how much."""
    return "sm" if report.total.sm_used_gpu_hours is not None else "util"


def reach(group: GroupUsage, metric: str) -> tuple[float, float, float]:
    """Return the GPU-hours of a group's bar: allocated, the part of them that was sampled, and the part that was used.

    A share may use more than its count: its bar is all used.
    """
    allocated = group.allocated_gpu_hours or 0.0
    used, idle = (getattr(group, f"{metric}_{part}_gpu_hours") or 0.0 for part in ("used", "idle"))
    return allocated, min(allocated, used + max(idle, 0.0)), min(allocated, used)


def only_given(report: UsageReport) -> bool:
    """Return whether nothing is known of use: a text says what was allocated, and at most means by others."""
    return report.of_text and not report.total.methods


def hours_digits(most_gpu_hours: float | None) -> int:
    """Return the digits that all GPU-hours of a report are shown with: its columns must add up as printed."""
    return 2 if (most_gpu_hours or 0) >= 10 else 4


def number(value: float | None, digits: int, separator: str = "") -> str:
    """Return a figure in words; below the last digit 0.00 would say "nothing" of something."""
    if value is None:
        return "-"
    # A little below nothing keeps its sign.
    return f"<{10**-digits:.{digits}f}" if 0 < value < 10**-digits else f"{value:{separator}.{digits}f}"


def fits_by_group(fits: Sequence[Fit]) -> dict[str, Fit]:
    """Return what each group would have fitted, without that of all of them: a group may be called total, too."""
    return {fit.name: fit for fit in fits[:-1]}


def shortened(report: UsageReport, top: int) -> UsageReport:
    """Return the report with its first ``top`` groups, and all others as one, so that the rows still add up."""
    rest_groups = report.groups[top:]
    if len(rest_groups) < 2:
        return report
    name = f"({len(rest_groups)} others)"
    fits = report.fits
    if fits:
        names = {group.name for group in rest_groups}
        *by_group, total = fits
        rest = [fit for fit in by_group if fit.name in names]
        fits = (*(fit for fit in by_group if fit.name not in names), *_fits_added(name, rest), total)
    return report._replace(groups=(*report.groups[:top], added(name, rest_groups)), fits=fits)


def added(name: str, groups: Sequence[GroupUsage]) -> GroupUsage:
    """Return groups as one; plain means over runs are lost, since a group does not say over how many they are."""

    def known(field: str) -> list[Any]:
        return [value for value in (getattr(group, field) for group in groups) if value is not None]

    amounts = [field for field in GroupUsage._fields if field.endswith(("_hours", "_kwh"))]
    sums: dict[str, Any] = {field: fsum(known(field)) if known(field) else None for field in amounts}
    sums |= {field: sum(known(field)) for field in ("jobs", "jobs_measured", "jobs_without_size")}
    # A bill of which a part is not known is none.
    sums["billing_hours"] = fsum(known("billing_hours")) if len(known("billing_hours")) == len(groups) else None
    covered = fsum(group.coverage_known_gpu_hours * (group.coverage_pct or 0) for group in groups)
    return groups[0]._replace(
        **sums,
        name=name,
        util_weighted_pct=percent(sums["util_used_gpu_hours"], sums["util_measured_gpu_hours"]),
        util_plain_pct=None,
        sm_weighted_pct=percent(sums["sm_used_gpu_hours"], sums["sm_measured_gpu_hours"]),
        sm_plain_pct=None,
        gpu_mem_peak_mib=max(known("gpu_mem_peak_mib"), default=None),
        coverage_pct=percent(covered / 100, sums["coverage_known_gpu_hours"]),
        methods=tuple(sorted({method for group in groups for method in group.methods})),
    )


def _fits_added(name: str, fits: Sequence[Fit]) -> Iterator[Fit]:
    """Yield fits as one, if there are any; a unit that not all of them have is none of theirs together."""
    units = {fit.unit for fit in fits if fit.fits_gpu_hours}
    sums: dict[str, Any] = {
        field: (fsum if field.endswith("_hours") else sum)(getattr(fit, field) for fit in fits)
        for field in Fit._fields
        if field not in ("name", "unit")
    }
    if fits:
        yield Fit(name=name, unit=units.pop() if len(units) == 1 else "", **sums)
