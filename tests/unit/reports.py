# SPDX-License-Identifier: Apache-2.0
"""Usage reports made up for tests."""

from datetime import UTC, datetime
from functools import cache
from html.parser import HTMLParser
from typing import Any

from slurm_colloc.core.chart_model import (
    Charts,
    GroupDetail,
    IdleRun,
    TimeUsage,
    UtilAgainstSm,
    WeekHour,
)
from slurm_colloc.core.config import Prices
from slurm_colloc.core.sharing_model import Collocation, Prediction
from slurm_colloc.core.usage_model import GroupUsage, StrayUse
from slurm_colloc.report.usage import UsageReport
from tests.unit.made import fit_of, usage
from tests.unit.stored import grouped

NOTHING = grouped([usage(allocated_gpu_hours=2.0, held_gpu_hours=2.0, util_measured_gpu_hours=0.0, methods=(),
    **dict.fromkeys(("util_used_gpu_hours", "sm_used_gpu_hours", "coverage_pct", "held_idle_gpu_hours", "energy_j")))]
)[0]  # fmt: skip


@cache
def _sum(runs: int) -> GroupUsage:
    return grouped([usage()] * runs)[-1]


def group(name: str = "ann", **fields: Any) -> GroupUsage:
    return _sum(1)._replace(name=name, **fields)


def report(*groups: GroupUsage, **fields: Any) -> UsageReport:
    whole = UsageReport(
        cluster="c",
        since=datetime(2026, 11, 1, tzinfo=UTC),
        until=datetime(2026, 11, 2, tzinfo=UTC),
        by="user",
        equivalents="compute slices",
        groups=groups,
        total=_sum(len(groups)),
        runs=5,
        runs_without_gpu=2,
        runaways=0,
        unaccounted_hours=0.0,
        sampled_job_hours=0.0,
        installed_gpu_hours=None,
        collocation=(),
        predictions=(),
        prices=Prices(),
        strays=(),
        rows_in=5,
        rows_used=5,
        job_steps=0,
        rejected={},
        recorded=None,
        ingested=None,
        flushed=None,
        so_far=False,
        of_text=False,
        templates="",
    )
    return whole._replace(**fields)


def full(name: str = "ann") -> UsageReport:
    """Return a report that has something of everything."""
    hours = TimeUsage(0.0, 3600.0, None, 1.0, 1.0, 0.5, 1.0, None)
    detail = GroupDetail(name, (hours,), (group("h100"),), (IdleRun("1", name, "gpu:h100:1", 1.0, 0.5),))
    charts = Charts(
        over_time=(hours,),
        week=(WeekHour(0, 23, 1.0, 1.0, 1.0, None, 1.0, 0.5),),
        zone="Europe/Berlin",
        util_against_sm=(UtilAgainstSm(90.0, 10.0, 10.0, 3, 1.5),),
        details=(detail,),
    )
    return report(
        group(name),
        NOTHING,
        installed_gpu_hours=4.0,
        collocation=(Collocation(2, 1, 0.5, 0.5),),
        predictions=(Prediction("near", 1, 1, 1, 0.5, 0.5, 0, 0, None, None),),
        prices=Prices(gpu_hour=2.0, kwh=0.3, co2_g_per_kwh=400.0, currency="EUR"),
        strays=(StrayUse("c", "g1", 1, 0.5, 1.0),),
        rejected={"why": 1},
        recorded=(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        ingested=datetime(2026, 1, 2, tzinfo=UTC),
        flushed=datetime(2026, 1, 2, tzinfo=UTC),
        charts=charts,
        fits=(fit_of(name, 1.0, 0.5, 0.25, "gpu:1g.10gb:1"), fit_of("total", 1.0, 0.5, 0.25, "gpu:1g.10gb:1")),
    )


class Page(HTMLParser):
    """What a browser would see: tags, rows and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def page(text: str) -> Page:
    seen = Page()
    seen.feed(text)
    return seen


def cells_of(text: str) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in page(text).rows if row}
