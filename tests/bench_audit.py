# SPDX-License-Identifier: Apache-2.0
"""What a nightly audit costs: `python -m tests.bench_audit` (part of `make bench`). Absolute times are this machine's.

A store with a million runs of 500 users in 30 days, and the whole command over all of them, part by part. Beside the
wall's seconds stand those of the processor, because other programs may be at work here. Peak memory is the process's
during each part, what those before have left in it included.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench_report import BEGIN_S, apart
from tests.fakes import year
from tests.fakes.at_work import CORES, Limits, run, stamp

MONTH = year.Size(runs=1_000_000, users=500, days=30, minute_days=3)
LIMITS = Limits(1800, 0)
# The command as it is, told where each part of it begins and ends; its peak is counted anew from there.
COMMAND = """
import json, sys, time
from slurm_colloc.cli import colloc
from slurm_colloc.cli.colloc import audit

def peak_mib():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

parts = []

def told(name, name_of=None):
    function = getattr(audit, name)
    def call(*arguments, **options):
        open("/proc/self/clear_refs", "w").write("5")
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        answer = function(*arguments, **options)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        parts.append((name_of(*arguments) if name_of else name, wall_s, cpu_s, peak_mib()))
        return answer
    setattr(audit, name, call)

last = []
ask = audit.question
audit.question = lambda entry, *more: last.append(entry.name) or ask(entry, *more)
for name in ("sweep_to_file", "make_audited", "whole_usage"):
    told(name)
told("answer", lambda *_: last[-1])
sys.argv = ["colloc", "audit", "run", *sys.argv[1:]]
try:
    colloc.main()
except SystemExit as ended:
    if ended.code not in (0, 1, None):
        raise
print(json.dumps([parts, time.process_time()]))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure an audit and print what each of its parts took."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench_audit")
    for name, default in MONTH._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--kept", type=Path, help="a folder to keep the store in, and to find it there again")
    asked = parser.parse_args(arguments)
    size = year.Size(*(getattr(asked, name) for name in year.Size._fields))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        root = asked.kept or Path(folder)
        if not (root / "command.py").exists():
            (root / "state" / "store").mkdir(parents=True)
            (root / "site.toml").write_text(year.SITE + f'[paths]\nstate = "{root}/state"\n')
            apart(root, size)
        (root / "command.py").write_text(COMMAND)
        print(f"{size.runs:,} runs of {size.users:,} users, {size.days} days; {CORES} cores", flush=True)
        for line in _lines(root, size.days):
            print(line, flush=True)
    return 0


def _lines(root: Path, days: int) -> list[str]:
    options = f"--store {root}/state/store --since {stamp(BEGIN_S)} --until {stamp(BEGIN_S + days * 86_400)}"
    timed = run(f"{sys.executable} {root}/command.py {options} --format json", root, root, LIMITS)
    if timed.why:
        return [f"not finished: {timed.why}"]
    *said, figures = timed.output.splitlines()
    parts, cpu_s = json.loads(figures)
    (root / "findings.json").write_text("\n".join(said))
    whole = ("in all", timed.wall_s, cpu_s, timed.peak_mib)
    return [
        f"{name:<14} {wall_s:6.1f} s, {part_cpu_s:6.1f} s of a core, {mib * 1.048576:5.0f} MB"
        + (
            f"; {len(json.loads(''.join(said))['findings'])} findings (targets: 60 s, 500 MB)"
            if name == "in all"
            else ""
        )
        for name, wall_s, part_cpu_s, mib in (*parts, whole)
    ]


if __name__ == "__main__":
    sys.exit(main())
