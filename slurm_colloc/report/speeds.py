# SPDX-License-Identifier: Apache-2.0
"""Whether few jobs are slower on a slice than the site allows: placement/speed.py held against measured times.

A placement is one run on one part of the SMs on which it was measured. It is accepted where the rule says that few are
slower than the bound, by the run's SM activity, or by its GPU_UTIL as an upper bound of that where a card tells no
more. Perfect knowledge accepts what was measured to be within the bound. A placement is near the bound where the upper
end of what the rule foretells is in the upper half of what the bound allows: far below it there is nothing to judge.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from slurm_colloc.estimate.bounds import chance_of
from slurm_colloc.placement.speed import on_slice
from slurm_colloc.report.cases import Row

# What of the accepted may be over the bound.
MAY_BE_OVER = 0.02
SM_ACTIVITY, GPU_UTIL = "SM activity", "GPU_UTIL"
_ALL = "all"


class Speed(NamedTuple):
    """How the rule does on one card, by one telemetry, in placements; ``within`` is what perfect knowledge takes.

    ``both`` are accepted and within the bound, so that accepted = both + over.
    """

    gpu_model: str
    telemetry: str
    placements: int
    accepted: int
    over: int
    near: int
    near_over: int
    within: int
    both: int

    @property
    def near_chance(self) -> float:
        """Return how likely so many of those near the bound are over it where MAY_BE_OVER of them are."""
        return chance_of(self.near_over, self.near, MAY_BE_OVER)


def speeds(rows: Iterable[Row], max_slowdown: float) -> list[Speed]:
    """Return how the rule does, by card and telemetry, and over all cards where there are several."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        for telemetry, foretold, measured in _placements(row):
            for model in (row.run.gpu_model, _ALL):
                found.setdefault((telemetry, model), []).append((foretold, measured))
    several = len({model for _, model in found}) > 2
    return [
        _speed(model, telemetry, pairs, max_slowdown)
        for (telemetry, model), pairs in sorted(found.items(), key=lambda one: (one[0][0] == GPU_UTIL, one[0][1]))
        if several or model != _ALL
    ]


def _placements(row: Row) -> Iterator[tuple[str, float, float]]:
    """Yield by telemetry the upper end that is foretold of each part of the SMs, and the slowdown measured there."""
    for limit_pct, measured in row.slowdowns:
        if 0 < limit_pct < 100:
            for telemetry, active_pct in ((SM_ACTIVITY, row.run.sm_active_mean_pct), (GPU_UTIL, row.gpu_util_pct)):
                if active_pct is not None:
                    yield telemetry, on_slice(active_pct, 100 / limit_pct).upper, measured


def _speed(model: str, telemetry: str, pairs: list[tuple[float, float]], bound: float) -> Speed:
    taken = [(foretold, measured) for foretold, measured in pairs if foretold <= bound]
    near = [measured for foretold, measured in taken if foretold >= 1 + (bound - 1) / 2]
    return Speed(
        gpu_model=model,
        telemetry=telemetry,
        placements=len(pairs),
        accepted=len(taken),
        over=sum(measured > bound for _, measured in taken),
        near=len(near),
        near_over=sum(measured > bound for measured in near),
        within=sum(measured <= bound for _, measured in pairs),
        both=sum(measured <= bound for _, measured in taken),
    )
