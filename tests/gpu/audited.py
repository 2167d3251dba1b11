# SPDX-License-Identifier: Apache-2.0
"""Known ways to waste a GPU, recorded for the audits: `python -m tests.gpu.audited FOLDER`; about nine minutes.

FOLDER and the machine are those of tests/gpu/slurm.py. Each user does one thing to the GPU under a real Slurm while the
agent samples, so that the name of the user is the truth about the finding. Leaves the journal and slurmctld's record of
the jobs in FOLDER; tests/unit/test_audit_recorded.py judges what was recorded on an H100.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.gpu import slurm
from tests.gpu.cost import SITE
from tests.gpu.loads import PROGRAMS
from tests.gpu.read_loads import mps

ROOT = Path("/tmp/gpulab")
JOBCOMP = "JobCompType=jobcomp/filetxt\nJobCompLoc={root}/jobcomp.txt\n"
WORKING_S, TAIL_S, MPS_S = 35, 80, 60
_FOR = "import sys, time\nuntil = time.time() + {seconds}\n"
_WORK = "import torch\nx = torch.randn({size}, {size}, device='cuda', dtype=torch.bfloat16)\n"
PROGRAMS_OF = {
    # Never opens the GPU.
    "zero": "time.sleep(until - time.time())",
    # Puts 4 GiB there and waits; empty() runs no kernel.
    "parked": "import torch\nkept = torch.empty(4 * 2**30, dtype=torch.uint8, device='cuda')\ntime.sleep({seconds})",
    # One kernel after the other, each on a few SMs.
    "little": _WORK.format(size=64) + "while time.time() < until:\n    x @ x\n    torch.cuda.synchronize()",
    "tail": _WORK.format(size=8192) + "while time.time() < until:\n    x @ x\n    torch.cuda.synchronize()\n"
    f"time.sleep({TAIL_S})",
    "full": _WORK.format(size=8192)
    + "while time.time() < until:\n    for _ in range(8): x @ x\n    torch.cuda.synchronize()",
    # Its one core prepares for 50 ms what the GPU does in 2.
    "starved": _WORK.format(size=8192)
    + "while time.time() < until:\n    ready = time.time() + 0.05\n    while time.time() < ready: pass\n"
    "    x @ x\n    torch.cuda.synchronize()",
}
USERS = ("zero", "parked", "little", "tail", "full", "starved", "beside", "client", "blamed")


def submit(user: str, program: str, gres: str, seconds: int, environment: Mapping[str, str]) -> str:
    """Submit what that user does to the GPU; return the job's id."""
    body = (_FOR + PROGRAMS_OF[program].replace("{seconds}", str(seconds))).replace("{seconds}", str(seconds))
    folder = ROOT / user
    folder.mkdir(exist_ok=True)
    (folder / "load.py").write_text(body)
    exports = "".join(f"export {name}={value}\n" for name, value in environment.items())
    (folder / "job.sh").write_text(f"#!/bin/sh\n{exports}exec {sys.executable} {folder}/load.py\n")
    shutil.chown(folder, user)
    become = [
        "setpriv",
        f"--reuid={user}",
        f"--regid={user}",
        "--clear-groups",
        "env",
        "-i",
        f"PATH={os.environ['PATH']}",
    ]
    asked = [f"--gres={gres}", "-c", "1", "-J", user, "-o", f"{folder}/out", "-t", "10", f"{folder}/job.sh"]
    done = subprocess.run(
        [*become, "sbatch", "--parsable", *asked], capture_output=True, text=True, check=False, cwd=folder
    )
    if done.returncode:
        raise SystemExit(f"sbatch as {user}: {done.stderr}")
    return done.stdout.strip()


def wait() -> None:
    """Return when no job is left."""
    while slurm.ask("squeue", "-h").strip():
        time.sleep(0.5)


def main(folder: Path) -> None:
    """Run the whole story."""
    ROOT.mkdir()
    ROOT.chmod(0o755)
    slurm.unpack(folder)
    slurm.CONF += JOBCOMP
    for number, user in enumerate(USERS):
        subprocess.run(["useradd", "-m", "-u", str(2001 + number), "-U", user], check=True)
    slurm.start(ROOT)
    (ROOT / "site.toml").write_text(SITE.format(folder=ROOT).replace("test", "gpulab"))
    argv = [sys.executable, "-m", "slurm_colloc.cli.colloc", "agent", "--node", "n1", "--period", "2"]
    agent = subprocess.Popen(argv, env={**os.environ, "COLLOC_CONF": str(ROOT / "site.toml")})
    try:
        time.sleep(4)
        if agent.poll() is not None:
            raise SystemExit("the agent does not run")
        for user in ("zero", "parked", "little", "tail", "full", "starved"):
            submit(user, user, "gpu:1", WORKING_S, {})
            wait()
            print(user, (ROOT / user / "out").read_text()[-500:], flush=True)
        # What is nobody's keeps the GPU busy while a job that does nothing holds it.
        submit("blamed", "zero", "gpu:1", WORKING_S, {})
        steps = ROOT / "stray.steps"
        steps.write_bytes(bytes(8))
        stray = subprocess.Popen([sys.executable, "-c", PROGRAMS["half"]], env={**os.environ, "STEPS": str(steps)})
        wait()
        stray.kill()
        stray.wait()
        with mps() as environment:
            pipes = environment["CUDA_MPS_PIPE_DIRECTORY"]
            Path(pipes).parent.chmod(0o755)
            Path(pipes).chmod(0o755)
            submit("client", "little", "mps:50", MPS_S, {"CUDA_MPS_PIPE_DIRECTORY": pipes})
            submit("beside", "little", "mps:50", MPS_S, {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"})
            wait()
        for user in ("blamed", "client", "beside"):
            print(user, (ROOT / user / "out").read_text()[-500:], flush=True)
        time.sleep(4)
    finally:
        agent.terminate()
        agent.wait()
        shutil.copytree(ROOT / "journal", folder / "journal", dirs_exist_ok=True)
        shutil.copy(ROOT / "jobcomp.txt", folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
