# SPDX-License-Identifier: Apache-2.0
"""Ratios side by side in one run: `python -m tests.bench` (`make bench`). Absolute times are this machine's alone.

csub and plain sbatch in turns, with what a large site has: the history of 1,000,000 jobs of 1,000 users, and homes on
a file system that takes 5 ms for each operation.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_colloc.core.model import Evidence
from slurm_colloc.estimate.snapshot import snapshot_path, write_snapshot
from tests.cluster.lab import Lab
from tests.cluster.site import MODEL, write_site
from tests.fakes import build_preload

CHECKOUT = Path(__file__).resolve().parents[1]
ROUNDS = 60
USERS, JOBS_OF_A_USER = 1000, 1000
HOME_MS = "5"
GPU_JOB = "#!/bin/bash\n#SBATCH --gres=gpu:1 -t 5 -H\nsleep 1\n"
CPU_JOB = "#!/bin/bash\n#SBATCH -t 5 -H\nsleep 1\n"
HINT = "--gpu-footprint=mem=4G,sm=12"


class Case(NamedTuple):
    """What is compared with plain sbatch of the same script."""

    name: str
    script: str
    arguments: list[str]
    site: str


CASES = (
    Case("no GPU asked: left alone", CPU_JOB, [], "site"),
    Case("hint: a slice, script unchanged", GPU_JOB, [HINT], "site"),
    Case("history: a slice, script unchanged", GPU_JOB, [], "site"),
    Case("hint: a share, script rendered", GPU_JOB, [HINT, "-p", "gpu"], "site"),
    Case("history: a share, script rendered", GPU_JOB, ["-p", "gpu"], "site"),
    Case("user's own site: sampler added", GPU_JOB, [], "own"),
    Case("user's own site, hint: a slice, sampler added", GPU_JOB, [HINT], "own"),
)


class Timed(NamedTuple):
    """One call: wall time, peak memory of it and what it started, and how many operations under HOME it took."""

    wall_ms: float
    peak_rss_mib: float
    home_operations: int


def main() -> int:
    """Bring a cluster up, measure, print, take it down."""
    with Lab.create() as lab:
        lab.install(CHECKOUT)
        slowfs = build_preload("slowfs", lab.root / "opt")
        shared = write_site(lab, "site")
        # As the ingest of each hour does: no submission renders a template.
        lab.run(["colloc", "ingest", "--since", "1h"], env={"COLLOC_CONF": str(shared / "site.toml")}, check=True)
        own = write_site(lab, "own", agent=False)
        # A user alone has everything at home.
        text = (own / "site.toml").read_text().split("[paths]")[0]
        config = lab.users["alice"].home / ".config/slurm_colloc"
        lab.run_as("alice", ["mkdir", "-p", config], check=True)
        (config / "site.toml").write_text(text)
        (config / "site.toml").chmod(0o644)
        fill_history(lab)
        print(
            f"csub against plain sbatch, {ROUNDS} pairs each, one after the other; home takes {HOME_MS} ms an operation"
        )
        columns = "".join(f"{name:>8}" for name in ("sbatch", "csub", "added", "p95", "ratio", "starts", "MiB", "home"))
        print(f"{'wall time in ms':<48}{columns}")
        for case in CASES:
            print(f"{case.name:<48}{row(*compare(lab, case, slowfs))}", flush=True)
    return 0


def fill_history(lab: Lab) -> None:
    """Write what a year of a large site leaves: a snapshot for each user, alice's with the runs of this script."""
    folder = lab.root / "site"
    (folder / "history").mkdir(exist_ok=True)
    (folder / "history").chmod(0o711)
    signatures = [plan(lab, ["-p", "gpu"]), plan(lab, [])]
    alice = lab.users["alice"].uid
    began = time.monotonic()
    for number in range(USERS):
        uid = alice if number == 0 else 200_000 + number
        runs = [past_run(number * JOBS_OF_A_USER + job, f"{job % 50:032x}") for job in range(JOBS_OF_A_USER)]
        if uid == alice:
            runs[-40:] = [past_run(job, signatures[job % 2]) for job in range(40)]
        write_snapshot(snapshot_path(str(folder), uid), runs, uid)
    took_s = time.monotonic() - began
    print(f"history of {USERS * JOBS_OF_A_USER:,} jobs of {USERS:,} users written in {took_s:.0f} s")


def plan(lab: Lab, arguments: Sequence[str]) -> str:
    """Return the signature of the script as csub has it."""
    script = lab.users["alice"].home / "bench.sh"
    script.write_text(GPU_JOB)
    script.chmod(0o644)
    environment = {"COLLOC_CONF": str(lab.root / "site" / "site.toml")}
    argv = ["csub", *arguments, "--dry-run", "--format=json", script.name]
    shown = json.loads(lab.run_as("alice", argv, env=environment, check=True).stdout)
    signature: str = shown["request"]["signature"]
    return signature


def past_run(number: int, signature: str) -> Evidence:
    return Evidence(
        str(number),
        signature,
        "COMPLETED",
        "exclusive",
        MODEL,
        4000,
        8.0,
        11.0,
        False,
        100,
        1000.0,
        float(number),
        60.0,
    )


def compare(lab: Lab, case: Case, slowfs: Path) -> tuple[list[Timed], list[Timed], list[Timed]]:
    """Return plain sbatch's and csub's calls and bare starts of csub's interpreter, taken in turns."""
    home = lab.users["alice"].home
    (home / "bench.sh").write_text(case.script)
    log = lab.root / "tmp" / "operations"
    environment = lab.environment("alice") | {
        "LD_PRELOAD": f"{slowfs} {lab.names.get('LD_PRELOAD', '')}",
        # The script's own folder is no home: sbatch, too, must read it.
        "SLOWFS_UNDER": f"{home}/.",
        "SLOWFS_MS": HOME_MS,
        "SLOWFS_LOG": str(log),
    }
    if case.site != "own":
        environment["COLLOC_CONF"] = str(lab.root / case.site / "site.toml")
    plain = ["sbatch", *(word for word in case.arguments if word != HINT), "bench.sh"]
    bare = [str(lab.root / "opt/bin/python3"), "-I", "-c", "pass"]
    found: tuple[list[Timed], list[Timed], list[Timed]] = ([], [], [])
    for number in range(ROUNDS + 3):
        for argv, calls in zip((plain, ["csub", *case.arguments, "bench.sh"], bare), found, strict=True):
            timed = call(lab.command(argv, "alice"), home, environment, log)
            if number >= 3:
                calls.append(timed)
    lab.run(["scancel", "-u", "alice"])
    return found


def call(argv: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> Timed:
    """Run one command to its end."""
    log.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as out:
        began = time.perf_counter()
        pid = os.posix_spawn(
            "/usr/bin/env",
            ["env", "-C", str(folder), *argv],
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, out.fileno(), 2)],
        )
        _, status, usage = os.wait4(pid, 0)
        wall_ms = (time.perf_counter() - began) * 1000
        if status:
            out.seek(0)
            raise SystemExit(f"{argv}: {out.read().decode()}")
    operations = len(log.read_text().splitlines()) if log.exists() else 0
    return Timed(wall_ms, usage.ru_maxrss / 1024, operations)


def row(plain: Sequence[Timed], csub: Sequence[Timed], bare: Sequence[Timed]) -> str:
    """Return medians of both, of the pairwise difference with its 95th percentile, of the ratios; memory, operations.

    The second ratio is of what csub adds to bare starts of its interpreter.
    """
    pairs = [(before.wall_ms, after.wall_ms) for before, after in zip(plain, csub, strict=True)]
    added = [after - before for before, after in pairs]
    values = [statistics.median(before for before, _ in pairs), statistics.median(after for _, after in pairs)]
    values += [statistics.median(added), statistics.quantiles(added, n=20)[-1]]
    ratio = statistics.median(after / before for before, after in pairs)
    starts = statistics.median(more / start.wall_ms for more, start in zip(added, bare, strict=True))
    peak = max(timed.peak_rss_mib for timed in csub)
    operations = max(timed.home_operations for timed in csub)
    return "".join(f"{value:8.1f}" for value in values) + f"{ratio:8.1f}{starts:8.1f}{peak:8.0f}{operations:8d}"


if __name__ == "__main__":
    sys.exit(main())
