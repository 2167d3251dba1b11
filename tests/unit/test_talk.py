# SPDX-License-Identifier: Apache-2.0
"""The talk's pair and tools: what is recorded of them, and what the pages say of it."""

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu import talk
from tests.gpu.footprints import read_table
from tests.gpu.neighbours import COLUMNS

GPU, DOCS = (Path(__file__).parents[1] / "gpu", Path(__file__).parents[2] / "docs")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    return read_table(GPU / "talk_h200.csv", COLUMNS)


def test_all_was_recorded(rows: list[dict[str, str]]) -> None:
    assert {row["state"] for row in rows} == {"COMPLETED"}
    assert (len(talk.pair_table(rows)), len(talk.loader_table(rows)), len(rows)) == (6, 4, 34)


def test_the_benchmarks_have_the_recorded_rows(rows: list[dict[str, str]]) -> None:
    page = (DOCS / "benchmarks.md").read_text().splitlines()
    assert [line for line in (*talk.pair_table(rows), *talk.loader_table(rows)) if line not in page] == []


def test_what_was_not_measured_is_in_no_table(rows: list[dict[str, str]]) -> None:
    silent = [{**row, "steps_per_s": "", "slowdown": ""} if row["program"] == "training 2" else row for row in rows]
    assert talk.loader_table(silent) == []
    assert talk.pair_table([row for row in rows if row["part"] != talk.IN_TURNS]) == talk.pair_table(rows)[3:]


def cells(page: str, begin: str) -> Iterator[list[str]]:
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith(f"| {begin}"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_reasons_have_the_means_of_the_pair(rows: list[dict[str, str]]) -> None:
    active = [
        statistics.mean(float(row["sm_active_pct"]) for row in rows if (row["part"], row["program"]) == ("alone", name))
        for name in talk.PAIR
    ]
    shown = [*cells("explanation/why.md", "much memory (DLRM"), *cells("explanation/why.md", "the same two |")]
    for how, row in zip((talk.UNDER_MPS, talk.IN_TURNS), shown, strict=True):
        first, second = (list(talk.slowdowns(rows, how, name).values()) for name in talk.PAIR)
        work = statistics.mean(1 / one + 1 / other for one, other in zip(first, second, strict=True))
        assert row[1] == "{:.0f} and {:.0f} %".format(*active)
        assert row[3:5] == [f"{work:.1f}", f"{statistics.mean(first):.2f} and {statistics.mean(second):.2f}"]


def test_one_loader_gains_as_much_as_the_pages_say(rows: list[dict[str, str]]) -> None:
    each, one = (
        [float(line.split("|")[3].replace(",", "")) for line in talk.loader_table(rows) if f"| {part} |" in line]
        for part in (talk.EACH, talk.ONE)
    )
    gain = f"{statistics.mean(one) / statistics.mean(each):.1f} times the images a"
    assert gain in (DOCS / "benchmarks.md").read_text()
    assert gain in (DOCS / "how-to/tensorsocket.md").read_text()


def test_ncu_says_kernels_and_their_time() -> None:
    table = '==PROF== x\n"ID","gpu__time_duration.sum"\n"","us"\n"0","1,012.5"\n"1","3.5"\n'
    assert talk.seen_by_ncu(table) == {"kernels": 2, "kernels_us": 1016.0}
    assert talk.seen_by_ncu("==ERROR== no") == {"kernels": 0, "kernels_us": 0}


def test_profilers_on_a_share_say_what_the_page_says() -> None:
    recorded = read_table(GPU / "talk_profilers_h200.csv", talk.PROFILER_COLUMNS)
    page = " ".join((DOCS / "how-to/profile.md").read_text().split())
    (said,) = {row["said"] for row in recorded if row["said"]}
    assert said.removeprefix("==ERROR== ").partition(" on device")[0] in page
    works = {(row["tool"], row["how"]) for row in recorded if int(row["kernels"])}
    assert works == {("torch.profiler", how) for how in (talk.WHOLE, talk.SHARE, talk.BESIDE)} | {
        ("ncu", talk.WHOLE),
        ("ncu --mps", talk.SHARE),
    }


def test_what_a_pair_alone_differs_by_is_told(rows: list[dict[str, str]]) -> None:
    page = " ".join((DOCS / "benchmarks.md").read_text().split())
    ranges = []
    for name in talk.PAIR:
        alone = talk.slowdowns(rows, talk.ALONE, name).values()
        ranges.append(f"{min(alone):.2f} to {max(alone):.2f} for")
    assert [one for one in ranges if one not in page] == []
    dlrm = talk.slowdowns(rows, talk.ALONE, "dlrm").values()
    assert f"the DLRM alone by {100 * (max(dlrm) / min(dlrm) - 1):.0f} %" in (DOCS / "explanation/why.md").read_text()
