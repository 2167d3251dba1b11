# SPDX-License-Identifier: Apache-2.0
"""What a nightly audit costs: `python -m tests.bench_audit` (part of `make bench`). Absolute times are this machine's.

The command of the timer (`colloc audit run --notify`) over a store with a million runs of 500 users in 30 days: every
rule, its mails to a program in place of the mail service, and how often it asked Slurm anything. Of the last two days
there are samples, one a minute, of the others facts. Beside the wall's seconds stand those of the processor, user and
system, because other programs may be at work here; memory is the process's peak so far. Exit status 1: a target is
missed, or a rule had nothing to judge.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from multiprocessing import Process
from pathlib import Path
from typing import Any, NamedTuple

from slurm_colloc.audit.rules import RULES
from slurm_colloc.core.audit_model import form_of
from slurm_colloc.store.samples import DAY
from tests.bench_report import BEGIN_S
from tests.fakes import audited_month, year
from tests.fakes.at_work import CORES, Limits, run

MONTH = year.Size(runs=1_000_000, users=500, days=30, raw_days=2)
TARGET_S, TARGET_MB = 60, 500
LIMITS = Limits(3600, 0)
# What a run of the audit could ask of Slurm.
SLURM = ("sacct", "squeue", "scontrol", "scancel", "sinfo", "sacctmgr")
NOTICES = """[notices]
mode = "users"
sender = "hpc@example.org"
address = "{user}@example.org"
admins = ["admin@example.org"]
workdays = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
"""
# The command as it is, at the end of the month, told where each part of it begins and ends.
COMMAND = """
import json, sys, time
from slurm_colloc.core import clock
from slurm_colloc.audit import timing
at_s, timing.WINDOW_DAYS = float(sys.argv.pop(1)), float(sys.argv.pop(1))
clock.now = lambda: at_s
from slurm_colloc.cli import colloc
from slurm_colloc.cli.colloc import audit

def peak_mib():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

parts = []

def told(name, name_of=None):
    function = getattr(audit, name)
    def call(*arguments, **options):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        answer = function(*arguments, **options)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        parts.append((name_of(*arguments) if name_of else name, wall_s, cpu_s, peak_mib()))
        return answer
    setattr(audit, name, call)

last = []
ask = audit.question
audit.question = lambda entry, *more: last.append(entry.form) or ask(entry, *more)
for name in ("aggregate", "make_audited", "whole_usage"):
    told(name)
told("answer", lambda *_: last[-1])
sys.argv = ["colloc", "audit", "run", "--notify", "--format", "json"]
try:
    colloc.main()
except SystemExit as ended:
    if ended.code not in (0, 1, None):
        raise
print(json.dumps([parts, time.process_time(), peak_mib()]))
"""


class Audited(NamedTuple):
    """What one run of the command took and came to; ``parts`` are (name, wall s, CPU s, peak MiB so far)."""

    parts: list[tuple[str, float, float, float]]
    wall_s: float
    cpu_s: float
    peak_mib: float
    said: dict[str, Any]
    mails: int
    asked: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure an audit, print what each of its parts took, and return whether it holds its targets."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench_audit")
    for name, default in MONTH._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--window-days", type=int, help="how many of its last days are looked at; else all")
    parser.add_argument("--kept", type=Path, help="a folder to keep the store in, and to find it there again")
    asked = parser.parse_args(arguments)
    size = year.Size(*(getattr(asked, name) for name in year.Size._fields))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        root = asked.kept or Path(folder)
        _prepare(root, size)
        print(
            f"{size.runs:,} runs of {size.users:,} users; {size.raw_days} of {size.days} days of samples, the "
            f"others facts; {asked.window_days or size.days} days are looked at; {CORES} cores, "
            f"load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        done = _audit(root, size, asked.window_days or size.days)
        if isinstance(done, str):
            print(done)
            return 1
        (root / "findings.json").write_text(json.dumps(done.said, indent=1))
        return _show(done)


def _prepare(root: Path, size: year.Size) -> None:
    if not (root / "state" / "store").exists():
        (root / "state" / "store").mkdir(parents=True)
        writer = Process(target=_write, args=(root, size))  # apart: its memory would count for all that start after it
        writer.start()
        writer.join()
        assert writer.exitcode == 0
    shutil.rmtree(root / "state" / "audit", ignore_errors=True)
    (root / "fakes").mkdir(exist_ok=True)
    (root / "asked").write_text("")
    for name in SLURM:
        (root / "fakes" / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {root}/asked\nexit 1\n')
        (root / "fakes" / name).chmod(0o755)
    (root / "mails").write_text("")
    (root / "fakes/sendmail").write_text(f"#!/bin/sh\ncat > /dev/null\necho mail >> {root}/mails\n")
    (root / "fakes/sendmail").chmod(0o755)
    (root / "command.py").write_text(COMMAND)


def _write(root: Path, size: year.Size) -> None:
    year.write_year(root / "state" / "store", size, BEGIN_S, audited_month.kind(size, BEGIN_S))


def _audit(root: Path, size: year.Size, window_days: int) -> Audited | str:
    """Return what the command took; in words why it did not finish."""
    (root / "site.toml").write_text(f'{audited_month.SITE}[paths]\nstate = "{root}/state"\n{NOTICES}')
    command = f"{sys.executable} {root}/command.py {BEGIN_S + size.days * DAY} {window_days}"
    timed = run(command, root, root, LIMITS)
    mails = len((root / "mails").read_text().splitlines())
    if timed.why:
        return f"not finished: {timed.why}"
    *said, figures = timed.output.splitlines()
    parts, cpu_s, peak_mib = json.loads(figures)
    asked = len((root / "asked").read_text().splitlines())
    return Audited(parts, timed.wall_s, cpu_s, peak_mib, json.loads("\n".join(said)), mails, asked)


def _show(done: Audited) -> int:
    """Print what it took and whether that holds; return the exit status."""
    found = Counter(form_of(str(one["rule"]), str(one["about"])) for one in done.said["findings"])
    judged = {rule: int(of["judged"]) for rule, of in done.said["rules"].items()}
    for name, wall_s, cpu_s, mib in done.parts:
        of = f"; {judged[name]:,} judged, {found[name]} findings" if name in judged else ""
        print(f"{name:<14} {wall_s:6.1f} s, {cpu_s:6.1f} s of a core, {mib * 1.048576:5.0f} MB{of}")
    peak_mb = done.peak_mib * 1.048576
    print(
        f"in all         {done.wall_s:6.1f} s, {done.cpu_s:6.1f} s of a core, {peak_mb:5.0f} MB; "
        f"{found.total()} findings, {done.mails} mails, Slurm was asked {done.asked} times; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    missed = [f"{done.wall_s:.1f} s of {TARGET_S} s"] * (done.wall_s > TARGET_S)
    missed += [f"{peak_mb:.0f} MB of {TARGET_MB} MB"] * (peak_mb > TARGET_MB)
    missed += [f"{code} judged nothing" for code in RULES if not judged.get(code)]
    print(
        f"missed: {', '.join(missed)}" if missed else f"targets hold: {TARGET_S} s, {TARGET_MB} MB, every rule judged"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
