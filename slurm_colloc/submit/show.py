# SPDX-License-Identifier: Apache-2.0
"""The text of a plan: the line after a submission, --explain, and --dry-run --format=json."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from math import ceil

from slurm_colloc.core.model import PACK, Footprint, Placement, Reason, SharingMode
from slurm_colloc.core.units import counted
from slurm_colloc.slurm.options import CommandLine
from slurm_colloc.submit.invocation import STDERR, Call, say
from slurm_colloc.submit.own_options import own_values
from slurm_colloc.submit.plan import Part, Plan

SCHEMA = 4
_EXPLAINED = 8
# A longer line nobody pastes.
_PASTED = 200
_POLICIES = {
    "off": "csub changes nothing",
    "shadow": "csub only records what it would do",
    "pack": "csub makes packs only",
    "auto": "csub gives pieces of GPUs",
}
# Reasons of a placement that say what it does to the job.
_SLOWER = ("slowdown", "slowdown-beside-users", "slowdown-unknown", "task-slowdown")
_DOES = (PACK, *_SLOWER, "billed", "time-limit", "time-limit-raised", "moved")
# The line of a submission, as scripts know it. A person is told in two what happens and what to do.
_LINE = {
    "pack": "{all}",
    "piece": "{given} instead of {asked}: {all}; --colloc=off leaves it as you asked",
    "hint": "stays as you asked: {all}",
}
_TOLD = {
    "pack": ("runs{where} as {does}", "to see its tasks: {command}"),
    "piece": ("gets {piece} ({given}) in place of {asked}{where}; {does}", "to undo this: {command}"),
    "first run": (
        "stays as you asked ({asked}){where} and is measured",
        "next: {next} of the same job may get a piece of a GPU",
    ),
}
_AS_ASKED = ("stays as you asked ({asked}){where}", "")


def answer(plan: Plan, job_id: str, command: str, *, terminal: bool, explained: bool) -> Iterator[str]:
    """Yield the lines of a submission that its user must know: those of one that is not simply as asked, and notes.

    A person reads what happens, why, and what to do, each in a line of its own; ``command`` submits as asked.
    """
    kind, lead = "" if explained else _kind(plan), f"job {job_id}: " if job_id else ""
    if terminal and kind:
        undo = f"scancel {job_id} && {command}" if command else ""
        job = f"job {job_id}" if job_id else "the job"
        yield from _told(plan, job, f"colloc job {job_id}" if plan.packed else undo)
    elif kind in _LINE:
        yield lead + _LINE[kind].format_map(_parts(plan))
    yield from ((f"  note: {note}" if terminal else lead + note) for note in noted(plan))


def _kind(plan: Plan) -> str:
    """Return which of _TOLD is to be told; empty where all is simply as asked."""
    request, footprint, placement = plan.part
    if plan.packed:
        return "pack"
    if not placement.as_asked:
        return "piece"
    if footprint.rung == "hint" and (request.gpu_count or plan.decides_nothing) and not plan.switched_off:
        return "hint"
    return "first run" if plan.first_run else ""


def _parts(plan: Plan) -> dict[str, str]:
    """Return what the lines are made of."""
    request, footprint, placement = plan.part
    does = [reason for reason in placement.reasons if reason.code in _DOES]
    need = () if placement.as_asked or plan.packed else footprint.provenance[:1]
    causes = _said([*need, *(reason for reason in placement.reasons if reason not in does)])
    return {
        "asked": request.asked or "no GPU",
        "given": placement.given,
        "piece": "a slice of a GPU" if placement.mode == SharingMode.MIG else "a share of a GPU",
        "all": _said(placement.reasons),
        "does": _said(does),
        "why": re.sub(rf"\b{re.escape(placement.given)}\b", "it", causes) if placement.gres else causes,
        "next": "those that wait" if plan.late else "the next submission",
    }


def _told(plan: Plan, job: str, command: str, where: str = "") -> Iterator[str]:
    """Yield what happens, why, and what to do, as far as there is anything to do."""
    parts = {**_parts(plan), "command": command, "where": where}
    happens, to_do = _TOLD.get(_kind(plan), _AS_ASKED)
    yield f"{job} {happens.format_map(parts)}".removesuffix("; ")
    if parts["why"]:
        yield f"  why: {parts['why']}"
    if to_do and (command or "{command}" not in to_do):
        yield f"  {to_do.format_map(parts)}"


def noted(plan: Plan) -> Iterator[str]:
    """Yield what else there is to say of a submission."""
    yield from (_said([note]) for note in plan.notes)


def _said(reasons: Sequence[Reason]) -> str:
    from slurm_colloc.core.wording import sentence  # most submissions have nothing to say

    return sentence(reasons)


def explanation(plan: Plan, command: str, job: str = "the job") -> Iterator[str]:
    """Yield why the plan is what it is in at most eight lines, what matters most first."""
    request = plan.part.request
    where = f"partition '{','.join(request.partitions)}'" if request.partitions else "the default partition"
    lines = list(_told(plan, job, "" if plan.packed else command, f" in {where}"))
    details = [f"  {line}" for line in _details(plan.part)]
    most = _EXPLAINED - len(lines) - 1
    if len(details) > most:
        cut = counted(len(details) - most + 1, "more line")
        details[most - 1 :] = [f"  {cut}: --dry-run --format=json shows everything"]
    policy = plan.chosen.policy
    because = f"({_POLICIES.get(policy, 'not known')}), {_said([plan.chosen.why])}"
    yield from (*lines, *details, f"  csub's policy: '{policy}' {because}")


def _details(part: Part) -> Iterator[str]:
    request, footprint, placement = part
    memory, active, dram = footprint.gpu_mem_peak_mib, footprint.sm_active_pct, footprint.dram_active_pct
    need = [
        _memory(memory.q99, placement) if memory else "GPU memory not known",
        f"{active.q95:.0f} % of the SMs" if active else "SM activity not known",
        *([f"GPU memory bandwidth {dram.q95:.0f} % of the time"] if dram and dram.q95 >= 1 else []),
    ]
    # The reason why nothing is known stands above if nothing changes for it.
    based = (
        "" if placement.reasons == footprint.provenance else f" ({_said(footprint.provenance)}{how_sure(footprint)})"
    )
    yield f"needs: {', '.join(need)}{based}"
    if request.differs and request.differs not in footprint.provenance:
        yield f"changed: {_said([request.differs])}"
    for weighed in placement.weighed:
        free = {True: "free now", False: "not free now", None: "not known whether it is free"}[weighed.free_now]
        yield f"{weighed.option}: {free}; takes {weighed.slowdown:.2f} times the run time on a whole GPU"
    # The same reason for several options is one line. Nodes outside the job's partition are no option to speak of.
    rejected = [item for item in placement.rejected if item.reason.code != "not-in-partition"]
    while rejected:
        reason = rejected[0].reason
        options = ", ".join(item.option.replace("pool ", "node group ") for item in rejected if item.reason == reason)
        yield f"not possible: {options}: {_said([reason])}"
        rejected = [item for item in rejected if item.reason != reason]


def _memory(most_mib: float, placement: Placement) -> str:
    """Return the memory that a piece must have, as in the first line, and what it is made of."""
    reasons = (*placement.reasons, *(item.reason for item in placement.rejected))
    need_mib = next((reason.params["need_mib"] for reason in reasons if "need_mib" in reason.params), None)
    reserve_mib = need_mib - ceil(most_mib) if isinstance(need_mib, int) else 0
    if reserve_mib <= 0:
        return f"at most {most_mib:.0f} MiB of GPU memory"
    return f"{need_mib} MiB of GPU memory = {ceil(most_mib)} for the job + {reserve_mib} in reserve"


def how_sure(footprint: Footprint) -> str:
    """Return in words which share of such estimates held; empty where nobody has counted them."""
    sure = footprint.confidence
    if sure is None or not any(reason.code.endswith("-counted") for reason in footprint.provenance):
        return ""
    return f"; at least {100 * sure:.0f} % of such estimates were high enough at this site"


def as_line(plan: Plan, sbatch: str) -> str:
    """Return the call of sbatch as a shell would take it."""
    import shlex

    return shlex.join([sbatch, *plan.sbatch_argv])


def as_json(plan: Plan, sbatch: str) -> str:
    """Return the plan as JSON: request, footprint, placement, script and sbatch_argv.

    The request and the footprint of a pack are one task's, and ``pack`` says how they are put together.
    """
    import json

    from slurm_colloc.core.wording import shown

    request, footprint, placement = plan.part
    shown_plan = {
        "schema": SCHEMA,
        "request": {
            # Facts that are kept for the next submission say nothing of this one.
            **{name: value for name, value in shown(request).items() if name != "submitted"},
            "gres": [str(gres) for gres in request.gres],
        },
        "footprint": shown(footprint),
        "placement": {**shown(placement), "gres": placement.given},
        **({"pack": plan.packed._asdict()} if plan.packed else {}),
        "script": plan.text,
        "sbatch_argv": [sbatch, *plan.sbatch_argv],
    }
    return json.dumps(shown_plan, indent=2, ensure_ascii=True) + "\n"


def said_of(plan: Plan, call: Call, job_id: str = "") -> Iterable[str]:
    """Return the lines of a submission on its plan; one that was explained says nothing a second time."""
    terminal = os.isatty(STDERR)
    command = _as_asked(plan, call) if terminal else ""
    return answer(plan, job_id, command, terminal=terminal, explained=call.explained)


def _as_asked(plan: Plan, call: Call) -> str:
    """Return the line that submits the same as asked; empty where nobody could paste it."""
    import shlex  # csub imports this file at each submission with a GPU

    line = shlex.join([call.called, "--colloc=off", *call.argv])
    typed = plan.script_at is not None or "wrap" in plan.given
    return line if typed and line.isprintable() and len(line) <= _PASTED else ""


def show(plan: Plan, command_line: CommandLine, call: Call) -> int:
    """Print what would be submitted and submit nothing."""
    text = plan.text
    for note in noted(plan):
        say(note)
    if own_values(command_line).get("format") == "json":
        text = as_json(plan, call.sbatch)
    else:
        say(f"would be submitted as: {as_line(plan, call.sbatch)}")
    sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
    sys.stdout.flush()
    return 0


def explain(plan: Plan, call: Call) -> None:
    """Say why the plan is what it is."""
    for line in explanation(plan, _as_asked(plan, call), "dry run: the job" if call.dry_run else "the job"):
        say(line)
