# SPDX-License-Identifier: Apache-2.0
"""Whose was it: one reading of one GPU or slice, split over the jobs on it.

Per device and reading, the jobs' parts and the unattributed rest add up to the device's value.
"""

from collections.abc import Iterable, Sequence

from slurm_colloc.model import DeviceSample, JobShare, ProcessSample, Round

MEASURED = "measured"
BY_GPU_TIME = "split by GPU time"
BY_MEMORY = "split by memory"
EQUALLY = "split equally"
UNATTRIBUTED = "unattributed"


def attribute_round(seen: Round) -> tuple[JobShare, ...]:
    """Return the shares of every device in one pass of the sampler."""
    shares: list[JobShare] = []
    for device in seen.devices:
        processes = [process for process in seen.processes if process.uuid == device.uuid]
        holders = [job_id for uuid, job_id in seen.holders if uuid == device.uuid]
        shares += attribute_device(device, processes, holders)
    return tuple(shares)


def attribute_device(
    device: DeviceSample, processes: Sequence[ProcessSample], holders: Iterable[str]
) -> tuple[JobShare, ...]:
    """Split one device's reading over its jobs.

    Args:
        device: the reading.
        processes: the processes on this device; an empty job id stands for processes outside any job.
        holders: jobs that were given this device. One without a process there held it idle and used none, unless part
            of the reading is nobody's: then a process of that job may have been missed (a container outside the job's
            cgroup, a process that ended meanwhile), and nothing is said of it.
    """
    owners = sorted({process.job_id for process in processes})
    idle = sorted(set(holders) - set(owners))
    weights, method = _weights(owners, processes)
    if not processes and len(idle) == 1:
        # What a GPU does in the moments before its only job's process shows up is that job's.
        return (JobShare(device.uuid, idle[0], device.gpu_util_pct, device.sm_active_pct, 0, MEASURED),)
    shares = [
        JobShare(
            uuid=device.uuid,
            job_id=owner,
            gpu_util_pct=_part(device.gpu_util_pct, weights[owner]),
            sm_active_pct=_part(device.sm_active_pct, weights[owner]),
            gpu_mem_used_mib=_memory(owner, owners, processes, device),
            method=method if owner else UNATTRIBUTED,
        )
        for owner in owners
    ]
    stray = "" in owners or (not owners and bool(device.gpu_util_pct or device.sm_active_pct))
    if not stray:
        shares += [JobShare(device.uuid, job_id, *_none_used(device), 0, MEASURED) for job_id in idle]
    if stray and not owners:
        shares.append(JobShare(device.uuid, "", device.gpu_util_pct, device.sm_active_pct, None, UNATTRIBUTED))
    return tuple(shares)


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


def _none_used(device: DeviceSample) -> tuple[float | None, float | None]:
    """Return 0 for each metric that this device has, None for one that it has not."""
    return _part(device.gpu_util_pct, 0.0), _part(device.sm_active_pct, 0.0)


def _memory(owner: str, owners: Sequence[str], processes: Sequence[ProcessSample], device: DeviceSample) -> int | None:
    sizes = [process.gpu_mem_used_mib for process in processes if process.job_id == owner]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        return sum(known)
    return device.gpu_mem_used_mib if len(owners) == 1 else None
