# SPDX-License-Identifier: Apache-2.0
"""The third rung: what earlier runs used that differ from the job in numbers, or by an edit of their program.

Memory is taken to grow linearly with one number that sizes the job (a batch size, a sequence length, a width) or with
the product of those that do: from run to run where more of it never needs less, else along one line through all. How
far it may be off depends on where the job lies and on what the runs look like, so each case has a margin of its own;
what two runs cannot tell apart is not answered.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from slurm_colloc.estimate.exact import cpu_cores, dram_active, host_mem_mib, sm_active, under_mps, usable
from slurm_colloc.estimate.question import Question, most_shown
from slurm_colloc.history.names import grows, is_inert
from slurm_colloc.history.signature import Parts, parts_of
from slurm_colloc.model import Evidence, Footprint, Quantiles
from slurm_colloc.units import counted

RUNG = "near"
# So far beyond the largest number seen a line is drawn on; below the smallest memory is bounded by that run's.
_FARTHEST = 4.0
# What a CUDA context and its libraries take before a job has allocated anything: it does not grow with the job.
# [measured: 686 to 762 MiB on an H100, docs/benchmarks.md]
CONTEXT_MIB = 700.0
# Of what a job holds beside the context, what does not grow with it: the median when it grows, and when it shrinks.
# [measured, 1,017 models, docs/explanation/estimate.md]
_FIXED_ABOVE, _FIXED_BELOW = 0.35, 0.20
# A job that holds less for being smaller can still hold as much as a larger one: runs differ by so much.
CAP = 1.05
# The part of what the largest run held that had grown with the number: below that a line drawn on is no guide, or a
# poor one.
_NO_GROWTH, _LITTLE_GROWTH = 0.1, 0.5
_JUMPED = 0.05
# Three runs and more that lie closer to one line tell of a fourth better than two.
_BEND = 0.05
# So many are compared each with each, the newest.
_MOST_COMPARED = 40
# Numbers outside of these mean something else (-1: no limit, 0: by itself) or nothing.
_SMALLEST, _LARGEST = 1e-9, 1e12
# A line that misses the runs it was drawn through by more explains nothing.
_WORST_FIT = 0.10


class _Point(NamedTuple):
    """One configuration that was run: its numbers that size it, and the largest peak in MiB."""

    values: tuple[float, ...]
    peak_mib: float
    runs: tuple[Evidence, ...]


class _Answer(NamedTuple):
    """What is expected, under which name its margin is kept, how it was come by, how much larger the job is than any
    run, and what its q99 need not exceed.
    """

    q50_mib: float
    margin: str
    how: str
    ratio: float = 1.0
    most_mib: float = math.inf


def from_relatives(question: Question) -> Footprint | str:
    """Return the footprint that runs with other numbers support, or the reason why they support none."""
    own = parts_of(question.signature)
    if own is None or own.values is None:
        return "its numbers are too many to tell its relatives apart"
    runs = [(run, parts) for run in question.relatives if (parts := _comparable(run, own))]
    if not runs:
        return "no earlier run of a job that differs in numbers alone is known"
    completed = usable([run for run, _ in runs])
    if isinstance(completed, str):
        return completed
    runs = [(run, parts) for run in completed if (parts := _comparable(run, own))]
    sizing = _sizing(question.numbers, own, [parts for _, parts in runs])
    points = _points(runs, sizing)
    names = [question.numbers[number] for number in sizing]
    target = tuple(own.values[number] for number in sizing)
    answer = _answer(target, points, names)
    if isinstance(answer, str):
        return answer
    return _footprint(question, answer, points)


def _comparable(run: Evidence, own: Parts) -> Parts | None:
    parts = parts_of(run.signature)
    return parts if parts and parts.values is not None and len(parts.values) == len(own.values or ()) else None


def _sizing(names: Sequence[str], own: Parts, others: Sequence[Parts]) -> list[int]:
    """Return which numbers differ between the job and the runs, but for those that size nothing."""
    rows = [own.values or (), *(parts.values or () for parts in others)]
    return [
        number for number, name in enumerate(names) if len({row[number] for row in rows}) > 1 and not is_inert(name)
    ]


def _points(runs: Sequence[tuple[Evidence, Parts]], sizing: Sequence[int]) -> list[_Point]:
    found: dict[tuple[float, ...], list[Evidence]] = {}
    for run, parts in runs:
        found.setdefault(tuple((parts.values or ())[number] for number in sizing), []).append(run)
    return [
        _Point(values, max(float(run.gpu_mem_peak_mib or 0) for run in of), tuple(of)) for values, of in found.items()
    ]


def _answer(target: tuple[float, ...], points: Sequence[_Point], names: Sequence[str]) -> _Answer | str:
    for point in points:
        if point.values == target:
            return _Answer(point.peak_mib, "near-same", "numbers that size nothing differ, or its program was edited")
    for name, value in zip(names, target, strict=True):
        if not _is_size(value):
            return f"'{name}' = {value:g} is no size: it may mean all, or as much as there is"
    points = [point for point in points if all(map(_is_size, point.values))]
    lines = [line for line in _lines(target, points, names) if line.worst <= _WORST_FIT]
    if lines:
        return _on_line(min(lines, key=lambda line: (line.worst, len(line.name))))
    found = _from_one(target, points, names)
    if found is not None:
        return found
    differ = " and ".join(f"'{name}'" for name in names)
    return f"{len(points)} runs with other {differ} do not tell what this one needs"


def _is_size(value: float) -> bool:
    return _SMALLEST <= value <= _LARGEST


class _Line(NamedTuple):
    """Memory over one number, or a product of several: where it is asked for, what was seen by size, how much each
    unit adds, how far it misses the worst run, and whether more of it never needs less.

    ``bend`` is how far the line through all runs misses the worst of them; None of two runs, which show none.
    """

    name: str
    at: float
    seen: tuple[tuple[float, float], ...]
    slope: float
    intercept: float
    worst: float
    grows: bool
    bend: float | None

    def margin(self, plain: str, straight: str) -> str:
        """Return the name of the margin: ``plain`` where two runs do not show whether they lie on a straight line."""
        if self.bend is not None:
            return straight if self.bend <= _BEND else "near-bent"
        return plain

    def value(self, x: float) -> float:
        """Return the memory in MiB."""
        return self.intercept + self.slope * x


def _lines(target: tuple[float, ...], points: Sequence[_Point], names: Sequence[str]) -> Iterator[_Line]:
    for name, feature in _features(names):
        seen = sorted((feature(point.values), point.peak_mib) for point in points)
        # Runs that differ in another number as well must not be told apart by this one alone.
        if len({x for x, _ in seen}) < 2 or len(points) < len(names) + 1:
            continue
        at, more = feature(target), all(map(grows, names))
        peaks = [peak for _, peak in seen]
        slope, intercept = _least_squares(seen)
        # Less memory for more work is noise, or another number's doing.
        if slope < 0 and max(peaks) > min(peaks) * (1 + _WORST_FIT):
            continue
        slope, intercept = (slope, intercept) if slope >= 0 else (0.0, max(peaks))
        worst = max(abs((intercept + slope * x) / peak - 1) for x, peak in seen)
        bend = worst if len(seen) > 2 else None
        if more and len(names) == 1 and peaks == sorted(peaks):
            # Through the two nearest, however the others lie: between two runs no job needs more than the larger one.
            (slope, intercept), worst = _least_squares(_nearest(seen, at)), 0.0
        yield _Line(name, at, tuple(seen), slope, intercept, worst, more, bend)


def _nearest(seen: Sequence[tuple[float, float]], at: float) -> Sequence[tuple[float, float]]:
    above = next((number for number, (x, _) in enumerate(seen) if x > at), len(seen) - 1)
    first = max(above, 1) - 1
    return seen[first : first + 2]


def _features(names: Sequence[str]) -> Iterator[tuple[str, Callable[[tuple[float, ...]], float]]]:
    for number, name in enumerate(names):
        yield f"'{name}'", itemgetter(number)
    if len(names) > 1:
        yield " x ".join(f"'{name}'" for name in names), _product


def _product(values: tuple[float, ...]) -> float:
    found = 1.0
    for value in values:
        found *= value
    return found


def _least_squares(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    mean_x, mean_y = (sum(of) / len(points) for of in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return slope, mean_y - slope * mean_x


def _on_line(line: _Line) -> _Answer | str:
    """Return what a line says, or why it says nothing."""
    (least, least_mib), (most, most_mib) = line.seen[0], line.seen[-1]
    how = f"a line over {line.name} = {', '.join(f'{x:g}' for x, _ in line.seen)}"
    # Where a line leaves next to nothing for what does not grow, memory has jumped between its two runs; but where?
    high_mib = next((peak for x, peak in line.seen if x >= line.at), most_mib)
    jumped = line.value(0.0) - CONTEXT_MIB < _JUMPED * high_mib
    if line.at < least:
        return _below(
            line, least, least_mib, line.margin("near-jump" if jumped else "near-below", "near-straight-on"), how
        )
    if line.at <= most:
        cap = high_mib * CAP if line.grows else math.inf
        margin = line.margin("near-jump" if jumped else "near-within", "near-straight")
        return _Answer(line.value(line.at), margin, how, most_mib=cap)
    ratio = line.at / most if most > 0 else math.inf
    if ratio > _FARTHEST:
        return f"{line.name} = {line.at:g} is more than {_FARTHEST:g} times what was run before"
    grown = line.slope * most / (most_mib - CONTEXT_MIB) if most_mib > CONTEXT_MIB else 0.0
    if grown < _NO_GROWTH and line.grows:
        return f"larger {line.name} should need more and has not yet, so that nothing tells when it will"
    if grown < _NO_GROWTH:
        return _Answer(max(peak for _, peak in line.seen), "near-same", f"{how}, which changes nothing")
    margin = line.margin("near-beyond" if ratio <= 2 else "near-far", "near-straight-on")
    margin = "near-flat" if grown < _LITTLE_GROWTH and margin != "near-bent" else margin
    return _Answer(line.value(line.at), margin, how, ratio)


def _below(line: _Line, least: float, least_mib: float, margin: str, how: str) -> _Answer:
    if not line.grows or least <= 0:
        return _Answer(line.value(least), "near-within", f"{how}, as much as at {least:g}")
    part = max(line.at / least, 1 / _FARTHEST)
    value = min(max(line.value(part * least), _scaled_mib(least_mib, part, 0.0)), least_mib)
    return _Answer(value, margin, how, most_mib=least_mib * CAP)


def _scaled_mib(peak_mib: float, ratio: float, fixed: float) -> float:
    """Return what a job of ``ratio`` times the size needs, when beside the context ``fixed`` of it does not grow."""
    context = min(CONTEXT_MIB, peak_mib)
    return context + (peak_mib - context) * (fixed + (1 - fixed) * ratio)


def _from_one(target: tuple[float, ...], points: Sequence[_Point], names: Sequence[str]) -> _Answer | None:
    """Return what one run says of numbers of which more never needs less; None where the runs belie that."""
    points = points[-_MOST_COMPARED:]
    if not all(map(grows, names)) or any(_belies(one, other) for one in points for other in points):
        return None
    found = []
    for point in points:
        ratios = [wanted / had if had > 0 else math.inf for wanted, had in zip(target, point.values, strict=True)]
        ratio = math.prod(max(1.0, one) for one in ratios) if max(ratios) > 1 else math.prod(ratios)
        if ratio <= _FARTHEST:
            found.append((_scaled_mib(point.peak_mib, ratio, 0.0), ratio, point.peak_mib))
    if not found:
        return None
    _, ratio, peak = min(found)
    how = "one run of another size, of which such a part grows with it as of other jobs"
    if ratio > 1:
        return _Answer(_scaled_mib(peak, ratio, _FIXED_ABOVE), "near-one", how, ratio)
    value = _scaled_mib(peak, max(ratio, 1 / _FARTHEST), _FIXED_BELOW)
    return _Answer(value, "near-one-below", how, most_mib=peak * CAP)


def _belies(smaller: _Point, larger: _Point) -> bool:
    """Return whether a run that was smaller in all numbers needed clearly more than the other."""
    pairs = zip(smaller.values, larger.values, strict=True)
    return smaller.peak_mib > larger.peak_mib * (1 + _WORST_FIT) and all(one <= other for one, other in pairs)


def _footprint(question: Question, answer: _Answer, points: Sequence[_Point]) -> Footprint:
    runs = sorted((run for point in points for run in point.runs), key=lambda run: run.ended_s)
    model = runs[-1].gpu_model
    margin = question.calibration.margin(answer.margin)
    q99 = max(min(answer.q50_mib * margin.factor, answer.most_mib), most_shown(question.runs, model))
    memory = Quantiles(answer.q50_mib, (answer.q50_mib + q99) / 2, q99)
    active, how = sm_active(runs)
    counts = f"{counted(len(runs), 'run')}{under_mps(runs)}"
    said = f"{counts} on {model} with other numbers: {answer.how}; margin {margin}{how}"
    return Footprint(
        gpu_mem_peak_mib=memory,
        sm_active_pct=scaled(active, answer.ratio),
        run_time_s=None,
        gpu_model=model,
        rung=RUNG,
        evidence_count=len(runs),
        provenance=said,
        dram_active_pct=scaled(dram_active(runs), answer.ratio),
        margin=answer.margin,
        expected_mib=answer.q50_mib,
        confidence=margin.confidence,
        cpu_cores=cpu_cores(runs),
        host_mem_mib=host_mem_mib(question.relatives, runs, answer.ratio),
    )


def scaled(active: Quantiles | None, ratio: float) -> Quantiles | None:
    """Return how busy a larger job keeps the GPU, at most: in proportion, until there is no more."""
    return active and Quantiles(*(min(100.0, value * max(1.0, ratio)) for value in active))
