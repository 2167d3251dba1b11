# SPDX-License-Identifier: Apache-2.0
"""How far each rung's answers were off, and the margin that follows: split-conformal.

A rung says what it expects (its q50, or the largest peak it saw), and its q99 is a margin times that. The margin is
taken from what was measured later over what had been expected: of n such ratios the ceil((n + 1) x coverage)-th
smallest is at least the next one with that probability, whatever the distribution, as long as the next job is like the
past ones.
[Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World, 2005; Lei et al., JASA 113 (2018)]
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

COVERAGE = 0.99
# Fewer ratios hold no order statistic for the coverage; the shipped margin stands.
_FEWEST = math.ceil(COVERAGE / (1 - COVERAGE))


class Margin(NamedTuple):
    """A factor over what a rung expects, and the number of past answers that it was taken from (0: shipped)."""

    factor: float
    answers: int = 0

    def __str__(self) -> str:
        return f"{self.factor:.2f}" + (f" by {self.answers} earlier answers" if self.answers else "")


class Calibration(NamedTuple):
    """The margins in force, by the name under which a rung asks for one."""

    margins: Mapping[str, Margin]

    def margin(self, name: str) -> Margin:
        """Return the margin of that name.

        Raises:
            KeyError: no rung has that name.
        """
        return self.margins.get(name) or SHIPPED.margins[name]


# What holds until a site has answers of its own to go by; from docs/explanation/estimate.md.
SHIPPED = Calibration(
    {
        # A known configuration, by the number of its completed runs.
        "exact-few": Margin(1.15),
        "exact-many": Margin(1.05),
        # Its program was edited since, or numbers differ that size nothing.
        "near-same": Margin(1.15),
        # Another number between those seen, beyond them by up to the factor two, and further.
        "near-within": Margin(1.06),
        "near-beyond": Margin(1.15),
        "near-far": Margin(1.30),
        # From one run alone: what scales is taken to scale in full.
        "near-one": Margin(1.05),
    }
)


def conformal(ratios: Sequence[float], coverage: float = COVERAGE) -> Margin | None:
    """Return the margin that the next ratio keeps below with the given probability; None of too few ratios.

    Args:
        ratios: measured over expected, infinite where a job ran out of memory and its need is not known.
        coverage: the probability, below 1.
    """
    rank = math.ceil((len(ratios) + 1) * coverage)
    if rank > len(ratios):
        return None
    factor = sorted(ratios)[rank - 1]
    return Margin(factor, len(ratios)) if math.isfinite(factor) else None
