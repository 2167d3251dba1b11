# SPDX-License-Identifier: Apache-2.0
"""Which GPUs are free: one question for all nodes, and the parser of its answer."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.core.units import MOST_DEVICES, device_indices, whole
from slurm_colloc.slurm.free_gpus import kind_of
from slurm_colloc.slurm.gres import SHOWN, split_items

# One line for each node and partition; a field without a width is printed whole.
QUESTION = ("sinfo", "-h", "-a", "-N", "-O", "NodeList:|,Partition:|,Gres:|,GresUsed:|,StateCompact:")
# States in which a job may start at once. A mark behind one means that the node is asleep, planned for a job that goes
# first, to be rebooted or silent, and another state means drained, down, reserved or without a free core.
_OPEN = ("idle", "mix")
_SHARED = ("mps", "shard")
# No node has so many kinds of them.
_MOST_KINDS = 64
_ITEM = re.compile(r"(gpu|mps|shard)(?::((?![0-9]+:)[A-Za-z_0-9.+-]++))?:(\d{1,9})(?:\(([^()]*)\))?")
_IGNORED = re.compile(r"(?!(?:gpu|mps|shard)(?::|$))[a-z_][a-z_0-9]*(?::.*)?")


class _Entry(NamedTuple):
    gres: Gres
    detail: str


def parse_free(text: str, *, single: bool = False) -> dict[tuple[str, str], int]:
    """Return what QUESTION's answer says is free, as in ``Free.units``.

    Args:
        text: the answer.
        single: only what a node has one of, of each kind.

    Raises:
        InputError: a line of another form.
    """
    free: dict[tuple[str, str], int] = {}
    for _, partition, gres, used, state in _rows(text):
        entries = list(_entries(gres))
        several = {kind_of(entry.gres) for entry in entries if single and entry.gres.quantity > 1}
        for kind, units in _free_on(entries, list(_entries(used))).items():
            if kind not in several:
                key, units = (partition.removesuffix("*"), kind), units if state in _OPEN else 0
                before = free.get(key, 0)
                free[key] = max(before, units) if kind in _SHARED else before + units
    return free


def parse_shares(text: str) -> dict[str, tuple[tuple[Gres, tuple[int, ...]], ...]]:
    """Return, by node, each kind of share and how many of it each device has, of QUESTION's answer.

    22.05 does not say how many: its nodes are left out.

    Raises:
        InputError: a line of another form.
    """
    shares = {}
    for node, _, _, used, _ in _rows(text):
        entries = [entry for entry in _entries(used) if entry.gres.name in _SHARED]
        sizes = (tuple(size for _, size in _pieces(entry.detail)) for entry in entries)
        kinds = (entry.gres._replace(quantity=0) for entry in entries)
        if node_shares := tuple(pair for pair in zip(kinds, sizes, strict=True) if any(pair[1])):
            shares[node] = node_shares
    return shares


def _rows(text: str) -> Iterator[list[str]]:
    for line in filter(None, text.splitlines()):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 5:
            raise InputError(f"sinfo printed '{line}', which has not 5 columns")
        yield cells


def _entries(text: str) -> Iterator[_Entry]:
    if text in ("", "(null)", "N/A", "none"):
        return
    for number, item in enumerate(split_items(text)):
        if number >= _MOST_KINDS:
            raise InputError(f"sinfo printed '{text[:SHOWN]}', more kinds of gres than a node has")
        match = _ITEM.fullmatch(item)
        if match is not None:
            detail = match[4] or ""
            if detail.count(",") >= MOST_DEVICES:
                raise InputError(f"sinfo printed '{item[:SHOWN]}', more devices than a node has")
            yield _Entry(Gres(match[1], match[2] or "", int(match[3])), detail)
        elif not _IGNORED.fullmatch(item):
            raise InputError(f"sinfo printed the gres '{item[:SHOWN]}', which is not of the form name[:type]:count")


def _free_on(entries: list[_Entry], used: list[_Entry]) -> dict[str, int]:
    """Return what is free on one node: a device is at one time either a gpu or shared."""
    gpus = [entry.gres for entry in entries if entry.gres.name == "gpu"]
    devices = sum(gres.quantity for gres in gpus)
    as_gpu = {index for entry in used if entry.gres.name == "gpu" for index in indices(entry.detail)}
    in_use = {entry.gres[:2]: entry.detail for entry in reversed(used)}
    shares = [(entry.gres, in_use.get(entry.gres[:2], "")) for entry in entries if entry.gres.name in _SHARED]
    shared = {index for _, detail in shares for index in _devices_in_use(detail)}
    free: dict[str, int] = {}
    for gres in gpus:
        busy = sum(entry.gres.quantity for entry in used if entry.gres[:2] == gres[:2])
        # Slurm does not say which type a shared device is of.
        free[kind_of(gres)] = max(0, gres.quantity - busy - len(shared))
    for gres, detail in shares:
        free[gres.name] = _most_left(gres, detail, devices, as_gpu | shared, as_gpu)
    return free


def _pieces(detail: str) -> list[tuple[str, int]]:
    """Return (in use, of) for each device, from ``30/100,-/100``; 22.05 names devices in use instead."""
    pairs = [pair.partition("/") for pair in detail.split(",")] if "/" in detail else []
    return [(used, size) for used, _, total in pairs if (size := whole(total)) is not None]


def _devices_in_use(detail: str) -> set[int]:
    pieces = _pieces(detail)
    return {index for index, (used, _) in enumerate(pieces) if whole(used)} if pieces else indices(detail)


def _most_left(total: Gres, detail: str, devices: int, busy: set[int], as_gpu: set[int]) -> int:
    """Return the most that one device has left of a share."""
    if pieces := _pieces(detail):
        free = ((whole(used), size) for index, (used, size) in enumerate(pieces) if index not in as_gpu)
        return max((size - used for used, size in free if used is not None), default=0)
    # 22.05 counts devices, not shares: the rest of a device that somebody shares is not known, and not counted.
    return total.quantity // devices if devices > len(busy) else 0


def indices(detail: str) -> set[int]:
    """Return {0, 1, 3} from ``IDX:0-1,3``."""
    return set(device_indices(detail.removeprefix("IDX:"))) if detail.startswith("IDX:") else set()
