# SPDX-License-Identifier: Apache-2.0
"""From one submission's arguments to what will be handed to sbatch: nothing here starts or submits anything."""

import grp
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from slurm_colloc.clock import within
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import DeadlineError, UnsureError
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.question import Question
from slurm_colloc.history.lookup import look_up
from slurm_colloc.model import GPU_OOM, Footprint, JobRequest, Placement, SharingMode
from slurm_colloc.placement.choose import Access, as_asked, place
from slurm_colloc.slurm.directives import Script, effective_components, read_script, without_options
from slurm_colloc.slurm.free import Free
from slurm_colloc.slurm.limits import Limits
from slurm_colloc.slurm.options import (
    SBATCH_OPTIONS,
    CommandLine,
    Given,
    Option,
    read_environment,
    split_command_line,
    without,
)
from slurm_colloc.slurm.site_options import join_options
from slurm_colloc.submit.access import limits_of_user
from slurm_colloc.submit.outlook import outlook
from slurm_colloc.submit.render import Sampling, render_block, render_script
from slurm_colloc.submit.request import PER_GPU, build_request, reason_against_history, reason_to_keep_text

# What a #CSUB line may say; the others are about one call of csub, not about the job.
SCRIPT_OPTIONS = (
    Option("gpu-footprint", "", "required", ""),
    Option("colloc", "", "required", ""),
    Option("pack", "", "none", ""),
    Option("pack-tasks", "", "required", ""),
    Option("pack-jobs", "", "required", ""),
    Option("pack-retries", "", "required", ""),
    Option("join", "", "required", ""),
    Option("shared-loader", "", "required", ""),
    Option("loader-cpus", "", "required", ""),
    Option("loader-wait", "", "required", ""),
)
OWN_OPTIONS = (
    *SCRIPT_OPTIONS,
    Option("dry-run", "", "none", ""),
    Option("explain", "", "none", ""),
    Option("format", "", "required", ""),
)
_NEWEST_RELEASE = max(SBATCH_OPTIONS)
_SCRIPT_LIMIT_BYTES = 64 * 1024 * 1024


class Slurm(Protocol):
    """What a submission may have to ask of Slurm, with bounds on the time."""

    def job_states(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """Return how jobs ended."""

    def limits(self, cluster: str) -> Limits:
        """Return what this user may ask for."""

    def free(self) -> Free:
        """Return what is free now."""


class Part(NamedTuple):
    """One component of a job; most jobs have one."""

    request: JobRequest
    footprint: Footprint
    placement: Placement


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
    script that ``body`` stands in for (None: standard input). ``switched_off`` says who wants nothing changed. ``join``
    is "auto" or a job's id where the job is to begin inside a running one if it can.
    """

    parts: tuple[Part, ...]
    sbatch_argv: tuple[str, ...]
    script_at: int | None
    script: bytes
    body: bytes | None
    notes: tuple[str, ...]
    switched_off: str
    packed: Packed | None = None
    join: str = ""

    @property
    def text(self) -> str:
        """Return the script as it would be submitted."""
        return (self.script if self.body is None else self.body).decode(errors="surrogateescape")

    @property
    def decides_nothing(self) -> bool:
        """Return whether there is nothing to change and nothing to record: a job without a GPU."""
        return self.body is None and not any(part.request.gres for part in self.parts)

    @property
    def may_run_again(self) -> bool:
        """Return whether it is one job on a piece of a GPU, or an array of such, whose user speaks of requeueing."""
        if self.packed or len(self.parts) > 1 or self.as_asked:
            return False
        return any(name == "requeue" for name, _ in self.parts[0].request.origins)

    @property
    def as_asked(self) -> bool:
        """Return whether no component's request is changed."""
        return all(part.placement.as_asked for part in self.parts)


def option_table(release: str, config: SiteConfig | None) -> tuple[Option, ...]:
    """Return sbatch's options with those that the site's plugins add; of an unknown release, the newest known one's."""
    table = SBATCH_OPTIONS[release if release in SBATCH_OPTIONS else _NEWEST_RELEASE]
    return join_options(table, config.sbatch_options) if config else table


def parse_arguments(argv: Sequence[str], config: SiteConfig | None) -> CommandLine:
    """Split csub's arguments into sbatch's and csub's own.

    csub's own must come out of them even where the release is not known; make_plan leaves such a submission alone.

    Raises:
        UnsureError: anything sbatch might read differently.
        ConfigError: an option of the site's plugins outside its grammar.
    """
    return split_command_line(argv, option_table(config.slurm_release if config else "", config), OWN_OPTIONS)


def without_own_options(argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return sbatch's arguments and csub's own where they cannot be split with certainty, the front does it alike.

    An option that is not known is taken to have a value where one may stand; behind the script all is the script's.
    """
    takes_value = {option.name: option.argument == "required" for option in OWN_OPTIONS}
    rest: list[str] = []
    own: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, _ = word[2:].partition("=")
        if word.startswith("--") and name in takes_value:
            own.append(word)
            if takes_value[name] and not equals and words:
                own.append(words.pop(0))
            continue
        rest.append(word)
        if word in ("--", "-") or (word != ":" and not word.startswith("-")):
            break
        if words and _wants_value(word) and words[0].partition("=")[0][2:] not in takes_value:
            rest.append(words.pop(0))
    return (*rest, *words), tuple(own)


def _wants_value(word: str) -> bool:
    """Return whether the next word may be the value of this option."""
    table = option_table("", None)
    if word.startswith("--"):
        valueless = [option for option in table if option.argument != "required"]
        return "=" not in word and not any(option.name.startswith(word[2:]) for option in valueless)
    letters = word[1:].lstrip("".join(option.short for option in table if option.argument == "none"))
    short = next((option for option in table if option.short and option.short == letters), None)
    return len(letters) == 1 and (short is None or short.argument == "required")


def own_option(name: str, command_line: CommandLine, script: Script | None, component: int = 0) -> str | None:
    """Return the value of one of csub's own options: the command line wins over a #CSUB line of the component."""
    lines = script.own_directives if script else ()
    given = [*(lines[component] if component < len(lines) else ()), *command_line.own]
    return next((option.value or "" for option in reversed(given) if option.name == name), None)


def wants_pack(command_line: CommandLine, script: Script | None = None) -> bool:
    """Return whether the tasks of the array are to be packed."""
    asking = ("pack", "pack-tasks", "pack-jobs", "shared-loader")
    return any(own_option(name, command_line, script) is not None for name in asking)


def make_plan(
    command_line: CommandLine,
    environ: Mapping[str, str],
    stdin: bytes | None,
    config: SiteConfig,
    slurm: Slurm,
    because: str = "",
) -> Plan:
    """Decide about one submission.

    Args:
        command_line: the arguments, split.
        environ: of the submission; SBATCH_* variables count.
        stdin: the script, when it comes by standard input.
        config: the site.
        slurm: answers what has to be asked.
        because: why there is this submission at all; the first reason of what is decided.

    Raises:
        UnsureError: something is not understood with certainty.
        CollocError: a hint outside its grammar, or a template that does not render.
    """
    release = config.slurm_release
    if release not in SBATCH_OPTIONS:
        raise UnsureError(f"sbatch of Slurm '{release}' is not known to this release of csub")
    table = option_table(release, config)
    if "--" in command_line.sbatch_argv[: command_line.script_at]:
        raise UnsureError("'--' among the arguments leaves no certain place for a changed request")
    wrapped = next((option.value for option in command_line.options if option.name == "wrap"), None)
    text, name = _read(command_line, stdin, wrapped)
    script = None if wrapped is not None else read_script(text, table, release, SCRIPT_OPTIONS)
    components = effective_components(script, read_environment(environ, table, release), command_line)
    if script and script.foreign and "ignore-pbs" not in components[0]:
        raise UnsureError(f"the script also holds directives of another scheduler ({script.foreign[0]})")
    wishes = {own_option("colloc", command_line, script, number) for number in range(len(components))}
    switched_off = reason_switched_off(wishes, config)
    fixed = reason_to_keep_text(text, script.interpreter if script else "")
    shown = any(own_option(name, command_line, None) is not None for name in ("explain", "dry-run"))
    parts: list[Part] = []
    notes: list[str] = []
    for number, given in enumerate(components):
        all_of_them = components if len(components) > 1 else ()
        request = build_request(
            given, script, text, name, command_line.script_args, config, number, all_of_them, environ
        )
        hint = own_option("gpu-footprint", command_line, script, number)
        packs = script is not None and wants_pack(command_line, script)
        footprint, said = footprint_of(request, text, hint, config, slurm, anyway=packs)
        notes += said
        access = _access(request, footprint, config, slurm)
        # A pack has whole GPUs; of a job of several components all parts start at once.
        waits = None if packs or switched_off or len(components) > 1 else outlook(config, slurm.free, wanted=shown)
        placement = place(request, footprint, config, access, waits)
        placement = _leave(placement, switched_off, fixed, config)
        if because:
            placement = placement._replace(reasons=(because, *placement.reasons))
        parts.append(Part(request, footprint, placement))
    if wants_pack(command_line, script):
        found = _packed(command_line, environ, components, script, text, parts, switched_off, config, slurm)
        if isinstance(found, Plan):
            return found._replace(notes=(*notes, *found.notes))
        notes.append(f"not packed: {found}")
    parts, text_without = _take_out(parts, text, script, table, release)
    body = None if text_without == text else text_without
    if script is not None and not fixed and len(parts) == 1:
        measured = not (switched_off or parts[0].request.untouchable or config.policy == "shadow")
        body = _body(text_without, read_script(text_without, table, release), parts[0], config, measured) or body
    argv, script_at = _overridden(command_line, parts, table)
    join = _join(command_line, script)
    return Plan(tuple(parts), argv, script_at, text, body, tuple(notes), switched_off, join=join)


def reason_switched_off(wishes: Collection[str | None], config: SiteConfig) -> str:
    """Return why nothing is changed, whatever the job needs; empty where it may be.

    Args:
        wishes: what --colloc says, None where it is not given; of each component of the job.
        config: the site.

    Raises:
        UnsureError: it says something else than "auto" or "off".
    """
    for wish in set(wishes) - {None, "auto", "off"}:
        raise UnsureError(f"--colloc='{wish}' is neither auto nor off")
    return "--colloc=off was given" if "off" in wishes else "the site's policy is off" * (config.policy == "off")


def _join(command_line: CommandLine, script: Script | None) -> str:
    wish = own_option("join", command_line, script) or "off"
    if wish not in ("auto", "off") and not (wish.isascii() and wish.isdigit()):
        raise UnsureError(f"--join='{wish}' is neither auto, off nor the id of a job")
    return "" if wish == "off" else wish


def _packed(
    command_line: CommandLine,
    environ: Mapping[str, str],
    components: Sequence[Mapping[str, Given]],
    script: Script | None,
    text: bytes,
    parts: Sequence[Part],
    switched_off: str,
    config: SiteConfig,
    slurm: Slurm,
) -> Plan | str:
    """Return the plan of the tasks as a pack, or why they go as the array they are."""
    if script is None:
        return "it is a command of --wrap"
    if len(parts) > 1:
        return "it is a heterogeneous job"
    from slurm_colloc.submit.pack import plan_array  # of no use to any other submission
    from slurm_colloc.submit.pack_shape import Asked

    own = tuple(f"--{one.name}={one.value}" if one.value is not None else f"--{one.name}" for one in command_line.own)
    argv = (*own, *command_line.sbatch_argv)
    [part] = parts
    asked = Asked(
        command_line, environ, components[0], script, text, part.request, part.footprint, switched_off, (), argv
    )
    return plan_array(asked, config, slurm)


def _read(command_line: CommandLine, stdin: bytes | None, wrapped: str | None) -> tuple[bytes, str]:
    """Return the script's bytes and the name that sbatch would give the job."""
    if wrapped is not None:
        return wrapped.encode(errors="surrogateescape"), "wrap"
    if command_line.script is None:
        return stdin or b"", "sbatch"
    path = _find_script(command_line)
    try:
        with open(path, "rb") as stream:
            text = stream.read(_SCRIPT_LIMIT_BYTES + 1)
    except OSError as error:
        raise UnsureError(f"script '{path}' cannot be read: {error.strerror}") from error
    if len(text) > _SCRIPT_LIMIT_BYTES:
        raise UnsureError(f"script '{path}' is larger than {_SCRIPT_LIMIT_BYTES} bytes")
    return text, os.path.basename(path)


def _find_script(command_line: CommandLine) -> str:
    """Return the script's path by sbatch's rule for names without a folder, unless --chdir makes it doubtful."""
    name = command_line.script or ""
    if not name.startswith("/") and any(option.name == "chdir" for option in command_line.options):
        raise UnsureError(f"script '{name}' is relative and --chdir is given")
    # sbatch would look for it on PATH; what is no file (a FIFO: <(...), /dev/stdin) can only be read once.
    if not os.path.isfile(name):
        raise UnsureError(f"script '{name}' is no file here")
    return name


def footprint_of(
    request: JobRequest, text: bytes, hint: str | None, config: SiteConfig, slurm: Slurm, *, anyway: bool = False
) -> tuple[Footprint, tuple[str, ...]]:
    """Return what the job, or one task of a pack, needs, and what is to be said of its history.

    ``anyway`` asks the history of a job too that can get no piece of a GPU.
    """
    if why := reason_against_history(text):
        footprint = estimate(Question(hint))
        return (footprint if hint is not None else footprint._replace(provenance=why)), ()
    if request.untouchable and not anyway:
        return estimate(Question(hint)), ()
    if hint is not None and "sm=" in hint:
        # Where the user says all, only what is known to be too little counts: Slurm is asked for nothing, and a history
        # that hangs is no reason to decide nothing.
        step = partial(look_up, config, request.signature, None)
        with suppress(DeadlineError):
            known = within(config.timeouts.decide_s / 4, "reading the history", step)
            runs = [run for run in known.evidence if run.state == GPU_OOM]
            return estimate(Question(hint, request.signature, request.numbers, runs)), ()
        return estimate(Question(hint)), ()
    known = look_up(config, request.signature, slurm.job_states)
    question = Question(hint, request.signature, request.numbers, known.evidence, known.relatives)
    return estimate(question), known.notes


def _access(request: JobRequest, footprint: Footprint, config: SiteConfig, slurm: Slurm) -> Access:
    """Return what the accounting allows; nothing is asked for a job that is left alone anyway."""
    if request.untouchable or footprint.gpu_mem_peak_mib is None or footprint.sm_active_pct is None:
        return Access()
    groups: tuple[str, ...] = ()
    if any(partition.allow_groups for partition in config.partition):
        groups = tuple(_group_name(gid) for gid in {os.getegid(), *os.getgroups()})
    if not config.limits.enforced:
        return Access(groups=groups)
    found = limits_of_user(config, lambda: slurm.limits(config.cluster))
    return Access(unknown=found, groups=groups) if isinstance(found, str) else Access(found, groups=groups)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _leave(wished: Placement, switched_off: str, fixed: str, config: SiteConfig) -> Placement:
    """Return the placement in force: as asked when the user or the site says so, or a block is needed and cannot be."""
    if wished.as_asked:
        return as_asked((switched_off, *wished.reasons), wished.rejected) if switched_off else wished
    why = switched_off
    if not why and config.policy == "shadow":
        why = "shadow mode"
    if not why and wished.mode in (SharingMode.MPS, SharingMode.SHARD):
        why = fixed
    if not why:
        return wished
    return as_asked((why, f"would have been {wished.gres}: {wished.reasons[0]}"), wished.rejected)


def _take_out(
    parts: list[Part], text: bytes, script: Script | None, table: tuple[Option, ...], release: str
) -> tuple[list[Part], bytes]:
    """Comment out directives that size cores and memory per GPU, where the job gets a share and no GPU.

    Arguments cannot override them: Slurm refuses --mem beside --mem-per-gpu. Where they cannot be taken out either, the
    job is left as asked.
    """
    [part, *others] = parts
    shared = part.placement.mode in (SharingMode.MPS, SharingMode.SHARD)
    names = {name for name, origin in part.request.origins if name in PER_GPU and origin == "directive"}
    if others or not shared or not names or script is None:
        return parts, text
    try:
        return parts, without_options(text, table, release, names)
    except UnsureError as error:
        reasons = (str(error), f"would have been {part.placement.gres}: {part.placement.reasons[0]}")
        return [part._replace(placement=as_asked(reasons, part.placement.rejected))], text


def _body(text: bytes, script: Script, part: Part, config: SiteConfig, measured: bool) -> bytes | None:
    """Return the script with a block in it, None when it needs none."""
    request, placement = part.request, part.placement
    sampling = None
    if measured and not config.observe.agent and request.sh_like:
        sampling = Sampling(request.signature, placement.mode)
    if sampling is None and placement.mode not in (SharingMode.MPS, SharingMode.SHARD):
        return None
    block = render_block(request, part.footprint, placement, sampling, config)
    return render_script(text, script.insert_at, block)


def _overridden(
    command_line: CommandLine, parts: Sequence[Part], table: tuple[Option, ...]
) -> tuple[tuple[str, ...], int | None]:
    """Return sbatch's arguments with the changed requests, and the script's place in them.

    What is changed comes last among a component's options, where it wins. A script may name more components than the
    command line, whose last ones then stand for all further: where one is changed each gets its own.
    """
    argv, ends = command_line.sbatch_argv, command_line.ends
    if all(part.placement.as_asked for part in parts):
        return argv, command_line.script_at
    begins = (0, *(end + 1 for end in ends))
    words: list[str] = []
    for number, part in enumerate(parts):
        own = min(number, len(ends) - 1)
        options = list(argv[begins[own] : ends[own]])
        if part.placement.mode in (SharingMode.MPS, SharingMode.SHARD):
            options = without(options, table, PER_GPU)
        words += [*([":"] if number else []), *options, *request_options(part.request.gpu_style, part.placement)]
    rest = argv[ends[-1] :]
    script_at = None if command_line.script_at is None else len(words) + command_line.script_at - ends[-1]
    return (*words, *rest), script_at


def request_options(style: str, placement: Placement) -> tuple[str, ...]:
    """Return the options that replace a GPU request made by ``style``, and say what followed from it.

    gres/gpu and a share of it may never both be present, so the user's own style is cleared with 0; a slice is
    gres/gpu itself and is asked for in the same style.
    """
    gres = placement.gres
    if gres is None:
        return ()
    if style == "gres":
        options = [f"--gres={gres}"]
    elif gres.name == "gpu":
        options = [f"--{style}={gres.type}:{gres.quantity}"]
    else:
        options = [f"--gres={gres}", f"--{style}=0"]
    if placement.partition:
        options.append(f"--partition={placement.partition}")
    if placement.cpu_option:
        options.append(f"--{placement.cpu_option}")
    if placement.mem:
        options.append(f"--mem={placement.mem}")
    if placement.time_limit_min is not None:
        options.append(f"--time={placement.time_limit_min}")
    return tuple(options)
