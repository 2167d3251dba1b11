# SPDX-License-Identifier: Apache-2.0
"""One job's story: what it asked, got and used."""

import json
from collections.abc import Sequence
from datetime import datetime

from slurm_colloc.model import Decision, JobUsage
from slurm_colloc.report.usage import printable, stamp


def as_text(runs: Sequence[JobUsage], decision: Decision | None) -> str:
    """Return the story of a job's runs for a terminal."""
    return "\n".join(line for run in runs for line in [*_lines(run, decision), ""])


def _lines(run: JobUsage, decision: Decision | None) -> list[str]:
    start, end = (datetime.fromtimestamp(at_s).astimezone() for at_s in (run.start_s, run.end_s))
    lines = [
        f"job {printable(run.job_id)} '{printable(run.job_name)}' of {printable(run.user)}, {printable(run.state)}",
        f"  ran        {stamp(start)} to {stamp(end)} in partition {printable(run.partition)}",
        f"  given      {printable(run.gres)}",
        f"  allocated  {_hours(run.allocated_gpu_hours)} in whole-GPU equivalents",
        f"  GPU_UTIL   {_share(run.util_used_gpu_hours, run.util_measured_gpu_hours)}",
        f"  SM active  {_share(run.sm_used_gpu_hours, run.sm_measured_gpu_hours)}",
        f"  memory     {'not known' if run.gpu_mem_peak_mib is None else f'{run.gpu_mem_peak_mib} MiB at peak'}",
        f"  coverage   {'not recorded' if run.coverage_pct is None else f'{run.coverage_pct:.0f} % of its device time'}"
        f" ({', '.join(run.methods) or 'no samples'})",
    ]
    if decision:
        lines += [
            f"  asked      {printable(decision.asked)}",
            "  csub       "
            + printable(
                f"{decision.given} ({decision.mode}, footprint: {decision.rung}): {'; '.join(decision.reasons)}"
            ),
        ]
    return lines


def _hours(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4f} GPU-h"


def _share(used: float | None, of: float) -> str:
    return "not measured" if used is None or of <= 0 else f"{100 * used / of:.1f} % of the covered GPU-hours"


def as_json(runs: Sequence[JobUsage], decision: Decision | None) -> str:
    """Return the same as JSON."""
    shown = {"runs": [run._asdict() for run in runs], "decision": decision._asdict() if decision else None}
    return json.dumps(shown, indent=2) + "\n"
