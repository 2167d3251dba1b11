# SPDX-License-Identifier: Apache-2.0
from datetime import UTC

import pytest

from slurm_colloc.core.model import Gres
from slurm_colloc.sources.controller import parse_jobs
from tests.unit.golden import Printed
from tests.unit.made import DELIMITER, RECORDED, RELEASES
from tests.unit.stored import taken

LINE = (
    "JobId={job} {array}JobName={name} UserId=ann(1001) GroupId=ann(1001) MCS_label=N/A Priority=1 Nice=0"
    " Account=(null) QOS=normal JobState={state} Reason=None Dependency=(null) Requeue=1 RunTime=00:00:10"
    " TimeLimit={limit} TimeMin=N/A"
    " SubmitTime=1970-01-01T01:00:00 EligibleTime=1970-01-01T01:00:00 AccrueTime=Unknown"
    " StartTime=1970-01-01T02:00:00 EndTime=1970-01-01T03:00:00 Deadline=N/A Scheduler=Main Partition=gpu"
    " AllocNode:Sid=h:1 ReqNodeList=(null) ExcNodeList=(null) NodeList=g1 BatchHost=g1 NumNodes=1"
    " TRES=cpu=1,mem=100M,node=1,billing=1 JOB_GRES=gpu:h100:2   Nodes=g1 CPU_IDs=0 Mem=100"
    " GRES=gpu:h100:2(IDX:0-1) Command=/x WorkDir=/home/ann Comment={comment}"
)


def line(
    job: str = "5",
    name: str = "train",
    state: str = "COMPLETED",
    array: str = "",
    comment: str = "",
    limit: str = "10:00",
) -> str:
    return LINE.format(job=job, name=name, state=state, array=array, comment=comment, limit=limit) + "\n"


def test_a_run() -> None:
    parsed = parse_jobs(line(name="two words A=b"), "c", UTC)
    (row,) = parsed.rows
    assert (row.cluster, row.job_id, row.job_id_raw, row.user, row.account) == ("c", "5", "5", "ann", "")
    assert (row.submit_s, row.start_s, row.end_s) == (3600, 7200, 10800)
    assert (row.gres, row.node_list, row.partition) == ((Gres("gpu", "h100", 2),), "g1", "gpu")
    assert (row.job_name, row.qos, parsed.rows_in, parsed.rejected) == ("two words A=b", "normal", 1, {})


def test_states() -> None:
    text = "".join(line(str(n), state=s) for n, s in enumerate(["RUNNING", "PENDING", "SUSPENDED", "FAILED"]))
    rows = {row.state: (row.start_s, row.end_s, len(row.gres)) for row in parse_jobs(text, "c", UTC).rows}
    assert rows == {
        "RUNNING": (7200, None, 1),
        "PENDING": (None, None, 0),
        "SUSPENDED": (7200, None, 1),
        "FAILED": (7200, 10800, 1),
    }


@pytest.mark.parametrize(
    ("limit", "minutes"),
    [("7-00:00:00", 10_080), ("00:10:01", 11), ("UNLIMITED", None), ("Partition_Limit", None), ("INVALID", None)],
)
def test_time_limits(limit: str, minutes: int | None) -> None:
    assert [row.limit_min for row in parse_jobs(line(limit=limit), "c", UTC).rows] == [minutes]


def test_array_tasks() -> None:
    (row,) = parse_jobs(line(array="ArrayJobId=3 ArrayTaskId=7 "), "c", UTC).rows
    assert (row.job_id, row.job_id_raw) == ("3_7", "5")


@pytest.mark.parametrize("release", RELEASES)
def test_recorded_jobs_are_those_of_sacct(release: str) -> None:
    folder = RECORDED / f"slurm-{release}"
    parsed = parse_jobs((folder / "scontrol/job.txt").read_text(), "lab", UTC)
    # The name with a newline, which 26.05 prints once more as part of the command line.
    assert list(parsed.rejected.values()) == [3 if release == "26.05" else 2]
    *rows, pending = parsed.rows
    assert (pending.job_name, pending.state, pending.start_s, pending.gres) == ("pending", "PENDING", None, ())
    by_sacct = taken((folder / "sacct/terminated.txt").read_text(), end=DELIMITER).rows
    # slurmctld remembers a requeued job's last run only, and no suspension.
    expected = {row for row in by_sacct if row.state != "REQUEUED" and row.job_name != "new\nline"}
    # These rows were asked for without the time limit.
    assert {row.limit_min for row in rows} == {10}
    assert {row._replace(limit_min=None) for row in rows} == {row._replace(suspended_s=0) for row in expected}


@pytest.mark.parametrize("name", ["x SLUID=mine", "x SLUID=s0123456789ABC y", "x HetJobIdSet=", "SLUID="])
def test_a_name_like_what_slurm_prints_behind_it(name: str) -> None:
    (row,) = parse_jobs(line(name=name), "c", UTC).rows
    assert row.job_name == name


def test_nothing_and_junk(printed: Printed) -> None:
    assert parse_jobs("No jobs in the system\n", "c", UTC).rows_in == 0
    parsed = parse_jobs("junk\n" + line(), "c", UTC)
    assert len(parsed.rows) == 1
    printed("ingest", parsed.rejected)


def test_a_name_that_imitates_the_line_is_no_run_of_somebody_else(printed: Printed) -> None:
    forged = line("9", "y").removeprefix("JobId=9 JobName=").removesuffix("\n").replace("ann(1001)", "victim(1002)", 1)
    parsed = parse_jobs(line(name=f"x {forged}"), "c", UTC)
    assert parsed.rows == ()
    printed("ingest", parsed.rejected)


def test_a_comment_may_say_what_it_likes() -> None:
    (row,) = parse_jobs(line(comment="JOB_GRES=gpu:8 Partition=x NodeList=y"), "c", UTC).rows
    assert (row.gres, row.partition) == ((Gres("gpu", "h100", 2),), "gpu")
