# SPDX-License-Identifier: Apache-2.0
"""Sources -> store, and what was counted on the way."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from slurm_colloc.accounting.sources import clustercockpit, prometheus, sacct
from slurm_colloc.accounting.sources.prometheus_server import Server
from slurm_colloc.accounting.store import Store
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError
from slurm_colloc.model import JobShare, Round

# Reading one hour of one node takes a second or two.
_LONGEST_READ_S = 120.0


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


def keep_samples(
    store: Store,
    name: str,
    cluster: str,
    rounds: tuple[Round, ...],
    rejected: int,
    attribute: Callable[[Round], tuple[JobShare, ...]],
) -> Counted:
    """Write what jobs used in the Rounds of one journal file; ``attribute`` splits a Round over its jobs.

    Raises:
        StoreError: the store cannot be written.
    """
    store.write_shares(name, cluster, ((seen, attribute(seen)) for seen in rounds))
    counts = {"journal line fails its checksum or form": rejected} if rejected else {}
    counted = Counted(name, len(rounds) + rejected, len(rounds), 0, counts)
    # Also of 0: the count of an earlier reading, when the last line was half written, must not stay.
    source = f"samples-{name.replace(os.sep, '-')}"
    if rejected or store.has_log(source):
        store.write_log(source, counted._asdict())
    return counted


def keep_history(
    store: Store,
    server: Server,
    cluster: str,
    since_s: float,
    until_s: float,
    attribute: Callable[[Round], tuple[JobShare, ...]],
) -> Counted:
    """Write what a Prometheus server knows of the hours that [since, until) touches, hour by hour.

    Hours of which it knows nothing stay as they are in the store: a server forgets.

    Raises:
        InputError: the server does not answer, or has nothing that can be read.
        StoreError: the store cannot be written.
    """
    hours = list(prometheus.hours(since_s, until_s))
    names = prometheus.names_there(server, hours[0][0], hours[-1][1])
    source = f"prometheus-{hashlib.sha256(server.url.encode()).hexdigest()[:8]}"
    points = 0
    rejected: Counter[str] = Counter()
    for start_s, end_s in hours:
        found = prometheus.read_rounds(server, names, start_s, end_s)
        points += found.points
        rejected.update(found.rejected)
        if found.rounds:
            hour = datetime.fromtimestamp(start_s, UTC).strftime("%Y%m%dT%H")
            keep_samples(store, os.path.join(cluster, source, hour), cluster, found.rounds, 0, attribute)
    return _log(store, Counted(source, points, points - rejected.total(), 0, dict(rejected)))


def _log(store: Store, counted: Counted) -> Counted:
    store.write_log(os.path.basename(counted.source), counted._asdict())
    return counted


def is_current(store: Store, name: str, path: str) -> bool:
    """Return whether the shares called ``name`` hold all of the journal file they come from.

    A line can be appended between the reading of the journal and the writing of the shares, so "newer" is not enough.
    """
    written_s = store.share_written_s(name)
    return written_s is not None and written_s > os.stat(path).st_mtime + _LONGEST_READ_S
