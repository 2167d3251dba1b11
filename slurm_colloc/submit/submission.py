# SPDX-License-Identifier: Apache-2.0
"""One submission as sbatch would read it: its script, and what is in force of its options."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import MisusedError, UnsureError
from slurm_colloc.slurm.directives import Script, options_in_force, read_script
from slurm_colloc.slurm.option_tables import Option, known_as
from slurm_colloc.slurm.options import CommandLine, Given, read_environment
from slurm_colloc.submit.own_options import SCRIPT_OPTIONS, check_values, option_table, own_values

# The options that ask for GPUs csub knows how to change.
GPU_STYLES = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
_SCRIPT_LIMIT_BYTES = 64 * 1024 * 1024


class Submission(NamedTuple):
    """A submission as sbatch would read it, by the options in ``table``; it would give the job the ``name``.

    ``script`` is None of a command of --wrap, whose ``text`` is the command. ``options`` are those in force,
    ``variables`` what SBATCH_* variables give, in force or not, ``own`` the values of csub's own options by name.
    """

    text: bytes
    name: str
    script: Script | None
    options: Mapping[str, Given]
    table: tuple[Option, ...]
    variables: tuple[Given, ...]
    own: Mapping[str, str]

    @property
    def concerns_csub(self) -> bool:
        """Return whether a GPU is asked for, or something of csub in the script."""
        return any(style in self.options for style in GPU_STYLES) or bool(self.script and self.script.own_directives)


def read_submission(
    command_line: CommandLine, environ: Mapping[str, str], stdin: bytes | None, config: SiteConfig
) -> Submission:
    """Read a submission; ``stdin`` is the script where it comes by standard input.

    Raises:
        UnsureError: something is not understood with certainty.
        MisusedError: a #CSUB line that is not what csub takes there.
    """
    release = config.slurm_release
    if not known_as(release):
        raise UnsureError(f"sbatch of Slurm '{release}' is not known to this release of csub")
    table = option_table(release, config)
    if "--" in command_line.sbatch_argv[: command_line.script_at]:
        raise UnsureError("'--' among the arguments leaves no certain place for a changed request")
    wrapped = next((option.value for option in reversed(command_line.options) if option.name == "wrap"), None)
    text, name = _read(command_line, stdin, wrapped)
    try:
        script = None if wrapped is not None else read_script(text, table, release, SCRIPT_OPTIONS)
        check_values(script.own_directives if script else ())
    except MisusedError as error:
        if config.policy == "shadow":  # a site that only looks on refuses nothing: #CSUB is a comment to sbatch
            raise UnsureError(str(error)) from error
        raise
    environment = read_environment(environ, table, release)
    options = options_in_force(script, environment, command_line)
    if script and script.foreign and "ignore-pbs" not in options:
        raise UnsureError(f"the script also holds directives of another scheduler ({script.foreign[0]})")
    return Submission(text, name, script, options, table, environment.late, own_values(command_line, script))


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
    # sbatch would look for it on PATH; a FIFO (<(...), /dev/stdin) can only be read once.
    if not os.path.isfile(name):
        raise UnsureError(f"script '{name}' is no file here")
    return name
