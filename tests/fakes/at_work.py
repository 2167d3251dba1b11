# SPDX-License-Identifier: Apache-2.0
"""Programs that read sacct, each run as its users run it: its environment, the sacct that it asks, time and memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from slurm_colloc.sources.sacct_client import EXPORT
from tests.fakes import sacct_rows
from tests.fakes.sacct_rows import DAY_S, GPU_NODES, SITE, Asked, Made, Truth

CORES = 2
CHECKOUT = Path(__file__).resolve().parents[2]
OUR_ROWS = Asked(EXPORT, "|", terminated=False, header=False, epoch=True)
# Where sacct is asked, $BENCH_ASK is where the arguments go; later $BENCH_TEXT is what it prints. slurm-usage asks day
# by day, "sacct -a -S DAY", and takes only what began on that day.
FAKES = {
    "sacct": """[ "$1" = --helpformat ] && exec echo JobID JobIDRaw User State Elapsed AllocTRES AdminComment
if [ -n "$BENCH_ASK" ]; then
    printf '%s\\n' "$SLURM_TIME_FORMAT" "$@" > "$BENCH_ASK.$$" && mv "$BENCH_ASK.$$" "$BENCH_ASK"
    exit
fi
[ "$2" = -S ] && exec cat "$BENCH_TEXT.${3%T*}"
exec cat "$BENCH_TEXT"
""",
    "scontrol": "echo PartitionName=gpu\necho MaxTime=2-00:00:00\n",
    "sinfo": f"""case "$*" in *%c*) what=64 ;; *) what=gpu:8 ;; esac
for kind in c g m s; do seq -f "$kind%03g,$what" {GPU_NODES}; done
""",
}


class Program(NamedTuple):
    """A program: what sh runs, what that computes, and which number of it can be held against the truth."""

    name: str
    package: str
    command: str
    computes: str
    found: Callable[[str, Path], float | None]
    of: Callable[[Truth], float]


class Timed(NamedTuple):
    """One run of a process and all it started; ``why`` is empty where it finished."""

    wall_s: float
    peak_mib: float
    output: str
    why: str


class Limits(NamedTuple):
    """What a run may take."""

    wall_s: int
    memory_gib: int


def prepare(root: Path) -> None:
    """Write what programs find on their PATH, and the site's file."""
    (root / "fakes").mkdir()
    (root / "state").mkdir()
    for name, script in FAKES.items():
        path = root / "fakes" / name
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o755)
    (root / "site.toml").write_text(f'{SITE}[paths]\nstate = "{root}/state"\n')


class Texts:
    """The rows of one size in each of the forms that programs ask for, each made once."""

    def __init__(self, root: Path, size: int) -> None:
        self._root, self._size, self._window = root, size, sacct_rows.window(time.time())
        self._folder = root / f"{size}"
        self._folder.mkdir()
        self.truth = sacct_rows.truth(self._jobs(), *self._window)
        self._rows = self._folder / "rows"
        self._write(self._rows, OUR_ROWS, by_day=False)

    def _jobs(self) -> Iterator[Made]:
        return sacct_rows.jobs(self._size, *self._window)

    def command(self, program: Program, binaries: Path, work: Path) -> str:
        """Return what sh runs."""
        since_s, until_s = self._window
        return program.command.format(
            python=sys.executable,
            bin=binaries,
            root=self._root,
            work=work,
            rows=self._rows,
            since_s=since_s,
            until_s=until_s,
            since=stamp(since_s),
            until=stamp(until_s),
            days=(int(time.time()) - since_s) // DAY_S,
        )

    def of(self, program: Program, binaries: Path) -> Path:
        """Return what sacct prints to ``program``, which is first asked what it wants; days have their own files."""
        path = self._folder / program.name
        if not program.package:
            return self._rows
        if not path.exists():
            ask, work = self._folder / "asked", self._folder / "empty"
            work.mkdir()
            run(self.command(program, binaries, work), self._root, work, Limits(60, 0), BENCH_ASK=str(ask))
            time_format, *arguments = ask.read_text().split("\n")[:-1]
            self._write(path, sacct_rows.parse_asked(time_format, arguments), by_day=arguments[1] == "-S")
            shutil.rmtree(work)
        return path

    def _write(self, path: Path, asked: Asked, *, by_day: bool) -> None:
        days = range(self._window[0], int(time.time()) + DAY_S, DAY_S) if by_day else ()
        parts = {day_s: path.with_name(f"{path.name}.{stamp(day_s)[:10]}").open("w") for day_s in days}
        with path.open("w") as whole:
            whole.write(sacct_rows.header(asked))
            for job, row in sacct_rows.rows(self._jobs(), asked):
                began_s = job.submit_s if job.start_s is None else job.start_s
                if not by_day:
                    whole.write(row)
                elif part := parts.get(began_s // DAY_S * DAY_S):
                    part.write(row)
        for part in parts.values():
            part.close()

    def sacct_s(self, program: Program) -> float:
        """Return how long the fake takes to print all that it prints to a program; 0 where none is asked."""
        if not program.package:
            return 0.0
        began = time.perf_counter()
        subprocess.run(f"cat '{self._folder}/{program.name}'* | cat > /dev/null", shell=True, check=True)
        return time.perf_counter() - began

    def remove(self) -> None:
        """Remove the texts."""
        shutil.rmtree(self._folder)


def environment(package: str) -> Path:
    """Return the folder of a package's programs, in a virtual environment of its own; nothing for no package."""
    if not package:
        return Path()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slurm_colloc"
    folder = cache / f"bench-{package.replace('==', '-')}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", package], check=True, capture_output=True)
        (folder / "complete").touch()
    return folder / "bin"


def run(command: str, root: Path, work: Path, limits: Limits, **more: str) -> Timed:
    """Run a command by sh in the folder ``work``, on CORES cores, to its end, or to its limits (0 GiB: none).

    Peak memory is that of the largest process, and no less than the caller's own when it starts another.
    """
    known = {
        "PATH": f"{root}/fakes:/usr/bin:/bin",
        "HOME": str(work),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONPATH": str(CHECKOUT),
        "COLLOC_CONF": f"{root}/site.toml",
        **more,
    }
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:CORES]))
    argv = [
        "taskset",
        "--cpu-list",
        cores,
        "prlimit",
        f"--as={limits.memory_gib << 30 or 'unlimited'}",
        "timeout",
        "--kill-after=5",
    ]
    argv += [str(limits.wall_s), "env", "-C", str(work), "sh", "-c", command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, errors.fileno(), 2)]
        began = time.perf_counter()
        pid = os.posix_spawnp(argv[0], argv, known, file_actions=actions)
        _, status, usage = os.wait4(pid, 0)
        wall_s = time.perf_counter() - began
        out.seek(0)
        errors.seek(0)
        output, said = (file.read().decode(errors="replace") for file in (out, errors))
    code = os.waitstatus_to_exitcode(status)
    why = f"not finished in {limits.wall_s} s" if code in (124, 137) else f"exit {code}: {last_line(said or output)}"
    return Timed(wall_s, usage.ru_maxrss / 1024, output, why if code else "")


def last_line(text: str) -> str:
    """Return the last line that says something, cut to a screen's width."""
    return text.strip().rpartition("\n")[2][:100]


def number_after(pattern: str) -> Callable[[str, Path], float | None]:
    """Return a reader of the number that follows ``pattern`` in a program's output."""

    def found(output: str, work: Path) -> float | None:
        match = re.search(rf"{pattern}\D*([\d,]+)", output)
        return float(match[1].replace(",", "")) if match else None

    return found


def stamp(at_s: int) -> str:
    """Return a time in UTC as sacct takes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))
