# SPDX-License-Identifier: Apache-2.0
"""One job's story: what it asked, got and used."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from slurm_colloc.model import Decision, Evidence, JobUsage
from slurm_colloc.report.text import printable, stamp
from slurm_colloc.units import kilowatt_hours


def as_text(
    runs: Sequence[JobUsage], decision: Decision | None, evidence: Mapping[str, Evidence], since_s: float = 0.0
) -> str:
    """Return the story of a job's runs from ``since_s`` on, for a terminal; ``evidence`` is by raw job id."""
    stories = [_lines(run, decision, evidence.get(run.job_id_raw), since_s) for run in runs]
    return "\n".join(line for story in stories for line in [*story, ""])


def _lines(run: JobUsage, decision: Decision | None, evidence: Evidence | None, since_s: float) -> list[str]:
    start, end = (datetime.fromtimestamp(at_s).astimezone() for at_s in (run.start_s, run.end_s))
    cut = "since before " if run.start_s <= since_s else ""
    so_far = " so far" if run.state == "RUNNING" else ""
    lines = [
        f"job {printable(run.job_id)} '{printable(run.job_name)}' of {printable(run.user)}, {printable(run.state)}",
        f"  ran        {cut}{stamp(start)} to {stamp(end)}{so_far} in partition {printable(run.partition)}",
        f"  given      {printable(run.gres)}",
        f"  allocated  {_hours(run.allocated_gpu_hours)} in whole-GPU equivalents",
        *(_by_evidence(run, decision, evidence) if evidence and not run.methods else _by_samples(run, decision)),
    ]
    if decision:
        given = f"{decision.how}, footprint: {decision.rung}"
        lines += [
            f"  asked      {printable(decision.asked) or 'no GPU'}",
            f"  csub       {printable(given)}: {printable('; '.join(decision.reasons))}",
        ]
    return lines


def _by_samples(run: JobUsage, decision: Decision | None) -> list[str]:
    covered = "not recorded" if run.coverage_pct is None else f"{run.coverage_pct:.0f} % of its device time"
    return [
        f"  GPU_UTIL   {_share(run.util_used_gpu_hours, run.util_measured_gpu_hours)}",
        f"  SM active  {_share(run.sm_used_gpu_hours, run.sm_measured_gpu_hours)}",
        f"  memory     {_memory(run.gpu_mem_peak_mib, decision)}",
        f"  coverage   {covered} ({', '.join(run.methods) or 'no samples'})",
        f"  held idle  {_hours(run.held_idle_gpu_hours)}; {_tail(run.idle_tail_s)}",
        f"  energy     {_energy(run.energy_j)}",
        f"  host       {_host(run)}",
    ]


def _tail(idle_tail_s: float | None) -> str:
    return "idle tail not known" if idle_tail_s is None else f"idle for the last {idle_tail_s:.0f} s"


def _energy(energy_j: float | None) -> str:
    return "not known" if energy_j is None else f"{kilowatt_hours(energy_j):.4f} kWh"


def _host(run: JobUsage) -> str:
    """Return what tells an idle GPU from one that waits for data."""
    known = [
        (run.cpu_cores_used, "{:.1f} cores used"),
        (run.host_mem_peak_mib, "{} MiB at peak"),
        (run.read_mib, "{:.0f} MiB read"),
        (run.written_mib, "{:.0f} MiB written"),
    ]
    return ", ".join(text.format(value) for value, text in known if value is not None) or "not known"


def _by_evidence(run: JobUsage, decision: Decision | None, evidence: Evidence) -> list[str]:
    """Return what is kept of the run for the next submission, where the samples themselves are not at hand."""
    active = "not known"
    if evidence.sm_active_mean_pct is not None:
        bound = "at most " if evidence.sm_is_bound else ""
        active = f"{bound}{evidence.sm_active_mean_pct:.1f} % of a whole GPU"
    ran_s = run.end_s - run.start_s
    covered = f" of {ran_s:.0f} s" if run.state != "RUNNING" else ""
    return [
        "  GPU_UTIL   not kept",
        f"  SM active  {active}",
        f"  memory     {_memory(evidence.gpu_mem_peak_mib, decision)}",
        f"  coverage   {evidence.sampled_s:.0f} s{covered}, {evidence.sample_count} samples (evidence kept for csub)",
    ]


def _memory(peak_mib: int | None, decision: Decision | None) -> str:
    if peak_mib is None:
        return "not known"
    placed = decision.gpu_mem_q99_mib if decision else None
    above = f", above the {placed:.0f} MiB that csub counted on" if placed is not None and peak_mib > placed else ""
    return f"{peak_mib} MiB at peak{above}"


def _hours(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4f} GPU-h"


def _share(used: float | None, of: float) -> str:
    return (
        "not measured" if used is None or of <= 0 else f"{used:.4f} of {of:.4f} covered GPU-h, {100 * used / of:.1f} %"
    )


def as_json(
    runs: Sequence[JobUsage],
    decision: Decision | None,
    evidence: Mapping[str, Evidence],
    pack: Mapping[str, Any] | None = None,
    again: str = "",
) -> str:
    """Return the same as JSON; ``pack`` is what is to be said of a pack's tasks, ``again`` of GPU memory run out."""
    shown: dict[str, Any] = {
        "runs": [run._asdict() for run in runs],
        "decision": decision._asdict() if decision else None,
        "evidence": [evidence[run.job_id_raw]._asdict() for run in runs if run.job_id_raw in evidence],
    }
    if pack is not None:
        shown["pack"] = pack
    if again:
        shown["gpu_memory"] = again
    return json.dumps(shown, indent=2) + "\n"
