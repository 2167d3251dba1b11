# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from slurm_colloc.core import clock
from slurm_colloc.core.errors import CollocError, DeadlineError, GpuError, StoreError
from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.observe import loop
from slurm_colloc.observe.loop import Pace, follow
from tests.unit.made import seen


class Time:
    """A clock that only waiting moves; ``stops_s`` is when somebody tells the pace to stop."""

    def __init__(self, stops_s: float = float("inf")) -> None:
        self.now_s = 0.0
        self.stops_s = stops_s
        self.waited: list[float] = []

    def poll(self, timeout_ms: float) -> list[Any]:
        self.waited.append(timeout_ms / 1000)
        until_s = min(self.now_s + timeout_ms / 1000, max(self.stops_s, self.now_s))
        self.now_s = until_s
        return [(0, 1)] if until_s >= self.stops_s else []


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(clock, "now", lambda: 1e6 + made.now_s)
    monkeypatch.setattr(clock, "ticking", lambda: made.now_s)
    return made


def pace(time: Time, period_s: float, **options: Any) -> Pace:
    made = Pace(period_s, **options)
    made._waiting = time  # type: ignore[assignment]
    return made


def test_a_reading_each_period_however_long_it_takes(time: Time) -> None:
    times = []
    for at_s, ticking_s in pace(time, 10.0, count=4):
        times.append((at_s - 1e6, ticking_s))
        time.now_s += 0.7
    assert times == [(at_s, at_s) for at_s in (0.0, 10.0, 20.0, 30.0)]


def test_a_reading_that_takes_longer_than_the_period_does_not_heap_up_others(time: Time) -> None:
    times = []
    for _, ticking_s in pace(time, 10.0, count=4):
        times.append(ticking_s)
        time.now_s += 25.0 if len(times) == 1 else 1.0
    assert times == [0.0, 25.0, 35.0, 45.0]


def test_a_job_is_read_densely_at_first(time: Time) -> None:
    assert [ticking_s for _, ticking_s in pace(time, 10.0, count=6, dense=True)] == [0.0, 1.0, 3.0, 7.0, 15.0, 25.0]


def test_told_to_stop_it_closes_the_interval(time: Time) -> None:
    time.stops_s = 13.0
    assert [ticking_s for _, ticking_s in pace(time, 10.0)] == [0.0, 10.0, 13.0]


def test_who_watches_hears_of_it_every_half_minute(time: Time) -> None:
    heard: list[float] = []
    for _ in pace(time, 100.0, count=2, alive=lambda: heard.append(time.now_s)):
        pass
    assert heard == [0.0, 30.0, 60.0, 90.0]
    assert sum(time.waited) == 100.0


def test_a_signal_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Pace(3600.0)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        made.stop_on_signals()
        for _ in range(100_000):  # more than the pipe holds
            made.stop()
        rounds = 0
        for _ in made:
            rounds += 1
            os.kill(os.getpid(), signal.SIGTERM)
        assert rounds == 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_it_ends_with_the_process_it_watches() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    rounds = 0
    for _ in Pace(3600.0, watch_pid=child.pid):
        rounds += 1
        assert child.stdin is not None
        child.stdin.close()
    assert rounds == 2
    child.wait()
    assert list(Pace(3600.0, watch_pid=child.pid)) == []


class Passes:
    """A sampler whose passes give what a test says: a NodeSample, or an error."""

    complaint = ""

    def __init__(self, *results: CollocError | None) -> None:
        self.results = iter(results)

    def sample(self, at_s: float, ticking_s: float) -> NodeSample:
        result = next(self.results)
        if result is not None:
            raise result
        return seen(at_s)


def ran(time: Time, *results: CollocError | None, sinks: Any = (), **options: Any) -> tuple[int, list[str]]:
    said: list[str] = []
    kept = follow(Passes(*results), pace(time, 10.0, count=len(results)), sinks, said.append, **options)  # type: ignore[arg-type]
    return kept, said


def test_each_trouble_is_said_once_and_its_end(time: Time) -> None:
    gone = GpuError("gone")
    kept, said = ran(time, None, gone, gone, GpuError("other"), None, None, gone)
    assert (kept, said) == (3, ["gone", "other", "sampling again", "gone"])


def test_a_sink_in_trouble_takes_nothing_from_the_others(time: Time) -> None:
    taken: list[NodeSample] = []

    def full(_: NodeSample) -> None:
        raise StoreError("disk full")

    kept, said = ran(time, None, None, sinks=[full, taken.append])
    assert (kept, said, len(taken)) == (0, ["disk full"], 2)


def test_a_driver_away_for_too_long_ends_it(time: Time) -> None:
    with pytest.raises(GpuError, match="no answer for 25 s: gone"):
        ran(time, None, *[GpuError("gone")] * 9, patience_s=25.0)
    assert time.now_s == 30.0
    flickering = [GpuError("gone"), None] * 9
    assert ran(time, *flickering, patience_s=25.0)[0] == 9


def test_a_driver_that_hangs_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    class Hanging:
        def sample(self, at_s: float, ticking_s: float) -> NodeSample:
            let_go.wait(60)
            return seen(at_s)

    monkeypatch.setattr(loop, "HUNG_S", 0.05)
    with pytest.raises(DeadlineError, match="reading the GPUs"):
        follow(Hanging(), Pace(1.0, count=1), [], lambda _: None)  # type: ignore[arg-type]
    let_go.set()
