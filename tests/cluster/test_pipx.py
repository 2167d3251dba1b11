# SPDX-License-Identifier: Apache-2.0
"""A user whom no administrator helps: pipx, a site.toml of one's own, a job, and what is known of it then."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc import __version__
from tests.cluster.fixtures import CHECKOUT
from tests.cluster.install import build_wheel
from tests.cluster.lab import SYSTEM_PATH, Lab
from tests.cluster.releases import HOST
from tests.cluster.site import MODEL
from tests.unit.programs import need_program

pytestmark = pytest.mark.cluster

SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:h100:1 -t 5
COLLOC_SIMULATED_GPU_LOAD=mem=6G,util=60,sm=11 sleep 4
wait
"""


@pytest.fixture
def home(lab: Lab) -> Iterator[Path]:
    if lab.release != HOST:
        pytest.skip("the root folder of another release has no pipx")
    folder = Path(lab.environment("carol")["HOME"])
    yield folder
    for made in (".local", ".config/slurm_colloc"):
        shutil.rmtree(folder / made, ignore_errors=True)


def test_pipx_a_site_of_ones_own_and_a_job(lab: Lab, home: Path) -> None:
    pipx = need_program("pipx")
    # Not what the lab has installed: what pipx does, in carol's home.
    mine = {"PATH": f"{home}/.local/bin:{SYSTEM_PATH}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with tempfile.TemporaryDirectory(prefix="colloc-wheel-", dir="/var/tmp") as temp:
        wheel = build_wheel(CHECKOUT, Path(temp))
        for path in (Path(temp), wheel.parent):
            path.chmod(0o755)
        lab.run_as("carol", [pipx, "install", wheel], env=mine, timeout=600, check=True)
    where = lab.run_as(
        "carol", ["sh", "-c", "readlink -f $(command -v csub) $(command -v colloc)"], env=mine, check=True
    ).stdout
    assert [Path(line).is_relative_to(home) for line in where.split()] == [True, True], where
    assert lab.run_as("carol", ["colloc", "--version"], env=mine, check=True).stdout == f"colloc {__version__}\n"

    settings = {
        "observe.period_s": "0.5",
        "observe.gpu_reader": f'"simulated:{lab.gpus_dir}"',
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    init = ["colloc", "site", "init", "--user", "--gpu", f"h100={MODEL}", *words]
    lab.run_as("carol", init, env=mine, check=True)
    (home / "job.sh").write_text(SCRIPT)
    done = lab.run_as("carol", ["csub", "job.sh"], env=mine, check=True)
    job = done.stdout.split()[-1]
    assert set(lab.wait_jobs([job]).values()) == {"COMPLETED"}
    block = lab.run(["scontrol", "write", "batch_script", job, "-"], check=True).stdout
    assert f"{home}/.local/" in block, "the sampler in the job is of carol's own installation"
    assert "exact, from 1 run" in lab.run_as("carol", ["colloc", "history"], env=mine, check=True).stdout
    lab.run_as("carol", [pipx, "uninstall", "slurm-colloc"], env=mine, timeout=60, check=True)
    assert lab.run_as("carol", ["sh", "-c", "command -v csub"], env=mine).returncode == 127
