# SPDX-License-Identifier: Apache-2.0
"""The loop: what a job was seen to use decides where its next submission goes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.processes import processes_with
from tests.cluster.site import MODEL, agents, write_site

pytestmark = pytest.mark.cluster

SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:h100:1 -t 5
COLLOC_SIMULATED_GPU_LOAD=mem=6G,util=60,sm=11 sleep 5
wait
"""


def _tres(lab: Lab, job: str) -> str:
    return lab.run(["sacct", "-a", "-X", "-n", "-P", "-j", job, "-o", "AllocTRES"]).stdout.strip()


def test_nobody_is_an_admin(lab: Lab) -> None:
    """Bob's own site.toml, no agent, no ingest: the second submission of the same script takes a slice."""
    home = Path(lab.environment("bob")["HOME"])
    shutil.rmtree(home / ".local/share/slurm_colloc", ignore_errors=True)  # of another file's tests on this cluster
    init = ["colloc", "site", "init", "--user", "--force", "--gpu", f"h100={MODEL}"]
    settings = {
        "observe.period_s": "0.5",
        "sharing.max_slowdown": "2.1",
        "sharing.ask_free": "false",
        "observe.gpu_reader": f'"simulated:{lab.gpus_dir}"',
    }
    init += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    lab.run_as("bob", init, check=True)
    (home / "loop.sh").write_text(SCRIPT)

    first = lab.run_as("bob", ["csub", "loop.sh"], check=True)
    job = first.stdout.split()[-1]
    assert first.stderr == ""
    stored = lab.run(["scontrol", "write", "batch_script", job, "-"]).stdout
    assert "csub" in stored
    assert lab.wait_jobs([job])[int(job)] == "COMPLETED"
    lab.wait_accounted([job])
    assert "gres/gpu:h100=1" in _tres(lab, job)

    second = lab.run_as("bob", ["csub", "--explain", "loop.sh"], check=True)
    job = second.stdout.split()[-1]
    lab.wait_jobs([job])
    lab.wait_accounted([job])
    assert "gres/gpu:nvidia_h100_80gb_hbm3_1g.10gb=1" in _tres(lab, job), second.stderr
    assert "1 completed run on" in second.stderr

    shown = json.loads(lab.run_as("bob", ["colloc", "history", "--format=json"], check=True).stdout)
    assert [item["decision"]["given"] for item in shown["submissions"]] == [
        "as asked",
        "gpu:nvidia_h100_80gb_hbm3_1g.10gb:1",
    ]
    assert (home / ".local/share/slurm_colloc").stat().st_mode & 0o777 == 0o700
    _says_what_is_known_and_what_is_not(lab, job)


def test_a_wrapped_command_is_measured_too(lab: Lab) -> None:
    """What Slurm keeps and runs of it is what sbatch makes of --wrap, with the block in it."""
    load = "COLLOC_SIMULATED_GPU_LOAD=mem=6G,util=60,sm=11 sleep 5; echo $# $- $SLURM_JOB_NAME"
    words = ["-t5", "-o", "wrapped.%j", "--gpus=h100:1", "-p", "all", "--wrap", load]
    jobs = [lab.run_as("bob", [program, *words], check=True).stdout.split()[-1] for program in ("sbatch", "csub")]
    by_sbatch, by_csub = (lab.run(["scontrol", "write", "batch_script", job, "-"]).stdout for job in jobs)
    head, _, rest = by_csub.partition("# --- csub")
    assert "colloc sample" in rest
    assert head + rest.partition("# --- end of csub's block ---\n")[2] == by_sbatch
    assert set(lab.wait_jobs(jobs).values()) == {"COMPLETED"}
    lab.wait_accounted(jobs)
    home = Path(lab.environment("bob")["HOME"])
    assert [(home / f"wrapped.{job}").read_text().split() for job in jobs] == [["0", "wrap"]] * 2
    assert "gres/gpu:h100=1" in _tres(lab, jobs[1])

    second = lab.run_as("bob", ["csub", *words], check=True)
    job = second.stdout.split()[-1]
    lab.wait_jobs([job])
    lab.wait_accounted([job])
    assert "gres/gpu:nvidia_h100_80gb_hbm3_1g.10gb=1" in _tres(lab, job), second.stderr


def _says_what_is_known_and_what_is_not(lab: Lab, job: str) -> None:
    """Without samplers on the nodes only the evidence from inside the job is known, and nothing looks clean."""
    empty = lab.run_as("bob", ["colloc", "report"])
    assert (empty.returncode, empty.stdout) == (2, "")
    assert "holds nothing; run 'colloc ingest' first" in empty.stderr
    lab.run_as("bob", ["colloc", "ingest", "--since", "1h"], check=True, timeout=120)
    told = lab.run_as("bob", ["colloc", "job", job], check=True).stdout
    assert "csub gave  gpu:nvidia_h100_80gb_hbm3_1g.10gb:1 (mig), " in told
    assert "memory     6144 MiB at peak" in told
    assert "samples (measured by csub in the job)" in told
    assert "No run was sampled" in lab.run_as("bob", ["colloc", "report"], check=True).stdout
    audit = lab.run_as("bob", ["colloc", "audit", "run"])
    assert audit.returncode == 3
    assert "not one was measured" in audit.stderr


def test_the_systems_site_file_is_not_for_everybody_to_write(lab: Lab) -> None:
    done = lab.run_as("alice", ["env", "-u", "COLLOC_CONF", "colloc", "site", "init"])
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "'colloc site init --user' writes one of your own" in done.stderr


def test_the_sampler_ends_with_its_job(lab: Lab) -> None:
    """A sampler that outlives its job would leave a process on the node and keep the GPU's driver open."""
    home = Path(lab.environment("bob")["HOME"])
    (home / "short.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:1\nsleep 2\nexit 7\n")
    done = lab.run_as("bob", ["csub", "short.sh"], check=True)
    job = done.stdout.split()[-1]
    assert lab.wait_jobs([job])[int(job)] == "FAILED"
    lab.wait_accounted([job])
    exit_code = lab.run(["sacct", "-a", "-X", "-n", "-P", "-j", job, "-o", "ExitCode"]).stdout.strip()
    assert exit_code == "7:0"
    assert list(processes_with(f"\0--job\0{job}\0", str(lab.root))) == []


def test_the_site_feeds_its_users(lab: Lab) -> None:
    """Agents on the nodes, ingest by root: carol's second submission takes a share, and the report adds up."""
    site = write_site(lab, "loop-site")
    environment = {"COLLOC_CONF": str(site / "site.toml")}
    home = Path(lab.environment("carol")["HOME"])
    (home / "site.sh").write_text(SCRIPT.replace("-t 5", "-t 5 -p gpu"))
    with agents(lab, site):
        first = lab.run_as("carol", ["csub", "site.sh"], env=environment, check=True).stdout.split()[-1]
        lab.wait_jobs([first])
        lab.wait_accounted([first])
        lab.run(["colloc", "ingest", "--since", "1h"], env=environment, check=True, timeout=120)
        second = lab.run_as("carol", ["csub", "site.sh"], env=environment, check=True).stdout.split()[-1]
        lab.wait_jobs([second])
        lab.wait_accounted([second])
    assert "gres/mps=11" in _tres(lab, second)
    lab.run(["colloc", "ingest", "--since", "1h"], env=environment, check=True, timeout=120)
    told = lab.run(["colloc", "job", second, "--format", "json"], env=environment, check=True).stdout
    run = json.loads(told)["runs"][0]
    assert run["gpu_mem_peak_mib"] == 6144
    assert run["coverage_pct"] > 70
    assert run["sm_used_gpu_hours"] / run["sm_measured_gpu_hours"] == pytest.approx(1.0, abs=0.35)
    assert json.loads(told)["decision"]["rung"] == "exact"
    uid = lab.users["carol"].uid
    snapshot = site / "history" / f"{uid}.sqlite"
    assert (snapshot.stat().st_uid, snapshot.stat().st_mode & 0o777) == (uid, 0o600)
    for closed in ("store", "journal"):
        assert (site / closed).stat().st_mode & 0o777 == 0o700
    # What everybody used is closed to carol; her own job she sees, from Slurm's rows and the evidence kept for her.
    lab.run_as("carol", ["colloc", "ingest", "--since", "1h"], env=environment, check=True, timeout=120)
    own = lab.run_as("carol", ["colloc", "job", second], env=environment, check=True)
    assert "is not open to you" in own.stderr
    assert "memory     6144 MiB at peak" in own.stdout
    assert "samples (measured by csub in the job)" in own.stdout
