# SPDX-License-Identifier: Apache-2.0
"""MIG profiles: the grammar of their names, and the cards of the table mig.toml, as data.

The table is a fallback for what no driver has said; the driver on the node has the last word.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

_PROFILE = r"(?:(?P<ci>\d)c\.)?(?<!\d)(?P<gi>[12347])g\.\d{1,4}gb(?:[+-](?:me(?:\.all)?|gfx))*"
# Types that sites write by hand: 1g10gb, 3g_20gb, a100-mig-2. a100_80g is a whole one.
_LIKE_SLICE = r"(?i)(?<!\d)\dg[._-]?\d+g|(?<![a-z])mig"
# Slices of most cards, and of all whose profiles are in no table yet.
_SLICES = 7
# The listed profiles have no less of the memory and SMs that are their part of the card by slices: a GB200's 20 of 23.1
# GiB, an H100's 16 of 18.9 SMs. A unit test says so of all.
_LEAST = 0.86, 0.84


class Profile(NamedTuple):
    """A MIG profile, and how many compute slices it has; a compute instance's are its own, not its GPU instance's."""

    name: str
    compute_slices: int

    @property
    def shares_memory(self) -> bool:
        """Return whether it is a compute instance, whose memory others of its GPU instance may use as well."""
        return self.name[1] == "c"


class GpuModel(NamedTuple):
    """A card of the table, under one of the driver's names; None where a size is not known.

    ``profiles`` maps a profile to (usable MiB, SMs) as drivers listed them, ``parts`` each that there is to (compute
    slices, memory slices, most on one card), ``divisors`` these and those of other drivers to the compute slices into
    which the card then divides.
    """

    name: str
    mem_total_mib: int | None
    sm_count: int | None
    profiles: Mapping[str, tuple[int, int]]
    slices: tuple[int, int]
    parts: Mapping[str, tuple[int, int, int]]
    divisors: Mapping[str, int]
    signs: tuple[str, ...]

    def size(self, profile: str, mem_mib: int, sm_count: int) -> tuple[int, int]:
        """Return the usable MiB and the SMs of a profile on a card of this size: as listed, else the least they can be.

        That is its part of the card by NVIDIA's guide, less what of the profiles that drivers listed the worst lacks.
        """
        compute, memory, _ = self.parts[profile]
        least = mem_mib * memory / self.slices[1] * _LEAST[0], sm_count * compute / self.slices[0] * _LEAST[1]
        return self.profiles.get(profile) or (int(least[0]), int(least[1]))


class _Card(NamedTuple):
    names: tuple[str, ...]
    signs: tuple[str, ...]
    slices: tuple[int, ...]
    source: str
    profiles: Mapping[str, tuple[int, ...]]
    variants: Mapping[str, int] = MappingProxyType({})
    earlier: Mapping[str, int] = MappingProxyType({})
    mem_total_mib: int | None = None
    sm_count: int | None = None


@cache
def models() -> tuple[GpuModel, ...]:
    """Return all cards, under each of their names."""
    import tomllib  # csub has this file at each submission, and needs the table at few
    from importlib.resources import files

    from slurm_colloc.core.value_types import read_as

    text = files("slurm_colloc.gpu").joinpath("mig.toml").read_text()
    cards: tuple[_Card, ...] = read_as(tuple[_Card, ...], tomllib.loads(text)["card"])
    return tuple(model for card in cards for model in _models(card))


def _models(card: _Card) -> Iterator[GpuModel]:
    rows = dict(card.profiles)
    for name, most in card.variants.items():
        compute, memory, _, *listed = rows[plain(name)]
        rows[name] = (compute, memory, most, *listed)
    compute, memory = card.slices
    for name in card.names:
        yield GpuModel(
            name,
            card.mem_total_mib,
            card.sm_count,
            {profile: (row[3], row[4]) for profile, row in rows.items() if len(row) > 3},
            (compute, memory),
            {profile: (row[0], row[1], row[2]) for profile, row in rows.items()},
            {**card.earlier, **dict.fromkeys(rows, compute)},
            card.signs,
        )


# NVML itself tells SM activity (GPM) from Hopper on; before, only DCGM does. [docs/explanation/metrics.md]
_TELLS_SM_ACTIVITY = r"\b(?:g?h(?:20|100|200|800)|g?b[123]00|rtx pro \d{4} blackwell)\b"


def tells_sm_activity(model: str) -> bool:
    """Return whether the driver tells how busy this card's SMs are, without DCGM; False of one that we do not know."""
    return re.search(_TELLS_SM_ACTIVITY, model.lower().replace("_", " ").replace("-", " ")) is not None


def parse_profile(text: str) -> Profile | None:
    """Return the profile named anywhere in ``text`` (a profile, or a gres type ending in one), None without one."""
    match = re.search(_PROFILE, text)
    return Profile(match[0], int(match["ci"] or match["gi"])) if match else None


def plain(profile: str) -> str:
    """Return the profile of the GPU instance without its engines: ``3g.40gb`` of ``1c.3g.40gb+me``."""
    return re.split(r"[+-]", profile)[0].rpartition("c.")[2]


def names_slice(gres_type: str) -> bool:
    """Return whether a type is of slices by its name, also where that does not say of which profile."""
    return re.search(_LIKE_SLICE, gres_type) is not None


def slices_per_gpu(card: str, profile: str = "") -> int:
    """Return into how many compute slices a GPU divides: 7 for most and for unknown ones, 4 or 2 for others.

    ``card`` names it, or is a type that ends in a profile, most of which tell the card's size.
    """
    divisors = _divisors(card, profile)
    return min(divisors) if len(divisors) == 1 else _SLICES


def tells_slices(card: str, profile: str = "") -> bool:
    """Return whether a card and a profile, or a type of both, tell into how many slices the card divides."""
    return len(_divisors(card, profile)) == 1


@cache
def _divisors(card: str, profile: str) -> frozenset[int]:
    """Return by how many the cards that may be meant divide."""
    named = parse_profile(profile or card)
    kind = plain(named.name) if named else ""
    text = re.sub(r"[^a-z0-9]", "", re.sub(_PROFILE, "", card).lower())
    longest = max((sign for model in models() for sign in model.signs if sign in text), key=len, default="")
    cards = [model for model in models() if longest in model.signs]
    if not kind:
        return frozenset(model.slices[0] for model in cards)
    divisors = frozenset(model.divisors[kind] for model in cards or models() if kind in model.divisors)
    if divisors or not cards:
        return divisors or frozenset({_SLICES})
    # A driver that we have not seen names the memory of the same slices otherwise.
    return frozenset({_SLICES}) if all(model.slices[0] == _SLICES for model in cards) else frozenset()


def gres_type_of(model: str) -> str:
    """Return the gres type that AutoDetect=nvml makes of a driver's name: lower case, blanks as underscores."""
    return model.lower().replace(" ", "_")


def model_named(text: str) -> GpuModel | None:
    """Return the GPU whose driver name or AutoDetect type is ``text`` or begins it, None when it is not ours."""
    kind = gres_type_of(text)
    fits = [model for model in models() if re.match(rf"{re.escape(gres_type_of(model.name))}(?![a-z0-9])", kind)]
    return max(fits, key=lambda model: len(model.name), default=None)
