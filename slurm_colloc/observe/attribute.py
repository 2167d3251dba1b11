# SPDX-License-Identifier: Apache-2.0
"""Splits one reading of a GPU or slice among the jobs on it.

Per device and reading, the jobs' parts and the unattributed rest add up to the device's value, for each figure that
the device has; there is always a row for the rest.
"""

from collections.abc import Iterable, Sequence
from math import fsum

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.usage_model import (
    ADDITIVE,
    BY_GPU_TIME,
    BY_MEMORY,
    BY_SHARES,
    EQUALLY,
    MEASURED,
    UNATTRIBUTED,
    WHOLE_DEVICE,
    AttributedUse,
    DeviceAllocation,
    DeviceSample,
    NodeSample,
    ProcessKind,
    ProcessSample,
)


def attribute_sample(sample: NodeSample) -> tuple[AttributedUse, ...]:
    """Return the shares of every device in one pass of the sampler."""
    shares: list[AttributedUse] = []
    for device in sample.devices:
        processes = [process for process in sample.processes if process.uuid == device.uuid]
        holders = [holder for holder in sample.holders if holder.uuid == device.uuid]
        shares += attribute_device(device, processes, holders)
    return tuple(shares)


def attribute_device(
    device: DeviceSample, processes: Sequence[ProcessSample], holders: Iterable[DeviceAllocation]
) -> tuple[AttributedUse, ...]:
    """Split one device's reading over its jobs; the last row is the rest that is nobody's.

    Args:
        device: the reading.
        processes: the processes on this device; an empty job id stands for processes outside any job. The server of
            MPS is nobody's: its clients' work shows as its own.
        holders: jobs that were given this device. One without a process there held it idle and used none, unless part
            of the reading is nobody's: then a process of that job may have been missed (a container outside the job's
            cgroup, a process that ended meanwhile), and nothing is said of it.

    Raises:
        StoreError: the parts do not add up; a fault of ours.
    """
    weight_of = {
        holder.job_id: holder.weight for holder in sorted(holders, key=lambda held: (held.job_id, held.weight or 0))
    }
    processes = [process for process in processes if process.kind != ProcessKind.MPS_SERVER]
    counts = _counts(processes)
    active = any(getattr(device, name) for name in ("gpu_util_pct", "gr_active_pct", "sm_active_pct"))
    weights, method = _split(device, processes, weight_of)
    # A reading that is partly nobody's says nothing of the jobs that seem to have no process.
    stray = "" in counts or (active and not weights)
    idle = {} if stray else dict.fromkeys(weight_of.keys() - weights.keys(), 0.0)
    rows = [
        _share(
            device,
            job_id,
            counts.get(job_id, (0, 0)),
            [_part(getattr(device, name), weight) for name in ADDITIVE],
            _memory(job_id, processes, device, len(weights)),
            method if job_id in weights else MEASURED,
        )
        for job_id, weight in sorted((idle | weights).items())
        if job_id
    ]
    rows.append(_rest(device, rows, counts))
    if not balanced(device, rows):
        raise StoreError(
            f"the jobs' parts of GPU '{device.uuid}' do not add up to its reading: a fault of colloc's own"
        )
    return tuple(rows)


def _counts(processes: Sequence[ProcessSample]) -> dict[str, tuple[int, int | None]]:
    """Return of each owner how many processes there are, and how many of them are no clients of MPS."""
    kinds: dict[str, list[str]] = {}
    for process in processes:
        kinds.setdefault(process.job_id, []).append(process.kind)
    return {
        owner: (
            len(kinds_of),
            None if ProcessKind.UNKNOWN in kinds_of else len(kinds_of) - kinds_of.count(ProcessKind.MPS_CLIENT),
        )
        for owner, kinds_of in kinds.items()
    }


def balanced(device: DeviceSample, shares: Sequence[AttributedUse]) -> bool:
    """Return whether the shares of one device add up to its reading, for each additive figure that it has."""
    for name in ADDITIVE:
        total, parts = getattr(device, name), [getattr(share, name) for share in shares]
        if total is None:
            if any(part is not None for part in parts):
                return False
        elif None in parts or not abs(fsum(parts) - total) <= 1e-6 * max(1.0, abs(total)):  # NaN is no balance
            return False
    return True


def _split(
    device: DeviceSample, processes: Sequence[ProcessSample], weight_of: dict[str, float | None]
) -> tuple[dict[str, float], str]:
    """Return the part of each owner in the reading ("" for strangers), and by which method; none when unknown."""
    owners = sorted({process.job_id for process in processes})
    if owners:
        return _weights(owners, processes)
    if not weight_of:
        return {}, UNATTRIBUTED
    if not device.process_list:
        # The source knows who had the device, not what ran there.
        if len(weight_of) == 1:
            return dict.fromkeys(weight_of, 1.0), WHOLE_DEVICE
        return _by_shares(weight_of)
    # A GPU's work before its only job's process shows up is that job's, and so is what it takes while held idle.
    return (dict.fromkeys(weight_of, 1.0) if len(weight_of) == 1 else {}), MEASURED


def _by_shares(weight_of: dict[str, float | None]) -> tuple[dict[str, float], str]:
    weights = [weight for weight in weight_of.values() if weight]
    if len(weights) < len(weight_of):
        return dict.fromkeys(weight_of, 1 / len(weight_of)), EQUALLY
    return {job_id: weight / fsum(weights) for job_id, weight in zip(weight_of, weights, strict=True)}, BY_SHARES


def _weights(owners: Sequence[str], processes: Sequence[ProcessSample]) -> tuple[dict[str, float], str]:
    if len(owners) <= 1:
        return dict.fromkeys(owners, 1.0), MEASURED
    by_sm = _sums(owners, [(process.job_id, process.sm_util_pct) for process in processes])
    if by_sm is not None:
        # The driver's per-process value counts time, not SMs, and is noisy: a chain of tiny kernels beside a matmul
        # that alone has 33 % SM activity was given all of it (docs/explanation/metrics.md). A split, no measurement.
        return by_sm, BY_GPU_TIME
    by_memory = _sums(owners, [(process.job_id, process.gpu_mem_used_mib) for process in processes])
    if by_memory is not None:
        return by_memory, BY_MEMORY
    return dict.fromkeys(owners, 1 / len(owners)), EQUALLY


def _sums(owners: Sequence[str], values: Sequence[tuple[str, float | None]]) -> dict[str, float] | None:
    """Return each owner's part of the sum, None unless every value is known and the sum is above 0."""
    sums = dict.fromkeys(owners, 0.0)
    for owner, value in values:
        if value is None:
            return None
        sums[owner] += value
    total = sum(sums.values())
    return {owner: part / total for owner, part in sums.items()} if total > 0 else None


def _part(value: float | None, weight: float) -> float | None:
    return None if value is None else value * weight


def _memory(job_id: str, processes: Sequence[ProcessSample], device: DeviceSample, owners: int) -> int | None:
    """Return what the job's processes hold: theirs, else all that the device says where nobody else is there."""
    sizes = [process.gpu_mem_used_mib for process in processes if process.job_id == job_id]
    if device.process_list and None not in sizes:
        return sum(size for size in sizes if size is not None)
    return device.gpu_mem_used_mib if owners == 1 else None


def _rest(
    device: DeviceSample, rows: Sequence[AttributedUse], counts: dict[str, tuple[int, int | None]]
) -> AttributedUse:
    """Return what no job accounts for: strangers' work, the memory of MPS and of the driver."""
    rest: list[float | None] = []
    for name in ADDITIVE:
        reading = getattr(device, name)
        if reading is None:
            rest.append(None)
            continue
        unattributed = reading - fsum(getattr(row, name) for row in rows)
        rest.append(unattributed if unattributed > 1e-9 else 0.0)
    held = [row.gpu_mem_used_mib for row in rows]
    sizes = [size for size in held if size is not None]
    total = device.gpu_mem_used_mib
    memory = None if total is None or len(sizes) < len(held) else max(0, total - sum(sizes))
    return _share(device, "", counts.get("", (0, 0)), rest, memory, UNATTRIBUTED)


def _share(
    device: DeviceSample,
    job_id: str,
    counts: tuple[int, int | None],
    additive: Sequence[float | None],
    memory_mib: int | None,
    method: str,
) -> AttributedUse:
    process_counts = counts if device.process_list else (None, None)
    return AttributedUse._make((device.uuid, job_id, *process_counts, *additive, memory_mib, method))
