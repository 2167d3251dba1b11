# SPDX-License-Identifier: Apache-2.0
"""Writes csub's decision about a job into a file, once sbatch has given the job an id."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from slurm_colloc.core.clock import now, with_timeout
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError
from slurm_colloc.core.model import Decision, Footprint, Placement, SharingMode
from slurm_colloc.estimate.submitted import keep_submitted
from slurm_colloc.placement.candidate import partition_names
from slurm_colloc.placement.free_now import is_free
from slurm_colloc.submit.plan import PLAIN, Plan
from slurm_colloc.submit.slurm_answers import take_off

# Characters of the command line in the decision: enough to know the job again.
_LONGEST_LINE = 200
# With these a job waits for more than a GPU, and of an array's tasks one alone is like what was looked up.
_WAITS_ANYWAY = {"array", "begin", "dependency", "hold"}


def record(plan: Plan, job_id: str, cluster: str, config: SiteConfig, say: Callable[[str], None]) -> None:
    """Write down what was decided; a note where that fails, for the job is submitted."""
    if plan.part is PLAIN:
        return
    packed = plan.packed
    words = plan.sbatch_argv[plan.script_at :] if plan.script_at is not None and "wrap" not in plan.given else ()
    line = " ".join(words)[:_LONGEST_LINE].encode(errors="replace").decode()
    request, footprint, placement = plan.part
    # A pack's use must count neither as one task's nor against what was foretold of one task.
    of_task = footprint._replace(gpu_mem_peak_mib=None, sm_active_pct=None, expected_mib=None, margin="")
    decision = Decision(
        job_id=job_id,
        cluster=cluster,
        at_s=now(),
        user=os.environ.get("USER", ""),
        job_name=request.name,
        signature=packed.signature if packed else request.signature,
        asked=request.asked,
        given=placement.given,
        mode=placement.mode,
        reasons=placement.reasons,
        numbers=() if packed else request.numbers,
        command="" if packed else request.command,
        line=line,
        arm=plan.chosen.arm,
        rule=plan.chosen.rule,
        **foretold(of_task if packed else footprint, placement.withheld or placement),
        **(_would(plan) if config.policy == "shadow" else {}),
    )
    try:
        elsewhere = with_timeout(config.timeouts.decide_s, "writing it", partial(drop, config, decision))
        _take_off(plan, config)
    except CollocError as error:
        say(f"job {job_id} is submitted, but the decision is not recorded: {error}")
        return
    if elsewhere:
        say(f"job {job_id}: {elsewhere}")
    # What was read is read again where it cannot be kept.
    with suppress(CollocError):
        if request.submitted:
            with_timeout(config.timeouts.decide_s, "keeping what was read", partial(keep_submitted, request.submitted))


def foretold(footprint: Footprint, placement: Placement) -> dict[str, Any]:
    """Return the fields of a decision, and of a change of a waiting job, that say what was foretold of the job."""
    memory, active = footprint.gpu_mem_peak_mib, footprint.sm_active_pct
    return {
        "rung": footprint.rung,
        "gpu_mem_q99_mib": memory.q99 if memory else None,
        "gpu_mem_expected_mib": footprint.expected_mib,
        "margin": footprint.margin,
        "sm_active_q95_pct": active.q95 if active else None,
        "slowdown_expected": placement.slowdown_expected,
        "slowdown_upper": placement.slowdown_upper,
    }


def _take_off(plan: Plan, config: SiteConfig) -> None:
    """Take what a job was given off what is kept as free, if its choice needed a look at that."""
    request, _, placement = plan.part
    looked = any(option.free_now is not None for option in (placement.withheld or placement).weighed)
    if not looked or {"hold", "begin", "dependency"} & set(plan.given):
        return
    tasks = 1 if plan.packed else request.array_at_once
    partitions = (placement.partition,) if placement.partition else partition_names(request, config)
    for gres in (placement.gres,) if placement.gres else request.gres:
        take_off(config, partitions, gres, tasks)


def drop(config: SiteConfig, decision: Decision) -> str:
    """Write down one decision, and return what is to be said where that is not in the site's spool; empty else.

    Raises:
        StoreError: it cannot be written.
    """
    from slurm_colloc.estimate.records import drop_decision

    folder = os.path.dirname(drop_decision(config.decisions_folder, decision))
    if folder == config.own_spool or not config.own_spool:
        return ""
    return (
        f"the job is not affected, but its record is kept in '{folder}': '{config.own_spool}' is not this user's own "
        "folder; tell the administrators of the site"
    )


def _would(plan: Plan) -> dict[str, Any]:
    """Return the fields of a decision that say what would have been, were the policy not shadow."""
    withheld = plan.part.placement.withheld
    if withheld is None:
        return {"shadow": True, "would_not": _would_not(plan)}
    begins_now = is_free(withheld) and not _WAITS_ANYWAY & set(plan.part.request.options)
    return {
        "shadow": True,
        "would": withheld.given,
        "would_partition": withheld.partition,
        "would_memory_mib": withheld.memory_mib if withheld.mode == SharingMode.MPS else None,
        "would_wait_s": 0.0 if begins_now else None,
    }


def _would_not(plan: Plan) -> str:
    """Return which of WOULD_NOT the job would have been left as asked for."""
    if plan.switched_off:
        return "off"
    if plan.was_pack:
        return "pack"
    request, footprint, _ = plan.part
    if request.untouchable:
        return "request"
    return "need" if None in (footprint.gpu_mem_peak_mib, footprint.sm_active_pct) else "fit"
