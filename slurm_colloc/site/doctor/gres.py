# SPDX-License-Identifier: Apache-2.0
"""DOC010 to DOC020: what nodes have, what they are said to have, how it is shared, and the mode of their GPUs."""

from collections.abc import Iterable, Iterator

from slurm_colloc.core.errors import InputError
from slurm_colloc.gpu.mig import parse_profile
from slurm_colloc.site.cluster import SHARES
from slurm_colloc.site.doctor.facts import TRIED, Blank, Check, Seen, Site, Unread, known, other_than
from slurm_colloc.slurm.hostlist import expand, fold
from slurm_colloc.slurm.parse import Node
from slurm_colloc.slurm.setup import GresLine, parse_weights

# The last release that was tried, and found to be as wrong as the first.
_SEEN_WRONG = "26.05"
_TRACKED = "AccountingStorageTRES"


def _both_shares(site: Site) -> Iterator[Seen | Blank]:
    both = [node.name for node in site.nodes if node.quantity("mps") and node.quantity("shard")]
    if both and _release(site.release) <= _release(_SEEN_WRONG):
        yield Seen(fold(both), f"gres/mps and gres/shard on one node of Slurm {site.release}")
    elif both:
        yield Blank(fold(both), f"gres/mps and gres/shard on one node, which was not tried on Slurm {site.release}")


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


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
    found: dict[str, list[GresLine]] = {}
    for line in lines:
        try:
            names = expand(line.nodes) if line.nodes else (this_node,)
        except InputError:
            continue  # slurmctld does not know them either
        for name in names:
            found.setdefault(name, []).append(line)
    return found


def _unmatched(node: Node, types: set[str]) -> Iterator[Seen]:
    if strange := sorted(node.gpu_types - types):
        yield Seen(node.name, f"slurm.conf has gpu:{', gpu:'.join(strange)}; gres.conf has only {_words(types)}")
    if "" not in types and (lost := sorted(types - node.gpu_types)):
        yield Seen(node.name, f"gres.conf has gpu:{', gpu:'.join(lost)}; slurm.conf has only {_words(node.gpu_types)}")


def _unmatched_devices(site: Site, node: Node) -> Iterator[Seen | Blank]:
    if isinstance(site.devices, Unread):
        yield Blank(node.name, f"the slices themselves: {site.devices.why}")
        return
    there = {profile.name for device in site.devices if (profile := parse_profile(device.profile))}
    for kind in sorted(node.gpu_types):
        profile = parse_profile(kind)
        if profile and profile.name not in there:
            yield Seen(node.name, f"slurm.conf has gpu:{kind}; the driver has {_words(there) or 'no slices'}")


def _words(names: Iterable[str]) -> str:
    return ", ".join(sorted(name or "GPUs without a type" for name in names))


def _names_of_nothing(site: Site) -> Iterator[Seen]:
    there = {f"gres/gpu:{kind}".lower() for kind in site.types()}

    def strange(where: str, names: Iterable[str]) -> Iterator[Seen]:
        if found := [name for name in sorted(names) if name.startswith("gres/gpu:") and name.lower() not in there]:
            yield Seen(where, f"no node has {', '.join(found)}")

    yield from strange(f"{_TRACKED} of slurm.conf", site.words(_TRACKED))
    for partition in site.partitions:
        yield from strange(
            f"TRESBillingWeights of partition '{partition.name}'", parse_weights(partition.billing_weights)
        )
    for limit in known(site.limits):
        yield from strange(f"{limit.key} of {limit.level}", limit.tres)


def _unknown_names(site: Site) -> Iterator[Seen]:
    there = {line.name for line in known(site.gres_conf)}
    if lacking := [name for name in SHARES if name in there and name not in site.words("GresTypes")]:
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
                given = "Flags=one_sharing" if "one_sharing" in flags else "no Flags=all_sharing"
                yield Seen(
                    node.name, f"the node has {node.quantity('gpu')} GPUs, and gres.conf has {given} for its {name}"
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
        if why := _misfit(device.mode, shares):
            yield Seen(f"{node.name}, {device.uuid}", f"compute mode is {device.mode}, and {why}")


def _misfit(mode: str, shares: list[str]) -> str:
    if mode == "prohibited":
        return "no process may use the GPU"
    if mode == "exclusive_thread":
        return "drivers of today do not know it"
    if mode == "exclusive_process" and shares == ["shard"]:
        return "jobs share it by gres/shard: the second one's processes fail"
    return ""


CHECKS = (
    Check(
        "DOC010",
        "error",
        "gres/mps and gres/shard on one node",
        "a GPU is given to a whole-GPU job and to mps jobs at once; where gres.conf has a line for each GPU's mps and "
        "shard, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is divided by the wrong number as well (625 for mps:25)",
        "keep one of the two on each node",
        "gres.conf(5), Count of MPS and Sharding; measured on Slurm 22.05.8, 24.11.5 and 26.05.5",
        _both_shares,
    ),
    Check(
        "DOC011",
        "error",
        "a GPU or MIG type that matches nothing on its node",
        "the node registers fewer GPUs than slurm.conf has, and is drained; jobs that ask for that type never start",
        "use the types that 'slurmd -G' prints on the node, in slurm.conf and gres.conf alike; with AutoDetect=nvml a "
        "part of the name will do in gres.conf",
        "gres.conf(5), Type and AutoDetect; https://slurm.schedmd.com/gres.html#MIG_Management",
        _types_of_files,
    ),
    Check(
        "DOC013",
        "warning",
        "a tracked, billed or limited GPU type that no node has",
        "a limit or price on it holds for nobody: jobs on the type that was meant are free of it",
        "write the type as 'scontrol show node' prints it in Gres",
        "slurm.conf(5), AccountingStorageTRES and TRESBillingWeights; https://slurm.schedmd.com/tres.html",
        _names_of_nothing,
    ),
    Check(
        "DOC014",
        "error",
        "SelectType does not know GPUs",
        "gres/mps, gres/shard and --gpus do not work",
        "SelectType=select/cons_tres",
        "gres.conf(5): gres/[mps|shard] requires select/cons_tres",
        other_than("SelectType", "select/cons_tres"),
    ),
    Check(
        "DOC015",
        "error",
        "gres.conf has shares that slurm.conf does not know",
        "slurmctld and slurmd leave them out with a line in their logs: a job on a share is refused",
        "GresTypes=gpu,mps or gpu,shard; then restart slurmctld and each slurmd",
        f"slurm.conf(5), GresTypes; seen on {TRIED}",
        _unknown_names,
    ),
    Check(
        "DOC016",
        "warning",
        "Slurm shares only one GPU of a node at a time",
        "only one GPU of the node runs jobs with shares at a time: a second job of mps:60 waits although a GPU is free",
        "write Flags=all_sharing into each line of mps and of shard in gres.conf; then restart slurmctld and each "
        "slurmd",
        f"gres.conf(5), Flags: one_sharing and all_sharing; seen on {TRIED}",
        _one_at_a_time,
    ),
    Check(
        "DOC017",
        "error",
        "jobs are not told which GPU is theirs",
        "without CUDA_VISIBLE_DEVICES each job of the node takes the first GPU, on top of its neighbours",
        "remove the flag from gres.conf, or write nvidia_gpu_env",
        f"gres.conf(5), Flags: no_gpu_env and the like; seen on {TRIED}",
        _without_variables,
    ),
    Check(
        "DOC020",
        "error",
        "a compute mode that does not fit how the GPU is shared",
        "processes of jobs that Slurm put on the GPU cannot use it",
        "nvidia-smi -i GPU -c DEFAULT",
        "nvidia-smi(1), -c: DEFAULT lets several processes in, EXCLUSIVE_PROCESS one, PROHIBITED none",
        _modes,
    ),
)
