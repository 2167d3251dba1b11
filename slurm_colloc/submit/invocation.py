# SPDX-License-Identifier: Apache-2.0
"""One invocation of csub: its sbatch and site.toml, its arguments split, and its messages to the user."""

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from slurm_colloc.core.clock import with_timeout
from slurm_colloc.core.config import SiteConfig, Timeouts
from slurm_colloc.core.config_file import (
    ENVIRONMENT_VARIABLE,
    how_passed_over,
    how_to_write_one,
    load_site,
    passed_over,
    site_files,
)
from slurm_colloc.core.errors import ConfigError, ProcessError
from slurm_colloc.slurm.options import CommandLine
from slurm_colloc.submit.inherited import environment_to_submit
from slurm_colloc.submit.own_options import is_exclusive, own_values, with_policy_variable, without_own_options

# A program that would call csub back for ever: csub's own start script under another name, or a script that starts it.
_NAMES_CSUB = rb"(?m)^[^#\n]*\bcsub\b"
STDOUT, STDERR = 1, 2
# The name that sbatch is told as its own, and that the accounting keeps as SubmitLine: a shell would not tell the path.
CALLED = "sbatch"


class Call(NamedTuple):
    """One invocation, to fall back on at any time."""

    sbatch: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    dry_run: bool
    quiet: bool
    explained: bool = False
    called: str = "csub"


def found_call(argv: tuple[str, ...], called: str = "csub") -> tuple[Call, bool, SiteConfig | None, str]:
    """Return the call before its arguments are split, whether csub itself is asked, the site, and why there is none.

    ``called`` is the name that it was called by.

    Raises:
        CollocError: there is no sbatch.
    """
    configured, config, problem = find_site()
    sbatch = find_sbatch(configured, os.environ, sys.argv[0])
    # It stays at this if splitting fails, as with an option that only sbatch knows.
    rest, own = without_own_options(argv)
    # A user who calls csub as sbatch is to see sbatch and nothing else, until the site lets csub place jobs.
    silent = config is not None and config.policy != "auto" and not own
    unheard = "--quiet" in rest or "-Q" in rest
    # A user with a file of his own is told even by a site that only looks on, if it is a person who reads it.
    if not unheard and (os.isatty(STDERR) or not (silent or _read_as_one())) and (path := passed_over()):
        say(how_passed_over(path))
    call = Call(sbatch, rest, environment_to_submit(), "--dry-run" in own, silent or unheard, called=called)
    return call, bool(own), config, problem


def call_of(sbatch: str, command_line: CommandLine) -> Call:
    """Return the call of an invocation whose arguments are split."""
    return split_call(Call(sbatch, (), environment_to_submit(), dry_run=False, quiet=False), command_line)


def split_call(call: Call, command_line: CommandLine, *, silent: bool = False) -> Call:
    """Return the call with what is known once sbatch's arguments, csub's own and the script's are told apart."""
    own = own_values(command_line)
    return call._replace(
        argv=command_line.sbatch_argv,
        # Also where nothing else is understood of the submission.
        environ=with_policy_variable(call.environ, own["colloc"]) if is_exclusive(own.get("colloc")) else call.environ,
        dry_run="dry-run" in own,
        quiet=silent or any(option.name == "quiet" for option in command_line.options),
    )


def find_site() -> tuple[str, SiteConfig | None, str]:
    """Return (configured sbatch, site, problem); the problem says why there is no usable site.toml."""
    for path in site_files():
        try:
            config = with_timeout(Timeouts().decide_s, f"reading '{path}'", partial(load_site, path))
        except ConfigError as error:
            missing = isinstance(error.__cause__, FileNotFoundError) and path != os.environ.get(ENVIRONMENT_VARIABLE)
            if not missing:
                return "", None, str(error)
        except Exception as error:  # noqa: BLE001 - a fault of csub's own must not cost the user the submission
            return "", None, f"site file '{path}' cannot be used: {error}"
        else:
            return config.paths.sbatch, config, ""
    return "", None, f"no site.toml found; '{how_to_write_one()}' writes one"


def tell(call: Call, *lines: str) -> None:
    """Say what is no error, unless nobody wants it, or a program reads both outputs as one: $(csub job.sh 2>&1)."""
    if not call.quiet and not _read_as_one():
        for line in lines:
            say(line)


def _read_as_one() -> bool:
    try:
        both = [os.fstat(descriptor) for descriptor in (STDOUT, STDERR)]
        return os.path.samestat(*both) and not os.isatty(STDERR)
    except OSError:
        return False


def say(text: str) -> None:
    """Tell the user; controls of a terminal are made visible: words of a script, or of sbatch, may hold some."""
    if not text.isprintable():
        from slurm_colloc.core.units import printable  # few texts hold any

        text = "\n".join(map(printable, text.split("\n")))
    write_all(STDERR, f"csub: {text}\n".encode(errors="backslashreplace"))


def find_sbatch(configured: str, environ: Mapping[str, str], own: str) -> str:
    """Return the real sbatch: the configured one if it is one, else the first on PATH that is not csub itself.

    Raises:
        ProcessError: there is none.
    """
    on_path = (os.path.join(folder or ".", "sbatch") for folder in environ.get("PATH", os.defpath).split(os.pathsep))
    for candidate in (*([configured] if os.path.isabs(configured) else []), *on_path):
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate) and not _is_csub(candidate, own):
            return candidate
    raise ProcessError("no sbatch on PATH but csub itself; is Slurm's client installed and its module loaded?")


def _is_csub(candidate: str, own: str) -> bool:
    real = os.path.realpath(candidate)
    # This very file is not the only one: another checkout's csub behind the name sbatch would call us back for ever.
    if real == os.path.realpath(own) or os.path.basename(real) == "csub":
        return True
    try:
        with open(real, "rb") as stream:
            head = stream.read(4096)
    except OSError:
        return False
    return head.startswith(b"#!") and re.search(_NAMES_CSUB, head) is not None


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of ``content``; a reader who went away or a full disk changes nothing about the submission.

    sys.stdout and sys.stderr are None where csub's caller closed them.
    """
    with suppress(OSError):
        while content:
            content = content[os.write(descriptor, content) :]
