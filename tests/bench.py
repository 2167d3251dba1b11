# SPDX-License-Identifier: Apache-2.0
"""Ratios side by side in one run: `python -m tests.bench` (`make bench`). Absolute times are this machine's alone."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from tests.cluster.lab import Lab
from tests.cluster.site import write_site

CHECKOUT = Path(__file__).resolve().parents[1]
ROUNDS = 40
GPU_JOB = "#!/bin/bash\n#SBATCH --gres=gpu:1 -t 5 -H\nsleep 1\n"
CPU_JOB = "#!/bin/bash\n#SBATCH -t 5 -H\nsleep 1\n"
HINT = "--gpu-footprint=mem=4G,sm=12"

# What is compared with plain sbatch of the same script: name -> (script, csub's arguments, site).
CASES: dict[str, tuple[str, list[str], str]] = {
    "no GPU asked: left alone": (CPU_JOB, [], "bench-agent"),
    "placed on a slice, script unchanged": (GPU_JOB, [HINT], "bench-agent"),
    "placed under MPS, script rendered": (GPU_JOB, [HINT, "-p", "gpu"], "bench-agent"),
    "no evidence, sampler added to the script": (GPU_JOB, [], "bench-user"),
}


def main() -> int:
    """Bring a cluster up, measure, print, take it down."""
    with Lab.create() as lab:
        lab.install(CHECKOUT)
        for agent in (True, False):
            write_site(lab, "bench-agent" if agent else "bench-user", agent=agent)
        print(f"csub against plain sbatch, {ROUNDS} pairs each, one after the other, wall time in ms")
        print(f"{'case':<44}{'sbatch':>9}{'csub':>9}{'added':>9}{'p95':>9}{'ratio':>8}")
        for name, case in CASES.items():
            print(f"{name:<44}{row(*compare(lab, *case))}")
    lab.remove()
    return 0


def row(plain_ms: list[float], csub_ms: list[float]) -> str:
    """Return medians of both, of the pairwise difference with its 95th percentile, and of the pairwise ratio."""
    added = [after - before for before, after in zip(plain_ms, csub_ms, strict=True)]
    ratio = [after / before for before, after in zip(plain_ms, csub_ms, strict=True)]
    values = [statistics.median(plain_ms), statistics.median(csub_ms), statistics.median(added)]
    values.append(statistics.quantiles(added, n=20)[-1])
    return "".join(f"{value:9.1f}" for value in values) + f"{statistics.median(ratio):8.1f}"


def compare(lab: Lab, script: str, arguments: list[str], site: str) -> tuple[list[float], list[float]]:
    """Return wall times of plain sbatch and of csub, taken in turns."""
    path = Path(lab.environment("alice")["HOME"]) / "bench.sh"
    path.write_text(script)
    path.chmod(0o644)
    environment = {"COLLOC_CONF": str(lab.root / site / "site.toml")}
    plain = ["sbatch", *(word for word in arguments if word != HINT), path.name]
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS + 2):
        for argv, found in zip((plain, ["csub", *arguments, path.name]), times, strict=True):
            began = time.perf_counter()
            lab.run_as("alice", argv, env=environment, check=True)
            if number >= 2:
                found.append((time.perf_counter() - began) * 1000)
    lab.run(["scancel", "-u", "alice"])
    return times


if __name__ == "__main__":
    sys.exit(main())
