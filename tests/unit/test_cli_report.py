# SPDX-License-Identifier: Apache-2.0
"""colloc report on a terminal, into a file, and into a pipe."""

import json
import os
import re
import shlex
import stat
from pathlib import Path
from threading import Thread

import duckdb
import jsonschema
import pytest

from slurm_colloc.slurm.job_visibility import EVERYBODY, Visible
from tests.pages.json_schema import json_schema
from tests.unit.golden import Printed
from tests.unit.made import HOUR, run
from tests.unit.programs import colloc, umask
from tests.unit.shell import SITE
from tests.unit.stored import busy, stored
from tests.unit.terminals import screen

COUNTED = {"rows_in": 30, "used": 30, "steps": 0, "rejected": {}}


@pytest.fixture
def report(tmp_path: Path) -> list[str]:
    """Return the command of a report on thirty users."""
    rows = [run(str(n), user=f"user{n:02}", end_s=HOUR + n) for n in range(30)]
    stored(tmp_path / "store", rows, busy(900, 1800)).write_log("a", COUNTED)
    return ["report", "--store", str(tmp_path / "store"), "--since", "1970-01-01T00:00:00+00:00"]


def users(text: str) -> list[str]:
    return re.findall(r"^(user\d\d|\(\d+ others\)|total) ", text, re.MULTILINE)


def test_a_terminal_shows_twenty_and_the_others(report: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, "stdout", 70) as shown:
        assert colloc(*report) == 0
    text = re.sub(r"\x1b\[\d+m", "", shown.text)
    assert text != shown.text
    assert (len(users(text)), users(text)[-2:]) == (22, ["(10 others)", "total"])
    assert max(len(line) for line in text.splitlines() if "$ colloc" not in line) <= 70, "a command is copied whole"


@pytest.mark.parametrize(("top", "rows"), [("3", 5), ("0", 31), ("29", 31), ("500", 31), ("", 31)])
def test_top_and_without_it_what_is_no_terminal_has_all_rows(report: list[str], top: str, rows: int) -> None:
    assert colloc(*report, *(["--top", top] if top else [])) == 0
    assert len(users(colloc.out)) == rows


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_are_not_for_all(report: list[str], variable: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, "stdout") as shown:
        for name, value in variable.items():
            monkeypatch.setenv(name, value)
        assert colloc(*report) == 0
    assert "\x1b" not in shown.text
    assert "█used▒idle░?" in shown.text


def test_a_terminal_without_these_letters_is_no_error(report: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, "stdout") as shown:
        shown.stream.reconfigure(encoding="ascii")
        assert colloc(*report) == 0
    assert shown.text.isascii()


def test_columns_may_be_asked_for(report: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, "stdout", 0) as shown:
        monkeypatch.setenv("COLUMNS", "200")
        assert colloc(*report) == 0
        monkeypatch.setenv("COLUMNS", "wide")
        assert colloc(*report) == 0
    wide, usual = (
        max(map(len, re.sub(r"\x1b\[\d+m|.*[$] colloc.*", "", text).splitlines()))
        for text in shown.text.split("GPU use")[1:]
    )
    assert wide > 100
    assert usual <= 80  # of a terminal that does not say how wide it is


def test_parquet_and_json_of_a_real_report(report: list[str], tmp_path: Path) -> None:
    made = {form: str(tmp_path / form) for form in ("json", "parquet")}
    assert colloc(*report, "--format", "json", "-o", made["json"]) == 0
    assert colloc(*report, "--format", "parquet", "-o", made["parquet"]) == 0
    shown = json.loads(Path(made["json"]).read_text())
    jsonschema.Draft202012Validator(json.loads(json_schema())).validate(shown)
    with duckdb.connect() as database:
        rows = database.execute("SELECT user, allocated_gpu_hours FROM read_parquet($path)", {"path": made["parquet"]})
        assert rows.fetchall() == [(one["name"], one["allocated_gpu_hours"]) for one in shown["groups"]]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--format", "parquet"], "--format parquet is no text; name a file by --output"),
        (["--format", "json", "--top", "5"], "--top and --explain are for --format table"),
        (["--format", "yaml"], "'yaml' is not one of table, csv, json, parquet, html"),
        (["--shadow", "--format", "parquet"], "'parquet' is not one of table, csv, json"),
        (["--shadow", "--top", "5"], "--top and --explain are for"),
        (["--harm", "--top", "3"], "--top and --explain are for"),
        (["--shadow", "--by=gpu"], "leave --by, --runs and --sacct-file out"),
        (["--rollout", "--by", "account"], "leave --by, --runs and --sacct-file out"),
        (["--shadow", "--runs=runs.csv"], "leave --by, --runs and --sacct-file out"),
        (["--harm", "--rollout"], "are reports of their own; choose one"),
        (["--harm", "--shadow"], "are reports of their own; choose one"),
        (["--harm", "--format", "html"], "'html' is not one of table, csv, json"),
        (["--harm", "--pseudonyms"], "--harm names nobody"),
        (["--min-group", "3"], "--by user has not"),
        (["--min-group", "3", "--by", "month"], "--by month has not"),
        (["--min-group", "1", "--by", "account"], "does nothing"),
        (["--min-group", "3", "--by", "account", "--runs", "x.csv"], "writes each run"),
        (["--min-group", "3", "--by", "account", "--format", "json", "--charts"], "shows single hours"),
        (["--fields", "JobID"], "do nothing without --sacct-file"),
        (["--timezone", "UTC"], "do nothing without --sacct-file"),
        (["--charts"], "--charts adds to --format json of a store"),
    ],
)
def test_what_a_report_cannot_be_asked(report: list[str], more: list[str], why: str) -> None:
    assert colloc(*report, *more) == 2
    assert why in colloc.err


def test_what_the_how_to_shows_runs(report: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Path(__file__).resolve().parents[2] / "docs/how-to"
    text = "".join((pages / name).read_text() for name in ("report.md", "privacy.md"))
    commands = [shlex.split(line, comments=True) for line in text.splitlines() if line.startswith("colloc report")]
    monkeypatch.chdir(tmp_path)
    # A page has an hour, or a day, of each of the window, and from 1970 to today that takes minutes.
    for command in commands:
        assert colloc(*command[1:], *report[1:], "--until", "1970-01-02T00:00:00+00:00") == 0, command
    assert len(commands) == 14
    assert {path.name for path in tmp_path.glob("use.*")} == {"use.csv", "use.json", "use.parquet", "use.html"}


# --- the file of --output ---


@pytest.fixture
def written(report: list[str], tmp_path: Path) -> Path:
    assert colloc(*report, "--format", "csv", "-o", str(tmp_path / "made.csv")) == 0
    return tmp_path / "made.csv"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_that_the_umask_says(report: list[str], tmp_path: Path, mask: int) -> None:
    with umask(mask):
        assert colloc(*report, "-o", str(tmp_path / "made")) == 0
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o666 & ~mask


def test_a_file_that_is_there_keeps_its_mode_and_group(report: list[str], written: Path) -> None:
    group = 1 if os.geteuid() == 0 else os.getgroups()[-1]
    os.chown(written, -1, group)
    written.chmod(0o640)
    reader = written.open()
    before = written.stat().st_ino
    assert colloc(*report, "--format", "json", "-o", str(written)) == 0
    assert (stat.S_IMODE(written.stat().st_mode), written.stat().st_gid) == (0o640, group)
    assert written.stat().st_ino != before
    assert reader.read().startswith("user,jobs,")  # who reads the old one reads it to its end
    reader.close()
    assert json.loads(written.read_text())


def test_a_link_stays_one(report: list[str], written: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("made.csv")
    assert colloc(*report, "--format", "json", "-o", str(tmp_path / "latest")) == 0
    assert (tmp_path / "latest").is_symlink()
    assert json.loads(written.read_text())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can plant a link of somebody else")
@pytest.mark.parametrize("option", ["--output", "--runs"])
def test_roots_report_follows_no_link_of_a_user_in_an_open_folder(
    report: list[str], written: Path, tmp_path: Path, option: str
) -> None:
    before = written.read_bytes()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    (tmp_path / "open/made").symlink_to(written)
    os.chown(tmp_path / "open/made", 85410, 85410, follow_symlinks=False)
    assert colloc(*report, option, str(tmp_path / "open/made")) == 2
    assert "link" in colloc.err
    assert written.read_bytes() == before


def test_a_fifo_in_the_store_is_named_and_not_waited_for(report: list[str], tmp_path: Path, printed: Printed) -> None:
    kept = tmp_path / "store/allocations"
    os.mkfifo(kept / "sacct-1970-01-01.parquet")
    assert colloc(*report) == 2
    printed("report", colloc.err)


def test_a_pipe_is_written_to_and_not_replaced(report: list[str], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    assert colloc(*report, "--format", "json", "-o", str(pipe)) == 0
    reader.join()
    assert json.loads(read[0])
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_cannot_be_written_leaves_nothing(report: list[str], tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    for path in (tmp_path / "none/made", tmp_path, Path("/proc/made")):
        assert colloc(*report, "-o", str(path)) == 2
        assert "cannot be written" in colloc.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("other", "visible", "known"),
    [("lab", EVERYBODY, True), ("elsewhere", EVERYBODY, False), ("lab", Visible(False, "ann"), False)],
)
def test_what_is_installed_is_the_denominator_of_all_runs_of_its_own_cluster_only(
    tmp_path: Path, other: str, visible: Visible, known: bool,
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    (tmp_path / "site.toml").write_text(SITE.format(order="", agent="true"))
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    monkeypatch.setattr("slurm_colloc.cli.colloc.visible_store.visible_here", lambda *_: visible)
    store = stored(tmp_path / "store", [run("1", cluster="lab"), run("2", cluster=other)])
    store.write_log("a", COUNTED)
    asked = (
        "report",
        "--store",
        str(tmp_path / "store"),
        "--since",
        "1970-01-01T00:00Z",
        "--until",
        "1970-01-01T02:00Z",
    )
    assert colloc(*asked, "--format", "json", "--charts") == 0
    shown = json.loads(colloc.out)
    installed = [shown["installed_gpu_hours"], *(one["installed_gpu_hours"] for one in shown["charts"]["over_time"])]
    assert [value is not None for value in (*installed, shown["of_installed"]["allocated_pct"])] == [known] * 4
    # What was taken in is everybody's, too.
    assert [shown[name] is not None for name in ("rows_in", "rows_used", "job_steps")] == [visible.everybody] * 3
    assert colloc(*asked, "--explain") == 0
    assert ("rows in" in colloc.out) is visible.everybody
