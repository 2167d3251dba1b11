# SPDX-License-Identifier: Apache-2.0
"""colloc report --shadow: what it prints, in each format, and what it cannot be asked."""

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.cells import cell_len

from slurm_colloc.core.sharing_model import ShadowLate, ShadowLeft, ShadowPiece
from slurm_colloc.report.columns import FORMATS
from slurm_colloc.report.layout import NO_TERMINAL, Terminal
from slurm_colloc.report.shadow import ShadowReport, heading, listing_of
from tests.unit.golden import Printed
from tests.unit.made import HOUR, RECORDED, decision, run
from tests.unit.programs import colloc
from tests.unit.stored import busy, stored

SLICE = ShadowPiece("gpu:h100_1g.10gb:1", 5, 3, 1, 0, 30.0, 10.5, 2.25, 2, 1, -90.0)
MOVED = ShadowPiece("=HYPERLINK(1)\x1b[31m in mig", 2, 0, 0, 0, 0.0, 0.0, 0.0, 0, 0, None)
REPORT = ShadowReport(
    cluster="c",
    since=datetime(2026, 1, 1, tzinfo=UTC),
    until=datetime(2026, 1, 8, tzinfo=UTC),
    equivalents="compute slices",
    covered_pct=90,
    runs=20,
    decided=10,
    pieces=(SLICE, MOVED),
    total=SLICE._replace(piece="total", runs=7),
    left=(ShadowLeft("what it needs was not known", 3, None),),
    not_judged=(ShadowLeft("nobody measured its peak of GPU memory", 1, 2.0),),
    late=ShadowLate(3, 2, 1, 1, 1),
    allocated_gpu_hours=100.0,
    could_free_gpu_hours=26.0,
)


def as_table(report: ShadowReport, terminal: Terminal = NO_TERMINAL) -> str:
    return FORMATS["table"](listing_of(report), terminal)


def test_the_table_says_counts_and_method(printed: Printed) -> None:
    told = as_table(REPORT)
    titles, _, first, second, *_ = told.splitlines()[2:]
    assert titles.split()[:4] == ["PIECE", "RUNS", "JUDGED", "FIT"]
    page = RECORDED.parents[1] / "docs/how-to/tier-place.md"
    assert titles.split() in [line.split() for line in page.read_text().splitlines()], "the page shows them"
    assert first.split()[1:] == ["5", "4", "3", "1", "30.00", "10.50", "19.50", "1.5", "min", "later", "2"]
    # Nothing is known of these.
    assert second.split()[-9:] == ["2", "0", "0", "0", "-", "-", "-", "-", "0"]
    assert "\x1b" not in told
    printed("report-shadow", told)


@pytest.mark.parametrize("columns", [24, 40, 80, 120, 200])
def test_the_table_fits_the_terminal(columns: int) -> None:
    hostile = REPORT._replace(pieces=(SLICE, MOVED._replace(piece="gpu:" + "界" * 60)))
    told = as_table(hostile, Terminal(columns))
    assert max(map(cell_len, told.splitlines())) <= columns
    titles = next(line for line in told.splitlines() if line.startswith("PIECE"))
    assert "FREED GPU-h" in titles
    assert ("ALLOC GPU-h" in titles) is (columns >= 120)
    notes = [as_table(hostile, terminal).split("\n\n")[-1].split() for terminal in (Terminal(200), Terminal())]
    assert notes[0] == notes[1]


def test_a_report_of_some_runs_says_so_in_each_format() -> None:
    whose = "runs of <ann>\x1b[2J"
    listing = listing_of(REPORT._replace(visible=whose))
    shown = {form: text(listing) for form, text in FORMATS.items() if form != "csv"}
    assert all("runs of" in text for text in shown.values())
    assert not any("\x1b" in text for text in shown.values())


def test_of_waits_that_nobody_knows_nothing_is_said(printed: Printed) -> None:
    total = REPORT.total._replace(waits_known=0, earlier_median_s=None, over_share=2)
    told = as_table(REPORT._replace(total=total, late=ShadowLate(3, 0, 0, 0, 0)))
    titles = told.splitlines()[2].split()
    assert (titles[-1], titles.count("OF"), "EARLIER" in told) == ("GPU-h", 1, False), "OUT OF MEM stays"
    assert "would have changed" not in as_table(REPORT._replace(late=ShadowLate(0, 0, 0, 0, 0)))
    printed("report-shadow", *(line for line in told.splitlines()[2:] if line not in as_table(REPORT)))


@pytest.mark.parametrize(
    ("total", "allocated_gpu_hours"),
    [(REPORT.total, None), (REPORT.total._replace(fitted=0, out_of_memory=0), 100.0)],
)
def test_of_nothing_judged_no_hours_are_freed(total: ShadowPiece, allocated_gpu_hours: float | None) -> None:
    answer = heading(REPORT._replace(total=total, allocated_gpu_hours=allocated_gpu_hours))
    assert ("not known" in answer, "GPU-hours" in answer) == (True, False)


@pytest.mark.parametrize(("out_of_memory", "word"), [(0, "none of 3 "), (1, "1 of 4 ")])
def test_the_first_line_is_the_answer(out_of_memory: int, word: str) -> None:
    answer = heading(REPORT._replace(total=REPORT.total._replace(out_of_memory=out_of_memory)))
    assert ("19.5 of 100 " in answer, "(20 %)" in answer, word in answer) == (True, True, True)


def test_json_and_csv_have_the_figures_unrounded() -> None:
    shown = json.loads(FORMATS["json"](listing_of(REPORT)))
    assert (shown["total"]["judged"], shown["total"]["freed_gpu_hours"]) == (4, 19.5)
    assert shown["pieces"][1]["earlier_median_s"] is None
    why = shown["left"][0]["why"]
    assert why in as_table(REPORT)
    assert shown["left"] == [{"why": why, "runs": 3, "allocated_gpu_hours": None}]
    first, second = csv.DictReader(io.StringIO(FORMATS["csv"](listing_of(REPORT))))
    assert (first["piece"], first["earlier_median_s"], second["earlier_median_s"]) == (SLICE.piece, "-90.0", "")
    assert second["piece"].startswith("'=HYPERLINK"), "a spreadsheet would run it"


# --- the command ---

SITE = """schema = 1
cluster = "c"
slurm_release = "22.05"
default_partition = "gpu"
policy = "shadow"
[[pool]]
name = "m"
nodes = "m[1-2]"
partitions = ["gpu"]
gpu_model = "NVIDIA H100 80GB HBM3"
gpu_mem_mib = 81559
sm_count = 132
[[pool.slice]]
type = "h100_1g.10gb"
profile = "1g.10gb"
mem_mib = 9984
sm_count = 16
quantity = 7
"""
WINDOW = ("--since", "1970-01-01T00:00:00+00:00", "--until", "1970-01-02T00:00:00+00:00")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "site.toml").write_text(SITE)
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    store = stored(tmp_path / "store", [run(), run("2")], busy(900.0, 1800.0, 2700.0, 3600.0))
    store.write_decisions([("ann", decision(shadow=True, would=SLICE.piece))])
    store.write_log("a", {"rows_in": 2, "used": 2, "steps": 0, "rejected": {}})
    return str(tmp_path / "store")


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_is_to_be_had(kept: str, form: str) -> None:
    assert colloc("report", "--shadow", "--store", kept, *WINDOW, "--format", form) == 0
    assert SLICE.piece in colloc.out


def test_what_was_decided_is_told_from_all_runs(kept: str) -> None:
    assert colloc("report", "--shadow", "--store", kept, *WINDOW, "--format=json") == 0
    shown = json.loads(colloc.out)
    assert (shown["runs"], shown["decided"], shown["total"]["fitted"], colloc.err) == (2, 1, 1, "")
    assert (shown["total"]["allocated_gpu_hours"], shown["allocated_gpu_hours"]) == (HOUR / 3600, 2 * HOUR / 3600)


def test_where_nothing_was_decided_it_is_said_what_to_do(kept: str, printed: Printed) -> None:
    (Path(kept) / "decisions.parquet").unlink()
    assert colloc("report", "--shadow", "--store", kept, *WINDOW) == 0
    counts = (line for line in colloc.out.splitlines() if line.startswith("runs with a GPU"))
    printed("report-shadow", colloc.err, *counts)
