# SPDX-License-Identifier: Apache-2.0
"""COL010: more GPU memory than a share's part.

Runs with gres/mps or gres/shard held more GPU memory than their part of the GPU's memory: a run with 2 of 8 shards of a
GPU of 80 GiB may hold 20 GiB. Nothing stops such a run on shards, and on MPS nothing does unless its script sets a
limit, as csub's do. Once the GPU's memory is full, allocations of all jobs on it fail.

The memory is that of the run's own processes, so that how the GPU's use was split among jobs does not matter. A peak
between two readings is not seen. GPU types and partitions that site.toml does not describe are not judged.
"""

from slurm_colloc.audit.rule import UNDESCRIBED, Bound, Bounds, Rule, Said, gib, hours, runs
from slurm_colloc.core.audit_model import Subject

_SHARE = "gpus * gpu_mem_mib"


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    peak, share = subject.figures["peak_mib"], subject.figures["share_mib"]
    if peak is None or share is None:
        return None
    return Said(
        f"up to {gib(peak)} of GPU memory in use, where the job's share is {gib(share)}, over "
        f"{hours(subject.gpu_hours)} in {runs(subject)}; the site's threshold is {bounds['over_pct']:g} % more than "
        "the share",
        "ask for as many shares as the job's memory needs, or submit with csub, which measures it",
    )


RULE = Rule(
    code="COL010",
    name="over its share",
    title="more GPU memory than the share",
    documentation=__doc__ or "",
    bounds={
        "over_pct": Bound(10.0, "percent by which a run may exceed its share"),
        "min_gpu_hours": Bound(0.0, "GPU-hours of such runs in the window, of one user, from which it speaks"),
    },
    judged={
        "no share of a GPU": "regexp_matches(shown, '(^|,)(mps|shard):')",
        "the size of its share not known": "gpus > 0",
        UNDESCRIBED: "gpu_mem_mib IS NOT NULL",
        "GPU memory not known": "peak_mib IS NOT NULL",
    },
    found=f"100 * peak_mib > (100 + $over_pct) * {_SHARE}",
    hours="allocated",
    figures={
        "peak_mib": f"arg_max(peak_mib, peak_mib / ({_SHARE})) FILTER (found)",
        "share_mib": f"arg_max({_SHARE}, peak_mib / ({_SHARE})) FILTER (found)",
    },
    say=_say,
    coverage="NULL",
    methods=("the memory of the run's own processes",),
)
