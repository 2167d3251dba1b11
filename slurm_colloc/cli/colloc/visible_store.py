# SPDX-License-Identifier: Apache-2.0
"""Opens the store with the rows that the caller may see, and adds up a window of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from duckdb import DuckDBPyConnection

from slurm_colloc.cli.colloc.output import say, state_folder
from slurm_colloc.cli.colloc.progress import progress
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.slurm.job_visibility import Visible
from slurm_colloc.store import rights
from slurm_colloc.store.equivalents import SLICES
from slurm_colloc.store.store import Store, open_store
from slurm_colloc.store.window import Window, window_of


def seen_store(folder: str, config: SiteConfig | None, by: str = SLICES) -> Store:
    """Return the store in ``folder``, or where that is empty the site's, to show to whoever runs this.

    Raises:
        StoreError: nothing was ever taken in.
    """
    chosen = folder or state_folder("store")
    return open_store(chosen, config, by, visible_here(chosen, config))


def visible_here(folder: str, config: SiteConfig | None) -> Visible:
    """Return whose runs of the store in ``folder`` whoever runs this may see, and say where that is not known."""
    return rights.visible_here(folder, config, say)


@contextmanager
def added_up(store: Store, ends: tuple[datetime, datetime]) -> Iterator[tuple[DuckDBPyConnection, Window]]:
    """Give a database of the store whose window [start, end) is aggregated."""
    window = window_of(*ends)
    with store.connect(window.since_s, window.until_s) as database:
        with progress("adding up days") as step:
            aggregate(database, store, window, step=step)
        yield database, window
