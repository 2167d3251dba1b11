# SPDX-License-Identifier: Apache-2.0
"""How well estimates place past runs: `python -m tests.evaluate TABLE.csv... --slices MIB,... or --shares MIB`.

A policy says what a run needs of a GPU from other runs of its table; the site's rules (placement/choose.py) make a
piece of that, or leave the run a whole GPU. What it costs is that part of a GPU for as long as the run was measured to
take on it, and a whole GPU for once more where its memory did not suffice. The oracle knows memory and time, and takes
the least of these costs. Each configuration is placed as if it had never run: known by a repeat, or by one, two or all
others.

A table has one run a row: `at_s`, `command`, `gpu_model`, `state`, `peak_mib`, `sm_active_pct`, `dram_active_pct` and
`gr_active_pct` or `gpu_util_pct`, of which all behind `peak_mib` may be missing. One with `limit_pct` and `steps_per_s`
has each command several times, on so many percent of the SMs (tests/gpu/slowdowns.py). Other columns are not read. With
`--series FILE...` runs are judged that are cut while they go on (tests/settled.py), without a table.
"""

import argparse
import csv
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from slurm_colloc.core.config import MigSlice, Partition, Pool, Sharing, SiteConfig
from slurm_colloc.core.model import COMPLETED, Evidence, Footprint, Placement, Quantiles
from slurm_colloc.core.units import most_of_whole
from slurm_colloc.estimate.bounds import lower_bound, upper_bound
from slurm_colloc.estimate.calibration import SHIPPED
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.question import Question
from slurm_colloc.estimate.seeds_and_sizes import is_inert
from slurm_colloc.estimate.signature import Parts, is_relative, is_same, parts_of, signature
from slurm_colloc.estimate.snapshot import RELATIVES_READ
from slurm_colloc.placement.choose import place
from slurm_colloc.placement.fitted import past_request
from slurm_colloc.placement.pieces import shares_per_gpu
from slurm_colloc.placement.speed import on_slice, part_needed
from tests.settled import read_series, settled_lines

SAME = "the same job"
CSUB = "csub"
# Of one configuration, at most so many ways to know one or two others: enough for a rate, and bounded.
_MOST_WAYS = 60
# What of the placements near the bound may be over it.
_MAY_BE_OVER = 0.02
# After so long a run that goes on counts: the site's, and what the recordings are long enough for.
_SETTLE_S = (Sharing().settle_s, 60.0, 30.0, 20.0, 10.0)
_NOT_BUSY = Quantiles(0.0, 0.0, 0.0)
_One = TypeVar("_One")


class Row(NamedTuple):
    """One past run; ``slowdowns`` are (percent of the SMs, times as long as with all of them), where measured."""

    run: Evidence
    numbers: tuple[str, ...]
    source: str
    peak_mib: float
    gpu_util_pct: float | None
    slowdowns: tuple[tuple[float, float], ...] = ()

    @property
    def completed(self) -> bool:
        """Return whether its peak is one; of any other run it is a bound."""
        return self.run.state == COMPLETED


class Case(NamedTuple):
    """One run to be placed, what is known of it, and by which runs of the same job and of its relatives."""

    row: Row
    known: str
    runs: tuple[Row, ...]
    relatives: tuple[Row, ...]


class Piece(NamedTuple):
    """A part of a GPU, its memory, and the percent of the SMs that it may use; on a share it may use all.

    ``most_part`` is the largest part that a job on a share may need for its SM activity and busy time.
    """

    part: float
    mem_mib: float
    sm_pct: float
    most_part: float | None = None


class Judged(NamedTuple):
    """One run as one policy placed it.

    ``given`` and ``ideal`` are GPU-hours for an hour of the run on a whole GPU; ``memory_given`` and ``memory_ideal``
    what they are where no run is too slow for a piece, and ``out_of_memory`` that its memory does not suffice there.
    ``too_slow`` is None where nothing tells: a share is too slow for what needs a larger one for its speed, for that
    slows its neighbours, or they slow it.
    """

    policy: str
    case: Case
    footprint: Footprint
    given: float
    ideal: float
    memory_given: float
    memory_ideal: float
    out_of_memory: bool
    too_slow: bool | None

    @property
    def missed(self) -> bool:
        """Return whether it needed more memory than the q99 said."""
        memory = self.footprint.gpu_mem_peak_mib
        return memory is not None and self.case.row.peak_mib > memory.q99


class Kept(NamedTuple):
    """What the answers of one margin kept of its promise, in one source of runs; an empty source is all of them."""

    margin: str
    source: str
    promised: float
    answers: int
    missed: int

    @property
    def is_broken(self) -> bool:
        """Return whether it keeps less than it promises beyond doubt."""
        return lower_bound(self.missed, self.answers) > 1 - self.promised


def read_table(path: Path) -> list[Row]:
    """Return the runs of a table in order of time."""
    with path.open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    rows = _by_limit(lines, path.stem) if "limit_pct" in lines[0] else [_row(line, path.stem) for line in lines]
    return sorted(rows, key=lambda row: row.run.ended_s)


def _row(line: Mapping[str, str], source: str) -> Row:
    def figure(name: str) -> float | None:
        return float(line[name]) if line.get(name) else None

    found = signature(line["command"].encode(), (), 1, folder="/dev/null")
    run = Evidence(
        job_id=line["at_s"],
        signature=found.text,
        state=line["state"],
        mode="exclusive",
        gpu_model=line["gpu_model"],
        gpu_mem_peak_mib=math.ceil(float(line["peak_mib"])),
        sm_active_mean_pct=figure("sm_active_pct"),
        sm_active_q95_pct=figure("sm_active_pct"),
        sm_is_bound=False,
        sample_count=100,
        sampled_s=0.0,
        ended_s=float(line["at_s"]),
        elapsed_s=None,
        dram_active_q95_pct=figure("dram_active_pct"),
        busy_mean_pct=figure("gr_active_pct") or figure("gpu_util_pct"),
    )
    return Row(run, found.names, source, float(line["peak_mib"]), figure("gpu_util_pct"))


def _by_limit(lines: Iterable[dict[str, str]], source: str) -> Iterator[Row]:
    """Yield a run of each command on all SMs, with how much longer it takes on fewer."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for line in lines:
        groups[line["command"], line["gpu_model"]].append(line)
    for number, group in enumerate(groups.values(), 1):
        # Of several passes the fastest counts: what interferes only slows.
        fastest = {
            float(line["limit_pct"]): line for line in sorted(group, key=lambda line: float(line["steps_per_s"]))
        }
        row = _row({**fastest[100], "at_s": str(number), "peak_mib": fastest[100]["gpu_mem_used_mib"]}, source)
        speed = float(fastest[100]["steps_per_s"])
        slowdowns = ((limit, speed / float(line["steps_per_s"])) for limit, line in fastest.items())
        yield row._replace(slowdowns=tuple(sorted(slowdowns)))


def cases(rows: Iterable[Row]) -> Iterator[Case]:
    """Yield each configuration that completed: known by one run of it, and by one, two or all others of its family.

    A run that was not repeated is taken for its own repeat; of several the last whose SM activity is known is taken.
    """
    families: dict[str, dict[str, list[tuple[Row, Parts]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if parts := parts_of(row.run.signature):
            families[parts.family][row.run.signature].append((row, parts))
    for family in families.values():
        for text, runs in family.items():
            done = [one for one in runs if one[0].completed]
            if not done:
                continue
            row, parts = done[0]
            repeats = [one for one, _ in reversed(done)]
            repeat = next((one for one in repeats if one.run.sm_active_mean_pct is not None), repeats[0])
            yield Case(row, SAME, (repeat,), ())
            others = [of for name, of in family.items() if name != text]
            ways = {"one other": [(one,) for one in _spread(others)], "two others": _pairs(others)}
            for known, way in {**ways, "all others": [others] if others else []}.items():
                yield from (_case(row, parts, known, [one for of in some for one in of]) for some in way)


def _case(row: Row, own: Parts, known: str, others: list[tuple[Row, Parts]]) -> Case:
    """Return the case as csub's look-up sorts what it finds: relatives are asked where no run of the job completed."""
    others.sort(key=lambda one: one[0].run.ended_s)
    runs = tuple(one for one, parts in others if is_same(own, parts))
    if any(one.completed for one in runs):
        return Case(row, known, runs, ())
    relatives = [one for one, parts in others if not is_same(own, parts) and is_relative(own, parts)]
    return Case(row, known, runs, tuple(relatives[-RELATIVES_READ:]))


def _spread(some: Sequence[_One]) -> Sequence[_One]:
    """Return all of them, or so many at even distances."""
    return some[:: max(1, math.ceil(len(some) / _MOST_WAYS))]


def _pairs(of: Sequence[_One]) -> Iterator[tuple[_One, _One]]:
    """Yield all pairs in the order of itertools.combinations, or so many at even distances, without the rest."""
    many = len(of) * (len(of) - 1) // 2
    for number in _spread(range(many)):
        first, left = 0, number
        while left >= len(of) - 1 - first:
            left -= len(of) - 1 - first
            first += 1
        yield of[first], of[first + 1 + left]


def _line(asked: Question) -> Footprint:
    """Twenty lines that any rung must beat: the same job, a line through the nearest two, or all but 700 MiB grows."""
    own, found = parts_of(asked.signature), _whole(asked)
    if own is None or own.values is None:
        return found
    peaks: dict[float, float] = {}
    for run in (*asked.runs, *asked.relatives):
        parts = parts_of(run.signature)
        if parts is not None and parts.values is not None and run.state == COMPLETED:
            pairs = zip(asked.numbers, own.values, parts.values, strict=True)
            size = math.prod(had / has for name, has, had in pairs if had > 0 < has and not is_inert(name))
            peaks[size] = max(peaks.get(size, 0.0), float(run.gpu_mem_peak_mib or 0))
    known = sorted(peaks.items(), key=lambda one: (abs(one[0] - 1), one[0]))[:2]
    if not known:
        return found
    (size, peak), need = known[0], known[0][1] * 1.15
    if size != 1 and len(known) == 1:
        need = peak if size > 1 else 700 + (peak - 700) / size
    elif size != 1:
        need = 1.15 * (peak + (known[1][1] - peak) * (1 - size) / (known[1][0] - size))
    sm = max((run.sm_active_mean_pct for run in asked.runs or asked.relatives if run.sm_active_mean_pct), default=None)
    busy = sm if sm is None else Quantiles(sm, sm, sm)
    return found._replace(gpu_mem_peak_mib=Quantiles(need, need, need), sm_active_pct=busy)


def _whole(_: Question) -> Footprint:
    return Footprint(None, None, None, "", "", 0, ())


# Another policy is another line here.
POLICIES: Mapping[str, Callable[[Question], Footprint]] = {"whole GPU always": _whole, "line": _line, CSUB: estimate}


def any_gpu(slices: Sequence[int], shares_mib: int = 0) -> SiteConfig:
    """Return a site of one GPU of any model: slices with SMs as they have memory, the whole one the last, or shares."""
    whole_mib = shares_mib or max(slices)
    parts = tuple(
        MigSlice(f"s{mib}", f"{mib}", mib, max(1, 100 * mib // whole_mib), 1)
        for mib in sorted(slices)
        if mib < whole_mib
    )
    pool = Pool("any", "n1", ("any",), gpus_per_node=1, gpu_mem_mib=whole_mib, sm_count=100)
    pool = pool._replace(mps_per_gpu=100) if shares_mib else pool._replace(slice=parts)
    sharing = Sharing(order=("mps",), mps_daemon="prolog") if shares_mib else Sharing(order=("mig",))
    partition = Partition("any", mps_users="one")
    return SiteConfig(1, "any", "24.11", "any", pool=(pool,), partition=(partition,), sharing=sharing)


def replay(of: Iterable[Case], config: SiteConfig, policies: Iterable[str] = POLICIES) -> list[Judged]:
    """Return how each policy places each run that the site's one kind of GPU holds."""
    held = [case for case in of if case.row.peak_mib <= (config.pool[0].gpu_mem_mib or 0)]
    return [_judged(name, case, config) for case in held for name in policies]


def _judged(policy: str, case: Case, config: SiteConfig) -> Judged:
    row, [pool] = case.row, config.pool
    runs, relatives = (tuple(one.run for one in some) for some in (case.runs, case.relatives))
    found = POLICIES[policy](Question(signature=row.run.signature, numbers=row.numbers, runs=runs, relatives=relatives))
    if found.gpu_model not in ("", row.run.gpu_model):
        found = found._replace(gpu_mem_peak_mib=None)
    found = found._replace(gpu_model="")
    request = past_request("gpu:1", pool.partitions[0], "", "")._replace(cpus_given=False, mem_given=False)
    by_memory = _piece(place(request, found._replace(sm_active_pct=_NOT_BUSY, busy_pct=None), config), config)
    # Of a run whose SM activity nobody measured nothing can be said but its memory.
    knows_sm = row.run.sm_active_mean_pct is not None
    piece = _piece(place(request, found, config), config) if knows_sm else by_memory
    slowdown = _slowdown(row, piece.sm_pct) if piece else None
    return Judged(
        policy=policy,
        case=case,
        footprint=found,
        given=_cost(piece, row.peak_mib, slowdown),
        ideal=_ideal(row, config),
        memory_given=_cost(by_memory, row.peak_mib),
        memory_ideal=_ideal(
            row._replace(slowdowns=(), run=row.run._replace(sm_active_mean_pct=None, busy_mean_pct=None)), config
        ),
        out_of_memory=by_memory is not None and row.peak_mib > by_memory.mem_mib,
        too_slow=_too_slow(row, piece, slowdown, config),
    )


def _too_slow(row: Row, piece: Piece | None, slowdown: float | None, config: SiteConfig) -> bool | None:
    if piece is not None and piece.most_part is not None:
        # What percentages are summed from leaves a little above a share that the run just fills.
        known = row.run.sm_active_mean_pct is not None
        return _part(row, config) > piece.most_part + 1e-9 if known else None
    return None if slowdown is None else slowdown > config.sharing.max_slowdown


def _cost(piece: Piece | None, peak_mib: float, slowdown: float | None = None) -> float:
    return 1.0 if piece is None else piece.part * (slowdown or 1.0) + (peak_mib > piece.mem_mib)


def _piece(placement: Placement, config: SiteConfig) -> Piece | None:
    """Return the piece of a placement; None where the job keeps its whole GPU."""
    gres = placement.gres
    if gres is None:
        return None
    return _share(gres.quantity, config) if gres.name == "mps" else _slice(config, gres.type)


def _slice(config: SiteConfig, type_: str) -> Piece:
    [pool] = config.pool
    found = next(one for one in pool.slice if one.type == type_)
    of_sms = found.sm_count / (pool.sm_count or math.inf)
    return Piece(max(of_sms, found.mem_mib / (pool.gpu_mem_mib or 0)), found.mem_mib, 100 * of_sms)


def _share(units: int, config: SiteConfig) -> Piece:
    [pool] = config.pool
    count = shares_per_gpu(pool, "mps")
    part = units / count
    return Piece(part, part * (pool.gpu_mem_mib or 0), 100.0, most_of_whole(units, count))


def _part(row: Row, config: SiteConfig) -> float:
    active_pct, busy_pct = row.run.sm_active_mean_pct or 0.0, row.run.busy_mean_pct
    return part_needed(active_pct, config.sharing.max_slowdown, busy_pct and max(busy_pct, active_pct))


def _ideal(row: Row, config: SiteConfig) -> float:
    """Return the least GPU-hours that a run can have within the site's bound."""
    [pool] = config.pool
    shares = range(1, shares_per_gpu(pool, "mps")) if "mps" in config.sharing.order else ()
    pieces = [Piece(1.0, pool.gpu_mem_mib or 0, 100.0), *(_slice(config, one.type) for one in pool.slice)]
    costs = []
    for piece in (*pieces, *(_share(units, config) for units in shares)):
        slowdown = _slowdown(row, piece.sm_pct) or 1.0
        holds = piece.most_part is None or _part(row, config) <= piece.most_part
        fits = row.peak_mib <= piece.mem_mib and holds
        if fits and slowdown <= config.sharing.max_slowdown:
            costs.append(piece.part * slowdown)
    return min(costs)


def _slowdown(row: Row, sm_pct: float) -> float | None:
    """Return what was measured for so many of the SMs, between two measured shares in proportion; None where it was
    not. Below the least share that was measured the time is taken to grow as the SMs shrink.
    """
    if not row.slowdowns:
        return None
    known = sorted({**dict(row.slowdowns), 100.0: 1.0}.items())
    if sm_pct <= known[0][0]:
        return max(1.0, known[0][1]) * known[0][0] / sm_pct
    (low, slow), (high, fast) = next(pair for pair in pairwise(known) if sm_pct <= pair[1][0])
    of = (math.log(sm_pct) - math.log(low)) / (math.log(high) - math.log(low))
    return max(1.0, math.exp(math.log(slow) * (1 - of) + math.log(fast) * of))


def over_ideal(judged: Sequence[Judged]) -> float:
    """Return GPU-hours given over those of the oracle."""
    return sum(one.given for one in judged) / sum(one.ideal for one in judged)


def memory_over_ideal(judged: Sequence[Judged]) -> float:
    """Return the same where no run is too slow for a piece."""
    return sum(one.memory_given for one in judged) / sum(one.memory_ideal for one in judged)


def kept(judged: Iterable[Judged]) -> list[Kept]:
    """Return what each margin promised and kept, over all sources and in each."""
    answers: Counter[tuple[str, str]] = Counter()
    missed: Counter[tuple[str, str]] = Counter()
    for one in judged:
        if one.policy == CSUB and (margin := one.footprint.margin):
            for source in ("", one.case.row.source):
                answers[margin, source] += 1
                missed[margin, source] += one.missed
    return [
        Kept(margin, source, SHIPPED.margins[margin].confidence or 1.0, count, missed[margin, source])
        for (margin, source), count in sorted(answers.items())
    ]


def _policy_lines(judged: Iterable[Judged]) -> Iterator[tuple[str, ...]]:
    yield "known", "policy", "placed", "GPU-hours over ideal", "by memory", "out of memory", "too slow", "over q99"
    groups: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for one in judged:
        groups[one.case.known, one.policy].append(one)
    for (known, policy), some in groups.items():
        slow = [one.too_slow for one in some if one.too_slow is not None]
        rates = (_rate([one.out_of_memory for one in some]), _rate(slow), _rate([one.missed for one in some]))
        yield known, policy, f"{len(some)}", f"{over_ideal(some):.2f}", f"{memory_over_ideal(some):.2f}", *rates


def _rate(some: Sequence[bool]) -> str:
    if not some:
        return "-"
    return f"{100 * sum(some) / len(some):.1f} % (<= {100 * upper_bound(sum(some), len(some)):.1f})"


def _speed_lines(rows: Iterable[Row], bound: float) -> Iterator[tuple[str, ...]]:
    """Yield how placement/speed.py does for slices, by card and by the telemetry that it knows a run by.

    A placement is one run on one part of the SMs on which it was measured, and near the bound where the upper end of
    what the rule foretells is in the upper half of what the bound allows.
    """
    yield (
        f"at most {bound:g}x",
        "by",
        "measured",
        "accepted",
        "over",
        "near",
        "over",
        "of what perfect knowledge accepts",
    )
    groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        for limit_pct, measured in (one for one in row.slowdowns if one[0] < 100):
            own, busy_pct = row.run.sm_active_mean_pct, row.run.busy_mean_pct
            both = own if busy_pct is not None else None
            for by, active_pct, runs_pct in (
                ("SM activity", own, None),
                ("and busy time", both, max(own or 0.0, busy_pct or 0.0)),
                ("GPU_UTIL", row.gpu_util_pct, None),
            ):
                if active_pct is not None:
                    foretold = on_slice(active_pct, 100 / limit_pct, runs_pct).upper
                    groups[row.run.gpu_model, by].append((foretold, measured))
                    groups["all", by].append((foretold, measured))
    for (model, by), found in groups.items():
        taken = [(foretold, measured > bound) for foretold, measured in found if foretold <= bound]
        over, near = [over for _, over in taken], [over for foretold, over in taken if foretold >= 1 + (bound - 1) / 2]
        doubt = ", more than chance" if lower_bound(sum(near), len(near)) > _MAY_BE_OVER else ""
        of_ideal = (len(over) - sum(over)) / sum(measured <= bound for _, measured in found)
        counts = (f"{len(found)}", f"{len(over)}", f"{sum(over)}", f"{len(near)}", f"{sum(near)}{doubt}")
        yield model, by, *counts, f"{100 * of_ideal:.1f} %"


def _margin_lines(found: Iterable[Kept]) -> Iterator[tuple[str, ...]]:
    yield "margin", "source", "promised", "kept", "answers", ""
    for one in found:
        rate = 100 * (1 - one.missed / one.answers)
        broken = "broken" if one.is_broken else ""
        yield one.margin, one.source or "all", f"{100 * one.promised:.1f} %", f"{rate:.1f} %", f"{one.answers}", broken


def main() -> None:
    """Print how policies, the rule of speed and margins do on tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.evaluate", description=__doc__)
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE.csv")
    parser.add_argument("--series", nargs="+", default=[], type=Path, metavar="FILE", help="of readings of runs")
    pieces = parser.add_mutually_exclusive_group()
    pieces.add_argument("--slices", default="", help="usable MiB of each slice, by comma, the whole GPU the last")
    pieces.add_argument("--shares", type=int, default=0, help="MiB of a GPU that MPS shares in hundredths")
    parser.add_argument("--max-slowdown", type=float, default=Sharing().max_slowdown)
    given = parser.parse_args()
    if given.tables and not (given.slices or given.shares):
        parser.error("a table wants --slices or --shares")
    if given.series:
        _print(settled_lines((one for path in given.series for one in read_series(path)), _SETTLE_S))
    if not given.tables:
        return
    config = any_gpu([int(mib) for mib in given.slices.split(",") if mib], given.shares)
    config = config._replace(sharing=config.sharing._replace(max_slowdown=given.max_slowdown))
    tables = [read_table(path) for path in given.tables]
    judged = replay((case for rows in tables for case in cases(rows)), config)
    speeds = _speed_lines((row for rows in tables for row in rows), given.max_slowdown)
    for lines in (_policy_lines(judged), speeds, _margin_lines(kept(judged))):
        _print(lines)


def _print(table: Iterable[tuple[str, ...]]) -> None:
    lines = list(table)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in lines)
    print(*(line.rstrip() for line in shown), "", sep="\n")


if __name__ == "__main__":
    main()
