# SPDX-License-Identifier: Apache-2.0
import heapq
import math
import time
from collections import Counter, deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.core.model import Load, Room
from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.spec import Task
from slurm_colloc.pack.starts_and_retries import Queue, Start
from tests.rings import tenth

RUN_AGAIN = (Outcome.GPU_OOM, Outcome.GPU_FAULT, Outcome.LOST, Outcome.NOT_SHARING)
ROOM = Room(1000, 120.0, 4)
LOAD = Load(250, 20.0)


def tasks(count: int) -> list[Task]:
    return [Task(number) for number in range(1, count + 1)]


def queue(count: int, load: Load = LOAD, room: Room = ROOM, retries: int = 2) -> Queue:
    return Queue(tasks(count), load, room, retries)


def numbers(starts: Sequence[Start]) -> list[int]:
    return [start.task.number for start in starts]


def test_tasks_start_in_their_order_as_room_becomes_free() -> None:
    work = queue(6)
    assert work.ready() == [Start(task, 1, LOAD) for task in tasks(4)]
    assert work.ready() == []
    assert work.finished is False
    assert work.ended(3, Outcome.DONE) is False
    assert numbers(work.ready()) == [5]
    for number in (1, 2):
        assert work.ended(number, Outcome.FAILED) is False
    assert numbers(work.ready()) == [6]
    for number in (4, 5, 6):
        work.ended(number, Outcome.DONE)
    assert (work.finished, work.ready()) == (True, [])


@pytest.mark.parametrize(
    ("load", "room", "at_once"),
    [
        (Load(251, 1.0), ROOM, 3),
        (Load(1, 40.0), ROOM, 3),
        (Load(1, 0.1), Room(1000, 0.3, 9), 3),
        (Load(1, 1.0), ROOM, 4),
        (Load(1, 1.0), Room(1000, 120.0, 1), 1),
        # Larger than the room: alone.
        (Load(5000, 1.0), ROOM, 1),
        (Load(1000, 1.0), ROOM, 1),
        (Load(1, 130.0), ROOM, 1),
        (Load(0, 0.0), Room(0, 0.0, 9), 1),
    ],
)
def test_memory_sms_and_number_bound_what_runs(load: Load, room: Room, at_once: int) -> None:
    assert len(queue(10, load, room).ready()) == at_once


def test_one_that_found_no_memory_runs_again_behind_the_others_with_twice_as_much() -> None:
    work = queue(5)
    work.ready()
    assert work.ended(1, Outcome.GPU_OOM) is True
    assert numbers(work.ready()) == [5]
    work.ended(2, Outcome.DONE)
    # 500 MiB are not free before one more ends.
    assert work.ready() == []
    work.ended(3, Outcome.DONE)
    assert work.ready() == [Start(Task(1), 2, Load(500, 20.0))]
    assert work.ended(1, Outcome.GPU_OOM) is True
    assert work.ready() == []
    work.ended(4, Outcome.DONE)
    work.ended(5, Outcome.DONE)
    assert work.ready() == [Start(Task(1), 3, Load(1000, 20.0), alone=True)]
    assert work.ended(1, Outcome.GPU_OOM) is False
    assert work.finished


def test_one_that_had_all_the_memory_is_not_run_again() -> None:
    work = queue(1, Load(600, 20.0), retries=9)
    work.ready()
    assert work.ended(1, Outcome.GPU_OOM) is True
    assert work.ready() == [Start(Task(1), 2, Load(1000, 20.0), alone=True)]
    assert work.ended(1, Outcome.GPU_OOM) is False


def test_those_that_lost_their_daemon_run_again_beside_others_and_at_last_alone() -> None:
    work = queue(4, retries=2)
    work.ready()
    assert [work.ended(number, Outcome.LOST) for number in (1, 2, 3, 4)] == [True] * 4
    assert work.ready() == [Start(Task(number), 2, LOAD) for number in (1, 2, 3, 4)]
    assert work.ended(2, Outcome.LOST) is True
    assert work.ended(3, Outcome.LOST) is True
    assert work.ready() == []
    work.ended(1, Outcome.DONE)
    work.ended(4, Outcome.DONE)
    assert work.ready() == [Start(Task(2), 3, LOAD, alone=True)]
    assert work.ended(2, Outcome.LOST) is False
    assert work.ready() == [Start(Task(3), 3, LOAD, alone=True)]


def test_the_first_to_fall_with_the_gpu_runs_again_alone_and_the_others_together() -> None:
    work = queue(4)
    work.ready()
    assert [work.ended(number, Outcome.GPU_FAULT) for number in (3, 1, 2, 4)] == [True] * 4
    assert work.ready() == [Start(Task(number), 2, LOAD) for number in (1, 2, 4)]
    for number in (1, 2, 4):
        assert work.ready() == []
        work.ended(number, Outcome.DONE)
    assert work.ready() == [Start(Task(3), 2, LOAD, alone=True)]
    # With the GPU for itself it is its own fault.
    assert work.ended(3, Outcome.GPU_FAULT) is False
    assert work.finished


def test_a_wrong_suspect_and_the_right_one_both_end_as_they_would_alone() -> None:
    work = queue(4)
    work.ready()
    for number in (1, 2, 3, 4):  # it was 3
        work.ended(number, Outcome.GPU_FAULT)
    assert numbers(work.ready()) == [2, 3, 4]
    for number in (3, 2, 4):
        work.ended(number, Outcome.GPU_FAULT)
    assert work.ready() == [Start(Task(1), 2, LOAD, alone=True)]
    work.ended(1, Outcome.DONE)
    left = []
    while starts := work.ready():
        assert len(starts) == 1
        left.append(starts[0].task.number)
        work.ended(left[-1], Outcome.GPU_FAULT if left[-1] == 3 else Outcome.DONE)
    assert sorted(left) == [2, 3, 4]
    assert work.finished


def test_those_that_may_share_go_before_those_that_may_not() -> None:
    work = queue(3)
    work.ready()
    work.ended(1, Outcome.GPU_FAULT)
    work.ended(2, Outcome.GPU_OOM)
    # Beside task 3, for which task 1 has to wait.
    assert work.ready() == [Start(Task(2), 2, Load(500, 20.0))]


@pytest.mark.parametrize("outcome", list(Outcome))
def test_nothing_runs_again_without_retries(outcome: Outcome) -> None:
    work = queue(1, retries=0)
    work.ready()
    assert work.ended(1, outcome) is False
    assert work.finished


ROOMS = st.builds(Room, st.integers(0, 100), st.floats(0, 200), st.integers(1, 6))
LOADS = st.builds(Load, st.integers(0, 150), st.floats(0, 150))


@settings(max_examples=tenth(100))
@given(
    room=ROOMS,
    load=LOADS,
    count=st.integers(0, 12),
    retries=st.integers(0, 3),
    data=st.data(),
)
def test_every_task_ends_once_and_nothing_is_ever_over_the_room(
    room: Room, load: Load, count: int, retries: int, data: st.DataObject
) -> None:
    work = queue(count, load, room, retries)
    final: Counter[int] = Counter()
    attempts: Counter[int] = Counter()
    first: list[int] = []
    alone: set[int] = set()
    running: list[Start] = []
    while not work.finished:
        for start in work.ready():
            running.append(start)
            attempts[start.task.number] += 1
            assert start.attempt == attempts[start.task.number] <= 1 + retries
            first += [start.task.number] if start.attempt == 1 else []
        # Something always runs, so that nothing waits for ever.
        assert running
        assert len(running) <= room.tasks
        assert sum(start.load.memory_mib for start in running) <= room.memory_mib
        assert len(running) == 1 or sum(start.load.sm_active_pct for start in running) <= room.sm_active_pct + 1e-6
        assert len(running) == 1 or not alone & set(numbers(running))
        number = data.draw(st.sampled_from(numbers(running)))
        outcome = data.draw(st.sampled_from(Outcome))
        again = work.ended(number, outcome)
        running = [start for start in running if start.task.number != number]
        assert again is False or outcome in RUN_AGAIN
        alone |= {number} if again and outcome is not Outcome.GPU_OOM and attempts[number] == retries else set()
        final[number] += not again
    assert first == list(range(1, count + 1))
    assert final == Counter(first)


@given(
    at_once=st.integers(1, 6),
    lasting=st.lists(st.floats(0, 1), max_size=30),
)
def test_a_queue_needs_no_more_rounds_than_groups_would(at_once: int, lasting: list[float]) -> None:
    work = queue(len(lasting), Load(0, 0.0), Room(1, 1.0, at_once))
    now_s, ends = 0.0, list[tuple[float, int]]()
    while not work.finished:
        for start in work.ready():
            heapq.heappush(ends, (now_s + lasting[start.task.number - 1], start.task.number))
        now_s, number = heapq.heappop(ends)
        work.ended(number, Outcome.DONE)
    assert now_s <= math.ceil(len(lasting) / at_once) + 1e-9


def test_ten_thousand_tasks_take_less_than_a_second() -> None:
    work = queue(10_000, Load(1, 1.0), Room(48, 120.0, 48))
    began_s = time.process_time()
    begun, ended = deque(work.ready()), 0
    while not work.finished:
        ended += not work.ended(begun.popleft().task.number, Outcome.GPU_OOM if ended % 5 == 4 else Outcome.DONE)
        begun += work.ready()
    assert ended == 10_000
    assert time.process_time() - began_s < 1


def test_one_that_went_past_the_daemon_runs_again_alone_and_once() -> None:
    work = queue(5)
    work.ready()
    assert work.ended(2, Outcome.NOT_SHARING) is True
    assert numbers(work.ready()) == [5]
    for number in (1, 3, 4):
        assert work.ended(number, Outcome.DONE) is False
        assert work.ready() == []
    work.ended(5, Outcome.DONE)
    assert work.ready() == [Start(Task(2), 2, LOAD, alone=True)]
    assert work.ended(2, Outcome.NOT_SHARING) is False
    assert work.finished
