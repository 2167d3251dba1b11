# SPDX-License-Identifier: Apache-2.0
"""Sources -> store, and what was counted on the way."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from slurm_colloc.accounting.sources import clustercockpit, sacct
from slurm_colloc.accounting.store import Store
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError


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


def _log(store: Store, counted: Counted) -> Counted:
    store.write_log(os.path.basename(counted.source), counted._asdict())
    return counted
