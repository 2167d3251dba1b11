# SPDX-License-Identifier: Apache-2.0
"""What running jobs do right now, from a Prometheus server that scrapes the agents or other exporters."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from slurm_colloc.accounting.sources.prometheus import names_there, read_rounds
from slurm_colloc.accounting.sources.prometheus_server import Server
from slurm_colloc.chart_model import LiveUse
from slurm_colloc.errors import InputError
from slurm_colloc.units import used_mib
from slurm_colloc.usage_model import DeviceSample

# An agent's own metrics (observe/prometheus.py): name -> field, and factor to our unit.
_OURS = {
    "colloc_job_gpu_utilization_ratio": ("gpu_util_pct", 100.0),
    "colloc_job_gpu_sm_active_ratio": ("sm_active_pct", 100.0),
    "colloc_job_gpu_memory_used_bytes": ("gpu_mem_mib", 1.0),
}
# Servers scrape once a minute, or more often; what is older is not "now".
VALID_S = 150.0

_Reading = dict[str, float | None]


def live_by_prometheus(server: Server, now_s: float) -> dict[str, LiveUse]:
    """Return what each job does by the newest samples, of the last minutes only; jobs without any are left out.

    Raises:
        InputError: the server does not answer, or has nothing that can be read.
    """
    there = server.names(_OURS, now_s - VALID_S, now_s + 1)
    return _by_agents(server, there, now_s) if there else _by_exporters(server, now_s)


def _by_agents(server: Server, there: Iterable[str], now_s: float) -> dict[str, LiveUse]:
    units: dict[str, dict[str, _Reading]] = defaultdict(lambda: defaultdict(dict))
    # A series is of one method: when that changes there are two of them, and one has ended.
    read_s: dict[tuple[str, str, str], float] = {}
    for name in sorted(there):
        field, factor = _OURS[name]
        for labels, points in server.samples(name, now_s - VALID_S, now_s + 1):
            job_id, uuid = labels.get("job_id", ""), labels.get("uuid", "")
            if job_id and uuid and points and points[-1][0] > read_s.get((job_id, uuid, field), 0.0):
                at_s, value = points[-1]
                units[job_id][uuid][field] = used_mib(int(value)) if field == "gpu_mem_mib" else factor * value
                read_s[job_id, uuid, field] = at_s
    newest: dict[str, float] = {}
    for (job_id, _, _), at_s in read_s.items():
        newest[job_id] = max(newest.get(job_id, 0.0), at_s)
    return {job_id: live_use(of.values(), newest[job_id]) for job_id, of in units.items()}


def _by_exporters(server: Server, now_s: float) -> dict[str, LiveUse]:
    try:
        names = names_there(server, now_s - VALID_S, now_s + 1)
    except InputError as error:
        raise InputError(f"no metric of the agents, and {error}") from error
    units: dict[str, dict[str, _Reading]] = defaultdict(dict)
    newest: dict[str, float] = {}
    for seen in read_rounds(server, names, now_s - VALID_S, now_s + 1).rounds:
        jobs_on: dict[str, set[str]] = defaultdict(set)
        for holder in seen.holders:
            jobs_on[holder.uuid].add(holder.job_id)
        for device in seen.devices:
            # What several jobs do together is nobody's figure.
            if len(jobs_on[device.uuid]) == 1:
                (job_id,) = jobs_on[device.uuid]
                units[job_id][device.uuid] = _reading(device)
                newest[job_id] = max(newest.get(job_id, 0.0), seen.at_s)
    return {job_id: live_use(of.values(), newest[job_id]) for job_id, of in units.items()}


def _reading(device: DeviceSample) -> _Reading:
    return {
        "gpu_util_pct": device.gpu_util_pct,
        "sm_active_pct": device.sm_active_pct,
        "gpu_mem_mib": device.gpu_mem_used_mib,
    }


def live_use(units: Iterable[Mapping[str, float | None]], at_s: float) -> LiveUse:
    """Return a job's use from the readings of its units: means of the percentages, the sum of the memory."""
    every = list(units)
    memory = _known("gpu_mem_mib", every)
    return LiveUse(
        at_s,
        len(every),
        _mean(_known("gpu_util_pct", every)),
        _mean(_known("sm_active_pct", every)),
        round(sum(memory)) if len(memory) == len(every) and memory else None,
    )


def _known(field: str, units: Sequence[Mapping[str, float | None]]) -> list[float]:
    return [value for unit in units if (value := unit.get(field)) is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
