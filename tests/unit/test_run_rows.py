# SPDX-License-Identifier: Apache-2.0
"""How a text of rows is told from its header, and what becomes of rows that are not plain."""

import json
from pathlib import Path
from unittest.mock import patch
from zoneinfo import ZoneInfo

import duckdb
import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.slurm.gres import parse_tres_gres
from slurm_colloc.sources.jobstats import METHOD as JOBSTATS
from slurm_colloc.sources.sacct_client import DAY_S, FIELDS
from slurm_colloc.sources.tres_usage import FIELD
from slurm_colloc.sources.tres_usage import METHOD as STEPS
from slurm_colloc.store import sacct_rows
from slurm_colloc.store import text_rows as rows
from slurm_colloc.store.sacct_rows import MEANS, RUNAWAY, mark_runaways, take_rows, take_runs
from slurm_colloc.store.text_rows import Form, form_of, parse_header, read_rows
from tests.unit.golden import Printed
from tests.unit.made import run
from tests.unit.programs import colloc
from tests.unit.stored import taken
from tests.unit.test_jobstats import blob
from tests.unit.test_sacct import line, terminated

BERLIN = ZoneInfo("Europe/Berlin")


def plain(*lines: list[str]) -> str:
    return "".join("|".join(row) + "\n" for row in lines)


# --- the header ---


@pytest.mark.parametrize("delimiter", ["|", "\x1f", "\x1f0123456789abcdef\x1f", "@@", ";", "\t", "|x|"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_header_says_what_its_text_is_like(delimiter: str, newline: str) -> None:
    between, end = delimiter.encode(), newline.encode()
    bare = (delimiter.join(FIELDS) + newline).encode()
    assert parse_header(bare) == Form(FIELDS, between, end, bare)
    closed = (delimiter.join(FIELDS) + delimiter + newline).encode()
    assert parse_header(closed) == Form(FIELDS, between, between + end, closed)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"JobID\n",
        b"1|1|c|ann\n",
        b"jobid|user\n",
        b"JobID|User|State|12|\n",
        b"JobID|User|State|12\n",
        b"JobID|User||State\n",
        b"|JobID|User\n",
        b"\xff\xfeJobID|User\n",
        b"JobID,User|State\n",
    ],
)
def test_what_is_no_header(text: bytes) -> None:
    assert parse_header(text) is None


def test_a_text_is_read_as_its_header_says() -> None:
    swapped = ["User", "JobID", "State", "Start", "End", "AllocTRES", "JobName"]
    values = ["ann", "7", "COMPLETED", "3600", "7200", "gres/gpu=2", "a|b"]
    for delimiter, end in (("|", "\n"), (";", "\r\n"), ("\x1fq\x1f", "\x1fq\x1f\n"), ("@@", "\n")):
        text = delimiter.join(swapped) + end + delimiter.join(values) + end
        parsed = taken(text)
        assert (parsed.rows_in, parsed.rejected, parsed.steps) == (1, {}, 0), delimiter
        (row,) = parsed.rows
        # A column that the text does not have is empty, but for a job's raw id.
        assert row == run(
            "7", 3600, 7200, gres=(Gres("gpu", "", 2),), job_name="a|b",
            cluster="", account="", partition="", qos="", node_list="", submit_s=None,
        )  # fmt: skip


def test_a_raw_id_that_is_empty_is_the_id_and_a_text_may_have_no_names() -> None:
    text = "JobID|JobIDRaw|User|State|Start|End|AllocTRES\n7||ann|COMPLETED|3600|7200|gres/gpu=2\n"
    assert [(row.job_id_raw, row.job_name) for row in taken(text).rows] == [("7", "")]


@pytest.mark.parametrize("ahead_s", [DAY_S, DAY_S + 1])
def test_a_run_of_a_time_to_come_is_rejected_and_costs_no_other(ahead_s: int, printed: Printed) -> None:
    now_s = 1_800_000_000
    text = f"JobID|User|State|Start|End|AllocTRES\n7|a|COMPLETED|3600|7200|\n8|a|COMPLETED|9|{now_s + ahead_s}|\n"
    parsed = taken(text, now_s=now_s)
    rejected = [] if ahead_s == DAY_S else ["8"]
    assert [row.job_id for row in parsed.rows] == [job for job in ("7", "8") if job not in rejected]
    assert list(parsed.rejected.values()) == [1] * len(rejected)
    if rejected:
        printed("ingest", *parsed.rejected)


# --- odd rows ---


@pytest.mark.parametrize("where", ["first", "last"])
def test_a_row_of_another_length_costs_no_other_row(where: str) -> None:
    good = [line(str(number)) for number in range(3)]
    for bad, count in ((["junk"], 1), ([""], 1), (line("9")[:-2], len(FIELDS) - 2)):
        parsed = taken(plain(*([bad, *good] if where == "first" else [*good, bad])))
        assert [row.job_id for row in parsed.rows] == ["0", "1", "2"]
        assert (parsed.rows_in, parsed.rejected) == (4, {f"{count} columns instead of {len(FIELDS)}": 1})


def test_what_looked_plain_from_afar_is_looked_at_row_by_row() -> None:
    """One delimiter too many and one too few are as many as there should be."""
    fields = ("JobName", "JobID", "User", "State", "Start", "End", "AllocTRES")
    text = "a|b|1|ann|COMPLETED|1|2|gres/gpu=1\n2|ann|COMPLETED|1|2|gres/gpu=1\nc|3|ann|COMPLETED|1|2|gres/gpu=1\n"
    parsed = taken(text, fields)
    assert [row.job_id for row in parsed.rows] == ["3"]
    assert parsed.rejected == {"8 columns instead of 7": 1, "6 columns instead of 7": 1}


def test_rows_across_the_pieces_in_which_a_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [taken(plain(*[line(str(number), "a\tb|c") for number in range(50)]))]
    monkeypatch.setattr(rows, "_CHUNK_BYTES", 37)
    for end in ("", "\x1f\x1e\x1f"):
        lines = [line(str(number), "a\tb|c") for number in range(50)]
        assert taken(terminated(*lines, end=end) if end else plain(*lines), end=end) == expected[0]


def test_damaged_texts_name_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    with printed.raises("ingest", InputError):
        taken(b"PAR1" + 50 * b"\x00" + b"junk\n")
    with printed.raises("ingest", InputError):
        taken(plain(line("1"), line("2"))[:-1])
    monkeypatch.setattr(rows, "LONGEST_ROW_BYTES", 1 << 20)
    with printed.raises("ingest", InputError, "1 MiB"):
        taken(plain(line("1", "x" * (rows._CHUNK_BYTES + 1)))[:-1])
    with printed.raises("ingest", InputError, "'/nonexistent'"):
        read_rows("/nonexistent", Form(FIELDS, b"|", b"\n", b""), str(tmp_path))


# --- local times ---


def test_a_length_in_words_settles_times_too() -> None:
    text = plain([*line("1", Submit="2026-03-01T12:00:00", Start="2026-10-25T02:10:00", End="2026-10-25T04:10:00")])
    for elapsed, start_s in (("03:00:00", 1792887000), ("02:00:00", 1792890600)):
        (row,) = taken(text.replace("\n", f"|{elapsed}\n"), (*FIELDS, "Elapsed"), BERLIN).rows
        assert row.start_s == start_s
    assert taken(text.replace("\n", "|\n"), (*FIELDS, "Elapsed"), BERLIN).rows == ()


# --- where a text lies, and how it is written ---


def test_a_path_is_one_file_whatever_is_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "user=mallory"
    folder.mkdir()
    (folder / "jobs1.txt").write_text(plain(line("7")))
    path = folder / "jobs[1]*?.txt"
    path.write_text(plain(line("8")))
    with duckdb.connect() as database, path.open("rb") as stream:
        counted = take_rows(database, str(path), form_of(stream, FIELDS), None, 2e9, str(tmp_path))
        assert database.execute('SELECT job_id, "user" FROM taken').fetchall() == [("8", "ann")]
    assert (counted.rows_in, counted.used, counted.steps) == (1, 1, 0)


def test_rows_that_do_not_add_up_are_an_error(tmp_path: Path, printed: Printed) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(plain(line("1"), line("1.0"), line("2")))
    with path.open("rb") as stream:
        rows = read_rows(str(path), form_of(stream, FIELDS), str(tmp_path))
    with (
        duckdb.connect() as database,
        patch.object(sacct_rows, "read_rows", return_value=rows._replace(rows_in=9)),
        printed.raises("ingest", InputError, r"\b9 .*\b2 .*\b1 "),
    ):
        take_rows(database, str(path), rows.form, None, 2e9, str(tmp_path))


def test_a_mark_of_the_byte_order_is_no_part_of_the_header() -> None:
    parsed = taken(b"\xef\xbb\xbf" + plain(list(FIELDS), line("1")).encode())
    assert ([row.job_id for row in parsed.rows], parsed.rejected, parsed.rows_in) == (["1"], {}, 1)


def test_columns_that_change_in_the_middle_are_an_error(printed: Printed) -> None:
    swapped = [{"User": "Account", "Account": "User"}.get(name, name) for name in FIELDS]
    with printed.raises("ingest", InputError):
        taken(plain(list(FIELDS), line("1"), swapped, line("2")))


def test_a_name_that_ends_in_a_carriage_return_swallows_no_rows() -> None:
    rows = plain(line("1", "x\r"), line("2"), line("3", "x\r"))
    assert [row.job_id for row in taken(rows).rows] == ["1", "2", "3"]
    headed = "|".join(FIELDS) + "\r\n" + rows
    with_header = taken(headed)
    assert [row.job_id for row in with_header.rows] == ["1"]
    assert with_header.rejected == {"a newline within a row": 1}


@pytest.mark.parametrize("delimiter", [",", "=", "/", ":", ".", "-", "_", " ", "[", ", "])
def test_a_delimiter_that_is_in_the_columns_is_refused(delimiter: str, printed: Printed) -> None:
    with pytest.raises(InputError) as raised:
        parse_header(f"JobID{delimiter}User{delimiter}State\n".encode())
    printed("ingest", str(raised.value).replace(f"'{delimiter}'", "'DELIMITER'"))


def test_a_text_without_a_header_has_the_columns_that_are_assumed_or_named(printed: Printed) -> None:
    with printed.raises("ingest", InputError, "--fields"):
        taken("1|ann|COMPLETED\n", ())
    assert len(taken(plain(line("1")), ()).rows) == 1


def test_reasons_are_few_and_short() -> None:
    rows = [line(str(number), Start=f"{number}" + 100 * "x") for number in range(100)]
    parsed = taken(plain(line("1"), *rows, line("2", AllocTRES="gres/gpu=" + 100 * "x")))
    assert (len(parsed.rejected), sum(parsed.rejected.values())) == (21, 101)
    assert parsed.rejected["other reasons"] == 81
    assert max(map(len, parsed.rejected)) < 150


def test_names_beyond_ascii_are_plain(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(terminated(*[line(str(number), "größe") for number in range(5)], end="\x1e\x1f"))
    form = Form(FIELDS, b"\x1e\x1f", b"\x1e\x1f\n", b"")
    assert (read_rows(str(path), form, str(tmp_path)).odd, taken(path.read_text(), end="\x1e\x1f").rejected) == ([], {})
    assert {row.job_name for row in taken(path.read_text(), end="\x1e\x1f").rows} == {"größe"}


# --- what cannot be believed of times and TRES ---


def test_a_submit_after_the_end_takes_no_run_away() -> None:
    (row,) = taken(plain(line("1", Submit="9000"))).rows
    assert (row.start_s, row.end_s) == (3600, 7200)


def test_only_energy_is_energy(printed: Printed) -> None:
    for tres in ("gres/xenergy=5,gres/gpu=1", "energy=7,gres/gpu=1", "gres/gpu=1,energy=7", "gres/gpu=1,gres/nic=many"):
        (row,) = taken(plain(line("1", AllocTRES=tres))).rows
        assert {one.quantity for one in row.gres if one.name == "gpu"} == {1}, tres
    rejected = taken(plain(line("1", AllocTRES="gres/gpu:a=2000000000,gres/gpu:b=2000000000"), line("2"))).rejected
    assert list(rejected.values()) == [1]
    printed("ingest", *rejected)


@pytest.mark.parametrize(
    ("field", "elapsed", "until_s"),
    [
        ("ElapsedRaw", "600", 4200),
        ("ElapsedRaw", "9999999", 9000),
        ("ElapsedRaw", "", 3600),
        ("Elapsed", "10:00", 4200),
    ],
)
def test_a_copied_text_knows_of_unfinished_runs_what_it_knew(
    field: str, elapsed: str, until_s: int, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.txt"
    running = line("1", End="Unknown")
    path.write_text(plain([*running[:-1], elapsed, running[-1]], [*line("2")[:-1], "", "x"]))
    with duckdb.connect() as database, path.open("rb") as stream:
        take_rows(
            database,
            str(path),
            form_of(stream, (*FIELDS[:-1], field, FIELDS[-1])),
            None,
            2e9,
            str(tmp_path),
            written_s=9000.0,
        )
        assert database.execute("SELECT ingested_s FROM taken WHERE end_s IS NULL").fetchall() == [(until_s,)]


# --- what steps say of the use of GPUs ---

STEP_FIELDS = ("JobID", "JobIDRaw", "User", "State", "Start", "End", "AllocTRES", "NodeList", FIELD, "JobName")


def peaks(tmp_path: Path, *found: str) -> tuple[list[tuple[int, int | None]], dict[str, int]]:
    """Return of each run with GPUs its start and the memory that its steps say, and what is refused."""
    path = tmp_path / "sacct.txt"
    path.write_text("".join(f"{row}\n" for row in found))
    with duckdb.connect() as database:
        form = Form(STEP_FIELDS, b"|", b"\n", b"")
        counted = take_rows(database, str(path), form, None, 2e9, str(tmp_path), release="24.05.4")
        runs = database.execute("SELECT start_s, mean_gpu_mem_mib FROM taken ORDER BY start_s").fetchall()
    return runs, dict(counted.refused)


def test_steps_belong_to_the_run_in_which_they_began(tmp_path: Path) -> None:
    gpu, used = "gres/gpu=1|g1", "|g1|gres/gpumem={}M|python"
    found, refused = peaks(
        tmp_path,
        f"7|7|ann|REQUEUED|3600|7200|{gpu}||train",
        f"7.0|7.0||COMPLETED|3600|5000|{used.format(10)}",
        f"7.1|7.1||COMPLETED|5000|7200|{used.format(30)}",
        # Another run of the same job, and another job of an array, whose raw id its steps have.
        f"7|7|ann|COMPLETED|8000|9000|{gpu}||train",
        f"7.0|7.0||COMPLETED|8100|9000|{used.format(20)}",
        f"5_1|55|ann|RUNNING|9500|Unknown|{gpu}||train",
        f"5_1.0|55.0||RUNNING|9600|Unknown|{used.format(40)}",
        # What began before its run, or after it, is none of it; without a GPU there is nothing to say.
        f"6|6|ann|COMPLETED|10000|11000|{gpu}||train",
        f"6.0|6.0||COMPLETED|9999|10500|{used.format(50)}",
        f"6.1|6.1||COMPLETED|11001|11500|{used.format(60)}",
        "8|8|ann|COMPLETED|12000|13000|cpu=1|g1||train",
        f"8.0|8.0||COMPLETED|12000|13000|{used.format(70)}",
        # Raw ids may be empty; the last second of a run is still its own.
        f"9||ann|FAILED|14000|14100|{gpu}||train",
        f"9.0|||FAILED|14100|14101|{used.format(80)}",
    )
    assert found == [(3600, 30), (8000, 20), (9500, 40), (10000, None), (12000, None), (14000, 80)]
    assert refused == {}


def test_what_steps_say_and_cannot_be_believed_is_counted(tmp_path: Path) -> None:
    run = "7|7|ann|COMPLETED|3600|7200|gres/gpu=1|g1||train"
    found, refused = peaks(tmp_path, run, "7.0|7.0||COMPLETED|3600|5000||g1|gres/gpumem=many|python")
    assert (found, sum(refused.values())) == ([(3600, None)], 1)


def test_what_a_comment_of_jobstats_says_goes_before_what_steps_say(tmp_path: Path) -> None:
    gpus = {"n1": {"gpu_utilization": {"0": 40}, "gpu_used_memory": {"0": 5 << 20}}}
    comments = ["", blob(json.dumps({"nodes": gpus})), "JS1:nonsense"]
    found = [f"{job}|ann|COMPLETED|{job}0|{job}9|gres/gpu=1||{comment}|x" for job, comment in enumerate(comments, 1)]
    found += [f"{job}.0||COMPLETED|{job}0|{job}9||gres/gpumem={job}M||x" for job in (1, 2)]
    path = tmp_path / "sacct.txt"
    path.write_text("".join(f"{row}\n" for row in found))
    fields = ("JobID", "User", "State", "Start", "End", "AllocTRES", FIELD, "AdminComment", "JobName")
    with duckdb.connect() as database:
        form = Form(fields, b"|", b"\n", b"")
        counted = take_rows(database, str(path), form, None, 2e9, str(tmp_path), release="24.05.4")
        means = database.execute(f"SELECT {', '.join(MEANS)} FROM taken ORDER BY start_s").fetchall()
    assert means == [(None, 1, 0, STEPS), (40.0, 5, 1, JOBSTATS), (None, None, None, None)]
    assert (counted.used, counted.steps, sum(counted.refused.values())) == (3, 2, 1)


# --- runs whose end nobody knows ---


def test_what_the_controller_does_not_know_is_a_runaway() -> None:
    with duckdb.connect() as database:
        rows = [run("1", end_s=None), run("2", end_s=None), run("3"), run("4", None, None), run("5", 50, None)]
        take_runs(database, rows, 9000.0)
        mark_runaways(database, ["1", "9"])
        marked = database.execute("SELECT job_id, ingested_s FROM taken WHERE state = ? ORDER BY ALL", [RUNAWAY])
        # It counts as far as it was seen to run before.
        assert marked.fetchall() == [("2", 0.0), ("5", 50.0)]


def test_each_text_of_alloctres_is_parsed_once(tmp_path: Path) -> None:
    """Memory, CPUs and nodes make nearly each text another; taken in and shown, the few kinds of GPUs are parsed."""
    lines = [f"{job}|{job}|ann|COMPLETED|3600|7200|cpu={job},gres/gpu=1,mem={job}M,node=1|n" for job in range(1, 300)]
    lines.append("300|300|ann|COMPLETED|7200|3600|cpu=1,gres/gpu:a100=2|n")
    path = tmp_path / "sacct.txt"
    path.write_text("\n".join(("JobID|JobIDRaw|User|State|Start|End|AllocTRES|JobName", *lines, "")))
    parse_tres_gres.cache_clear()
    assert colloc("report", "--sacct-file", str(path), "--since", "1970-01-01", "--until", "1970-01-02") == 0
    assert "299.00" in colloc.out
    assert parse_tres_gres.cache_info().misses == 2


@pytest.mark.parametrize(
    ("name", "as_it_stands"),
    [("train", True), ("résumé|;", True), ("a\x1fb", False), ("a\nb", False), ("\nx", True), ("a\r", False)],
)
def test_the_export_of_the_how_to_is_read_as_it_stands(name: str, as_it_stands: bool, tmp_path: Path) -> None:
    """Two million delimiters are not replaced one by one; whatever a name holds, the runs are the same."""
    path = tmp_path / "jobs.txt"
    text = terminated(FIELDS, line("1"), line("2", name), line("3"))
    path.write_text(text, newline="")
    with path.open("rb") as stream:
        form = form_of(stream, ())
    assert (read_rows(str(path), form, str(tmp_path)).plain == str(path)) is as_it_stands
    assert read_rows(str(path), form, str(tmp_path), each=True).plain != str(path)
    parsed = taken(text)
    assert {row.job_id: row.job_name for row in parsed.rows} == {"1": "train", "2": name, "3": "train"}
    assert (parsed.rows_in, parsed.rejected) == (3, {})
