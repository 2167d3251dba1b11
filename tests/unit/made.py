# SPDX-License-Identifier: Apache-2.0
"""Nouns made up for tests: every field has a value, and a test names only those that it is about."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slurm_colloc.core.chart_model import Fit
from slurm_colloc.core.config import MigSlice, Partition, Pool, Sharing, SiteConfig
from slurm_colloc.core.model import Decision, Evidence, Footprint, Gres, JobRequest, Quantiles, Reason, because
from slurm_colloc.core.usage_model import (
    AllocationRow,
    DeviceAllocation,
    DeviceSample,
    HostSample,
    JobUsage,
    NodeSample,
    ProcessSample,
)
from slurm_colloc.observe.journal import decode

RECORDED = Path(__file__).resolve().parents[1] / "recorded"
# Of Slurm, recorded by `python -m tests.cluster record`.
RELEASES = ("22.05", "24.11", "26.05")
DELIMITER = "\x1f0123456789abcdef\x1f"
H100 = "NVIDIA H100 80GB HBM3"
HOUR = 3600


def codes(reasons: Iterable[Reason]) -> list[str]:
    """Return the codes of reasons."""
    return [one.code for one in reasons]


def near(value: Any, within: float | None = None) -> Any:
    """Return what equals all numbers close to ``value``; Any, because mypy sees no overlap of a number and a guess."""
    return pytest.approx(value, abs=within)


def device(uuid: str = "GPU-0", **fields: Any) -> DeviceSample:
    whole = DeviceSample(
        uuid=uuid,
        gres_index=0,
        model=H100,
        profile="",
        mem_total_mib=81559,
        sm_count=132,
        whole_sm_count=132,
        process_list=True,
        gpu_util_pct=40.0,
        gr_active_pct=39.0,
        sm_active_pct=20.0,
        sm_occupancy_pct=8.0,
        tensor_active_pct=15.0,
        dram_active_pct=5.0,
        gpu_mem_used_mib=3000,
        power_w=300.0,
        energy_j=3000.0,
    )
    return whole._replace(**fields)


def process(job_id: str = "1", pid: int = 100, uuid: str = "GPU-0", **fields: Any) -> ProcessSample:
    return ProcessSample(uuid, pid, 777, "compute", job_id, 3000, None)._replace(**fields)


def seen(
    at_s: float,
    devices: Sequence[DeviceSample] = (),
    processes: Sequence[ProcessSample] = (),
    holders: Sequence[tuple[str, str]] = (),
    hosts: Sequence[HostSample] = (),
    interval_s: float = 10.0,
    node: str = "g1",
) -> NodeSample:
    held = tuple(DeviceAllocation(uuid, job_id, None) for uuid, job_id in holders)
    return NodeSample(at_s, interval_s, node, "boot", tuple(devices), tuple(processes), held, tuple(hosts))


class Decoded(NamedTuple):
    """What a journal file held."""

    rounds: tuple[NodeSample, ...]
    rejected: int


def decoded(content: bytes) -> Decoded:
    found = list(decode(content.splitlines()))
    return Decoded(tuple(filter(None, found)), found.count(None))


def host(job_id: str = "1", **fields: Any) -> HostSample:
    return HostSample(job_id, 20.0, 4000, 100.0, 10.0)._replace(**fields)


def run(job_id: str = "1", start_s: int | None = 0, end_s: int | None = HOUR, **fields: Any) -> AllocationRow:
    row = AllocationRow(
        cluster="c",
        job_id=job_id,
        job_id_raw=job_id,
        user="ann",
        account="lab",
        partition="gpu",
        qos="normal",
        state="COMPLETED",
        submit_s=0,
        start_s=start_s,
        end_s=end_s,
        suspended_s=0,
        gres=(Gres("gpu", "h100", 1),),
        node_list="g1",
        job_name="train",
    )
    return row._replace(**fields)


def fit_of(name: str, known: float, fits: float, freed: float, unit: str, *runs: int) -> Fit:
    """Return a Fit of one judged run, or of so many, fitting and not judged ones."""
    return Fit(name, known, fits, freed, unit, *(runs or (1, int(fits > 0), 0)))


def usage(**fields: Any) -> JobUsage:
    full = JobUsage(
        cluster="c",
        job_id="1",
        job_id_raw="1",
        user="ann",
        account="lab",
        partition="gpu",
        qos="normal",
        state="COMPLETED",
        job_name="train",
        gres="gpu:h100:1",
        gpu_type="h100",
        start_s=0.0,
        end_s=3600.0,
        allocated_gpu_hours=1.0,
        held_gpu_hours=1.0,
        held_unknown_hours=0.0,
        util_measured_gpu_hours=1.0,
        util_used_gpu_hours=0.5,
        sm_measured_gpu_hours=1.0,
        sm_used_gpu_hours=0.25,
        sm_beyond_gpu_hours=0.0,
        gpu_mem_peak_mib=3000,
        coverage_pct=100.0,
        shared_hours=0.0,
        held_idle_gpu_hours=0.0,
        idle_tail_s=0.0,
        energy_j=3.6e6,
        cpu_cores_used=2.0,
        host_mem_peak_mib=8000,
        read_mib=100.0,
        written_mib=10.0,
        methods=("measured",),
    )
    return full._replace(**fields)


def evidence(job_id: str = "1", peak_mib: int | None = 8000, **fields: Any) -> Evidence:
    item = Evidence(job_id, "sig", "COMPLETED", "exclusive", H100, peak_mib, 20.0, 30.0, False, 10, 100.0, 1.0, 100.0)
    return item._replace(**fields)


def decision(job_id: str = "1", **fields: Any) -> Decision:
    item = Decision(
        job_id,
        "c",
        1.0,
        "ann",
        "train",
        "sig",
        "gpu:1",
        "gpu:h100_2g.20gb:1",
        "mig",
        "hint",
        9000.0,
        30.0,
        (because("slice-holds", need_mib=9256, profile="2g.20gb", mem_mib=20090),),
    )
    return item._replace(**fields)


def footprint(memory_mib: float | None = 9000.0, sm_pct: float | None = 10.0, **fields: Any) -> Footprint:
    memory = None if memory_mib is None else Quantiles(memory_mib, memory_mib, memory_mib)
    active = None if sm_pct is None else Quantiles(sm_pct, sm_pct, sm_pct)
    return Footprint(memory, active, None, "", "hint", 0, (because("hint", hint="mem=9G"),))._replace(**fields)


def request(**fields: Any) -> JobRequest:
    asked = JobRequest(
        name="train",
        interpreter="/bin/bash",
        partitions=("gpu",),
        gres=(Gres("gpu", "", 1),),
        gpu_style="gres",
        signature="sig",
    )
    return asked._replace(**fields)


MIG_POOL = Pool(
    name="m",
    nodes="m[1-2]",
    partitions=("gpu", "mig"),
    gpu_model=H100,
    gpu_mem_mib=81559,
    sm_count=132,
    slice=(
        MigSlice("h100_3g.40gb", "3g.40gb", 40448, 60, 2),
        MigSlice("h100_1g.10gb", "1g.10gb", 9984, 16, 7),
        MigSlice("h100_1g.20gb", "1g.20gb", 20090, 26, 4),
        MigSlice("h100_2g.20gb", "2g.20gb", 20090, 32, 3),
    ),
)
MPS_POOL = Pool("g", "g1", ("gpu",), "h100", H100, gpus_per_node=2, gpu_mem_mib=80000, sm_count=132, mps_per_gpu=100)
SHARD_POOL = Pool("s", "s1", ("gpu",), "h100", H100, gpus_per_node=2, gpu_mem_mib=80000, sm_count=132, shards_per_gpu=4)


def site(*pools: Pool, mps_users: str = "one", **sharing: Any) -> SiteConfig:
    # All kinds of pieces are given, and small slices although they slow: neither is the default.
    generous: dict[str, Any] = {"max_slowdown": 2.1, "order": ("mig", "mps", "shard")}
    return SiteConfig(
        1,
        "c",
        "22.05",
        default_partition="gpu",
        policy="auto",
        pool=pools,
        partition=(Partition("gpu", mps_users=mps_users), Partition("mig", mps_users=mps_users)),
        sharing=Sharing()._replace(**generous | sharing),
    )
