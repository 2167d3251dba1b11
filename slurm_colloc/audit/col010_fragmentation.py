# SPDX-License-Identifier: Apache-2.0
"""COL010: GPUs spread over more nodes than needed.

A user's runs had their GPUs on more nodes than hold as many GPUs, cores and as much host memory: eight GPUs on eight
nodes of eight GPUs each. Such a run talks over the network where it could over NVLink, and leaves holes in which no
larger job fits.

All of it is from the accounting: it needs no samples, and says nothing of use. What a node has is from site.toml, the
least of all nodes that a run of its partition and GPU type may have had; where site.toml does not say, nothing is
judged. It never says that it was the user who wanted it so: without --nodes, Slurm gives what is free.

job_defense_shield calls it multinode-gpu-fragmentation, counts GPUs alone, and names runs that had fewer GPUs on a node
than it has even where fewer nodes would not have held them.
"""

from slurm_colloc.audit.rule import HELD, PIECE, UNDESCRIBED, UNHELD, Bound, Bounds, Rule, Said
from slurm_colloc.audit.words import hours, runs
from slurm_colloc.audited import Subject


def _say(subject: Subject, bounds: Bounds) -> Said:
    nodes, needed = subject.figures["nodes"], subject.figures["needed"]
    return Said(
        f"{hours(subject.gpu_hours)} in {runs(subject)} on {nodes:g} nodes in all, where {needed:g} hold as many GPUs, "
        f"cores and as much memory; the bound is {hours(bounds['min_gpu_hours'])}",
        "ask for the nodes, too (--nodes=1 --gpus-per-node=8 instead of --gpus=8)",
    )


_GPUS = "if($gpus_per_node > 0, $gpus_per_node, node_gpus)"
_NEEDED = f"greatest(ceil(devices / {_GPUS}), ceil(cpus / node_cpus), ceil(mem_given_mib / node_mem_mib), 1)"
RULE = Rule(
    code="COL010",
    name="fragmentation",
    title="GPUs spread over more nodes than needed",
    documentation=__doc__ or "",
    bounds={
        "gpus_per_node": Bound(0.0, "GPUs of a node; 0: as site.toml has it"),
        "min_gpu_hours": Bound(24.0, "GPU-hours of such runs in the window, of one user, from which it speaks"),
    },
    judged={
        PIECE: "whole",
        UNHELD: f"{HELD} AND devices > 0 AND nodes > 0 AND cpus IS NOT NULL AND mem_given_mib IS NOT NULL",
        UNDESCRIBED: f"{_GPUS} > 0 AND node_cpus > 0 AND node_mem_mib > 0",
    },
    found=f"nodes > {_NEEDED}",
    hours="allocated",
    figures={"nodes": "sum(nodes) FILTER (found)", "needed": f"sum({_NEEDED}) FILTER (found)"},
    say=_say,
    accounted=True,
    coverage="NULL",
)
