# SPDX-License-Identifier: Apache-2.0
"""What the driver of a node says of its GPUs: read there, written as JSON, read again where site.toml is written."""

import json
from collections.abc import Mapping
from contextlib import closing
from typing import NamedTuple

from slurm_colloc.core.errors import GpuError
from slurm_colloc.core.value_types import read_as
from slurm_colloc.gpu.reader import GpuUnit, open_reader
from slurm_colloc.site.cluster import NodeGpus

SCHEMA = 1


def read_driver(node: str, reader: str, environment: Mapping[str, str]) -> NodeGpus:
    """Return what the driver says here.

    A job may see only the GPUs that it holds, so what was read inside of one is not complete.

    Args:
        node: this node's name in Slurm.
        reader: as observe.gpu_reader has it.
        environment: this process's.

    Raises:
        GpuError: the driver does not answer, or this is no GPU node.
    """
    with closing(open_reader(reader, node=node)) as opened:
        return NodeGpus(node, opened.units(), complete="SLURM_JOB_ID" not in environment)


class _GpusFile(NamedTuple):
    schema: int
    node: str
    complete: bool
    units: tuple[GpuUnit, ...]


def to_json(gpus: NodeGpus) -> str:
    """Return the text of a file for ``parse_gpus_file``."""
    units = [unit._asdict() for unit in gpus.units]
    table = {"schema": SCHEMA, "node": gpus.node, "complete": gpus.complete, "units": units}
    return json.dumps(table, indent=1) + "\n"


def load_gpus_file(path: str) -> NodeGpus:
    """Read what ``to_json`` wrote.

    Raises:
        GpuError: unreadable, or anything else.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            return parse_gpus_file(stream.read(), path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise GpuError(f"'{path}' cannot be read: {reason}; 'colloc site gpus' on a GPU node writes one") from error


def parse_gpus_file(text: str, source: str) -> NodeGpus:
    """Return what ``to_json`` made.

    Raises:
        GpuError: anything else, another release's among it.
    """
    try:
        file: _GpusFile = read_as(_GpusFile, json.loads(text))
        if file.schema != SCHEMA:
            raise ValueError(f"schema {file.schema} and not {SCHEMA}")
    except (ValueError, RecursionError) as error:
        raise GpuError(f"'{source}' is not what 'colloc site gpus' prints in this release: {error}") from error
    return NodeGpus(file.node, file.units, file.complete)
