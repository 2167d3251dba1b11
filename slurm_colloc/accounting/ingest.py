# SPDX-License-Identifier: Apache-2.0
"""Sources -> store, and what was counted on the way."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from slurm_colloc.accounting.sources import clustercockpit, prometheus, sacct
from slurm_colloc.accounting.sources.prometheus_server import Server
from slurm_colloc.accounting.store import Store
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.model import JobShare, Round


class Counted(NamedTuple):
    """What one ingest took in: rows in = used + steps + rejected."""

    source: str
    rows_in: int
    used: int
    steps: int
    rejected: Mapping[str, int]


def keep_runs(store: Store, source: str, parsed: sacct.Parsed, config: SiteConfig | None, now_s: float) -> Counted:
    """Write the runs of one source, in place of what it gave before, and return what was counted.

    Raises:
        StoreError: the store cannot be written.
        InputError: there are rows and not one can be read: that is another format, no news.
    """
    if parsed.rejected and not parsed.rows and not parsed.steps:
        why = "; ".join(sorted(parsed.rejected))
        raise InputError(f"none of {parsed.rows_in} rows of {source} can be read ({why}); the store stays as it was")
    store.write_allocations(source, parsed.rows, config, now_s)
    return _log(store, Counted(source, parsed.rows_in, len(parsed.rows), parsed.steps, dict(parsed.rejected)))


def keep_means(store: Store, source: str, parsed: clustercockpit.Means, now_s: float) -> Counted:
    """Write the runs of a job table that brings its own means.

    Raises:
        StoreError: the store cannot be written.
    """
    store.write_allocations(source, parsed.rows, None, now_s, parsed.gpu_util_pct)
    return _log(store, Counted(source, parsed.rows_in, len(parsed.rows), 0, parsed.rejected))


_READ = {field for exporter in prometheus.EXPORTERS for field, _ in exporter.metrics.values()}


class _Hour:
    """An hour of a node as a server knows it, to be sealed as an hour of a journal is."""

    def __init__(self, node: str, began_s: int, rounds: Sequence[Round]) -> None:
        self.node = node
        self.began_s = began_s
        # Where more is known by a later import, it must not be taken for what is in the store already.
        self.read_bytes = len(repr(rounds))
        self.rejected = 0
        self._rounds = rounds

    def __iter__(self) -> Iterator[Round]:
        return iter(self._rounds)


def keep_history(
    store: Store,
    server: Server,
    cluster: str,
    since_s: float,
    until_s: float,
    attribute: Callable[[Round], tuple[JobShare, ...]],
) -> Counted:
    """Write what a Prometheus server knows of the hours that [since, until) touches, hour by hour.

    Hours of which it knows nothing stay as they are in the store: a server forgets. So do those in which an agent
    sampled the node or one of its GPUs, whatever the node is called there: a GPU would be read by two.

    Raises:
        InputError: the server does not answer, or has nothing that can be read.
        StoreError: the store cannot be written, or another import of this server is running.
    """
    hours = list(prometheus.hours(since_s, until_s))
    names = prometheus.names_there(server, hours[0][0], hours[-1][1])
    source = f"prometheus-{hashlib.sha256(server.url.encode()).hexdigest()[:8]}"
    points = 0
    rejected: Counter[str] = Counter()
    with store.samples.work(source) as work:
        if work is None:
            raise StoreError(f"another run takes in what '{server.url}' knows; wait for its end")
        for start_s, end_s in hours:
            found = prometheus.read_rounds(server, names, start_s, end_s)
            points += found.points
            rejected.update(found.rejected)
            by_node = sorted(found.rounds, key=lambda seen: (seen.node, seen.at_s))
            sampled = _sampled_by_agents(store, cluster, start_s, end_s)
            for node, group in groupby(by_node, key=lambda seen: seen.node):
                rounds = list(group)
                if sampled & {node, *(device.uuid for seen in rounds for device in seen.devices)}:
                    rejected["a reading in an hour that the node's agent sampled"] += sum(map(_readings, rounds))
                else:
                    store.samples.seal(cluster, _Hour(node, int(start_s), rounds), attribute, work)
    return _log(store, Counted(source, points, points - rejected.total(), 0, dict(rejected)))


def _sampled_by_agents(store: Store, cluster: str, since_s: float, until_s: float) -> set[str]:
    """Return the nodes, and the UUIDs, that have readings with a count of processes, which no server knows."""
    query = """
        SELECT DISTINCT unnest([node, uuid]) FROM shares
        WHERE cluster = $cluster AND process_count IS NOT NULL AND at_s > $since AND at_s <= $until
    """
    rows = store.rows(query, {"cluster": cluster, "since": since_s, "until": until_s}, since_s, until_s)
    return {name for (name,) in rows}


def _readings(seen: Round) -> int:
    return sum(getattr(device, name) is not None for device in seen.devices for name in _READ)


def _log(store: Store, counted: Counted) -> Counted:
    store.write_log(os.path.basename(counted.source), counted._asdict())
    return counted
