# SPDX-License-Identifier: Apache-2.0
"""From a request to what it needs: all that is known of the job is gathered, and the ladder is asked."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from slurm_colloc.clock import within
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import DeadlineError
from slurm_colloc.estimate.ladder import CORRECTED_RUNG, believed, estimate
from slurm_colloc.estimate.question import Question, question
from slurm_colloc.history.lookup import look_up
from slurm_colloc.model import GPU_OOM, Evidence, Footprint, JobRequest, Reason
from slurm_colloc.submit.reasons import reason_against_history

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
        hint: what its user says it needs.
        config: the site.
        job_states: asks Slurm how jobs ended.
        anyway: ask the history of a job too that can get no piece of a GPU.

    Raises:
        InputError: a hint outside its grammar.
    """
    if why := reason_against_history(text):
        footprint = estimate(Question(hint))
        return (footprint if hint is not None else footprint._replace(provenance=(why,))), ()
    if request.untouchable and not anyway:
        return estimate(Question(hint)), ()
    if hint is not None and "sm=" in hint:
        asked = Question(hint, request.signature, request.numbers, _too_little(request, config))
        return estimate(asked), ()
    known = look_up(config, request.signature, job_states, request.command)
    named = any(gres.type for gres in request.gres if gres.name == "gpu")
    asked = question(request.signature, request.numbers, known, hint)
    asked = asked._replace(names_gpu_type=named, trusts_prior=config.sharing.trust_prior)
    footprint, doubt = believed(asked, config.paths.state)
    # What the user says of the job holds.
    if hint is None and footprint.rung != CORRECTED_RUNG and asked.runs:
        from slurm_colloc.estimate.harm import why_whole  # of no use to a job that never ran

        footprint = footprint._replace(keep_whole=why_whole(asked.runs, config.sharing.max_slowdown))
    if request.differs and not known.evidence:
        footprint = footprint._replace(provenance=(*footprint.provenance, request.differs))
    return footprint, (*known.notes, *filter(None, [doubt]))


def _too_little(request: JobRequest, config: SiteConfig) -> list[Evidence]:
    """Return the runs that ran out of GPU memory, all that counts where the user says the rest.

    Slurm is asked for nothing, and a history that hangs is no reason to decide nothing.
    """
    step = partial(look_up, config, request.signature, None)
    with suppress(DeadlineError):
        known = within(config.timeouts.decide_s / 4, "reading the history", step)
        return [run for run in known.evidence if run.state == GPU_OOM]
    return []
