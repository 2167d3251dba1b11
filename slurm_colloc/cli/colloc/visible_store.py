# SPDX-License-Identifier: Apache-2.0
"""Opens the store with the rows that the caller may see."""

from slurm_colloc.cli.colloc.output import say, state_folder
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.slurm.job_visibility import Visible
from slurm_colloc.store import rights
from slurm_colloc.store.equivalents import SLICES
from slurm_colloc.store.store import Store, open_store


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
