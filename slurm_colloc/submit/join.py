# SPDX-License-Identifier: Apache-2.0
"""A job as a step of one of the user's running jobs: which of them can take it, and the command line that starts it.

Loaded only where --join is given. Nothing here submits or starts anything.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from slurm_colloc.config import Pool, SiteConfig
from slurm_colloc.estimate.ladder import believed
from slurm_colloc.estimate.question import question_of
from slurm_colloc.history.lookup import look_up
from slurm_colloc.history.records import own_decision
from slurm_colloc.model import JOINED_SUFFIX, Decision, Evidence, Footprint, JobRequest, Load, Quantiles, SharingMode
from slurm_colloc.placement.join import (
    Node,
    Times,
    Unit,
    load_of,
    reason_against,
    reason_of_node,
    reason_of_time,
    step_limit_s,
)
from slurm_colloc.placement.terms import other_card
from slurm_colloc.slurm.options import Given, count_of, value_of
from slurm_colloc.slurm.running import Running
from slurm_colloc.submit.reasons import without_comments
from slurm_colloc.units import demand_mib, in_words

STEP_NAME = "join-"
_MODE = "join"
_MOST_LOOKED_AT = 8
# What a step of another job can honour as sbatch would. Any other option, a new one too, is submitted as usual.
_HONOURED = frozenset(
    {"account", "chdir", "comment", "cpus-per-gpu", "cpus-per-task", "error", "export", "gpus", "gpus-per-node"}
    | {"gpus-per-task", "gres", "input", "job-name", "mem", "mem-per-cpu", "mem-per-gpu", "nodes", "ntasks"}
    | {"ntasks-per-node", "open-mode", "output", "parsable", "partition", "qos", "requeue", "time", "verbose"}
)
_ONE = {"nodes": ("1", "1-1"), "ntasks": ("1",), "ntasks-per-node": ("1",), "export": ("ALL",)}
_ACTS_ON_JOB = re.compile(rb"\b(?:scontrol|scancel|srun|sbcast|mpirun|mpiexec)\b")


class Slurm(Protocol):
    """What is asked of Slurm for a candidate."""

    def job_states(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """Return how jobs ended."""

    def used_mib(self, job_id: str) -> int | None:
        """Return what the steps of a running job use of their node's memory; None where it is not measured."""


class Guest(NamedTuple):
    """The job that would join: its options in force, and what it needs on the node."""

    given: Mapping[str, Given]
    request: JobRequest
    footprint: Footprint
    cpus: int
    mem_mib: int | None


class Host(NamedTuple):
    """A running job that can take the guest, what csub decided for it, and what both are counted for."""

    job: Running
    decision: Decision
    load: Load
    guest_load: Load
    limit_min: int | None
    notes: tuple[str, ...]


class Choice(NamedTuple):
    """The host to join, None for none, and why not each of the others, or the guest itself."""

    host: Host | None
    reasons: tuple[str, ...]


def reason_against_guest(given: Mapping[str, Given], request: JobRequest, text: bytes) -> str:
    """Return why this job cannot be a step of another one; empty when it can."""
    for name, option in given.items():
        if name == "no-requeue":
            return "--no-requeue, and it may have to be run again if the other job ends first"
        if name not in _HONOURED:
            return f"'{option.written}', which a step of another job may not honour"
        if name in _ONE and (option.value or "") not in _ONE[name]:
            return f"'{option.written}': a joined job is one task with csub's own environment"
    if request.array or request.components or request.gpu_count != 1 or len(request.gres) != 1:
        return "it does not ask for just one GPU"
    if found := _ACTS_ON_JOB.search(without_comments(text)):
        return f"its script calls {found[0].decode()}, which would act on the other job"
    return ""


def guest_of(given: Mapping[str, Given], request: JobRequest, footprint: Footprint) -> Guest:
    """Return what the job needs.

    Raises:
        UnsureError: a number that is none.
        InputError: a size that is none.
    """
    cpus = count_of(given, "cpus-per-task") or count_of(given, "cpus-per-gpu") or 1
    size = next((name for name in ("mem", "mem-per-gpu", "mem-per-cpu") if name in given), "")
    mem = None
    if size:
        value = value_of(given, size)
        mem = demand_mib(f"{value}M" if value.isdigit() else value) * (cpus if size == "mem-per-cpu" else 1)
    return Guest(given, request, footprint, cpus, mem)


def choose_host(
    guest: Guest,
    jobs: Sequence[Running],
    steps: Sequence[tuple[str, str]],
    wanted: str,
    config: SiteConfig,
    slurm: Slurm,
) -> Choice:
    """Return the running job that the guest joins: of those that can take it, the one that keeps its GPU least busy.

    Args:
        guest: the job.
        jobs: the user's running ones.
        steps: their steps.
        wanted: "auto" or the id of a job.
        config: the site.
        slurm: answers what has to be asked.
    """
    named = [job for job in jobs if wanted in ("auto", job.job_id, job.name.partition("_")[0])]
    if not named:
        return Choice(None, (f"job {wanted} is no running job of yours" if wanted != "auto" else "no job runs",))
    found: list[Host] = []
    reasons = []
    taken = {step.partition(".")[0] for step, name in steps if name.startswith(STEP_NAME)}
    looked_at = 0
    for job in named:
        why: Host | str = _reason_of_shape(job, guest, taken)
        if not why:
            looked_at += 1
            why = (
                _host(job, guest, config, slurm) if looked_at <= _MOST_LOOKED_AT else "other jobs were looked at first"
            )
        if isinstance(why, Host):
            found.append(why)
        else:
            reasons.append(f"job {job.name}: {why}")
    return Choice(min(found, key=lambda host: host.load.sm_active_pct, default=None), tuple(reasons))


def _reason_of_shape(job: Running, guest: Guest, taken: set[str]) -> str:
    """Return why the job's allocation cannot hold the guest, by what squeue says alone."""
    devices = [gres for gres in job.gres if gres.quantity]
    if job.hetjob or job.nodes != 1:
        return "it is heterogeneous or has several nodes"
    if len(devices) != 1 or devices[0].name != "gpu" or devices[0].quantity != 1:
        had = " and ".join(map(str, devices)) or "no GPU (AccountingStorageTRES must have gres/gpu for Slurm to tell)"
        return f"as squeue tells it has {had}, not just one GPU or slice"
    if job.array_task:
        return "it is a task of an array, and what csub decided holds for all of them"
    if job.job_id in taken:
        return "another job has joined it already"
    wanted = guest.request.gres[0].type
    if wanted and wanted != devices[0].type:
        return f"its GPU is '{devices[0].type}', not '{wanted}'"
    partitions = guest.request.partitions
    if partitions and job.partition not in partitions:
        return f"it runs in partition '{job.partition}', not '{','.join(partitions)}'"
    for what, asked, has in (("account", guest.request.account, job.account), ("QOS", guest.request.qos, job.qos)):
        if asked and asked != has:
            return f"its {what} is '{has}', not '{asked}'"
    return ""


def _host(job: Running, guest: Guest, config: SiteConfig, slurm: Slurm) -> Host | str:
    found = _unit(job, config)
    if isinstance(found, str):
        return found
    pool, unit = found
    decision = own_decision(config.decisions_folder, job.job_id)
    if decision is None:
        return "csub has no record of it, so what it needs is not known"
    if decision.is_pack:
        return "it is a pack"
    footprint, peak = _footprint_of_host(job, decision, config, slurm)
    loads = []
    for whose, one in (("it", footprint), ("the new job", guest.footprint)):
        if other := other_card(one, pool):
            return f"of {whose}: {other}"
        load = load_of(one, unit, config.sharing.headroom_mib)
        if isinstance(load, str):
            return f"what {whose} needs of the GPU is not known: {load}"
        loads.append(load)
    if why := reason_against(loads[0], loads[1], unit):
        return why
    times = Times(
        left_s=job.left_s,
        host_ran_s=job.ran_s,
        host_run_s=footprint.run_time_s.q50 if footprint.run_time_s else None,
        limit_s=None if guest.request.time_limit_min is None else guest.request.time_limit_min * 60,
        run_s=guest.footprint.run_time_s.q99 if guest.footprint.run_time_s else None,
    )
    if why := reason_of_time(times):
        return why
    node = Node(job.cpus, job.mem_mib or 0, None, guest.cpus, guest.mem_mib)
    # sstat is asked last, for it is a question to the node.
    if why := reason_of_node(node._replace(used_mib=slurm.used_mib(job.job_id) if guest.mem_mib else None)):
        return why
    notes = [] if times.host_run_s is not None else ["how long it will run is not known, but for its time limit"]
    limit_s = step_limit_s(times)
    limit_min = None if limit_s is None else math.ceil(limit_s / 60)
    notes.append(f"it counts for {loads[0].memory_mib} MiB and {loads[0].sm_active_pct:.0f} % of the SMs{peak}")
    return Host(job, decision, loads[0], loads[1], limit_min, tuple(notes))


def _unit(job: Running, config: SiteConfig) -> tuple[Pool, Unit] | str:
    kind = next(gres.type for gres in job.gres if gres.quantity)
    pools = [pool for pool in config.pool if job.partition in pool.partitions]
    units: list[tuple[Pool, Unit]] = []
    for pool in pools:
        for part in pool.slice:
            if kind in ("", part.type) and part.quantity and pool.sm_count:
                sms = pool.sm_count / part.sm_count
                memory = pool.gpu_mem_mib / part.mem_mib if pool.gpu_mem_mib else sms
                units.append((pool, Unit(part.mem_mib, sms, memory)))
        if pool.gpu_mem_mib is not None and pool.gpus_per_node and kind in ("", pool.gpu_type):
            units.append((pool, Unit(pool.gpu_mem_mib)))
    if not units:
        return f"site.toml does not say how large '{kind or 'a GPU'}' in partition '{job.partition}' is"
    return min(units, key=lambda one: one[1].memory_mib)


def _footprint_of_host(job: Running, decision: Decision, config: SiteConfig, slurm: Slurm) -> tuple[Footprint, str]:
    """Return what the host needs: by its history or what was said of it, and no less than was measured of it so far."""
    known = look_up(config, decision.signature, slurm.job_states)
    own = next((run for run in known.evidence if run.job_id == job.job_id), None)
    question = question_of(decision, known)._replace(runs=[run for run in known.evidence if run is not own])
    footprint, _ = believed(question, config.paths.state)
    said = _said(decision)
    if footprint.gpu_mem_peak_mib is None or decision.rung == "hint":
        footprint = footprint._replace(gpu_mem_peak_mib=said[0] or footprint.gpu_mem_peak_mib)
    if footprint.sm_active_pct is None or decision.rung == "hint":
        footprint = footprint._replace(sm_active_pct=said[1] or footprint.sm_active_pct)
    return _raised(footprint, own)


def _said(decision: Decision) -> tuple[Quantiles | None, Quantiles | None]:
    memory, active = decision.gpu_mem_q99_mib, decision.sm_active_q95_pct
    return (
        None if memory is None else Quantiles(memory, memory, memory),
        None if active is None else Quantiles(active, active, active),
    )


def _raised(footprint: Footprint, own: Evidence | None) -> tuple[Footprint, str]:
    """Return the footprint, raised to what the running job was measured to use, and words of that."""
    if own is None or not own.sample_count:
        return footprint, ", by what is known beforehand"
    memory, active = footprint.gpu_mem_peak_mib, footprint.sm_active_pct
    if memory and own.gpu_mem_peak_mib and own.gpu_mem_peak_mib > memory.q99:
        memory = memory._replace(q99=float(own.gpu_mem_peak_mib))
    if active and own.sm_active_q95_pct and own.mode == SharingMode.EXCLUSIVE:
        active = active._replace(q95=max(active.q95, own.sm_active_q95_pct))
    peak = f", {own.gpu_mem_peak_mib} MiB measured in {in_words(own.sampled_s)}"
    return footprint._replace(gpu_mem_peak_mib=memory, sm_active_pct=active), peak


def srun_line(srun: str, host: Host, guest: Guest, python: str, folder: str) -> list[str]:
    """Return the command line of the step.

    Without --output: what the step says until it has begun comes through srun, and from then on nothing does.
    """
    size = [f"--mem={guest.mem_mib}M"] if guest.mem_mib else []
    time = [] if host.limit_min is None else [f"--time={host.limit_min}"]
    return [
        *(srun, f"--jobid={host.job.job_id}", "--overlap", "--exact", "-N1", "-n1", "-c", str(guest.cpus), *size),
        *(*time, "-J", f"{STEP_NAME}{guest.request.name}", "--export=ALL", "--input=none"),
        *("--mpi=none", "--quiet", f"--chdir={os.sep}"),
        *(python, "-I", "-m", "slurm_colloc.runtime.joined", folder),
    ]


def decisions(host: Host, guest: Guest, step: str, cluster: str, at_s: float, user: str) -> tuple[Decision, Decision]:
    """Return what is recorded of the joined job, and of its host from now on.

    What both use together is no evidence for either, so neither's signature is that of its submissions.
    """
    memory, active = guest.footprint.gpu_mem_peak_mib, guest.footprint.sm_active_pct
    joined = Decision(
        job_id=step,
        cluster=cluster,
        at_s=at_s,
        user=user,
        job_name=guest.request.name,
        signature=f"{guest.request.signature}{JOINED_SUFFIX}",
        asked=guest.request.asked,
        given=f"joined job {host.job.job_id}",
        mode=_MODE,
        rung=guest.footprint.rung,
        gpu_mem_q99_mib=memory.q99 if memory else None,
        sm_active_q95_pct=active.q95 if active else None,
        reasons=(f"both fit: {fit_in_words(host)}", *host.notes),
    )
    of_host = host.decision._replace(
        at_s=at_s,
        signature=f"{host.decision.signature}{JOINED_SUFFIX}",
        gpu_mem_q99_mib=None,
        sm_active_q95_pct=None,
        gpu_mem_expected_mib=None,
        margin="",
        reasons=(*host.decision.reasons, f"step {step} shares its GPU, so what it uses is no evidence"),
    )
    return joined, of_host


def fit_in_words(host: Host) -> str:
    """Return how the two share the GPU."""
    memory = host.load.memory_mib + host.guest_load.memory_mib
    active = host.load.sm_active_pct + host.guest_load.sm_active_pct
    return f"together {memory} MiB with headroom and {active:.0f} % of the SMs, taking turns"
