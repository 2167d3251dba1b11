# SPDX-License-Identifier: Apache-2.0
"""What a piece of a GPU did to a job, and when the job gets no piece for it."""

from typing import Any

import pytest

from slurm_colloc.core.model import GPU_OOM, Evidence, because
from slurm_colloc.estimate.harm import Harm, harm_of, why_whole
from slurm_colloc.placement.choose import place
from tests.unit.made import MIG_POOL, evidence, footprint, request, site


def whole(number: int, elapsed_s: float = 1000.0, **fields: Any) -> Evidence:
    return evidence(str(number), mode="exclusive", elapsed_s=elapsed_s, ended_s=float(number), **fields)


def piece(number: int, elapsed_s: float | None = 1000.0, mode: str = "mig", **fields: Any) -> Evidence:
    return evidence(str(number), mode=mode, elapsed_s=elapsed_s, ended_s=float(number), **fields)


@pytest.mark.parametrize(
    ("runs", "harm"),
    [
        ([whole(1), piece(2, 1250.0)], Harm.NONE),
        ([whole(1), piece(2, 1251.0)], Harm.SLOWER),
        ([whole(1), whole(2, 1200.0), piece(3, 1500.0)], Harm.NONE),
        ([whole(1, gpu_model="another"), piece(2, 9000.0)], None),
        ([whole(1, state="FAILED"), piece(2, 9000.0)], None),
        ([whole(1, 59.0), piece(2, 600.0)], None),
        ([whole(1), piece(2, None)], None),
        ([piece(2, 9000.0)], None),
        ([piece(2, state=GPU_OOM)], Harm.OUT_OF_MEMORY),
        ([whole(1), piece(2, state="TIMEOUT")], Harm.TIME_LIMIT),
        ([whole(1), whole(2, state="TIMEOUT"), piece(3, state="TIMEOUT")], Harm.NONE),
        ([piece(2, state="TIMEOUT")], None),
        ([whole(1), piece(2, state="FAILED")], Harm.FAILED),
        ([whole(1), whole(2, state="FAILED"), piece(3, state="FAILED")], Harm.NONE),
        ([whole(1), piece(2, state="CANCELLED")], None),
        ([whole(1), piece(2, state="OUT_OF_MEMORY")], Harm.HOST_MEMORY),
        ([whole(1), whole(2, state="OUT_OF_MEMORY"), piece(3, state="OUT_OF_MEMORY")], Harm.NONE),
        ([piece(2, state="NODE_FAIL")], Harm.LOST),
        ([whole(1, gpu_model=""), piece(2, 9000.0, gpu_model="")], None),
        ([whole(1), piece(2, 9000.0, mode="mps")], Harm.SLOWER),
    ],
)
def test_what_came_of_a_run_on_a_piece(runs: list[Evidence], harm: Harm | None) -> None:
    *others, last = runs
    assert harm_of(last, others, 1.25) is harm


def test_runs_on_whole_gpus_and_what_stands_for_several_are_not_judged() -> None:
    assert not why_whole([whole(1, state=GPU_OOM), piece(2, state=GPU_OOM, run_count=4)], 1.25)


def test_a_harmed_job_is_measured_again_once_for_each_harm() -> None:
    runs = [whole(1), piece(2, state=GPU_OOM)]
    assert why_whole(runs, 1.25) == because("harmed", job_id="2", harm="out_of_memory", runs=1)
    runs.append(whole(3))
    assert not why_whole(runs, 1.25)
    runs.append(piece(4, 9000.0))
    twice = because("harmed", job_id="4", harm="slower", runs=2)
    assert why_whole([*runs, whole(5, sample_count=2), whole(6, state="FAILED")], 1.25) == twice
    assert why_whole([*runs, whole(5)], 1.25) == because("harmed", job_id="4", harm="slower", runs=1)
    assert not why_whole([*runs, whole(5), whole(6)], 1.25)


def test_a_run_that_was_lost_with_its_node_keeps_its_job_from_no_piece() -> None:
    assert not why_whole([whole(1), piece(2, state="NODE_FAIL")], 1.25)
    why = why_whole([whole(1), piece(2, state="OUT_OF_MEMORY")], 1.25)
    assert why == because("harmed", job_id="2", harm="host_memory", runs=1)


def test_a_harmed_job_gets_no_piece_that_would_hold_it() -> None:
    fits, config = footprint(9000.0, 10.0), site(MIG_POOL)
    assert not place(request(), fits, config).as_asked
    harmed = because("harmed", job_id="2", harm="failed", runs=1)
    placed = place(request(), fits._replace(keep_whole=harmed), config)
    assert (placed.as_asked, placed.reasons) == (True, (harmed,))
