# SPDX-License-Identifier: Apache-2.0
"""The text of a plan: the line after a submission, --explain, and --dry-run --format=json."""

from collections.abc import Iterator, Sequence
from math import ceil

from slurm_colloc.core.model import Footprint, Placement, Reason, Weighed
from slurm_colloc.core.units import counted
from slurm_colloc.submit.plan import Part, Plan

SCHEMA = 4
_EXPLAINED = 8
_POLICIES = {
    "off": "csub changes nothing",
    "shadow": "csub only records what it would do",
    "pack": "csub makes packs only",
    "auto": "csub gives pieces of GPUs",
}


def answer(plan: Plan, *, terminal: bool) -> Iterator[str]:
    """Yield what the user must know of a submission: what is not simply as asked, and notes."""
    request, footprint, placement = plan.part
    if plan.packed:
        yield _said(placement.reasons)
    elif not placement.as_asked:
        gets = f"{placement.given} instead of {request.asked}"
        yield f"{gets}: {_said(placement.reasons)}; --colloc=off keeps {request.asked}"
    elif footprint.rung == "hint" and (request.gpu_count or plan.decides_nothing) and not plan.switched_off:
        yield f"stays as asked: {_said(placement.reasons)}"
    elif terminal and plan.first_run:
        keeps = f"it keeps {request.asked} and is measured"
        who = "those that wait" if plan.late else "the next submission"
        yield f"{_said(placement.reasons)}; {keeps}; {who} of the same job may get a piece of a GPU"
    yield from noted(plan)


def noted(plan: Plan) -> Iterator[str]:
    """Yield what else there is to say of a submission."""
    yield from (_said([note]) for note in plan.notes)


def _said(reasons: Sequence[Reason]) -> str:
    from slurm_colloc.core.wording import sentence  # most submissions have nothing to say

    return sentence(reasons)


def explanation(plan: Plan) -> Iterator[str]:
    """Yield why the plan is what it is in at most eight lines, what matters most first."""
    lines = list(_explain(plan.part))
    most = _EXPLAINED - 1
    if len(lines) > most:
        more = len(lines) - most + 1
        lines[most - 1 :] = [f"{counted(more, 'more line')}: --dry-run --format=json shows everything"]
    yield from lines
    policy = plan.chosen.policy
    keeps = "" if plan.packed or plan.part.placement.as_asked else f"; --colloc=off keeps {plan.part.request.asked}"
    yield f"csub's policy: '{policy}' ({_POLICIES.get(policy, 'not known')}), {_said([plan.chosen.why])}{keeps}"


def _explain(part: Part) -> Iterator[str]:
    request, footprint, placement = part
    where = f"partition '{','.join(request.partitions)}'" if request.partitions else "the default partition"
    gets = f"stays as asked ({request.asked or 'no GPU'})" if placement.as_asked else f"gets {placement.given}"
    yield f"the job {gets}: {_said(placement.reasons)}"
    yield f"asked for: {request.asked or 'no GPU'} in {where}"
    memory, active, dram = footprint.gpu_mem_peak_mib, footprint.sm_active_pct, footprint.dram_active_pct
    need = [
        _memory(memory.q99, placement) if memory else "GPU memory not known",
        f"{active.q95:.0f} % of the SMs" if active else "SM activity not known",
        *([f"GPU memory bandwidth {dram.q95:.0f} % of the time"] if dram and dram.q95 >= 1 else []),
    ]
    # Why nothing is known stands in the first line where that is why nothing changes.
    based = (
        "" if placement.reasons == footprint.provenance else f" ({_said(footprint.provenance)}{how_sure(footprint)})"
    )
    yield f"needs: {', '.join(need)}{based}"
    if request.differs and request.differs not in footprint.provenance:
        yield f"changed: {_said([request.differs])}"
    for weighed in placement.weighed:
        yield _weighed(weighed)
    # The same reason for several options is one line. Nodes outside the job's partition are no option to speak of.
    left = [one for one in placement.rejected if one.reason.code != "not-in-partition"]
    while left:
        alike = [one for one in left if one.reason == left[0].reason]
        options = ", ".join(one.option.replace("pool ", "node group ") for one in alike)
        yield f"not possible: {options}: {_said([left[0].reason])}"
        left = [one for one in left if one not in alike]


def _memory(most_mib: float, placement: Placement) -> str:
    """Return the memory that a piece must have, as in the first line, and what it is made of."""
    reasons = (*placement.reasons, *(one.reason for one in placement.rejected))
    need_mib = next((one.params["need_mib"] for one in reasons if "need_mib" in one.params), None)
    reserve_mib = need_mib - ceil(most_mib) if isinstance(need_mib, int) else 0
    if reserve_mib <= 0:
        return f"at most {most_mib:.0f} MiB of GPU memory"
    return f"{need_mib} MiB of GPU memory = {ceil(most_mib)} for the job + {reserve_mib} in reserve"


def how_sure(footprint: Footprint) -> str:
    """Return in words which share of such estimates held; empty where nobody has counted them."""
    sure = footprint.confidence
    if sure is None or not any(one.code.endswith("-counted") for one in footprint.provenance):
        return ""
    return f"; at least {100 * sure:.0f} % of such estimates were high enough at this site"


def _weighed(weighed: Weighed) -> str:
    """Return what is known of one option."""
    free = {True: "free now", False: "not free now", None: "not known whether it is free"}[weighed.free_now]
    return f"{weighed.option}: {free}; takes {weighed.slowdown:.2f} times the run time on a whole GPU"


def as_line(plan: Plan, sbatch: str) -> str:
    """Return the call of sbatch as a shell would take it."""
    import shlex  # csub imports this file at every submission

    return shlex.join([sbatch, *plan.sbatch_argv])


def as_json(plan: Plan, sbatch: str) -> str:
    """Return the plan as JSON: request, footprint, placement, script and sbatch_argv.

    Of a pack the request and the footprint are one task's, and ``pack`` says how they are put together.
    """
    import json

    from slurm_colloc.core.wording import shown

    request, footprint, placement = plan.part
    whole = {
        "schema": SCHEMA,
        "request": {
            # What is kept for the next submission says nothing of this one.
            **{name: value for name, value in shown(request).items() if name != "submitted"},
            "gres": [str(gres) for gres in request.gres],
        },
        "footprint": shown(footprint),
        "placement": {**shown(placement), "gres": placement.given},
        **({"pack": plan.packed._asdict()} if plan.packed else {}),
        "script": plan.text,
        "sbatch_argv": [sbatch, *plan.sbatch_argv],
    }
    return json.dumps(whole, indent=2, ensure_ascii=True) + "\n"
