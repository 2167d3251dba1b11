# SPDX-License-Identifier: Apache-2.0
"""colloc compact: fewer files, fewer rows, and nothing older than the site wants."""

import os
from functools import partial
from typing import Annotated

from typer import Exit, Option

from slurm_colloc.cli.colloc.options import StoreFolder
from slurm_colloc.cli.colloc.output import one_of, say, service_folder, site_or_none
from slurm_colloc.cli.colloc.progress import progress
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import Observe
from slurm_colloc.core.errors import Status, StoreError
from slurm_colloc.core.units import counted
from slurm_colloc.facts import compact as compaction
from slurm_colloc.facts.engine import ENGINES, LOCAL, SLURM, make_by_slurm
from slurm_colloc.store.store import Store


def compact(
    store: StoreFolder = "",
    anyway: Annotated[bool, Option("--anyway", help="though nothing was sampled for two days")] = False,
    engine: Annotated[str, Option(help="local, or slurm: a job for each day")] = LOCAL,
) -> None:
    """Add up the samples in the store, and delete old ones. Once a day, on the host that ingests.

    Exit status 1: some of it could not be done; the rest was. Nothing is done where the last sampled day is over for
    more than two days: then this host's clock is ahead, or sampling has stopped (--anyway).
    """
    one_of("--engine", engine, ENGINES)
    config = site_or_none()
    folder = service_folder("store", store)
    if not os.path.isdir(folder):
        raise StoreError(f"store '{folder}' is not there; is its file system mounted? name another with --store")
    keep = config.observe if config else Observe()
    with progress("compacting days of samples") as step:
        by_slurm = partial(make_by_slurm, config=config) if engine == SLURM else None
        done = compaction.compact(Store(folder, config), keep, now(), anyway, step=step, make=by_slurm)
    if done is None:
        say(f"another run is compacting '{folder}'")
        return
    say(f"{done.written} files written, {done.removed} removed in '{folder}'")
    if done.refused:
        say(
            f"error: {counted(len(done.refused), 'file')} of hours came after the readings of their day were deleted, "
            "and its facts have less of them: what they have more is not counted. Move them out of the store, or each "
            "run says so again:"
        )
        for path in done.refused:
            say(f"    {path}")
    for error in done.errors:
        say(f"error: {error}")
    if done.refused or done.errors:
        raise Exit(Status.FOUND)
