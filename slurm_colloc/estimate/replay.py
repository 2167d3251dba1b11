# SPDX-License-Identifier: Apache-2.0
"""Replay past runs through the rungs as csub asks them, and count how each policy would have done: pure functions.

A policy says what a run will need from what was known before it. The smallest piece of a GPU that holds that is what
the run would have got; where the policy says nothing, the run goes as asked, and counts as abstained.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from slurm_colloc.errors import InputError
from slurm_colloc.estimate.calibration import SHIPPED, Calibration
from slurm_colloc.estimate.exact import from_runs, median
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.near import from_relatives
from slurm_colloc.estimate.prior import from_prior
from slurm_colloc.estimate.question import Question
from slurm_colloc.history.signature import Parts, Signature, is_relative, is_same, parts_of
from slurm_colloc.history.snapshot import FamilyUse
from slurm_colloc.model import COMPLETED, Evidence, Footprint, Quantiles

# A sampler that watched a whole run saw at least so much.
_SAMPLES = 100
# Of one configuration, at most so many ways to know two others: enough for a rate, and bounded for a large family.
_MOST_PAIRS = 60
_BASELINE_MARGIN = 1.1


class Row(NamedTuple):
    """One past run: its evidence, the names of its signature's numbers, and what else was measured of it."""

    run: Evidence
    numbers: tuple[str, ...]
    peak_mib: float
    allocator_peak_mib: float | None = None

    @property
    def completed(self) -> bool:
        """Return whether its peak is one; of any other run it is a bound."""
        return self.run.state == COMPLETED

    @classmethod
    def made(
        cls,
        job_id: str,
        known_as: Signature,
        gpu_model: str,
        state: str,
        at_s: float,
        peak_mib: float,
        allocator_peak_mib: float | None = None,
        sm_active_pct: float | None = None,
        dram_active_pct: float | None = None,
    ) -> "Row":
        """Return the run of a whole GPU of which these figures are known."""
        run = Evidence(
            job_id=job_id,
            signature=known_as.text,
            state=state,
            mode="exclusive",
            gpu_model=gpu_model,
            gpu_mem_peak_mib=math.ceil(peak_mib),
            sm_active_mean_pct=sm_active_pct,
            sm_active_q95_pct=sm_active_pct,
            sm_is_bound=False,
            sample_count=_SAMPLES,
            sampled_s=0.0,
            ended_s=at_s,
            elapsed_s=None,
            dram_active_q95_pct=dram_active_pct,
        )
        return cls(run, known_as.names, peak_mib, allocator_peak_mib)


class Case(NamedTuple):
    """One run to be placed, and the earlier runs of the same job and of its relatives that are known, oldest first.

    ``families`` is what other jobs used, where nothing of its own family is known. ``known`` says how much is, for
    tables by it; empty in a replay by time.
    """

    row: Row
    runs: tuple[Row, ...]
    relatives: tuple[Row, ...]
    known: str = ""
    families: tuple[FamilyUse, ...] = ()


class Pieces(NamedTuple):
    """The usable sizes of what a run can get, by GPU model ("": of any other), and what is kept free in each.

    The largest is the whole GPU, which is what a run gets that fits no smaller one.
    """

    sizes_mib: Mapping[str, Sequence[int]]
    headroom_mib: int = 0

    def of(self, gpu_model: str) -> tuple[int, ...]:
        """Return the sizes for a model, smallest first; none where the model is not known."""
        return tuple(sorted(set(self.sizes_mib.get(gpu_model, self.sizes_mib.get("", ())))))


class Asked(NamedTuple):
    """What a policy is asked: the ladder's question, the case with all that was measured of it, and the whole GPU."""

    question: Question
    case: Case
    whole_mib: int


class Outcome(NamedTuple):
    """What became of one placement; sizes in MiB, ``chosen_mib`` None where the policy abstained."""

    policy: str
    rung: str
    case: Case
    memory: Quantiles | None
    chosen_mib: int | None
    ideal_mib: int
    margin: str = ""
    expected_mib: float | None = None
    sm_active_pct: Quantiles | None = None


class Replayed(NamedTuple):
    """All outcomes, and the runs that no placement could be made of, by reason."""

    outcomes: tuple[Outcome, ...]
    not_placed: Mapping[str, int]


class Score(NamedTuple):
    """How one policy did, or one rung of the ladder; counts are of those answered.

    ``exact`` is the piece that the run would have needed, ``out_of_memory`` a smaller one. ``allocated_mib`` and
    ``ideal_mib`` are sums, ``*_error`` of |q50 / peak - 1|, None without an answer. ``sm_judged`` are the runs of which
    SM activity was foretold and measured, ``sm_underestimates`` those that were busier than the q99.
    """

    policy: str
    rung: str
    known: str
    placements: int
    configurations: int
    answered: int
    abstained: int
    underestimates: int
    out_of_memory: int
    exact: int
    too_big: int
    allocated_mib: int
    ideal_mib: int
    median_error: float | None
    p95_error: float | None
    sm_judged: int
    sm_underestimates: int


def _whole(asked: Asked) -> Footprint | str:
    size = float(asked.whole_mib)
    return Footprint(Quantiles(size, size, size), None, None, "", "whole", 0, "as asked")


def _largest(asked: Asked) -> Footprint | str:
    """Take what is often done by hand: the largest of the job and its relatives so far, and a tenth more."""
    peaks = [row.peak_mib for row in (*asked.case.runs, *asked.case.relatives) if row.completed]
    if not peaks:
        return "nothing is known"
    peak = max(peaks)
    high = peak * _BASELINE_MARGIN
    return Footprint(Quantiles(peak, high, high), None, None, "", "largest", len(peaks), "the largest so far")


WHOLE, LADDER = "whole GPU always", "ladder"
# Another policy is another line here.
POLICIES: Mapping[str, Callable[[Asked], Footprint | str]] = {
    WHOLE: _whole,
    "largest so far x 1.1": _largest,
    "exact": lambda asked: from_runs(asked.question),
    "near": lambda asked: from_relatives(asked.question),
    LADDER: lambda asked: estimate(asked.question),
    "prior": lambda asked: from_prior(asked.question),
}


def by_time(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield each completed run, knowing those that ended before it did."""
    for family in _families(rows):
        for row, parts in family:
            if row.completed:
                yield _case(row, parts, [one for one in family if one[0].run.ended_s < row.run.ended_s])


def without_own(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield each completed run, knowing nothing of its configuration, but one, two or all others of its family.

    And once knowing none of them, but all other families.
    """
    families = _families(rows)
    uses = [_use(family) for family in families]
    for number, family in enumerate(families):
        others_use = tuple(use for place, use in enumerate(uses) if use and place != number)
        by_text: dict[str, list[tuple[Row, Parts]]] = defaultdict(list)
        for one in family:
            by_text[one[0].run.signature].append(one)
        for row, parts in family:
            if not row.completed:
                continue
            yield Case(row, (), (), "none", others_use)
            others = [runs for text, runs in by_text.items() if text != row.run.signature]
            for count in (1, 2):
                for some in _spread(list(combinations(others, count))):
                    yield _case(row, parts, [one for runs in some for one in runs], f"{count} other")
            if others:
                yield _case(row, parts, [one for runs in others for one in runs], "all others")


def _use(family: Sequence[tuple[Row, Parts]]) -> FamilyUse | None:
    """Return what a family used at most; None where no run completed. Of several GPU models the last one counts."""
    completed = [row for row, _ in family if row.completed]
    if not completed:
        return None
    model = completed[-1].run.gpu_model
    runs = [row.run for row in completed if row.run.gpu_model == model]
    return FamilyUse(
        model,
        max(float(run.gpu_mem_peak_mib or 0) for run in runs),
        max((run.sm_active_q95_pct for run in runs if run.sm_active_q95_pct is not None), default=None),
        max((run.dram_active_q95_pct for run in runs if run.dram_active_q95_pct is not None), default=None),
    )


def repeats(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield each completed run that was repeated, knowing one, two or all of the repeats."""
    by_text: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_text[row.run.signature].append(row)
    for runs in by_text.values():
        for row in runs:
            others = [one for one in runs if one is not row]
            if not (row.completed and others):
                continue
            for count in (1, 2):
                for some in _spread(list(combinations(others, count))):
                    yield Case(row, some, (), f"{count} repeat")
            yield Case(row, tuple(others), (), "all repeats")


MODES: Mapping[str, Callable[[Sequence[Row]], Iterator[Case]]] = {
    "history": by_time,
    "leave-one-out": without_own,
    "repeats": repeats,
}


def replay(
    cases: Iterable[Case], pieces: Pieces, calibration: Calibration = SHIPPED, policies: Iterable[str] = POLICIES
) -> Replayed:
    """Return what each policy would have given each run, and what the run would have needed.

    Raises:
        InputError: no sizes, or a size that is none.
    """
    if not pieces.sizes_mib or any(size <= 0 for sizes in pieces.sizes_mib.values() for size in sizes):
        raise InputError("the sizes of the pieces must be MiB above 0")
    names = tuple(policies)
    outcomes: list[Outcome] = []
    without: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        sizes = pieces.of(case.row.run.gpu_model)
        ideal = next((size for size in sizes if size >= case.row.peak_mib), None)
        if ideal is None:
            why = "larger than the whole GPU" if sizes else "a GPU model of which no piece is known"
            without[why].add(case.row.run.job_id)
            continue
        outcomes += (_outcome(name, case, sizes, ideal, pieces.headroom_mib, calibration) for name in names)
    return Replayed(tuple(outcomes), {why: len(runs) for why, runs in without.items()})


def scores(outcomes: Sequence[Outcome]) -> list[Score]:
    """Return how each policy did, by how much was known, and below the ladder how each of its rungs did."""
    groups: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        groups[one.case.known, one.policy, ""].append(one)
    for one in outcomes:
        if one.policy == LADDER:
            groups[one.case.known, one.policy, one.rung].append(one)
    order = list(POLICIES)
    known = list(dict.fromkeys(one.case.known for one in outcomes))
    keys = sorted(groups, key=lambda key: (known.index(key[0]), order.index(key[1]), key[2]))
    return [_score(policy, rung, of, groups[of, policy, rung]) for of, policy, rung in keys]


def _score(policy: str, rung: str, known: str, outcomes: Sequence[Outcome]) -> Score:
    answered = [(one, one.memory, one.chosen_mib) for one in outcomes if one.memory and one.chosen_mib is not None]
    # A whole GPU expects nothing.
    expected = [] if policy == WHOLE else [(one.case.row.peak_mib, memory.q50) for one, memory, _ in answered]
    errors = sorted(abs(q50 / peak - 1) for peak, q50 in expected)
    busy = [(one.case.row.run.sm_active_mean_pct, one.sm_active_pct.q99) for one in outcomes if one.sm_active_pct]
    judged = [(measured, q99) for measured, q99 in busy if measured is not None]
    return Score(
        policy=policy,
        rung=rung,
        known=known,
        placements=len(outcomes),
        configurations=len({one.case.row.run.signature for one in outcomes}),
        answered=len(answered),
        abstained=len(outcomes) - len(answered),
        underestimates=sum(memory.q99 < one.case.row.peak_mib for one, memory, _ in answered),
        out_of_memory=sum(one.case.row.peak_mib > chosen for one, _, chosen in answered),
        exact=sum(chosen == one.ideal_mib for one, _, chosen in answered),
        too_big=sum(chosen > one.ideal_mib for one, _, chosen in answered),
        allocated_mib=sum(chosen for _, _, chosen in answered),
        ideal_mib=sum(one.ideal_mib for one, _, _ in answered),
        median_error=median(errors) if errors else None,
        p95_error=errors[math.ceil(0.95 * len(errors)) - 1] if errors else None,
        sm_judged=len(judged),
        sm_underestimates=sum(q99 < measured for measured, q99 in judged),
    )


def _outcome(
    policy: str, case: Case, sizes: Sequence[int], ideal: int, headroom: int, calibration: Calibration
) -> Outcome:
    question = Question(
        signature=case.row.run.signature,
        numbers=case.row.numbers,
        runs=tuple(row.run for row in case.runs),
        relatives=tuple(row.run for row in case.relatives),
        calibration=calibration,
        families=case.families,
    )
    found = POLICIES[policy](Asked(question, case, sizes[-1]))
    if isinstance(found, str):
        return Outcome(policy, "", case, None, None, ideal)
    memory = found.gpu_mem_peak_mib
    # csub places by the model that a footprint was measured on.
    if memory is None or found.gpu_model not in ("", case.row.run.gpu_model):
        return Outcome(policy, found.rung, case, None, None, ideal)
    chosen = next((size for size in sizes if size >= memory.q99 + headroom), sizes[-1])
    sm = found.sm_active_pct
    return Outcome(policy, found.rung, case, memory, chosen, ideal, found.margin, found.expected_mib, sm)


def _families(rows: Sequence[Row]) -> list[list[tuple[Row, Parts]]]:
    families: dict[str, list[tuple[Row, Parts]]] = defaultdict(list)
    for row in rows:
        parts = parts_of(row.run.signature)
        if parts is not None:
            families[parts.family].append((row, parts))
    return list(families.values())


def _case(row: Row, own: Parts, known: Sequence[tuple[Row, Parts]], how_many: str = "") -> Case:
    """Return the case as csub's look-up sorts what it finds: relatives are asked where no run of the job completed."""
    known = sorted(known, key=lambda one: one[0].run.ended_s)
    runs = tuple(one for one, parts in known if is_same(own, parts))
    if any(one.completed for one in runs):
        return Case(row, runs, (), how_many)
    relatives = tuple(one for one, parts in known if not is_same(own, parts) and is_relative(own, parts))
    return Case(row, runs, relatives, how_many)


def _spread(some: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    """Return all of them, or so many at even distances."""
    step = max(1, math.ceil(len(some) / _MOST_PAIRS))
    return some[::step]
