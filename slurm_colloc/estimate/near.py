# SPDX-License-Identifier: Apache-2.0
"""Third estimator: earlier runs that differ from the job in numbers (batch size, epochs and the like).

More of a number that sizes the job (a batch size, a sequence length, a width) never needs less. One run thus bounds
another: a larger job needs at most all but the context in proportion (to the square of an edge or a width), a smaller
one no more than the larger had. The run that says least of several counts. Jobs that no run bounds are not answered.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from slurm_colloc.core.model import COMPLETED, Evidence, Footprint, Quantiles, Reason, because
from slurm_colloc.estimate.exact import cpu_cores, host_mem_mib, is_greedy, on_whole, sm_active, usable
from slurm_colloc.estimate.question import Question, most_shown
from slurm_colloc.estimate.records import in_order, peak_mib
from slurm_colloc.estimate.seeds_and_sizes import grows, is_in_proportion, is_inert
from slurm_colloc.estimate.signature import Parts, parts_of

RUNG = "near"
# A CUDA context and its libraries take this before a job has allocated anything: it does not grow with the job. A tenth
# of a run that held hardly more is taken to grow. [686 to 762 MiB measured on an H100, docs/benchmarks.md]
_CONTEXT_MIB, _CONTEXT_PART = 700.0, 0.9
# Runs must show that more of a number needs no less if its name says nothing; they differ by so much.
_SAME = 1.05
# The newest so many are compared each with each.
_MOST_COMPARED = 40
# Numbers outside of these mean something else (-1 no limit, 0 automatic) or nothing.
_SMALLEST, _LARGEST = 1e-9, 1e12


class _Point(NamedTuple):
    """One configuration that was run: its numbers that size it, their powers in what it needs, the largest peak."""

    values: tuple[float, ...]
    powers: tuple[int, ...]
    peak_mib: float
    runs: tuple[Evidence, ...]

    def is_within(self, values: tuple[float, ...]) -> bool:
        """Return whether it is no larger in any number."""
        return all(had <= wanted for had, wanted in zip(self.values, values, strict=True))

    def ratio(self, values: tuple[float, ...]) -> float:
        """Return how many times as large a job may be; one that is smaller in one number may be no smaller for it."""
        numbers = zip(self.values, values, self.powers, strict=True)
        return math.prod(max(1.0, wanted / had) ** power for had, wanted, power in numbers)

    def bound_mib(self, values: tuple[float, ...]) -> float:
        """Return what a job with these numbers needs at most, by this run."""
        ratio = self.ratio(values)
        context = min(_CONTEXT_MIB, _CONTEXT_PART * self.peak_mib) if ratio > 1 else 0.0
        return context + (self.peak_mib - context) * ratio


class _Answer(NamedTuple):
    """The most that is needed by one run, the name under which its margin is kept, its reason, and how much larger the
    job is than that run.
    """

    most_mib: float
    margin: str
    how: Reason
    ratio: float = 1.0


def from_relatives(question: Question) -> Footprint | Reason:
    """Return the footprint that runs with other numbers support, or the reason why they support none."""
    own = _values(question.signature)
    if own is None:
        return because("too-many-numbers")
    relatives = [run for run in question.relatives if _is_comparable(_values(run.signature), own)]
    if not relatives:
        return because("no-relatives")
    completed = usable(relatives)
    if isinstance(completed, Reason):
        return completed
    runs = [(run, _values(run.signature) or ()) for run in completed]
    # Numbers that differ, but for those that size nothing.
    sizing = [
        number
        for number, name in enumerate(question.numbers)
        if any(values[number] != own[number] for _, values in runs) and not is_inert(name)
    ]
    names = [question.numbers[number] for number in sizing]
    points = _points(runs, sizing, tuple(1 if is_in_proportion(name) else 2 for name in names))
    target = tuple(own[number] for number in sizing)
    answer = _answer(target, points, names)
    return answer if isinstance(answer, Reason) else _footprint(question, answer, target, points)


def _values(signature: str) -> tuple[float, ...] | None:
    parts = parts_of(signature)
    return parts and parts.values


def _is_comparable(values: Sequence[float] | None, own: Sequence[float]) -> bool:
    return values is not None and len(values) == len(own)


def _points(
    runs: Sequence[tuple[Evidence, Sequence[float]]], sizing: Sequence[int], powers: tuple[int, ...]
) -> list[_Point]:
    by_values: dict[tuple[float, ...], list[Evidence]] = {}
    for run, values in runs:
        by_values.setdefault(tuple(values[number] for number in sizing), []).append(run)
    return [_Point(values, powers, float(max(map(peak_mib, of))), tuple(of)) for values, of in by_values.items()]


def _answer(target: tuple[float, ...], points: Sequence[_Point], names: Sequence[str]) -> _Answer | Reason:
    for point in points:
        if point.values == target:
            return _Answer(point.peak_mib, "same", because("nearly-same"))
    for name, value in zip(names, target, strict=True):
        if not _is_size(value):
            return because("no-size", name=name, value=f"{value:g}")
    points = [point for point in points if all(map(_is_size, point.values))][-_MOST_COMPARED:]
    if not points or not all(grows(name) or _seen_to_grow(points, place) for place, name in enumerate(names)):
        return because("numbers-tell-nothing", runs=len(points), names=tuple(names))
    # A run that others belie bounds nothing; the one that held most does. No smaller run held more than is answered.
    bounding = [one for one in points if all(other.peak_mib <= one.bound_mib(other.values) for other in points)]
    nearest = min(bounding, key=lambda point: point.bound_mib(target))
    how = because("bound-by-one-run", names=tuple(names))
    return _Answer(nearest.bound_mib(target), "one", how, nearest.ratio(target))


def _is_size(value: float) -> bool:
    return _SMALLEST <= value <= _LARGEST


def _seen_to_grow(points: Sequence[_Point], place: int) -> bool:
    """Return whether runs differ in this number, and none needed less for being larger."""
    belied = any(
        one.is_within(other.values) and one.peak_mib > other.peak_mib * _SAME for one in points for other in points
    )
    return not belied and len({point.values[place] for point in points}) > 1


def _footprint(question: Question, answer: _Answer, target: tuple[float, ...], points: Sequence[_Point]) -> Footprint:
    runs = in_order(run for point in points for run in point.runs)
    model = runs[-1].gpu_model
    margin = question.calibration.margin(answer.margin)
    q99 = max(margin.over(answer.most_mib), most_shown(question.runs, model))
    other_numbers = because("other-numbers", runs=len(runs), gpu_model=model)
    return Footprint(
        gpu_mem_peak_mib=Quantiles(answer.most_mib, (answer.most_mib + q99) / 2, q99),
        sm_active_pct=_active(points, target, "sm_active_mean_pct"),
        run_time_s=None,
        gpu_model=model,
        rung=RUNG,
        evidence_count=len(runs),
        provenance=(other_numbers, answer.how, margin.reason, *sm_active(runs)[1]),
        dram_active_pct=_active(points, target, "dram_active_q95_pct"),
        margin=answer.margin,
        expected_mib=answer.most_mib,
        confidence=margin.confidence,
        cpu_cores=cpu_cores(runs),
        host_mem_mib=host_mem_mib(question.relatives, runs, answer.ratio),
        busy_pct=_active(points, target, "busy_mean_pct"),
    )


def _active(points: Sequence[_Point], target: tuple[float, ...], name: str) -> Quantiles | None:
    """Return how busy the job keeps a GPU: as the run that says least of it in proportion does, up to always, and
    no less than a run did that was no larger.
    """
    same = [point for point in points if point.values == target]
    sized = same or [point for point in points if all(map(_is_size, point.values))]
    active_of = [(point, active) for point in sized if (active := on_whole(point.runs, name)) is not None]
    if not active_of:
        return None
    bounds = [
        [min(100.0, value * (1.0 if same else one.ratio(target))) for value in active] for one, active in active_of
    ]
    least = [active for one, active in active_of if one.is_within(target)]
    return Quantiles(*(max([min(most), *held]) for most, *held in zip(zip(*bounds, strict=True), *least, strict=True)))


def most_of_smaller(question: Question, model: str, above_mib: float) -> Evidence | None:
    """Return, of the relatives that can need no more than the job and held more than that, the run that held most.

    Only numbers of which more never needs less may differ, and those that size nothing; and not the program, for an
    edit may have made it smaller. An empty model is any.
    """
    own = parts_of(question.signature)
    held = [
        run
        for run in question.relatives
        if peak_mib(run) > above_mib
        and (not model or run.gpu_model in (model, ""))
        # A framework's part of any GPU is no need; it is one if the run ran out of memory all the same.
        and not (run.state == COMPLETED and is_greedy(run))
        and _is_no_larger(parts_of(run.signature), own, question.numbers)
    ]
    return max(held, key=peak_mib, default=None)


def _is_no_larger(other: Parts | None, own: Parts | None, names: tuple[str, ...]) -> bool:
    if not other or not own or own.values is None or other.program != own.program:
        return False
    if not _is_comparable(other.values, own.values) or len(own.values) != len(names):
        return False
    pairs = zip(names, other.values or (), own.values, strict=True)
    # 0 and -1 may mean all there is.
    return all(had == has or is_inert(name) or (grows(name) and 0 < had <= has) for name, had, has in pairs)
