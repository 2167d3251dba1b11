# SPDX-License-Identifier: Apache-2.0
import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from slurm_colloc.accounting.sources.jobcomp import parse_jobcomp
from slurm_colloc.errors import InputError
from slurm_colloc.measured import AllocationRow
from slurm_colloc.model import Gres
from tests.unit.made import DELIMITER, RECORDED, RELEASES
from tests.unit.stored import taken

LINE = (
    "JobId={job} UserId={user}(1001) GroupId=domain users(1001) Name={name} JobState={state} Partition=gpu"
    " TimeLimit=UNLIMITED StartTime={start} EndTime={end} NodeList={nodes} NodeCnt=1 ProcCnt=1 WorkDir={folder}"
    " ReservationName= Tres={tres} Account=ml QOS=normal WcKey={wckey} Cluster=c SubmitTime=1970-01-01T01:00:00"
    " EligibleTime=unknown{ids} DerivedExitCode=0:0 ExitCode=0:0 \n"
)


def line(**changes: str) -> str:
    fields = {
        "job": "5",
        "user": "ann",
        "name": "train",
        "state": "COMPLETED",
        "start": "1970-01-01T02:00:00",
        "end": "1970-01-01T03:00:00",
        "nodes": "g1",
        "folder": "/home/ann",
        "tres": "cpu=1,mem=100M,node=1,billing=1,gres/gpu=2,gres/gpu:h100=2",
        "wckey": "",
        "ids": "",
    }
    return LINE.format(**fields | changes)


def test_a_run() -> None:
    parsed = parse_jobcomp(line(), UTC)
    assert (parsed.rows_in, parsed.steps, parsed.rejected) == (1, 0, {})
    (row,) = parsed.rows
    assert row == AllocationRow(
        *("c", "5", "5", "ann", "ml", "gpu", "normal", "COMPLETED"),
        *(3600, 7200, 10800, 0, (Gres("gpu", "h100", 2),), "g1", "train"),
    )


def test_arrays_and_het_jobs() -> None:
    text = line(job="9", ids=" ArrayJobId=7 ArrayTaskId=3") + line(job="8", ids=" HetJobId=6 HetJobOffset=2")
    assert [(row.job_id, row.job_id_raw) for row in parse_jobcomp(text, UTC).rows] == [("7_3", "9"), ("6+2", "8")]


def test_a_requeued_run_has_ended() -> None:
    (row,) = parse_jobcomp(line(state="PENDING"), UTC).rows
    assert (row.state, row.end_s) == ("REQUEUED", 10800)


@pytest.mark.parametrize("start", ["Unknown", "1970-01-01T03:00:00"])
def test_what_never_ran_had_nothing(start: str) -> None:
    text = line() + line(state="CANCELLED", nodes="(null)", start=start)
    row = parse_jobcomp(text, UTC).rows[1]
    assert (row.start_s, row.end_s, row.gres, row.node_list) == (None, 10800, (), "")


def test_what_was_before_a_change_of_size_is_counted_as_lost() -> None:
    parsed = parse_jobcomp(line() + line(state="RESIZING"), UTC)
    assert len(parsed.rows) == 1
    assert parsed.rejected == {"the part of a run before its size changed: the line has no start": 1}


def test_times_are_local() -> None:
    (row,) = parse_jobcomp(line(), ZoneInfo("Europe/Berlin")).rows
    assert row.start_s == 3600


@pytest.mark.parametrize(("month", "offset_h"), [("01", 1), ("07", 2)])
def test_this_machines_zone_is_that_of_the_day(month: str, offset_h: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        (row,) = parse_jobcomp(line(start=f"2026-{month}-15T10:00:00", end=f"2026-{month}-15T11:00:00")).rows
    time.tzset()
    assert row.start_s == datetime(2026, int(month), 15, 10 - offset_h, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("release", RELEASES)
def test_recorded_runs_are_those_of_sacct(release: str) -> None:
    folder = RECORDED / f"slurm-{release}/jobcomp"
    parsed = parse_jobcomp((folder / "tracked.txt").read_text(), UTC)
    assert parsed.rejected == {
        "not a line of jobcomp/filetxt": 2,  # the name with a newline
        "the part of a run before its size changed: the line has no start": 1,
    }
    assert parsed.rows_in == len(parsed.rows) + 3
    by_sacct = taken((folder / "sacct.txt").read_text(), end=DELIMITER).rows
    known = [row for row in by_sacct if row.state != "RESIZING" and row.job_name != "new\nline"]
    # sacct leaves out what was cancelled while held: it never became eligible.
    *ran, never = sorted(parsed.rows, key=lambda row: row.start_s is None)
    assert (never.job_name, never.gres) == ("never started", ())
    assert sorted(map(_comparable, ran)) == sorted(map(_comparable, known))
    # What was asked for by its type has it; 22.05 forgets that a job gave up a node.
    typed = {row.job_name: row.gres for row in parsed.rows}
    assert typed["mig"] == (Gres("gpu", "nvidia_h100_80gb_hbm3_1g.10gb", 2),)
    assert typed["array"] == (Gres("gpu", "h100", 1),)
    assert (typed["shard"], typed["mps"]) == ((Gres("shard", "", 3),), (Gres("mps", "", 50),))
    assert sum(gres.quantity for gres in typed["resized"]) == (2 if release == "22.05" else 1)


def _comparable(row: AllocationRow) -> tuple[object, ...]:
    """Return what both sources know: not suspensions, not types that were not asked for, nor of the resized job."""
    resized = row.job_name == "resized"
    gres = sorted((gres.name, gres.quantity) for gres in row.gres if not resized)
    times = (row.end_s,) if resized else (row.submit_s, row.start_s or 0, row.end_s)
    return (*row[:8], times, gres, row.node_list.replace("None assigned", ""), row.job_name)


def test_without_a_slurmdbd_nobody_knows_of_gpus() -> None:
    text = (RECORDED / "slurm-22.05/jobcomp/untracked.txt").read_text()
    with pytest.raises(InputError, match="GPUs are not tracked in it: none of 1 runs"):
        parse_jobcomp(text, UTC)
    with pytest.raises(InputError, match=r"GPUs are not tracked in it.*run plain 'colloc ingest' every few minutes"):
        parse_jobcomp(line(tres="cpu=1", name="gres/gpu=8"), UTC)


def test_a_node_without_gpus_beside_one_with_them() -> None:
    parsed = parse_jobcomp(line() + line(tres="cpu=1"), UTC)
    assert [row.gres for row in parsed.rows] == [(Gres("gpu", "h100", 2),), ()]


def test_nothing_and_junk() -> None:
    assert parse_jobcomp("\n", UTC).rows_in == 0
    parsed = parse_jobcomp("junk\n" + line() + line()[:300], UTC)
    assert (len(parsed.rows), parsed.rows_in, parsed.rejected) == (1, 3, {"not a line of jobcomp/filetxt": 2})


def test_a_run_that_ends_before_it_starts() -> None:
    assert parse_jobcomp(line(start="1970-01-01T04:00:00"), UTC).rejected == {"the run ends before it starts": 1}


@pytest.mark.parametrize("field", ["name", "folder", "wckey"])
@pytest.mark.parametrize("words", ["two words", "x=y JobState=FAILED", " Partition=p", "ends in Cluster="])
def test_words_with_blanks_and_keys(field: str, words: str) -> None:
    (row,) = parse_jobcomp(line(**{field: words}), UTC).rows
    assert (row.state, row.user, row.cluster) == ("COMPLETED", "ann", "c")


@pytest.mark.parametrize(("field", "forged"), [("name", " Name="), ("folder", " WorkDir=")])
def test_words_that_imitate_the_line_are_no_other_run(field: str, forged: str) -> None:
    behind = line(tres="gres/gpu=1").split(forged, 1)[1].removesuffix("\n")
    parsed = parse_jobcomp(line() + line(**{field: f"x{behind}"}), UTC)
    assert (len(parsed.rows), parsed.rejected) == (1, {"a name in the line imitates its keys": 1})


def test_two_words_that_imitate_one_another() -> None:
    forged = "a ReservationName= Tres=gres/gpu=1 Account=other QOS=q WcKey=b"
    parsed = parse_jobcomp(line() + line(folder=forged, wckey=forged), UTC)
    assert parsed.rejected == {"a name in the line imitates its keys": 1}
