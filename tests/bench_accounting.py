# SPDX-License-Identifier: Apache-2.0
"""What accounting costs: `python -m tests.bench_accounting` (part of `make bench`). Absolute times are this machine's.

First side by side, in turns, over the same sacct rows: a plain script, `colloc` and four programs from the package
index, each in an environment of its own under the user's cache. A fake sacct prints to each of them the columns, and
the forms, that it asks for; the text is ready beforehand. Then samples: a report over a store of flushed days.
"""

from __future__ import annotations

import argparse
import json
import math
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Process, SimpleQueue
from pathlib import Path
from typing import Any, NamedTuple

from slurm_colloc.sources.sacct_client import EXPORT
from tests.fakes.at_work import (
    CORES,
    OUR_ROWS,
    Limits,
    Program,
    Texts,
    Timed,
    environment,
    last_line,
    number_after,
    prepare,
    run,
    stamp,
)
from tests.fakes.sacct_rows import WINDOW_DAYS, Truth, rows

COLLOC = "{python} -m slurm_colloc.cli.colloc"
# What an analyst runs on rows that a site exported. Read by sh.
OF_TEXT = f" --sacct-file {{rows}} --fields {','.join(EXPORT)}"
OURS = COLLOC + " report" + OF_TEXT + " --since {since} --until {until} --by user --format json"
OVER_SAMPLES = COLLOC + " report --store {store} --since {since} --until {until} --by user --format json"
# The least that adds up GPU-hours by user: no checks, no equivalents, no suspensions, no shards.
PLAIN = f"""
import json, sys
path, since, until = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hours = {{}}
for row in open(path):
    fields = row.split("|")
    start, end = fields[{EXPORT.index("Start")}], fields[{EXPORT.index("End")}]
    tres, user = fields[{EXPORT.index("AllocTRES")}], fields[{EXPORT.index("User")}]
    if "gres/gpu" not in tres or not start.isdigit():
        continue
    seconds = min(until if end == "Unknown" else int(end), until) - max(int(start), since)
    if seconds <= 0:
        continue
    _, total, rest = tres.partition("gres/gpu=")
    if total:
        gpus = int(rest.split(",", 1)[0])
    else:
        gpus = sum(int(item.split("=")[1]) for item in tres.split(",") if item.startswith("gres/gpu:"))
    hours[user] = hours.get(user, 0.0) + gpus * seconds / 3600
json.dump(hours, sys.stdout)
"""
SHIELD = """violation-logs-path: {root}
email-files-path: {root}
sender: a@example.org
reply-to: a@example.org
email-domain-name: example.org
"""
SIZES, ROUNDS, SAMPLES = (10_000, 100_000, 1_000_000), 3, 10_000_000
# Whoever takes long is run once, and not at all where a smaller size says that it would go beyond the limits.
LONG_S, LIMITS, SAMPLES_LIMITS = 30.0, Limits(120, 6), Limits(900, 16)
SAMPLES_BEGIN_S = 1_767_225_600


class Measured(NamedTuple):
    """The rounds of one program at one size."""

    rounds: list[Timed]
    found: float | None = None
    sacct_s: float = 0.0
    why: str = ""

    @property
    def wall_s(self) -> float:
        """Return the median."""
        return statistics.median(timed.wall_s for timed in self.rounds)

    @property
    def peak_mib(self) -> float:
        """Return the largest."""
        return max(timed.peak_mib for timed in self.rounds)


def _plain_sum(output: str, work: Path) -> float:
    return math.fsum(json.loads(output).values())


def _allocated(output: str, work: Path) -> float:
    return float(json.loads(output)["total"]["allocated_gpu_hours"])


def _in_database(output: str, work: Path) -> float:
    with sqlite3.connect(work / "jobs.db") as database:
        return float(database.execute("SELECT sum(NGpus * Elapsed) / 3600 FROM slurm").fetchone()[0])


def _table_rows(output: str, work: Path) -> float:
    with (work / "table").open() as table:
        return sum(1 for _ in table) - 1


def _device_hours(truth: Truth) -> float:
    return truth.device_hours


PLAIN_SUM = Program(
    "plain split-and-sum",
    "",
    "{python} -I {root}/plain.py {rows} {since_s} {until_s}",
    "GPU-hours by user",
    _plain_sum,
    _device_hours,
)
REPORT = Program("colloc", "", OURS, "equivalents by user", _allocated, lambda truth: truth.gpu_hours)
# The cheapest of its reports that has GPU-hours.
SHIELD_REPORT = Program(
    "job-defense-shield",
    "job-defense-shield==1.3.4",
    "{bin}/job_defense_shield --config-file {root}/shield.yaml -S {since} -E {until} --strict-start --usage-overview",
    "GPU-hours by cluster",
    number_after(r"\n *bench +\d+ +\d+ \(\d+%\)"),
    _device_hours,
)
PROGRAMS = (
    PLAIN_SUM,
    REPORT,
    SHIELD_REPORT,
    Program(
        "reportseff",
        "reportseff==2.10.3",
        "{bin}/reportseff --since {since} --until {until} --extra-args=-X --parsable"
        " --format JobID,User,State,Elapsed,AllocTRES > {work}/table",
        "a table of rows",
        _table_rows,
        lambda truth: truth.rows,
    ),
    Program(
        "slurm2sql",
        "slurm2sql==0.9.9",
        "{bin}/slurm2sql {work}/jobs.db -a -X -S {since} -E {until}",
        "GPU-hours by SQL afterwards",
        _in_database,
        _device_hours,
    ),
    Program(
        "slurm-usage",
        "slurm-usage==3.1.0",
        "{bin}/slurm-usage collect --days {days} --data-dir {work}/data",
        "GPU-hours by user",
        number_after("Total GPU Hours"),
        _device_hours,
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench_accounting")
    parser.add_argument("--only", choices=("rows", "samples"))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of jobs, by comma")
    parser.add_argument("--programs", default=",".join(program.name for program in PROGRAMS), help="by comma")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        root = Path(folder)
        prepare(root)
        (root / "plain.py").write_text(PLAIN)
        (root / "shield.yaml").write_text(SHIELD.format(root=root))
        if asked.only != "samples":
            programs = [program for program in PROGRAMS if program.name in asked.programs.split(",")]
            compare(root, programs, sorted(map(int, asked.sizes.split(","))), asked.rounds)
        if asked.only != "rows":
            over_samples(root, asked.samples)
    return 0


def compare(root: Path, programs: Sequence[Program], sizes: Sequence[int], rounds: int) -> None:
    """Run every program at every size, and print what each took and found."""
    print(
        f"{WINDOW_DAYS} days of sacct -X rows, {rounds} rounds in turns on {CORES} cores; "
        f"times hold those of the fake sacct; what takes {LONG_S:.0f} s is run once"
    )
    done: dict[str, dict[int, Measured]] = {program.name: {} for program in programs}
    for size in sizes:
        texts = Texts(root, size)
        measured = {program.name: _expected(program, size, done[program.name]) for program in programs}
        for number in range(rounds):
            for program in programs:
                so_far = measured[program.name]
                if not so_far.why and not (number and so_far.wall_s > LONG_S):
                    measured[program.name] = one_round(root, program, texts, so_far)
        print(f"\n{size:,} jobs: {texts.truth.device_hours:,.1f} GPU-hours, {texts.truth.gpu_hours:,.1f} equivalents")
        print(
            f"{'':<20}{'median s':>9}{'spread s':>14}{'sacct s':>8}{'MiB':>6}{'x plain':>9}  computes: found (of truth)"
        )
        for program in programs:
            print(_line(program, measured[program.name], measured.get(PLAIN_SUM.name), texts.truth), flush=True)
            if measured[program.name].rounds:
                done[program.name][size] = measured[program.name]
        texts.remove()
    _against_targets(done)


def _expected(program: Program, size: int, done: Mapping[int, Measured]) -> Measured:
    """Return no rounds yet, and the reason where none should follow."""
    if program is not REPORT and done:
        smaller, before = max(done.items())
        wall_s, memory_gib = (value * size / smaller for value in (before.wall_s, before.peak_mib / 1024))
        if wall_s > LIMITS.wall_s or memory_gib > LIMITS.memory_gib:
            return Measured([], why=f"would take {wall_s:.0f} s and {memory_gib:.1f} GiB, as {smaller:,} jobs tell")
    return Measured([])


def one_round(root: Path, program: Program, texts: Texts, so_far: Measured) -> Measured:
    """Return ``so_far`` and one more round, or the reason why there is none."""
    try:
        binaries = environment(program.package)
        text = texts.of(program, binaries)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        return Measured([], why=f"cannot be installed, or does not ask sacct: {error}")
    with tempfile.TemporaryDirectory(dir=root) as work:
        folder = Path(work)
        timed = run(texts.command(program, binaries, folder), root, folder, LIMITS, BENCH_TEXT=str(text))
        found = None if timed.why else program.found(timed.output, folder)
    if found is None:
        return Measured([], why=timed.why or f"no result: {last_line(timed.output)}")
    if program is REPORT:
        assert math.isclose(found, texts.truth.gpu_hours, rel_tol=1e-9), (found, texts.truth)
    sacct_s = so_far.sacct_s or texts.sacct_s(program)
    return Measured([*so_far.rounds, timed._replace(output="")], found, sacct_s)


def _line(program: Program, measured: Measured, plain: Measured | None, truth: Truth) -> str:
    if not measured.rounds or measured.found is None:
        return f"{program.name:<20}not finished: {measured.why}"
    walls = [timed.wall_s for timed in measured.rounds]
    ratio = f"{_ratio(measured, plain):9.1f}" if plain and plain.rounds else " " * 9
    return (
        f"{program.name:<20}{measured.wall_s:9.2f}{f'{min(walls):.2f}-{max(walls):.2f}':>14}{measured.sacct_s:8.2f}"
        f"{measured.peak_mib:6.0f}{ratio}  {program.computes}: {measured.found:,.1f} "
        f"({100 * measured.found / program.of(truth):.2f} %)"
    )


def _ratio(measured: Measured, other: Measured) -> float:
    """Return the median of the ratios of runs that came after each other."""
    pairs = zip(measured.rounds, other.rounds, strict=False)
    return statistics.median(one.wall_s / two.wall_s for one, two in pairs)


def _against_targets(done: Mapping[str, Mapping[int, Measured]]) -> None:
    """Print the ratios that have a target, at the largest size that both have, and how the cost grows."""
    ours = done.get(REPORT.name, {})
    if not ours:
        return
    print()
    for program, text in (
        (PLAIN_SUM, "colloc takes {0:.2f} times the plain script's time (target 1.5)"),
        (SHIELD_REPORT, "colloc is {1:.1f} times faster than job-defense-shield (target 10)"),
    ):
        if both := sorted(ours.keys() & done.get(program.name, {}).keys()):
            ratio = _ratio(ours[both[-1]], done[program.name][both[-1]])
            print(f"{both[-1]:,} jobs: " + text.format(ratio, 1 / ratio))
    sizes = sorted(ours)
    print(f"{sizes[-1]:,} jobs: colloc's peak is {ours[sizes[-1]].peak_mib * 1.048576:.0f} MB (target 300)")
    if len(sizes) > 1:
        walls = [ours[size].wall_s for size in sizes]
        each_s, start_s = statistics.linear_regression(sizes, walls)
        exponent = math.log(walls[-1] / walls[-2]) / math.log(sizes[-1] / sizes[-2])
        print(
            f"linear: {start_s:.2f} s + {1e6 * each_s:.2f} s for a million jobs; "
            f"exponent from {sizes[-2]:,} to {sizes[-1]:,} jobs {exponent:.2f}"
        )


def over_samples(root: Path, samples: int) -> None:
    """Report over a store of flushed days, and print what that took."""
    began = time.perf_counter()
    written = _apart(root, samples)
    print(
        f"\n{written['samples']:,} samples of 1,000 GPUs, {written['size_bytes'] / 1e9:.2f} GB flushed by day, "
        f"written in {time.perf_counter() - began:.0f} s",
        flush=True,
    )
    known = {"python": sys.executable, "store": f"{root}/state/store", "rows": f"{root}/sampled"}
    known |= {"since": stamp(SAMPLES_BEGIN_S), "until": stamp(written["until_s"])}
    taken_in = run((COLLOC + " ingest --store {store}" + OF_TEXT).format_map(known), root, root, LIMITS)
    assert not taken_in.why, taken_in
    timed = run(OVER_SAMPLES.format_map(known), root, root, SAMPLES_LIMITS)
    scale = 1e8 / written["samples"]
    print(
        f"colloc report --by user: {timed.wall_s:.1f} s, {timed.peak_mib * 1.048576:.0f} MB at peak; for 100 million, "
        f"if linear, {timed.wall_s * scale:.0f} s (targets: 60 s, 2000 MB, {CORES} cores)"
    )
    if timed.why:
        print(f"not finished: {timed.why}")
        return
    total = json.loads(timed.output)["total"]
    for name in ("allocated_gpu_hours", "sm_used_gpu_hours"):
        assert math.isclose(total[name], written[name], rel_tol=1e-9), (name, total[name], written[name])
    print(f"{total['jobs']:,} jobs, GPU-hours as written: {total['sm_used_gpu_hours']:,.1f} SM-active of "
          f"{total['allocated_gpu_hours']:,.1f}")  # fmt: skip


def _apart(root: Path, samples: int) -> dict[str, Any]:
    """Write the store in a process of its own: the memory that it takes would count for all that start after it."""
    answer: SimpleQueue[dict[str, Any]] = SimpleQueue()
    writer = Process(target=_write_samples, args=(root, samples, answer))
    writer.start()
    writer.join()
    assert writer.exitcode == 0
    return answer.get()


def _write_samples(root: Path, samples: int, answer: SimpleQueue[dict[str, Any]]) -> None:
    from tests.fakes import day_files

    store = root / "state" / "store"
    store.mkdir()
    written = day_files.write_days(store, samples, SAMPLES_BEGIN_S)
    runs = (job for job, _ in day_files.plan(SAMPLES_BEGIN_S, written.until_s) if job)
    with (root / "sampled").open("w") as text:
        text.writelines(row for _, row in rows(runs, OUR_ROWS))
    answer.put(written._asdict())


if __name__ == "__main__":
    sys.exit(main())
