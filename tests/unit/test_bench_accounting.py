# SPDX-License-Identifier: Apache-2.0
"""The benchmark of accounting, at a size at which it takes seconds: what it asks for, prints and holds true."""

from pathlib import Path

import pytest

from tests import bench_accounting
from tests.fakes.at_work import Limits, Program, Texts, prepare, run
from tests.fakes.sacct_rows import Asked, Made, jobs, parse_asked, rows, truth, window

SINCE_S, UNTIL_S = window(1_800_000_000)


@pytest.mark.parametrize(
    ("time_format", "arguments", "asked"),
    [
        ("%s", ["-X", "-P", "-n", "-M", "all", "-o", "jobid,user"], Asked(("jobid", "user"), "|", False, False, True)),
        ("", ["--parsable", "-n", "--delimiter=^|^", "--format=JobID"], Asked(("JobID",), "^|^", True, False, False)),
        ("", ["-o", "User", "-P", "--delimiter=;|;", "-a"], Asked(("User",), ";|;", False, True, False)),
    ],
)  # fmt: skip
def test_what_a_program_asks_for(time_format: str, arguments: list[str], asked: Asked) -> None:
    assert parse_asked(time_format, arguments) == asked


def test_a_row_has_the_form_that_was_asked_for() -> None:
    (job,) = jobs(1, SINCE_S, UNTIL_S)
    ((_, row),) = rows(
        [job._replace(elapsed_s=90_061)], Asked(("JobID", "Elapsed", "Comment"), "^|^", True, False, True)
    )
    assert row == f"{job.job_id}^|^1-01:01:01^|^^|^\n"


def test_the_truth_is_clipped_and_knows_parts_of_gpus() -> None:
    (job,) = jobs(1, SINCE_S, UNTIL_S)
    slices = job._replace(devices=1, parts=4)
    made: list[Made] = [
        slices._replace(start_s=SINCE_S - 3600, end_s=SINCE_S + 7 * 3600),
        slices._replace(start_s=UNTIL_S - 7 * 3600, end_s=None),
        slices._replace(start_s=None, end_s=SINCE_S + 3600),
        slices._replace(start_s=UNTIL_S, end_s=UNTIL_S + 60),
    ]
    assert truth(made, SINCE_S, UNTIL_S) == (4, 14.0, 2.0)


def test_every_run_that_began_has_a_part_in_the_window() -> None:
    made = list(jobs(5000, SINCE_S, UNTIL_S))
    assert made == list(jobs(5000, SINCE_S, UNTIL_S))
    began = [job for job in made if job.start_s is not None]
    assert all(job.start_s < UNTIL_S and (job.end_s or UNTIL_S) > SINCE_S for job in began if job.start_s is not None)
    assert any(job.start_s is not None and job.start_s < SINCE_S for job in began)
    assert any((job.end_s or 0) > UNTIL_S for job in began)
    assert {job.state for job in began} > {"RUNNING", "COMPLETED"}
    assert len(began) < 5000


@pytest.mark.parametrize("day_by_day", [False, True])
def test_the_fake_sacct_asks_and_then_prints(tmp_path: Path, day_by_day: bool) -> None:
    prepare(tmp_path)
    texts = Texts(tmp_path, 400)
    command = "sacct -a -S {since} -P -n --format=Start" if day_by_day else "sacct -X -P -n -o Start"
    program = Program("made", "made==1", command, "rows", lambda output, work: 0, lambda truth: truth.rows)
    text = texts.of(program, Path())
    timed = run(texts.command(program, Path(), tmp_path), tmp_path, tmp_path, Limits(10, 0), BENCH_TEXT=str(text))
    assert not timed.why
    printed = timed.output.splitlines()
    days = {line[:10] for line in printed if line != "None"}
    assert (len(days) == 1 and 0 < len(printed) < 100) if day_by_day else len(printed) == 400


def test_limits_end_a_program_with_a_reason(tmp_path: Path) -> None:
    assert run("sleep 60", tmp_path, tmp_path, Limits(1, 0)).why == "not finished in 1 s"
    assert run("echo too much >&2; exit 3", tmp_path, tmp_path, Limits(9, 0)).why == "exit 3: too much"


def test_colloc_finds_the_truth_over_rows_and_over_samples(capsys: pytest.CaptureFixture[str]) -> None:
    bench_accounting.main(
        ["--sizes", "300,600", "--rounds", "1", "--programs", "plain split-and-sum,colloc", "--samples", "20000"]
    )
    printed = capsys.readouterr().out
    assert printed.count("(100.00 %)") == 4
    assert "GPU-hours as written" in printed
