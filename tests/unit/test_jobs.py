# SPDX-License-Identifier: Apache-2.0
"""What Slurm says of jobs: squeue of all, sacct and scontrol of one."""

from pathlib import Path

import pytest

from slurm_colloc.core.errors import InputError, ProcessError
from slurm_colloc.core.model import Gres
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.jobs import (
    QueuedJob,
    accounted_question,
    parse_accounted,
    parse_controller,
    parse_queue,
    with_controllers,
)
from tests.fakes.squeue import squeue_line
from tests.unit.golden import Printed
from tests.unit.made import DELIMITER, RECORDED, RELEASES
from tests.unit.programs import program

TRES = "billing=4,cpu=4,gres/gpu:h100=1,gres/gpu=1,mem=8192M,node=1"


def row(job: str = "61", **fields: str) -> str:
    values = {
        "JobID": job, "JobIDRaw": job, "User": "ann", "Account": "lab", "Partition": "gpu", "QOS": "normal",
        "State": "COMPLETED", "ExitCode": "0:0", "Submit": "100", "Start": "160", "End": "3760",
        "Timelimit": "02:00:00", "AllocCPUS": "4", "ReqTRES": TRES, "AllocTRES": TRES, "NodeList": "g1", "MaxRSS": "",
        "TotalCPU": "01:00:00", "Reason": "None", "Suspended": "00:00:00",
        "WorkDir": "/home/ann", "SubmitLine": "sbatch a.sh", "JobName": "a",
    }  # fmt: skip
    return "".join(f"{value}{DELIMITER}" for value in (values | fields).values()) + "\n"


def test_a_job_with_its_steps_is_one_run() -> None:
    steps = [
        row(f"61.{name}", User="", MaxRSS=size) for name, size in (("batch", "2048K"), ("extern", ""), ("0", "3M"))
    ]
    (one,) = parse_accounted(row() + "".join(steps), DELIMITER)
    assert (one.job_id, one.user, one.submit_s, one.start_s, one.end_s) == ("61", "ann", 100, 160, 3760)
    assert (one.cpus, one.mem_mib, one.time_limit_min, one.cpu_time_s) == (4, 8192, 120.0, 3600.0)
    assert one.host_mem_peak_mib == 3
    assert one.given == (Gres("gpu", "h100", 1),)
    assert one.suspended_s == 0.0
    (held,) = parse_accounted(row(Suspended="01:00:00"), DELIMITER)
    assert with_controllers((held._replace(end_s=None),), (one._replace(suspended_s=None),))[0].suspended_s == 3600.0


def test_what_is_not_known_is_not_zero() -> None:
    (one,) = parse_accounted(
        row(State="PENDING", Start="Unknown", End="Unknown", Timelimit="UNLIMITED", AllocCPUS="0", AllocTRES="",
            NodeList="None assigned", TotalCPU="00:00:00", Reason="Priority"), DELIMITER)  # fmt: skip
    assert (one.start_s, one.end_s, one.cpus, one.mem_mib, one.cpu_time_s) == (None,) * 5
    assert (one.given, one.node_list, one.reason, one.time_limit_min) == ((), "", "Priority", float("inf"))
    assert one.host_mem_peak_mib is None


def test_runs_tasks_and_components_are_rows_of_their_own() -> None:
    text = row("61", State="REQUEUED") + row("61") + row("61_3", JobIDRaw="64") + row("61+1", JobIDRaw="62")
    assert [(one.job_id, one.raw_id) for one in parse_accounted(text, DELIMITER)] == [
        ("61", "61"),
        ("61", "61"),
        ("61_3", "64"),
        ("61+1", "62"),
    ]


@pytest.mark.parametrize("name", ["a|b", "new\nline", "\nline", "\n61", "61.batch", "a\x1fb", "x" * 10_000])
def test_no_name_makes_a_row(name: str) -> None:
    (one,) = parse_accounted(row(JobName=name), DELIMITER)
    assert one.job_name == name


def test_a_torn_row_is_left_out() -> None:
    assert parse_accounted(row()[:40], DELIMITER) == ()
    assert parse_accounted("", DELIMITER) == ()


@pytest.mark.parametrize("job", ["", "-a", "61,62", "61.0", "61_[1-3]", "61 62", "٦١", "61\n", "a", "9" * 30])
def test_nothing_but_one_job_is_put_to_sacct(job: str, printed: Printed) -> None:
    with pytest.raises(InputError):
        accounted_question(job)
    with printed.raises("job", InputError):
        accounted_question("61.0")


def test_the_delimiter_cannot_be_foretold() -> None:
    assert accounted_question("61_2")[1] != accounted_question("61_2")[1]


@pytest.mark.parametrize("release", RELEASES)
def test_the_controllers_jobs(release: str) -> None:
    jobs = parse_controller((RECORDED / f"slurm-{release}/scontrol/job.txt").read_text())
    by_id = {job.job_id: job for job in jobs}
    assert by_id["1"].job_name == "pipe|in|name"
    assert by_id["1"].given == (Gres("gpu", "h100", 1),)
    assert {job.user for job in jobs} == {"alice"}
    waiting = [job for job in jobs if job.state == "PENDING"]
    assert waiting
    assert [(job.start_s, job.given, job.cpus, job.mem_mib) for job in waiting] == [(None, (), None, None)] * len(
        waiting
    )
    assert all(job.end_s is None for job in jobs if job.state == "RUNNING")
    assert any("_" in job.job_id for job in jobs)
    assert any("+" in job.job_id for job in jobs)


def test_sacct_is_asked_first_and_then_slurmctld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "sacct", "echo 'slurm_persist_conn_open: Connection refused' >&2\nexit 1\n", monkeypatch)
    said = "JobId=7 JobName=x UserId=ann(1) JobState=RUNNING StartTime=5 EndTime=99 NumCPUs=2 NodeList=g1 TRES=cpu=2"
    program(tmp_path, "scontrol", f"echo '{said}'\n", monkeypatch)
    (one,) = CliClient(5.0).accounted("7")
    assert (one.job_id, one.start_s, one.end_s, one.cpus) == ("7", 5, None, 2)
    program(tmp_path, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1\n", monkeypatch)
    assert CliClient(5.0).accounted("7") == ()
    program(tmp_path, "scontrol", "echo 'Unable to contact slurm controller' >&2\nexit 1\n", monkeypatch)
    with pytest.raises(ProcessError, match="Connection refused"):
        CliClient(5.0).accounted("7")


def test_of_a_job_that_has_not_ended_slurmctld_knows_more() -> None:
    """The row of a job that just began may lack its name, user and partition, and call it pending."""
    (half,) = parse_accounted(
        row(User="", Partition="", State="PENDING", Start="160", End="Unknown", JobName="allocation"), DELIMITER
    )
    (ended,) = parse_accounted(row(State="REQUEUED", End="150", Start="110"), DELIMITER)
    (live,) = parse_controller("JobId=61 JobName=x UserId=ann(1) JobState=RUNNING StartTime=160 Partition=gpu")
    first, second = with_controllers((ended, half), (live,))
    assert first == ended
    assert (second.job_name, second.user, second.state) == ("x", "ann", "RUNNING")
    assert second.submit_line == "sbatch a.sh"
    # One that ended between the two questions is not there twice.
    assert with_controllers((ended,), (live._replace(start_s=110),)) == (ended,)
    assert with_controllers((half,), ()) == (half,)
    assert with_controllers((), (live,)) == (live,)


# --- squeue ---


def test_a_job_is_read_as_squeue_prints_it() -> None:
    jobs, rejected = parse_queue(squeue_line("12_3", Dependency="afterany:7|8") + squeue_line("7", StartTime="N/A"))
    first = QueuedJob("12_3", "12", "ann", "RUNNING", 1767225600, "afterany:7|8")
    assert (jobs, rejected) == ((first, QueuedJob("7", "7", "ann", "RUNNING", None, "(null)")), 0)


def test_a_line_of_another_form_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "squeue", "echo '4711|RUNNING'", monkeypatch)
    with pytest.raises(ProcessError, match="1 lines of another form"):
        CliClient(9.0).own_queue()
