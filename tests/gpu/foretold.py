# SPDX-License-Identifier: Apache-2.0
"""What foretells how much neighbours, or fewer SMs, slow a job: `python -m tests.gpu.foretold`.

Of a job alone on the whole GPU are known a, its mean SM activity, and b, the part of the time in which some kernel of
it runs (busy time), both from 0 to 1. A slowdown is taken for 1 + c x, with x by SM activity alone or with b as well:

    beside others    a times the sum of the others' a      b^2 times the sum of the others' a, or of their a^2 / b
    on fewer SMs     a (k - 1), or a^2 (k - 1)             a^3 / b^2 (k - 1), or a^2 / b (k - 1)

where k is the SMs of the whole GPU over those of the part. With b they read: a job that always has a kernel to run
waits for each of its neighbours' (that fills the SMs while it runs, a / b), and it lacks the SMs that its own fill.

The factor c is chosen for each program by the jobs of all others. A row of the report has by how much the foretold
differs from the measured, in percent at the mean (of the amount) and by root mean square, their correlation, and how
many jobs would be let at a bound of 1.25 if what is foretold had to be below some limit: the highest of those at which
at most FEW of the jobs let are over the bound. That limit is chosen by the same jobs, so it flatters all alike; what
csub has now was chosen by all of them. "Filled" judges what csub does: which mixes its counts let together at each
bound, and what comes of it where the two constants of the rule are chosen by the mixes that lack a program. Tables:
neighbours_h200.csv, and the older slowdowns_*.csv and mixes_h100.csv, with the busy time of slowdowns_h100.csv and
proof_h100/rates.csv.
"""

from __future__ import annotations

import csv
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from slurm_colloc.placement.speed import beside, on_slice, part_needed
from tests.gpu.slowdowns import best

FOLDER, BOUND, FEW, WORST, SMS = Path(__file__).parent, 1.25, 0.02, 1.45, 132.0


_HEAD = "| foretold by | error: mean, rms | correlation | let at 1.25 |\n| --- | --- | --- | --- |"


class Alone(NamedTuple):
    """What is known of a job by itself: SM activity and busy time, from 0 to 1."""

    active: float
    busy: float


class Job(NamedTuple):
    """A job that was slowed: beside others in a mix, or on a part of the SMs (``whole_over_own``)."""

    program: str
    alone: Alone
    slowdown: float
    others: tuple[Alone, ...] = ()
    mix: str = ""
    whole_over_own: float = 1.0


Figure = Callable[[Job], float]
BESIDE: dict[str, Figure] = {
    "SM activity": lambda job: job.alone.active * sum(one.active for one in job.others),
    "and busy time": lambda job: job.alone.busy**2 * sum(one.active for one in job.others),
    "and that of others": lambda job: job.alone.busy**2 * sum(one.active**2 / one.busy for one in job.others),
}
FEWER: dict[str, Figure] = {
    "SM activity": lambda job: job.alone.active * (job.whole_over_own - 1),
    "SM activity squared": lambda job: job.alone.active**2 * (job.whole_over_own - 1),
    "and busy time, a^3/b^2": lambda job: job.alone.active**3 / job.alone.busy**2 * (job.whole_over_own - 1),
    "and busy time, a^2/b": lambda job: job.alone.active**2 / job.alone.busy * (job.whole_over_own - 1),
}


def _rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def _alone(rows: Iterable[Mapping[str, str]]) -> Alone:
    pairs = [(float(row["sm_active_pct"]), float(row["gr_active_pct"])) for row in rows]
    active, busy = (statistics.mean(one) / 100 for one in zip(*pairs, strict=True))
    return Alone(active, max(active, busy))


def measured() -> dict[str, list[Job]]:
    """Return the jobs of neighbours_h200.csv by part."""
    rows, alone = _rows("neighbours_h200.csv"), defaultdict[str, list[dict[str, str]]](list)
    for row in rows:
        if row["part"] == "alone":
            alone[row["program"]].append(row)
    known = {program: _alone(of) for program, of in alone.items()}
    found: dict[str, list[Job]] = {"mixed": [], "limited": []}
    for row in rows:
        if row["part"] in found:
            others = tuple(known[name] for name in row["beside"].split(" + ") if name)
            job = Job(row["program"], known[row["program"]], float(row["slowdown"]), others)
            is_mixed = row["part"] == "mixed"
            job = (
                job._replace(mix=row["run"]) if is_mixed else job._replace(whole_over_own=SMS / float(row["sm_count"]))
            )
            found[row["part"]].append(job)
    return found


def older() -> dict[str, list[Job]]:
    """Return those of the older tables."""
    limited, known = [], dict[str, Alone]()
    for name in ("proof_h100/rates.csv", "slowdowns_h100.csv", "slowdowns_h200.csv"):
        for command, points in best(_rows(name)).items():
            whole = points.pop(100, None)
            if not whole:
                continue
            alone = _alone([whole])
            if "h200" not in name:
                known[command] = alone
            if name.startswith("slowdowns"):
                limited += [
                    Job(
                        f"{name} {command}",
                        alone,
                        float(whole["steps_per_s"]) / float(row["steps_per_s"]),
                        whole_over_own=SMS / float(row["sm_count"]),
                    )
                    for row in points.values()
                ]
    mixes = defaultdict[str, list[dict[str, str]]](list)
    for row in _rows("mixes_h100.csv"):
        if "twice" not in row["mix"]:
            mixes[row["mix"]].append(row)
    mixed = []
    for mix, of in mixes.items():
        each = []
        for row in of:
            active = float(row["alone_sm_active_pct"]) / 100
            each.append(Alone(active, max(active, known[row["command"]].busy)))
        for i, row in enumerate(of):
            slowdown = float(row["alone_steps_per_s"]) / float(row["steps_per_s"])
            mixed.append(Job(row["command"], each[i], slowdown, (*each[:i], *each[i + 1 :]), mix))
    return {"mixed": mixed, "limited": limited}


def factor(jobs: Sequence[Job], figure: Figure) -> float:
    """Return the factor by which a figure fits the slowdowns best, by least squares."""
    pairs = [(figure(job), job.slowdown - 1) for job in jobs]
    return max(0.0, sum(value * more for value, more in pairs) / sum(value * value for value, _ in pairs))


def foretold(jobs: Sequence[Job], figure: Figure) -> list[float]:
    """Return the slowdown of each job, by the factor of all other programs' jobs."""
    factors = {
        one: factor([job for job in jobs if job.program != one], figure) for one in {job.program for job in jobs}
    }
    return [1 + factors[job.program] * figure(job) for job in jobs]


class Judged(NamedTuple):
    """How well slowdowns were foretold."""

    jobs: int
    mean_error_pct: float
    rms_error_pct: float
    correlation: float


def judged(jobs: Sequence[Job], told: Sequence[float]) -> Judged:
    """Return how far the foretold is from the measured."""
    off = [math.log(guess / job.slowdown) for job, guess in zip(jobs, told, strict=True)]
    correlation = statistics.correlation([job.slowdown for job in jobs], told)
    mean_pct, rms_pct = 100 * statistics.mean(map(abs, off)), 100 * math.sqrt(statistics.mean(x * x for x in off))
    return Judged(len(jobs), mean_pct, rms_pct, correlation)


def let(jobs: Sequence[Job], score: Sequence[float]) -> tuple[int, int, int]:
    """Return how many mixes (or jobs without one) are let, their jobs, and how many of these are over the bound."""
    groups = defaultdict[object, list[int]](list)
    for i, job in enumerate(jobs):
        groups[job.mix or i].append(i)
    found, taken, over = (0, 0, 0), 0, 0
    worst = sorted((max(score[i] for i in of), of) for of in groups.values())
    for number, (_, of) in enumerate(worst, 1):
        taken, over = taken + len(of), over + sum(jobs[i].slowdown > BOUND for i in of)
        if over <= FEW * taken:
            found = (number, taken, over)
    return found


def _expected(job: Job) -> float:
    others_pct = 100 * sum(one.active for one in job.others)
    return beside(100 * job.alone.active, others_pct, 100 * job.alone.busy).expected


def _part(one: Alone, bound: float) -> float:
    return part_needed(100 * one.active, bound, 100 * one.busy)


def _part_by_sum(one: Alone, bound: float) -> float:
    return part_needed(100 * one.active, bound)


class Filled(NamedTuple):
    """What came of the mixes that counts let together: mixes, their jobs, those over the bound, the worst slowdown."""

    mixes: int
    jobs: int
    over: int
    worst: float


def filled(jobs: Iterable[Job], part: Callable[[Alone], float], bound: float = BOUND) -> Filled:
    """Return what came of the mixes whose programs together need no more than a GPU."""
    mixes = _by_mix(jobs)
    taken = [of for of in mixes if sum(part(job.alone) for job in of) <= 1 + 1e-9]
    slowdowns = [job.slowdown for of in taken for job in of]
    return Filled(len(taken), len(slowdowns), sum(one > bound for one in slowdowns), max(slowdowns, default=1.0))


def _by_mix(jobs: Iterable[Job]) -> list[list[Job]]:
    found = defaultdict[str, list[Job]](list)
    for job in jobs:
        found[job.mix].append(job)
    return list(found.values())


def _rule(together: float, beside: float) -> Callable[[Alone], float]:
    return lambda one: max(one.active, together - beside / one.busy**2) / together


# What all SM activities may come to, and what may run beside a job that always has a kernel.
RULES = [_rule(a / 100, b / 100) for a in range(60, 125, 5) for b in range(4, 40, 2)]


def filled_by_others(jobs: Sequence[Job]) -> Filled:
    """Return the same of each program's jobs at BOUND where the rule was chosen by the mixes that lack the program.

    It is the rule that lets most jobs together of which at most FEW are over, and none by more than WORST.
    """
    chosen, mixes = set[str](), _by_mix(jobs)
    slowdowns = []
    for program in {job.program for job in jobs}:
        others = [job for of in mixes if all(one.program != program for one in of) for job in of]

        def worth(rule: Callable[[Alone], float], others: Sequence[Job] = others) -> int:
            found = filled(others, rule)
            return found.jobs if found.over <= FEW * found.jobs and found.worst <= WORST else -1

        rule = max(RULES, key=worth)
        for of in mixes:
            if sum(rule(job.alone) for job in of) <= 1 + 1e-9:
                own = [job.slowdown for job in of if job.program == program]
                slowdowns += own
                chosen |= {of[0].mix} if own else set()
    return Filled(len(chosen), len(slowdowns), sum(one > BOUND for one in slowdowns), max(slowdowns))


class Cut(NamedTuple):
    """SMs of the least parts that a rule gives and of the least within BOUND; parts that it accepts, and those over.

    No job is slower on more SMs: what says so is noise.
    """

    given: float
    ideal: float
    accepted: int
    over: int

    @property
    def over_ideal(self) -> float:
        """Return SMs given over those of perfect knowledge."""
        return self.given / self.ideal


# What a job hides more by the part of its time without a kernel; csub's is 0.4.
HIDDEN = [step / 10 for step in range(16)]


def cut(jobs: Iterable[Job], hidden: float) -> Cut:
    """Return what comes of slices by the rule of placement/speed.py with another part that a job hides more."""
    groups = defaultdict[str, list[Job]](list)
    for job in sorted(jobs, key=lambda job: job.whole_over_own):
        groups[job.program].append(job)
    return _sum(_cut(group, hidden) for group in groups.values())


def _sum(cuts: Iterable[Cut]) -> Cut:
    return Cut(*map(sum, zip(*cuts, strict=True)))


def _cut(parts: Sequence[Job], hidden: float) -> Cut:
    """Return the same of one program, whose largest part is the first."""
    slowdowns = [min(job.slowdown for job in parts[i:]) for i in range(len(parts))]
    uppers = [on_slice(100 * job.alone.active, job.whole_over_own).upper - 1 for job in parts]
    fits = [1 + more / (1 + hidden * (1 - parts[0].alone.busy)) <= BOUND for more in uppers]
    keeps = [slowdown <= BOUND for slowdown in slowdowns]
    sms = [SMS / job.whole_over_own for job in parts]
    given, ideal = (min(itertools.compress(sms, which), default=SMS) for which in (fits, keeps))
    return Cut(given, ideal, sum(fits), sum(fit and not keep for fit, keep in zip(fits, keeps, strict=True)))


def cut_by_others(jobs: Sequence[Job], few: float) -> Cut:
    """Return the same where each network's part was chosen by all others: the one that accepts most, so few over."""
    by_network = defaultdict[str, list[Job]](list)
    for job in jobs:
        by_network[job.program.partition("--model ")[2].split(" ")[0] or job.program].append(job)
    cuts = {(network, hidden): cut(of, hidden) for network, of in by_network.items() for hidden in HIDDEN}
    left_out = list[Cut]()
    for network in by_network:
        others = {hidden: _sum(cuts[name, hidden] for name in by_network if name != network) for hidden in HIDDEN}
        allowed = [hidden for hidden, of in others.items() if of.over <= few * of.accepted]
        left_out.append(cuts[network, max(allowed, key=lambda hidden: others[hidden].accepted, default=0.0)])
    return _sum(left_out)


def _of_cuts(jobs: Sequence[Job]) -> Iterator[str]:
    yield "\n| slices at 1.25 | SMs given over ideal | accepted | over |\n| --- | --- | --- | --- |"
    cuts = {"SM activity": cut(jobs, 0), "and busy time": cut(jobs, 0.4)}
    cuts |= {f"chosen by all others, {100 * few:g} %": cut_by_others(jobs, few) for few in (0.005, 0.01, 0.015, 0.02)}
    yield from (f"| {name} | {of.over_ideal:.2f} | {of.accepted} | {of.over} |" for name, of in cuts.items())


def _of_counts(new: Sequence[Job], old: Sequence[Job]) -> Iterator[str]:
    yield "\nFilled by counts\n\n| bound | new: mixes, jobs, over, worst | older | by SM activity alone: new | older |"
    yield "| --- | --- | --- | --- | --- |"
    for bound in (1.1, 1.25, 1.4, 1.6):
        rules = [partial(_part, bound=bound), partial(_part_by_sum, bound=bound)]
        found = [filled(jobs, rule, bound) for rule in rules for jobs in (new, old)]
        yield f"| {bound} | " + " | ".join("{}, {}, {}, {:.2f}".format(*one) for one in found) + " |"
    yield "\nchosen by all other programs, at 1.25: {} mixes, {} jobs, {} over, worst {:.2f}".format(
        *filled_by_others([*new, *old])
    )


def _line(name: str, jobs: Sequence[Job], told: Sequence[float], score: Sequence[float]) -> str:
    of, (groups, taken, over) = judged(jobs, told), let(jobs, score)
    mixes = f"{groups} mixes, " if jobs[0].others else ""
    errors = f"{of.mean_error_pct:.1f}, {of.rms_error_pct:.1f} %"
    return f"| {name} | {errors} | {of.correlation:.2f} | {mixes}{taken} jobs, {over} over |"


def _of_mixes(title: str, jobs: Sequence[Job]) -> Iterator[str]:
    over, mixes = [job for job in jobs if job.slowdown > BOUND], {job.mix for job in jobs}
    without = len(mixes - {job.mix for job in over})
    yield f"\n{title}: {len(jobs)} jobs, {len(over)} over; {without} of {len(mixes)} mixes without one\n\n{_HEAD}"
    rule = [_expected(job) for job in jobs]
    yield _line("csub now", jobs, rule, [sum(_part(one, BOUND) for one in (job.alone, *job.others)) for job in jobs])
    for name, figure in BESIDE.items():
        yield _line(name, jobs, told := foretold(jobs, figure), told)


def _of_limits(title: str, jobs: Sequence[Job]) -> Iterator[str]:
    within = sum(job.slowdown <= BOUND for job in jobs)
    yield f"\n{title}: {len(jobs)} jobs and limits, {within} not over\n\n{_HEAD}"
    rule = [on_slice(100 * job.alone.active, job.whole_over_own, 100 * job.alone.busy) for job in jobs]
    yield _line("csub now", jobs, [one.expected for one in rule], [one.upper for one in rule])
    for name, figure in FEWER.items():
        yield _line(name, jobs, told := foretold(jobs, figure), told)


def _by_busy_time(jobs: Sequence[Job]) -> Iterator[str]:
    yield "\n| busy time | jobs | mean slowdown | over 1.25 |\n| --- | --- | --- | --- |"
    for low, high in itertools.pairwise((0, 30, 50, 80, 100)):
        here = [job.slowdown for job in jobs if low < 100 * job.alone.busy <= high]
        over = sum(one > BOUND for one in here)
        yield f"| {low} to {high} % | {len(here)} | {statistics.mean(here):.2f} | {over} |"


def report() -> str:
    """Return all tables."""
    new, old = measured(), older()
    lines = [*_by_busy_time(new["mixed"]), *_of_mixes("New mixes", new["mixed"])]
    lines += [*_of_mixes("Older mixes", old["mixed"]), *_of_mixes("All mixes", [*new["mixed"], *old["mixed"]])]
    lines.append(f"\nNew mixes by the factor of the older ones\n\n{_HEAD}")
    for name, figure in BESIDE.items():
        told = [1 + factor(old["mixed"], figure) * figure(job) for job in new["mixed"]]
        lines.append(_line(f"{name}, {factor(old['mixed'], figure):.1f}", new["mixed"], told, told))
    lines += _of_counts(new["mixed"], old["mixed"])
    lines += _of_cuts([*new["limited"], *old["limited"]])
    lines += [*_of_limits("New", new["limited"]), *_of_limits("All", [*new["limited"], *old["limited"]])]
    return "\n".join(lines).strip()


if __name__ == "__main__":
    print(report())
