# SPDX-License-Identifier: Apache-2.0
"""What the drivers of GPU nodes say, for site init and site check: from files, and from this node where it has GPUs."""

import os
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from slurm_colloc.cli.colloc.output import node_name, say, write
from slurm_colloc.core.config import Observe, find_site_file, load_site
from slurm_colloc.core.errors import GpuError
from slurm_colloc.site.cluster import Cluster, look
from slurm_colloc.site.driver import load_gpus_file, read_driver, to_json
from slurm_colloc.slurm.client import CliClient

_ASK_TIMEOUT_S = 60.0


def gpus(
    reader: Annotated[str, typer.Option("--reader", help="as observe.gpu_reader, which it is else")] = "",
    node: Annotated[str, typer.Option("--node", help="this node's name in Slurm, where it is not the host's")] = "",
) -> None:
    """Print what the driver says of this node's GPUs. It is for 'site init --gpus' and 'site check --gpus'."""
    path = find_site_file()
    # Before there is a site file $COLLOC_CONF may name the one to be written, with what this prints.
    config = load_site(path) if path and os.path.lexists(path) else None
    observe = config.observe if config else Observe()
    found = read_driver(node or node_name(), reader or observe.gpu_reader, os.environ)
    write(to_json(found), "")


def look_around(files: Sequence[str], observe: Mapping[str, object]) -> Cluster:
    """Return the cluster with what drivers say of its GPUs: in files, and here where this is one of its GPU nodes.

    Args:
        files: what ``colloc site gpus`` printed.
        observe: keys of [observe], by which a driver is read.

    Raises:
        GpuError: a file cannot be used.
        ProcessError: Slurm does not answer.
        InputError: it answers what is not understood.
    """
    read = [load_gpus_file(path) for path in files]
    found = look(CliClient(_ASK_TIMEOUT_S), read)
    here = node_name()
    with_gpus = {node.name for node in found.nodes if node.quantity("gpu")}
    if here not in with_gpus - {one.node for one in read}:
        return found
    try:
        reader = str(observe.get("gpu_reader", Observe().gpu_reader))
        own = read_driver(here, reader, os.environ)
    except GpuError as error:
        say(f"note: node '{here}' has GPUs and they were not read: {error}")
        return found
    return found._replace(gpus=(*found.gpus, own))
