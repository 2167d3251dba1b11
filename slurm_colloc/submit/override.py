# SPDX-License-Identifier: Apache-2.0
"""Replaces the options and directives of a request that csub changes."""

from collections.abc import Sequence

from slurm_colloc.core.errors import UnsureError
from slurm_colloc.core.model import Placement, Reason, SharingMode, because
from slurm_colloc.placement.choose import as_asked
from slurm_colloc.slurm.directives import Script, without_options
from slurm_colloc.slurm.option_tables import Option
from slurm_colloc.slurm.options import CommandLine, without
from slurm_colloc.submit.reasons import PER_GPU


def without_sizes(
    script: Script, placement: Placement, text: bytes, table: tuple[Option, ...], release: str
) -> tuple[Placement, bytes, list[str]]:
    """Comment out directives that size cores and memory per GPU, where the job gets a share and no GPU.

    An argument cannot override them: Slurm refuses --mem beside --mem-per-gpu. All count, in force or not: csub takes
    such an argument away, after which the directive beneath it would hold. A job is left as asked where they cannot be
    taken out. Returned are the placement, the script and the names of the options cut out of it.
    """
    names = sorted({option.name for option in script.options} & set(PER_GPU))
    if not names or placement.mode not in (SharingMode.MPS, SharingMode.SHARD):
        return placement, text, []
    try:
        return placement, without_options(text, table, release, names), names
    except UnsureError as error:
        reason = because("not-understood", error=str(error))
        return as_asked((reason, *would_have_been(placement)), placement.rejected), text, []


def would_have_been(placement: Placement) -> tuple[Reason, ...]:
    """Return the piece of a job that is left as asked, had it got one, and why it would have."""
    return (because("would-have-been", given=placement.given), *placement.reasons[:1])


def overridden(
    command_line: CommandLine, style: str, placement: Placement, table: tuple[Option, ...]
) -> tuple[tuple[str, ...], int | None]:
    """Return sbatch's arguments with the changed request, and the script's place in them.

    Changes come last among the options, where they win.

    Args:
        command_line: the arguments as given.
        style: the option of the GPU request.
        placement: the job's.
        table: sbatch's options.
    """
    argv, end = command_line.sbatch_argv, command_line.end
    if placement.as_asked:
        return argv, command_line.script_at
    options: Sequence[str] = argv[:end]
    if placement.mode in (SharingMode.MPS, SharingMode.SHARD):
        options = without(options, table, PER_GPU)
    words = (*options, *_request_options(style, placement))
    script_at = None if command_line.script_at is None else len(words) + command_line.script_at - end
    return (*words, *argv[end:]), script_at


def _request_options(style: str, placement: Placement) -> tuple[str, ...]:
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
    options += [f"--partition={placement.partition}"] if placement.partition else []
    options += [f"--{placement.cpu_option}"] if placement.cpu_option else []
    options += [f"--mem={placement.mem}"] if placement.mem else []
    options += [] if placement.time_limit_min is None else [f"--time={placement.time_limit_min}"]
    return tuple(options)
