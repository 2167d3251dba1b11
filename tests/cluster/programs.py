# SPDX-License-Identifier: Apache-2.0
"""Programs that submit jobs themselves, from PyPI: in one environment apart from the project's, kept between runs."""

from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path

from tests.cluster.install import do, interpreter, let_all_read, pip_install
from tests.cluster.lab import Lab

REQUIREMENTS = (
    "submitit>=1.5.4",
    "snakemake>=9.27",
    "snakemake-executor-plugin-slurm>=2.8",
    "dask-jobqueue>=0.9",
)
# The lab's users must reach it, which no one's home allows.
CACHE = Path("/var/cache/slurm_colloc")


def programs_venv(lab: Lab) -> Path:
    """Return the environment with the programs, made now where it is missing.

    Raises:
        LabError: they cannot be installed.
    """
    python = interpreter(lab)
    key = hashlib.sha256("\n".join((*REQUIREMENTS, python, lab.release.name)).encode()).hexdigest()[:12]
    venv = CACHE / f"programs-{key}"
    CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (CACHE / f"{venv.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Written last: what an interrupted run left behind is no environment.
        stamp = venv / "complete"
        if not stamp.exists():
            do(lab.command([python, "-m", "venv", "--clear", "--without-pip", venv]))
            do([*pip_install(lab, venv), *REQUIREMENTS])
            let_all_read(venv)
            stamp.touch()
    return venv
