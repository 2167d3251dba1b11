# SPDX-License-Identifier: Apache-2.0
"""Every shell script of ours, those that 'site render' writes included, is clean to shellcheck."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_colloc.core.config_file import load_site
from slurm_colloc.site.render import Host, render_site

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPTS = (
    ".ci/run",
    "packages/build",
    "tests/cluster/bootstrap.sh",
    "slurm_colloc/front/csub",
    "slurm_colloc/plugin/colloc-mps",
)
SITES = sorted((CHECKOUT / "site-configs").glob("*/site.toml"))

pytestmark = pytest.mark.skipif(
    not shutil.which("shellcheck") and "COLLOC_REQUIRE_CLUSTER" not in os.environ, reason="no shellcheck here"
)


def check(*paths: Path) -> None:
    done = subprocess.run(["shellcheck", *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_our_own() -> None:
    check(*(CHECKOUT / script for script in SCRIPTS))


def test_what_is_rendered(tmp_path: Path) -> None:
    scripts = []
    for site in SITES:
        for file in render_site(load_site(str(site)), Host("/opt/slurm_colloc")):
            if file.text.startswith("#!"):
                scripts.append(tmp_path / f"{site.parent.name}-{file.name}")
                scripts[-1].write_text(file.text)
    kinds = {script.name.rpartition("-")[2] for script in scripts}
    assert {"colloc", "task_prolog"} <= kinds, kinds
    check(*scripts)
