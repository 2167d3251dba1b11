# SPDX-License-Identifier: Apache-2.0
"""A rule: conditions on runs, and the words for what they find.

A rule's file has its documentation as the docstring and one RULE. Its conditions are SQL over the columns that
facts/audited.py documents and judged_runs.sql derives of them; they name no table, and every value in them is a
parameter, so that a rule cannot depend on anything but what is documented. Its words are a pure function of what was
found of one subject; phrases that several rules use are here as well.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from slurm_colloc.core.audit_model import RUNS, USER, Subject
from slurm_colloc.core.units import at_least, at_most, counted, significant
from slurm_colloc.facts.judgement import DO, enough
from slurm_colloc.facts.judgement import PIECE as PIECE_CODE

# Why a run is not judged, where a condition has no words of its own.
UNKNOWN = "too little known of it"
UNSAMPLED = "too little measured of it alone"
UNSAMPLED_HOST = "too little measured of it on its nodes"
UNHELD, PIECE, UNDESCRIBED = "not known what it held", "a piece of a GPU", "its nodes not in site.toml"
HELD = "allocated > 0"
# Pieces that a run of a whole GPU would have fitted are known; its peak is none unless the run began inside the window.
FIT_NEEDS = {
    "no completed run of one GPU measured alone on it": "fit_judged",
    UNHELD: HELD,
}
AWAKE = {"suspended, or its node failed": "awake"}
# A short run's readings are in good part of what came before and after it.
LONG = {"too short": "span_s >= 60 * $shortest_min"}
# A run that has just begun loads its program and its data.
YOUNG = "only just begun"
SETTLED = {YOUNG: "(end_s IS NOT NULL OR span_s >= 60 * $running_min)"}
USED = {"at zero use": "NOT coalesce(unused, false)"}
# A piece that is enough for each run that would have fitted one, as the report names it; NULL where the runs were not
# all on one kind of GPU.
PIECE_ENOUGH = """
if(count(DISTINCT (kind, "partition")) FILTER (found AND fits) = 1,
   max({'gpus': fit_gpus, 'mib': fit_most_mib, 'unit': fit_unit,
        'asked': concat('--partition=' || nullif(fit_place, '') || ' ', '--gres=', fit_unit)}) FILTER (found AND fits),
   NULL).asked
"""
# Figures of ``ask_for_piece``: whether less is enough for some, and whether csub gives them.
PIECES = {
    "differ": "max(fit_gpus) FILTER (found AND fits) > min(fit_gpus) FILTER (found AND fits)",
    "csub": "count(*) FILTER (found AND fits AND csub_there)",
}
# A rule about jobs looks at those that run.
RUNS_ON = "end_s IS NULL"


class Bound(NamedTuple):
    """A number that a site may set: its default, and what it means, with the unit."""

    default: float
    meaning: str


SHORTEST = Bound(10.0, "minutes that a run must have had inside the window to be judged")
RUNNING = Bound(60.0, "minutes that a run must have had inside the window to be judged before it ends")
# How the CPU time, the memory and the reading of a job are known.
HOST = ("the job's own counters on its nodes",)


class Said(NamedTuple):
    """The evidence of a finding in words, and its remedy, which its reader should follow."""

    evidence: str
    remedy: str


Bounds = Mapping[str, float]


class Rule(NamedTuple):
    """One rule; see audited.Question for the conditions (``judged`` are its ``needs``), and for ``coverage``.

    ``say`` is asked only of subjects with as many hours found as the bound ``least`` says, and more than none; a rule
    without that bound of any hours, and so is one whose ``least`` is empty. It returns None where other bounds of
    the site are not reached. A rule that is ``accounted`` can judge runs that nobody measured. ``methods`` say how it
    was measured where that is not how the GPUs of the runs were; a rule without ``coverage`` rests on no measurement.
    ``running`` is the same rule about jobs that run: one about a JOB is judged by readings that are not older than its
    bound ``reading_age_min``, and has the figure ``idle_since_s``. ``sheet`` is the query beside the rule that derives
    more columns of each run.
    """

    code: str
    name: str
    title: str
    documentation: str
    bounds: Mapping[str, Bound]
    judged: Mapping[str, str]
    found: str
    hours: str
    say: Callable[[Subject, Bounds], Said | None]
    figures: Mapping[str, str] = {}
    about: str = USER
    source: str = RUNS
    subject: str = '"user"'
    accounted: bool = False
    coverage: str = "coverage_pct"
    methods: tuple[str, ...] = ()
    label: str = "NULL"
    sheet: str = ""
    least: str = "min_gpu_hours"
    running: "Rule | None" = None


def hours(value: float) -> str:
    """Return GPU-hours in words."""
    return f"{significant(value)} GPU-h"


def gib(value_mib: float) -> str:
    """Return a size of memory in words."""
    return f"{significant(value_mib / 1024)} GiB"


def runs(subject: Subject) -> str:
    """Return how many runs were found and which are the first of them: "7 runs (job 12, 13, ...)"."""
    jobs = ", ".join(line.job_id for line in subject.worst) + (", ..." if subject.found > len(subject.worst) else "")
    return f"{counted(subject.found, 'run')} (job {jobs})"


def ask_for_piece(subject: Subject, those: str) -> str:
    """Return how ``those`` jobs get a piece of a GPU."""
    if subject.figures["csub"]:
        return f"submit {those} with csub, which gives each a piece of a GPU that is enough"
    named = f": {enough(subject.label, bool(subject.figures['differ']))}" if subject.label else ""
    return f"{DO[PIECE_CODE]} in {those}{named}"


def shown(subject: Subject, runs_key: str) -> str:
    """Return how little the counters of runs showed, of how many the figure ``runs_key`` says; empty of none."""
    number, readings = subject.figures[runs_key], []
    for name, key in (("GPU_UTIL", "util"), ("SM activity", "sm")):
        measured, pct = subject.figures[f"by_{key}"], subject.figures[f"{key}_most_pct"]
        if measured:
            readings.append(
                f"{name} {f'at most {at_most(pct)} %' if pct else '0'}{'' if measured == number else ' where known'}"
            )
    return f"{', '.join(readings)}, " if readings else ""


def seen(subject: Subject) -> str:
    """Return how surely it is known."""
    methods = f"({' and '.join(subject.methods)})" if subject.methods else ""
    return " ".join(filter(None, (sampled(subject), methods)))


def sampled(subject: Subject) -> str:
    """Return how much of the time of the runs found was sampled, of the least sampled of them."""
    return (
        "" if subject.coverage_pct is None else f"sampled for at least {at_least(subject.coverage_pct)} % of the time"
    )
