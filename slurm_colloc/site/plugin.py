# SPDX-License-Identifier: Apache-2.0
"""Build the SPANK plugin against the headers of the Slurm that will load it.

Slurm refuses a plugin that was built for another release on each command of each user: ask first which one runs.
"""

import os
import re
from typing import NamedTuple

from slurm_colloc.core.errors import InputError, ProcessError
from slurm_colloc.core.process import ask
from slurm_colloc.core.shipped import plugin_folder

SOURCE = "colloc_spank.c"
FLAGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-shared")
_PACKAGES = "libslurm-dev on Debian and Ubuntu, slurm-devel of the site's own build elsewhere"
_NUMBER = re.compile(r"^#define\s+SLURM_VERSION_NUMBER\s+(0x[0-9a-fA-F]{6})\b", re.MULTILINE)
_SAID = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_HEADER_BYTES = 64 * 1024


class Version(NamedTuple):
    """Slurm's three numbers."""

    major: int
    minor: int
    micro: int

    @property
    def release(self) -> str:
        """Return what plugins are bound to: a micro release takes those of its neighbours."""
        return f"{self.major}.{self.minor:02d}"

    def __str__(self) -> str:
        return f"{self.release}.{self.micro}"


def of_headers(folder: str) -> Version:
    """Return the version that the headers in ``folder``/slurm are of.

    Raises:
        InputError: there are none, or they do not say.
    """
    path = os.path.join(folder, "slurm", "slurm_version.h")
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            text = stream.read(_HEADER_BYTES)
    except OSError as error:
        raise InputError(
            f"no headers of Slurm in '{folder}/slurm' ({error.strerror}): install {_PACKAGES}, or name where Slurm is "
            "installed by --slurm-prefix"
        ) from error
    match = _NUMBER.search(text)
    if not match:
        raise InputError(f"'{path}' has no SLURM_VERSION_NUMBER; are these the headers of Slurm 22.05 or later?")
    number = int(match[1], 16)
    return Version(number >> 16, number >> 8 & 0xFF, number & 0xFF)


def of_programs(prefix: str, timeout_s: float) -> Version:
    """Return the version of the Slurm that runs here: of ``prefix``, else of PATH.

    slurmd says it where nothing is configured yet, sinfo on a login node.

    Raises:
        ProcessError: neither of them answers with a version.
    """
    answers = []
    for folder, *question in (("bin", "sinfo", "--version"), ("sbin", "slurmd", "-V")):
        path = os.path.join(prefix, folder, question[0])
        try:
            answer = ask([path if prefix and os.path.isfile(path) else question[0], question[1]], timeout_s)
        except ProcessError as error:
            answers.append(str(error))
            continue
        match = _SAID.search(answer.decode(errors="replace"))
        if match:
            return Version(*map(int, match.groups()))
        answers.append(f"'{' '.join(question)}' said {answer[:80]!r}")
    raise ProcessError(f"the version of the Slurm that runs here is not known: {'; '.join(answers)}")


def build(headers: str, compiler: str, output: str, timeout_s: float) -> None:
    """Compile the plugin into ``output``, which is replaced only by one that is whole.

    Raises:
        ProcessError: the compiler is missing or does not take it.
        InputError: ``output`` cannot be written.
    """
    half = f"{output}.{os.getpid()}.half"
    argv = [compiler, *FLAGS, f"-I{headers}", "-o", half, os.path.join(plugin_folder(), SOURCE)]
    try:
        ask(argv, timeout_s)
        os.chmod(half, 0o644)
        os.replace(half, output)
    except OSError as error:
        raise InputError(f"'{output}' cannot be written: {error.strerror}") from error
    finally:
        if os.path.exists(half):
            os.remove(half)
