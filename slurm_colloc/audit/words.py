# SPDX-License-Identifier: Apache-2.0
"""Phrases that findings of several rules use."""

from slurm_colloc.core.audit_model import Subject
from slurm_colloc.core.units import at_least, at_most, counted, significant


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


def shown(subject: Subject, runs_key: str) -> str:
    """Return how little the counters of runs showed, of how many the figure ``runs_key`` says; empty of none."""
    number, said = subject.figures[runs_key], []
    for name, key in (("GPU_UTIL", "util"), ("SM activity", "sm")):
        known, pct = subject.figures[f"by_{key}"], subject.figures[f"{key}_most_pct"]
        if known:
            said.append(
                f"{name} {f'at most {at_most(pct)} %' if pct else '0'}{'' if known == number else ' where known'}"
            )
    return f"{', '.join(said)}, " if said else ""


def seen(subject: Subject) -> str:
    """Return how surely it is known."""
    methods = f"({' and '.join(subject.methods)})" if subject.methods else ""
    return " ".join(filter(None, (sampled(subject), methods)))


def sampled(subject: Subject) -> str:
    """Return how much of the time of the runs found was sampled, of the least sampled of them."""
    return (
        "" if subject.coverage_pct is None else f"sampled for at least {at_least(subject.coverage_pct)} % of the time"
    )
