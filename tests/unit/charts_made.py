# SPDX-License-Identifier: Apache-2.0
"""Made-up charts of as many users as a test wants, whose figures agree with each other; the same at every call."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from itertools import product
from typing import Any

from slurm_colloc.core.chart_model import Charts, Fit, GroupDetail, IdleRun, TimeUsage, UtilAgainstSm, WeekHour
from slurm_colloc.core.sharing_model import Collocation, Prediction
from slurm_colloc.core.usage_model import GroupUsage
from slurm_colloc.report.usage import UsageReport
from tests.unit.made import fit_of
from tests.unit.reports import group, report

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 86_400
FIRST = ("ann", "bob", "carol", "dave", "erin", "frank", "grace", "heidi")


def made_report(users: int, days: int, names: tuple[str, ...] = ()) -> UsageReport:
    """Return a report of so many users and days with all charts; ``names`` replace the first users' own."""
    chance = random.Random(7)
    called = [*names, *(f"{FIRST[i % 8]}{i:04}" if users > 8 else FIRST[i] for i in range(len(names), users))]
    groups = tuple(_group(name, chance, days) for name in called)
    groups = tuple(sorted(groups, key=lambda group: -(group.sm_idle_gpu_hours or 0.0)))
    total = group("total", **_sums(groups))
    allocated = total.allocated_gpu_hours or 0.0
    charts = Charts(
        over_time=tuple(_pieces(chance, allocated, days, allocated * 1.35)),
        week=tuple(_week(chance, allocated / days / 24)),
        zone="Europe/Berlin",
        util_against_sm=tuple(_cells(chance, total.jobs)),
        details=tuple(_detail(group, chance, days) for group in groups),
    )
    return report(
        *groups,
        cluster="gpu-cluster",
        since=SINCE,
        until=datetime.fromtimestamp(SINCE.timestamp() + days * DAY, UTC),
        total=total,
        runs=total.jobs + 40,
        runs_without_gpu=40,
        sampled_job_hours=1.0,
        installed_gpu_hours=allocated * 1.35,
        collocation=tuple(Collocation(jobs, 8, 40.0, 40.0 - 9.5 * jobs) for jobs in range(4)),
        predictions=(Prediction("exact", 90, 80, 79, 0.7, 1.1, 60, 60, 0.5, 0.9),),
        charts=charts,
        fits=(*(_fit(group) for group in groups), _fit(total)),
    )


def _group(name: str, chance: random.Random, days: int) -> GroupUsage:
    allocated = chance.lognormvariate(3, 1.4) * days / 30
    measured = allocated * chance.uniform(0.6, 1)
    util, sm = measured * chance.uniform(0.05, 0.98), 0.0
    sm = util * chance.uniform(0.1, 0.9)
    fields: dict[str, Any] = {
        "jobs": chance.randint(1, 400),
        "allocated_gpu_hours": allocated,
        "held_gpu_hours": allocated * 1.01,
        "util_measured_gpu_hours": measured,
        "util_used_gpu_hours": util,
        "util_idle_gpu_hours": measured - util,
        "util_weighted_pct": 100 * util / measured,
        "sm_measured_gpu_hours": measured,
        "sm_used_gpu_hours": sm,
        "sm_idle_gpu_hours": measured - sm,
        "sm_weighted_pct": 100 * sm / measured,
        "held_idle_gpu_hours": (measured - util) * 0.3,
        "energy_kwh": measured * 0.4,
        "coverage_pct": 100 * measured / allocated,
    }
    return group(name, **fields)


def _sums(groups: tuple[GroupUsage, ...]) -> dict[str, Any]:
    hours = [field for field in GroupUsage._fields if field.endswith("_gpu_hours") or field in ("jobs", "energy_kwh")]
    sums: dict[str, Any] = {field: sum(getattr(group, field) or 0 for group in groups) for field in hours}
    measured, allocated = sums["sm_measured_gpu_hours"], sums["allocated_gpu_hours"]
    sums |= {f"{m}_weighted_pct": 100 * sums[f"{m}_used_gpu_hours"] / measured for m in ("util", "sm") if measured}
    return sums | {"coverage_pct": 100 * measured / allocated, "jobs_measured": sums["jobs"]}


def _pieces(chance: random.Random, allocated: float, days: int, installed: float | None) -> list[TimeUsage]:
    weights = [chance.uniform(0.3, 1.3) * (0.6 if day % 7 > 4 else 1) for day in range(days)]
    scale = allocated / sum(weights)
    pieces = []
    for day, weight in enumerate(weights):
        held = weight * scale
        if installed:
            held = min(held, installed / days)
        measured = held * chance.uniform(0.7, 1)
        util = measured * chance.uniform(0.3, 0.9)
        since = SINCE.timestamp() + day * DAY
        of = installed / days if installed else None
        pieces.append(TimeUsage(since, since + DAY, of, held, measured, util, measured * 0.9, util * 0.45))
    return pieces


def _week(chance: random.Random, gpus: float) -> list[WeekHour]:
    cells = []
    for day, hour in product(range(7), range(24)):
        held = gpus * (1.2 if 8 <= hour < 20 and day < 5 else 0.6) * chance.uniform(0.8, 1.2)
        measured, used = (held * 0.9, held * 0.35) if (day, hour) != (6, 3) else (0.0, None)
        cells.append(WeekHour(day, hour, 4.0, held, measured, used, held * 0.8, held * 0.6))
    return cells


def _cells(chance: random.Random, runs: int) -> list[UtilAgainstSm]:
    found: dict[tuple[int, int], int] = {}
    for _ in range(min(runs, 800)):
        util = min(chance.betavariate(2.5, 1.2) * 100, 99.9)
        sm = util * chance.betavariate(1.3, 2)
        at = (int(util // 5) * 5, int(sm // 5) * 5)
        found[at] = found.get(at, 0) + 1
    return [UtilAgainstSm(x, y, 5.0, count, count * chance.uniform(0.5, 20)) for (x, y), count in sorted(found.items())]


def _detail(group: GroupUsage, chance: random.Random, days: int) -> GroupDetail:
    pieces = _pieces(chance, group.allocated_gpu_hours or 0.0, days, None)
    idlest = tuple(IdleRun(str(4000 + i), f"train_{i}", "gpu:a100:1", 12.5 / (i + 1), 9.0 / (i + 1)) for i in range(5))
    kinds = (group._replace(name="a100"), group._replace(name="a100_1g.10gb", sm_used_gpu_hours=None))
    return GroupDetail(group.name, tuple(pieces), kinds, idlest)


def _fit(group: GroupUsage) -> Fit:
    held = group.allocated_gpu_hours or 0.0
    return fit_of(group.name, held * 0.8, held * 0.5, held * 0.35, "gpu:a100_1g.10gb:1")
