# SPDX-License-Identifier: Apache-2.0
"""The piece that a job would have fitted, and how to submit it next time."""

import math
import os
import shlex

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError, UnsureError
from slurm_colloc.core.model import Decision, Evidence, Footprint, Placement, SharingMode
from slurm_colloc.core.units import counted
from slurm_colloc.core.usage_model import MIN_COVERAGE_PCT, JobUsage
from slurm_colloc.core.wording import sentence, words
from slurm_colloc.estimate.ladder import estimate, estimate_at_site
from slurm_colloc.estimate.lookup import Known
from slurm_colloc.estimate.question import Question, question
from slurm_colloc.facts.fits import judge
from slurm_colloc.facts.one_job import RunFound
from slurm_colloc.placement.choose import place
from slurm_colloc.placement.fitted import had_piece, not_judged, past_request, would_have_fitted
from slurm_colloc.report.job import Advice
from slurm_colloc.report.usage import never_used
from slurm_colloc.slurm.jobs import Accounted
from slurm_colloc.slurm.options import split_command_line
from slurm_colloc.slurm.submit_line import parse_submit_line
from slurm_colloc.submit.own_options import OWN_OPTIONS, option_table

_ALLOWING = "as far as limits and what is free allow: 'csub --dry-run --explain SCRIPT' tells"


def advise(
    found: RunFound | Accounted,
    slurm: Accounted | None,
    decision: Decision | None,
    known: Known | None,
    config: SiteConfig,
    kept: Evidence | None = None,
) -> Advice:
    """Return what a measured run would have fitted, and the line to submit it by.

    Args:
        found: what the store has of it, with what was sampled where that is enough to size anything by, else Slurm.
        slurm: what Slurm says, of which the line of its submission counts.
        decision: what csub decided for it, None where it was submitted without.
        known: what csub knows of the job, where there is a decision and the job is one's own.
        config: the site.
        kept: what was sampled of a run that the store does not have.
    """
    evidence = found.evidence if isinstance(found, RunFound) else kept
    run = found.usage if isinstance(found, RunFound) else found
    gres = run.gres if isinstance(run, JobUsage) else ",".join(map(str, run.given))
    expected = _next_by_csub(decision, known, run, config) if decision and not decision.is_pack else ""
    if evidence is None or run.state in ("RUNNING", "SUSPENDED") or had_piece(evidence, gres):
        return Advice(expected=expected)
    if isinstance(found, RunFound) and (said := _of_several(found)):
        return Advice(said, expected=expected)
    if why := _not_judged(found, evidence, gres, config):
        return Advice(f"not known: {why}", expected=expected)
    if isinstance(run, JobUsage) and never_used(run):
        return Advice("no GPU: no sample saw any activity on it, so submit without one", expected=expected)
    request = past_request(gres, run.partition, run.account, run.qos)
    fit = _in_words(would_have_fitted(evidence, request, config), evidence)
    if decision:
        return Advice(fit, "", expected)
    footprint = estimate(Question(runs=[evidence._replace(mode=SharingMode.EXCLUSIVE)]))
    placement = place(request, footprint, config)
    if slurm is None or placement.as_asked or config.policy != "auto":
        return Advice(fit)
    command = _command(slurm, footprint, config)
    return Advice(fit, command, _gets("submitted so", placement, footprint) if command else "")


def _of_several(found: RunFound) -> str:
    """Return how many GPUs would have done for a run that left some of several unused; empty for any other run."""
    line, run = found.timeline, found.usage
    if line is None or not 0 < line.devices_unused < line.devices or None in line.active_pct:
        return ""
    asked = past_request(run.gres, run.partition, run.account, run.qos).gpu_count
    if asked != line.devices or (run.coverage_pct or 0) < MIN_COVERAGE_PCT:
        return ""
    used = line.devices - line.devices_unused
    return f"{counted(used, 'GPU')}: it asked for {asked} and used {used}; ask for as many as the program uses"


def _not_judged(found: RunFound | Accounted, evidence: Evidence, gres: str, config: SiteConfig) -> str:
    if isinstance(found, Accounted):
        why = not_judged(evidence, gres)
        return words(why) if why else ""
    fitted = judge(found, config)
    return fitted.why if fitted else "what part of a GPU it had is not known"


def _next_by_csub(decision: Decision, known: Known | None, run: JobUsage | Accounted, config: SiteConfig) -> str:
    """Return what csub would make of the next submission of a job that it knows."""
    if known is None:
        return f"not known here: csub goes by what it keeps for {run.user} alone" if config.policy == "auto" else ""
    asked = question(decision.signature, decision.numbers, known)
    footprint = estimate_at_site(asked, config.paths.state)
    placement = place(past_request(decision.asked, run.partition, run.account, run.qos), footprint, config)
    how = "submitted by csub again" + (", without a hint" if decision.rung == "hint" else "")
    if config.policy != "auto":
        return ""
    if placement.as_asked:
        return f"{how} it gets what it asks for: {sentence(placement.reasons)}"
    return _gets(how, placement, footprint)


def _gets(how: str, placement: Placement, footprint: Footprint) -> str:
    memory, active = footprint.gpu_mem_peak_mib, footprint.sm_active_pct
    by = f"{memory.q99:.0f} MiB, at most {active.q95:.0f} % of the SMs" if memory and active else "not known"
    return f"{how} it gets {placement.given} ({placement.mode}; footprint {footprint.rung}: {by}), {_ALLOWING}"


def _in_words(placement: Placement, run: Evidence) -> str:
    active = f"{run.sm_active_mean_pct:.0f} %"
    what = f"at most {active} of the SMs" if run.sm_is_bound else f"{active} of the SMs"
    used = f"{run.gpu_mem_peak_mib} MiB at peak and {what} on average"
    if placement.as_asked:
        return f"no smaller piece: {sentence(placement.reasons)} (measured: {used})"
    where = f" in partition '{placement.partition}'" if placement.partition else ""
    return f"{placement.given} ({placement.mode}){where}, by {used}"


def _command(slurm: Accounted, footprint: Footprint, config: SiteConfig) -> str:
    """Return the line that submits a plain job again by csub; empty where nobody can be sure that it would."""
    memory, active = footprint.gpu_mem_peak_mib, footprint.sm_active_pct
    if memory is None or active is None:
        return ""
    hint = f"mem={math.ceil(memory.q99)}M,sm={min(100, max(1, math.ceil(active.q95)))}"
    words = slurm.submit_line.split()[1:]
    try:
        script, arguments = parse_submit_line(slurm.submit_line, slurm.job_name, config.slurm_release)
        at = split_command_line(words, option_table(config.slurm_release, config)).script_at
    except (CollocError, UnsureError):
        return ""
    # Words with blanks are kept without their quotes, a script of csub's is a copy that is gone.
    if at != len(words) - len(arguments) - 1 or not _is_there(slurm.work_dir, script):
        return ""
    if any(word.partition("=")[0] in {f"--{option.name}" for option in OWN_OPTIONS} for word in words[:at]):
        return ""
    line = shlex.join(["csub", f"--gpu-footprint={hint}", *words])
    return f"cd {shlex.quote(slurm.work_dir)} && {line}" if line.isprintable() and slurm.work_dir.isprintable() else ""


def _is_there(folder: str, script: str) -> bool:
    path = os.path.join(folder, script)
    return os.path.isfile(path) and os.access(path, os.R_OK)
