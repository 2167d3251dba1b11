# SPDX-License-Identifier: Apache-2.0
"""How far each rung's answers were off, and the margin that follows: split-conformal.

A rung says what it expects (its q50, or the largest peak it saw), and its q99 is a margin times that. The margin is
taken from what was measured later over what had been expected: the ceil((n + 1) x coverage)-th smallest of n such
ratios is at least the next one with that probability, whatever the distribution, as long as the next job is like the
past ones.
[Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World, 2005; Lei et al., JASA 113 (2018)]
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.core.model import Reason, because

COVERAGE = 0.99
RUNNING, SESSIONS = "running", "sessions"
# No margin is larger: a job of twice what was expected is of the next size of slice, and a rung that is off by more is
# no guide, which its confidence says and no margin mends. None is below 1: a need of once may come again.
LARGEST = 2.5


class Margin(NamedTuple):
    """A factor over what a rung expects, and the number of past answers that it was taken from (0: shipped).

    ``confidence`` is the least share of past q99s that held, with 95 percent certainty; a shipped margin has the
    share that it promises. ``floor_mib`` is added at least: workspaces of libraries do not go by a job's size, and
    differ from run to run by as much.
    """

    factor: float
    answers: int = 0
    confidence: float | None = None
    floor_mib: float = 0.0

    @property
    def reason(self) -> Reason:
        """Return it as part of where a number is from."""
        code = "margin" + "-floor" * bool(self.floor_mib) + "-counted" * bool(self.answers)
        return because(code, factor=self.factor, floor_mib=self.floor_mib, answers=self.answers)

    def over(self, expected_mib: float) -> float:
        """Return what is to be had for what is expected."""
        return max(expected_mib * self.factor, expected_mib + self.floor_mib)


class Calibration(NamedTuple):
    """The margins in force, by the name under which a rung asks for one, and when a site's own were taken."""

    margins: Mapping[str, Margin]
    at_s: float = 0.0

    def margin(self, name: str) -> Margin:
        """Return the margin of that name.

        Raises:
            KeyError: no rung has that name.
        """
        shipped, of_site = SHIPPED.margins[name], self.margins.get(name)
        if of_site is None and name == RUNNING:
            # A run that goes on needs no less than one that has ended.
            return shipped._replace(factor=max(shipped.factor, self.margin("same").factor))
        return of_site._replace(floor_mib=shipped.floor_mib) if of_site else shipped

    def floor_mib(self, name: str) -> float:
        """Return what a margin of that name adds at least; a name that no rung has adds 0."""
        return self.margins[name].floor_mib if name in self.margins else 0.0


# Runs differ by so much if a library chooses another algorithm. [docs/explanation/estimate-rules.md]
_NOISE_MIB = 256.0
# These hold until a site has answers of its own, each with the share of jobs that it promises to cover: judged on ten
# sources of measurements, each by itself (docs/explanation/estimate-rules.md).
SHIPPED = Calibration(
    {
        # Completed runs of the job; runs of one with files that were not looked at, or numbers that size nothing;
        # cut runs whose memory was at rest; past jobs of the same command.
        "same": Margin(1.15, confidence=0.99),
        # One run of another size says no more than this.
        "one": Margin(1.0, confidence=0.96, floor_mib=_NOISE_MIB),
        # Runs of the job that are not over: no recording is long enough to promise anything.
        RUNNING: Margin(1.15),
        # Nothing promises what a session will be told to do.
        SESSIONS: Margin(1.15),
    }
)


def conformal(ratios: Sequence[float]) -> Margin | None:
    """Return the margin that the next ratio keeps below with probability COVERAGE; None of too few ratios.

    A ratio is measured over expected, infinite where a job ran out of memory and its need is not known; the margin
    is infinite if too many did.
    """
    rank = math.ceil((len(ratios) + 1) * COVERAGE)
    if rank > len(ratios):
        return None
    return Margin(sorted(ratios)[rank - 1], len(ratios))
