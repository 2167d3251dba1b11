# SPDX-License-Identifier: Apache-2.0
"""The GRES and TRES grammar, both ways. Type names contain dots, plus signs, hyphens and underscores."""

import math
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.core.units import size_mib, whole

_TYPE = r"[A-Za-z_0-9.+-]+"
_ITEM = rf"(?:gres[/:])?(?P<name>(?!gres[/:])[a-z_][a-z_0-9]*)(?P<rest>(?::{_TYPE}){{0,3}})(?:\((?:S|IDX):[^)]*\))?"
# No lookahead from each comma on, which takes seconds where there are thousands.
_UP_TO_COMMA = re.compile(r"[^,(]*(?:\([^)]*(?:\)|\Z)[^,(]*)*")
_COUNT = r"([0-9]+)([KMGT]?)"
_SIZE = r"(?a)([0-9]{1,18}(?:\.[0-9]{1,18})?)([KMGTP]?)"
# slurm.h: NO_VAL; INFINITE is one more.
_NO_VALUE = 0xFFFFFFFE
_MOST = 2**31 - 1
# Slurm counts in 64 bits.
_BEYOND = 2**64
# An error quotes so many letters of a text that is not trusted.
SHOWN = 40
DEVICES = ("gpu", "mps", "shard")
_MULTIPLIER = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def _count(text: str) -> int | None:
    """Return the count that a text spells, _BEYOND at most; None where it is none."""
    match = re.fullmatch(_COUNT, text)
    if match is None:
        return None
    digits = match[1].lstrip("0") or "0"
    return min(_BEYOND, int(digits) * _MULTIPLIER[match[2]]) if len(digits) <= len(str(_BEYOND)) else _BEYOND


def _gres(name: str, kind: str, count: int, text: str) -> Gres:
    if count == _BEYOND:
        raise InputError(f"gres '{name}' in '{text[:SHOWN]}' has a count beyond reason")
    return Gres(name, kind, count)


def split_items(text: str) -> Iterator[str]:
    """Yield what stands between the commas of a text, but for those in parentheses."""
    end = -1
    while end < len(text):
        item = _UP_TO_COMMA.match(text, end + 1)
        assert item is not None
        yield item[0]
        end = item.end()


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Return the entries of a ``--gres`` value or of a node's ``Gres=`` (``gpu:a100:2(S:0),shard:8``).

    A missing count is 1, as in Slurm. ``none``, ``(null)`` and the empty text are no entries.

    Raises:
        InputError: an entry outside the grammar.
    """
    if text in ("", "none", "(null)", "N/A"):
        return ()
    entries = []
    for item in split_items(text):
        match = re.fullmatch(_ITEM, item)
        if match is None:
            raise InputError(f"gres '{item}' in '{text}' is not of the form name[:type][:count]")
        # slurm.conf(5) "Gres": a node may say "bandwidth:lustre:no_consume:4G".
        words = [word for word in match["rest"].split(":")[1:] if word != "no_consume"]
        count = _count(words[-1]) if words else None
        kinds = words if count is None else words[:-1]
        if len(kinds) > 1:
            raise InputError(f"gres '{item}' in '{text}' has a count that is not a number")
        entries.append(_gres(match["name"], "".join(kinds), 1 if count is None else count, text))
    return tuple(entries)


def check_prefix(text: str, release: str) -> None:
    """Refuse a ``--gres`` value with a prefix that sbatch of a release does not take, or may not.

    Asked were 22.05 (``gres:gpu:1`` alone), 24.11 and 26.05 (``gres/gpu:1`` alone).

    Raises:
        InputError: such a prefix.
    """
    for item in split_items(text):
        if (item.startswith("gres:") and release > "22.05") or (item.startswith("gres/") and release < "24.11"):
            raise InputError(f"sbatch of Slurm {release} may not take gres '{item[:SHOWN]}'")


def parse_gpus(text: str) -> tuple[Gres, ...]:
    """Return the entries of ``--gpus`` and its kin: ``[type:]count[,...]``.

    Raises:
        InputError: no count.
    """
    entries = []
    for item in text.split(","):
        kind, _, number = item.rpartition(":")
        count = _count(number)
        if count is None:
            raise InputError(f"number of GPUs '{text}' is not of the form [type:]count")
        entries.append(_gres("gpu", kind, count, text))
    return tuple(entries)


@lru_cache(10_000)
def parse_tres_gres(text: str) -> tuple[Gres, ...]:
    """Return the gres in an AllocTRES value such as ``cpu=4,gres/gpu:a100=1,gres/gpu=3,mem=8G``.

    Slurm writes a total (``gres/gpu=3``) beside typed entries that say of which kinds it is. The total counts, and
    what the typed entries leave of it is untyped; the typed entries are summed where there is no total. Never both.

    Raises:
        InputError: an item that is not ``name=value``, or by number, or has gres/ within; or one of gpu, mps or shard
            whose count is no number or beyond reason.
    """
    totals: dict[str, int] = {}
    typed: dict[str, list[Gres]] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if item[0] in "0123456789":
            raise InputError("TRES by number, as in a dump of slurmdbd; export with sacct")
        shown = f"TRES '{item[:SHOWN]}' in '{text[:SHOWN]}'"
        if not (key and equals):
            raise InputError(f"{shown} is not of the form name=value")
        if not key.startswith("gres/"):
            if "gres/" in item or "=" in value:
                raise InputError(f"{shown} is not one item: gres/ or = stands within")
            continue
        name, _, kind = key.removeprefix("gres/").partition(":")
        count = _count(value)
        if name not in DEVICES and (count is None or count > _MOST):
            continue
        if count is None:
            raise InputError(f"{shown} has a count that is not a number")
        if count >= _NO_VALUE:
            raise InputError(f"{shown} has a count that stands for none or unlimited")
        if kind:
            typed.setdefault(name, []).append(Gres(name, kind, count))
        else:
            totals[name] = count
    return tuple(_reconcile(totals, typed))


class HostTres(NamedTuple):
    """An allocation's part of its nodes, all of them together; None where Slurm does not say."""

    cpus: int | None
    mem_mib: int | None
    nodes: int | None
    billing: int | None = None


def parse_tres_host(text: str) -> HostTres:
    """Return what an AllocTRES value says of CPUs, host memory, nodes and billing."""
    cpus, nodes = (whole(tres_value(text, name)) or None for name in ("cpu", "node"))
    memory = tres_value(text, "mem")
    # Slurm writes its unit; a bare number may be of any.
    mem_mib = (tres_mib(memory) or None) if memory[-1:].isalpha() else None
    return HostTres(cpus, mem_mib, nodes, whole(tres_value(text, "billing")))


def tres_value(tres: str, name: str) -> str:
    """Return what a TRES text says of one kind, empty where it says nothing."""
    return next((value for key, _, value in (item.partition("=") for item in tres.split(",")) if key == name), "")


def tres_mib(text: str) -> int | None:
    """Return the MiB of a size as Slurm prints it (``100M``, ``1.50T``, bytes without a letter), rounded up."""
    match = re.fullmatch(_SIZE, text)
    return math.ceil(size_mib(float(match[1]), match[2])) if match else None


def _reconcile(totals: dict[str, int], typed: dict[str, list[Gres]]) -> Iterable[Gres]:
    for name in sorted(totals.keys() | typed.keys()):
        kinds = [gres for gres in typed.get(name, []) if gres.quantity]
        typed_sum = sum(gres.quantity for gres in kinds)
        total = totals.get(name, typed_sum)
        if max(typed_sum, total) > _MOST and name in DEVICES:
            raise InputError(f"gres/{name} adds up to {max(typed_sum, total)}, which is beyond reason")
        if typed_sum > total and name not in DEVICES:
            kinds, typed_sum = [], 0
        if typed_sum > total:
            raise InputError(f"typed gres/{name} entries add up to {typed_sum}, more than the total {total}")
        yield from kinds
        if total > typed_sum:
            yield Gres(name, "", total - typed_sum)
