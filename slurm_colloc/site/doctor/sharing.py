# SPDX-License-Identifier: Apache-2.0
"""DOC080 to DOC091: obstacles to jobs on parts of GPUs, in partitions, cores and memory."""

import re
from collections.abc import Iterator

from slurm_colloc.core.units import whole
from slurm_colloc.site.cluster import brought_by_gpu, default_mem, grouped
from slurm_colloc.site.doctor.facts import Blank, Finder, Seen, Site
from slurm_colloc.slurm.hostlist import fold

_ALL = ("mps", "shard", "MIG slices")
# Amounts that a GPU brings by default: the node's fact, the word of a partition that bounds it, the unit.
_BASES = {"DefCpuPerGPU": ("cpus", "MaxCPUsPerNode", "CPUs"), "DefMemPerGPU": ("mem_mib", "", "MiB")}


def _partitions(words: str) -> Finder:
    """Return a check for partitions with a word of this pattern, and with pieces of GPUs."""

    def find(site: Site) -> Iterator[Seen]:
        for partition in site.partitions:
            has = site.pieces(partition.name)
            bad = [word for key, value in partition.record.items() if re.fullmatch(words, word := f"{key}={value}")]
            if bad and has:
                yield Seen(f"partition '{partition.name}'", f"{', '.join(bad)}, and its nodes have {', '.join(has)}")

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


def _setting(key: str, words: tuple[str, ...], pieces: tuple[str, ...] = _ALL) -> Finder:
    """Return a check for one of these words in a setting of a site that has one of these pieces."""

    def find(site: Site) -> Iterator[Seen]:
        has = [piece for piece in site.pieces() if piece in pieces]
        if has and (bad := sorted(site.words(key) & set(words))):
            yield Seen(f"{key} of slurm.conf", f"it has {','.join(bad).upper()}, and nodes have {', '.join(has)}")

    return find


def _spread(site: Site) -> Iterator[Seen | Blank]:
    yield from _setting("SelectTypeParameters", ("cr_lln", "ll_shared_gres"), ("mps", "shard"))(site)
    yield from _partitions("LLN=YES")(site)


def _too_much(key: str) -> Finder:
    """Return a check for nodes that cannot give to all of their GPUs what each brings by default."""
    fact, bound, unit = _BASES[key]

    def find(site: Site) -> Iterator[Seen]:
        for partition in site.partitions:
            brought = dict(zip(_BASES, brought_by_gpu(partition, site.settings), strict=True))[key]
            most = whole(partition.record.get(bound, ""))
            faults: list[tuple[str, str]] = []
            for node in site.within(partition.name):
                has, gpus = getattr(node, fact), node.quantity("gpu")
                limit = has if most is None else min(most, has or most)
                if limit is not None and (total := brought * gpus) > limit:
                    text = f"{key}={brought} by {gpus} GPUs is {total}, and a job may have {limit} {unit} of a node"
                    faults.append((text, node.name))
            for text, names in grouped(faults).items():
                yield Seen(f"{fold(names)} in partition '{partition.name}'", text)

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


FINDERS: dict[str, Finder] = {
    "DOC080": _partitions("OverSubscribe=EXCLUSIVE|Exclusive=NODE"),
    "DOC081": _partitions(r"OverSubscribe=FORCE(?!:1$).*"),
    "DOC082": _one_user,
    "DOC083": _partitions(r"MinNodes=(?!1$)[1-9][0-9]*"),
    "DOC084": _setting("SelectTypeParameters", ("cr_socket", "cr_socket_memory")),
    "DOC085": _spread,
    "DOC086": _setting("SelectTypeParameters", ("multiple_sharing_gres_pj",), ("mps",)),
    "DOC087": _setting("PreemptMode", ("suspend", "gang"), ("mps", "shard")),
    "DOC088": _too_much("DefCpuPerGPU"),
    "DOC089": _too_much("DefMemPerGPU"),
    "DOC090": _no_memory,
    "DOC091": _all_memory,
}
