# SPDX-License-Identifier: Apache-2.0
"""AdminComment in a real slurmdbd: each job gets its own line, and nobody else's comment is touched."""

from __future__ import annotations

import subprocess
import time
from datetime import UTC, datetime

import pytest

from tests.cluster.lab import Lab
from tests.cluster.site import write_site

pytestmark = pytest.mark.cluster

# Nothing is sampled here: each run is taken to have been measured, and to have ended long ago.
MEASURED = """
import sys
from slurm_colloc.cli.colloc import comment as command
found = command.job_usage
command._SETTLED_S = -1e9
command.job_usage = lambda *words: [
    run._replace(sm_used_gpu_hours=run.allocated_gpu_hours / 4, sm_measured_gpu_hours=run.allocated_gpu_hours,
                 gpu_mem_peak_mib=int(run.job_id_raw), methods=("measured",)) for run in found(*words)]
from slurm_colloc.cli.colloc import main
sys.argv = ["colloc", "comment", *sys.argv[1:]]
main()
"""


def test_each_job_gets_its_own_line_and_nobody_elses_is_touched(lab: Lab) -> None:
    site = write_site(lab, "commented", agent=False)
    env = {"COLLOC_CONF": str(site / "site.toml")}
    python = str(lab.root / "opt/bin/python")

    def submit(*options: str) -> str:
        argv = ["sbatch", "--parsable", "-p", "all", "--gres=gpu:h100:1", "-o", "/dev/null", *options]
        return lab.run_as("alice", [*argv, "--wrap", "sleep 2"], check=True).stdout.strip()

    def comments() -> dict[str, str]:
        argv = ["sacct", "-a", "-X", "-n", "-P", "-j", ",".join([one, array, other]), "-o", "JobID,AdminComment"]
        return dict(line.split("|", 1) for line in lab.run(argv, check=True).stdout.splitlines())

    def write(*options: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
        argv = [python, "-c", MEASURED, "--since", since, *options]
        return lab.run_as(user, argv, env=env) if user else lab.run(argv, env=env)

    # The lab's earlier jobs are left out: sacctmgr takes up to 0.3 s for each.
    since = datetime.now(UTC).isoformat(timespec="seconds")
    time.sleep(1)
    one, array, other = submit(), submit("--array=1-2"), submit()
    lab.wait_jobs([one, array, other])
    lab.wait_accounted([one, array, other])
    time.sleep(1)  # a run of less than a second that began with the window is cut by it
    lab.run(["sacctmgr", "-i", "modify", "job", "where", f"jobid={other}", "set", "AdminComment=js1:abc"], check=True)
    lab.run(["colloc", "ingest", "--since", "1d"], env=env, check=True)

    done = write("--dry-run")
    assert any(line.startswith(f"{array}_2 colloc=1 gpu_hours=") for line in done.stdout.splitlines())
    assert set(comments().values()) == {"", "js1:abc"}
    done = write()
    assert done.returncode == 0, done.stderr
    assert "1 left as somebody else wrote them" in done.stderr
    found = comments()
    assert found[other] == "js1:abc"
    raw = dict(line.split("|") for line in lab.run(
        ["sacct", "-a", "-X", "-n", "-P", "-j", f"{one},{array}", "-o", "JobID,JobIDRaw"], check=True
    ).stdout.splitlines())  # fmt: skip
    for job in (one, f"{array}_1", f"{array}_2"):
        assert found[job].startswith("colloc=1 gpu_hours="), job
        assert f" sm_pct=25.0 gpu_mem_mib={raw[job]}" in found[job]
    assert "written" not in write().stderr  # there already

    lab.run(["sacctmgr", "-i", "modify", "job", "where", f"jobid={one}", "set", "AdminComment=colloc=0"], check=True)
    lab.run(["chmod", "-R", "a+rX", site / "store"], check=True)
    refused = write(user="carol")
    assert refused.returncode == 1
    assert "1 not taken by Slurm" in refused.stderr
    assert comments()[one] == "colloc=0"
    assert " 1 written" in write().stderr
