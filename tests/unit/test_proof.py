# SPDX-License-Identifier: Apache-2.0
"""What the tables of tests/gpu/proof.py say of rows."""

import json
import re
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.usage_model import DeviceSample, NodeSample
from tests.gpu import proof_plan, proof_report


def row(arm: str, number: int, began: float, took: float, startup: float = 2.0, **more: Any) -> dict[str, Any]:
    bound = None if arm in proof_plan.UNBOUND else 1.25
    own = {"mix": "all", "round": 0, "arm": arm, "bound": bound, "number": number, "command": f"c{number}"}
    own |= {
        "task": "t",
        "arrives_s": 0.0,
        "began_s": began,
        "first_s": began + startup,
        "ended_s": began + startup + took,
    }
    own |= {"state": "COMPLETED", "runs": 1, "given": "", "promised": None, "why": "", "cpus": 8}
    return own | more


def test_a_program_says_when_it_ended() -> None:
    said = '{"began_s": 1.0, "first_s": 2.0, "ended_s": 3.0, "steps": 4}'
    assert proof_report.ended(f"x\n{said}\n")["ended_s"] == 3.0
    assert proof_report.ended('{"began_s": 1') == {}
    assert proof_report.state({}, "torch.OutOfMemoryError: CUDA out of memory.") == "GPU_OOM"
    assert proof_report.state({}, "Killed") == "LOST"


def test_the_clock_stands_while_jobs_only_start() -> None:
    rows = [row("sbatch", 0, 0.0, 10.0), row("sbatch", 1, 12.0, 10.0), row("sbatch", 2, 13.0, 5.0)]
    assert proof_report.only_starting(rows) == [(0.0, 2.0), (12.0, 13.0), (13.0, 14.0)]
    moved = proof_report.without_startup(rows)
    assert [one["ended_s"] for one in moved] == [10.0, 20.0, 16.0]
    assert proof_report.times(rows)["makespan_s"] == 24.0
    assert proof_report.times(moved)["makespan_s"] == 20.0


def test_times_of_jobs_that_did_not_end_are_not_counted() -> None:
    lost = row("warm", 1, 0.0, 1.0) | {"began_s": None, "first_s": None, "ended_s": None, "state": "LOST"}
    assert proof_report.times([row("warm", 0, 3.0, 10.0), lost])["wait_mean_s"] == 3.0
    assert proof_report.times([lost])["makespan_s"] is None
    assert proof_report.harm(proof_report.slowdowns([lost]))["per_100_jobs"] == 100


def test_a_promise_is_broken_by_more_than_was_promised() -> None:
    rows = [row("sbatch", number, 0.0, 10.0) for number in range(3)]
    rows += [row("warm", 0, 0.0, 13.0, given="mps:30"), row("warm", 1, 0.0, 13.0, given="mps:30", promised=1.4)]
    rows += [row("warm", 2, 0.0, 13.0, given="as asked")]
    known = proof_report.slowdowns(rows)
    assert [one["slowdown"] for one in known] == [None] * 3 + [1.3] * 3
    assert [proof_report.is_broken(one) for one in known] == [False, False, False, True, False, False]
    found = proof_report.harm(known[3:])
    assert (found["on_shares"], found["broken"]) == (2, 1)
    assert found["chance"] == pytest.approx(1 - 0.98**2)


def test_what_was_decided_last_counts(tmp_path: Path) -> None:
    for at_s, given in ((2.0, "mps:11"), (1.0, "as asked")):
        (tmp_path / "ann").mkdir(exist_ok=True)
        (tmp_path / f"ann/{at_s}-7.json").write_text(json.dumps({"job_id": "7", "at_s": at_s, "given": given}))
    assert proof_report.decision(tmp_path, "7")["given"] == "mps:11"
    assert proof_report.decision(tmp_path, "8") == {}


def test_a_gpus_activity_is_weighted_by_time() -> None:
    device = DeviceSample("u", 0, "m", "", 80000, 132, 132, True, 50.0, None, 10.0, None, None, None, 900, 100.0, 7.0)

    def seen(at_s: float, took_s: float, sm: float | None) -> NodeSample:
        return NodeSample(at_s, took_s, "n1", "b", (device._replace(sm_active_pct=sm),), (), (), ())

    found = proof_report.activity([seen(1, 1, 99.0), seen(3, 2, 10.0), seen(4, 1, 40.0), seen(9, 1, None)], 1.5, 9.5)
    assert (found["sm_active_pct"], found["energy_j"], found["gpu_mem_peak_mib"]) == (20.0, 21.0, 900)
    assert found["dram_active_pct"] is None
    assert proof_report.activity([], 0, 1)["energy_j"] is None


def test_tables_are_made_of_what_is_there() -> None:
    assert list(proof_report.tables([], []))
    rows = [row("sbatch", 0, 0.0, 10.0), row("warm", 0, 0.0, 8.0, given="mps:30"), row("expert", 0, 0.0, 4.0)]
    done = [{"mix": "all", "round": 0, "arm": "warm", "bound": 1.25, "energy_j": 5.0, "pending": {"Resources": 3}}]
    text = "\n".join(proof_report.tables(rows, done))
    assert "| warm 1.25 | 1 | 0.833 | 1.67 |" in text
    assert "Resources 3" in text


def test_sweeps_are_loops_over_seeds_that_all_name_their_cores() -> None:
    one = proof_plan.plan(proof_plan.read_trace(), 0, "sweep", 1, 8.0)
    assert {job.command for job in one} == {one[0].command}
    assert [job.seed for job in one] == [*range(20)]
    assert one[0].with_steps(2.0).endswith(" --seed $1 --steps 20")
    assert {job.size for job in one} == {"light"}
    several = proof_plan.plan(proof_plan.read_trace(), 0, "siblings", 0, 4.0)
    assert len({job.command for job in several}) == 5
    assert [job.seed for job in several] == [*range(5)] * 5
    assert [job.arrives_s for job in several] == [0.5 * number for number in range(25)]
    texts = [proof_plan.script(job.name, job.command, 4.0) for job in (*one, *several)]
    assert all("#SBATCH -c " in text for text in texts)


def test_some_programs_of_a_mix_keep_their_numbers() -> None:
    planned = proof_plan.plan(proof_plan.read_trace(), 16, "siblings", 0, 8.0)
    some = proof_plan.of_programs(planned, ["1", "3"])
    assert [one.number for one in some] == [*range(5, 10), *range(15, 20)]
    assert [one.arrives_s for one in some[:2]] == [0.0, 0.5]
    assert proof_plan.of_programs(planned, []) == planned


def test_the_page_tells_what_the_sweeps_rows_hold() -> None:
    """Each call beside its own whole jobs: the processors of the three were unlike."""
    checkout = Path(proof_plan.__file__).parents[2]
    folder, page = checkout / "tests/gpu/proof_siblings_h200", (checkout / "docs/benchmarks.md").read_text()
    rows = proof_report.read(folder / "rows.jsonl")
    by_arm = {arm: [one for one in rows if one["arm"] == arm] for arm in ("sbatch", "late")}
    spans = {arm: proof_report.times(of_arm)["makespan_s"] or 0.0 for arm, of_arm in by_arm.items()}
    assert f"| {spans['sbatch']:.0f} s | {spans['late']:.0f} s |" in page
    harmed = proof_report.harm([one for one in proof_report.slowdowns(rows) if one["arm"] == "late"])
    assert f"**{harmed['broken']} of {harmed['on_shares']} on shares**" in page
    assert f"{harmed['slowdown_worst']:.2f} times as long" in page
    pairs = list(pairwise(by_arm["sbatch"]))
    gap_s = statistics.median(after["began_s"] - before["ended_s"] for before, after in pairs)
    before = [one for one in by_arm["late"] if 5 <= one["number"] < 20]
    columns = [beside_own(of_call, gap_s) for of_call in (before, proof_report.read(folder / "mended/rows.jsonl"))]
    for old, new in zip(*columns, strict=True):
        assert re.search(rf"\| {re.escape(old)} \| \**{re.escape(new)}\** \|", page), (old, new)


def beside_own(rows: list[dict[str, Any]], gap_s: float) -> list[str]:
    """Return how many jobs had shares, how many of these were slow, the slowest, span, that of whole jobs, ratio."""
    whole = [one for one in rows if one["given"] == "as asked"]
    names = dict.fromkeys(one["name"] for one in rows)

    def median_s(name: str, since: str) -> float:
        return float(statistics.median(one["ended_s"] - one[since] for one in whole if one["name"] == name))

    slow = [(one["ended_s"] - one["first_s"]) / median_s(one["name"], "first_s") for one in rows if one not in whole]
    span_s = max(one["ended_s"] for one in rows) - min(one["began_s"] for one in rows)
    alone_s = sum(5 * (median_s(name, "began_s") + gap_s) for name in names) - gap_s
    counts = [str(len(slow)), str(sum(one > 1.25 for one in slow)), f"{max(slow):.2f}"]
    return [*counts, f"{span_s:.0f} s", f"{alone_s:.0f} s", f"{span_s / alone_s:.2f}"]


def test_the_median_that_the_pages_tell_is_that_of_all_rounds() -> None:
    checkout = Path(proof_plan.__file__).parents[2]
    known: list[float] = []
    others: list[float] = []
    for file in sorted((checkout / "tests/gpu").glob("proof_*/rows.jsonl")):
        by_cell: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for one in proof_report.read(file):
            by_cell.setdefault((one["mix"], one["round"], one["arm"], one["bound"]), []).append(one)
        for (mix, number, arm, _), rows in by_cell.items():
            if arm not in ("sbatch", *proof_plan.BY_HAND):
                pair = (rows, by_cell[mix, number, "sbatch", None])
                spans = [proof_report.times(proof_report.without_startup(one))["makespan_s"] for one in pair]
                (known if arm.startswith("warm") else others).append(100 * (spans[0] or 0.0) / (spans[1] or 1.0))
    page = (checkout / "docs/benchmarks.md").read_text()
    every = f"{statistics.median(known + others):.0f} %"
    assert f"**{every} is the median of all {len(known + others)} rounds of the next table**" in page
    assert f"{len(known)} with programs that csub knew ({statistics.median(known):.0f} %)" in page
    readme = (checkout / "README.md").read_text()
    assert f"[median of all {len(known + others)} rounds](docs/benchmarks.md#" in readme
    assert f"is {every}." in readme
