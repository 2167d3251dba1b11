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
# No margin is larger: by twice what was expected a job is of the next size of slice, and a rung that is off by more is
# no guide, which its confidence says and no margin mends. None is below 1: what was needed once may be again.
LARGEST = 2.5


class Margin(NamedTuple):
    """A factor over what a rung expects, and the number of past answers that it was taken from (0: shipped).

    ``confidence`` is the least share of past q99s that held, with 95 percent certainty.
    """

    factor: float
    answers: int = 0
    confidence: float | None = None

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


# What holds until a site has answers of its own to go by: for "near" and "trace" coverage 99 %, replayed over public
# measurements on an A100 and our own on an H200, and the confidence as found on the half of the models that a margin
# was not taken from (docs/explanation/estimate.md). Repeats on one machine are alike to the byte, which is no measure
# of what differs between days; the margins of "exact" are a choice.
SHIPPED = Calibration(
    {
        # A known configuration, by the number of its completed runs.
        "exact-few": Margin(1.15),
        "exact-many": Margin(1.05),
        # Runs that were cut at a time limit, with their memory at rest.
        "probe": Margin(1.20),
        # Its program was edited since, or numbers differ that size nothing; a choice, too.
        "near-same": Margin(1.15),
        # From two runs: another number between those seen, below them, beyond them up to the factor two, and further.
        "near-within": Margin(1.16, confidence=0.98),
        "near-below": Margin(1.17, confidence=0.98),
        "near-beyond": Margin(1.12, confidence=0.98),
        "near-far": Margin(1.13, confidence=0.98),
        # Beyond them, where most did not grow with it; and where memory jumped between the two.
        "near-flat": Margin(1.75, confidence=0.98),
        "near-jump": Margin(2.20, confidence=0.97),
        # From three runs on: they lie on a straight line, between and outside of them; or they do not.
        "near-straight": Margin(1.07, confidence=0.98),
        "near-straight-on": Margin(1.13, confidence=0.98),
        "near-bent": Margin(1.60, confidence=0.96),
        # From one run alone, of a smaller and of a larger job.
        "near-one": Margin(1.43, confidence=0.98),
        "near-one-below": Margin(1.52, confidence=0.98),
        # Past jobs of the same command, whose script may have been another.
        "command": Margin(1.25),
        # A trace beside one measured run of a smaller and of a larger job, and without one.
        "trace-one": Margin(1.24, confidence=0.92),
        "trace-one-below": Margin(1.13, confidence=0.94),
        "trace-alone": Margin(1.73, confidence=0.94),
        # What the user's other jobs need, of which an order statistic covers its share by itself.
        "prior": Margin(1.0),
    }
)


def conformal(ratios: Sequence[float], coverage: float = COVERAGE) -> Margin | None:
    """Return the margin that the next ratio keeps below with the given probability; None of too few ratios.

    It is infinite where too many jobs ran out of memory.

    Args:
        ratios: measured over expected, infinite where a job ran out of memory and its need is not known.
        coverage: the probability, below 1.
    """
    rank = math.ceil((len(ratios) + 1) * coverage)
    if rank > len(ratios):
        return None
    factor = sorted(ratios)[rank - 1]
    return Margin(factor, len(ratios))
