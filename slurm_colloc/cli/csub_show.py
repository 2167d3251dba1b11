# SPDX-License-Identifier: Apache-2.0
"""What csub says of a plan when asked: --explain and --dry-run --format=json."""

import json
import shlex
from collections.abc import Iterator

from slurm_colloc.submit.plan import Plan


def explanation(plan: Plan) -> Iterator[str]:
    """Yield why the plan is what it is, and every option that was not taken."""
    footprint, placement = plan.footprint, plan.placement
    where = f"partition '{plan.request.partition}'" if plan.request.partition else "the default partition"
    yield f"asked for {plan.request.asked or 'no GPU'} in {where}"
    memory, active = footprint.gpu_mem_peak_mib, footprint.sm_active_pct
    yield (
        f"footprint ({footprint.rung}): memory q99 {f'{memory.q99:.0f} MiB' if memory else 'not known'}, "
        f"SM activity q95 {f'{active.q95:.0f} %' if active else 'not known'}; {footprint.provenance}"
    )
    given = "as asked" if placement.as_asked else f"given {placement.given} ({placement.mode})"
    yield f"{given}: {'; '.join(placement.reasons)}"
    for option in placement.rejected:
        yield f"not {option.option}: {option.reason}"


def as_line(plan: Plan, sbatch: str) -> str:
    """Return the call of sbatch as a shell would take it."""
    return shlex.join([sbatch, *plan.sbatch_argv])


def as_json(plan: Plan, sbatch: str) -> str:
    """Return the plan as JSON: request, footprint, placement, script and sbatch_argv."""
    shown = {
        "request": {**plan.request._asdict(), "gres": [str(gres) for gres in plan.request.gres]},
        "footprint": _nested(plan.footprint),
        "placement": {**_nested(plan.placement), "gres": plan.placement.given},
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
