# SPDX-License-Identifier: Apache-2.0
"""The SPANK plugin in real Slurm: its options, what a job is told of its MPS daemon, and that no job is held up."""

from __future__ import annotations

import os
import pty
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import spank
from tests.cluster.fixtures import new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.processes import processes_with
from tests.cluster.user import job_id
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

SHOW = "env -0 | tr '\\0' '\\n' | grep -a '^CUDA_' | sort"
# What a user's environment may hold; none of it may reach the helper, or stay where the plugin sets a value.
HOSTILE = {
    "CUDA_MPS_PIPE_DIRECTORY": "/evil",
    "CUDA_MPS_LOG_DIRECTORY": "/evil",
    "CUDA_VISIBLE_DEVICES": "7",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "1;evil",
    "SLURM_JOB_ID": "4242",
    "SLURM_JOB_UID": "0",
    "SLURM_JOB_GID": "0",
    "SLURM_JOB_GPUS": "$(touch /tmp/evil)",
    "SPANK_SLURM_JOB_ID": "4242",
    "SPANK_PATH": "/evil",
    "SLURM_SPANK_PATH": "/evil",
    "LD_PRELOAD_": "/evil",
}
EXACTLY = {"verb", "files", "PATH", "SLURM_JOB_ID", "SLURM_JOB_UID", "SLURMD_NODENAME", "SLURM_CONF"}
EXACTLY |= {"SLURM_JOB_GID", "SLURM_JOB_GPUS", "SLURM_JOB_PARTITION", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab(spank.SLURM_CONF, spank.SCRIPTS)
    spank.prepare(lab, "timeout_s=2")
    with running(lab, bare=True):
        spank.start_daemon(lab)
        yield lab


@pytest.fixture(autouse=True)
def no_node_is_drained(lab: Lab) -> Iterator[None]:
    yield
    spank.mood(lab, "well")
    lab.run(["scancel", "-u", "alice"])
    lab.run(["scancel", "-u", "bob"])
    states = lab.run(["sinfo", "-h", "-p", "all", "-N", "-o", "%T"], check=True).stdout.split()
    assert states
    assert not [state for state in states if "drain" in state or "down" in state]


def _batch(lab: Lab, *argv: str, user: str = "alice", command: str = SHOW, **env: str) -> tuple[str, str]:
    """Run a batch job to its end; return its id and what it wrote."""
    done = lab.run_as(user, ["sbatch", "-o", "out.%A", *argv, "--wrap", command], env=env)
    job = job_id(done)
    assert set(lab.wait_jobs([job]).values()) == {"COMPLETED"}
    return job, _written(Path(lab.environment(user)["HOME"]) / f"out.{job}")


def _written(path: Path) -> str:
    wait_for(path.exists)
    return path.read_text()


def _told(lab: Lab, user: str, gpu: str, percentage: str = "25") -> str:
    """Return what a job with gres/mps is to see."""
    folder = f"{lab.root}/mps/{lab.users[user].uid}-GPU-{gpu}"
    return (
        f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percentage}\nCUDA_MPS_LOG_DIRECTORY={folder}/log\n"
        f"CUDA_MPS_PIPE_DIRECTORY={folder}/pipe\nCUDA_VISIBLE_DEVICES=0\n"
    )


MPS = ("-p", "gpu", "-w", "g1", "--gres=mps:25")


@pytest.mark.parametrize(
    ("program", "option", "fault"),
    [
        ("sbatch", "--colloc=mps", "--colloc is none of auto, off and exclusive:REASON"),
        ("srun", "--colloc=", "--colloc is none of"),
        ("salloc", "--colloc=exclusive:", "--colloc lacks its reason"),
        ("sbatch", "--colloc=exclusive:a\nb", "--colloc is longer than 255 bytes, or has one that is not printable"),
        ("srun", "--colloc=%s%n%s", "--colloc is none of"),
        ("salloc", "--gpu-footprint=6G", "--gpu-footprint is none of mem=SIZE"),
        ("sbatch", "--gpu-footprint=mem=6", "--gpu-footprint has no memory size"),
        ("srun", "--gpu-footprint=mem=6G,sm=0.5", "--gpu-footprint has no percentage"),
        ("salloc", "--gpu-footprint=sm=30", "--gpu-footprint lacks mem=SIZE"),
    ],
)
def test_a_wrong_option_refuses_the_submission(lab: Lab, program: str, option: str, fault: str) -> None:
    last = ["--wrap", "true"] if program == "sbatch" else ["true"]
    done = lab.run_as("alice", [program, option, *last])
    assert done.returncode != 0
    assert f"{program}: error: {fault}" in done.stderr
    assert done.stdout == ""
    assert lab.run(["squeue", "-h", "-t", "all", "-u", "alice", "-n", option]).stdout == ""


@pytest.mark.parametrize("program", ["sbatch", "srun", "salloc"])
def test_the_options_reach_lua(lab: Lab, program: str) -> None:
    last = ["--wrap", "true"] if program == "sbatch" else ["true"]
    options = ["--colloc=exclusive:a b; $(c)", "--gpu-footprint=mem=6G,sm=30"]
    done = lab.run_as("alice", [program, *options, *last], env={"SHOW_FILTER": "1"})
    assert done.returncode == 0, done.stderr
    assert "filter exclusive:a b; $(c) mem=6G,sm=30" in done.stderr
    assert '"spank:colloc":"exclusive:a b; $(c)","spank:gpu-footprint":"mem=6G,sm=30"' in done.stderr
    saw = "_SLURM_SPANK_OPTION_colloc_colloc=exclusive:a b; $(c)|_SLURM_SPANK_OPTION_colloc_gpu_footprint=mem=6G,sm=30"
    assert f"saw [{saw}]" in done.stderr
    none = lab.run_as("alice", [program, *last], env={"SHOW_FILTER": "1"})
    assert "filter nil nil" in none.stderr
    assert "saw []" in none.stderr


def test_directives_are_options_too(lab: Lab) -> None:
    script = "#!/bin/sh\n#SBATCH --colloc=off\n#SBATCH --gpu-footprint=mem=1G\ntrue\n"
    done = lab.run_as("alice", ["sbatch"], input=script)
    assert "_SLURM_SPANK_OPTION_colloc_colloc=off|_SLURM_SPANK_OPTION_colloc_gpu_footprint=mem=1G" in done.stderr
    wrong = lab.run_as("alice", ["sbatch"], input=script.replace("mem=1G", "mem=0G"))
    assert (wrong.returncode != 0, "has no memory size" in wrong.stderr) == (True, True)


@pytest.mark.parametrize("export", ["ALL", "NONE"])
def test_a_batch_job_and_its_steps_are_told_of_the_daemon(lab: Lab, export: str) -> None:
    command = f"{SHOW}; echo step; srun --export=NONE /bin/sh -c \"$(cat <<'E'\nPATH=/usr/bin:/bin; {SHOW}\nE\n)\""
    job, seen = _batch(lab, *MPS, f"--export={export}", command=command, **HOSTILE)
    told = _told(lab, "alice", "0")
    assert seen == f"{told}step\n{told}"
    for verb in ("start", "stop"):
        given = spank.called(lab, verb, job)
        assert given is not None
        assert given.keys() == EXACTLY
        assert given["SLURM_JOB_ID"] == job
        assert given["SLURM_JOB_UID"] == str(lab.users["alice"].uid)
        assert given["SLURM_JOB_GID"] == str(lab.users["alice"].gid)
        assert (given["SLURM_JOB_GPUS"], given["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]) == ("0", "25")
        assert (given["SLURMD_NODENAME"], given["SLURM_CONF"]) == ("g1", str(lab.slurm_conf))
        assert given["PATH"] == "/usr/sbin:/usr/bin:/sbin:/bin"
        # 3 is ls's own.
        assert given["files"].split() == ["0", "1", "2", "3"]
    assert not Path("/tmp/evil").exists()


def test_srun_and_salloc_are_told(lab: Lab) -> None:
    told = _told(lab, "alice", "0")
    # To srun that one means a step of another job.
    hostile = {name: value for name, value in HOSTILE.items() if name != "SLURM_JOB_ID"}
    assert lab.run_as("alice", ["srun", *MPS, "/bin/sh", "-c", SHOW], env=hostile).stdout == told
    done = lab.run_as("alice", ["salloc", *MPS, "srun", "/bin/sh", "-c", SHOW])
    assert done.stdout == told


def test_a_shell_on_a_terminal_is_told(lab: Lab) -> None:
    ours, theirs = pty.openpty()
    try:
        argv = lab.command(["srun", "--pty", *MPS, "/bin/sh", "-c", SHOW], "alice")
        subprocess.run(
            argv, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=lab.environment("alice"), cwd="/",
            check=True, timeout=60,
        )  # fmt: skip
        assert os.read(ours, 65536).decode().replace("\r", "") == _told(lab, "alice", "0")
    finally:
        os.close(ours)
        os.close(theirs)


def test_each_task_of_an_array_is_told(lab: Lab) -> None:
    home = Path(lab.environment("alice")["HOME"])
    argv = ["sbatch", "--array=0-2", "-o", "array.%a", *MPS, "--wrap", SHOW]
    job = job_id(lab.run_as("alice", argv))
    assert set(lab.wait_jobs([job]).values()) == {"COMPLETED"}
    assert [_written(home / f"array.{task}") for task in range(3)] == [_told(lab, "alice", "0")] * 3


def test_the_leader_of_a_het_job_is_told(lab: Lab) -> None:
    _, seen = _batch(lab, *MPS, ":", "-p", "cpu")
    assert seen == _told(lab, "alice", "0")


def test_a_job_without_gres_mps_is_not_touched(lab: Lab) -> None:
    """Also where its user holds a daemon on the node, and says that he has gres/mps."""
    holder = job_id(lab.run_as("alice", ["sbatch", "-o", "/dev/null", *MPS, "--wrap", "sleep 60"]))
    wait_for(lambda: spank.called(lab, "start", holder), "the helper is not called")
    lying = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50", "CUDA_MPS_PIPE_DIRECTORY": "/mine"}
    job, seen = _batch(lab, "-p", "gpu", "-w", "g1", "--gres=gpu:1", **lying)
    assert "CUDA_MPS_PIPE_DIRECTORY=/mine\n" in seen
    assert "without MPS" not in seen
    # A daemon that was left on the GPU has to go before a job has it alone.
    given = spank.called(lab, "start", job)
    assert given is not None
    assert given.keys() == EXACTLY - {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}
    assert spank.called(lab, "stop", job) is None
    job, seen = _batch(lab, "-p", "gpu", "-w", "g1", **lying)
    assert "CUDA_MPS_PIPE_DIRECTORY=/mine\n" in seen
    assert "without MPS" not in seen
    assert spank.called(lab, "start", job) is None


@pytest.mark.parametrize("mood", ["hang", "crash", "fail"])
def test_a_helper_that_goes_wrong_holds_no_job_up(lab: Lab, mood: str) -> None:
    spank.mood(lab, mood)
    began = time.monotonic()
    job, seen = _batch(lab, *MPS)
    took_s = time.monotonic() - began
    # A hang costs timeout_s before the job and as much behind it.
    assert took_s < 12
    assert "CUDA_MPS_PIPE_DIRECTORY" not in seen
    assert seen.count(f"colloc: job {job} runs without MPS: it has no daemon on its GPU\n") == 1
    assert spank.called(lab, "start", job) is not None
    wait_for(lambda: spank.called(lab, "stop", job), "the helper is not called")
    time.sleep(2.5 if mood == "hang" else 0.2)
    assert list(processes_with(str(lab.root / "helper"))) == []
    if mood == "hang":
        slept = (lab.root / "slept").read_text().split()
        assert len(slept) >= 2
        assert not [pid for pid in slept if Path("/proc", pid).exists()]
        logs = "".join(path.read_text() for path in (lab.root / "log").glob("slurmd-g1.*"))
        assert f"{lab.root}/helper did not end within its timeout_s and is killed" in logs


@pytest.mark.parametrize("what", ["missing", "not roots", "writable", "replaceable"])
def test_a_helper_that_root_may_not_run_is_not_run(lab: Lab, what: str) -> None:
    helper = lab.root / "helper"
    text = helper.read_bytes()
    if what == "missing":
        helper.unlink()
    elif what == "not roots":
        os.chown(helper, lab.users["alice"].uid, -1)
    elif what == "replaceable":
        lab.root.chmod(0o775)
    else:
        helper.chmod(0o775)
    try:
        job, seen = _batch(lab, *MPS)
        direct = lab.run_as("alice", ["srun", *MPS, "true"], check=True).stderr
    finally:
        helper.unlink(missing_ok=True)
        helper.write_bytes(text)
        helper.chmod(0o755)
        lab.root.chmod(0o755)
    assert "CUDA_MPS_PIPE_DIRECTORY" not in seen
    assert [text.count("runs without MPS") for text in (seen, direct)] == [1, 1]
    assert spank.called(lab, "start", job) is None


@pytest.mark.parametrize("pid", ["", "0", "-1", "99999999999999999999", "x", "4194304000", "1", "self"])
def test_a_daemon_that_is_dead_is_not_named(lab: Lab, pid: str) -> None:
    """A client that finds no daemon at the pipes it was told of would fail, or take the whole GPU without a word."""
    living = (lab.root / "pid").read_text()
    (lab.root / "pid").write_text(pid)
    try:
        _, seen = _batch(lab, *MPS)
    finally:
        (lab.root / "pid").write_text(living)
    assert "CUDA_MPS_PIPE_DIRECTORY" not in seen
    assert seen.count("colloc: the MPS daemon of this job's GPU is gone; the job runs without it") == 1


def test_nobody_gets_another_users_daemon(lab: Lab) -> None:
    """A reference counts only where root wrote it, in a folder of one's own uid."""
    bob, alice = lab.users["bob"], lab.users["alice"]
    next_job = int(_batch(lab, "-p", "cpu", user="bob", command="true")[0]) + 1
    forged = lab.root / "mps" / f"{bob.uid}-GPU-9"
    (forged / "jobs").mkdir(parents=True)
    (forged / "pipe").mkdir()
    (forged / "pipe/nvidia-cuda-mps-control.pid").write_text((lab.root / "pid").read_text())
    for number in range(next_job, next_job + 5):
        for folder in (forged, lab.root / "mps" / f"{alice.uid}-GPU-0"):
            (folder / "jobs" / str(number)).touch()
        os.chown(forged / "jobs" / str(number), bob.uid, bob.gid)
    job, seen = _batch(lab, "-p", "gpu", "-w", "g1", "--gres=gpu:1", user="bob")
    assert next_job <= int(job) < next_job + 5
    assert "CUDA_MPS_PIPE_DIRECTORY" not in seen


def test_a_helper_is_not_left_behind_where_slurmd_loses_its_patience_first(lab: Lab) -> None:
    """PrologEpilogTimeout below timeout_s: 22.05 then drains the node, as the how-to says; none keeps a process."""
    spank.write_plugstack(lab, "timeout_s=60")
    with lab.slurm_conf.open("a") as text:
        text.write("PrologEpilogTimeout=1\n")
    lab.run(["scontrol", "reconfigure"], check=True)
    time.sleep(3)  # later releases start their daemons anew
    spank.mood(lab, "hang")
    job = job_id(lab.run_as("alice", ["sbatch", "-o", "/dev/null", *MPS, "--wrap", "true"]))
    wait_for(lambda: spank.called(lab, "start", job), "the helper is not called")
    assert list(processes_with(str(lab.root / "helper")))
    time.sleep(5)
    lab.run(["scancel", job])
    spank.mood(lab, "well")
    time.sleep(2)
    assert list(processes_with(str(lab.root / "helper"))) == []
    assert not [pid for pid in (lab.root / "slept").read_text().split() if Path("/proc", pid).exists()]
    lab.run(["scontrol", "update", "nodename=g1", "state=resume"])
