# SPDX-License-Identifier: Apache-2.0
"""What comes of a job by the card, by what is measured on it, and by the kind of job: one table, of the rules of csub.

A job is sized by its peak of GPU memory and its SM activity. From Hopper on the driver tells SM activity, and GPU_UTIL
of others bounds it until a run was measured; before, DCGM tells it or nobody does (estimate/exact.py).
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from slurm_colloc.gpu.mig import tells_sm_activity

JOBS = ("one GPU", "many tasks (--pack)", "several GPUs")


class Outcome(StrEnum):
    """What csub does with a job that was seen once."""

    PLACES = "places"
    PACKS = "packs"
    PACKS_AS_TOLD = "packs with --pack-tasks"
    REPORTS = "reports only"


class Telemetry(NamedTuple):
    """Who measures, and whether a job's peak is known from there, and SM activity or a bound on it: on which cards."""

    name: str
    peak: bool = False
    sm_active_from_hopper: bool = False
    sm_active: bool = False


TELEMETRY = (
    Telemetry("the user's hint (--gpu-footprint)", peak=True, sm_active=True),
    Telemetry("csub's sampler in the job, or the agent", peak=True, sm_active_from_hopper=True),
    Telemetry("sampler or agent with DCGM (observe.dcgm)", peak=True, sm_active=True),
    Telemetry("dcgm-exporter with DCGM_FI_PROF_SM_ACTIVE and hpc_job", peak=True, sm_active=True),
    Telemetry("slurm-job-exporter by way of DCGM", peak=True, sm_active=True),
    Telemetry("jobstats' exporter", peak=True, sm_active_from_hopper=True),
    Telemetry("jobstats' summaries (AdminComment)", peak=True, sm_active_from_hopper=True),
    Telemetry("nvidia_gpu_exporter or nvidia-smi logs, of whole nodes", peak=True, sm_active_from_hopper=True),
    Telemetry("Slurm's gres/gpumem and gres/gpuutil", peak=True, sm_active_from_hopper=True),
    Telemetry("ClusterCockpit's job table", sm_active_from_hopper=True),
    Telemetry("none"),
)


def outcome(card_tells_sm_activity: bool, telemetry: Telemetry, job: str) -> Outcome:
    """Return what comes of one of JOBS, of which nothing else is known."""
    busy = telemetry.sm_active or (card_tells_sm_activity and telemetry.sm_active_from_hopper)
    one, tasks, _ = JOBS
    if job == one:
        return Outcome.PLACES if telemetry.peak and busy else Outcome.REPORTS
    if job == tasks:
        return Outcome.PACKS if telemetry.peak and busy else Outcome.PACKS_AS_TOLD
    return Outcome.REPORTS


def rows(card_tells_sm_activity: bool) -> Iterator[tuple[str, ...]]:
    """Yield telemetry and what comes of each of JOBS."""
    for one in TELEMETRY:
        yield (one.name, *(str(outcome(card_tells_sm_activity, one, job)) for job in JOBS))


def of_cards(models: Iterable[str]) -> Iterator[str]:
    """Yield the table in lines for the cards of a site; nothing without a card."""
    by_kind: dict[bool, list[str]] = {}
    for model in sorted({model for model in models if model}):
        by_kind.setdefault(tells_sm_activity(model), []).append(model)
    for tells, named in sorted(by_kind.items(), reverse=True):
        table = [(f"source of a job's use, on {', '.join(named)}", *JOBS), *rows(tells)]
        widths = [max(len(row[column]) for row in table) for column in range(len(JOBS) + 1)]
        yield from ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
