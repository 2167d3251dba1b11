# SPDX-License-Identifier: Apache-2.0
"""DOC092 to DOC094: what a GPU, or a piece of one, brings of its node and is billed, by what the site's jobs used."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from slurm_colloc.audited import HostUse
from slurm_colloc.site.doctor.facts import TRIED, Check, Seen, Site, known
from slurm_colloc.site.doctor.limits import part_of_gpu
from slurm_colloc.site.doctor.sharing import job_defaults
from slurm_colloc.site.shares import SHARES
from slurm_colloc.slurm.parse import Node
from slurm_colloc.slurm.setup import PartitionSetup
from slurm_colloc.units import counted, significant, whole

_GIB_MIB = 1024
# A peak of host memory lies between two samples; and who has a quarter more than their part is no case for a price.
_ROOM, _MORE = 1.1, 1.25


class _Fact(NamedTuple):
    """What comes with a GPU: keys of its default and of others, its TRES and unit, a node's, a run's, what would do."""

    key: str
    others: tuple[str, ...]
    tres: str
    unit: str
    of_node: Callable[[Node], int | None]
    used: Callable[[HostUse], float]
    given: Callable[[HostUse], float]
    would_do: Callable[[float], int]


_CORES = _Fact(
    "DefCpuPerGPU",
    (),
    "cpu",
    "cores",
    lambda node: node.cpus,
    lambda one: one.cores,
    lambda one: one.cpus_given,
    math.ceil,
)
_MEMORY = _Fact(
    "DefMemPerGPU",
    ("DefMemPerCPU", "DefMemPerNode"),
    "mem",
    "MiB of host memory",
    lambda node: node.mem_mib,
    lambda one: one.host_mem_mib,
    lambda one: one.mem_given_mib,
    lambda used_mib: _GIB_MIB * math.ceil(_ROOM * used_mib / _GIB_MIB),
)


def _default(fact: _Fact) -> Callable[[Site], Iterator[Seen]]:
    """Return a check for partitions in which a GPU or slice brings less than jobs used, or more than twice as much."""

    def find(site: Site) -> Iterator[Seen]:
        for partition in site.partitions:
            runs = [one for one in known(site.host_use) if one.partition == partition.name and one.kind not in SHARES]
            # To Slurm each slice is a GPU, and all of them are to be given out.
            room = min((have // node.quantity("gpu") for node, have in _nodes(site, partition, fact)), default=0)
            if not runs or not room:
                continue
            wanted = min(room, fact.would_do(max(map(fact.used, runs))))
            now = whole(job_defaults(site, partition).get(fact.key, ""))
            if now is None and any(
                whole(words.get(key, "")) for words in (partition.record, site.settings) for key in fact.others
            ):
                continue  # it comes with something else
            if (now is None and wanted > 1) or (now is not None and not wanted <= now <= 2 * wanted):
                is_now = "is not set" if now is None else f"is {now}"
                said = "; ".join(
                    f"of {_of(one)} 95 % used at most {significant(fact.used(one))} {fact.unit} for each GPU or slice, "
                    f"and were given {significant(fact.given(one))}"
                    for one in runs
                )
                yield Seen(
                    f"partition '{partition.name}'",
                    f"{fact.key} {is_now}, {wanted} would do: {said}; its nodes have {room} for each",
                )

    return find


def _of(one: HostUse) -> str:
    return f"{counted(one.runs, 'run')} on {one.kind}"


def _nodes(site: Site, partition: PartitionSetup, fact: _Fact) -> list[tuple[Node, int]]:
    """Return the nodes of a partition that have GPUs, with what each has of a fact."""
    nodes = [node for node in site.within(partition.name) if node.quantity("gpu")]
    return [(node, have) for node in nodes if (have := fact.of_node(node)) is not None]


def _gpus(node: Node) -> float:
    """Return what a node's GPUs and slices come to in whole GPUs."""
    return sum(gres.quantity * part_of_gpu(gres.type) for gres in node.gres if gres.name == "gpu")


def _unbilled(site: Site) -> Iterator[Seen]:
    for partition in site.partitions if site.pieces() else ():
        found = [said for fact in (_CORES, _MEMORY) for said in _beyond(site, partition, fact)]
        if found:
            yield Seen(f"partition '{partition.name}'", f"{'; '.join(found)}: {_weights(site, partition)}")


def _beyond(site: Site, partition: PartitionSetup, fact: _Fact) -> Iterator[str]:
    """Yield which jobs on GPUs and slices are given more of a node than goes with these, where that has no price."""
    each = max((have / _gpus(node) for node, have in _nodes(site, partition, fact)), default=0.0)
    for one in known(site.host_use) if each and not partition.weights.get(fact.tres) else ():
        own = each * part_of_gpu(one.kind)
        if one.partition == partition.name and one.kind not in SHARES and fact.given(one) > _MORE * own:
            yield (
                f"5 % of {_of(one)} were given {significant(fact.given(one))} {fact.unit} or more for each, of which "
                f"{significant(own)} go with it, and TRESBillingWeights price no {fact.tres}"
            )


def _weights(site: Site, partition: PartitionSetup) -> str:
    """Return weights by which a job costs its largest part of a node, a whole GPU being 1."""
    found: dict[str, float] = {}
    for node in site.within(partition.name):
        gpus = _gpus(node)
        if gpus and node.cpus and node.mem_mib:
            prices = {"CPU": gpus / node.cpus, "Mem": _GIB_MIB * gpus / node.mem_mib}
            prices |= {f"GRES/gpu:{kind}": part_of_gpu(kind) for kind in sorted(node.gpu_types)}
            prices |= {f"GRES/{name}": gpus / node.quantity(name) for name in SHARES if node.quantity(name)}
            # Of nodes that differ by the dearer one, as what a share takes there is more.
            found |= {name: max(price, found.get(name, 0.0)) for name, price in prices.items()}
    said = (f"{name}={price:.4g}{'G' * (name == 'Mem')}" for name, price in found.items())
    return f"TRESBillingWeights={','.join(said)} with PriorityFlags=MAX_TRES"


CHECKS = (
    Check(
        "DOC092",
        "warning",
        "what a GPU or slice brings of cores is not what jobs use",
        "with too few a job that names none starves its GPU, with too many other GPUs of the node find no cores",
        "DefCpuPerGPU on the partition as said; it holds for gres/gpu, slices included, and not for mps and shard",
        f"slurm.conf(5), DefCpuPerGPU; what completed runs of the last month used, by samples. {TRIED}",
        _default(_CORES),
    ),
    Check(
        "DOC093",
        "warning",
        "what a GPU or slice brings of host memory is not what jobs use",
        "with too little a job that names none is killed, with too much other GPUs of the node find no memory",
        "DefMemPerGPU on the partition as said; it holds for gres/gpu, slices included, and not for mps and shard",
        "slurm.conf(5), DefMemPerGPU; the highest samples of completed runs of the last month, and a tenth more",
        _default(_MEMORY),
    ),
    Check(
        "DOC094",
        "warning",
        "jobs on GPUs are given more cores or memory than goes with these, at no price",
        "a small slice with half of the node's cores costs a small slice, and others' GPUs there find none",
        "weigh cores and memory too, and bill the largest part of a node: PriorityFlags=MAX_TRES. It changes what "
        "everybody pays: a proposal to read first",
        "slurm.conf(5), TRESBillingWeights and PriorityFlags; what completed runs of the last month were given",
        _unbilled,
    ),
)
