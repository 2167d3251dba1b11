# SPDX-License-Identifier: Apache-2.0
"""How a text of rows is told from its header, and what becomes of rows that are not plain."""

from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from slurm_colloc.accounting.runs import local_offsets_s
from slurm_colloc.accounting.sources import rows
from slurm_colloc.accounting.sources.rows import Form, parse_header, read_rows
from slurm_colloc.accounting.sources.sacct import FIELDS
from slurm_colloc.errors import InputError
from tests.unit.stored import taken
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
        assert (row.user, row.job_id, row.job_name, row.start_s, row.cluster) == ("ann", "7", "a|b", 3600, "")


# --- odd rows ---


def test_odd_rows_are_read_beside_plain_ones() -> None:
    names = ["plain", "a|b||", "", "tab\there", "é\u2028x", "\udcff", '"', "'quoted'", "#", "\\", "=1+1", "x" * 3000]
    # A carriage return within a name: DuckDB alone would take it for the end of a row.
    names.append("cr\rname")
    text = plain(*(line(str(number), name) for number, name in enumerate(names)))
    parsed = taken(text)
    assert (parsed.rows_in, parsed.steps, parsed.rejected) == (len(names), 0, {})
    found = {row.job_id: row.job_name for row in parsed.rows}
    assert found == {str(number): name.replace("\udcff", "\\xff") for number, name in enumerate(names)}


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


def test_damaged_texts_name_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="is no text but binary; export with sacct -P"):
        taken(b"PAR1" + 50 * b"\x00" + b"junk\n")
    with pytest.raises(InputError, match="is cut short: its last row has no end"):
        taken(plain(line("1"), line("2"))[:-1])
    monkeypatch.setattr(rows, "LONGEST_ROW_BYTES", 1 << 20)
    with pytest.raises(InputError, match="has a row of more than 1 MiB: it is damaged, or rows end otherwise"):
        taken(plain(line("1", "x" * (rows._CHUNK_BYTES + 1)))[:-1])
    with pytest.raises(InputError, match="'/nonexistent' cannot be read: No such file"):
        read_rows("/nonexistent", Form(FIELDS, b"|", b"\n", b""), str(tmp_path))


def test_a_future_run_says_that_a_clock_is_wrong() -> None:
    text = plain(line("1", End=str(7200 + 2 * 86400)))
    assert len(taken(text, now_s=7200.0 + 86400).rows) == 1
    with pytest.raises(
        InputError, match=r"has a run of 1970-01-03 02:00:00.*, and the clock of this machine says .*1970"
    ):
        taken(text, now_s=7200.0)


@pytest.mark.parametrize(
    ("tres", "why"),
    [
        ("1=4,2=1000,1001=2", "TRES by number, as in a dump of slurmdbd; export with sacct -P"),
        ("garbage", "AllocTRES is not of the form name=value,name=value"),
        ("cpu=1,gres/gpu:=", None),
    ],
)
def test_tres_outside_the_grammar_are_rejected_and_not_zero(tres: str, why: str | None) -> None:
    parsed = taken(plain(line("1", AllocTRES=tres), line("2")))
    assert ([row.job_id for row in parsed.rows], parsed.rows_in) == (["2"], 2)
    assert list(parsed.rejected.values()) == [1]
    assert why is None or why in parsed.rejected


# --- local times ---


@pytest.mark.parametrize(
    ("minute", "offsets"),
    [
        ("2026-07-01T12:00", (7200, None)),
        ("2026-01-01T12:00", (3600, None)),
        ("2026-10-25T02:30", (7200, 3600)),
        ("2026-10-25T01:59", (7200, None)),
        ("2026-10-25T03:00", (3600, None)),
        ("2026-03-29T02:30", (None, None)),
        ("2026-03-29T03:00", (7200, None)),
        ("2026-13-01T00:00", (None, None)),
        ("9999-99-99T99:99", (None, None)),
    ],
)
def test_what_clocks_show_once_twice_and_never(minute: str, offsets: tuple[int | None, int | None]) -> None:
    assert local_offsets_s(minute, BERLIN) == offsets


ELAPSED = (*FIELDS[:-1], "ElapsedRaw", FIELDS[-1])


def dst(
    start: str, end: str, elapsed: str = "", suspended: str = "00:00:00"
) -> tuple[list[tuple[int | None, int | None]], list[str]]:
    row = line("1", Submit="2026-03-01T12:00:00", Start=start, End=end, Suspended=suspended)
    parsed = taken(plain([*row[:-1], elapsed, row[-1]]), ELAPSED, BERLIN)
    return [(row.start_s, row.end_s) for row in parsed.rows], list(parsed.rejected)


def test_the_night_in_which_clocks_go_back() -> None:
    two_s = 1792886400 + 2 * 3600 - 7200  # 02:00 of 2026-10-25 in summer time
    # 02:30 summer time to 02:10 winter time are 40 minutes.
    assert dst("2026-10-25T02:30:00", "2026-10-25T02:10:00", "2400") == ([(two_s + 1800, two_s + 4200)], [])
    # Suspended for ten of them.
    assert dst("2026-10-25T02:30:00", "2026-10-25T02:10:00", "1800", "00:10:00")[0] == [(two_s + 1800, two_s + 4200)]
    # A run within an hour that is shown twice may be in either: none of them is right.
    times, why = dst("2026-10-25T02:10:00", "2026-10-25T02:40:00", "1800")
    assert times == []
    assert why == [
        "local time is ambiguous, because clocks went back; export with SLURM_TIME_FORMAT=%s, or with ElapsedRaw"
    ]
    assert dst("2026-10-25T02:10:00", "2026-10-25T12:00:00")[0] == [], "without its length nobody can tell"
    assert dst("2026-10-25T02:10:00", "2026-10-25T04:10:00", "10800")[0] == [(two_s + 600, two_s + 600 + 10800)]
    assert dst("2026-10-25T02:10:00", "2026-10-25T04:10:00", "7200")[0] == [(two_s + 4200, two_s + 4200 + 7200)]
    # Of a run that still goes on no length is final.
    assert dst("2026-10-25T02:10:00", "Unknown", "100")[0] == []
    assert dst("2026-10-25T01:10:00", "Unknown", "100")[0] == [(two_s - 3000, None)]


def test_the_night_in_which_clocks_go_forward() -> None:
    times, why = dst("2026-03-29T02:30:00", "2026-03-29T04:00:00", "1800")
    assert (times, why) == ([], ["local time does not exist, because clocks went forward; is --timezone right?"])
    three_s = 1774746000  # 03:00 summer time
    assert dst("2026-03-29T01:30:00", "2026-03-29T03:30:00", "3600")[0] == [(three_s - 1800, three_s + 1800)]
