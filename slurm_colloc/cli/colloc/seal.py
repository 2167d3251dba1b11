# SPDX-License-Identifier: Apache-2.0
"""colloc seal: this node's journal into the site's store."""

import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from math import inf
from typing import Annotated, NamedTuple

import typer

from slurm_colloc.accounting.samples import Samples, SealedHour, day_and_hour
from slurm_colloc.cli.colloc.output import node_name, say, service_folder, site
from slurm_colloc.clock import now
from slurm_colloc.errors import StoreError
from slurm_colloc.observe.attribute import attribute_round
from slurm_colloc.observe.journal import Hour, hours

_HOUR_S, _DAY_S = 3600, 86_400
# A pass that began within the hour may be written somewhat later.
_CLOSED_AFTER_S = 120


class Sealed(NamedTuple):
    """What was done: hours written with their Rounds and unusable lines; ``kept`` are hours sealed by earlier runs.

    An hour that was sealed beside a day that had been rolled up with less of it is in neither: its journal must stay.
    ``busy`` are nodes whose journal another run is sealing, ``errors`` says of the rest why it is not sealed.
    """

    hours: int
    rounds: int
    rejected: int
    kept: tuple[Hour, ...]
    busy: tuple[str, ...]
    errors: tuple[str, ...]


def seal(
    node: Annotated[str, typer.Option("--node", help="this node's name in Slurm")] = "",
    journal: Annotated[str, typer.Option("--journal", help="folder of samples; else the site's")] = "",
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
    open_hour: Annotated[bool, typer.Option("--open", help="the hour that is still running, too")] = False,
) -> None:
    """Write the closed hours of this node's journal into the store, and drop old ones that it has.

    Exit status 1: the store could not be written; the next run catches up.
    """
    config = site()
    node = node or node_name()
    folder, target = service_folder("journal", journal), service_folder("store", store)
    closed_s = inf if open_hour else now() - _HOUR_S - _CLOSED_AFTER_S
    found = list(hours(folder))
    others = sorted({hour.node for hour in found})
    if node not in others and (others or not os.path.isdir(folder)):
        there = f"there are: {', '.join(others[:5])}" if others else "no such folder"
        raise StoreError(f"no journal of node '{node}' in '{folder}' ({there}); give --node, as the agent has it")
    mine = [hour for hour in found if hour.node == node and hour.began_s <= closed_s]
    done = seal_hours(Samples(target), config.cluster, mine)
    if done.busy:
        say(f"another run is sealing the journal of {node}")
        return
    if done.errors:
        more = f" (and {len(done.errors) - 1} more)" if len(done.errors) > 1 else ""
        say(f"error: {done.errors[0]}{more}; the journal stays, the next run catches up")
        raise typer.Exit(1)
    oldest_s = now() - _HOUR_S - config.observe.keep_journal_days * _DAY_S
    old = [hour for hour in done.kept if hour.began_s < oldest_s]
    for hour in old:
        with suppress(FileNotFoundError):
            os.unlink(hour.path)
    if done.hours or old:
        rejected = f", {done.rejected} lines rejected" if done.rejected else ""
        say(f"{node}: sealed {done.hours} h with {done.rounds} samples{rejected}; dropped {len(old)} h sealed before")


def seal_hours(store: Samples, cluster: str, journal: Iterable[Hour]) -> Sealed:
    """Write the hours of a journal, by node, that the store does not have in full."""
    hour_count = rounds = rejected = 0
    kept: list[Hour] = []
    busy: list[str] = []
    errors: list[str] = []
    for node, group in groupby(journal, key=lambda hour: hour.node):
        there: dict[str, dict[tuple[str, str], SealedHour]] = {}
        try:
            with store.work("seal", cluster, node) as work:
                if work is None:
                    busy.append(node)
                    continue
                for hour in group:
                    day = day_and_hour(hour.began_s)[0]
                    try:
                        # A damaged file stops its own day only.
                        if day not in there:
                            there[day] = store.sealed(cluster, node, [day])
                        known = there[day].get(day_and_hour(hour.began_s))
                        if known and known.size_bytes == hour.size_bytes():
                            kept += [hour] if known.counts else []
                            continue
                        rounds += store.seal(cluster, hour, attribute_round, work)
                    except StoreError as error:
                        errors.append(str(error))
                        continue
                    hour_count, rejected = hour_count + 1, rejected + hour.rejected
        except StoreError as error:
            errors.append(str(error))
    return Sealed(hour_count, rounds, rejected, tuple(kept), tuple(busy), tuple(errors))
