# SPDX-License-Identifier: Apache-2.0
"""Slurm of a newer distribution for an older machine: `python -m tests.gpu.relocate ROOT OUT.txz` (needs patchelf).

ROOT is the system of another release, as tests/cluster unpacks them (24.11, 26.05). What comes out runs from
/opt/slurm (tests/gpu/slurm.py) on a machine whose C library is older: each program is told its own loader and
libraries, of which it brings all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.gpu.slurm import DAEMONS, PREFIX

_COMMANDS = ("sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel", "sacct", "sacctmgr")
_LIB = "usr/lib/x86_64-linux-gnu"
_LOADER = "ld-linux-x86-64.so.2"
# What asks for libraries of hardware or services that nobody has here.
_LEFT_OUT = re.compile(r"elastic|influx|kafka|rsmi|oneapi|_nvml|hdf5|rrd|openapi|rest_|s2n|hpe_slingshot|rdkafka|munge")


def needed(file: Path) -> list[str]:
    """Return the names of the libraries that a program or a library is linked with."""
    said = subprocess.run(["objdump", "-p", file], capture_output=True, text=True, check=True).stdout
    return re.findall(r"NEEDED\s+(\S+)", said)


def found(root: Path, name: str) -> Path:
    """Return where a system has a library."""
    folders = (_LIB, f"{_LIB}/slurm-wlm", "lib64", "usr/lib64")
    return next(Path(os.path.realpath(root / one / name)) for one in folders if (root / one / name).exists())


def relocate(root: Path, out: Path) -> None:
    """Copy Slurm's commands, daemons and plugins with all of their libraries, and tell them where these will be."""
    programs = {name: root / "usr/bin" / name for name in _COMMANDS}
    programs |= {name: root / "usr/sbin" / f"{name}-wlm" for name in DAEMONS}
    plugins = [one for one in (root / _LIB / "slurm-wlm").glob("*.so") if not _LEFT_OUT.search(one.name)]
    todo, libraries = [*programs.values(), *plugins], dict[str, Path]()
    while todo:
        for name in needed(todo.pop()):
            if name not in libraries:
                libraries[name] = found(root, name)
                todo.append(libraries[name])
    for folder in ("bin", "lib/slurm"):
        (out / folder).mkdir(parents=True)
    copied = [shutil.copy(one, out / "lib" / name) for name, one in libraries.items()]
    copied += [shutil.copy(one, out / "lib/slurm") for one in plugins]
    rpath = ["--force-rpath", "--set-rpath", f"{PREFIX}/lib:{PREFIX}/lib/slurm"]
    for one in copied:
        if not Path(one).name.startswith(("ld-linux", "libc.so")):
            subprocess.run(["patchelf", *rpath, one], check=True)
    for name, one in programs.items():
        shutil.copy(one, out / "bin" / name)
        interpreter = ["--set-interpreter", f"{PREFIX}/lib/{_LOADER}"]
        subprocess.run(["patchelf", *interpreter, *rpath, out / "bin" / name], check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        relocate(Path(sys.argv[1]), Path(made) / "slurm")
        subprocess.run(["tar", "-C", Path(made) / "slurm", "-cJf", sys.argv[2], "."], check=True)
