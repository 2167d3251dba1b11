# SPDX-License-Identifier: Apache-2.0
"""What tests/gpu/proof.py plans, and what its tables say of rows."""

import shlex
import statistics
from collections import Counter
from typing import Any

import pytest

from slurm_colloc.usage_model import DeviceSample, NodeSample
from tests.gpu import proof_plan, proof_report
from tests.gpu.footprint_job import TEXT, parse
from tests.gpu.proof_plan import (
    ARMS,
    Cell,
    Need,
    Planned,
    cells,
    expected_s,
    fits,
    gpus_for,
    is_ready,
    plan,
    read_trace,
    sample,
    submissions,
)

TRACE = read_trace()
JOB = Planned(0, "t", "light", "python3 train.py --task train", 0.0, 10.0)


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


def test_every_task_is_a_program_that_the_job_knows() -> None:
    jobs = [parse(shlex.split(task.command(1))[2:]) for task in TRACE]
    assert len(TRACE) == 60
    assert {job.task for job in jobs} == {"train"}
    assert {job.model for job in jobs if job.library == "transformers"} <= set(TEXT)
    assert 24 <= sum(job.decode > 0 for job in jobs) <= 36
    two = {task.name: job.batch_size for task, job in zip(TRACE, jobs, strict=True) if task.gpus == 2}
    assert two == {"xlnet_large_cased_2": 2, "xlnet_base_cased_2": 4, "gpt2_large_2": 4}


@pytest.mark.parametrize("round_", range(3))
def test_a_sample_is_like_the_trace(round_: int) -> None:
    drawn = sample(TRACE, 20, "all", round_)
    assert drawn == sample(TRACE, 20, "all", round_)
    assert Counter(task.size for task in drawn) == {"light": 11, "medium": 4, "heavy": 5}
    of_trace = Counter(task.name for task in TRACE)
    assert all(count == of_trace[name] for name, count in Counter(task.name for task in drawn).items())
    jobs = plan(TRACE, 20, "all", round_, 15.0)
    assert 14 < statistics.median(job.steady_s for job in jobs) < 16
    arrivals = [job.arrives_s for job in jobs]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0
    work = sum(task.minutes for task in TRACE) * 60 / (TRACE[-1].submitted_s - TRACE[0].submitted_s) / 4
    assert sum(job.steady_s for job in jobs) / arrivals[-1] == pytest.approx(work)


def test_arms_take_turns_and_none_comes_before_what_it_needs() -> None:
    todo = list(cells("all", range(6), [1.25, 1.6]))
    assert len(todo) == len(set(todo)) == 6 * 8 + 6 * 6
    assert [cell.bound for cell in todo if cell.arm in proof_plan.UNBOUND] == [None] * 12
    firsts = set()
    for number in range(6):
        order = [cell.arm for cell in todo if cell.round == number and cell.bound != 1.6]
        assert sorted(order) == sorted(ARMS)
        assert all(order.index("sbatch") < order.index(arm) for arm in proof_plan.LEARNED)
        firsts.add(order[0])
    assert len(firsts) == 4


def test_what_learned_arms_need_is_there_first() -> None:
    warm, sbatch = Cell("all", 1, "warm", 1.6), Cell("all", 1, "sbatch", None)
    assert not is_ready(warm, [sbatch._replace(round=0)])
    assert is_ready(warm, [sbatch])
    assert is_ready(warm._replace(arm="cold"), [])


def test_a_pack_is_submitted_with_the_last_of_its_program() -> None:
    jobs = [JOB, JOB._replace(number=1, name="u", arrives_s=3.0), JOB._replace(number=2, arrives_s=5.0)]
    alone = [(0.0, [0]), (3.0, [1]), (5.0, [2])]
    assert [(at_s, [job.number for job in own]) for at_s, own in submissions(jobs, packs=False)] == alone
    packed = [(3.0, [1]), (5.0, [0, 2])]
    assert [(at_s, [job.number for job in own]) for at_s, own in submissions(jobs, packs=True)] == packed


def test_a_cell_is_expected_to_take_what_its_arm_took() -> None:
    cell = Cell("all", 1, "cold", 1.25)
    assert expected_s(cell, [JOB] * 3, []) == 3 * 19 + 15
    assert expected_s(cell, [JOB], [{"mix": "all", "arm": "cold", "took_s": 100}]) == pytest.approx(105)


def test_an_expert_goes_by_memory_cores_and_bound() -> None:
    light, heavy = Need(1000, 10, 1), Need(30000, 85, 5)
    assert fits(heavy, [], 80000, 1.25)
    assert fits(light, [heavy], 80000, 1.25)
    assert not fits(heavy, [heavy], 80000, 1.25)
    assert fits(heavy, [heavy], 80000, None)
    assert not fits(heavy, [heavy, heavy], 80000, None)


def test_an_expert_takes_the_least_busy_gpu_and_the_nodes_cores() -> None:
    light, heavy = Need(1000, 10, 1), Need(30000, 85, 5)
    room = 80000, 32, 1.25
    assert gpus_for(heavy, [[light], []], *room) == (1,)
    assert gpus_for(light, [[heavy], [light]], *room) == (1,)
    assert gpus_for(heavy, [[heavy], [heavy]], *room) == ()
    assert gpus_for(light, [[light._replace(cores=5)] * 3 + [light]], 80000, 16, 1.25) == ()
    both = heavy._replace(gpus=2)
    assert gpus_for(both, [[], [light]], *room) == ()
    assert gpus_for(both, [[], []], *room) == (0, 1)
    assert gpus_for(light, [[both], [both]], *room) == ()
    assert gpus_for(light, [[both], [both], []], 80000, 6, 1.25) == (2,)


def test_on_several_gpus_tasks_take_as_many_as_in_the_trace() -> None:
    jobs = plan(TRACE, 60, "all", 0, 15.0, 2)
    two = {job.name: job.command for job in jobs if job.gpus == 2}
    assert len(two) == 3
    assert "--batch-size 4 " in two["xlnet_large_cased_2"]
    assert parse(shlex.split(two["gpt2_large_2"])[2:]).gpus == 2
    span_s = jobs[-1].arrives_s
    assert span_s == pytest.approx(plan(TRACE, 60, "all", 0, 15.0)[-1].arrives_s / 2)


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
