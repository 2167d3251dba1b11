# SPDX-License-Identifier: Apache-2.0
"""COL014: programs beside the MPS daemon.

Jobs that were given gres/mps ran programs on the GPU that were no clients of an MPS daemon. Such a program takes turns
with the clients of the daemon instead of running with them, none of MPS's limits holds for it, and it can take the
memory of the whole GPU: without its daemon CUDA falls back to that and says nothing.

The evidence is the driver's list of processes, in which clients are marked, so that how its use was split does not
matter. Minutes are no harm (a check whether CUDA is there): a run counts from direct_min on. It cannot say why. Where
all runs of everybody are named, the nodes have no daemon, and that is the site's to mend. A client of another daemon
than the site's is not told from one of it.
"""

from slurm_colloc.audit.rule import UNSAMPLED, Bound, Bounds, Rule, Said, runs
from slurm_colloc.core.audit_model import Subject
from slurm_colloc.core.units import at_least, counted, significant


def _say(subject: Subject, bounds: Bounds) -> Said:
    return Said(
        f"programs outside MPS for {significant(subject.gpu_hours)} h of GPUs shared by MPS, in {runs(subject)} of "
        f"{counted(subject.judged, 'run')} with gres/mps that could be judged, sampled for at least "
        f"{at_least(subject.coverage_pct or 0)} % of the time; the site's threshold is "
        f"{significant(bounds['min_hours'])} h of runs with at least {bounds['direct_min']:g} min",
        "keep CUDA_MPS_PIPE_DIRECTORY as the job has it: scripts and 'env -i' may lose it, and a container needs that "
        "folder and the host's IPC; if it is not set at all, or all jobs do so, ask the site for its daemon",
    )


RULE = Rule(
    code="COL014",
    name="beside MPS",
    title="programs beside the MPS daemon",
    documentation=__doc__ or "",
    bounds={
        "min_hours": Bound(1.0, "hours of GPUs in the window, of one user, from which it speaks"),
        "direct_min": Bound(10.0, "minutes of a run with a program outside MPS, from which the run counts"),
    },
    judged={
        "no share of MPS": "regexp_matches(shown, '(^|,)mps:')",
        "not known which processes were clients": "direct_s IS NOT NULL",
        UNSAMPLED: "coverage_pct >= $min_coverage_pct",
    },
    found="direct_s > 0 AND direct_s >= 60 * $direct_min",
    hours="direct_s / 3600",
    least="min_hours",
    say=_say,
)
