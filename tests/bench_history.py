# SPDX-License-Identifier: Apache-2.0
"""What csub's look-up costs: `python -m tests.bench_history` (part of `make bench`). Times are this machine's alone.

One user's snapshot with so many rows, twenty to a signature, twenty signatures to a family; and 26 dropped files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import Evidence
from slurm_colloc.estimate.digest import digest
from slurm_colloc.estimate.lookup import look_up
from slurm_colloc.estimate.records import drop_evidence
from slurm_colloc.estimate.snapshot import snapshot_path, write_snapshot
from tests.unit.made import evidence, site

SIZES = (10_000, 100_000, 1_000_000)
RUNS, RELATIVES, LOOKS, STARTS = 20, 20, 101, 11
COMMAND = "command-0.1~~f"
# A csub that has read nothing yet: sqlite3 is imported, the file opened.
COLD = """
import sys, time
from slurm_colloc.estimate.lookup import look_up
from tests.bench_history import config
began = time.perf_counter()
look_up(config(sys.argv[1]), sys.argv[2], None, sys.argv[3])
print(time.perf_counter() - began)
"""


def config(state: str) -> SiteConfig:
    """Return a site whose state lies in this folder."""
    plain = site()
    return plain._replace(paths=plain.paths._replace(state=state))


def signature(family: int, value: int) -> str:
    """Return the signature of one configuration of a family."""
    return f"{digest(str(family).encode())}.{value}~abcd1234~ef567890"


def rows(count: int) -> Iterator[Evidence]:
    """Yield a user's runs."""
    for number in range(count):
        family, rest = divmod(number, RUNS * RELATIVES)
        yield evidence(str(number), 4000 + rest, signature=signature(family, rest // RUNS), ended_s=float(number))


def main() -> int:
    """Print for each size the median of a look-up, warm and in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = f"{folder}/home"
        data = f"{folder}/home/slurm_colloc"
        for number in range(26):
            drop_evidence(data, evidence(str(number), signature=signature(0, 0)))
        for size in SIZES:
            state = f"{folder}/{size}"
            path = snapshot_path(state, os.geteuid())
            Path(path).parent.mkdir(parents=True)
            began = time.perf_counter()
            write_snapshot(path, rows(size))
            took = time.perf_counter() - began
            print(f"{size:>9} rows: {os.path.getsize(path) / 1e6:.0f} MB, written in {took:.1f} s")
            middle = size // (RUNS * RELATIVES) // 2
            for name, wanted in (
                ("exact, and dropped files", signature(0, 0)),
                ("exact", signature(middle, 3)),
                ("relatives", signature(middle, 999)),
                ("nothing", signature(-1, 1)),
            ):
                report(name, state, wanted)
    return 0


def report(name: str, state: str, wanted: str) -> None:
    """Print what one kind of look-up costs."""
    warm = []
    found = look_up(config(state), wanted, None, COMMAND)
    for _ in range(LOOKS):
        began = time.perf_counter()
        look_up(config(state), wanted, None, COMMAND)
        warm.append(time.perf_counter() - began)
    argv = [sys.executable, "-c", COLD, state, wanted, COMMAND]
    cold = [float(subprocess.run(argv, check=True, capture_output=True).stdout) for _ in range(STARTS)]
    print(
        f"    {name}: {len(found.evidence)} runs, {len(found.relatives)} of relatives; "
        f"median {median(warm) * 1e3:.2f} ms, in a new process {median(cold) * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    sys.exit(main())
