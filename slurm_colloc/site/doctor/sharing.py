# SPDX-License-Identifier: Apache-2.0
"""DOC080 to DOC091: what keeps jobs on parts of GPUs apart in partitions, cores and memory."""

import re
from collections.abc import Callable, Iterator

from slurm_colloc.core.units import whole
from slurm_colloc.site.cluster import brought_by_gpu, default_mem
from slurm_colloc.site.doctor.facts import TRIED, Check, Seen, Site
from slurm_colloc.slurm.hostlist import fold

_ALL = ("mps", "shard", "MIG slices")
# What a GPU brings by default: of which of a node's facts, bounded by which word of a partition, in which unit.
_BASES = {"DefCpuPerGPU": ("cpus", "MaxCPUsPerNode", "CPUs"), "DefMemPerGPU": ("mem_mib", "", "MiB")}


def _partitions(words: str) -> Callable[[Site], Iterator[Seen]]:
    """Return a check for partitions with a word of this pattern, and with pieces of GPUs."""

    def find(site: Site) -> Iterator[Seen]:
        for partition in site.partitions:
            has = site.pieces(partition.name)
            said = [word for key, value in partition.record.items() if re.fullmatch(words, word := f"{key}={value}")]
            if said and has:
                yield Seen(f"partition '{partition.name}'", f"{', '.join(said)}, and its nodes have {', '.join(has)}")

    return find


def _one_user(site: Site) -> Iterator[Seen]:
    for partition in site.partitions:
        has = site.pieces(partition.name)
        gpus = max((node.quantity("gpu") for node in site.within(partition.name)), default=0)
        # The one GPU of a node does more for one user under MPS than for several.
        if partition.one_user and has and (gpus > 1 or "mps" not in has):
            yield Seen(
                f"partition '{partition.name}'", f"ExclusiveUser, its nodes have {', '.join(has)} and {gpus} GPUs"
            )


def _setting(key: str, words: tuple[str, ...], pieces: tuple[str, ...] = _ALL) -> Callable[[Site], Iterator[Seen]]:
    """Return a check for one of these words in a setting of a site that has one of these pieces."""

    def find(site: Site) -> Iterator[Seen]:
        has = [piece for piece in site.pieces() if piece in pieces]
        if has and (said := sorted(site.words(key) & set(words))):
            yield Seen(f"{key} of slurm.conf", f"it has {','.join(said).upper()}, and nodes have {', '.join(has)}")

    return find


def _spread(site: Site) -> Iterator[Seen]:
    yield from _setting("SelectTypeParameters", ("cr_lln", "ll_shared_gres"), ("mps", "shard"))(site)
    yield from _partitions("LLN=YES")(site)


def _too_much(key: str) -> Callable[[Site], Iterator[Seen]]:
    """Return a check for nodes that cannot give to all of their GPUs what each brings by default."""
    fact, bound, unit = _BASES[key]

    def find(site: Site) -> Iterator[Seen]:
        for partition in site.partitions:
            each = dict(zip(_BASES, brought_by_gpu(partition, site.settings), strict=True))[key]
            most = whole(partition.record.get(bound, ""))
            found: dict[str, list[str]] = {}
            for node in site.within(partition.name):
                has, gpus = getattr(node, fact), node.quantity("gpu")
                given = has if most is None else min(most, has or most)
                if given is not None and each * gpus > given:
                    said = f"{key}={each} by {gpus} GPUs is {each * gpus}, and a job may have {given} {unit} of a node"
                    found.setdefault(said, []).append(node.name)
            for said, names in found.items():
                yield Seen(f"{fold(names)} in partition '{partition.name}'", said)

    return find


def _gives_memory(site: Site) -> bool:
    return any("memory" in word for word in site.words("SelectTypeParameters"))


def _no_memory(site: Site) -> Iterator[Seen]:
    if site.pieces() and not _gives_memory(site):
        yield Seen(
            "SelectTypeParameters of slurm.conf", f"it is {site.settings.get('SelectTypeParameters') or 'not set'}"
        )


def _all_memory(site: Site) -> Iterator[Seen]:
    for partition in site.partitions if _gives_memory(site) else ():
        has = site.pieces(partition.name)
        by, _, amount = (partition.default_mem or default_mem(site.settings)).partition("=")
        brought = has == ["MIG slices"] and brought_by_gpu(partition, site.settings)[1]
        sizes = [node.mem_mib for node in site.within(partition.name) if node.mem_mib]
        if not has or brought or by == "DefMemPerCPU":
            continue
        if not by:
            yield Seen(f"partition '{partition.name}'", f"neither DefMemPerCPU nor DefMemPerNode, and {', '.join(has)}")
        elif sizes and 2 * int(amount) > min(sizes):
            yield Seen(f"partition '{partition.name}'", f"{by}={amount}, of {min(sizes)} MiB of a node")


_SEEN = f"seen on {TRIED}"
CHECKS = (
    Check(
        "DOC080",
        "warning",
        "a partition that gives whole nodes to jobs on a part of a GPU",
        "a job on one share keeps all of the node's GPUs: the next job on a share waits",
        "OverSubscribe=NO: cons_tres lets jobs share a node by cores and gres all the same",
        f"slurm.conf(5), OverSubscribe; {_SEEN}",
        _partitions("OverSubscribe=EXCLUSIVE|Exclusive=NODE"),
    ),
    Check(
        "DOC081",
        "warning",
        "a partition gives the same core to several jobs (OverSubscribe=FORCE)",
        "jobs on shares of one node run on the same cores, and slow each other down there as well",
        "OverSubscribe=NO: sharing a GPU does not need it",
        f"slurm.conf(5), OverSubscribe; {_SEEN}: three jobs of four cores on a node of eight",
        _partitions(r"OverSubscribe=FORCE(?!:1$).*"),
    ),
    Check(
        "DOC082",
        "warning",
        "nodes of one user at a time, for pieces that several users could share",
        "one user's job on one slice or share keeps the node and all of its GPUs from other users",
        "remove ExclusiveUser; for gres/mps with mps_users = 'each' or 'all' in site.toml (docs/how-to/share-gpus.md)",
        f"slurm.conf(5), ExclusiveUser; {_SEEN}",
        _one_user,
    ),
    Check(
        "DOC083",
        "error",
        "a partition with a least number of nodes, for jobs on a part of a GPU",
        "a job on a share is one node's, and is refused: 'Requested node configuration is not available'",
        "MinNodes=1 where there are shares and slices",
        f"slurm.conf(5), MinNodes; {_SEEN}",
        _partitions(r"MinNodes=(?!1$)[1-9][0-9]*"),
    ),
    Check(
        "DOC084",
        "error",
        "a job on a part of a GPU gets a whole socket",
        "a job of one core on one share takes all cores of a socket: the next share of the GPU waits for cores",
        "SelectTypeParameters=CR_Core_Memory",
        f"slurm.conf(5), CR_Socket and CR_Socket_Memory; {_SEEN}",
        _setting("SelectTypeParameters", ("cr_socket", "cr_socket_memory")),
    ),
    Check(
        "DOC085",
        "warning",
        "shares are spread over as many GPUs or nodes as there are",
        "two jobs on a share open two GPUs or nodes: a job on a whole one waits, which would have begun",
        "remove CR_LLN, LLN=YES and LL_SHARED_GRES where there are shares",
        f"slurm.conf(5), CR_LLN, LLN and LL_SHARED_GRES (24.11 and later); {_SEEN}, LL_SHARED_GRES on the latter two",
        _spread,
    ),
    Check(
        "DOC086",
        "error",
        "a job may get shares of several GPUs (MULTIPLE_SHARING_GRES_PJ)",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE of such a job is above 100 (150 for mps:150) and bounds nothing",
        "remove MULTIPLE_SHARING_GRES_PJ from SelectTypeParameters",
        "slurm.conf(5), MULTIPLE_SHARING_GRES_PJ; seen on Slurm 24.11.5 and 26.05.5",
        _setting("SelectTypeParameters", ("multiple_sharing_gres_pj",), ("mps",)),
    ),
    Check(
        "DOC087",
        "error",
        "jobs on shares are suspended for others",
        "a suspended job keeps its share and its memory on the GPU: the job that it made room for still waits for them",
        "PreemptMode=REQUEUE or CANCEL",
        f"slurm.conf(5), PreemptMode; {_SEEN}",
        _setting("PreemptMode", ("suspend", "gang"), ("mps", "shard")),
    ),
    Check(
        "DOC088",
        "error",
        "GPUs bring more cores than a node has, or than a job may have",
        "a job on all of the node's GPUs is refused, or its second GPU waits for cores",
        "DefCpuPerGPU of at most the cores of a node by its GPUs, and MaxCPUsPerNode of what its GPUs bring",
        f"slurm.conf(5), DefCpuPerGPU and MaxCPUsPerNode; {_SEEN}",
        _too_much("DefCpuPerGPU"),
    ),
    Check(
        "DOC089",
        "error",
        "GPUs bring more memory than a node has",
        "a job on all of the node's GPUs is refused, or its second GPU waits for memory",
        "DefMemPerGPU of at most the memory of a node by its GPUs",
        f"slurm.conf(5), DefMemPerGPU; {_SEEN}",
        _too_much("DefMemPerGPU"),
    ),
    Check(
        "DOC090",
        "error",
        "Slurm does not count memory, and starts jobs that need more than a node has",
        "jobs on shares of one node are started whatever memory they ask for: two of 6 GB were, on a node of 8",
        "SelectTypeParameters=CR_Core_Memory",
        f"slurm.conf(5), SelectTypeParameters; {_SEEN}",
        _no_memory,
    ),
    Check(
        "DOC091",
        "error",
        "a job on a share that does not say --mem takes all memory of its node",
        "the next job on a share waits for memory; DefMemPerGPU holds for gres/gpu alone",
        "DefMemPerCPU, of a node's memory by its cores",
        f"slurm.conf(5), DefMemPerCPU, DefMemPerNode and DefMemPerGPU; {_SEEN}",
        _all_memory,
    ),
)
