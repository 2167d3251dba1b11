# SPDX-License-Identifier: Apache-2.0
"""The piece that a job would have fitted, and how to submit it next time."""

import math
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError, UnsureError
from slurm_colloc.core.model import Decision, Evidence, Placement, SharingMode, because
from slurm_colloc.core.usage_model import MIN_COVERAGE_PCT, JobUsage
from slurm_colloc.core.wording import sentence, words
from slurm_colloc.estimate.ladder import estimate, estimate_at_site
from slurm_colloc.estimate.lookup import Known
from slurm_colloc.estimate.question import Question, question
from slurm_colloc.facts.fits import Kept, fitted_by_evidence, with_fitted
from slurm_colloc.facts.judgement import FEWER, NO_USE, STYLES, Fitted, RunFound, judge, option_for
from slurm_colloc.placement.choose import place
from slurm_colloc.placement.fitted import had_piece, past_request, would_have_fitted
from slurm_colloc.report.job import SO_FAR, Advice
from slurm_colloc.report.usage import number
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.directives import read_script
from slurm_colloc.slurm.jobs import Accounted
from slurm_colloc.slurm.option_tables import Option
from slurm_colloc.slurm.options import Given, split_command_line
from slurm_colloc.slurm.submit_line import parse_submit_line
from slurm_colloc.submit.own_options import OWN_OPTIONS, option_table

_LIMIT_BYTES = 4 * 1024 * 1024
_GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
_MODES = {"mps": SharingMode.MPS, "shard": SharingMode.SHARD}


def advise(
    past_run: RunFound | Accounted,
    slurm: Accounted | None,
    decision: Decision | None,
    knowledge: Known | None,
    config: SiteConfig,
    own_evidence: Evidence | None = None,
) -> Advice:
    """Return what a measured run would have fitted, and the line to submit it by.

    Args:
        past_run: the run in the store, with its evidence where that is enough to size anything by, else Slurm's row.
        slurm: Slurm's row, of which the line of its submission counts.
        decision: csub's decision for it, None where it was submitted without.
        knowledge: csub's evidence of the job, where there is a decision and the job is one's own.
        config: the site.
        own_evidence: evidence of a run that the store does not have.
    """
    evidence = past_run.evidence if isinstance(past_run, RunFound) else own_evidence
    run = past_run.usage if isinstance(past_run, RunFound) else past_run
    gres = run.gres if isinstance(run, JobUsage) else ",".join(map(str, run.given))
    expected = _next_by_csub(decision, knowledge, run, config) if decision and not decision.is_pack else ""
    if evidence is None or run.state in SO_FAR or had_piece(evidence, gres):
        return Advice(expected=expected)
    if isinstance(past_run, RunFound):
        (past_run,) = with_fitted([past_run], config)
        fitted = past_run.fitted
        best = next((remedy for remedy in judge(past_run).remedies if remedy.code in (NO_USE, FEWER)), None)
        if best:
            command = _with_gres(slurm, best.gres, config)
            return Advice(f"{'no GPU' if best.code == NO_USE else 'fewer GPUs'}: {best.what}", command, expected)
    else:
        where = run.partition, run.account, run.qos, gres
        (fitted,) = fitted_by_evidence([Kept(evidence, where)], config)
    if fitted is None or fitted.why:
        reason = because(fitted.why if fitted else "size-not-known", state=evidence.state, least_pct=MIN_COVERAGE_PCT)
        return Advice(f"not known: {words(reason)}", expected=expected)
    request = past_request(gres, run.partition, run.account, run.qos)
    fit = _in_words(fitted, would_have_fitted(evidence, request, config), evidence)
    if decision:
        return Advice(fit, "", expected)
    footprint = estimate(Question(runs=[evidence._replace(mode=SharingMode.EXCLUSIVE)]))
    footprint = footprint._replace(busy_pct=None)  # a hint says nothing of it
    placement = place(request, footprint, config)
    memory, active = footprint.gpu_mem_peak_mib, footprint.sm_active_pct
    if placement.as_asked or config.policy != "auto" or not (memory and active):
        return Advice(fit)
    hint = f"--gpu-footprint=mem={math.ceil(memory.q99)}M,sm={min(100, max(1, math.ceil(active.q95)))}"
    line = _line_of(slurm, config) if slurm else None
    command = _shown(slurm, "csub", hint, *line.words) if slurm and line else ""
    how = "submitted so" if command else f"submitted by csub with {hint}"
    return Advice(fit, command, _gets(how, placement))


def advice_for(run: RunFound, submitted: JobUsage, config: SiteConfig) -> Advice:
    """Return what this run says of the next submission of what was ``submitted``, of which Slurm is asked."""
    rows: Sequence[Accounted] = ()
    with suppress(CollocError):
        rows = CliClient().accounted(submitted.job_id)
    slurm_row = next((row for row in rows if row.user == submitted.user), None)
    return advise(run, slurm_row, None, None, config) if slurm_row else Advice()


def _next_by_csub(decision: Decision, knowledge: Known | None, run: JobUsage | Accounted, config: SiteConfig) -> str:
    """Return what csub would make of the next submission of a job that it knows."""
    if knowledge is None:
        return f"not known here: csub goes by what it keeps for {run.user} alone" if config.policy == "auto" else ""
    next_run = question(decision.signature, decision.numbers, knowledge)
    footprint = estimate_at_site(next_run, config.paths.state)
    placement = place(past_request(decision.asked, run.partition, run.account, run.qos), footprint, config)
    how = "submitted by csub again" + (", without a hint" if decision.rung == "hint" else "")
    if config.policy != "auto":
        return ""
    if placement.as_asked:
        return f"{how} it stays as asked: {sentence(placement.reasons)}"
    return _gets(how, placement)


def _gets(how: str, placement: Placement) -> str:
    return f"{how} it gets {placement.given}, if one is free and limits allow it: {sentence(placement.reasons[:1])}"


def _in_words(fitted: Fitted, placement: Placement, run: Evidence) -> str:
    active = f"{number(run.sm_active_mean_pct, 1)} %"
    share = f"at most {active} of the SMs" if run.sm_is_bound else f"{active} of the SMs"
    used = f"its memory peak was {run.gpu_mem_peak_mib} MiB, and it used {share} in the samples with kernels"
    if not fitted.unit:
        return f"none: {sentence(placement.reasons)} ({used})"
    mode = _MODES.get(fitted.unit.partition(":")[0], SharingMode.MIG)
    where = f" in partition '{fitted.partition}'" if fitted.partition else ""
    why = next((f"; {sentence([one])}" for one in placement.reasons if one.code == "slowdown-beside-users"), "")
    return f"{fitted.unit} ({mode}){where}: {used}{why}"


def _with_gres(slurm: Accounted | None, gres: str, config: SiteConfig) -> str:
    """Return the line that submits a plain job again with other GPUs, by the option that it asked for them by."""
    line = _line_of(slurm, config) if slurm and gres else None
    if slurm is None or line is None:
        return ""
    try:
        with open(os.path.join(slurm.work_dir, line.words[line.script_at]), "rb") as stream:
            script = read_script(stream.read(_LIMIT_BYTES), line.table, config.slurm_release)
    except (CollocError, UnsureError, OSError):
        return ""
    styles = {option.name for option in (*script.options, *line.options) if option.name in ("gres", *_GPU_OPTIONS)}
    if len(styles) != 1 or not styles <= set(STYLES):
        return ""
    # sbatch takes the last of two of one option.
    position = line.script_at
    return _shown(slurm, "sbatch", *line.words[:position], option_for(gres, *styles), *line.words[position:])


class _Line(NamedTuple):
    words: list[str]
    script_at: int
    options: tuple[Given, ...]
    table: tuple[Option, ...]


def _line_of(slurm: Accounted, config: SiteConfig) -> _Line | None:
    """Return the words of a job's submission, None where nobody can be sure that they would submit it again."""
    words, table = slurm.submit_line.split()[1:], option_table(config.slurm_release, config)
    try:
        script, arguments = parse_submit_line(slurm.submit_line, slurm.job_name, config.slurm_release)
        split = split_command_line(words, table)
    except (CollocError, UnsureError):
        return None
    position = len(words) - len(arguments) - 1
    # Words with blanks are kept without their quotes, a script of csub's is a copy that is gone.
    path = os.path.join(slurm.work_dir, script)
    if split.script_at != position or not (os.path.isfile(path) and os.access(path, os.R_OK)):
        return None
    if any(word.partition("=")[0] in {f"--{option.name}" for option in OWN_OPTIONS} for word in words[:position]):
        return None
    return _Line(words, position, split.options, table)


def _shown(slurm: Accounted, *words: str) -> str:
    line = shlex.join(words)
    return f"cd {shlex.quote(slurm.work_dir)} && {line}" if line.isprintable() and slurm.work_dir.isprintable() else ""
