# SPDX-License-Identifier: Apache-2.0
"""Out of memory on a real GPU: `python -m tests.gpu.retry FOLDER`; takes two minutes.

FOLDER and the machine are those of tests/gpu/pack.py. A training that holds 4 GiB is submitted by `csub --requeue` as
one that needs 1.5: on gres/mps, under one daemon for all, as a site would run it. Prints what the jobs and csub said.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.gpu import slurm
from tests.gpu.pack import Bench, daemon, ready

HOLDS = """
import time, torch
held = [torch.zeros(2**28, dtype=torch.float32, device="cuda") for _ in range(4)]
torch.cuda.synchronize(); time.sleep(2); print("held", torch.cuda.memory_allocated() >> 20, "MiB")
"""
SHARED = 'mps_daemon = "site"\nheadroom_mib = 0\n'
CSUB = [sys.executable, "-m", "slurm_colloc.cli.csub"]


def call(*argv: str, environment: Mapping[str, str] | None = None, folder: Path) -> None:
    """Run a command and print what it says."""
    own = {**os.environ, **(environment or {})}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=folder, env=own)
    print("$", *argv[-9:], "|", done.returncode, "|", done.stdout.strip(), "|", done.stderr.strip(), flush=True)


def until_over(limit_s: float) -> None:
    """Wait until no job is left, and none has come in their place for a while."""
    deadline, quiet = time.monotonic() + limit_s, 0
    while quiet < 10 and time.monotonic() < deadline:
        quiet = 0 if slurm.ask("squeue", "-h").strip() else quiet + 1
        time.sleep(0.5)


def recovers(bench: Bench) -> None:
    """Let a job run out of memory on its share, and begin again."""
    folder = bench.fresh()
    (folder / "holds.py").write_text(HOLDS)
    (folder / "job.sh").write_text(f"#!/bin/sh\n{sys.executable} {folder}/holds.py\n")
    argv = (*CSUB, "--requeue", "--gres=gpu:1", "--gpu-footprint=mem=1500M,sm=5", "-t", "2", "-c", "2", "job.sh")
    with daemon(Path("/tmp/mps-of-site")) as environment:
        call(*argv, environment=environment, folder=folder)
        until_over(300.0)
    for path in sorted(folder.glob("slurm-*.out*")):
        print(f"--- {path.name}\n{path.read_text()[-1500:]}", flush=True)
    print(slurm.ask("scontrol", "show", "job", "-o"), flush=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    slurm.CONF = f"JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=task=2\n{slurm.CONF}"
    bench = ready(parser.parse_args().folder)
    site = Path(os.environ["COLLOC_CONF"])
    plain = site.read_text()
    shared = plain.replace('order = ["mps"]\n', f'order = ["mps"]\n{SHARED}')
    site.write_text(shared.replace("max_time_min = 30\n", 'max_time_min = 30\nmps_users = "all"\n'))
    recovers(bench)


if __name__ == "__main__":
    main()
