# SPDX-License-Identifier: Apache-2.0
"""What runs without a GPU (csub --trace) said of jobs: one small file for each signature, so that none runs twice."""

import json
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.files import private_folder, read_own, write_atomic
from slurm_colloc.units import printable

_LIMIT_BYTES = 16 * 1024
_KEPT = 100
# More than any GPU has.
_MOST_MIB = 1e7
_MOST_LETTERS = 300
_PARTS = ("parameters", "gradients", "optimizer", "activations", "peak")


class Traced(NamedTuple):
    """What a traced program's tensors held at most, in MiB, of what, and by which release of torch."""

    parameters_mib: float
    gradients_mib: float
    optimizer_mib: float
    activations_mib: float
    peak_mib: float
    what: str
    torch: str


def trace_path(folder: str, signature: str) -> str:
    """Return where the trace of one signature lies: those of one family lie together."""
    family, _, rest = signature.partition(".")
    return os.path.join(folder, "traces", family, f"{rest}.json")


def keep_trace(folder: str, signature: str, traced: Traced) -> None:
    """Write the trace of one signature; of its family the oldest go.

    Raises:
        StoreError: the folder cannot be written.
    """
    path = trace_path(folder, signature)
    for parent in (folder, os.path.join(folder, "traces"), os.path.dirname(path)):
        private_folder(parent)
    write_atomic(path, json.dumps(traced._asdict()).encode())
    with suppress(OSError):
        kept = sorted((item.stat().st_mtime, item.path) for item in os.scandir(os.path.dirname(path)))
        for _, old in kept[:-_KEPT]:
            os.unlink(old)


def read_traces(folder: str, signatures: Iterable[str]) -> tuple[tuple[str, float], ...]:
    """Return the traced peaks in MiB of those signatures that have one; a file that cannot be used is none.

    Where the first signature has one, those of other releases of torch are left out: they count otherwise.
    """
    found: dict[str, Traced] = {}
    first = ""
    for signature in dict.fromkeys(signatures):
        first = first or signature
        with suppress(StoreError, InputError):
            found[signature] = parse_trace(read_own(trace_path(folder, signature), _LIMIT_BYTES))
    release = found[first].torch if first in found else None
    return tuple((name, one.peak_mib) for name, one in found.items() if release in (None, one.torch))


def parse_trace(content: bytes) -> Traced:
    """Return what was traced.

    Raises:
        InputError: nothing was, with the reason; or it is not of the expected form.
    """
    try:
        values = json.loads(content)
        if values.get("why_not"):
            raise InputError(_said(values["why_not"]))
        sizes = [float(values[f"{name}_mib"]) for name in _PARTS]
        if not all(math.isfinite(size) and 0 <= size <= _MOST_MIB for size in sizes) or not sizes[-1]:
            raise ValueError("a size is none")
        return Traced(sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], _said(values["what"]), _said(values["torch"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"what was traced is not of the expected form: {error}") from error


def _said(text: object) -> str:
    return printable(str(text))[:_MOST_LETTERS]
