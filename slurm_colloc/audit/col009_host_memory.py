# SPDX-License-Identifier: Apache-2.0
"""COL009: more host memory than goes with its GPUs.

A user's runs held more host memory for each GPU than the site's bound, or than a node has for each of its GPUs, and
never used it. While they ran, GPUs of their nodes may have had too little memory left for anybody else's job.

Figures of what was held are from the accounting; what was used is the highest reading of one node, taken as if every
node of the run had used as much. Runs whose host was sampled too little, or not on each of their nodes, of a partition
or GPU type that site.toml does not describe (where the site sets no bound of its own), and those on slices and shares
are not judged. A peak between two readings is not seen. It never says that another job did wait.

job_defense_shield calls it too-much-cpu-mem-per-gpu.
"""

from slurm_colloc.audit.rule import (
    HELD,
    HOST,
    PIECE,
    UNDESCRIBED,
    UNHELD,
    UNSAMPLED_HOST,
    Bound,
    Bounds,
    Rule,
    Said,
    gib,
    hours,
    runs,
    sampled,
)
from slurm_colloc.core.audit_model import Subject
from slurm_colloc.core.units import at_most


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    held, used, limit = (subject.figures[name] for name in ("held_mib", "used_mib", "limit_mib"))
    if held is None or limit is None:
        return None
    peak = (
        "" if used is None else f", of which at most {at_most(used / 1024)} GiB were seen in use ({sampled(subject)})"
    )
    return Said(
        f"up to {gib(held)} of host memory for each GPU{peak}, over {hours(subject.gpu_hours)} in {runs(subject)}; the "
        f"bound is {gib(limit)} for each GPU, over {hours(bounds['min_gpu_hours'])}",
        "ask for what it needs and some more (--mem, --mem-per-gpu; --mem=0 is all of a node), so that the node's "
        "other GPUs can be used",
    )


_LIMIT = "if($mem_per_gpu_mib > 0, $mem_per_gpu_mib, mem_per_gpu_mib * $over_node_pct / 100)"
RULE = Rule(
    code="COL009",
    name="host memory per GPU",
    title="more host memory than goes with the GPUs",
    documentation=__doc__ or "",
    bounds={
        "mem_per_gpu_mib": Bound(0.0, "host memory in MiB for each GPU above which a run counts; 0: by over_node_pct"),
        "over_node_pct": Bound(110.0, "without mem_per_gpu_mib: the same in percent of what a node has for each GPU"),
        "used_below_pct": Bound(
            80.0, "percent of its memory that a run may use and still count; 100: whatever it did with it"
        ),
        "min_gpu_hours": Bound(24.0, "GPU-hours of such runs in the window, of one user, from which it speaks"),
    },
    judged={
        PIECE: "whole",
        UNHELD: f"mem_given_mib IS NOT NULL AND gpus > 0 AND nodes > 0 AND {HELD}",
        UNDESCRIBED: "$mem_per_gpu_mib > 0 OR mem_per_gpu_mib IS NOT NULL",
        "not completed, or begun before the window": "$used_below_pct >= 100 "
        "OR state = 'COMPLETED' AND from_s <= start_s",
        UNSAMPLED_HOST: "$used_below_pct >= 100 OR host_mem_mib IS NOT NULL AND host_pct >= $min_coverage_pct",
    },
    found=f"mem_given_mib > gpus * {_LIMIT} "
    "AND ($used_below_pct >= 100 OR 100 * host_mem_mib * nodes < $used_below_pct * mem_given_mib)",
    hours="allocated",
    figures={
        "held_mib": "max(mem_given_mib / gpus) FILTER (found)",
        "used_mib": "max(host_mem_mib * nodes / gpus) FILTER (found)",
        "limit_mib": f"max({_LIMIT}) FILTER (found)",
    },
    say=_say,
    accounted=True,
    coverage="host_pct",
    methods=HOST,
)
