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


def trusted(found: Need) -> bool:
    """Return whether the replay of today is near enough to what was."""
    return found.error_pct <= MOST_ERROR_PCT or found.error_s <= MOST_ERROR_S


def headline(found: Need) -> str:
    """Return what sharing is worth, both ways; or why that is not said."""
    if not trusted(found):
        return (
            f"What sharing is worth is not said: the replay of today misses the mean wait that was "
            f"({in_words(found.measured_mean_s)}) by {found.error_pct:.0f} %."
        )
    if not found.sharing.pieces:
        need = (
            "" if found.whole is None else f" Without sharing, the waits of today need {found.whole} of {found.gpus}."
        )
        return f"What sharing is worth is not known: of no job of one GPU is it known that a piece holds it.{need}"
    both = _sooner(found)
    if found.worth is None or found.shared is None:
        lost = "not even all GPUs keep the waits of today" + ("" if found.whole is None else " with sharing")
        return f"Sharing is worth no GPU: {lost}. On all {found.gpus} {both}."
    if found.worth.value <= 0:
        return (
            f"Sharing is worth no GPU: the waits of today need {found.whole} of {found.gpus} without it and "
            f"{found.shared} with it. On all {found.gpus} {both}."
        )
    worth = f"{counted(int(found.worth.value), 'GPU')}{_ends(found.worth)}"
    return (
        f"Sharing is worth {worth}: the waits of today need {found.shared} of {found.gpus} with it and {found.whole} "
        f"without it; or on all {found.gpus} {both}."
    )


def _ends(worth: Range) -> str:
    return "" if worth.low is None else f" ({worth.low:.0f} to {worth.high:.0f})"


def _sooner(found: Need) -> str:
    *classes, total = found.classes
    pieces = next((one for one in classes if one.name.startswith(PIECES)), total)
    longer = [one for one in classes if one.on_all.mean_s > one.today.mean_s + 1]
    whole = " and no class of jobs waits longer"
    if longer:
        whole = " but " + ", ".join(f"a job of {one.name} {_change(one)}" for one in longer)
    return f"a job on a piece {_change(pieces)},{whole}"


def _change(one: ClassNeed) -> str:
    return f"waits {in_words(one.on_all.mean_s)} instead of {in_words(one.today.mean_s)}"


def as_json(found: Need, extras: Extras) -> str:
    """Return all of an answer: seconds, GPUs; null is not known."""
    shown = {name: plain(value) for name, value in found._asdict().items() if name != "sharing"}
    shown["headline"] = headline(found)
    shown["one_gpu"], shown["on_pieces"] = found.sharing.one_gpu, len(found.sharing.pieces)
    shown["assumed_worth"] = plain(extras.assumed.worth) if extras.assumed and extras.assumed.worth else None
    return json.dumps({"schema": SCHEMA, **shown}, indent=2) + "\n"


def as_text(found: Need, config: SiteConfig, window: tuple[str, str], extras: Extras) -> str:
    """Return an answer for people."""
    lines = [headline(found), "", title(found, config, window), *table(rows(found)), ""]
    lines += [*facts(found, config, extras), "", *(f"note: {line}" for line in notes(found))]
    return "".join(f"{printable(line)}\n" for line in lines)


def title(found: Need, config: SiteConfig, window: tuple[str, str]) -> str:
    """Return of what the answer is."""
    what = f"{counted(found.jobs, 'job')}, {found.gpus} whole GPUs, {100 * found.load:.0f} % held"
    return f"{config.cluster}, {window[0]} to {window[1]}: {what}"


def rows(found: Need) -> Iterator[list[str]]:
    """Yield the table of waits, its titles first."""
    yield ["WAITS", "JOBS", "ON", "MEAN", "MEDIAN", "95 OF 100", "WORST WEEK"]
    for one in found.classes:
        cases = {
            f"{found.gpus}, as today": one.today,
            f"{found.gpus}, sharing": one.on_all if found.sharing.pieces else None,
            f"{found.shared}, sharing": one.on_need,
            f"{found.shared}, a node down": one.node_down,
        }
        name, jobs = one.name, str(one.jobs)
        for case, waits in cases.items():
            if waits:
                yield [name, jobs, case, *map(in_words, waits)]
                name = jobs = ""


def facts(found: Need, config: SiteConfig, extras: Extras) -> Iterator[str]:
    """Yield what else a decision needs: parts of the jobs, growth, speed, isolation, money."""
    bound = ", ".join(f"of {name} {in_words(most_s)}" for name, most_s in found.bound.most_s.items())
    by = f"the larger of {in_words(found.bound.more_s)} and {100 * found.bound.more_part:.0f} %"
    longer = f"grows by more than {by}" if found.bound.more_s or found.bound.more_part else "grows"
    yield f"kept is: no class's mean wait {longer}{f'; at most, {bound}' if bound else ''}"
    if (assumed := extras.assumed) and trusted(assumed) and assumed.worth:
        yield (
            f"if {assumed.assumed} jobs not measured used what --assume says, sharing were worth "
            f"{assumed.worth.value:.0f} GPUs{_ends(assumed.worth)}: {assumed.shared} of {assumed.gpus}"
        )
    if not trusted(found):
        yield from unreplayed_hours(found.unreplayed)
    if not trusted(found) or found.worth is None:
        return
    yield f"in whole nodes: {found.shared_nodes} GPUs with sharing, {found.whole_nodes} without"
    if sum(count(pool.nodes) for pool in config.pool) == 1:
        yield "the site has one node: sharing saves none, and no job runs while it is down"
    if found.by_adoption:
        parts = [f"of {100 * part:g} % of jobs {gpus or 'more than all'}" for part, gpus in found.by_adoption.items()]
        yield f"GPUs where csub places but a part: {', '.join(parts)}, of all {found.shared}"
    grown = "not by 3" if found.growth is None else f"by {found.growth:.2f}"
    yield f"used up, on all {found.gpus}: {grown} times as many jobs"
    if slowdown := found.sharing.slowdown:
        mean_pct, most_pct = (100 * (factor - 1) for factor in slowdown)
        jobs = f"{len(found.sharing.pieces)} of {found.sharing.one_gpu} jobs of one GPU"
        yield f"on pieces: {jobs}, {mean_pct:.0f} % slower on average, few by more than {most_pct:.0f} %"
    yield extras.harmed or "harmed jobs: not known before csub places some; then 'colloc report --harm' says"
    users = [partition.mps_users or "each" for partition in config.partition] or ["each"]
    kinds = {
        kind
        for piece in found.sharing.pieces.values()
        for kind in {"mps": users, "shard": ["shard"]}.get(piece.kind, ["slice"])
    }
    yield from (f"isolation: {how}" for kind, how in _ISOLATION.items() if kind in kinds)
    if extras.price is not None and found.worth.value > 0:
        hours = found.worth.value * _HOURS_PER_YEAR
        yield f"a year: {hours:,.0f} GPU-hours, {hours * extras.price:,.0f} {extras.currency}"


def notes(found: Need) -> Iterator[str]:
    """Yield what a reader must know to trust or doubt the figures."""
    yield (
        f"the replay of today misses the mean wait that was ({in_words(found.measured_mean_s)}) by "
        f"{in_words(found.error_s)}; all figures are replays against replays"
    )
    if found.load >= _FULL:
        yield (
            f"jobs had {100 * found.load:.0f} % of the time of all GPUs: if a site is always full, waits and what jobs "
            "may wait grow with the window; name waits by --wait"
        )
    if found.worth and found.worth.low is None:
        yield f"no range: a queue lasts from week to week, and the window has {counted(found.weeks, 'whole week')} of 4"
    elif found.worth:
        yield f"in brackets is where nine of ten draws of the window's {found.weeks} weeks have it"
    yield from (f"worth {sign}: {why}" for sign, why in _SIGNS)
    yield from found.left_out
