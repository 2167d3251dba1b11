# SPDX-License-Identifier: Apache-2.0
"""The replay of a queue: order, backfill, pieces of GPUs, and that nothing is given twice."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.plan.model import Job, NodeKind, Priority, Replayed, Scheduler, Shape, Site
from slurm_colloc.plan.nodes import chosen
from slurm_colloc.plan.priority import Ordering
from slurm_colloc.plan.replay import replay

QUICK = Scheduler(bf_interval_s=1, bf_resolution_s=1, batch_sched_delay_s=0)
FIFO = Priority(age=1.0)
HOUR = 3600.0


def node(gpus: int = 2, **fields: Any) -> NodeKind:
    return NodeKind("n", ("gpu",), (("h100", gpus),), 64, 1000)._replace(**fields)


def job(number: int, submit_s: float = 0.0, run_s: float = 10.0, gpus: int = 1, **fields: Any) -> Job:
    shape = fields.pop("shape", Shape("h100", gpus, 1, 1))
    plain = Job(number, submit_s, run_s, run_s, "ann", "lab", "gpu", "normal", shape)
    return plain._replace(**fields)


def starts(*jobs: Job, site: Site | None = None) -> dict[int, float]:
    done = replay(site or Site((node(),), QUICK, FIFO), jobs)
    return {one.job.number: one.start_s for one in done.started}


def test_a_job_starts_when_enough_is_free() -> None:
    assert starts(job(1, run_s=10, gpus=2), job(2, submit_s=1, run_s=5)) == {1: 0, 2: 10}


def test_backfill_lets_by_who_is_over_in_time() -> None:
    """The second needs both GPUs at 10 s: who is over before may have the free one, a longer one not."""
    short, long = job(3, submit_s=2, run_s=7, limit_s=7), job(4, submit_s=2, run_s=5, limit_s=8)
    assert starts(job(1, run_s=10), job(2, submit_s=1, gpus=2), short, long) == {1: 0, 2: 10, 3: 2, 4: 20}


def test_backfill_goes_by_limits_not_by_what_happens() -> None:
    early = job(1, run_s=4, limit_s=20)
    assert starts(early, job(2, submit_s=1, gpus=2), job(3, submit_s=2, run_s=15, limit_s=15)) == {1: 0, 2: 17, 3: 2}


def test_without_backfill_nobody_gets_by() -> None:
    site = Site((node(),), QUICK._replace(backfill=False), FIFO)
    jobs = (job(1, run_s=10), job(2, submit_s=1, gpus=2), job(3, submit_s=2, run_s=8))
    assert starts(*jobs, site=site) == {1: 0, 2: 10, 3: 20}


def test_backfill_looks_at_so_many_jobs() -> None:
    jobs = [job(1, run_s=10), *(job(n, submit_s=1, gpus=2) for n in (2, 3)), job(4, submit_s=2, run_s=5)]
    deep, shallow = (Site((node(),), QUICK._replace(bf_max_job_test=most), FIFO) for most in (3, 2))
    assert starts(*jobs, site=deep)[4] == 2
    assert starts(*jobs, site=shallow)[4] > 2


def test_backfill_comes_round_each_interval() -> None:
    site = Site((node(),), QUICK._replace(bf_interval_s=30), FIFO)
    jobs = (job(1, run_s=100), job(2, submit_s=1, gpus=2), job(3, submit_s=2, run_s=8))
    assert starts(*jobs, site=site)[3] == 30


def test_a_node_is_kept_as_a_whole() -> None:
    """As Slurm does: of a node that is kept for a job of three GPUs the fourth is free for nobody who is longer."""
    site = Site((node(4),), QUICK, FIFO)
    jobs = (job(1, run_s=10, gpus=2), job(2, submit_s=1, gpus=3), job(3, submit_s=2, run_s=30))
    assert starts(*jobs, site=site) == {1: 0, 2: 10, 3: 10}


@pytest.mark.parametrize(
    ("shape", "limits"),
    [
        (Shape("h100", 1, 40, 1), {"cores": 1.0}),
        (Shape("h100", 1, 1, 600), {"memory": 1.0}),
        (Shape("h100", 2, 1, 1), {"GPUs": 1.0}),
    ],
)
def test_what_is_lacking_is_told(shape: Shape, limits: dict[str, float]) -> None:
    done = replay(Site((node(),), QUICK, FIFO), [job(1, shape=shape), job(2, submit_s=1, shape=shape)])
    assert [one.start_s for one in done.started] == [0, 10]
    assert done.limits == limits


def test_what_no_node_holds_never_starts() -> None:
    done = replay(Site((node(),), QUICK, FIFO), [job(1, gpus=3), job(2), job(3, partition="other")])
    assert [one.number for one in done.never] == [1, 3]
    assert [one.job.number for one in done.started] == [2]


def test_several_nodes_are_taken_together() -> None:
    site = Site((node(), node()), QUICK, FIFO)
    two = job(2, submit_s=1, shape=Shape("h100", 1, 1, 1, nodes=2))
    assert starts(job(1, run_s=10, gpus=2), two, site=site) == {1: 0, 2: 10}


@pytest.mark.parametrize(
    ("usable", "wanted", "nodes"),
    [
        ([0, 1, 2], 1, (0,)),
        ([0, 1, 3], 1, (3,)),
        ([0, 1, 3, 4, 5], 2, (0, 1)),
        ([0, 2, 3, 5], 3, (2, 3, 0)),
    ],
)
def test_the_shortest_row_of_neighbours_comes_first(usable: list[int], wanted: int, nodes: tuple[int, ...]) -> None:
    assert chosen(usable, wanted) == nodes


def test_ends_are_looked_at_together() -> None:
    """As in Slurm: a job is expected at the last end of those within 30 s, and short ones may go first."""
    jobs = (job(1, run_s=10), job(2, run_s=25), job(3, submit_s=1, gpus=2), job(4, submit_s=2, run_s=20))
    assert starts(*jobs, site=Site((node(3),), QUICK, FIFO)) == {1: 0, 2: 0, 3: 22, 4: 2}


def test_what_is_submitted_is_looked_at_each_few_seconds() -> None:
    site = Site((node(4),), QUICK._replace(batch_sched_delay_s=3, backfill=False), FIFO)
    assert starts(*(job(n, submit_s=n) for n in (1, 2, 5)), site=site) == {1: 1, 2: 4, 5: 7}


def test_a_job_that_waits_keeps_its_nodes_from_other_partitions() -> None:
    two = node(partitions=("gpu", "short"))
    jobs = (job(1, run_s=10), job(2, submit_s=1, gpus=2), job(3, submit_s=2, run_s=4, partition="short"))
    site = Site((two,), QUICK._replace(backfill=False), FIFO)
    assert starts(*jobs, site=site) == {1: 0, 2: 10, 3: 20}


def test_slices_are_kinds_of_their_own() -> None:
    site = Site((node(gres=(("h100", 1), ("h100_1g.10gb", 2))),), QUICK, FIFO)
    part = Shape("h100_1g.10gb", 1, 1, 1)
    jobs = (job(1), job(2, shape=part), job(3, shape=part), job(4, submit_s=1, shape=part))
    assert starts(*jobs, site=site) == {1: 0, 2: 0, 3: 0, 4: 10}


def test_shares_are_of_one_gpu_and_keep_it_from_whole_jobs() -> None:
    site = Site((node(shared_kind="h100", shares=(("mps", 100),)),), QUICK, FIFO)
    share = Shape("mps", 60, 1, 1)
    jobs = (
        job(1, shape=share),
        job(2, shape=share),
        job(3, submit_s=1),
        job(4, submit_s=2, run_s=3, shape=share._replace(units=40)),
    )
    assert starts(*jobs, site=site) == {1: 0, 2: 0, 3: 10, 4: 2}


def test_a_share_is_of_the_fullest_gpu_that_has_enough_so_that_whole_ones_stay_free() -> None:
    site = Site((node(3, shared_kind="h100", shares=(("mps", 100),)),), QUICK, FIFO)
    shares = [
        job(number, submit_s, shape=Shape("mps", units, 1, 1))
        for number, submit_s, units in ((1, 0, 60), (2, 0, 50), (3, 1, 30), (4, 2, 50))
    ]
    assert starts(*shares, job(5, submit_s=3), site=site) == {1: 0, 2: 0, 3: 1, 4: 2, 5: 3}


def test_a_gpu_that_shares_of_one_kind_had_is_free_for_another_kind() -> None:
    site = Site((node(1, shared_kind="h100", shares=(("mps", 100), ("shard", 10))),), QUICK, FIFO)
    jobs = (job(1, shape=Shape("shard", 1, 1, 1)), job(2, submit_s=1, shape=Shape("mps", 50, 1, 1)))
    assert starts(*jobs, site=site) == {1: 0, 2: 10}


def test_a_job_is_over_at_its_limit() -> None:
    done = replay(Site((node(),), QUICK, FIFO), [job(1, run_s=50, limit_s=20)])
    assert done.started[0].end_s == 20


def test_so_many_tasks_of_an_array_run_at_once() -> None:
    """One that has to wait for another of its array is in no queue: it lets by who comes later, and waits from then."""
    site = Site((node(3),), QUICK, FIFO)
    tasks = [job(n, array="a", at_once=2) for n in (1, 2, 3, 4)]
    done = replay(site, [*tasks, job(5, submit_s=1, gpus=1), job(6, submit_s=2, gpus=3, run_s=5)])
    assert {one.job.number: one.start_s for one in done.started} == {1: 0, 2: 0, 5: 1, 6: 11, 3: 16, 4: 16}
    assert [one.wait_s for one in sorted(done.started)] == [0, 0, 6, 6, 0, 9]
    alone = replay(Site((node(1),), QUICK, FIFO), [job(n, array="a", at_once=2) for n in range(9)])
    assert [one.start_s for one in alone.started] == [10 * n for n in range(9)]


def test_larger_jobs_first_by_size() -> None:
    site = Site((node(),), QUICK, Priority(size=1000.0))
    jobs = (job(1, gpus=2), job(2, submit_s=1), job(3, submit_s=2, shape=Shape("h100", 2, 8, 1)))
    assert starts(*jobs, site=site) == {1: 0, 3: 10, 2: 20}
    small = site._replace(priority=Priority(size=1000.0, favor_small=True))
    assert starts(*jobs, site=small) == {1: 0, 2: 10, 3: 20}


def test_who_used_less_comes_first() -> None:
    rules = Priority(fair_share=1000.0, age=1.0, calc_period_s=5.0)
    jobs = (
        job(1, run_s=20, gpus=2),
        job(2, submit_s=6, gpus=2),
        job(3, submit_s=7, gpus=2, user="bob", account="other"),
    )
    assert starts(*jobs, site=Site((node(),), QUICK, rules)) == {1: 0, 3: 20, 2: 30}


def test_the_fair_tree_ranks_accounts_before_users() -> None:
    """A heavy user of a light account stands before a light user of a heavy account; equals share a rank."""
    made = [
        job(1, user="a", account="heavy"),
        job(2, user="b", account="heavy"),
        job(3, user="c", account="light"),
        job(4, user="d", account="light"),
    ]
    rules = Priority(fair_share=1.0, calc_period_s=10, half_life_s=0)
    ordering = Ordering(rules, made, 1, 64)
    assert {ordering.of(one, 0.0) for one in made} == {0.8}
    assert ordering.due(0.0)
    for one, cpus in zip(made, (90, 1, 20, 5), strict=True):
        ordering.uses(one._replace(shape=Shape("h100", 1, cpus, 1)), 0.0, begins=True)
    assert not ordering.due(9.0)
    assert ordering.due(10.0)
    assert [ordering.of(one, 10.0) for one in made] == [0.2, 0.4, 0.6, 0.8]


@st.composite
def _queues(draw: st.DrawFn) -> tuple[Site, list[Job]]:
    kinds = (("h100", 4), ("slice", 3))
    nodes = tuple(
        NodeKind(f"n{n}", ("gpu",), kinds, 16, 100, "h100", (("mps", 10),)) for n in range(draw(st.integers(1, 3)))
    )
    rng = random.Random(draw(st.integers(0, 10_000)))
    jobs = []
    for number in range(draw(st.integers(1, 60))):
        kind, most = rng.choice((("h100", 4), ("slice", 2), ("mps", 10)))
        shape = Shape(kind, rng.randint(1, most), rng.randint(1, 8), rng.randint(1, 60))
        run_s = rng.randint(1, 50)
        limit_s = float(run_s + rng.randint(0, 40))
        jobs.append(job(number, rng.randint(0, 100), run_s, shape=shape, limit_s=limit_s, user=rng.choice("abc")))
    return Site(nodes, QUICK, Priority(age=10.0, fair_share=100.0, calc_period_s=20.0)), jobs


@settings(max_examples=60, deadline=None)
@given(_queues())
def test_nothing_is_given_twice(queue: tuple[Site, list[Job]]) -> None:
    site, jobs = queue
    done = replay(site, jobs)
    assert sorted(one.job.number for one in done.started) == list(range(len(jobs)))
    for one in done.started:
        assert one.start_s >= one.job.submit_s
        assert one.end_s == one.start_s + one.job.run_s
        _check_node(site, done, one.node, one.start_s)


def _check_node(site: Site, done: Replayed, index: int, at_s: float) -> None:
    on = [o.job.shape for o in done.started if o.node == index and o.start_s <= at_s < o.end_s]
    kind = site.nodes[index]
    assert sum(shape.cpus for shape in on) <= kind.cpus
    assert sum(shape.mem_mib for shape in on) <= kind.mem_mib
    assert sum(shape.units for shape in on if shape.kind == "slice") <= 3
    shared = -(-sum(shape.units for shape in on if shape.kind == "mps") // 10)
    assert sum(shape.units for shape in on if shape.kind == "h100") + shared <= 4


ONE_USER = Site((node(2), node(2)), QUICK, FIFO, frozenset({"gpu"}))


def test_a_node_of_one_user_takes_no_other() -> None:
    """ExclusiveUser: ann's jobs fill one node by and by, bob waits for a node without her."""
    jobs = [job(1, run_s=10), job(2, run_s=20), job(3, submit_s=1, run_s=5, user="bob")]
    jobs += [job(4, submit_s=2, run_s=5, user="cid"), job(5, submit_s=3, run_s=1)]
    assert starts(*jobs, site=ONE_USER) == {1: 0, 2: 0, 3: 1, 4: 6, 5: 10}
    assert starts(*jobs, site=ONE_USER._replace(one_user=frozenset())) == {1: 0, 2: 0, 3: 1, 4: 2, 5: 6}


def test_a_node_of_one_user_is_kept_from_other_partitions() -> None:
    """A job of a partition without ExclusiveUser keeps a node from who must have it alone, and is kept from it."""
    both = Site((node(2, partitions=("gpu", "open")),), QUICK, FIFO, frozenset({"gpu"}))
    other = job(2, submit_s=1, run_s=5, user="bob", partition="open")
    assert starts(job(1, run_s=10), other, site=both) == {1: 0, 2: 10}
    assert starts(other._replace(submit_s=0.0), job(3, submit_s=1), site=both) == {2: 0, 3: 5}


def test_backfill_passes_nodes_of_another_user() -> None:
    """bob's job is over before ann's second, of two GPUs, could begin; but the free GPU is on her node."""
    jobs = [job(1, run_s=10), job(2, submit_s=1, gpus=2), job(3, submit_s=2, run_s=5, user="bob")]
    assert starts(*jobs, site=ONE_USER._replace(nodes=(node(2),))) == {1: 0, 2: 10, 3: 20}
