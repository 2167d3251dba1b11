# SPDX-License-Identifier: Apache-2.0
"""A lab whose Slurm loads our SPANK plugin: built against its release's headers."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.cluster.fixtures import CHECKOUT
from tests.cluster.lab import Lab
from tests.cluster.releases import HOST

SLURM_CONF = """\
JobSubmitPlugins=lua
CliFilterPlugins=lua
"""
# Says what arrived; the policy itself has tests of its own.
JOB_SUBMIT = """\
function slurm_job_submit(job_desc, partitions, uid)
    local texts = {}
    for i = 0, (job_desc.spank_job_env_size or 0) - 1 do texts[#texts + 1] = job_desc.spank_job_env[i] end
    slurm.log_user("saw [%s]", table.concat(texts, "|"))
    return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job, partitions, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
CLI_FILTER = """\
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset)
    if os.getenv("SHOW_FILTER") then
        local ours = (options["spank"] or {})["colloc"] or {}
        slurm.log_error("filter %s %s", tostring(ours["colloc"]), tostring(ours["gpu-footprint"]))
        slurm.log_error("filter json %s", slurm.json_cli_options(options))
    end
    return slurm.SUCCESS
end
function slurm_cli_post_submit(offset, job, step) return slurm.SUCCESS end
"""
SCRIPTS = {"job_submit.lua": JOB_SUBMIT, "cli_filter.lua": CLI_FILTER}


def build(lab: Lab) -> subprocess.CompletedProcess[str]:
    """Build the plugin for the lab's release by the project's own command."""
    tree = Path("/usr") if lab.release == HOST else lab.release.root / "usr"
    prefix = lab.root / "prefix"
    (prefix / "bin").mkdir(parents=True, exist_ok=True)
    if not (prefix / "include").exists():
        (prefix / "include").symlink_to(tree / "include")
    # The compiler is the machine's, the Slurm that is asked for its version the lab's.
    (prefix / "bin/sinfo").write_text(f'#!/bin/sh\nexec {shlex.join(lab.command(["sinfo"]))} "$@"\n')
    (prefix / "bin/sinfo").chmod(0o755)
    argv = [sys.executable, "-m", "slurm_colloc.cli.colloc", "site", "build-plugin"]
    argv += ["--slurm-prefix", str(prefix), "-o", str(lab.root / "colloc_spank.so")]
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, cwd=CHECKOUT, env=os.environ | lab.environment()
    )


def write_plugstack(lab: Lab, *words: str) -> None:
    text = " ".join([f"optional {lab.root}/colloc_spank.so", *words])
    (lab.root / "etc/plugstack.conf").write_text(text + "\n")


def prepare(lab: Lab) -> None:
    """Build the plugin for a lab that is not up yet, and have it loaded."""
    done = build(lab)
    assert done.returncode == 0, done.stderr
    write_plugstack(lab)
