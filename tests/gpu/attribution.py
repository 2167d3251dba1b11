# SPDX-License-Identifier: Apache-2.0
"""How right attribution is on a real GPU: `python -m tests.gpu.attribution`.

Needs an NVIDIA GPU of Hopper or later that nobody else uses, and PyTorch. Changes no setting of the card. What a job
truly did while it shared is the work that it got done times what such work costs alone: steps per second, times SM
activity per step measured alone. Beside it stand what attribution says, and what two usual ways would have said: the
device's value copied to each job, and the device's value split by the shares that were asked for.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence

from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.observe.sampler import Sampler
from tests.gpu.loads import Job, running
from tests.gpu.read_loads import mps

SETTLE_S, LONGEST_START_S, PERIOD_S, READINGS = 3.0, 60.0, 1.0, 12
FIGURES = ("gpu_util_pct", "gr_active_pct", "sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct")
UNEQUAL = [Job("1", "tiny"), Job("2", "train"), Job("3", "half"), Job("4", "busy")]
MIXES: dict[str, list[Job]] = {
    "two": [Job("1", "tiny"), Job("3", "half")],
    "four unequal": UNEQUAL,
    "four unequal, memory the other way round": [Job("1", "tiny", 20000), Job("2", "train", 5000), *UNEQUAL[2:]],
    "two trainings": [Job("2", "train"), Job("5", "big")],
    "three trainings and one that holds": [
        Job("2", "train"),
        Job("6", "train"),
        Job("7", "train"),
        Job("8", "resident"),
    ],
}


def observe(jobs: Sequence[Job], environment: Mapping[str, str]) -> tuple[list[NodeSample], dict[str, float]]:
    """Run the jobs; return the NodeSamples once they are settled, and steps per second by job."""
    with running(jobs, environment) as started:
        deadline = time.monotonic() + LONGEST_START_S
        while not all(one.done() > 5 for one in started):
            assert time.monotonic() < deadline, "a load does not start"
            time.sleep(0.1)
        time.sleep(SETTLE_S)
        reader = NvmlReader()
        sampler = Sampler(reader, "", PERIOD_S)
        sampler.sample(time.time(), time.monotonic())
        before, began_s = [one.done() for one in started], time.monotonic()
        rounds = []
        for _ in range(READINGS):
            time.sleep(PERIOD_S)
            rounds.append(sampler.sample(time.time(), time.monotonic()))
        elapsed_s = time.monotonic() - began_s
        rates = {one.job.job_id: (one.done() - was) / elapsed_s for one, was in zip(started, before, strict=True)}
        for one in started:
            assert one.process.poll() is None, f"{one.job} ended"
        reader.close()
    return rounds, rates


def mean(rounds: Sequence[NodeSample], name: str) -> float | None:
    """Return the device's mean over the NodeSamples."""
    values = [getattr(seen.devices[0], name) for seen in rounds]
    return None if None in values else statistics.fmean(values)


def shares(rounds: Sequence[NodeSample]) -> dict[str, tuple[float, float | None, str]]:
    """Return (mean, spread of single readings, method) of each job's SM activity."""
    found: dict[str, list[float]] = {}
    methods: dict[str, set[str]] = {}
    for seen in rounds:
        for share in attribute_sample(seen):
            found.setdefault(share.job_id, []).append(share.sm_active_pct or 0.0)
            methods.setdefault(share.job_id, set()).add(share.method)
    return {
        job: (statistics.fmean(values), statistics.pstdev(values), ", ".join(sorted(methods[job])))
        for job, values in found.items()
    }


def main() -> None:
    """Measure every load alone, then every mix time-sliced and under MPS; print a line of JSON for each."""
    alone: dict[str, tuple[float, float]] = {}
    for program in ("", "resident", "tiny", "train", "half", "big", "busy", "blinking"):
        jobs = [Job("9", program)] if program else []
        rounds, rates = observe(jobs, os.environ)
        figures = {name: mean(rounds, name) for name in FIGURES}
        watts = statistics.fmean(seen.devices[0].energy_j or 0.0 for seen in rounds) / PERIOD_S
        alone[program] = (rates.get("9", 0.0), figures["sm_active_pct"] or 0.0)
        say(alone=program or "idle", steps_per_s=rates.get("9"), figures=figures, power_w=watts, shares=shares(rounds))
    for label, jobs in MIXES.items():
        report(f"time-sliced: {label}", jobs, *observe(jobs, os.environ), alone)
    with mps() as environment:
        for label, jobs in MIXES.items():
            report(f"MPS: {label}", jobs, *observe(jobs, environment), alone)


def report(
    label: str,
    jobs: Sequence[Job],
    rounds: list[NodeSample],
    rates: dict[str, float],
    alone: dict[str, tuple[float, float]],
) -> None:
    """Print truth and what each method says of it, in percent of the device's SMs."""
    device = mean(rounds, "sm_active_pct") or 0.0
    found = shares(rounds)
    memory = {p.job_id: p.gpu_mem_used_mib or 0 for p in rounds[-1].processes if p.kind != "server"}
    rows, errors = [], {"attributed": 0.0, "whole device copied": 0.0, "by shares": 0.0, "by memory": 0.0}
    truths = {
        job.job_id: rates[job.job_id] * alone[job.program][1] / alone[job.program][0] if alone[job.program][0] else 0.0
        for job in jobs
    }
    for job in jobs:
        said = {
            "attributed": found.get(job.job_id, (0.0, None, ""))[0],
            "whole device copied": device,
            "by shares": device / len(jobs),
            "by memory": device * memory.get(job.job_id, 0) / max(1, sum(memory.values())),
        }
        for name, value in said.items():
            errors[name] += abs(value - truths[job.job_id])
        rows.append(
            {
                "job": job.program,
                "memory_mib": memory.get(job.job_id),
                "speed": rates[job.job_id] / alone[job.program][0] if alone[job.program][0] else None,
                "truth": truths[job.job_id],
                **said,
                "spread": found.get(job.job_id, (0.0, None, ""))[1],
                "method": found.get(job.job_id, (0.0, None, ""))[2],
            }
        )
    total = sum(truths.values())
    say(
        mix=label,
        device_sm_active_pct=device,
        truths_pct=total,
        jobs=rows,
        error_pct={name: 100 * value / total for name, value in errors.items()},
        sm_util=[(p.job_id, p.kind, p.sm_util_pct) for p in rounds[-1].processes],
    )


def say(**figures: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(figures, default=str), flush=True)


if __name__ == "__main__":
    main()
