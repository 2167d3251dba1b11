# SPDX-License-Identifier: Apache-2.0
"""The usage report on a terminal, and the columns that every table of it has."""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from types import SimpleNamespace

from slurm_colloc.core.chart_model import Fit
from slurm_colloc.core.units import counted, printable, significant
from slurm_colloc.core.usage_model import GroupUsage
from slurm_colloc.facts.judgement import COMPARED
from slurm_colloc.report.columns import Column
from slurm_colloc.report.first_look import as_lines
from slurm_colloc.report.layout import (
    BLUE,
    DIM,
    NO_TERMINAL,
    PLAIN,
    YELLOW,
    Terminal,
    bold_table,
    folded,
    left_out_line,
    narrowed,
    page_of,
    widths_of,
)
from slurm_colloc.report.usage import (
    UsageReport,
    fits_by_group,
    hours_digits,
    metric_of,
    money,
    only_given,
    percent,
    reach,
    shortened,
)
from slurm_colloc.report.usage_notes import footnotes, heading, summary

_GIVEN = ("jobs", "allocated_gpu_hours", "held_gpu_hours", "gpu_cost", "billing_hours")
# A table for people has these with --explain alone; CSV, JSON and Parquet have all.
_BESIDE = ("FITS % of hours", "GPU_UTIL GPU-h", "SM GPU-h", "HELD GPU-h", "EMPTY GPU-h", "kWh")
_ROWS_ON_TERMINAL = 20  # groups that hold most; the others are one row
_NAME_COLUMNS = 16  # a longer name is cut before a column is left out
_BAR_TITLES, _BAR_COLUMNS, _LONGEST_BAR = ("█used ▒idle ░not sampled", "█used▒idle░?"), 12, 24
_BAR = "." * _BAR_COLUMNS  # stands for a bar until its room is known
_BAR_RANK = 6
_BARS = re.compile(r"(?<=  )(█*)(▒*)(░*)$")
_COLOURS = (BLUE, YELLOW, DIM)


def columns(report: UsageReport) -> list[Column]:
    """Return the columns beside the name: those that this site has prices for, and what is known to fit, among them."""
    hours, by_sm = hours_digits(report.total.allocated_gpu_hours), metric_of(report) == "sm"
    currency = printable(report.prices.currency)
    priced = [
        (Column(f"GPU {currency}", "gpu_cost", 2, 16), report.prices.gpu_hour),
        (Column(f"kWh {currency}", "energy_cost", 2, 17), report.prices.kwh),
        (Column("CO2 kg", "co2_kg", 2, 18), report.prices.co2_g_per_kwh),
    ]
    of_slice = f"A MIG slice counts as its part of the GPU, by {report.equivalents}."
    idle = f"IDLE: sampled GPU-hours x (100 % - {'SM' if by_sm else 'GPU_UTIL'} %)"
    most = "" if report.by == "month" else "; the most idle come first"
    util = "GPU_UTIL %: the part of the sampled time in which any kernel ran. Whole GPUs only."
    active = "SM %: the part of a GPU's SMs (multiprocessors) at work, on average over the sampled time."
    held = "HELD: GPU-hours that a job kept from others, suspended time included; n jobs on one GPU count 1/n each."
    empty = "EMPTY: sampled GPU-hours without a process of the job on the GPU. kWh: energy of the sampled time."
    billing = (
        "BILLING-h: Slurm's billing (TRESBillingWeights) times hours, cores and memory included. - where that of one "
        "run is not known."
    )
    every = [
        Column("RUNS", "jobs", 0, 7),
        Column(
            "ALLOC GPU-h", "allocated_gpu_hours", hours, 0, f"ALLOC: allocated GPU-hours, in whole GPUs. {of_slice}"
        ),
        Column("IDLE GPU-h", "idle_gpu_hours", hours, 2, f"{idle}{most}."),
        *(_of_fits(report.fits, hours) if report.fits else ()),
        Column("SAMPLED %", "coverage_pct", 0, 4, "SAMPLED %: the part of ALLOC that was sampled."),
        Column("GPU_UTIL %", "util_weighted_pct", 1, 9 if by_sm else 1, util),
        Column("SM %", "sm_weighted_pct", 1, 1 if by_sm else 14, active),
        Column("GPU_UTIL GPU-h", "util_used_gpu_hours", hours, 13, util),
        Column("SM GPU-h", "sm_used_gpu_hours", hours, 12, active),
        Column("HELD GPU-h", "held_gpu_hours", hours, 11, held),
        Column("EMPTY GPU-h", "held_idle_gpu_hours", hours, 10, empty),
        Column("kWh", "energy_kwh", hours, 15, empty),
        *(column for column, price in priced if price is not None),
        *([Column("BILLING-h", "billing_hours", hours, 6, billing)] if report.billing else ()),
    ]
    return [column for column in every if column.figure in _GIVEN or not only_given(report)]


def _of_fits(fits: Sequence[Fit], hours: int) -> list[Column]:
    """Return the columns of what would have fitted; ``hours`` are shown with so many digits."""
    total = fits[-1]
    compared = f"{counted(total.judged_runs, 'run')}, {significant(total.known_gpu_hours, 4)} GPU-h"
    example = next((fit.unit for fit in fits if fit.unit.startswith("mps:")), "")
    shares = f" ({example} is {counted(int(example[4:]), 'MPS share')}; a GPU usually has 100)" if example else ""
    meaning = (
        "FITS IN: the first piece of a GPU, in the order that the site prefers, that is enough for each run that "
        f"fits one{shares}. several: not the same for all. none: none of them fits one. fewer GPUs: "
        "runs used some of their GPUs only, or none. '-': no run was compared. FITS % of hours: the part of the "
        f"GPU-hours of compared runs in which a piece was enough. {COMPARED} ({compared}; "
        f"{counted(total.not_judged_runs, 'run')} not compared)."
    )
    free = (
        "COULD FREE: GPU-hours left for other jobs, at most. By smaller pieces: "
        f"{significant(total.freed_gpu_hours, 4)}. By asking only for the GPUs that were used: "
        f"{significant(total.spare_gpu_hours, 4)}. Time without samples counts here, and not in IDLE."
    )
    return [
        Column("FITS % of hours", "fits_pct", 0, 3, meaning),
        Column("FITS IN", "fit_unit", None, 7, meaning),
        Column("COULD FREE GPU-h", "freed_gpu_hours", hours, 8, free),
    ]


def meanings(report: UsageReport) -> dict[str, str]:
    """Return what columns mean, by their titles; some are explained together."""
    return {column.title: column.meaning for column in columns(report)}


def rows_of(report: UsageReport, separator: str = "") -> list[Sequence[str]]:
    """Return the table: titles, groups, and their sum; thousands are parted by ``separator``."""
    titles, fits = columns(report), fits_by_group(report.fits)
    units = {fit.unit for fit in fits.values() if fit.fits_gpu_hours}
    rows: list[Sequence[str]] = [[report.by.upper(), *(column.title for column in titles)]]
    for group in (*report.groups, report.total):
        fit = report.fits[-1] if report.fits and group is report.total else fits.get(group.name)
        compared = fit if fit and fit.known_gpu_hours else None
        says = fit if fit and (compared or fit.spare_runs) else None
        figures = SimpleNamespace(
            **group._asdict(),
            **money(group, report.prices)._asdict(),
            idle_gpu_hours=getattr(group, f"{metric_of(report)}_idle_gpu_hours"),
            fits_pct=compared and percent(compared.fits_gpu_hours, compared.known_gpu_hours),
            freed_gpu_hours=says and says.could_free_gpu_hours,
            fit_unit=_fits_in(says, units if group is report.total else {says.unit}) if says else "",
        )
        rows.append([printable(group.name), *(column.cell(figures, separator) for column in titles)])
    return rows


def _fits_in(fit: Fit, units: Collection[str]) -> str:
    """Return the piece that is enough for each fitting run, of all groups only where it is the same."""
    if not fit.fits_gpu_hours:
        return "fewer GPUs" if fit.spare_runs else "none"
    return "several" if len(units) > 1 else printable(fit.unit) or "several"


def as_table(
    report: UsageReport, terminal: Terminal = NO_TERMINAL, top: int | None = 0, *, explained: bool = False
) -> str:
    """Return the report for a terminal, or for what is none.

    Args:
        report: what is shown.
        terminal: it shows all where it has no columns.
        top: that many groups, and the others as one; 0 for all, None for as many as a terminal shows well.
        explained: whether each column and count is explained below, and not only what matters most.
    """
    if top is None:
        top = 0 if terminal.columns is None else _ROWS_ON_TERMINAL
    short = shortened(report, top) if top else report
    rows = rows_of(short, "" if terminal.columns is None else ",")
    left_out: list[str] = []
    if not explained:
        rows = for_people(rows)
    # A program finds the same columns each time.
    if terminal.columns is not None:
        rows = without_empty(rows)
        rank = {column.title: column.rank for column in columns(report)} | {_BAR: _BAR_RANK}
        titles = rows[0]
        rows = [[*row, _BAR] for row in rows]
        rows = narrowed(rows, [rank[title] for title in rows[0][1:]], terminal, _NAME_COLUMNS)
        left_out = left_out_line(titles, rows[0])
        if rows[0][-1] == _BAR:
            room = terminal.columns - sum(width + 2 for width in widths_of(rows)) + 2
            # The others are no group: no bar would be seen beside theirs.
            groups = short.groups if short is report else short.groups[:-1]
            bars = _bars(groups, metric_of(report), min(_LONGEST_BAR, _BAR_COLUMNS + room))
            rows = [[*row[:-1], bar] for row, bar in zip_longest(rows, bars, fillvalue="")]
    meaning = meanings(short)
    shown = [meaning.get(title, "") for title in rows[0]]
    notes = left_out + (footnotes(short, shown) if explained else summary(short, shown))
    lines = bold_table(rows, terminal)
    if terminal.colour:
        lines = [_BARS.sub(_coloured, line) for line in lines]
    last = [line for text in as_lines(report) for line in folded(text, terminal.columns, 5)]
    page = page_of(heading(report), lines, notes, terminal)
    return "\n".join([page, *last, ""]) if last else page


def for_people(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return a table without the columns that few people look at."""
    return [*zip(*(column for column in zip(*rows, strict=True) if column[0] not in _BESIDE), strict=True)]


def without_empty(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return a table without the columns of which nothing is known in any row."""
    return [*zip(*(column for column in zip(*rows, strict=True) if {*column[1:]} != {"-"}), strict=True)]


def _bars(groups: Sequence[GroupUsage], by: str, width: int) -> Iterator[str]:
    """Yield a title, and for each group how much it used, had idle, and had unseen, beside the largest group."""
    yield next((title for title in _BAR_TITLES if len(title) <= width), "").ljust(width)
    largest = max((group.allocated_gpu_hours or 0 for group in groups), default=0)
    for group in groups:
        allocated, sampled, busy = (round(width * hours / largest) if largest else 0 for hours in reach(group, by))
        bar = "█" * busy + "▒" * (sampled - busy) + "░" * (allocated - sampled)
        # A group with hours has a bar, however small.
        yield (bar or ("░" if group.allocated_gpu_hours else "")).ljust(width)


def _coloured(bar: re.Match[str]) -> str:
    return "".join(f"{colour}{part}{PLAIN}" for colour, part in zip(_COLOURS, bar.groups(), strict=True) if part)
