# SPDX-License-Identifier: Apache-2.0
import csv
import re
from math import fsum
from pathlib import Path

import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.usage_model import JobUsage
from slurm_colloc.sources.clustercockpit import METHOD, parse_jobs
from slurm_colloc.store.ingest import keep_runs
from slurm_colloc.store.store import Store
from tests.unit.golden import Printed
from tests.unit.made import RECORDED
from tests.unit.programs import colloc
from tests.unit.stored import grouped, job_usage, runs_in_window

HEADER = "job_id,cluster,user,start_time,duration_s,num_acc,acc_utilization_avg,state"
PAGE = RECORDED.parents[1] / "docs/explanation/why.md"
EVER = (0.0, 4e9, 4e9)


@pytest.fixture(scope="module")
def alex(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, list[JobUsage]]:
    store = Store(str(tmp_path_factory.mktemp("store")))
    parsed = parse_jobs((RECORDED / "clustercockpit-alex/jobs.csv").read_text())
    assert (parsed.rows_in, len(parsed.rows), parsed.rejected) == (544, 544, {})
    counted = keep_runs(store, "jobs.csv", parsed, 1.0)
    assert (counted.rows_in, counted.used, counted.steps) == (544, 544, 0)
    return store, job_usage(store, *EVER)


def test_alex_as_a_whole(alex: tuple[Store, list[JobUsage]]) -> None:
    store, usages = alex
    *_, whole = grouped(usages)
    assert runs_in_window(store, *EVER) == (544, 241)
    assert (whole.jobs, whole.jobs_measured, whole.jobs_without_size) == (303, 303, 0)
    assert f"{whole.allocated_gpu_hours:.2f}" == "3980.04"
    assert f"{whole.util_used_gpu_hours:.2f}" == "2859.88"
    assert f"{whole.util_weighted_pct:.3f}" == "71.856"
    assert f"{whole.util_plain_pct:.2f}" == "44.85"
    assert sum(usage.util_used_gpu_hours == 0 for usage in usages) == 94
    # What the table does not say stays unsaid.
    assert (whole.coverage_pct, whole.sm_used_gpu_hours, whole.sm_weighted_pct) == (None, None, None)
    assert {usage.gpu_mem_peak_mib for usage in usages} == {None}
    assert whole.methods == (METHOD,)


def test_alex_by_user_to_the_last_digit(alex: tuple[Store, list[JobUsage]]) -> None:
    with open(RECORDED / "clustercockpit-alex/expected_per_user.csv") as stream:
        expected = {row["user"]: row for row in csv.DictReader(stream)}
    groups = {group.name: group for group in grouped(alex[1])[:-1]}
    assert len(expected) == 41
    assert groups.keys() == expected.keys()
    for name, row in expected.items():
        group = groups[name]
        assert group.jobs == int(row["gpu_jobs"])
        assert round(group.allocated_gpu_hours or 0.0, 4) == float(row["allocated_gpu_hours"])
        assert round(group.util_used_gpu_hours or 0.0, 4) == float(row["used_gpu_hours"])
        assert round(group.util_weighted_pct or 0.0, 3) == float(row["mean_util_pct_weighted"])


def test_malformed_rows_are_counted_and_keep_their_neighbours_means(printed: Printed) -> None:
    rows = [
        "1,c,a,100,10,1,50,completed",
        "2,c,a,100,10,1,abc,completed",
        "3,c,a,100,10,1,nan,completed",
        "4,c,a,100,10,1,101,completed",
        "5,c,a,100,10,1,-1,completed",
        "6,c,a,x,10,1,5,completed",
        "7,c,a,100,-10,1,5,completed",
        "8,c,a,100,10,-1,5,completed",
        "9,c,a",
        "10,c,a,100,10,2,,running",
        "11,c,a,100,10,0,0,failed",
        "12,c,a,100,10,1,0,failed",
    ]
    parsed = parse_jobs("\n".join([HEADER, *rows]))
    assert [(row.job_id, mean and mean.gpu_util_pct) for row, mean in zip(parsed.rows, parsed.means, strict=True)] == [
        ("1", 50.0),
        ("10", None),
        ("11", None),
        ("12", 0.0),
    ]
    assert parsed.rows_in == 12
    printed("ingest", parsed.rejected)
    assert (parsed.rows[0].state, parsed.rows[0].end_s) == ("COMPLETED", 110)


def test_missing_columns_and_monstrous_fields(printed: Printed) -> None:
    with printed.raises("ingest", InputError, "num_acc, state"):
        parse_jobs("job_id,cluster,user,start_time,duration_s,acc_utilization_avg\n")
    with pytest.raises(InputError, match="columns job_id"):
        parse_jobs("")
    with printed.raises("ingest", InputError, "after 0 rows"):
        parse_jobs(f"{HEADER}\n{'x' * 200_000},c,a,1,1,1,1,x\n")


def test_a_table_of_which_no_row_can_be_read_leaves_the_store_as_it_is(tmp_path: Path, printed: Printed) -> None:
    store = Store(str(tmp_path))
    keep_runs(store, "t", parse_jobs(f"{HEADER}\n1,c,a,0,3600,2,50,x\n"), 1.0)
    with printed.raises("ingest", InputError):
        keep_runs(store, "t", parse_jobs(f"{HEADER}\n1,c,a,soon,3600,2,50,x\n"), 2.0)
    assert runs_in_window(store, *EVER) == (1, 0)


def test_a_job_without_a_mean_is_unmeasured_not_idle(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    keep_runs(store, "t", parse_jobs(f"{HEADER}\n1,c,a,0,3600,2,,x\n2,c,a,0,3600,1,50,x\n"), 1.0)
    *_, whole = grouped(job_usage(store, *EVER))
    assert (whole.allocated_gpu_hours, whole.util_measured_gpu_hours, whole.util_used_gpu_hours) == (3.0, 1.0, 0.5)
    assert (whole.util_weighted_pct, whole.jobs, whole.jobs_measured) == (50.0, 2, 1)


@pytest.mark.parametrize("cells", range(1, 10))
def test_a_short_row_is_counted_not_used(cells: int, printed: Printed) -> None:
    names = "job_id,cluster,start_time,duration_s,num_acc,acc_utilization_avg,state,user,project,partition"
    row = "1,c,1767225600,3600,1,50,completed,ann,lab,gpu"
    short = ",".join(row.split(",")[:cells])
    parsed = parse_jobs(f"{names}\n{short}\n{row}\n")
    assert (len(parsed.rows), parsed.rows_in) == (1, 2)
    printed("ingest", parsed.rejected)


def test_the_page_says_what_these_jobs_come_to() -> None:
    with (RECORDED / "clustercockpit-alex/jobs.csv").open() as stream:
        jobs = [(int(row["num_acc"]), int(row["duration_s"]), float(row["acc_utilization_avg"]))
                for row in csv.DictReader(stream) if int(row["num_acc"])]  # fmt: skip

    def hours(*, least: int = 1, most: int = 99, util: float = 100.0) -> float:
        return fsum(gpus * seconds / 3600 for gpus, seconds, pct in jobs if least <= gpus <= most and pct <= util)

    used = fsum(gpus * seconds * pct / 100 / 3600 for gpus, seconds, pct in jobs)
    page = " ".join(PAGE.read_text().split())
    assert f"total {len(jobs)} {hours():.2f} {used:.2f} {100 * used / hours():.1f} {hours() - used:.2f}" in page
    assert f"half of the time or less: these could share | {100 * hours(most=1, util=50) / hours():.1f} % |" in page
    assert f"of several GPUs: csub never changes these | {100 * hours(least=2) / hours():.1f} % |" in page


def test_the_table_of_the_page_is_what_the_report_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def table(text: str) -> list[list[str]]:
        (lines,) = re.findall(r"^(USER .*?)^(?:```)?$", text, re.DOTALL | re.MULTILINE)
        return [re.split(r" {2,}", line.strip()) for line in lines.splitlines() if not line.startswith("--")]

    monkeypatch.setenv("COLLOC_CONF", "")
    store = ("--store", str(tmp_path / "store"))
    assert colloc("ingest", *store, "--clustercockpit", str(RECORDED / "clustercockpit-alex/jobs.csv")) == 0
    assert colloc("report", *store, "--top", "4", "--explain", "--since", "2023-01-01", "--until", "2024-01-01") == 0
    (titles, *page), (every, *printed) = table(PAGE.read_text()), table(colloc.out)
    assert page == [[row[every.index(title)] for title in titles] for row in printed]
