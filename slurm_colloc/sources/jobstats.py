# SPDX-License-Identifier: Apache-2.0
"""Means of a job as jobstats leaves them in Slurm's AdminComment: "JS1:" and base64 of gzip of JSON.

The JSON has for each node {"gpu_utilization": {"0": percent}, "gpu_used_memory": {"0": bytes}, ...}: the keys
are minor numbers of GPUs, the values the mean of GPU_UTIL and the peak of the memory in use. Readings that the server
behind jobstats lost are left out.
"""

import base64
import binascii
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any, NoReturn

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.units import BYTES_PER_MIB, used_mib
from slurm_colloc.sources.means import JobMeans

METHOD = "job mean by jobstats"
_PREFIX = "JS1:"
# These stand in place of a blob: the job was shorter than two samples, or jobstats had none.
_WITHOUT = ("Short", "None")
_GZIP = 16 + zlib.MAX_WBITS
# A thousand nodes of eight GPUs take half of it.
_LARGEST_BYTES = 1024 * 1024
_LARGEST_MEMORY_BYTES = 2**50


def parse_blob(admin_comment: str) -> JobMeans | None:
    """Return what jobstats measured of a run's GPUs; None where it says nothing of them, or wrote nothing.

    Raises:
        InputError: there is a blob, and it is not of that form or its numbers cannot be.
    """
    blob = admin_comment.removeprefix(_PREFIX)
    if blob == admin_comment or blob in _WITHOUT:
        return None
    nodes = _member(_decode(blob), "nodes")
    utils = [_numbers(node, "gpu_utilization", 100) for node in nodes.values()]
    memories = [_numbers(node, "gpu_used_memory", _LARGEST_MEMORY_BYTES) for node in nodes.values()]
    values = [value for util in utils for value in util.values()]
    # A node of which one GPU's memory is not known has more than the sum of the others.
    sums = [
        sum(memory.values())
        for util, memory in zip(utils, memories, strict=True)
        if memory and util.keys() <= memory.keys()
    ]
    if not values and not sums:
        return None
    return JobMeans(
        gpu_util_pct=math.fsum(values) / len(values) if values else None,
        gpu_mem_peak_mib=used_mib(math.ceil(max(sums))) if sums else None,
        gpus=len(values),
        method=METHOD,
    )


def _decode(blob: str) -> Any:
    try:
        packed = base64.b64decode(blob, validate=True)
        unpacker = zlib.decompressobj(_GZIP)
        text = unpacker.decompress(packed, _LARGEST_BYTES + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise InputError(f"a jobstats blob is not base64 of gzip: {type(error).__name__}") from error
    if len(text) > _LARGEST_BYTES:
        raise InputError(f"a jobstats blob is larger than {_LARGEST_BYTES // BYTES_PER_MIB} MiB")
    if not unpacker.eof or unpacker.unused_data:
        raise InputError("a jobstats blob is cut, or goes on behind its end")
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InputError("a jobstats blob is not JSON inside") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _member(holder: Any, name: str) -> Mapping[str, Any]:
    member = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(member, dict):
        raise InputError(f"a jobstats blob has no table '{name}'")
    return member


def _numbers(node: Any, name: str, most: float) -> Mapping[str, float]:
    if isinstance(node, dict) and name not in node:
        return {}
    values = _member(node, name)
    for value in values.values():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise InputError(f"a jobstats blob has a {name} that is no number from 0 to {most:g}")
    return values
