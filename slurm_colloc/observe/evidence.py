# SPDX-License-Identifier: Apache-2.0
"""Makes the evidence for a job's next submission from its own samples, while the job runs.

The sampler dies with the job without warning, so there is no "at the end": each pass leaves a whole record.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from slurm_colloc.core.model import Evidence, SharingMode
from slurm_colloc.core.usage_model import MEASURED, AttributedUse, NodeSample
from slurm_colloc.gpu.mig import tells_sm_activity
from slurm_colloc.observe.attribute import attribute_sample

# Slurm's word for a job that is still going; the true end state is asked for when the evidence is next needed.
RUNNING = "RUNNING"
# Less is the noise of an allocator that has come to rest.
_GROWTH = 1.01
# No node has more.
_MOST_CORES = 4096.0


class EvidenceBuilder:
    """Fold NodeSamples of one job into one Evidence; memory use does not grow with the job's length."""

    def __init__(self, job_id: str, signature: str, mode: str) -> None:
        self._job_id = job_id
        self._signature = signature
        self._mode = mode
        self._gpu_model = ""
        self._peak_mib: int | None = None
        self._total_mib: int | None = None
        # When its memory was first seen to be held, and when it last grew for good.
        self._held_s: float | None = None
        self._grew_to_mib = 0
        self._grew_until_s: float | None = None
        # Seconds spent at each whole percent of a GPU's SMs.
        self._sm_seconds = defaultdict[int, float](float)
        # Likewise at each percent of the time in which the busiest GPU's memory moves data.
        self._dram_seconds = defaultdict[int, float](float)
        # Over the time in which kernels ran: while a job starts, or prepares data, nothing slows it.
        self._sm_sum, self._ran_s = 0.0, 0.0
        # Likewise of the part of each sample in which a kernel ran, and the time of which that is known.
        self._busy_sum, self._busy_s = 0.0, 0.0
        self._sm_is_bound = False
        self._count = 0
        self._sampled_s = 0.0
        self._began_s: float | None = None
        # Seconds spent at each tenth of a core.
        self._core_seconds = defaultdict[int, float](float)
        self._host_mem_mib: int | None = None

    def add(self, sample: NodeSample) -> Evidence:
        """Take one NodeSample in and return the evidence so far."""
        if self._began_s is None:
            self._began_s = sample.at_s
        devices = {device.uuid: device for device in sample.devices}
        shares = [share for share in attribute_sample(sample) if share.job_id == self._job_id]
        memory = [share.gpu_mem_used_mib for share in shares]
        if shares and None not in memory:
            self._add_memory(sum(size for size in memory if size is not None), sample.at_s)
            total = sum(devices[uuid].mem_total_mib for uuid in {share.uuid for share in shares})
            self._total_mib = max(self._total_mib or 0, total)
        self._add_dram(shares, sample.interval_s)
        self._add_host(sample)
        sm_total, is_measured = 0.0, bool(shares)
        for share in shares:
            device = devices[share.uuid]
            self._gpu_model = device.model
            if device.profile:
                # "gpu:1" may land on a slice; the device knows better than the request.
                self._mode = SharingMode.MIG
            scale = device.sm_count / device.whole_sm_count if device.whole_sm_count else 1.0
            value = share.sm_active_pct
            if value is None and tells_sm_activity(device.model):
                # SMs cannot be active while no kernel runs: GPU_UTIL bounds SM activity from above.
                value = share.gpu_util_pct
                self._sm_is_bound = self._sm_is_bound or value is not None
            # A split among neighbours is good enough for a report, not for sizing the next run.
            is_measured = is_measured and value is not None and share.method == MEASURED
            sm_total += (value or 0.0) * scale
        if shares:
            self._count += 1
            self._sampled_s += sample.interval_s
        if is_measured:
            self._sm_seconds[min(100, max(0, round(sm_total)))] += sample.interval_s
            self._sm_sum += sm_total * sample.interval_s
            if sm_total:
                self._ran_s += sample.interval_s
                self._add_busy(shares, sample.interval_s)
        return self._evidence(sample.at_s, sample.at_s - self._began_s)

    def _add_memory(self, used_mib: int, at_s: float) -> None:
        self._peak_mib = max(self._peak_mib or 0, used_mib)
        if self._held_s is None and used_mib:
            self._held_s = at_s
        if self._held_s is not None and used_mib > self._grew_to_mib * _GROWTH:
            self._grew_to_mib = used_mib
            self._grew_until_s = at_s - self._held_s

    def _add_busy(self, shares: Sequence[AttributedUse], interval_s: float) -> None:
        values = [share.gpu_util_pct if share.gr_active_pct is None else share.gr_active_pct for share in shares]
        if (busiest := _largest(values)) is not None:
            self._busy_sum += busiest * interval_s
            self._busy_s += interval_s

    def _add_dram(self, shares: Sequence[AttributedUse], interval_s: float) -> None:
        values = [share.dram_active_pct if share.method == MEASURED else None for share in shares]
        if (busiest := _largest(values)) is not None:
            self._dram_seconds[min(100, max(0, round(busiest)))] += interval_s

    def _add_host(self, sample: NodeSample) -> None:
        for host in sample.hosts:
            if host.job_id != self._job_id:
                continue
            if host.host_mem_mib is not None:
                self._host_mem_mib = max(self._host_mem_mib or 0, host.host_mem_mib)
            if host.cpu_s is not None and sample.interval_s > 0:
                tenths = round(min(_MOST_CORES, host.cpu_s / sample.interval_s) * 10)
                self._core_seconds[tenths] += sample.interval_s

    def _evidence(self, at_s: float, elapsed_s: float) -> Evidence:
        seconds, is_alone = sum(self._sm_seconds.values()), self._mode == SharingMode.EXCLUSIVE
        return Evidence(
            job_id=self._job_id,
            signature=self._signature,
            state=RUNNING,
            mode=self._mode,
            gpu_model=self._gpu_model,
            gpu_mem_peak_mib=self._peak_mib,
            sm_active_mean_pct=self._sm_sum / (self._ran_s or seconds) if seconds else None,
            sm_active_q95_pct=_quantile(self._sm_seconds, 0.95),
            sm_is_bound=self._sm_is_bound,
            sample_count=self._count,
            sampled_s=self._sampled_s,
            ended_s=at_s,
            elapsed_s=elapsed_s,
            dram_active_q95_pct=_quantile(self._dram_seconds, 0.95) if is_alone else None,
            gpu_mem_total_mib=self._total_mib,
            grew_until_s=self._grew_until_s,
            cpu_cores_q95=None if (tenths := _quantile(self._core_seconds, 0.95)) is None else tenths / 10,
            host_mem_peak_mib=self._host_mem_mib,
            busy_mean_pct=self._busy_sum / self._busy_s if is_alone and self._busy_s else None,
            ran_s=self._ran_s,
        )


def _largest(values: Sequence[float | None]) -> float | None:
    """Return the largest value, None unless each is known."""
    return None if None in values else max((value for value in values if value is not None), default=None)


def _quantile(seconds_at: Mapping[int, float], share: float) -> float | None:
    """Return the least value that so large a share of the time stayed at or below; None of no time."""
    enough_s, passed = share * sum(seconds_at.values()), 0.0
    for value, seconds in sorted(seconds_at.items()):
        passed += seconds
        if passed >= enough_s and seconds:
            return float(value)
    return None
