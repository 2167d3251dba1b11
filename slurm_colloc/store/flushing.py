# SPDX-License-Identifier: Apache-2.0
"""Writes finished hours of the nodes' journals into the store."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import NamedTuple, Protocol

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.usage_model import AttributedUse, NodeSample
from slurm_colloc.store.samples import FlushedHour, Samples, Source, day_and_hour


class JournalHour(Source, Protocol):
    """An hour of a node's journal as a file that may still grow."""

    path: str

    def size_bytes(self) -> int:
        """Return how long it is now."""
        ...


class Flushed(NamedTuple):
    """Hours written with their NodeSamples, and unusable lines; ``kept`` are hours flushed by earlier runs.

    An hour is in neither that was flushed where only facts of its day were left, made with less of it: its journal must
    stay.
    ``busy`` are nodes whose journal another run is flushing, ``errors`` says of the rest why it is not flushed.
    """

    hours: int
    rounds: int
    rejected: int
    kept: tuple[JournalHour, ...]
    busy: tuple[str, ...]
    errors: tuple[str, ...]


def flush_hours(
    store: Samples,
    cluster: str,
    journal: Iterable[JournalHour],
    attribute: Callable[[NodeSample], tuple[AttributedUse, ...]],
) -> Flushed:
    """Write the hours of a journal, by node, that the store does not have in full.

    ``attribute`` splits a NodeSample over its jobs.
    """
    hour_count = rounds = rejected = 0
    kept: list[JournalHour] = []
    busy: list[str] = []
    errors: list[str] = []
    for node, group in groupby(journal, key=lambda hour: hour.node):
        there: dict[str, dict[tuple[str, str], FlushedHour]] = {}
        try:
            with store.work("flush", cluster, node) as work:
                if work is None:
                    busy.append(node)
                    continue
                for hour in group:
                    day = day_and_hour(hour.began_s)[0]
                    try:
                        # A damaged file stops its own day only.
                        if day not in there:
                            there[day] = store.flushed(cluster, node, [day])
                        known = there[day].get(day_and_hour(hour.began_s))
                        if known and known.size_bytes == hour.size_bytes():
                            kept += [hour] if known.counts else []
                            continue
                        rounds += store.flush(cluster, hour, attribute, work)
                    except StoreError as error:
                        errors.append(str(error))
                        continue
                    hour_count, rejected = hour_count + 1, rejected + hour.rejected
        except StoreError as error:
            errors.append(str(error))
    return Flushed(hour_count, rounds, rejected, tuple(kept), tuple(busy), tuple(errors))
