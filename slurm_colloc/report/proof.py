# SPDX-License-Identifier: Apache-2.0
"""Effects of sharing on jobs, as a table, JSON or CSV: harm by kind, and the two arms of a rollout."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from slurm_colloc.core.sharing_model import ArmFigure, Fairness, HarmRate
from slurm_colloc.core.units import counted, printable, significant
from slurm_colloc.report.columns import Column, Listing, Table, table_in_words
from slurm_colloc.report.text import stamp

SCHEMA = 1
# Measures in words, with the factor that a figure is shown by.
_MEASURES = {
    "wait_h": ("waited, h", 1),
    "turnaround_h": ("submission to end, h", 1),
    "gpu_hours": ("GPU-hours", 1),
    "out_of_memory": ("out of memory, %", 100),
    "not_completed": ("did not complete, %", 100),
    "slower": ("slower than the bound, %", 100),
}
_PER = 10_000
_LATE_HEADING = "those that got their piece while they waited"
_OUT_OF_MEMORY = (
    "out of GPU memory: as csub (--requeue) read in the job's own output. Slurm calls such a job FAILED, as any other, "
    "so that without --requeue it is"
)


class Proof(NamedTuple):
    """Figures of runs that started in a window; ``runs`` are all of them, ``max_slowdown`` is the site's bound.

    ``figures`` are of one kind; Nobody knows what came of ``not_known`` runs. ``fairness`` is of all
    jobs with GPUs before and after ``pieces_began``, beside arms.
    """

    cluster: str
    since: datetime
    until: datetime
    runs: int
    not_known: int
    max_slowdown: float
    figures: Sequence[HarmRate] | Sequence[ArmFigure]
    visible: str = ""
    pieces_began: datetime | None = None
    fairness: Sequence[Fairness] = ()


def listing_of(proof: Proof) -> Listing:
    """Return the tables of it, and what they mean."""
    harm = [rate for rate in proof.figures if isinstance(rate, HarmRate)]
    title, tables, notes = _harm(proof, harm) if harm else _arms(proof)
    more_tables, more_notes = _fairness(proof)
    where = f"{printable(proof.cluster)}, {stamp(proof.since)} to {stamp(proof.until)}"
    return Listing(
        heading=f"{title} {where}: {counted(proof.runs, 'run')}",
        tables=[*tables, *more_tables],
        notes=[*filter(None, [printable(proof.visible)]), *notes, *more_notes],
        schema=SCHEMA,
        record=proof,
        kind=type(proof.figures[0]) if proof.figures else ArmFigure,
        nouns=proof.figures,
    )


_OF_HARM = (
    Column("KIND", "kind"),
    Column("RUNS", "runs", 0),
    Column("OF", "known", 0),
    Column(f"PER {_PER}", lambda rate: _number(rate.part, _PER)),
    Column("95 %", lambda rate: _span(rate.low, rate.high, _PER)),
)


def _harm(proof: Proof, rates: Sequence[HarmRate]) -> tuple[str, list[Table], list[str]]:
    by_arm = {arm: [rate for rate in rates if rate.arm == arm] for arm in dict.fromkeys(rate.arm for rate in rates)}
    tables = [Table(_OF_HARM, of_arm, _LATE_HEADING if arm else "") for arm, of_arm in by_arm.items()]
    notes = [
        f"OF: runs of which it is known; of {proof.not_known} nobody knows: cancelled, or failed of a job that never "
        "completed on a whole GPU. 95 %: Clopper and Pearson, over runs.",
        f"{_OUT_OF_MEMORY} among 'failed, cause not known'.",
        f"slower: completed in more than {proof.max_slowdown:g} times the longest completed run of the same job on a "
        "whole GPU of that model. Time limit, host memory, failed: of a job that completed, and never ended so, there.",
        "In all: all kinds but 'failed, cause not known'. Lost with a node does not stop the site, all else does.",
    ]
    return "What pieces of GPUs did to jobs on", tables, notes


def _arms(proof: Proof) -> tuple[str, list[Table], list[str]]:
    tables: list[Table] = []
    figures = [mean for mean in proof.figures if isinstance(mean, ArmFigure)]
    for rule in dict.fromkeys(mean.rule for mean in figures):
        arms = ("PLACED", "AS ASKED") if rule else ("LATE",)
        titles = ["MEAN PER JOB", *(word for arm in arms for word in (arm, "95 %", "JOBS", "DRAWS"))]
        by_measure: dict[str, list[str]] = {}
        for mean in (mean for mean in figures if mean.rule == rule):
            words, factor = _MEASURES[mean.measure]
            cells = [_number(mean.value, factor), _span(mean.low, mean.high, factor), str(mean.jobs), str(mean.draws)]
            by_measure.setdefault(words, [words]).extend(cells)
        tables.append(
            table_in_words(titles, [*by_measure.values()], f"rule {printable(rule)}" if rule else _LATE_HEADING)
        )
    notes = [
        "Of both arms: jobs of one GPU that were to have a piece by what was known at their submission, started in the "
        "window and ended; waits of a job's first run, submission to end of those that completed.",
        "95 % of means: normal, over draws (one of each user, job and day), of 10 or more; of parts: Clopper and "
        "Pearson, over jobs, too narrow where jobs of a draw hang together. Arms differ whose intervals do not touch.",
        f"{_OUT_OF_MEMORY} left out of that row, and among those that did not complete; on whole GPUs none looks.",
        "Those that got their piece while they waited were not drawn, and are in no arm of a rule.",
        f"slower: in more than {proof.max_slowdown:g} times the longest other completed run of the same job on a whole "
        "GPU of that model; as asked shows how often that is chance.",
    ]
    return "Jobs that were drawn on", tables, notes


def _fairness(proof: Proof) -> tuple[list[Table], list[str]]:
    """Return who waited and held how much before pieces began and after, and what it is not."""
    if proof.pieces_began is None or not proof.fairness:
        return [], []
    by_group: dict[tuple[str, str], dict[bool, Fairness]] = {}
    for figure in proof.fairness:
        by_group.setdefault((figure.account, figure.job_class), {})[figure.after] = figure
    titles = ["ACCOUNT", "JOBS OF", *(f"{name} {when}" for name in _OF_FAIRNESS for when in ("BEFORE", "AFTER"))]
    rows = [
        [
            account or "(not known)",
            job_class,
            *(word for pair in zip(*_before_and_after(ends), strict=True) for word in pair),
        ]
        for (account, job_class), ends in by_group.items()
    ]
    notes = [
        "By account: first runs' waits from when a job could have started, median hours and what 90 % waited at most; "
        "GPU-hours a day of runs that began before and after the first piece. Nobody drew these: demand and all else "
        "that changed is in them."
    ]
    return [table_in_words(titles, rows, f"before and after pieces began, {stamp(proof.pieces_began)}")], notes


_OF_FAIRNESS = ("RUNS", "WAIT h", "90 % h", "GPU-h/DAY")


def _before_and_after(ends: Mapping[bool, Fairness]) -> Iterator[list[str]]:
    for after in (False, True):
        if end := ends.get(after):
            rates = (end.wait_median_h, end.wait_p90_h, end.gpu_hours_per_day)
            yield [str(end.runs), *(_number(rate, 1) for rate in rates)]
        else:
            yield ["-"] * len(_OF_FAIRNESS)


def _number(value: float | None, factor: int) -> str:
    return "-" if value is None else significant(factor * value)


def _span(low: float | None, high: float | None, factor: int) -> str:
    return "-" if low is None else f"{_number(low, factor)} to {_number(high, factor)}"
