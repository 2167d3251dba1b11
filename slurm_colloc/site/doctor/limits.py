# SPDX-License-Identifier: Apache-2.0
"""DOC050 to DOC062: limits and prices of GPUs that shares of one escape, or that take a slice for a whole one."""

from collections.abc import Iterator, Mapping

from slurm_colloc.gpu.mig import parse_profile, slices_per_gpu
from slurm_colloc.site.cluster import grouped
from slurm_colloc.site.doctor.facts import Finder, Seen, Site, known
from slurm_colloc.slurm.limits import LEAST, Cap, holds_to_limits
from slurm_colloc.slurm.parse import Partition
from slurm_colloc.slurm.setup import parse_weights

_GPU = "gres/gpu"
_BILLING = "billing"
_SHOWN = 3
# Limits on each job alone.
_OF_ONE_JOB = ("MaxTRES", "MaxTRESPerNode")


def _escaped(site: Site) -> Iterator[Seen]:
    shares = [f"gres/{name}" for name in site.shared()]
    gaps: list[tuple[tuple[str, str], str]] = []
    for limit in _upper(site):
        lacking = [share for share in shares if share not in limit.tres]
        counts = {most for name, most in limit.tres.items() if _names_gpu(name)}
        # One job has shares of one GPU at most.
        bounds_gpus = 0 in counts if limit.key in _OF_ONE_JOB else bool(counts)
        if bounds_gpus and _BILLING not in limit.tres and lacking:
            gaps.append(((f"{limit.key}={_shown(limit)}", " and ".join(lacking)), limit.level))
    for (bound, escaping), holders in sorted(grouped(gaps).items()):
        yield Seen(_some(holders), f"{bound} says nothing of {escaping}")


def _slices_count_whole(site: Site) -> Iterator[Seen]:
    if _slices(site):
        bounds = [(f"{limit.key}={_GPU}={limit.tres[_GPU]}", limit) for limit in _upper(site) if limit.tres.get(_GPU)]
        for bound, holders in sorted(grouped((text, limit.level) for text, limit in bounds).items()):
            yield Seen(_some(holders), f"{bound} is used up by as many slices as by whole GPUs")


def _upper(site: Site) -> list[Cap]:
    return [limit for limit in known(site.limits) if limit.key != LEAST]


def _must_have_gpus(site: Site) -> Iterator[Seen]:
    shares = site.shared()
    for limit in known(site.limits) if shares and holds_to_limits(site.settings) else ():
        least = [name for name in limit.tres if limit.key == LEAST and _names_gpu(name)]
        if least:
            yield Seen(limit.level, f"{LEAST}={_shown(limit)}, and nodes have {', '.join(shares)}")


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
        dear = [
            (kind, larger) for kind in sorted(slices) if (larger := _as_cheap(partition, kind, references, largest))
        ]
        if dear:
            prices = "; ".join(
                f"{_price(partition, kind, largest):g} for gpu:{kind} and {references[larger]:g} for gpu:{larger}"
                for kind, larger in dear
            )
            yield Seen(f"partition '{partition.name}'", f"TRESBillingWeights bills {prices}")


def _as_cheap(partition: Partition, kind: str, references: Mapping[str, float], largest: bool) -> str:
    """Return the largest type that is larger than ``kind`` and no dearer, empty for none."""
    price = _price(partition, kind, largest)
    part = part_of_gpu(kind)
    larger = [name for name, cost in references.items() if part_of_gpu(name) > part and 0 < cost <= price]
    return max(larger, key=part_of_gpu, default="")


def _whole(site: Site, partition: Partition, largest: bool) -> dict[str, float]:
    """Return the prices of this partition's whole GPUs, else of all others': those that price any."""
    for candidates in ([partition], [each for each in site.partitions if each is not partition]):
        prices = {
            kind: _price(each, kind, largest)
            for each in candidates
            for kind in site.types(each.name)
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
                yield Seen(f"partition '{partition.name}'", f"TRESBillingWeights price GPUs and not {', '.join(free)}")


def _late(site: Site) -> Iterator[Seen]:
    weights = parse_weights(site.settings.get("PriorityWeightTRES", ""))
    lacking = [f"gres/{share}" for share in site.shared() if not weights.get(f"gres/{share}")]
    if lacking and any(weight > 0 for name, weight in weights.items() if _names_gpu(name)):
        yield Seen("PriorityWeightTRES of slurm.conf", f"it weighs GPUs and not {', '.join(lacking)}")


def _names_gpu(name: str) -> bool:
    return name == _GPU or name.startswith(f"{_GPU}:")


FINDERS: dict[str, Finder] = {
    "DOC050": _escaped,
    "DOC051": _slices_count_whole,
    "DOC052": _must_have_gpus,
    "DOC060": _dear_slices,
    "DOC061": _free,
    "DOC062": _late,
}
