# SPDX-License-Identifier: Apache-2.0
"""What people read of made-up reports, jobs and months: one snapshot (COLLOC_GOLDEN=write writes it)."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from slurm_colloc.core.chart_model import Fit, JobTimeline
from slurm_colloc.core.sharing_model import Prediction
from slurm_colloc.core.usage_model import JobUsage
from slurm_colloc.report import job as job_report
from slurm_colloc.report.job import Advice, JobStory, RunStory
from slurm_colloc.report.me import as_text as month
from slurm_colloc.report.usage_text import as_table
from tests.unit.golden import compare, titled
from tests.unit.made import decision, evidence, usage
from tests.unit.reports import NOTHING, full, group, report
from tests.unit.stored import grouped
from tests.unit.test_job_story import ROW
from tests.unit.test_me import mine

UNKNOWN: dict[str, Any] = dict.fromkeys(
    (
        *("allocated_gpu_hours", "util_used_gpu_hours", "sm_used_gpu_hours", "gpu_mem_peak_mib", "coverage_pct"),
        *("held_idle_gpu_hours", "idle_tail_s", "energy_j", "cpu_cores_used", "host_mem_peak_mib", "read_mib"),
        "written_mib",
    )
)


def reports() -> Iterator[tuple[str, str]]:
    yield "a report", as_table(report(group()))
    yield "a report, explained", as_table(full(), explained=True)
    whole = grouped([usage(), usage(allocated_gpu_hours=None)])[-1]._replace(held_unknown_hours=1.5)
    counts = {"rows_in": 20, "rows_used": 10, "job_steps": 7, "rejected": {"b": 2, "a": 1}}
    rungs = [Prediction(rung, 3, 0, 0, None, None, 0, 0, None, None) for rung in ("unknown", "hint")]
    left_out = report(group(), total=whole, equivalents="SMs", predictions=rungs, **counts)
    yield "a report with what is left out", as_table(left_out, explained=True)
    empty = report(cluster="", runs=0, so_far=True, recorded=full().recorded, total=grouped([])[-1])
    yield "a report of nothing", as_table(empty, explained=True)
    yield "a report of what was not sampled", as_table(report(NOTHING, total=NOTHING), explained=True)
    yield "a report of a text", as_table(report(NOTHING, total=NOTHING, of_text=True), explained=True)


def jobs() -> Iterator[tuple[str, str]]:
    advice = Advice("gpu:1g.10gb:1 (mig)", "cd /home/ann && csub --gpu-footprint=mem=4G,sm=9 train.sh", "submitted so")
    four = JobTimeline(0.0, 3600.0, (), 4, 3, 2, (80.0, 0.0, 0.0, 0.0))
    idle = {"end_s": 74520.0, "util_used_gpu_hours": 0.0, "sm_used_gpu_hours": 0.0, "idle_tail_s": 74519.0}
    waits = ROW._replace(state="PENDING", start_s=None, end_s=None, given=(), node_list="", reason="Priority")
    told = {
        "a job": RunStory(usage(), slurm=ROW, advice=advice),
        "a job of which nothing is known": RunStory(usage(methods=(), **UNKNOWN)),
        "a job of four GPUs among neighbours": RunStory(usage(shared_hours=0.5), timeline=four),
        "a job that used nothing": RunStory(usage(**idle)),
        "a job that runs": RunStory(None, slurm=ROW._replace(state="RUNNING", end_s=None)),
        "a job that waits": RunStory(None, slurm=waits),
        "a job of evidence": RunStory(usage(methods=(), **UNKNOWN), evidence=evidence()),
    }
    for name, run in told.items():
        yield name, job_report.as_text(JobStory([run], decision() if run.usage else None, -1.0))
    yield "a long array", job_report.as_text(JobStory([RunStory(usage(job_id="60_99"))], not_shown=99))


def _run_of_ann(job_id: str, hours: float, sm: float, util: float, sampled: float | None = None) -> JobUsage:
    """Return a run on one GPU, with the GPU-hours that were used of those sampled."""
    seen = hours if sampled is None else sampled
    return usage(
        job_id=job_id,
        end_s=3600 * hours,
        allocated_gpu_hours=hours,
        held_gpu_hours=hours,
        coverage_pct=100 * seen / hours,
        sm_measured_gpu_hours=seen,
        sm_used_gpu_hours=sm,
        util_measured_gpu_hours=seen,
        util_used_gpu_hours=util,
    )


def others() -> Iterator[tuple[str, str]]:
    runs = (
        _run_of_ann("101", 7.0, sm=0.7, util=2.8),
        _run_of_ann("102", 6.0, sm=4.2, util=5.4),
        _run_of_ann("103", 2.0, sm=0.1, util=0.3, sampled=1.0)._replace(state="RUNNING"),
    )
    # The first fits a seventh of a GPU, the second none, and the third is not judged.
    fit = Fit("ann", 13.0, 7.0, 6.0, "gpu:1g.10gb:1", 2, 1, 1)
    days = {"cluster": "demo", "since": datetime(2026, 11, 2, tzinfo=UTC), "until": datetime(2026, 11, 9, tzinfo=UTC)}
    yield "a month", month(mine(*runs, fit=fit, **days))
    yield "a month of nothing", month(mine(**days))
    yield "a month without samples", month(mine(usage(methods=(), **UNKNOWN), **days))


def test_what_people_read() -> None:
    compare("shown.txt", titled(chain(reports(), jobs(), others())))
