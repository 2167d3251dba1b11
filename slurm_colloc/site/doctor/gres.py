# SPDX-License-Identifier: Apache-2.0
"""DOC010 to DOC021: the GPUs of nodes, as they are and as they are configured, their sharing and their modes."""

from collections.abc import Iterable, Iterator

from slurm_colloc.core.errors import InputError
from slurm_colloc.gpu.mig import parse_profile
from slurm_colloc.site.cluster import SHARES
from slurm_colloc.site.doctor.facts import Blank, Finder, Seen, Site, Unread, known, other_than
from slurm_colloc.slurm.hostlist import expand, fold
from slurm_colloc.slurm.parse import Node
from slurm_colloc.slurm.setup import GresLine, parse_weights

# The last release that was tried, and found to be as wrong as the first.
_SEEN_WRONG = "26.05"
# The release that gives a GPU of which shares are taken to a job of a whole GPU, too; 26.05 did not in 646 looks.
_GIVES_TWICE = "22.05"
_MISFITS = {"prohibited": "no process may use the GPU", "exclusive_thread": "drivers of today do not know it"}
_TRACKED = "AccountingStorageTRES"


def _both_shares(site: Site) -> Iterator[Seen | Blank]:
    both = [node.name for node in site.nodes if node.quantity("mps") and node.quantity("shard")]
    if both and site.release <= _SEEN_WRONG:
        yield Seen(fold(both), f"gres/mps and gres/shard on one node of Slurm {site.release}")
    elif both:
        yield Blank(fold(both), f"gres/mps and gres/shard on one node, which was not tried on Slurm {site.release}")


def _types_of_files(site: Site) -> Iterator[Seen | Blank]:
    lines = _by_node(known(site.gres_conf), site.this_node)
    not_here = []
    for node in site.nodes:
        if not node.gpu_types:
            continue
        types = {line.type for line in lines.get(node.name, []) if line.name == "gpu"}
        if types - {""}:
            yield from _unmatched(node, types)
        elif node.name != site.this_node:
            not_here.append(node.name)
        if node.name == site.this_node:
            yield from _unmatched_devices(site, node)
    if not_here:
        yield Blank(fold(not_here), "gres.conf here has no GPU type for these nodes: what they find is theirs to say")


def _by_node(lines: Iterable[GresLine], this_node: str) -> dict[str, list[GresLine]]:
    """Return the lines that hold for each node; those without a NodeName hold for the node that the file lies on."""
    lines_of: dict[str, list[GresLine]] = {}
    for line in lines:
        try:
            names = expand(line.nodes) if line.nodes else (this_node,)
        except InputError:
            continue  # slurmctld does not know them either
        for name in names:
            lines_of.setdefault(name, []).append(line)
    return lines_of


def _unmatched(node: Node, types: set[str]) -> Iterator[Seen]:
    if strange := sorted(node.gpu_types - types):
        yield Seen(node.name, f"slurm.conf has gpu:{', gpu:'.join(strange)}; gres.conf has only {_words(types)}")
    if "" not in types and (lost := sorted(types - node.gpu_types)):
        yield Seen(node.name, f"gres.conf has gpu:{', gpu:'.join(lost)}; slurm.conf has only {_words(node.gpu_types)}")


def _unmatched_devices(site: Site, node: Node) -> Iterator[Seen | Blank]:
    if isinstance(site.devices, Unread):
        yield Blank(node.name, f"the slices themselves: {site.devices.why}")
        return
    profiles = {profile.name for device in site.devices if (profile := parse_profile(device.profile))}
    for kind in sorted(node.gpu_types):
        profile = parse_profile(kind)
        if profile and profile.name not in profiles:
            yield Seen(node.name, f"slurm.conf has gpu:{kind}; the driver has {_words(profiles) or 'no slices'}")


def _words(names: Iterable[str]) -> str:
    return ", ".join(sorted(name or "GPUs without a type" for name in names))


def _names_of_nothing(site: Site) -> Iterator[Seen]:
    real = {f"gres/gpu:{kind}".lower() for kind in site.types()}

    def strange(place: str, names: Iterable[str]) -> Iterator[Seen]:
        if types := [name for name in sorted(names) if name.startswith("gres/gpu:") and name.lower() not in real]:
            yield Seen(place, f"no node has {', '.join(types)}")

    yield from strange(f"{_TRACKED} of slurm.conf", site.words(_TRACKED))
    for partition in site.partitions:
        yield from strange(
            f"TRESBillingWeights of partition '{partition.name}'", parse_weights(partition.billing_weights)
        )
    for limit in known(site.limits):
        yield from strange(f"{limit.key} of {limit.level}", limit.tres)


def _unknown_names(site: Site) -> Iterator[Seen]:
    names = {line.name for line in known(site.gres_conf)}
    if lacking := [name for name in SHARES if name in names and name not in site.words("GresTypes")]:
        yield Seen("GresTypes of slurm.conf", f"it lacks {', '.join(lacking)}, of which gres.conf has lines")


def _one_at_a_time(site: Site) -> Iterator[Seen | Blank]:
    lines = _by_node(known(site.gres_conf), site.this_node)
    unsaid = []
    for node in site.nodes:
        for name in SHARES if node.quantity("gpu") > 1 else ():
            of_share = [line for line in lines.get(node.name, []) if line.name == name]
            flags = {flag for line in of_share for flag in line.flags}
            if not node.quantity(name) or "all_sharing" in flags:
                continue
            if not of_share:
                unsaid.append(node.name)
            elif name == "mps" or "one_sharing" in flags:
                yield Seen(
                    node.name,
                    f"the node has {node.quantity('gpu')} GPUs, and gres.conf has "
                    f"{'Flags=one_sharing' if 'one_sharing' in flags else 'no Flags=all_sharing'} for its {name}",
                )
    if unsaid:
        yield Blank(fold(unsaid), "gres.conf here has no line on the shares of these nodes")


def _without_variables(site: Site) -> Iterator[Seen]:
    for line in known(site.gres_conf):
        flags = sorted(flag for flag in line.flags if flag.endswith("_env"))
        if line.name == "gpu" and flags and "nvidia_gpu_env" not in flags:
            yield Seen(
                line.nodes or site.this_node, f"gres.conf has Flags={','.join(flags)} for gpu {line.type}".rstrip()
            )


def _given_twice(site: Site) -> Iterator[Seen]:
    mixed = [
        node.name
        for node in site.nodes
        for gres in node.gres
        if gres.name == "gpu" and not parse_profile(gres.type) and any(map(node.quantity, SHARES))
    ]
    if mixed and site.release == _GIVES_TWICE:
        yield Seen(fold(mixed), f"shares and whole GPUs on one node of Slurm {site.release}")


def _modes(site: Site) -> Iterator[Seen | Blank]:
    nodes = {node.name: node for node in site.nodes if node.quantity("gpu")}
    others = sorted(set(nodes) - {site.this_node})
    if others:
        yield Blank(fold(others), "the compute mode is known on the node itself: run 'colloc site doctor' there")
    node = nodes.get(site.this_node)
    if node is None:
        return
    shares = [name for name in SHARES if node.quantity(name)]
    for device in known(site.devices):
        if not device.mode:
            yield Blank(f"{node.name}, {device.uuid}", "nvidia-smi does not say its compute mode")
        why = _MISFITS.get(device.mode, "")
        if device.mode == "exclusive_process" and shares == ["shard"]:
            why = "jobs share it by gres/shard: the second one's processes fail"
        if why:
            yield Seen(f"{node.name}, {device.uuid}", f"compute mode is {device.mode}, and {why}")


FINDERS: dict[str, Finder] = {
    "DOC010": _both_shares,
    "DOC011": _types_of_files,
    "DOC013": _names_of_nothing,
    "DOC014": other_than("SelectType", "select/cons_tres"),
    "DOC015": _unknown_names,
    "DOC016": _one_at_a_time,
    "DOC017": _without_variables,
    "DOC020": _modes,
    "DOC021": _given_twice,
}
