# SPDX-License-Identifier: Apache-2.0
"""What a page costs: `python -m tests.bench_report` (part of `make bench`). Absolute times are this machine's.

A store with a year of 1,000 GPUs and slices, a million runs of 2,000 users; the accounting, which is measured by
bench_accounting, and then the page: all of its figures, and rendering; and what of these it takes to judge each run.
Peak memory is the process's, what accounting has left in it included.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import Process, SimpleQueue
from pathlib import Path

from tests.fakes import year
from tests.fakes.at_work import CORES, Limits, run, stamp

YEAR, BEGIN_S = year.Size(runs=1_000_000, users=2000, days=365, raw_days=3), 1_735_689_600
LIMITS = Limits(1800, 0)
# The command as it is, told where accounting ends; its peak is counted anew from there.
COMMAND = """
import json, sys, time
from slurm_colloc.cli import colloc
from slurm_colloc.cli.colloc import report

def peak_mib():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

known = {}
account = report.aggregate

def told(*arguments, **options):
    began = time.perf_counter()
    days = account(*arguments, **options)
    known.update(accounting_s=time.perf_counter() - began, accounting_mib=peak_mib())
    open("/proc/self/clear_refs", "w").write("5")
    known.update(accounting_cpu_s=time.process_time())
    known["ended"] = time.perf_counter(), time.process_time()
    return days

def judged(function):
    def call(*arguments):
        began = time.process_time()
        found = tuple(function(*arguments))
        known["judging_cpu_s"] = known.get("judging_cpu_s", 0) + time.process_time() - began
        return found
    return call

report.aggregate = told
report.fits_of, report.remedies = judged(report.fits_of), judged(report.remedies)
sys.argv = ["colloc", "report", *sys.argv[1:]]
try:
    colloc.main()
except SystemExit as ended:
    if ended.code:
        raise
wall_s, cpu_s = known.pop("ended")
known |= {"page_s": time.perf_counter() - wall_s, "page_cpu_s": time.process_time() - cpu_s}
print(json.dumps({**known, "page_mib": peak_mib()}))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench_report")
    for name, default in YEAR._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--forms", default="html,json,table", help="by comma")
    asked = parser.parse_args(arguments)
    size = year.Size(*(getattr(asked, name) for name in YEAR._fields))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        root = Path(folder)
        (root / "state" / "store").mkdir(parents=True)
        (root / "site.toml").write_text(year.SITE + f'[paths]\nstate = "{root}/state"\n')
        (root / "command.py").write_text(COMMAND)
        began = time.perf_counter()
        rows = apart(root, size)
        size_bytes = sum(path.stat().st_size for path in root.rglob("*.parquet"))
        print(
            f"{size.runs:,} runs of {size.users:,} users, {size.days} days, {rows:,} rows of samples, "
            f"{size_bytes / 1e6:.0f} MB, written in {time.perf_counter() - began:.0f} s; {CORES} cores",
            flush=True,
        )
        for form in asked.forms.split(","):
            print(_line(root, form, size.days), flush=True)
    return 0


def _line(root: Path, form: str, days: int) -> str:
    """Return what a report in this form took, after accounting and in all."""
    options = f"--store {root}/state/store --since {stamp(BEGIN_S)} --until {stamp(BEGIN_S + days * 86_400)}"
    charts = " --charts" if form == "json" else ""
    command = f"{sys.executable} {root}/command.py {options} --format {form}{charts} --output {root}/report.{form}"
    timed = run(command, root, root, LIMITS)
    if timed.why:
        return f"{form}: not finished: {timed.why}"
    found = json.loads(timed.output.splitlines()[-1])
    return (
        f"{form + charts:<14} accounting {found['accounting_s']:6.1f} s "
        f"({found['accounting_cpu_s']:.1f} s of CPU with its start), {found['accounting_mib'] * 1.048576:5.0f} MB; "
        f"then figures and rendering {found['page_s']:5.1f} s "
        f"({found['page_cpu_s']:.1f} s of CPU, {found['judging_cpu_s']:.1f} s of it to judge each run), "
        f"{found['page_mib'] * 1.048576:5.0f} MB "
        f"(targets: 10 s, 500 MB); in all {timed.wall_s:.1f} s, {(root / f'report.{form}').stat().st_size / 1e6:.1f} MB"
    )


def apart(root: Path, size: year.Size) -> int:
    """Write the store in a process of its own: the memory that it takes would count for all that start after it."""
    answer: SimpleQueue[int] = SimpleQueue()
    writer = Process(target=_write, args=(root, size, answer))
    writer.start()
    writer.join()
    assert writer.exitcode == 0
    return answer.get()


def _write(root: Path, size: year.Size, answer: SimpleQueue[int]) -> None:
    answer.put(year.write_year(root / "state" / "store", size, BEGIN_S))


if __name__ == "__main__":
    sys.exit(main())
