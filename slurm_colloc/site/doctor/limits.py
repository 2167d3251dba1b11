# SPDX-License-Identifier: Apache-2.0
"""DOC050 to DOC062: limits and prices of GPUs that shares of one escape, or that take a slice for a whole one."""

from collections.abc import Iterator, Mapping

from slurm_colloc.gpu.mig import parse_profile, slices_per_gpu
from slurm_colloc.site.doctor.facts import TRIED, Check, Seen, Site, known
from slurm_colloc.slurm.limits import LEAST, Cap, holds_to_limits
from slurm_colloc.slurm.parse import Partition
from slurm_colloc.slurm.setup import parse_weights

_GPU = "gres/gpu"
_BILLING = "billing"
_SHOWN = 3
_OF_ONE_JOB = ("MaxTRES", "MaxTRESPerNode")


def _escaped(site: Site) -> Iterator[Seen]:
    shares = [f"gres/{name}" for name in site.shared()]
    by_gap: dict[tuple[str, str], list[str]] = {}
    for limit in _upper(site):
        lacking = [share for share in shares if share not in limit.tres]
        if _bounds_gpus(limit) and _BILLING not in limit.tres and lacking:
            gap = (f"{limit.key}={_shown(limit)}", " and ".join(lacking))
            by_gap.setdefault(gap, []).append(limit.level)
    for (what, escaping), holders in sorted(by_gap.items()):
        yield Seen(_some(holders), f"{what} says nothing of {escaping}")


def _slices_count_whole(site: Site) -> Iterator[Seen]:
    if not _slices(site):
        return
    by_limit: dict[str, list[str]] = {}
    for limit in _upper(site):
        if limit.tres.get(_GPU):
            by_limit.setdefault(f"{limit.key}={_GPU}={limit.tres[_GPU]}", []).append(limit.level)
    for what, holders in sorted(by_limit.items()):
        yield Seen(_some(holders), f"{what} is used up by as many slices as by whole GPUs")


def _upper(site: Site) -> list[Cap]:
    return [limit for limit in known(site.limits) if limit.key != LEAST]


def _must_have_gpus(site: Site) -> Iterator[Seen]:
    shares = site.shared()
    for limit in known(site.limits) if shares and holds_to_limits(site.settings) else ():
        least = [name for name in limit.tres if limit.key == LEAST and _names_gpu(name)]
        if least:
            yield Seen(limit.level, f"{LEAST}={_shown(limit)}, and nodes have {', '.join(shares)}")


def _bounds_gpus(limit: Cap) -> bool:
    """Return whether a limit bounds GPUs in a way that shares could escape: one job has shares of one GPU at most."""
    counts = {most for name, most in limit.tres.items() if _names_gpu(name)}
    return 0 in counts if limit.key in _OF_ONE_JOB else bool(counts)


def _shown(limit: Cap) -> str:
    return ",".join(f"{name}={most}" for name, most in limit.tres.items() if name.startswith(_GPU))


def _some(holders: list[str]) -> str:
    more = f" and {len(holders) - _SHOWN} more" if len(holders) > _SHOWN else ""
    return ", ".join(holders[:_SHOWN]) + more


def _slices(site: Site, partition: str = "") -> set[str]:
    return {kind for kind in site.types(partition) if part_of_gpu(kind) < 1}


def part_of_gpu(kind: str) -> float:
    """Return the compute slices of a type as a part of its GPU's."""
    profile = parse_profile(kind)
    return profile.compute_slices / slices_per_gpu(kind) if profile else 1.0


def _price(partition: Partition, kind: str, largest: bool) -> float:
    """Return what one GPU or slice of a type costs: it is one gres/gpu and one gres/gpu:TYPE."""
    weights = parse_weights(partition.billing_weights)
    prices = [weights.get(_GPU, 0.0), weights.get(f"{_GPU}:{kind}".lower(), 0.0)]
    return max(prices) if largest else sum(prices)


def _dear_slices(site: Site) -> Iterator[Seen]:
    largest = "max_tres" in site.words("PriorityFlags")
    for partition in site.partitions:
        slices = _slices(site, partition.name)
        references = _whole(site, partition, largest) or {kind: _price(partition, kind, largest) for kind in slices}
        dear = [(kind, other) for kind in sorted(slices) if (other := _as_cheap(partition, kind, references, largest))]
        if dear:
            said = "; ".join(
                f"{_price(partition, kind, largest):g} for gpu:{kind} and {references[other]:g} for gpu:{other}"
                for kind, other in dear
            )
            yield Seen(f"partition '{partition.name}'", f"TRESBillingWeights bills {said}")


def _as_cheap(partition: Partition, kind: str, references: Mapping[str, float], largest: bool) -> str:
    """Return the largest type that is larger than ``kind`` and no dearer, empty for none."""
    price = _price(partition, kind, largest)
    part = part_of_gpu(kind)
    found = [other for other, cost in references.items() if part_of_gpu(other) > part and 0 < cost <= price]
    return max(found, key=part_of_gpu, default="")


def _whole(site: Site, partition: Partition, largest: bool) -> dict[str, float]:
    """Return the prices of whole GPUs: of this partition's, else those of the others that price any."""
    for candidates in ([partition], [other for other in site.partitions if other is not partition]):
        prices = {
            kind: _price(other, kind, largest)
            for other in candidates
            for kind in site.types(other.name)
            if part_of_gpu(kind) == 1
        }
        if any(prices.values()):
            return prices
    return {}


def _free(site: Site) -> Iterator[Seen]:
    for partition in site.partitions:
        weights, types = parse_weights(partition.billing_weights), sorted(site.types(partition.name))
        if any(weight > 0 for name, weight in weights.items() if _names_gpu(name)):
            free = [f"gres/{share}" for share in site.shared(partition.name) if not weights.get(f"gres/{share}")]
            free += [f"gres/gpu:{kind}" for kind in types if not _price(partition, kind, largest=False)]
            if free:
                said = f"TRESBillingWeights price GPUs and not {', '.join(free)}"
                yield Seen(f"partition '{partition.name}'", said)


def _late(site: Site) -> Iterator[Seen]:
    weights = parse_weights(site.settings.get("PriorityWeightTRES", ""))
    lacking = [f"gres/{share}" for share in site.shared() if not weights.get(f"gres/{share}")]
    if lacking and any(weight > 0 for name, weight in weights.items() if _names_gpu(name)):
        yield Seen("PriorityWeightTRES of slurm.conf", f"it weighs GPUs and not {', '.join(lacking)}")


def _names_gpu(name: str) -> bool:
    return name == _GPU or name.startswith(f"{_GPU}:")


CHECKS = (
    Check(
        "DOC050",
        "error",
        "a limit on GPUs that gres/mps and gres/shard escape",
        "a job on a share counts as no gres/gpu: under MaxTRESPerUser=gres/gpu=1 one user was seen to hold four GPUs",
        "set gres/mps and gres/shard in the same limit, or limit billing there, with a price on each of them",
        "https://slurm.schedmd.com/resource_limits.html and tres.html; measured on Slurm 22.05.8, and that shares pass "
        "it by on 24.11.5 and 26.05.5, too",
        _escaped,
    ),
    Check(
        "DOC051",
        "warning",
        "a limit that a slice uses up like a whole GPU",
        "who takes seven slices of one GPU is told that they have seven GPUs: nobody asks for slices",
        "limit billing instead, with slices priced at their part of a GPU, or each gres/gpu:TYPE by itself",
        "slurm.conf(5), AccountingStorageTRES: gres/gpu counts GPUs of any type; that MaxTRESPerUser=billing=N holds "
        "jobs back was measured on Slurm 22.05.8, 24.11.5 and 26.05.5",
        _slices_count_whole,
    ),
    Check(
        "DOC052",
        "error",
        "a QOS that asks each job for a GPU",
        "a job on gres/mps or gres/shard has no gres/gpu: it waits for good (QOSMinGRES), or is refused (DenyOnLimit)",
        "remove MinTRES on gres/gpu where there are shares; keep jobs without a GPU away in job_submit.lua",
        f"sacctmgr(1), MinTRES; seen on {TRIED}",
        _must_have_gpus,
    ),
    Check(
        "DOC060",
        "warning",
        "a slice costs as much as a whole GPU",
        "fair share charges a seventh of a GPU like all of it: whoever asks for less gains nothing",
        "remove the weight on gres/gpu; write one on each gres/gpu:TYPE, slices at their part. Slurm adds up both",
        "slurm.conf(5), TRESBillingWeights: the sum of all TRES, with PriorityFlags=MAX_TRES the largest of a node; "
        "that gres/gpu and gres/gpu:TYPE are added was measured on Slurm 22.05.8, 24.11.5 and 26.05.5",
        _dear_slices,
    ),
    Check(
        "DOC061",
        "error",
        "shares or GPUs that cost nothing where others have a price",
        "fair share does not see who computes on them all day",
        "gres/mps at a hundredth (or what one GPU has of them) of a GPU's weight, gres/shard at one part of it, each "
        "type at its own; track them first, for slurmctld does not start with a weight on what is not tracked",
        "slurm.conf(5), TRESBillingWeights; the fatal error was seen on Slurm 22.05.8, 24.11.5 and 26.05.5",
        _free,
    ),
    Check(
        "DOC062",
        "warning",
        "jobs on shares rank behind jobs on GPUs",
        "a job on a share gets none of the priority that a GPU brings: who asks for less waits longer",
        "gres/mps and gres/shard in PriorityWeightTRES, each at the weight of gres/gpu",
        f"slurm.conf(5), PriorityWeightTRES; seen in sprio on {TRIED}",
        _late,
    ),
)
