# SPDX-License-Identifier: Apache-2.0
"""Finds the footprint of a job: gathers what is known of it and asks the estimators in estimate/."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from slurm_colloc.core.clock import with_timeout
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import DeadlineError
from slurm_colloc.core.model import GPU_OOM, Evidence, Footprint, JobRequest, Placement, Quantiles, Reason, because
from slurm_colloc.estimate.ladder import estimate, estimate_at_site
from slurm_colloc.estimate.lookup import look_up
from slurm_colloc.estimate.question import Question, question, settles_after_s
from slurm_colloc.estimate.signature import BY_SESSION
from slurm_colloc.placement.candidate import Access, asked_limit_min
from slurm_colloc.placement.choose import place
from slurm_colloc.submit.reasons import reason_against_history, without_comments

# One of these stands in each script of which submit/serving.py says anything.
_SERVERS = (b"vllm", b"sglang", b"text-generation-", b"XLA_PYTHON_CLIENT_", b"llama-")
# The largest part that a server may be told to take: the rest is for the driver and for what it allocates beside.
_MOST_TOLD = 0.95

JobStates = Callable[[Sequence[str]], Mapping[str, str]]


def footprint_of(
    request: JobRequest,
    text: bytes,
    hint: str | None,
    config: SiteConfig,
    job_states: JobStates,
    *,
    anyway: bool = False,
) -> tuple[Footprint, tuple[Reason, ...]]:
    """Return what the job, or one task of a pack, needs, and what is to be said of its history.

    Args:
        request: the job's.
        text: its script.
        hint: its user's word on its need.
        config: the site.
        job_states: asks Slurm how jobs ended.
        anyway: ask the history of a job too that can get no piece of a GPU.

    Raises:
        InputError: a hint outside its grammar.
    """
    is_session = request.signature.startswith(BY_SESSION)
    reason = None if is_session else reason_against_history(text, request.script_args)
    if reason or (request.untouchable and not anyway):
        footprint = estimate(Question(hint))
        return footprint._replace(provenance=(reason,)) if reason and hint is None else footprint, ()
    if hint is not None and "sm=" in hint:
        return estimate(Question(hint, request.signature, request.numbers, _too_little(request, config))), ()
    return footprint_of_runs(request, hint, config, job_states)


def footprint_of_runs(
    request: JobRequest, hint: str | None, config: SiteConfig, job_states: JobStates
) -> tuple[Footprint, tuple[Reason, ...]]:
    """Return what a job needs by its hint and by what is known of its runs now; see ``footprint_of``."""
    history = look_up(config, request.signature, job_states, request.command)
    settle_s = settles_after_s(config.sharing.settle_s, asked_limit_min(request, config))
    asking = question(request.signature, request.numbers, history, hint)._replace(settle_s=settle_s)
    footprint = estimate_at_site(asking, config.paths.state)
    # The user's word on the job holds.
    if hint is None and asking.runs:
        from slurm_colloc.estimate.harm import why_whole  # some jobs never ran

        footprint = footprint._replace(keep_whole=why_whole(asking.runs, config.sharing.max_slowdown))
    if request.differs and not history.evidence:
        footprint = footprint._replace(provenance=(*footprint.provenance, request.differs))
    return footprint, history.notes


def may_be_server(text: bytes, environ: Mapping[str, str]) -> bool:
    """Return whether a text names a program that is told which part of a GPU it takes, or a variable tells one."""
    return any(word in text for word in _SERVERS) or any(name.startswith("XLA_") for name in environ)


def with_arguments(text: bytes, request: JobRequest) -> bytes:
    """Return what a script says and is told, without its comments."""
    return b" ".join((without_comments(text), *(word.encode(errors="surrogateescape") for word in request.script_args)))


def as_served(
    footprint: Footprint, request: JobRequest, text: bytes, environ: Mapping[str, str]
) -> tuple[Footprint, tuple[Reason, ...]]:
    """Return the footprint with the part of a GPU that a server is told to take, and what contradicts its user's word.

    Weights that lie there are the least that what loads them needs.
    """
    text = with_arguments(text, request)
    if not may_be_server(text, environ):
        return footprint, ()
    from slurm_colloc.submit.serving import memory_part, weights_mib  # few jobs have a server

    server, memory = memory_part(text, environ), footprint.gpu_mem_peak_mib
    notes: tuple[Reason, ...] = ()
    if server:
        footprint = footprint._replace(part_taken=server.part_of_gpu, part_usable=server.part or 1.0)
    if server and server.part is None:
        reason = because("part-not-a-number", program=server.program.name, told_by=server.program.told_by)
        footprint = footprint._replace(keep_whole=reason)
    name, mib = (memory and weights_mib(text, request.folder, environ)) or ("", 0)
    if memory and mib > memory.q99:
        provenance = (*footprint.provenance, because("raised-by-weights", model=name, weights_mib=mib))
        footprint = footprint._replace(gpu_mem_peak_mib=Quantiles(*[float(mib)] * 3), provenance=provenance)
        notes = (because("less-than-weights", model=name, weights_mib=mib, need_mib=memory.q99),)
    return footprint, notes


def part_to_tell(
    request: JobRequest, footprint: Footprint, placement: Placement, config: SiteConfig, access: Access
) -> tuple[Reason, ...]:
    """Return which part a server would have to be told for a slice that it does not get as it is told now."""
    if not footprint.part_taken or footprint.keep_whole:
        return ()
    fitting = place(request, footprint._replace(part_taken=None, part_usable=1.0), config, access)
    if fitting.gres is None or fitting.gres == placement.gres or fitting.memory_mib is None:
        return ()
    held = [part.mem_mib for pool in config.pool for part in pool.slice if fitting.gres[:2] == ("gpu", part.type)]
    part = math.ceil(100 * fitting.memory_mib / held[0]) / 100 if held else 1.0
    if part > _MOST_TOLD:
        return ()
    return (because("part-to-tell", part=part, would_fit=str(fitting.gres)),)


def _too_little(request: JobRequest, config: SiteConfig) -> list[Evidence]:
    """Return the runs that ran out of GPU memory: all that counts where the user says the rest.

    Slurm is asked for nothing, and a history that hangs is no reason to decide nothing.
    """
    step = partial(look_up, config, request.signature, None)
    with suppress(DeadlineError):
        history = with_timeout(config.timeouts.decide_s / 4, "reading the history", step)
        return [run for run in history.evidence if run.state == GPU_OOM]
    return []
