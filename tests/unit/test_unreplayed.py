# SPDX-License-Identifier: Apache-2.0
"""Hours that jobs waited longer than their replay: at a limit, beside free GPUs, or for the GPUs of others."""

from __future__ import annotations

import pytest

from slurm_colloc.plan.model import Job, NodeKind, Shape, Site
from slurm_colloc.plan.past import ONE, Past, Run
from slurm_colloc.plan.unreplayed import Unreplayed, unreplayed
from slurm_colloc.slurm.limits import Cap

HOUR = 3600.0
SITE = Site((NodeKind("n1", ("gpu",), (("h100", 4),), 64, 1_000_000),))


def run(number: int, submit_h: float, start_h: float, end_h: float, gpus: int = 2, user: str = "ann") -> Run:
    shape = Shape("h100", gpus, 1, 1)
    job = Job(number, submit_h * HOUR, (end_h - start_h) * HOUR, HOUR, user, "lab", "gpu", "normal", shape)
    return Run(job, (start_h - submit_h) * HOUR, f"gpu:h100:{gpus}", ONE, True, None)


def hours(*runs: Run, caps: tuple[Cap, ...] | None = (), replayed_h: float = 0.0) -> Unreplayed | None:
    past = Past(runs, {}, 0.0, 100 * HOUR)
    return unreplayed(past, SITE, {one.job.number: replayed_h * HOUR for one in runs}, caps)


# ann has two of four GPUs for ten hours; her next job begins after them.
HELD = run(1, 0, 0, 10), run(2, 1, 10, 12)


def test_a_job_beside_free_gpus_waited_for_something_else() -> None:
    assert hours(*HELD) == Unreplayed(9.0, 0.0, 9.0)


def test_what_the_replay_has_it_wait_is_none_of_them() -> None:
    assert hours(*HELD, replayed_h=4.0) == Unreplayed(5.0, 0.0, 5.0)
    assert hours(*HELD, replayed_h=9.0) == Unreplayed(0.0, 0.0, 0.0)


def test_hours_for_gpus_of_others_are_not_beside_free_ones() -> None:
    assert hours(*HELD, run(3, 0, 0, 7, user="bob")) == Unreplayed(9.0, 0.0, 3.0)


@pytest.mark.parametrize(
    ("cap", "at_limit_hours"),
    [
        (Cap("QOS 'normal'", "MaxTRESPerUser", {"gres/gpu": 3}), 9.0),
        (Cap("QOS 'normal'", "MaxTRESPerUser", {"gres/gpu": 4}), 0.0),
        (Cap("QOS 'normal'", "GrpTRES", {"gres/gpu": 3}), 9.0),
        (Cap("QOS 'normal'", "MaxTRESPerAccount", {"gres/gpu": 2}), 9.0),
        (Cap("QOS 'other'", "MaxTRESPerUser", {"gres/gpu": 3}), 0.0),
        (Cap("account 'lab'", "GrpTRES", {"gres/gpu": 3}), 9.0),
        (Cap("user 'ann' in account 'lab'", "GrpTRES", {"gres/gpu": 3}), 9.0),
        (Cap("user 'bob' in account 'lab'", "GrpTRES", {"gres/gpu": 1}), 0.0),
        (Cap("QOS 'normal'", "MaxTRESPerUser", {"cpu": 1}), 0.0),
    ],
)
def test_hours_at_a_limit_are_those_in_which_the_job_would_have_passed_it(cap: Cap, at_limit_hours: float) -> None:
    found = hours(*HELD, caps=(cap,))
    assert found is not None
    assert found.at_limit_hours == at_limit_hours


def test_limits_that_are_not_known_and_shares_of_gpus_are_unknown() -> None:
    assert hours(*HELD, caps=None) == Unreplayed(9.0, None, 9.0)
    share = HELD[0]._replace(job=HELD[0].job._replace(shape=Shape("mps", 50, 1, 1)))
    assert hours(share, HELD[1]) is None
