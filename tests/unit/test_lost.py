# SPDX-License-Identifier: Apache-2.0
"""Rows that cannot be used: how many GPU-hours they may have been, and what that does to the exit status."""

import json
import re
from pathlib import Path

import pytest

from slurm_colloc.sources.sacct_client import EXPORT
from tests.pages import DOCS
from tests.unit.golden import Printed
from tests.unit.made import near
from tests.unit.programs import colloc
from tests.unit.stored import at

# As ``sacct -o ALL`` has them: a job's name in the middle, its start after it.
FIELDS = "AllocTRES|Cluster|ElapsedRaw|End|JobID|JobIDRaw|JobName|Start|State|Submit|User|WorkDir"
START_S = at("2026-01-03T00:00")
WINDOW = ("--since", "2026-01-01T00:00:00+00:00", "--until", "2026-01-11T00:00:00+00:00")


def row(job: str, name: str = "train", hours: float = 1, gpus: int = 1, end: str = "", **fields: str) -> str:
    gres = f"cpu=4,gres/gpu={gpus},mem=8G" if gpus else "cpu=4,mem=8G"
    length = f"{3600 * hours:.0f}"
    end = end or f"{START_S + 3600 * hours:.0f}"
    start = fields.get("start", str(START_S))
    return f"{gres}|c|{length}|{end}|{job}|{job}|{name}|{start}|COMPLETED|{START_S}|ann|/home/ann"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return tmp_path / "sacct.txt"


def write(text: Path, *rows: str, fields: str = FIELDS) -> None:
    text.write_text("".join(f"{one}\n" for one in (fields, *rows)))


def test_rejected_rows_say_how_many_gpu_hours_they_may_have_been(
    text: Path, capsys: pytest.CaptureFixture[str], printed: Printed
) -> None:
    write(text, row("1"), row("2", "a|b", 4), row("3", "a\nb", 2, gpus=2), row("4", "a|b|c"), row("4.0", "a|b", 9))
    assert colloc("report", *WINDOW, "--sacct-file", str(text), "--format", "json") == 3
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert (shown["total"]["allocated_gpu_hours"], shown["rows_in"], shown["rows_used"]) == (1.0, 6, 1)
    assert shown["lost"] == {
        "gpu_hours": near(9.0), "unknown_rows": 0, "used_gpu_hours": near(1.0), "used_rows": 1, "too_many": True,
    }  # fmt: skip
    assert "job 2: 13 columns instead of 12" in err
    assert colloc("report", *WINDOW, "--sacct-file", str(text)) == 3
    (lost,) = (line for line in capsys.readouterr().out.splitlines() if "5 rejected" in line)
    printed("report", lost)
    words = lost[lost.index("5 rejected") :].partition(" (")[0]
    assert colloc("ingest", "--store", str(text.parent / "store"), "--sacct-file", str(text)) == 3
    assert words in capsys.readouterr().err
    # What was lost long ago is said, and is no news.
    assert colloc("report", *WINDOW, "--store", str(text.parent / "store")) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(("hours", "status"), [(99, 0), (98, 3)])
def test_more_than_one_percent_is_the_status(hours: int, status: int, text: Path) -> None:
    write(text, row("1", hours=hours), row("2", "a|b"), row("3", "a|b", 1000, gpus=0))
    assert colloc("report", *WINDOW, "--sacct-file", str(text)) == status
    assert colloc("ingest", "--store", str(text.parent / "store"), "--sacct-file", str(text)) == status


def test_of_rows_whose_length_nobody_can_tell_none_is_made_up(text: Path, printed: Printed) -> None:
    fields = FIELDS.replace("ElapsedRaw", "Elapsed")
    broken = row("2", "a|b").replace(str(START_S), "Unknown")
    write(text, row("1"), broken, fields=fields)
    assert colloc("report", *WINDOW, "--sacct-file", str(text)) == 3
    printed("report", *(line for line in colloc.out.splitlines() if "1 rejected" in line))


@pytest.mark.parametrize(
    ("tres", "status"),
    [
        ("gpu:tesla:4", 3),
        ("1=4,2=1000,3=18446744073709551614,4=1,5=4,1001=4", 3),
        ("1=4,2=1000,4=1,5=4", 0),
        ("cpu=4,mem", 0),
        ("cpu=4,gres/g+", 3),
    ],
)
def test_what_may_have_named_a_gpu_outside_the_grammar_is_not_nothing(tres: str, status: int, text: Path) -> None:
    """A hundred rows of 40 GPU-h each, of which no report said more than that they are rejected."""
    rows = [row(str(job), hours=10).replace("cpu=4,gres/gpu=1,mem=8G", tres) for job in range(2, 102)]
    write(text, row("1", hours=10), *rows)
    assert colloc("report", *WINDOW, "--sacct-file", str(text), "--format", "json") == status
    shown = json.loads(colloc.out)
    assert (shown["total"]["allocated_gpu_hours"], shown["lost"]["unknown_rows"]) == (10.0, 100 if status else 0)
    assert colloc("ingest", "--store", str(text.parent / "store"), "--sacct-file", str(text)) == status


def test_one_impossible_time_costs_its_own_row(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(text, row("1", hours=1000), row("2", end="4294967294"), row("3", start="4294967294"))
    assert colloc("report", *WINDOW, "--sacct-file", str(text), "--format", "json") == 0
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert shown["total"]["allocated_gpu_hours"] == near(192.0)
    ((reason, count),) = shown["rejected"].items()
    assert ("clock" in reason, count, shown["rows_used"]) == (True, 2, 1)
    assert shown["lost"]["gpu_hours"] == near(2.0)
    assert f"job 2: {reason}" in err
    assert f"job 3: {reason}" in err


def test_names_of_jobs_are_not_said_where_there_are_pseudonyms(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(text, row("1", hours=1000), row("2", end="4294967294"))
    assert colloc("report", *WINDOW, "--sacct-file", str(text), "--pseudonyms") == 0
    assert "job 2" not in "".join(capsys.readouterr())


def test_all_pages_export_in_one_form() -> None:
    commands = [
        command
        for page in (DOCS.parent / "README.md", *DOCS.rglob("*.md"))
        for command in re.findall(r"sacct -a (?:\\\n|.)*> \S+", page.read_text())
    ]
    assert len(commands) >= 2
    for command in commands:
        assert " -D -X -p --noconvert " in command
        # Who knows the delimiter forges rows by a job's name.
        assert """--delimiter="$(printf "\\037$RANDOM$RANDOM$$\\037")" """ in command
        assert f"-o {','.join(EXPORT)} >" in command
    assert not [page for page in (DOCS.parent / "README.md", *DOCS.rglob("*.md")) if "-o ALL" in page.read_text()]
