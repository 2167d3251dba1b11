# SPDX-License-Identifier: Apache-2.0
"""Words that the findings of several rules have in common."""

from slurm_colloc.audited import Subject
from slurm_colloc.units import at_least, at_most, counted, significant


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


def kernels(subject: Subject) -> str:
    """Return how little the counters of the runs found showed, of subjects with the figures of rule.COUNTERS."""
    figures, shown, most_pct = subject.figures, [], 0.0
    for name, key in (("GPU_UTIL", "util"), ("SM activity", "sm")):
        known, pct = figures[f"by_{key}"], figures[f"{key}_most_pct"]
        if known and pct is not None:
            most_pct = max(most_pct, pct)
            where = "" if known == subject.found else " where known"
            shown.append(f"{name} {f'at most {at_most(pct)} %' if pct else '0'}{where}")
    return f"{'hardly a' if most_pct else 'no'} kernel seen ({', '.join(shown)})"


def zeros(subject: Subject) -> str:
    """Return which counters of the runs found were 0, of subjects with the figures of rule.COUNTERS."""
    known = {"GPU_UTIL": subject.figures["by_util"] or 0, "SM activity": subject.figures["by_sm"] or 0}
    of = {name: "" if number == subject.found else " where known" for name, number in known.items() if number}
    return ", ".join(f"{name} 0{where}" for name, where in of.items())


def seen(subject: Subject) -> str:
    """Return how surely it is known."""
    return ", ".join(filter(None, (sampled(subject), " and ".join(subject.methods))))


def sampled(subject: Subject) -> str:
    """Return how much of the time of the runs found was sampled, of the least sampled of them."""
    return (
        "" if subject.coverage_pct is None else f"sampled for at least {at_least(subject.coverage_pct)} % of the time"
    )
