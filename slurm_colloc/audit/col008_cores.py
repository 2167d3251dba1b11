# SPDX-License-Identifier: Apache-2.0
"""COL008: more CPUs than go with its GPUs.

A user's runs held more CPUs for each GPU than the site's bound, or than a node has for each of its GPUs, and left them
idle. While they ran, GPUs of their nodes may have had too few left for anybody else's job. CPUs are what Slurm counts
as such: cores, or hardware threads where a site has Slurm count these.

Figures of what was held are from the accounting; what was kept busy is CPU time over sampled time, and time that was
not sampled counts as busy. Runs whose host was sampled too little, or not on each of their nodes, of a partition or GPU
type that site.toml does not describe (where the site sets no bound of its own), and those on slices and shares, which
need a core each whatever their size, are not judged, nor is the use of one that has just begun. It never says that
another job did wait. A site whose partition gives whole nodes to everybody excludes it.

job_defense_shield calls it too-many-cores-per-gpu.
"""

from slurm_colloc.audit.rule import (
    HELD,
    HOST,
    PIECE,
    RUNNING,
    UNDESCRIBED,
    UNHELD,
    UNSAMPLED_HOST,
    YOUNG,
    Bound,
    Bounds,
    Rule,
    Said,
    hours,
    runs,
    sampled,
)
from slurm_colloc.core.audit_model import Subject
from slurm_colloc.core.units import significant


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    held, busy, limit = (subject.figures[name] for name in ("held", "busy", "limit"))
    if held is None or limit is None:
        return None
    busy_phrase = "" if busy is None else f", of which {significant(busy)} were kept busy ({sampled(subject)})"
    return Said(
        f"{significant(held)} CPUs for each GPU{busy_phrase}, over {hours(subject.gpu_hours)} in {runs(subject)}; "
        f"the bound is {significant(limit)} for each GPU, over {hours(bounds['min_gpu_hours'])}",
        "ask for fewer CPUs (--cpus-per-gpu, --cpus-per-task, no --exclusive), so that the node's other GPUs can "
        "be used",
    )


RULE = Rule(
    code="COL008",
    name="cores per GPU",
    title="more CPUs than go with the GPUs",
    documentation=__doc__ or "",
    bounds={
        "cores_per_gpu": Bound(0.0, "cores for each GPU above which a run counts; 0: by over_node_pct"),
        "over_node_pct": Bound(150.0, "without cores_per_gpu: the same in percent of what a node has for each GPU"),
        "busy_below_pct": Bound(
            80.0, "percent of its cores that a run may keep busy and still count; 100: whatever it did with them"
        ),
        "min_gpu_hours": Bound(24.0, "GPU-hours of such runs in the window, of one user, from which it speaks"),
        "running_min": RUNNING,
    },
    judged={
        PIECE: "whole",
        UNHELD: f"cpus IS NOT NULL AND gpus > 0 AND {HELD}",
        UNDESCRIBED: "$cores_per_gpu > 0 OR cpus_per_gpu IS NOT NULL",
        YOUNG: "$busy_below_pct >= 100 OR end_s IS NOT NULL OR span_s >= 60 * $running_min",
        UNSAMPLED_HOST: "$busy_below_pct >= 100 OR cores IS NOT NULL AND host_pct >= $min_coverage_pct",
    },
    found="cpus > gpus * if($cores_per_gpu > 0, $cores_per_gpu, cpus_per_gpu * $over_node_pct / 100) "
    "AND ($busy_below_pct >= 100 OR 100 * cores + (100 - host_pct) * cpus < $busy_below_pct * cpus)",
    hours="allocated",
    figures={
        "held": "sum(cpus / gpus * allocated) FILTER (found) / sum(allocated) FILTER (found)",
        "busy": "sum(cores / gpus * allocated) FILTER (found) / sum(allocated) FILTER (found AND cores IS NOT NULL)",
        "limit": "max(if($cores_per_gpu > 0, $cores_per_gpu, cpus_per_gpu * $over_node_pct / 100)) FILTER (found)",
    },
    say=_say,
    accounted=True,
    coverage="host_pct",
    methods=HOST,
)
