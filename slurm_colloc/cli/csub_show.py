# SPDX-License-Identifier: Apache-2.0
"""What csub says of a plan: its one line after a submission, --explain, and --dry-run --format=json."""

from collections.abc import Iterator

from slurm_colloc.model import Footprint, Weighed
from slurm_colloc.submit.plan import Part, Plan
from slurm_colloc.units import in_words

SCHEMA = 1


def answer(plan: Plan) -> Iterator[str]:
    """Yield what the user must know of a submission: one line for each component that is not simply as asked."""
    for part in plan.parts:
        request, footprint, placement = part
        if plan.packed:
            yield "; ".join(placement.reasons)
        elif not placement.as_asked:
            yield f"{placement.given} instead of {request.asked}: {'; '.join(placement.reasons)}"
        elif footprint.rung == "hint" and (request.gpu_count or plan.decides_nothing) and not plan.switched_off:
            yield f"the footprint changes nothing: {placement.reasons[0]}"


def explanation(plan: Plan) -> Iterator[str]:
    """Yield why the plan is what it is, and every option that was not taken."""
    yield f"policy '{plan.chosen.policy}': {plan.chosen.why}"
    for number, part in enumerate(plan.parts):
        for line in _explain(part):
            yield f"component {number}: {line}" if len(plan.parts) > 1 else line


def _explain(part: Part) -> Iterator[str]:
    request, footprint, placement = part
    where = f"partition '{','.join(request.partitions)}'" if request.partitions else "the default partition"
    yield f"asked for {request.asked or 'no GPU'} in {where}"
    memory, active, dram = footprint.gpu_mem_peak_mib, footprint.sm_active_pct, footprint.dram_active_pct
    yield (
        f"footprint ({footprint.rung}): memory q99 {f'{memory.q99:.0f} MiB' if memory else 'not known'}, "
        f"SM activity {f'{active.q95:.0f} %' if active else 'not known'}, "
        f"DRAM activity q95 {f'{dram.q95:.0f} %' if dram else 'not known'}; {footprint.provenance}{how_sure(footprint)}"
    )
    given = "as asked" if placement.as_asked else f"given {placement.given} ({placement.mode})"
    yield f"{given}: {'; '.join(placement.reasons)}"
    for weighed in placement.weighed:
        yield _weighed(weighed)
    for option in placement.rejected:
        yield f"not {option.option}: {option.reason}"


def how_sure(footprint: Footprint) -> str:
    """Return in words which share of such answers held; empty where nobody has counted them."""
    sure = footprint.confidence
    return "" if sure is None else f"; of past answers like it at least {100 * sure:.0f} % held"


def _weighed(weighed: Weighed) -> str:
    """Return one option's wait, run time and end."""
    free = {True: "free now", False: "not free now", None: ""}[weighed.free_now]
    waited = ""
    if weighed.waited_median_s is not None and weighed.waited_p90_s is not None:
        waited = (
            f"jobs waited {in_words(weighed.waited_median_s)} (median of {weighed.waited_runs}, last week; "
            f"one in ten more than {in_words(weighed.waited_p90_s)})"
        )
    ends = "when it would end is not known"
    if weighed.run_s is None:
        ends = "how long it runs is not known"
    elif weighed.turnaround_s is not None:
        wait_s = 0.0 if weighed.free_now else weighed.waited_median_s or 0.0
        ends = (
            f"would end after {in_words(weighed.turnaround_s)} = {in_words(wait_s)} "
            f"+ {in_words(weighed.run_s)} x {weighed.slowdown:.2f}"
        )
    return f"weighed {weighed.option}: {'; '.join(filter(None, (free, waited, ends)))}"


def as_line(plan: Plan, sbatch: str) -> str:
    """Return the call of sbatch as a shell would take it."""
    import shlex  # csub imports this file at every submission

    return shlex.join([sbatch, *plan.sbatch_argv])


def as_json(plan: Plan, sbatch: str) -> str:
    """Return the plan as JSON: components (request, footprint, placement), script and sbatch_argv.

    The first component's three parts stand at the top as well, for the jobs that have no other. Of a pack the request
    and the footprint are one task's, and ``pack`` says how they are put together.
    """
    import json

    components = [
        {
            "request": {
                # What is kept for the next submission says nothing of this one.
                **{name: value for name, value in part.request._asdict().items() if name != "submitted"},
                "gres": [str(gres) for gres in part.request.gres],
            },
            "footprint": _nested(part.footprint),
            "placement": {**_nested(part.placement), "gres": part.placement.given},
        }
        for part in plan.parts
    ]
    shown = {
        "schema": SCHEMA,
        **components[0],
        "components": components,
        **({"pack": plan.packed._asdict()} if plan.packed else {}),
        "script": plan.text,
        "sbatch_argv": [sbatch, *plan.sbatch_argv],
    }
    return json.dumps(shown, indent=2, ensure_ascii=True) + "\n"


def _nested(record: object) -> dict[str, object]:
    """Return a NamedTuple and those inside it as dictionaries."""

    def plain(value: object) -> object:
        if hasattr(value, "_asdict"):
            return {name: plain(part) for name, part in value._asdict().items()}
        return [plain(part) for part in value] if isinstance(value, tuple) else value

    shown = plain(record)
    assert isinstance(shown, dict)
    return shown
