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
from slurm_colloc.submit.own_options import NOT_LATE, check_pack, is_exclusive, parse_slowdown, wants_pack
from slurm_colloc.submit.reasons import reason_to_keep
from slurm_colloc.submit.render import names_slice, render_block, render_script
from slurm_colloc.submit.request import build_request
from slurm_colloc.submit.rollout import NOBODY, Chosen, choose, draw
from slurm_colloc.submit.slurm_answers import access_of, free_now, whose_job
from slurm_colloc.submit.submission import Submission


class Slurm(Protocol):
    """The questions that a submission may have to ask of Slurm, with bounds on the time."""

    def job_states(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """Return how jobs ended."""

    def limits(self, cluster: str) -> Limits:
        """Return what this user may ask for."""

    def free(self) -> Free:
        """Return what is free now."""


class Part(NamedTuple):
    """A job's request, its need, and what it gets."""

    request: JobRequest
    footprint: Footprint
    placement: Placement


# The part of plain sbatch, where nothing was decided.
PLAIN = Part(JobRequest(), Footprint(None, None, None, "", "", 0, ()), as_asked(()))


class Packed(NamedTuple):
    """A pack as those need it who show and record it.

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
    """All that csub will do with one submission.

    ``sbatch_argv`` are sbatch's arguments; ``script_at`` is the place in them of the script that ``body``, if it is not
    None, stands in for (None: standard input). ``switched_off`` says why nothing is to be changed. ``was_pack`` says
    that it is submitted as the array it is, and would have been a pack were the policy not shadow. The policy in
    slurmctld is told ``colloc``, csub's own is ``chosen``. ``given`` are the options in force. ``first_run`` says that
    no earlier run is known, and that this one is measured for a site that has pieces to give. ``late`` says that the
    job may get a piece while it waits, for which its script is made; ``would_be_late`` that what it would have got is
    to be recorded.
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
    """A submission, what decides about it, and what follows from both.

    ``colloc`` is the value of --colloc in force, ``switched_off`` why nothing is to be changed, ``untouched`` why the
    job is not placed, for that or as the site makes packs only, ``fixed`` why no block may go into its script.
    """

    command_line: CommandLine
    environ: Mapping[str, str]
    submission: Submission
    config: SiteConfig
    slurm: Slurm
    request: JobRequest
    colloc: str
    switched_off: Reason | None
    untouched: Reason | None
    fixed: Reason | None

    @property
    def is_pack(self) -> bool:
        """Return whether its tasks are to be packed."""
        return wants_pack(self.submission.own)

    @property
    def runs_sh(self) -> bool:
        """Return whether lines of sh may stand in the script, or in the one that a command of --wrap becomes."""
        return self.submission.script is None or self.request.sh_like


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
Packer = Callable[[Case, Part], Plan]


def _no_packer(case: Case, part: Part) -> Plan:
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
        submission: the same as sbatch would read it.
        config: the site.
        slurm: answers what has to be asked.
        packer: makes packs of arrays that are to be some; without one they go as the arrays they are.

    Raises:
        UnsureError: something is not understood with certainty.
        MisusedError: an option of csub's own that cannot be what was meant.
        CollocError: a template that does not render.
    """
    policy, own = config.policy, submission.own
    try:
        called = command_line.script, command_line.script_args
        request = build_request(submission, called, config, environ, is_hinted="sm=" in own.get("gpu-footprint", ""))
        chosen = policy_of(request, config, slurm)
        policy = chosen.policy
        if policy == "pack" and not wants_pack(own):
            chosen = chosen._replace(policy="off", why=because("policy-pack"))
        sharing = config.sharing._replace(late_binding=chosen.late)
        config = config._replace(policy=chosen.policy, sharing=sharing)
        case = _case(command_line, environ, submission, config, slurm, request)
        part, notes = _part(case)
        check_pack(own)
        return _plan(case, part, notes, packer)._replace(colloc=case.colloc, given=submission.options, chosen=chosen)
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


def _case(
    command_line: CommandLine,
    environ: Mapping[str, str],
    submission: Submission,
    config: SiteConfig,
    slurm: Slurm,
    request: JobRequest,
) -> Case:
    wish = submission.own.get("colloc")
    off = "" if wish else off_for_me(config.paths.state)
    colloc = wish or ("off" if off else "auto")
    switched_off = because("off-for-user", by=off) if off else reason_switched_off(colloc, config)
    # An array that cannot be a pack goes as the array it is, where only packs are to be made.
    untouched = switched_off or (because("policy-pack") if config.policy == "pack" else None)
    fixed = reason_to_keep(submission)
    return Case(command_line, environ, submission, config, slurm, request, colloc, switched_off, untouched, fixed)


def _plan(case: Case, part: Part, notes: tuple[Reason, ...], packer: Packer) -> Plan:
    """Return the plan of a submission by the policy in force for it."""
    submission, config = case.submission, case.config
    if case.is_pack:
        try:
            plan = packer(case, part)
            return plan._replace(notes=(*notes, *plan.notes))
        except CollocError as error:
            code = error.reasons[0].code if isinstance(error, NotPackedError) else "not-understood"
            notes = (*notes, because("not-packed", why=str(error), reason=code))
    changeable = not (case.is_pack or case.untouched or case.fixed)
    may_be_late = changeable and _may_be_late(case, part)
    late = may_be_late and config.sharing.late_binding != "shadow"
    again, reasons = _again(case, part, late=late) if changeable else ("", ())
    part, body = _rewritten(case, part, late=late, again=again)
    notes = (*notes, *reasons)
    if config.policy == "shadow":
        part = part._replace(placement=_withheld(part.placement))
    argv, script_at = overridden(case.command_line, part.request.gpu_style, part.placement, submission.table)
    if submission.script is None and body is not None:
        argv = (*without(argv, submission.table, ("wrap",)), submission.name)
        script_at = len(argv) - 1
    unknown = _is_unknown(part)
    unmeasured = _never_measured(case) if unknown else None
    if unmeasured:
        notes = (*notes, because("never-measured"), unmeasured)
    return Plan(
        *(part, argv, script_at, submission.text, body, notes, case.untouched),
        late=late and body is not None,
        would_be_late=may_be_late and not late,
        first_run=unknown
        and not unmeasured
        and config.policy == "auto"
        and any(pool.slice or pool.mps_per_gpu or pool.shards_per_gpu for pool in config.pool)
        and any(reason.code == "no-earlier-run" for reason in part.footprint.provenance),
    )


def _part(case: Case) -> tuple[Part, tuple[Reason, ...]]:
    """Return the request, the need and the placement, and what there is to say of them; a pack has whole GPUs."""
    request, submission, slurm, own = case.request, case.submission, case.slurm, case.submission.own
    config, lowered = _bounded(case.config, own.get("max-slowdown"))
    alone = case.is_pack and submission.script is not None
    hint = own.get("gpu-footprint")
    footprint, history = footprint_of(request, submission.text, hint, config, slurm.job_states, anyway=alone)
    footprint, contradicted = as_served(footprint, request, submission.text, case.environ)
    access = access_of(request, footprint, config, partial(slurm.limits, config.cluster))
    # Nobody can tell afterwards what was free when a job was submitted.
    wanted = config.policy == "shadow" or not own.keys().isdisjoint(("explain", "dry-run"))
    free = None if alone or case.untouched else free_now(config, slurm.free, wanted=wanted)
    placement = _leave(place(request, footprint, config, access, free), case.untouched, case.fixed)
    served = part_to_tell(request, footprint, placement, config, access)
    return Part(request, footprint, placement), (*history, *lowered, *contradicted, *served)


def _bounded(config: SiteConfig, asked: str | None) -> tuple[SiteConfig, tuple[Reason, ...]]:
    """Return the site with the job's own bound on slowdown, and what there is to say; the site's is the most."""
    most = config.sharing.max_slowdown
    if asked is None or (bound := parse_slowdown(asked)) == most:
        return config, ()
    if bound > most:
        return config, (because("max-slowdown-lowered", asked=asked, most=most),)
    return config._replace(sharing=config.sharing._replace(max_slowdown=bound)), ()


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

    The need of a server follows from its script and its variables too, and the bound of a job's own on slowdown from
    its words: a job that waits is kept without them.
    """
    request, config, own = part.request, case.config, case.submission.own
    allowed = config.sharing.late_binding != "off" and not request.untouchable
    placed_now = case.colloc == NOT_LATE or "max-slowdown" in own
    in_time = "begin" not in request.options and request.time_limit_min != math.inf
    if placed_now or not (allowed and in_time and case.runs_sh and _is_unknown(part)):
        return False
    if why_stopped(config.paths.state, late=True):
        return False
    return not may_be_server(with_arguments(case.submission.text, request), case.environ)


def _again(case: Case, part: Part, *, late: bool) -> tuple[str, tuple[Reason, ...]]:
    """Return the words by which a job may begin again with more of a GPU, and what there is to say of that.

    Its user allows it by --requeue, or the site does, for a piece that the user said nothing of. The words of others
    are empty, and so are those of a job that has no piece and gets none.
    """
    request, footprint, placement = part
    config, options = case.config, case.submission.options
    allowed = config.sharing.rerun == "allowed" and "no-requeue" not in options and footprint.rung != "hint"
    by = "if JobRequeue=1" if allowed else ""
    if "requeue" in options:
        by = "--requeue"
    if not by or config.policy != "auto" or not (late or not placement.as_asked):
        return "", ()
    from slurm_colloc.submit.requeue_data import carried, reason_against  # few jobs may begin again

    if reason := reason_against(request, options, case.submission.text, is_shell=case.runs_sh):
        return "", (because("ends-as-it-ends"), reason)
    active = footprint.sm_active_pct
    piece = carried(request, placement, active.q95 if active else None, options, case.command_line, config)
    return piece.text, (because("begins-again", by=by),)


def _never_measured(case: Case) -> Reason | None:
    """Return why no run of a job of unknown need will be measured; None where it will be, or need not."""
    if case.config.observe.agent or case.config.policy == "shadow":
        return None
    return case.fixed if case.runs_sh else because("interpreter-not-sh", interpreter=case.request.interpreter)


def _leave(wished: Placement, untouched: Reason | None, fixed: Reason | None) -> Placement:
    """Return the placement in force: as asked when the user or the site says so, or a block is needed and cannot be."""
    reason = untouched or (fixed if wished.mode in (SharingMode.MPS, SharingMode.SHARD) else None)
    if reason is None:
        return wished
    return as_asked((reason, *(wished.reasons if wished.as_asked else would_have_been(wished))), wished.rejected)


def _withheld(placement: Placement) -> Placement:
    """Return the placement of a job in shadow mode: as asked, knowing what it would have been."""
    if placement.as_asked:
        return placement
    reasons = (because("policy-shadow"), *would_have_been(placement))
    return as_asked(reasons, placement.rejected)._replace(weighed=placement.weighed, withheld=placement)


def _rewritten(case: Case, part: Part, *, late: bool, again: str) -> tuple[Part, bytes | None]:
    """Return the part in force, and the script where that changes; None where it does not."""
    submission, config = case.submission, case.config
    text, script, table = submission.text, submission.script, submission.table
    cut: list[str] = []
    if script is not None:
        placement, text, cut = without_sizes(script, part.placement, text, table, config.slurm_release)
        part = part._replace(placement=placement)
    if config.policy == "shadow":
        return part, None
    rewritten = None if text == submission.text else text
    if case.fixed:
        return part, rewritten
    request, footprint, placement = part
    measured = not (case.untouched or request.untouchable)
    # An agent's measurements come too late for those that wait.
    sampled = measured and case.runs_sh and (late or not config.observe.agent)
    shared = placement.mode in (SharingMode.MPS, SharingMode.SHARD)
    if script is None:
        insert_at, text = len(WRAPPED), WRAPPED + text + b"\n"
    else:
        # sbatch's rules are held against the rest of a script even where that needs no block.
        insert_at = read_script(text, table, config.slurm_release).insert_at
    if not (sampled or shared or late or again or names_slice(request, placement)):
        return part, rewritten
    block = render_block(request, footprint, placement, config, cut, sampled=sampled, late=late, again=again)
    return part, render_script(text, insert_at, block)
