# SPDX-License-Identifier: Apache-2.0
import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import duckdb
import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.slurm.gres import parse_tres_gres
from slurm_colloc.slurm.parse import parse_state
from slurm_colloc.sources import sacct_client
from slurm_colloc.sources.sacct_client import (
    FIELDS,
    LIMIT,
    Parsed,
    check_tracked,
    choose_fields,
    day_name,
    day_windows,
    parse_time,
)
from slurm_colloc.store.sacct_rows import take_rows
from slurm_colloc.store.text_rows import Form
from tests.unit.golden import Printed
from tests.unit.made import DELIMITER, RECORDED, RELEASES, run
from tests.unit.stored import taken

END = DELIMITER
OSLO = ZoneInfo("Europe/Oslo")
SONAR = (
    *("JobID", "JobIDRaw", "User", "Account", "State", "Start", "End", "AveCPU", "AveDiskRead", "AveDiskWrite"),
    *("AveRSS", "AveVMSize", "ElapsedRaw", "ExitCode", "Layout", "MaxRSS", "MaxVMSize", "MinCPU", "ReqCPUS", "ReqMem"),
    *("ReqNodes", "Reservation", "Submit", "Suspended", "SystemCPU", "TimelimitRaw", "UserCPU", "NodeList"),
    *("Partition", "AllocTRES", "Priority", "JobName"),
)


def terminated(*rows: Sequence[str], end: str = END) -> str:
    return "".join("".join(f"{value}{end}" for value in row) + "\n" for row in rows)


def line(job: str = "1", name: str = "train", **fields: str) -> list[str]:
    values = dict(zip(FIELDS, [job, job, "c", "ann", "lab", "gpu", "normal", "COMPLETED"], strict=False))
    values |= {"Submit": "0", "Start": "3600", "End": "7200", "Suspended": "00:00:00", "AllocTRES": "gres/gpu=1"}
    values |= {"NodeList": "g1", "JobName": name, **fields}
    return [values[field] for field in FIELDS]


# --- rows with a terminator ---


def test_one_row() -> None:
    parsed = taken(terminated(line()), end=END)
    assert parsed == Parsed((run(start_s=3600, end_s=7200, submit_s=None, gres=(Gres("gpu", "", 1),)),), 1, 0, {})


@pytest.mark.parametrize("release", RELEASES)
def test_recorded_rows(release: str) -> None:
    parsed = taken((RECORDED / f"slurm-{release}/sacct/terminated.txt").read_text(), end=END)
    assert (parsed.rows_in, parsed.steps, parsed.rejected) == (15, 0, {})
    assert {(row.cluster, row.user, row.account, row.qos) for row in parsed.rows} == {("lab", "alice", "ml", "normal")}
    rows = {row.job_id: row for row in parsed.rows if row.state != "REQUEUED"}
    assert [rows[job].job_name for job in ("1", "2")] == ["pipe|in|name", "new\nline"]
    assert [rows[job].job_id_raw for job in ("3_0", "3_1", "8+0", "8+1")] == ["5", "3", "8", "9"]
    assert {row.job_name: row.gres for row in rows.values()} == {
        **dict.fromkeys(("pipe|in|name", "new\nline", "array", "het", "cancelled"), (Gres("gpu", "h100", 1),)),
        **dict.fromkeys(("het2", "requeued", "failed"), ()),
        "mig": (Gres("gpu", "nvidia_h100_80gb_hbm3_1g.10gb", 2),),
        "shard": (Gres("shard", "", 3),),
        "mps": (Gres("mps", "", 50),),
        "suspended": (Gres("gpu", "nvidia_h100_80gb_hbm3_3g.40gb", 1),),
        "running": (Gres("gpu", "h100", 2),),
    }
    states = {row.job_name: row.state for row in rows.values() if row.state != "COMPLETED"}
    assert states == {"cancelled": "CANCELLED", "failed": "FAILED", "running": "RUNNING"}
    assert {row.job_name for row in rows.values() if row.end_s is None} == {"running"}
    assert {row.job_name: row.suspended_s for row in rows.values() if row.suspended_s} == {"suspended": 3}
    # A requeued job is two runs.
    first, again = sorted((row for row in parsed.rows if row.job_name == "requeued"), key=lambda row: row.start_s or 0)
    assert (first.state, again.state, first.job_id_raw == again.job_id_raw) == ("REQUEUED", "COMPLETED", True)
    assert first.end_s is not None
    assert again.start_s is not None
    assert first.end_s < again.start_s
    assert len({(row.cluster, row.job_id_raw, row.start_s) for row in parsed.rows}) == 15


@pytest.mark.parametrize("release", RELEASES)
def test_recorded_text_gives_the_same_runs(release: str) -> None:
    parsed = taken((RECORDED / f"slurm-{release}/sacct/text.txt").read_text())
    assert (parsed.rows_in, parsed.steps, parsed.rejected) == (30, 14, {"1 columns instead of 15": 1})
    live = taken((RECORDED / f"slurm-{release}/sacct/terminated.txt").read_text(), end=END)
    # Without a terminator a name ends at its first newline; nothing else is lost.
    assert [row._replace(job_name="") for row in parsed.rows] == [row._replace(job_name="") for row in live.rows]
    assert {row.job_name for row in live.rows} - {row.job_name for row in parsed.rows} == {"new\nline"}
    assert {row.job_name for row in parsed.rows} - {row.job_name for row in live.rows} == {"new"}


# --- rows of text ---


@pytest.mark.parametrize("name", ["\n", "\nx", "\n\n", "x\n", "\n\n\nx\n"])
def test_a_name_that_begins_with_a_newline_hides_no_run(name: str) -> None:
    """Neither its own nor the next, nor does a row that is cut short take the next one with it."""
    rows = [line(name=name), line("2"), line()[:-1], line("3"), line()[:3]]
    parsed = taken("".join(f"{END.join(cells)}{END}\n" for cells in rows), end=END)
    assert {row.job_id: row.job_name for row in parsed.rows} == {"1": name, "2": "train", "3": "train"}
    columns = {"14 columns instead of 15": 1, "3 columns instead of 15": 1}
    assert (parsed.rows_in, parsed.rejected) == (5, columns)


def test_a_header_that_names_other_columns_is_believed_over_the_guess() -> None:
    swapped = list(FIELDS)
    swapped[3], swapped[4] = swapped[4], swapped[3]
    parsed = taken("|".join(swapped) + "\n" + "|".join(line(User="lab", Account="ann")) + "\n")
    assert [(row.user, row.account) for row in parsed.rows] == [("ann", "lab")]


def test_only_columns_that_this_sacct_has_are_asked_for(printed: Printed) -> None:
    listed = "Account AllocTRES Cluster\nElapsedRaw End JobID\nJobIDRaw JobName Start State User\n"
    chosen = choose_fields(listed, ("ElapsedRaw", "SLUID"))
    needed = ["JobIDRaw", "JobID", "Cluster", "User", "Account", "State", "Start", "End", "AllocTRES"]
    assert list(chosen) == [*needed, "ElapsedRaw", "JobName"], "the name stays last"
    with printed.raises("ingest", InputError, "AllocTRES"):
        choose_fields(listed.replace("AllocTRES", "AllocGRES"))


@pytest.mark.parametrize(
    ("listed", "tracked"),
    [
        ("cpu|\nmem|\ngres|gpu\n", True),
        ("gres|gpu\ngres|gpu:a100\n", True),
        ("cpu|\ngres|gpumem\ngres|gpuutil\ngres|shard\n", False),
        ("gres|gpu:a100\n", False),
        ("", False),
    ],
)
def test_a_cluster_that_does_not_track_gpus_is_told_so(listed: str, *, tracked: bool, printed: Printed) -> None:
    if tracked:
        check_tracked(listed)
    else:
        with printed.raises("ingest", InputError, "AccountingStorageTRES"):
            check_tracked(listed)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"JobID": ""}, "the row has no JobID"),
        ({"Start": "yesterday"}, "time 'yesterday' is neither epoch seconds nor ISO 8601"),
        ({"Start": "2026-11-20T00:00:00"}, "times without a zone; say which zone with --timezone"),
        ({"Suspended": "1:2:3:4"}, "duration '1:2:3:4' is not [days-]hours:minutes:seconds"),
        ({"AllocTRES": "gres/gpu=x"}, "TRES 'gres/gpu=x' in 'gres/gpu=x' has a count that is not a number"),
    ],
)
def test_every_lost_row_has_its_reason(fields: dict[str, str], why: str) -> None:
    parsed = taken("|".join(line(**fields)) + "\n" + "|".join(line("2")) + "\n")
    assert (len(parsed.rows), parsed.rows_in, parsed.rejected) == (1, 2, {why: 1})


@pytest.mark.parametrize(
    ("text", "state"),
    [("CANCELLED by 380693", "CANCELLED"), ("COMPLETED", "COMPLETED"), ("CANCELLED+", "CANCELLED"), ("", "")],
)
def test_states(text: str, state: str) -> None:
    assert parse_state(text) == state
    assert [row.state for row in taken(terminated(line(State=text)), end=END).rows] == [state]


@pytest.mark.parametrize(
    ("text", "at_s"),
    [
        ("Unknown", None),
        ("None", None),
        ("", None),
        ("0", None),
        ("1795262317", 1795262317),
        ("1970-01-02T00:00:00+01:00", 82800),
        ("1970-01-02T00:00:00-0530", 106200),
        ("1970-01-02T00:00:00Z", 86400),
        ("1970-01-02T00:00:00", 86400),
    ],
)
def test_times(text: str, at_s: int | None) -> None:
    assert parse_time(text, ZoneInfo("UTC")) == at_s
    parsed = taken(terminated(line(Submit=text, Start=text, End="Unknown")), zone=ZoneInfo("UTC"), end=END)
    assert [(row.submit_s, row.start_s, row.end_s) for row in parsed.rows] == [(at_s, at_s, None)]


@pytest.mark.parametrize(
    ("name", "day"),
    [
        ("Europe/Oslo", "2025-03-30"),
        ("Europe/Oslo", "2025-10-26"),
        ("Australia/Lord_Howe", "2025-04-06"),  # by half an hour
        ("Australia/Lord_Howe", "2025-10-05"),
        ("America/St_Johns", "2010-03-14"),  # at one minute past midnight
        ("America/St_Johns", "2010-11-07"),
    ],
)
def test_each_minute_of_a_day_on_which_clocks_change(name: str, day: str) -> None:
    zone = ZoneInfo(name)
    noon = datetime.fromisoformat(f"{day}T12:00:00")
    minutes = [noon + timedelta(minutes=number) for number in range(-1440, 1440)]
    sure, left_out = {}, 0
    for minute in minutes:
        early, late = (minute.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
        if early.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != minute:
            left_out += 1
        elif early.utcoffset() == late.utcoffset():
            sure[minute.isoformat()] = int(early.timestamp())
    rows = [line(minute.isoformat(), Submit="0", Start=minute.isoformat(), End="Unknown") for minute in minutes]
    # Of these the offset is known without the zone.
    rows += [line(f"{minute}Z", Submit="0", Start=f"{minute}Z", End="Unknown") for minute in sure]
    parsed = taken(terminated(*rows), zone=zone, end=END)
    found = {row.job_id: row.start_s for row in parsed.rows}
    assert {minute: found[minute] for minute in sure} == sure
    assert {minute: found[f"{minute}Z"] for minute in sure} == {
        minute: int(datetime.fromisoformat(f"{minute}Z").timestamp()) for minute in sure
    }
    assert sum(count for reason, count in parsed.rejected.items() if "does not exist" in reason) == left_out


def test_local_minutes_of_a_year_are_few_rows(tmp_path: Path) -> None:
    """A row for each minute would be more than the memory of a report holds."""
    begin = datetime(2025, 1, 1)  # noqa: DTZ001 the zone is what is asked
    starts = [(begin + timedelta(minutes=59 * number)).isoformat() for number in range(8900)]
    path = tmp_path / "sacct.txt"
    path.write_text(terminated(*(line(start, Start=start, End="Unknown") for start in starts)))
    form = Form(FIELDS, END.encode(), f"{END}\n".encode(), b"")
    with duckdb.connect() as database:
        counted = take_rows(database, str(path), form, OSLO, 2e9, str(tmp_path))
        spans = database.execute("SELECT offset_s, later_offset_s FROM zones ORDER BY first_minute").fetchall()
    assert (counted.rows_in, spans) == (8900, [(3600, None), (None, None), (7200, None), (7200, 3600), (3600, None)])


@pytest.mark.parametrize("text", ["\u00b2", "12:00", "2026-13-01T00:00:00", "-5", "NaN"])
def test_no_times(text: str, printed: Printed) -> None:
    with pytest.raises(InputError):
        parse_time(text, OSLO)
    for field in ("Submit", "Start", "End"):
        parsed = taken(terminated(line(**{field: text})), zone=OSLO, end=END)
        ((reason, count),) = parsed.rejected.items()
        assert count == 1
        assert f"time '{text}'" in reason
    printed("ingest", reason.replace(text, "TEXT"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 0), ("00:00:03", 3), ("22:53.824", 1373), ("1-02:03:04", 93784), ("11:06:33", 39993), ("90", 90)],
)
def test_durations(text: str, seconds: int) -> None:
    assert [row.suspended_s for row in taken(terminated(line(Suspended=text, End="200000")), end=END).rows] == [seconds]


@pytest.mark.parametrize("text", ["x", "1-", "nan", "inf", "1:2:3:4", "1-2-3", ":"])
def test_no_durations(text: str, printed: Printed) -> None:
    parsed = taken(terminated(line(Suspended=text)), end=END)
    ((reason, count),) = parsed.rejected.items()
    assert count == 1
    assert f"duration '{text}'" in reason
    printed("ingest", reason.replace(f"'{text}'", "'TEXT'"))


# --- real rows against somebody else's parser ---


def rows_of(name: str) -> Parsed:
    return taken((RECORDED / "sonar-sacct" / name).read_text(), SONAR, OSLO)


def gpus(gres: Sequence[Gres]) -> int:
    return sum(item.quantity for item in gres if item.name == "gpu")


def stated_gpus(tres: str) -> int:
    found = dict(item.split("=") for item in tres.split(",") if item)
    return int(found.get("gres/gpu", 0))


def epoch(text: str | None) -> int | None:
    return int(datetime.fromisoformat(text).timestamp()) if text else None


def test_sonar_2025() -> None:
    parsed = rows_of("sacct_output.txt")
    assert (parsed.rows_in, len(parsed.rows), parsed.steps, parsed.rejected) == (301, 122, 179, {})
    theirs = json.loads((RECORDED / "sonar-sacct/sonar_sacct_output.txt").read_text())["data"]["attributes"][
        "slurm_jobs"
    ]
    jobs = sorted((job for job in theirs if "job_step" not in job), key=lambda job: str(job["job_id"]))
    assert len(jobs) == 122
    for ours, job in zip(sorted(parsed.rows, key=lambda row: row.job_id_raw), jobs, strict=True):
        assert ours.job_id_raw == str(job["job_id"])
        assert (ours.user, ours.account, ours.state) == (job["user_name"], job["account"], job["job_state"].split()[0])
        assert (ours.partition, ours.job_name) == (job["partition"], job["job_name"])
        assert ours.submit_s == epoch(job["submit_time"])
        # Sonar writes seconds, and two more: 0 and 1 have a meaning of their own there.
        assert ours.limit_min == (job["time_limit"] - 2) // 60
        assert ours.start_s == epoch(job.get("start_time"))
        assert ours.end_s == epoch(job.get("end_time"))
        tres = job.get("allocated_resources", "")
        assert gpus(ours.gres) == stated_gpus(tres)
        typed = {gres.type: gres.quantity for gres in ours.gres if gres.type}
        assert typed == {k.split(":")[1]: int(v) for k, v in (i.split("=") for i in tres.split(",") if ":" in i)}
    kinds = {gres.type for row in parsed.rows for gres in row.gres}
    assert {"a100", "a100_80", "l40s", "a40", "rtx30"} <= kinds
    unstarted = [row for row in parsed.rows if row.start_s is None]
    assert {row.state for row in unstarted} >= {"PENDING"}
    assert all(row.gres == () for row in unstarted)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("2880", 2880), ("UNLIMITED", None), ("Partition_Limit", None), ("", None), ("0", None), ("x", None)],
)
def test_time_limits(text: str, minutes: int | None) -> None:
    fields = (*FIELDS[:-1], LIMIT, FIELDS[-1])
    row = [*line()[:-1], text, "train"]
    (found,) = taken(terminated(row), fields, end=END).rows
    assert found.limit_min == minutes


def test_sonar_2024() -> None:
    parsed = rows_of("src_sacct-output.txt")
    assert (parsed.rows_in, parsed.rejected) == (96, {})
    assert len(parsed.rows) + parsed.steps == 96
    text = (RECORDED / "sonar-sacct/src_sacctd-output.txt").read_text()
    theirs = [dict(item.split("=", 1) for item in row) for row in csv.reader(io.StringIO(text))]
    jobs = sorted((job for job in theirs if "." not in job["JobID"]), key=lambda job: job["JobIDRaw"])
    assert (len(theirs), len(jobs)) == (96, len(parsed.rows))
    for ours, job in zip(sorted(parsed.rows, key=lambda row: row.job_id_raw), jobs, strict=True):
        assert (ours.job_id, ours.job_id_raw, ours.user) == (job["JobID"], job["JobIDRaw"], job["User"])
        assert (ours.state, ours.job_name) == (job["State"].split(" ")[0], job["JobName"])
        assert (ours.submit_s, ours.start_s) == (epoch(job["Submit"]), epoch(job.get("Start")))
        assert ours.end_s == epoch(job.get("End"))
        assert gpus(ours.gres) == stated_gpus(job.get("AllocTRES", ""))
        assert ours.gres == parse_tres_gres(job.get("AllocTRES", ""))
        if ours.start_s is not None and ours.end_s is not None:
            assert ours.end_s - ours.start_s - ours.suspended_s == int(job.get("ElapsedRaw", 0))


# --- slices of time ---


def test_days() -> None:
    assert list(day_windows(86400 * 3 + 5, 86400 * 5)) == [(259200.0, 345600.0), (345600.0, 432000.0)]
    assert list(day_windows(0, 1)) == [(0.0, 86400.0)]
    assert list(day_windows(5, 5)) == [(0.0, 86400.0)]
    assert [day_name(at_s) for at_s in (0, 86399, 86400)] == ["1970-01-01", "1970-01-01", "1970-01-02"]


def test_live_names_cannot_forge_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delimiter that is the same every time can be put into a job's name, with a row of somebody else behind it."""
    calls: list[list[str]] = []

    def fake_ask(argv: list[str], timeout_s: float, environment: Mapping[str, str]) -> bytes:
        calls.append(argv)
        assert (environment["TZ"], environment["SLURM_TIME_FORMAT"], environment["A"]) == ("UTC", "%s", "b")
        delimiter = next(word for word in argv if word.startswith("--delimiter=")).removeprefix("--delimiter=")
        name = "x" + terminated(["", *line("999", User="victim")], end=guess)
        return terminated(FIELDS, line("1", name, Start=str(1000 * len(calls))), end=delimiter).encode()

    monkeypatch.setattr(sacct_client, "ask", fake_ask)
    guess = "\x1f\x1e\x1f"
    first = taken(sacct_client.ask_rows(0, 86400, FIELDS, 5, {"A": "b"}))
    guess = next(word for word in calls[0] if word.startswith("--delimiter=")).removeprefix("--delimiter=")
    second = taken(sacct_client.ask_rows(0, 1, FIELDS, 5, {"A": "b"}))
    assert {row.user for row in (*first.rows, *second.rows)} == {"ann"}
    assert (len(first.rows), len(second.rows), first.rejected, second.rejected) == (1, 1, {}, {})
    assert calls[0][:6] == ["sacct", "-a", "-D", "-X", "-p", "--noconvert"]
    assert calls[0][7:] == ["-S", "1970-01-01T00:00:00", "-E", "1970-01-02T00:00:00", "-o", ",".join(FIELDS)]


def test_numbers_beyond_reason_cost_their_row_only() -> None:
    rows = [
        line("1", Start="9" * 20),
        line("2", Start="9" * 5000),
        line("3", AllocTRES=f"gres/gpu={'9' * 5000}"),
        line("4"),
    ]
    parsed = taken(terminated(*rows), end=END)
    assert ([row.job_id for row in parsed.rows], sum(parsed.rejected.values())) == (["4"], 3)
