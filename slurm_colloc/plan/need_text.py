# SPDX-License-Identifier: Apache-2.0
"""The worth of sharing in sentences and a table for people, and as JSON. Pure."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.units import counted, in_words, printable
from slurm_colloc.plan.need import MOST_ERROR_PCT, MOST_ERROR_S, ClassNeed, Need
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
    ("too large", "csub learns what a job needs from its first run; here it is known from the first"),
    ("too large", "no job on a piece runs out of memory or is harmed by a neighbour here"),
    ("too large", "who waits less submits more: past jobs do not tell how many"),
    ("too small", "a job that was not measured, did not complete or had several GPUs keeps its GPUs whole"),
    ("too small", "each job keeps the cores and the host memory that it had, and waits for them on its piece, too"),
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


def trusted(answer: Need) -> bool:
    """Return whether the replay of today is near enough to what was."""
    return answer.error_pct <= MOST_ERROR_PCT or answer.error_s <= MOST_ERROR_S


def headline(answer: Need) -> str:
    """Return what sharing is worth, both ways; or why that is not said."""
    if not trusted(answer):
        return (
            f"What sharing is worth is not said: the replay of today misses the mean wait that was "
            f"({in_words(answer.measured_mean_s)}) by {answer.error_pct:.0f} %."
        )
    if not answer.sharing.pieces:
        need = (
            ""
            if answer.whole is None
            else f" Without sharing, the waits of today need {answer.whole} of {answer.gpus}."
        )
        return f"What sharing is worth is not known: of no job of one GPU is it known that a piece holds it.{need}"
    if answer.worth is None or answer.shared is None:
        lost = "not even all GPUs keep the waits of today" + ("" if answer.whole is None else " with sharing")
        return f"Sharing is worth no GPU: {lost}. On all {answer.gpus}, {_sooner(answer)}."
    if answer.worth.value <= 0:
        return f"Sharing is worth no GPU: with it, the waits need no fewer. On all {answer.gpus}, {_sooner(answer)}."
    worth = counted(int(answer.worth.value), "GPU")
    return (
        f"Sharing is worth {worth}: with it, so many fewer keep the waits of today. "
        f"Or keep all {answer.gpus}: {_sooner(answer)}."
    )


def _sooner(answer: Need) -> str:
    *classes, total = answer.classes
    pieces = next((of_class for of_class in classes if of_class.name.startswith(PIECES)), total)
    longer = [of_class for of_class in classes if of_class.on_all.mean_s > of_class.today.mean_s + 1]
    waiting = "".join(f", but jobs of {of_class.name} {_change(of_class)}" for of_class in longer)
    return f"jobs on pieces {_change(pieces)}{waiting or ', and no class of jobs waits longer'}"


def _change(of_class: ClassNeed) -> str:
    return f"wait {in_words(of_class.on_all.mean_s)} instead of {in_words(of_class.today.mean_s)}"


def tables(answer: Need) -> list[list[list[str]]]:
    """Return the GPUs that keep the waits, where the worth is said, and the waits: tables, their titles first."""
    return [*([list(_fewest(answer, answer.worth))] if answer.worth and trusted(answer) else []), list(_waits(answer))]


def _fewest(answer: Need, worth: Range) -> Iterator[list[str]]:
    yield ["FOR THE WAITS OF TODAY", "GPUS", "IN WHOLE NODES"]
    yield ["without sharing", str(answer.whole), str(answer.whole_nodes)]
    for part, gpus in answer.by_adoption.items():
        yield [f"csub places {100 * part:g} % of jobs", str(gpus or "more than all"), "-"]
    yield ["csub places all jobs", str(answer.shared), str(answer.shared_nodes)]
    yield ["worth of sharing", _worth(worth), str((answer.whole_nodes or 0) - (answer.shared_nodes or 0))]


def _worth(worth: Range) -> str:
    return f"{worth.value:.0f}" if worth.low is None else f"{worth.value:.0f} ({worth.low:.0f} to {worth.high:.0f})"


def as_json(answer: Need, extras: Extras) -> str:
    """Return all of an answer: seconds, GPUs; null is not known."""
    shown = {name: plain(value) for name, value in answer._asdict().items() if name != "sharing"}
    shown["headline"] = headline(answer)
    shown["one_gpu"], shown["on_pieces"] = answer.sharing.one_gpu, len(answer.sharing.pieces)
    shown["assumed_worth"] = plain(extras.assumed.worth) if extras.assumed and extras.assumed.worth else None
    return json.dumps({"schema": SCHEMA, **shown}, indent=2) + "\n"


def as_text(answer: Need, config: SiteConfig, window: tuple[str, str], extras: Extras) -> str:
    """Return an answer for people."""
    lines = [headline(answer), "", title(answer, config, window)]
    for cells in tables(answer):
        lines += [*table(cells), ""]
    lines += [*facts(answer, config, extras), "", *(f"note: {line}" for line in notes(answer))]
    return "".join(f"{printable(line)}\n" for line in lines)


def title(answer: Need, config: SiteConfig, window: tuple[str, str]) -> str:
    """Return of what the answer is."""
    what = f"{counted(answer.jobs, 'job')}, {answer.gpus} whole GPUs, {100 * answer.load:.0f} % held"
    return f"{config.cluster}, {window[0]} to {window[1]}: {what}"


def _waits(answer: Need) -> Iterator[list[str]]:
    yield ["WAITS", "JOBS", "ON", "MEAN", "MEDIAN", "95 OF 100", "WORST WEEK"]
    for of_class in answer.classes:
        cases = {
            f"{answer.gpus}, as today": of_class.today,
            f"{answer.gpus}, sharing": of_class.on_all if answer.sharing.pieces else None,
            f"{answer.shared}, sharing": of_class.on_need,
            f"{answer.shared}, a node down": of_class.node_down,
        }
        name, jobs = of_class.name, str(of_class.jobs)
        for case, waits in cases.items():
            if waits:
                yield [name, jobs, case, *map(in_words, waits)]
                name = jobs = ""


def facts(answer: Need, config: SiteConfig, extras: Extras) -> Iterator[str]:
    """Yield what else a decision needs: parts of the jobs, growth, speed, isolation, money."""
    bound = ", ".join(f"of {name} {in_words(most_s)}" for name, most_s in answer.bound.most_s.items())
    by = f"the larger of {in_words(answer.bound.more_s)} and {100 * answer.bound.more_part:.0f} %"
    longer = f"grows by more than {by}" if answer.bound.more_s or answer.bound.more_part else "grows"
    yield f"kept is: no class's mean wait {longer}{f'; at most, {bound}' if bound else ''}"
    if (assumed := extras.assumed) and trusted(assumed) and assumed.worth:
        yield (
            f"if {assumed.assumed} jobs not measured used what --assume says, sharing were worth "
            f"{_worth(assumed.worth)} GPUs: {assumed.shared} of {assumed.gpus} gave the waits of today"
        )
    if not trusted(answer):
        yield from unreplayed_hours(answer.unreplayed)
    if not trusted(answer) or answer.worth is None:
        return
    if sum(count(pool.nodes) for pool in config.pool) == 1:
        yield "the site has one node: sharing saves none, and no job runs while it is down"
    grown = "not by 3" if answer.growth is None else f"by {answer.growth:.2f}"
    yield f"used up, on all {answer.gpus}: {grown} times as many jobs"
    if slowdown := answer.sharing.slowdown:
        mean_pct, most_pct = (100 * (factor - 1) for factor in slowdown)
        jobs = f"{len(answer.sharing.pieces)} of {answer.sharing.one_gpu} jobs of one GPU"
        yield f"on pieces: {jobs}, {mean_pct:.0f} % slower on average, few by more than {most_pct:.0f} %"
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
    yield (
        f"the replay of today misses the mean wait that was ({in_words(answer.measured_mean_s)}) by "
        f"{in_words(answer.error_s)}; all figures are replays against replays"
    )
    if answer.load >= _FULL:
        yield (
            f"jobs had {100 * answer.load:.0f} % of the time of all GPUs: if a site is always full, waits and what "
            "jobs may wait grow with the window; name waits by --wait"
        )
    if answer.worth and answer.worth.low is None:
        yield (
            f"no range: a queue lasts from week to week, and the window has {counted(answer.weeks, 'whole week')} of 4"
        )
    elif answer.worth:
        yield f"in brackets is where nine of ten draws of the window's {answer.weeks} weeks have it"
    yield from (f"worth {sign}: {why}" for sign, why in _SIGNS)
    yield from answer.left_out
