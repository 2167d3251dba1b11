# SPDX-License-Identifier: Apache-2.0
"""Words that the findings of several rules have in common."""

from slurm_colloc.audited import Subject
from slurm_colloc.units import counted, significant


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


def seen(subject: Subject) -> str:
    """Return how surely it is known."""
    least = f"sampled for at least {subject.coverage_pct:.0f} % of the time" if subject.coverage_pct is not None else ""
    return ", ".join(filter(None, (least, " and ".join(subject.methods))))
