# SPDX-License-Identifier: Apache-2.0
"""The worth of sharing in sentences and a table for people, and as JSON. Pure."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.units import counted, in_words, printable
from slurm_colloc.plan.need import Need
from slurm_colloc.plan.past import PIECES
from slurm_colloc.plan.scenario import Range
from slurm_colloc.plan.text import plain, table, unreplayed_hours
from slurm_colloc.slurm.hostlist import count

SCHEMA = 1
_HOURS_PER_YEAR = 8766
# The part of the time of all GPUs that jobs have on a site that is always full, between jobs too large for the rest.
_FULL = 0.93
# The replay differs from the truth in these, and each turns the worth one way.
_SIGNS = (
    "worth too large: csub learns what a job needs from its first run; here it is known from the first",
    "worth too large: no job on a piece runs out of memory or is harmed by a neighbour here",
    "worth too large: who waits less submits more: past jobs do not tell how many",
    "worth too small: a job that was not measured, did not complete or had several GPUs keeps its GPUs whole",
    "worth too small: each job keeps the cores and host memory that it had, and waits for them on its piece, too",
)
# Jobs on pieces, which they are with sharing only.
_PLACED = "would get a part of a GPU"
# docs/benchmarks.md has these.
MEASURED = (
    "measured, of jobs of seconds: 6 % of those placed at submission (11 of 176) and 19 % of those placed while they "
    "waited (7 of 36) were more than 25 % slower; of jobs that shared nothing 12 % were (5 of 43), by chance"
)
_ISOLATION = {
    "slice": "hardware separates jobs on MIG slices of one GPU: memory, faults and SMs",
    "shard": "nothing separates jobs on shards of one GPU",
    "one": "under MPS all jobs on a GPU are of one user: a fault ends that user's jobs there",
    "each": "under MPS a fault ends the jobs of its own user on that GPU; users' jobs take turns",
    "all": "under MPS a fault ends the jobs of all users on that GPU, and nothing is between them",
}


class Extras(NamedTuple):
    """Facts beside the replay: an answer with use assumed, the rate of jobs harmed, the price of a GPU-hour."""

    assumed: Need | None = None
    harmed: str = ""
    price: float | None = None
    currency: str = ""


def headline(answer: Need) -> list[str]:
    """Return in sentences whether fewer GPUs do, who waits less, who waits longer, and how sure it is; or why not."""
    if not answer.is_trusted:
        return [
            f"What sharing is worth is not said: the replay of today misses the mean wait that was "
            f"({in_words(answer.measured_mean_s)}) by {answer.error_pct:.0f} %."
        ]
    waits = f"the waits {'asked for' if answer.bound.most_s else 'of today'}"
    all_gpus = f"all {answer.gpus}"
    named = {None: f"more than {all_gpus}", answer.gpus: all_gpus}
    shared, without = (named.get(gpus, f"{gpus} of {answer.gpus}") for gpus in (answer.shared, answer.whole))
    if answer.sharing.pieces:
        can = answer.shared and answer.shared < (answer.whole or answer.gpus + 1)
        saves = "You can do with fewer GPUs by sharing" if can else "Sharing saves no GPU here"
        need = f"{shared}, with or without it" if shared == without else f"{shared} with it, {without} without it"
        return [f"{saves}: to keep {waits} you need {need}.{_too_few(answer)}", *_sooner(answer), _certainty(answer)]
    unknown = "What sharing is worth is not known: of no job of one GPU is it known that a piece holds it."
    return [f"{unknown} To keep {waits} without sharing you need {without} GPUs.", _certainty(answer)]


def _too_few(answer: Need) -> str:
    """Return whose waits one GPU less would make too long."""
    fewer = answer.shared - 1 if answer.shared else answer.gpus
    whose = [
        f"{_jobs_of(name)} ({in_words(then.mean_s)} instead of {in_words(today.mean_s)})"
        for name, _, today, *_, then in answer.classes[:-1]
        if then and then.mean_s > answer.bound.of(name, today.mean_s)
    ]
    return f" With {fewer}, these would wait too long on average: {', '.join(whose)}." if whose else ""


def _jobs_of(name: str) -> str:
    return f"jobs of {name}".replace(f"of {PIECES}", f"that {_PLACED}")


def _sooner(answer: Need) -> Iterator[str]:
    """Yield who waits less with sharing on all GPUs, and who longer, by the mean and by the slowest."""
    slowdown = answer.sharing.slowdown
    means: list[str] = []
    slowest: list[str] = []
    for name, number, today, on_all, *_ in answer.classes[:-1]:
        jobs = _jobs_of(name)
        # The wait that 95 of 100 stay below is the longest one of 20 jobs.
        prefix, suffix = ("", " or more") if number > 20 else (f"the slowest of {number}: ", "")
        mean = f"{in_words(on_all.mean_s)} instead of {in_words(today.mean_s)}"
        if on_all.mean_s > today.mean_s + 1:
            means.append(f"{jobs} ({mean})")
        if on_all.p95_s > today.p95_s + 1:
            slowest.append(f"{jobs} ({prefix}{in_words(on_all.p95_s)}{suffix} instead of {in_words(today.p95_s)})")
        if slowdown and name.startswith(PIECES):
            slower, less_s = slowdown.expected - 1, today.mean_s - on_all.mean_s
            then = f"and then run {100 * slower:.0f} % longer."
            if slower > 0 and less_s > 0:
                then += f" So on average such a job ends sooner if it runs for less than {in_words(less_s / slower)}."
            yield f"With sharing on all {answer.gpus}, {jobs} wait {mean} on average, {then}"
    average = "These wait longer there on average: " if means else "No class waits longer there on average"
    among = f"among {', '.join(slowest)}" if slowest else "in no class"
    yield f"{average}{', '.join(means)}. The slowest 5 of 100 wait longer {among}."


def _certainty(answer: Need) -> str:
    drawn = covers = ""
    if (worth := answer.worth) and worth.low is None:
        covers = f" Your data covers {counted(answer.weeks, 'whole week')}. With four or more a range can be given."
    elif worth:
        drawn = f"; in nine of ten draws of its weeks it saves {worth.low:.0f} to {worth.high:.0f} GPUs"
    return (
        f"How sure: a replay of the past, off by {in_words(answer.error_s)} from the mean wait that was "
        f"({in_words(answer.measured_mean_s)}){drawn}.{covers} "
        "The notes of 'colloc site need' say what makes it too good or too bad; which of them prevails is not known."
    )


def tables(answer: Need) -> list[list[list[str]]]:
    """Return the GPUs that keep the waits, where the worth is said, and the waits: tables, their titles first."""
    fewest = [list(_fewest(answer, answer.worth))] if answer.worth and answer.is_trusted else []
    # The worst of one week is the mean.
    return [*fewest, [row[: 6 + (answer.weeks > 1)] for row in _waits(answer)]]


def _fewest(answer: Need, worth: Range) -> Iterator[list[str]]:
    yield ["FOR THE WAITS OF TODAY", "GPUS", "IN WHOLE NODES"]
    yield ["without sharing", str(answer.whole), str(answer.whole_nodes)]
    for part, gpus in answer.by_adoption.items():
        yield [f"csub places {100 * part:g} % of jobs", str(gpus or "more than all"), "not computed"]
    yield ["csub places all jobs", str(answer.shared), str(answer.shared_nodes)]
    yield ["worth of sharing", _worth(worth), str((answer.whole_nodes or 0) - (answer.shared_nodes or 0))]


def _worth(worth: Range) -> str:
    return f"{worth.value:.0f}" if worth.low is None else f"{worth.value:.0f} ({worth.low:.0f} to {worth.high:.0f})"


def as_json(answer: Need, extras: Extras) -> str:
    """Return all of an answer: seconds, GPUs; null is not known."""
    fields = {name: plain(value) for name, value in answer._asdict().items() if name != "sharing"}
    fields["headline"] = " ".join(headline(answer))
    fields["one_gpu"], fields["on_pieces"] = answer.sharing.one_gpu, len(answer.sharing.pieces)
    fields["assumed_worth"] = plain(extras.assumed.worth) if extras.assumed and extras.assumed.worth else None
    return json.dumps({"schema": SCHEMA, **fields}, indent=2) + "\n"


def as_text(answer: Need, config: SiteConfig, window: tuple[str, str], extras: Extras) -> str:
    """Return an answer for people."""
    lines = [*headline(answer), "", "DETAILS", title(answer, config, window)]
    for cells in tables(answer):
        lines += [*table(cells), ""]
    lines += [*facts(answer, config, extras), "", *(f"note: {line}" for line in notes(answer))]
    return "".join(f"{printable(line)}\n" for line in lines)


def title(answer: Need, config: SiteConfig, window: tuple[str, str]) -> str:
    """Return of what the answer is."""
    held = f"{answer.gpus} whole GPUs, {100 * answer.load:.0f} % held"
    return f"{config.cluster}, {window[0]} to {window[1]}: {counted(answer.jobs, 'job')}, {held}"


def _waits(answer: Need) -> Iterator[list[str]]:
    yield ["JOBS THAT WAIT", "JOBS", "GPUS", "MEAN", "MEDIAN", "95 OF 100", "WORST WEEK"]
    for of_class in answer.classes:
        cases = {
            f"{answer.gpus}, as today": of_class.today,
            f"{answer.gpus}, sharing": of_class.on_all if answer.sharing.pieces else None,
            f"{answer.shared}, sharing": of_class.on_need,
            f"{answer.shared}, a node down": of_class.node_down,
        }
        name, jobs = of_class.name.replace(PIECES, _PLACED), str(of_class.jobs)
        for case, waits in cases.items():
            if waits:
                yield [name, jobs, case, *map(in_words, waits)]
                name = jobs = ""


def facts(answer: Need, config: SiteConfig, extras: Extras) -> Iterator[str]:
    """Yield what else a decision needs: parts of the jobs, growth, speed, isolation, money."""
    bound = ", ".join(f"of {name} {in_words(most_s)}" for name, most_s in answer.bound.most_s.items())
    by = f"the larger of {in_words(answer.bound.more_s)} and {100 * answer.bound.more_part:.0f} %"
    longer = f"grows by more than {by}" if answer.bound.more_s or answer.bound.more_part else "grows"
    yield f"waits are kept if no class's mean wait {longer}{f'; at most, {bound}' if bound else ''}"
    if (assumed := extras.assumed) and assumed.is_trusted and assumed.worth:
        yield (
            f"if {assumed.assumed} jobs not measured used what --assume says, sharing were worth "
            f"{_worth(assumed.worth)} GPUs: {assumed.shared} of {assumed.gpus} gave the waits of today"
        )
    if not answer.is_trusted:
        yield from unreplayed_hours(answer.unreplayed)
        return
    if answer.worth is None:
        return
    if sum(count(pool.nodes) for pool in config.pool) == 1:
        yield "the site has one node: it cannot be saved, and while it is down no job runs"
    more = "more than 200" if answer.growth is None else f"{100 * (answer.growth - 1):.0f}"
    yield f"if {more} % more jobs came, the gain on all {answer.gpus} GPUs would be gone (tried in steps of 10 %)"
    if slowdown := answer.sharing.slowdown:
        jobs = f"{len(answer.sharing.pieces)} of {answer.sharing.one_gpu} jobs of one GPU"
        yield (
            f"{jobs} {_PLACED}; the plan assumes that they are {100 * (slowdown.expected - 1):.0f} % slower there on "
            f"average, and csub's limit is {100 * (config.sharing.max_slowdown - 1):.0f} % (sharing.max_slowdown)"
        )
        yield MEASURED
    yield extras.harmed or "harmed jobs: not known before csub places some; then 'colloc report --harm' says"
    users = [partition.mps_users or "each" for partition in config.partition] or ["each"]
    kinds = {
        kind
        for piece in answer.sharing.pieces.values()
        for kind in {"mps": users, "shard": ["shard"]}.get(piece.kind, ["slice"])
    }
    yield from (f"isolation: {how}" for kind, how in _ISOLATION.items() if kind in kinds)
    if extras.price is not None and answer.worth.value > 0:
        hours = answer.worth.value * _HOURS_PER_YEAR
        yield f"a year: {hours:,.0f} GPU-hours, {hours * extras.price:,.0f} {extras.currency}"


def notes(answer: Need) -> Iterator[str]:
    """Yield what a reader must know to trust or doubt the figures."""
    if answer.load >= _FULL:
        yield (
            f"jobs had {100 * answer.load:.0f} % of the time of all GPUs: if a site is always full, waits and what "
            "jobs may wait grow with the window; name waits by --wait"
        )
    yield from _SIGNS
    yield from answer.left_out
