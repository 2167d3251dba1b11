# SPDX-License-Identifier: Apache-2.0
"""colloc flush: this node's journal into the site's store."""

import os
from contextlib import suppress
from math import inf
from typing import Annotated

from typer import Exit, Option

from slurm_colloc.cli.colloc.options import JournalFolder, StoreFolder
from slurm_colloc.cli.colloc.output import node_name, say, service_folder, site
from slurm_colloc.cli.colloc.progress import progress, told
from slurm_colloc.core.clock import now
from slurm_colloc.core.errors import Status, StoreError
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.observe.journal import hours
from slurm_colloc.store.samples import Samples, flush_hours

_HOUR_S = 3600
# A node keeps flushed hours so long: hours that a store loses in a weekend are flushed again.
_KEPT_S = 3 * 86_400
# A pass that began within the hour may be written somewhat later.
_CLOSED_AFTER_S = 120


def flush(
    node: Annotated[str, Option(help="this node's name in Slurm")] = "",
    journal: JournalFolder = "",
    store: StoreFolder = "",
    open_hour: Annotated[bool, Option("--open", help="the hour that is still running, too")] = False,
) -> None:
    """Copy this node's samples to the store, the site's data folder. Old ones that it has are dropped.

    Exit status 1: the store could not be written; the next run catches up.
    """
    config = site()
    node = node or node_name()
    folder, target = service_folder("journal", journal), service_folder("store", store)
    closed_s = inf if open_hour else now() - _HOUR_S - _CLOSED_AFTER_S
    all_hours = list(hours(folder))
    nodes = sorted({hour.node for hour in all_hours})
    if node not in nodes and (nodes or not os.path.isdir(folder)):
        state = f"there are: {', '.join(nodes[:5])}" if nodes else "no such folder"
        raise StoreError(f"no journal of node '{node}' in '{folder}' ({state}); give --node, as the agent has it")
    mine = [hour for hour in all_hours if hour.node == node and hour.began_s <= closed_s]
    with progress("reading samples, hour by hour") as step:
        done = flush_hours(Samples(target), config.cluster, told(mine, step), attribute_sample)
    if done.busy:
        say(f"another run is flushing the journal of {node}")
        return
    if done.errors:
        rest = f" (and {len(done.errors) - 1} more)" if len(done.errors) > 1 else ""
        say(f"error: {done.errors[0]}{rest}; the journal stays, the next run catches up")
        raise Exit(Status.FOUND)
    oldest_s = now() - _HOUR_S - _KEPT_S
    old = [hour for hour in done.kept if hour.began_s < oldest_s]
    for hour in old:
        with suppress(FileNotFoundError):
            os.unlink(hour.path)
    if not (done.hours or old):
        state = f"all {len(mine)} h of it are in the store" if mine else "it holds no hour that is over"
        say(f"{node}: nothing to flush of the journal '{folder}': {state}")
    else:
        rejected = f", {done.rejected} lines rejected" if done.rejected else ""
        say(f"{node}: flushed {done.hours} h with {done.rounds} samples{rejected}; dropped {len(old)} h flushed before")
