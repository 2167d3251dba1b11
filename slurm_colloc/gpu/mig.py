# SPDX-License-Identifier: Apache-2.0
"""MIG profiles: the grammar of their names, and the sizes of the GPUs we have figures for.

The figures are a fallback for the day a site file is written; the driver on the node has the last word.
"""

import re
from typing import NamedTuple

_PROFILE = r"(?:\dc\.)?(?<!\d)(?P<gi>[12347])g\.\d{1,4}gb(?:[+-](?:me(?:\.all)?|gfx))*"
# Types that sites write by hand: 1g10gb, 3g_20gb, a100-mig-2. a100_80g is a whole one.
_LIKE_SLICE = r"(?i)(?<!\d)\dg[._-]?\d+g|(?<![a-z])mig"
# Profiles that only cards of four slices have, and one that cards of seven (GB200) have, too.
_OF_FOUR = ("1g.6gb", "2g.12gb", "4g.24gb", "2g.48gb", "4g.96gb")
_OF_FOUR_OR_SEVEN = "1g.24gb"
_CARDS_OF_BOTH = ("rtx_pro", "gb200")


class Profile(NamedTuple):
    """A MIG profile, and how many compute slices its GPU instance has."""

    name: str
    compute_slices: int


class GpuModel(NamedTuple):
    """A GPU's size; ``profiles`` maps a profile to (usable MiB, SMs)."""

    name: str
    mem_total_mib: int
    sm_count: int
    profiles: dict[str, tuple[int, int]]


# H100 80GB: nvidia-smi mig -lgip on the card (9.75, 19.62, 39.5, 79.25 GiB). A100: usable MiB from NVIDIA's go-nvml
# mock data, SMs at 14 for each compute slice. Both are of seven of these, by which plan/geometry.py cuts them.
MODELS = (
    GpuModel(
        "NVIDIA H100 80GB HBM3",
        81559,
        132,
        {
            "1g.10gb": (9984, 16),
            "1g.20gb": (20090, 26),
            "2g.20gb": (20090, 32),
            "3g.40gb": (40448, 60),
            "4g.40gb": (40448, 64),
            "7g.80gb": (81152, 132),
        },
    ),
    GpuModel(
        "NVIDIA A100-SXM4-40GB",
        40960,
        108,
        {
            "1g.5gb": (4864, 14),
            "2g.10gb": (9856, 28),
            "3g.20gb": (19968, 42),
            "4g.20gb": (19968, 56),
            "7g.40gb": (40192, 98),
        },
    ),
)


# NVML itself tells SM activity (GPM) from Hopper on; before, only DCGM does. [docs/explanation/metrics.md]
_TELLS_SM_ACTIVITY = r"\b(?:g?h(?:20|100|200|800)|g?b[123]00|rtx pro \d{4} blackwell)\b"


def tells_sm_activity(model: str) -> bool:
    """Return whether the driver tells how busy this card's SMs are, without DCGM; False of one that we do not know."""
    return re.search(_TELLS_SM_ACTIVITY, model.lower().replace("_", " ").replace("-", " ")) is not None


def parse_profile(text: str) -> Profile | None:
    """Return the profile named anywhere in ``text`` (a profile, or a gres type ending in one), None without one."""
    match = re.search(_PROFILE, text)
    return Profile(match[0], int(match["gi"])) if match else None


def names_slice(gres_type: str) -> bool:
    """Return whether a type is of slices by its name, also where that does not say of which profile."""
    return re.search(_LIKE_SLICE, gres_type) is not None


def slices_per_gpu(gres_type: str) -> int:
    """Return into how many compute slices a GPU divides: 4 for the A30 and the RTX PRO cards, 7 for the others.

    ``gres_type`` names the card, or is a profile, most of which tell the card's size. Source: NVIDIA MIG User Guide,
    supported profiles.
    """
    name = gres_type_of(gres_type)
    return 4 if any(sign in name for sign in ("a30", "rtx_pro", *_OF_FOUR)) else 7


def tells_slices(gres_type: str) -> bool:
    """Return whether a type without a card in its name tells of how many slices the card is."""
    return _OF_FOUR_OR_SEVEN not in gres_type or any(card in gres_type for card in _CARDS_OF_BOTH)


def gres_type_of(model: str) -> str:
    """Return the gres type that AutoDetect=nvml makes of a driver's name: lower case, blanks as underscores."""
    return model.lower().replace(" ", "_")


def model_named(text: str) -> GpuModel | None:
    """Return the GPU whose driver name or AutoDetect type is ``text`` or begins it, None when it is not ours."""
    wanted = gres_type_of(text)
    return next((model for model in MODELS if wanted.startswith(gres_type_of(model.name))), None)
