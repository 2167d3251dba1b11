# SPDX-License-Identifier: Apache-2.0
"""The third rung: what earlier runs used that differ from the job in numbers, or by an edit of their program.

Memory is taken to grow linearly with one number that sizes the job (a batch size, a sequence length, a width) or with
the product of those that do; what is beyond the runs is bounded, and what two runs cannot tell apart is not answered.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from slurm_colloc.estimate.exact import dram_active, sm_active, usable
from slurm_colloc.estimate.question import Question
from slurm_colloc.history.signature import Parts, grows, is_inert, parts_of
from slurm_colloc.model import Evidence, Footprint, Quantiles
from slurm_colloc.units import counted

RUNG = "near"
# So far beyond the largest number seen a line is drawn on; below the smallest memory is bounded by that run's.
_FARTHEST = 4.0
# What a CUDA context and its libraries take before a job has allocated anything: it does not grow with the job.
# [measured: 686 to 762 MiB on an H100, docs/benchmarks.md]
CONTEXT_MIB = 700.0
# A line that misses the runs it was drawn through by more explains nothing.
_WORST_FIT = 0.10


class _Point(NamedTuple):
    """One configuration that was run: its numbers that size it, and the largest peak in MiB."""

    values: tuple[float, ...]
    peak_mib: float
    runs: tuple[Evidence, ...]


class _Answer(NamedTuple):
    """What is expected, under which name its margin is kept, how it was come by, and how much larger the job is than
    any run.
    """

    q50_mib: float
    margin: str
    how: str
    ratio: float = 1.0


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
    runs = [(run, parts) for run, parts in runs if run in completed]
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
    differ = " and ".join(f"'{name}'" for name in names)
    lines = [line for line in _lines(target, points, names) if line.worst <= _WORST_FIT]
    if lines:
        best = min(lines, key=lambda line: (line.worst, len(line.name)))
        return _on_line(best)
    bound = _bound(target, points, names)
    if bound is not None:
        return bound
    return f"{len(points)} runs with other {differ} do not tell what this one needs"


class _Line(NamedTuple):
    """Memory over one number, or a product of several: through all runs, and how far it misses the worst of them."""

    name: str
    at: float
    seen: tuple[float, ...]
    value: Callable[[float], float]
    worst: float


def _lines(target: tuple[float, ...], points: Sequence[_Point], names: Sequence[str]) -> Iterator[_Line]:
    for name, feature in _features(names):
        seen = [feature(point.values) for point in points]
        # Runs that differ in another number as well must not be told apart by this one alone.
        if len(set(seen)) < 2 or len(points) < len(names) + 1:
            continue
        peaks = [point.peak_mib for point in points]
        slope, intercept = _least_squares(seen, peaks)
        # Less memory for more work is noise, or another number's doing.
        if slope < 0 and max(peaks) > min(peaks) * (1 + _WORST_FIT):
            continue
        line = _at(max(slope, 0.0), intercept if slope >= 0 else max(peaks))
        worst = max(abs(line(x) / peak - 1) for x, peak in zip(seen, peaks, strict=True))
        yield _Line(name, feature(target), tuple(sorted(seen)), line, worst)


def _at(slope: float, intercept: float) -> Callable[[float], float]:
    return lambda x: intercept + slope * x


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


def _least_squares(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return slope, mean_y - slope * mean_x


def _on_line(line: _Line) -> _Answer | str:
    least, most = line.seen[0], line.seen[-1]
    seen = f"a line over {line.name} = {', '.join(f'{x:g}' for x in line.seen)}"
    if line.at > most * _FARTHEST:
        return f"{line.name} = {line.at:g} is more than {_FARTHEST:g} times what was run before"
    if line.at < least:
        return _Answer(line.value(least), "near-within", f"{seen}, as much as at {least:g}")
    margin = "near-within" if line.at <= most else "near-beyond" if line.at <= 2 * most else "near-far"
    return _Answer(line.value(line.at), margin, f"{seen}, worst miss {line.worst:.0%}", line.at / most if most else 1.0)


def _bound(target: tuple[float, ...], points: Sequence[_Point], names: Sequence[str]) -> _Answer | None:
    """Return an upper bound from one run: of numbers of which more never needs less, what scales scaling in full."""
    if not all(map(grows, names)):
        return None
    bounds = []
    for point in points:
        ratio = 1.0
        for wanted, had in zip(target, point.values, strict=True):
            ratio *= max(1.0, wanted / had) if had > 0 else 0.0
        if 0 < ratio <= _FARTHEST:
            context = min(CONTEXT_MIB, point.peak_mib)
            bounds.append((context + (point.peak_mib - context) * ratio, ratio))
    if not bounds:
        return None
    least, ratio = min(bounds)
    how = "bounded by a run of other size, all but the context scaling with it"
    return _Answer(least, "near-one", how, ratio)


def _footprint(question: Question, answer: _Answer, points: Sequence[_Point]) -> Footprint:
    runs = sorted((run for point in points for run in point.runs), key=lambda run: run.ended_s)
    model = runs[-1].gpu_model
    margin = question.calibration.margin(answer.margin)
    bounds = [float(run.gpu_mem_peak_mib or 0) for run in question.runs if run.gpu_model in (model, "")]
    q99 = max([answer.q50_mib * margin.factor, *bounds])
    memory = Quantiles(answer.q50_mib, (answer.q50_mib + q99) / 2, q99)
    active, how = sm_active(runs)
    said = f"{counted(len(runs), 'run')} on {model} with other numbers: {answer.how}; margin {margin}{how}"
    found = Footprint(memory, _scaled(active, answer.ratio), None, model, RUNG, len(runs), said)
    return found._replace(dram_active_pct=_scaled(dram_active(runs), answer.ratio))


def _scaled(active: Quantiles | None, ratio: float) -> Quantiles | None:
    """Return how busy a larger job keeps the GPU, at most: in proportion, until there is no more."""
    return active and Quantiles(*(min(100.0, value * max(1.0, ratio)) for value in active))
