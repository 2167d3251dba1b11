# SPDX-License-Identifier: Apache-2.0
"""Makes the plan of one submission: the arguments and the script for sbatch. Nothing is started or submitted here."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError, MisusedError, UnsureError
from slurm_colloc.core.model import Footprint, JobRequest, Placement, Reason, SharingMode, because
from slurm_colloc.estimate.signature import WRAPPED
from slurm_colloc.estimate.site_stop import off_for_me, why_stopped
from slurm_colloc.placement.choose import as_asked, place
from slurm_colloc.slurm.directives import read_script
from slurm_colloc.slurm.free_gpus import Free
from slurm_colloc.slurm.limits import Limits
from slurm_colloc.slurm.options import CommandLine, Given, without
from slurm_colloc.submit.footprint import as_served, footprint_of, may_be_server, part_to_tell, with_arguments
from slurm_colloc.submit.override import overridden, without_sizes, would_have_been
from slurm_colloc.submit.own_options import NOT_LATE, check_pack, is_exclusive, own_option, parse_slowdown, wants_pack
from slurm_colloc.submit.reasons import reason_to_keep_command, reason_to_keep_text
from slurm_colloc.submit.render import names_slice, render_block, render_script
from slurm_colloc.submit.request import build_request
from slurm_colloc.submit.rollout import NOBODY, Chosen, choose, draw
from slurm_colloc.submit.slurm_answers import access_of, free_now, whose_job
from slurm_colloc.submit.submission import Submission


class Slurm(Protocol):
    """What a submission may have to ask of Slurm, with bounds on the time."""

    def job_states(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """Return how jobs ended."""

    def limits(self, cluster: str) -> Limits:
        """Return what this user may ask for."""

    def free(self) -> Free:
        """Return what is free now."""


class Part(NamedTuple):
    """What is asked for, what is known of the need, and what the job gets."""

    request: JobRequest
    footprint: Footprint
    placement: Placement


# Of plain sbatch, where nothing was decided.
PLAIN = Part(JobRequest(), Footprint(None, None, None, "", "", 0, ()), as_asked(()))


class Packed(NamedTuple):
    """What a pack is to those who show and record it.

    ``signature`` is the pack's own: what it uses is no evidence for one task. ``has_original`` says that sbatch can be
    handed the same tasks as they were asked for.
    """

    tasks: int
    at_once: int
    jobs: int
    cpus_per_task: int
    retries: int
    signature: str
    has_original: bool


class Plan(NamedTuple):
    """What csub will do with one submission.

    ``sbatch_argv`` are sbatch's arguments; where ``body`` is not None, ``script_at`` is the place in them of the
    script that ``body`` stands in for (None: standard input). ``switched_off`` says why nothing is to be changed.
    ``was_pack`` says that it is submitted as the array it is, and would have been a pack were the
    policy not shadow. ``colloc`` is what the policy in slurmctld is told of --colloc, ``chosen`` is csub's own.
    ``given`` are the options in force, ``wants_pack`` says that its tasks were to be packed.
    ``first_run`` says that no earlier run is known, and that this one is measured for a site that has pieces to give.
    ``late`` says that the job may get a piece while it waits, which its script is made for, ``would_be_late`` that what
    it would have got is to be recorded.
    """

    part: Part
    sbatch_argv: tuple[str, ...]
    script_at: int | None
    script: bytes
    body: bytes | None
    notes: tuple[Reason, ...]
    switched_off: Reason | None
    packed: Packed | None = None
    was_pack: bool = False
    colloc: str = "auto"
    given: Mapping[str, Given] = {}
    wants_pack: bool = False
    first_run: bool = False
    late: bool = False
    would_be_late: bool = False
    chosen: Chosen = Chosen("auto", because("policy-of-site"))

    @property
    def text(self) -> str:
        """Return the script as it would be submitted."""
        return (self.script if self.body is None else self.body).decode(errors="surrogateescape")

    @property
    def decides_nothing(self) -> bool:
        """Return whether there is nothing to change and nothing to record: a job without a GPU."""
        return self.body is None and not self.part.request.gres

    @property
    def as_asked(self) -> bool:
        """Return whether the request is not changed."""
        return self.part.placement.as_asked


class Case(NamedTuple):
    """A submission, and what decides about it."""

    command_line: CommandLine
    environ: Mapping[str, str]
    submission: Submission
    config: SiteConfig
    slurm: Slurm


class NotPackedError(CollocError):
    """Tasks that cannot be run as a pack, and why."""

    def __init__(self, *reasons: Reason) -> None:
        """Take the reasons, what matters most first."""
        super().__init__(*reasons)
        self.reasons = reasons

    def __str__(self) -> str:
        from slurm_colloc.core.wording import sentence  # nearly all submissions are no packs

        return sentence(self.reasons)


# Makes one job of an array's tasks, or raises CollocError: they go as the array they are. Packs are above this room.
Packer = Callable[[Case, Part, Reason | None], Plan]


def _no_packer(case: Case, part: Part, switched_off: Reason | None) -> Plan:
    raise NotPackedError(because("no-packer"))


def make_plan(
    command_line: CommandLine,
    environ: Mapping[str, str],
    submission: Submission,
    config: SiteConfig,
    slurm: Slurm,
    packer: Packer = _no_packer,
) -> Plan:
    """Decide about one submission.

    Args:
        command_line: the arguments, split.
        environ: of the submission; SBATCH_* variables count.
        submission: what sbatch would read.
        config: the site.
        slurm: answers what has to be asked.
        packer: makes packs of arrays that are to be some; without one they go as the arrays they are.

    Raises:
        UnsureError: something is not understood with certainty.
        MisusedError: an option of csub's own that cannot be what was meant.
        CollocError: a template that does not render.
    """
    policy = config.policy
    try:
        case = Case(command_line, environ, submission, config, slurm)
        request = _request(case)
        chosen = policy_of(request, config, slurm)
        policy = chosen.policy
        if chosen.policy == "pack" and not wants_pack(command_line, submission.script):
            chosen = chosen._replace(policy="off", why=because("policy-pack"))
        sharing = config.sharing._replace(late_binding=chosen.late)
        case = case._replace(config=config._replace(policy=chosen.policy, sharing=sharing))
        return _made(case, request, packer)._replace(chosen=chosen)
    except MisusedError as error:
        # A site that only looks on refuses nothing: to sbatch a #CSUB line is a comment.
        if policy == "shadow":
            raise UnsureError(str(error)) from error
        raise


def policy_of(request: JobRequest, config: SiteConfig, slurm: Slurm, *, drawn_before: bool = False) -> Chosen:
    """Return the policy in force for a job; one that was ``drawn_before`` was placed, and is drawn no more."""
    stopped = why_stopped(config.paths.state) if "auto" in config.policies else ""
    whose = whose_job(request, config, partial(slurm.limits, config.cluster)) if config.rollout else NOBODY
    drawn = (lambda: 0.0) if drawn_before else (lambda: draw(whose.user, request.signature, config.cluster, now()))
    return choose(config, whose, drawn, stopped)


def _request(case: Case) -> JobRequest:
    """Return what the job asks for."""
    command_line, environ, submission, config, _ = case
    hint = own_option("gpu-footprint", command_line, submission.script)
    called = command_line.script, command_line.script_args
    return build_request(submission, called, config, environ, told=hint is not None and "sm=" in hint)


def _made(case: Case, request: JobRequest, packer: Packer) -> Plan:
    """Return the plan of a submission that was read, by the policy in force for it."""
    command_line, _, submission, config, _ = case
    text, name, script, given, table, _ = submission
    wish = own_option("colloc", command_line, script)
    off = "" if wish else off_for_me(config.paths.state)
    colloc = wish or ("off" if off else "auto")
    switched_off = because("off-for-user", by=off) if off else reason_switched_off(colloc, config)
    fixed = reason_to_keep_text(text, script.interpreter) if script else reason_to_keep_command(text)
    packs = wants_pack(command_line, script)
    # Where only packs are to be made, an array that cannot be one goes as the array it is.
    left = switched_off or (because("policy-pack") if config.policy == "pack" else None)
    part, notes = _part(case, request, left, fixed, alone=packs and script is not None)
    check_pack(command_line, script, packs=packs)
    if packs:
        try:
            found = packer(case, part, switched_off)
            return found._replace(notes=(*notes, *found.notes), colloc=colloc, given=given, wants_pack=True)
        except CollocError as error:
            code = error.reasons[0].code if isinstance(error, NotPackedError) else "not-understood"
            notes = (*notes, because("not-packed", why=str(error), reason=code))
    # What is kept of a job that waits knows no bound of its own on slowdown.
    placed_now = colloc == NOT_LATE or own_option("max-slowdown", command_line, script) is not None
    may_be_late = not (packs or left or fixed or placed_now) and _may_be_late(case, part)
    late = may_be_late and config.sharing.late_binding != "shadow"
    again, said = ("", ()) if packs or left or fixed else _again(case, part, late=late)
    part, body = _rewritten(submission, part, left, fixed, config, late=late, again=again)
    notes = (*notes, *said)
    if config.policy == "shadow":
        part = part._replace(placement=_withheld(part.placement))
    argv, script_at = overridden(command_line, part.request.gpu_style, part.placement, table)
    if script is None and body is not None:
        argv = (*without(argv, table, ("wrap",)), name)
        script_at = len(argv) - 1
    unknown = _is_unknown(part)
    why = _never_measured(submission, part.request, fixed, config) if unknown else None
    if why:
        notes = (*notes, because("never-measured"), why)
    plan = Plan(part, argv, script_at, text, body, notes, left)
    return plan._replace(
        colloc=colloc,
        given=given,
        wants_pack=packs,
        late=late and body is not None,
        would_be_late=may_be_late and not late,
        first_run=unknown
        and not why
        and config.policy == "auto"
        and any(pool.slice or pool.mps_per_gpu or pool.shards_per_gpu for pool in config.pool)
        and any(reason.code == "no-earlier-run" for reason in part.footprint.provenance),
    )


def _part(
    case: Case,
    request: JobRequest,
    switched_off: Reason | None,
    fixed: Reason | None,
    *,
    alone: bool,
) -> tuple[Part, tuple[Reason, ...]]:
    """Return what is asked for, needed and given, and what there is to say of that.

    ``alone`` says that it is to be a pack, which has whole GPUs.
    """
    command_line, _, submission, config, slurm = case
    hint = own_option("gpu-footprint", command_line, submission.script)
    config, lowered = _bounded(config, own_option("max-slowdown", command_line, submission.script))
    footprint, said = footprint_of(request, submission.text, hint, config, slurm.job_states, anyway=alone)
    footprint, contradicted = as_served(footprint, request, submission.text, case.environ)
    access = access_of(request, footprint, config, partial(slurm.limits, config.cluster))
    # What was free when a job was submitted nobody can tell afterwards.
    asks = any(own_option(name, command_line, None) is not None for name in ("explain", "dry-run"))
    shown = config.policy == "shadow" or asks
    free = None if alone or switched_off else free_now(config, slurm.free, wanted=shown)
    placement = _leave(place(request, footprint, config, access, free), switched_off, fixed)
    served = part_to_tell(request, footprint, placement, config, access)
    return Part(request, footprint, placement), (*said, *lowered, *contradicted, *served)


def _bounded(config: SiteConfig, asked: str | None) -> tuple[SiteConfig, tuple[Reason, ...]]:
    """Return the site with the job's own bound on slowdown, and what there is to say; the site's is the most."""
    most = config.sharing.max_slowdown
    if asked is None or (wanted := parse_slowdown(asked)) == most:
        return config, ()
    if wanted > most:
        return config, (because("max-slowdown-lowered", asked=asked, most=most),)
    return config._replace(sharing=config.sharing._replace(max_slowdown=wanted)), ()


def reason_switched_off(colloc: str, config: SiteConfig) -> Reason | None:
    """Return why nothing is changed, whatever the job needs, by what --colloc says; None where it may be."""
    if colloc == "off" or is_exclusive(colloc):
        return because("switched-off", wish=colloc)
    return because("policy-off") if config.policy == "off" else None


def _is_unknown(part: Part) -> bool:
    """Return whether a job with a GPU is left as asked only because its need is not known."""
    ignorant = part.placement.reasons == part.footprint.provenance
    return ignorant and part.footprint.gpu_mem_peak_mib is None and bool(part.request.gres)


def _may_be_late(case: Case, part: Part) -> bool:
    """Return whether a job that is left as asked may get a piece as soon as its need is known.

    What a server takes is judged by its script and its variables, which are not kept.
    """
    request, submission, config = part.request, case.submission, case.config
    allowed = config.sharing.late_binding != "off" and not request.untouchable
    in_time = "begin" not in request.options and request.time_limit_min != math.inf
    starts_shell = submission.script is None or request.sh_like
    if not (allowed and in_time and starts_shell and _is_unknown(part)) or why_stopped(config.paths.state, late=True):
        return False
    return not may_be_server(with_arguments(submission.text, request), case.environ)


def _again(case: Case, part: Part, *, late: bool) -> tuple[str, tuple[Reason, ...]]:
    """Return what a job carries that may begin again with more of a GPU, and what there is to say of that.

    Its user allows it by --requeue, or the site does, for a piece that the user said nothing of; empty of others, and
    of what has no piece and gets none.
    """
    request, footprint, placement = part
    command_line, _, submission, config, _ = case
    script, given = submission.script, submission.given
    allowed = config.sharing.rerun == "allowed" and "no-requeue" not in given and footprint.rung != "hint"
    by = "--requeue" if "requeue" in given else "if JobRequeue=1" * allowed
    if not by or config.policy != "auto" or not (late or not placement.as_asked):
        return "", ()
    from slurm_colloc.submit.recovery import carried, reason_against  # of no use to nearly all submissions

    is_shell = script is None or request.sh_like
    if why := reason_against(request, given, submission.text, is_shell=is_shell):
        return "", (because("ends-as-it-ends"), why)
    active = footprint.sm_active_pct
    piece = carried(request, placement, active.q95 if active else None, given, command_line, config)
    return piece.text, (because("begins-again", by=by),)


def _never_measured(
    submission: Submission, request: JobRequest, fixed: Reason | None, config: SiteConfig
) -> Reason | None:
    """Return why no run of a job of which nothing is known will be measured; None where it will be, or need not."""
    if config.observe.agent or config.policy == "shadow":
        return None
    if submission.script is not None and not request.sh_like:
        return because("interpreter-not-sh", interpreter=request.interpreter)
    return fixed


def _leave(wished: Placement, switched_off: Reason | None, fixed: Reason | None) -> Placement:
    """Return the placement in force: as asked when the user or the site says so, or a block is needed and cannot be."""
    why = switched_off or (fixed if wished.mode in (SharingMode.MPS, SharingMode.SHARD) else None)
    if why is None:
        return wished
    return as_asked((why, *(wished.reasons if wished.as_asked else would_have_been(wished))), wished.rejected)


def _withheld(placement: Placement) -> Placement:
    """Return the placement of a job in shadow mode: as asked, knowing what it would have been."""
    if placement.as_asked:
        return placement
    reasons = (because("policy-shadow"), *would_have_been(placement))
    return as_asked(reasons, placement.rejected)._replace(weighed=placement.weighed, withheld=placement)


def _rewritten(
    submission: Submission,
    part: Part,
    switched_off: Reason | None,
    fixed: Reason | None,
    config: SiteConfig,
    *,
    late: bool,
    again: str,
) -> tuple[Part, bytes | None]:
    """Return what is in force, and the script where that changes; None where it does not."""
    request, footprint, placement = part
    text, script, table = submission.text, submission.script, submission.table
    cut: list[str] = []
    if script is not None:
        placement, text, cut = without_sizes(script, placement, text, table, config.slurm_release)
        part = part._replace(placement=placement)
    if config.policy == "shadow":
        return part, None
    rewritten = None if text == submission.text else text
    if fixed:
        return part, rewritten
    measured = not (switched_off or request.untouchable)
    # What an agent measures comes too late for those that wait.
    own_sampler = late or not config.observe.agent
    sampled = measured and own_sampler and (script is None or request.sh_like)
    shared = placement.mode in (SharingMode.MPS, SharingMode.SHARD)
    if script is None:
        insert_at, text = len(WRAPPED), WRAPPED + text + b"\n"
    else:
        # Even of a script that needs no block, sbatch's rules are held against what is left of it.
        insert_at = read_script(text, table, config.slurm_release).insert_at
    if not (sampled or shared or late or again or names_slice(request, placement)):
        return part, rewritten
    block = render_block(request, footprint, placement, config, cut, sampled=sampled, late=late, again=again)
    return part, render_script(text, insert_at, block)
