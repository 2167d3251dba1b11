# SPDX-License-Identifier: Apache-2.0
"""What csub adds to sbatch, in bare starts of its interpreter: `python -m tests.bench_start` (part of `make bench`).

By CPU time of all that a call starts, which a busy machine changes least; sbatch is a made-up one. In turns: a bare
start, sbatch, csub that has kept nothing, and csub once more. The user's history has 1,000,000 rows; the last columns
are of calls for which each operation under home takes 5 ms.
"""

from __future__ import annotations

import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from shutil import copytree, rmtree

from slurm_colloc.estimate.snapshot import snapshot_path, write_snapshot
from tests.bench_history import rows
from tests.fakes import build_preload
from tests.unit.made import evidence
from tests.unit.programs import executable
from tests.unit.shell import SITE

CHECKOUT = Path(__file__).resolve().parents[1]
ROUNDS, HISTORY, HOME_MS, SLOW_ROUNDS = 40, 1_000_000, 5, 3
# Source files of the project, and how many of them its train.py reaches.
FILES, REACHED, OF_A_PACKAGE = 300, 240, 15
GPU_JOB = "#!/bin/bash\n#SBATCH --gres=gpu:1 -t 5\npython train.py\n"
SCRIPTS = {"known.sh": GPU_JOB, "new.sh": f"{GPU_JOB}sleep 1\n", "cpu.sh": GPU_JOB.replace("--gres=gpu:1 ", "")}
# Which script is submitted, and by which policy of the site.
CASES = {
    "a piece": ("known.sh", "auto"),
    "a first run": ("new.sh", "auto"),
    "no GPU": ("cpu.sh", "auto"),
    "policy off": ("known.sh", "off"),
}
PATIENT = "[timeouts]\ndecide_s = 60.0\n[sharing]\nask_free = false"
LINES = (
    "    def {0}(self, {1}: int, {2}: float = 0.5) -> float:",
    '        """Return the {3} of the {4}."""',
    "        {5} = self.{6}({1}) * {2}  # the {7} comes first",
    "        if {5} > self.{8}:",
    '            print("{9} is large")',
    "        # {10} {11} {12}",
    '        return self.{13}["{14}"] + {5}',
    "",
)


def main() -> int:
    """Print a row for each case."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        place.fill_history()
        slowfs = build_preload("slowfs", place.folder)
        print(f"CPU time added to sbatch in bare starts, {rounds} rounds: median (quarter to three quarters)")
        columns = "".join(f"{name:>18}" for name in ("first", "second"))
        print(f"{'':<28}{columns}{'bare ms':>9}{'home first':>12}{'second':>8}{'wall ms':>9}")
        for where in ("empty", "project"):
            for name, (script, policy) in CASES.items():
                argv, environ = [str(place.csub), script], place.environment(policy)
                text = place.row(argv, place.folder / where, environ, rounds)
                slow = place.slow(argv, place.folder / where, environ, slowfs)
                print(f"{f'{name}, {where} folder':<28}{text}{slow}", flush=True)
    return 0


class Place:
    """An installed csub, its sites, and the two folders that are submitted from."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.python, self.csub, self.sbatch = (
            folder / "opt/bin/python3",
            folder / "opt/bin/csub",
            folder / "bin/sbatch",
        )
        venv.create(folder / "opt", symlinks=True)
        [packages] = folder.glob("opt/lib/python*/site-packages")
        for name in ("jinja2", "markupsafe", "ClusterShell"):
            (packages / name).symlink_to(Path(str(__import__(name).__file__)).parent)
        copytree(CHECKOUT / "slurm_colloc", packages / "slurm_colloc")
        copytree(CHECKOUT / "templates", packages / "slurm_colloc/_shipped/templates")
        # On a busy machine the time for reading would be over before all is read.
        reading = packages / "slurm_colloc/estimate/files.py"
        reading.write_text(reading.read_text().replace("_MOST_S = 0.1", "_MOST_S = 60"))
        compileall.compile_dir(packages, quiet=1)
        executable(self.csub, (CHECKOUT / "slurm_colloc/front/csub").read_text())
        (folder / "opt/bin/colloc").write_text(f"#!{self.python}\n")
        executable(self.sbatch, '#!/bin/sh\necho "Submitted batch job 4711"\n')
        # What Slurm would be asked is kept for a while, and is no start of csub's.
        site = SITE.replace("{order}", '"mig", "mps"').replace("{agent}", "true").replace("[sharing]", PATIENT)
        for policy in ("auto", "off"):
            text = site.replace('policy = "auto"', f'policy = "{policy}"')
            (folder / f"{policy}.toml").write_text(f'{text}[paths]\nstate = "{folder}"\n')
        write_project(folder / "project")
        for where in (folder / "empty", folder / "project"):
            where.mkdir(exist_ok=True)
            for name, script in SCRIPTS.items():
                (where / name).write_text(script)
        self.home.mkdir()

    def environment(self, policy: str) -> dict[str, str]:
        return {
            "PATH": f"{self.sbatch.parent}:/usr/bin:/bin",
            "HOME": str(self.home),
            "COLLOC_CONF": f"{self.folder}/{policy}.toml",
        }

    def fill_history(self) -> None:
        """Write the user's snapshot, with forty runs of the script whose need is known, in each folder."""
        known = [self.signature(where) for where in ("empty", "project")]
        path = snapshot_path(str(self.folder), os.geteuid())
        Path(path).parent.mkdir()
        runs = (evidence(f"9{number}", 4000, signature=signature) for signature in known for number in range(40))
        write_snapshot(path, chain(rows(HISTORY - 80), runs))

    def signature(self, where: str) -> str:
        """Return what the script is known by, where all was read in time that it may read."""
        found = "~x"
        while "~x" in found:
            argv = [str(self.csub), "--dry-run", "--format=json", "known.sh"]
            said = subprocess.check_output(argv, env=self.environment("auto"), cwd=self.folder / where)
            found = json.loads(said)["request"]["signature"]
        return found

    def forget(self) -> None:
        """Remove what csub keeps of submissions, as before the first."""
        rmtree(self.home / ".local", ignore_errors=True)

    def row(self, argv: Sequence[str], folder: Path, environ: Mapping[str, str], rounds: int) -> str:
        """Return what csub adds, at the first and the second submission, and what a bare start takes."""
        bare, first, second = list[float](), list[float](), list[float]()
        for number in range(rounds + 2):
            self.forget()
            start = cpu_ms([str(self.python), "-I", "-c", "pass"], folder, environ)
            plain = cpu_ms([str(self.sbatch), *argv[1:]], folder, environ)
            calls = [cpu_ms(argv, folder, environ) for _ in range(2)]
            if number >= 2:
                bare.append(start)
                first.append((calls[0] - plain) / start)
                second.append((calls[1] - plain) / start)
        return f"{spread(first):>18}{spread(second):>18}{statistics.median(bare):9.1f}"

    def slow(self, argv: Sequence[str], folder: Path, environ: Mapping[str, str], slowfs: Path) -> str:
        """Return how many operations under home both submissions take, and for how long the second is waited for."""
        log = self.folder / "operations"
        slowed = {"LD_PRELOAD": str(slowfs), "SLOWFS_UNDER": str(self.home), "SLOWFS_LOG": str(log)}
        counts, waited_ms = [0, 0], list[float]()
        for _ in range(SLOW_ROUNDS):
            self.forget()
            for number in range(2):
                log.unlink(missing_ok=True)
                began = time.perf_counter()
                cpu_ms(argv, folder, {**environ, **slowed, "SLOWFS_MS": str(HOME_MS)})
                waited_ms += [1000 * (time.perf_counter() - began)] * number
                counts[number] = len(log.read_text().splitlines()) if log.exists() else 0
        return f"{counts[0]:12d}{counts[1]:8d}{statistics.median(waited_ms):9.0f}"


def cpu_ms(argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> float:
    """Run a command to its end, and return the CPU time of it and of what it waited for."""
    process = subprocess.Popen(argv, cwd=folder, env=dict(environ), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    with process:
        if status:
            raise SystemExit(f"{argv}: {process.communicate()[1].decode()}")
    return 1000 * (usage.ru_utime + usage.ru_stime)


def spread(values: Sequence[float]) -> str:
    """Return the median and between which values the middle half lies."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.1f}-{high:.1f})"


def write_project(folder: Path) -> None:
    """Write a project of Python, of which train.py reaches the first so many modules by their imports."""
    random = Random(1)
    words = ["".join(random.choices("abcdefghilmnoprstu", k=random.randint(3, 12))) for _ in range(4000)]
    # What a module is called is no other word of any.
    names = [f"{words[number // OF_A_PACKAGE]}.{words[100 + number]}_mod" for number in range(FILES - 1)]
    for number, name in enumerate(names):
        path = folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Three others each, beginning with the first; the last ones are reached by none.
        imported = names[3 * number + 1 : 3 * number + 4] if 3 * number + 4 < REACHED else ()
        path.write_text("\n".join(module(random, words, imported)))
    (folder / "train.py").write_text("\n".join(module(random, words, names[:1])))


def module(random: Random, words: Sequence[str], imported: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a module of 3 KB."""
    yield f'"""Holds the {random.choice(words)}."""\n'
    for name in imported:
        yield f"from {name.rpartition('.')[0]} import {name.rpartition('.')[2]}"
    yield f"\n\nclass {random.choice(words).title()}:"
    own = random.choices(words[FILES + 100 :], k=40)
    for _ in range(10):
        yield "\n".join(LINES).format(*random.choices(own, k=15))


if __name__ == "__main__":
    sys.exit(main())
