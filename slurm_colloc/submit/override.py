# SPDX-License-Identifier: Apache-2.0
"""Replaces the options and directives of a request that csub changes."""

from collections.abc import Sequence

from slurm_colloc.errors import UnsureError
from slurm_colloc.model import JobRequest, Placement, Reason, SharingMode, because
from slurm_colloc.placement.choose import as_asked
from slurm_colloc.slurm.directives import without_options
from slurm_colloc.slurm.option_tables import Option
from slurm_colloc.slurm.options import CommandLine, without
from slurm_colloc.submit.reasons import PER_GPU


def without_sizes(
    request: JobRequest, placement: Placement, text: bytes, table: tuple[Option, ...], release: str
) -> tuple[Placement, bytes]:
    """Comment out directives that size cores and memory per GPU, where the job gets a share and no GPU.

    Arguments cannot override them: Slurm refuses --mem beside --mem-per-gpu. Where they cannot be taken out either, the
    job is left as asked.
    """
    names = sizes_cut(request, placement)
    if not names:
        return placement, text
    try:
        return placement, without_options(text, table, release, names)
    except UnsureError as error:
        why = because("not-understood", error=str(error))
        return as_asked((why, *would_have_been(placement)), placement.rejected), text


def would_have_been(placement: Placement) -> tuple[Reason, ...]:
    """Return what a job would have got that is left as asked, and why."""
    return (because("would-have-been", given=placement.given), *placement.reasons[:1])


def sizes_cut(request: JobRequest, placement: Placement) -> list[str]:
    """Return the options that are cut out of the script's directives."""
    if placement.mode not in (SharingMode.MPS, SharingMode.SHARD):
        return []
    return sorted(name for name, origin in request.origins if name in PER_GPU and origin == "directive")


def overridden(
    command_line: CommandLine, style: str, placement: Placement, table: tuple[Option, ...]
) -> tuple[tuple[str, ...], int | None]:
    """Return sbatch's arguments with the changed request, and the script's place in them.

    What is changed comes last among the options, where it wins.

    Args:
        command_line: the arguments as given.
        style: of the GPU request.
        placement: what the job gets.
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
