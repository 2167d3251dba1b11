# SPDX-License-Identifier: Apache-2.0
"""From one submission's arguments to what will be handed to sbatch: nothing here starts or writes anything."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.config import SiteConfig, user_data_folder
from slurm_colloc.errors import UnsureError
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.history.lookup import look_up
from slurm_colloc.model import Footprint, JobRequest, Placement, SharingMode
from slurm_colloc.placement.choose import place
from slurm_colloc.slurm.directives import Script, effective, read_script
from slurm_colloc.slurm.options import (
    SBATCH_OPTIONS,
    CommandLine,
    Option,
    read_environment,
    split_command_line,
)
from slurm_colloc.submit.render import Sampling, render_block, render_script
from slurm_colloc.submit.request import build_request, reason_to_keep_text

# What a #CSUB line may say; the others are about one call of csub, not about the job.
SCRIPT_OPTIONS = (Option("gpu-footprint", "", "required", ""), Option("colloc", "", "required", ""))
OWN_OPTIONS = (
    *SCRIPT_OPTIONS,
    Option("dry-run", "", "none", ""),
    Option("explain", "", "none", ""),
    Option("format", "", "required", ""),
)
_NEWEST_RELEASE = max(SBATCH_OPTIONS)
_SCRIPT_LIMIT_BYTES = 64 * 1024 * 1024
JobStates = Callable[[Sequence[str]], Mapping[str, str]]


class Plan(NamedTuple):
    """What csub will do with one submission.

    ``sbatch_argv`` are sbatch's arguments; where ``body`` is not None, ``script_at`` is the place in them of the
    script that ``body`` stands in for (None: standard input). ``switched_off`` says who wants nothing changed.
    """

    request: JobRequest
    footprint: Footprint
    placement: Placement
    sbatch_argv: tuple[str, ...]
    script_at: int | None
    script: bytes
    body: bytes | None
    notes: tuple[str, ...]
    switched_off: str

    @property
    def text(self) -> str:
        """Return the script as it would be submitted."""
        return (self.script if self.body is None else self.body).decode(errors="surrogateescape")


def parse_arguments(argv: Sequence[str], release: str) -> CommandLine:
    """Split csub's arguments into sbatch's and csub's own.

    An unknown release's are split as the newest known one's, for csub's own must come out of them all the same;
    make_plan leaves such a submission alone.

    Raises:
        UnsureError: anything sbatch might read differently.
    """
    return split_command_line(argv, SBATCH_OPTIONS.get(release, SBATCH_OPTIONS[_NEWEST_RELEASE]), OWN_OPTIONS)


def own_option(name: str, command_line: CommandLine, script: Script | None) -> str | None:
    """Return the value of one of csub's own options: the command line wins over a #CSUB line."""
    given = [*(script.own_directives if script else ()), *command_line.own]
    return next((option.value or "" for option in reversed(given) if option.name == name), None)


def make_plan(
    command_line: CommandLine,
    environ: Mapping[str, str],
    stdin: bytes | None,
    config: SiteConfig,
    job_states: JobStates,
) -> Plan:
    """Decide about one submission.

    Args:
        command_line: the arguments, split.
        environ: of the submission; SBATCH_* variables count.
        stdin: the script, when it comes by standard input.
        config: the site.
        job_states: asks Slurm how jobs ended.

    Raises:
        UnsureError: something is not understood with certainty.
        CollocError: a hint outside its grammar, or a template that does not render.
    """
    if config.slurm_release not in SBATCH_OPTIONS:
        raise UnsureError(f"sbatch of Slurm '{config.slurm_release}' is not known to this release of csub")
    table = SBATCH_OPTIONS[config.slurm_release]
    if "--" in command_line.sbatch_argv[: command_line.script_at]:
        raise UnsureError("'--' among the arguments leaves no certain place for a changed request")
    wrapped = next((option.value for option in command_line.options if option.name == "wrap"), None)
    text, name = _read(command_line, stdin, wrapped)
    script = None if wrapped is not None else read_script(text, table, config.slurm_release, SCRIPT_OPTIONS)
    given = effective(script, read_environment(environ, table, config.slurm_release), command_line)
    if script and script.foreign and "ignore-pbs" not in given:
        raise UnsureError(f"the script also holds directives of another scheduler ({script.foreign[0]})")
    request = build_request(given, script, text, name, command_line.script_args, config)
    footprint, notes = _footprint(request, own_option("gpu-footprint", command_line, script), config, job_states)
    off = own_option("colloc", command_line, script)
    if off not in (None, "auto", "off"):
        raise UnsureError(f"--colloc='{off}' is neither auto nor off")
    wished = place(request, footprint, config)
    fixed = reason_to_keep_text(text, script.interpreter if script else "")
    switched_off = "--colloc=off was given" if off == "off" else "the site's policy is off" * (config.policy == "off")
    placement = _leave(wished, switched_off, fixed, config)
    body = None
    if script is not None and not fixed:
        measured = not (switched_off or request.untouchable or config.policy == "shadow")
        body = _body(text, script, request, footprint, placement, config, measured)
    argv, script_at = _overridden(command_line, request, placement)
    return Plan(request, footprint, placement, argv, script_at, text, body, notes, switched_off)


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


def _footprint(
    request: JobRequest, hint: str | None, config: SiteConfig, job_states: JobStates
) -> tuple[Footprint, tuple[str, ...]]:
    if request.untouchable or (hint is not None and "sm=" in hint):
        return estimate(hint, ()), ()
    known = look_up(config, request.signature, job_states)
    return estimate(hint, known.evidence), known.notes


def _leave(wished: Placement, switched_off: str, fixed: str, config: SiteConfig) -> Placement:
    """Return the placement in force: as asked when the user or the site says so, or a block is needed and cannot be."""
    why = fixed if wished.environment else ""
    if config.policy == "shadow" and not wished.as_asked:
        why = f"shadow mode: would have been {wished.gres}"
    if switched_off:
        why = switched_off
    if not why or wished.as_asked:
        return wished
    reasons = (why, f"else {wished.gres}: {wished.reasons[0]}")
    return Placement(SharingMode.EXCLUSIVE, None, (), None, reasons, wished.rejected)


def _body(
    text: bytes,
    script: Script,
    request: JobRequest,
    footprint: Footprint,
    placement: Placement,
    config: SiteConfig,
    measured: bool,
) -> bytes | None:
    """Return the changed script, None when it can stay as it is."""
    sampling = None
    if measured and not config.observe.agent and request.sh_like and request.gpu_count:
        sampling = _sampling(request, placement, config)
    if sampling is None and not placement.environment:
        return None
    block = render_block(request, footprint, placement, sampling, config)
    return render_script(text, script.insert_at, block)


def _sampling(request: JobRequest, placement: Placement, config: SiteConfig) -> Sampling:
    # What the job shares with others decides what its numbers mean; a slice asked for by hand is no whole GPU either.
    asked_whole = not any("." in gres.type for gres in request.gres)
    mode = SharingMode.MIG if placement.as_asked and not asked_whole else placement.mode
    arguments = [
        *("sample", "--period", f"{config.observe.period_s:g}", "--signature", request.signature, "--mode", mode),
        *("--reader", config.observe.gpu_reader, "--evidence", user_data_folder()),
    ]
    if config.observe.simulated_devices:
        arguments += ["--devices", config.observe.simulated_devices]
    return Sampling(sys.executable, tuple(arguments))


def _overridden(
    command_line: CommandLine, request: JobRequest, placement: Placement
) -> tuple[tuple[str, ...], int | None]:
    """Return sbatch's arguments with the changed request as the last options, where it wins, and the script's place."""
    argv, script_at = command_line.sbatch_argv, command_line.script_at
    options = request_options(request.gpu_style, placement)
    at = len(argv) if script_at is None else script_at
    return (*argv[:at], *options, *argv[at:]), None if script_at is None else script_at + len(options)


def request_options(style: str, placement: Placement) -> tuple[str, ...]:
    """Return the options that replace a GPU request made by ``style``.

    gres/gpu and a share of it may never both be present, so the user's own style is cleared with 0; a slice is
    gres/gpu itself and is asked for in the same style.
    """
    gres = placement.gres
    if gres is None:
        return ()
    if style == "gres":
        return (f"--gres={gres}",)
    if gres.name == "gpu":
        return (f"--{style}={gres.type}:{gres.quantity}",)
    return (f"--gres={gres}", f"--{style}=0")
