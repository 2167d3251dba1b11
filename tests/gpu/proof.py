# SPDX-License-Identifier: Apache-2.0
"""A published trace of mixed trainings through a real Slurm on a real GPU: `python -m tests.gpu.proof FOLDER`.

The machine is that of tests/gpu/slurm.py, with one GPU or --gpus of them and with what `colloc` needs, PyTorch,
torchvision, timm, transformers and PIL; --packages names a folder with Slurm's .deb packages (tests/gpu/carry.sh). Each
call runs the arms of the rounds that are missing in FOLDER, which is of one number of GPUs, and fit its --minutes, and
adds to FOLDER: rates.csv (each program alone), rows.jsonl (a line for each job), cells.jsonl (a line for each arm of a
round) and kept.tgz (samples, and what the sbatch arms taught csub). --report prints the tables of what is there. Jobs
are a user's batch scripts, which name no footprint; site.toml is what `colloc site init` writes, prolog, epilog and
task prolog what `colloc site render` does.

- sbatch: under the policy "shadow", as in a center's first week. Slurm gets each script and its words unchanged.
- cold, warm: csub with an empty history, and with that of the sbatch arms. `colloc ingest` runs all the time.
- late: cold, and jobs that wait are given a piece once a sibling has run for ten seconds (Slurm 24.11 or 26.05).
- warm-all, warm-each: warm, in a partition where MPS serves the jobs of all users together, or each user's apart.
- packs: warm, and jobs of one program are one `csub --pack --array`, submitted when the last of them arrives.
- expert: the scripts by hand under one MPS daemon a GPU, as many as memory, cores and bound allow by what was
  measured of each alone; unbounded: by memory.

--dry runs sleeping programs on a made-up GPU of this machine's Slurm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from slurm_colloc.observe.journal import hours
from tests.gpu import proof_plan, proof_report, slurm
from tests.gpu.proof_machine import COLLOC, PERIOD_S, USERS, Machine, call, copy
from tests.gpu.proof_plan import BY_HAND, Cell, Planned

CSUB = [sys.executable, "-m", "slurm_colloc.cli.csub"]
_INGEST_EVERY_S, _QUIET_S = 6.0, 2.0
_SHOWN = re.compile(r"JobId=(\d+) .*? JobState=(\S+) .*? NumCPUs=(\d+) .*? StdOut=(\S+)")
_REPORTED = ("allocated_gpu_hours", "sm_used_gpu_hours", "util_used_gpu_hours", "coverage_pct", "energy_kwh")


class Job(NamedTuple):
    """A planned job with its script and the file of its output."""

    planned: Planned
    script: Path
    output: Path


class Shown(NamedTuple):
    """What slurmctld remembers of a job."""

    job_id: int
    state: str
    cpus: int


class Late(Exception):
    """A cell would not end in this call's time."""


class Run:
    """One arm of one round."""

    def __init__(self, machine: Machine, cell: Cell, planned: Sequence[Planned], until_s: float) -> None:
        """Make its folder, its site and its history."""
        self.machine, self.cell, self.until_s = machine, cell, until_s
        self.folder = machine.root / cell.name
        self.state, out = self.folder / "state", self.folder / "out"
        out.mkdir(parents=True)
        out.chmod(0o1777)
        self.rates = machine.rates(planned, until_s)
        self.jobs = [Job(one, machine.script(one, self.rates), out / f"{one.number}.out") for one in planned]
        if cell.arm in ("sbatch", *proof_plan.LEARNED):
            copy(machine.learned, self.state)
            shutil.rmtree(self.state / "journal")
        else:
            for name in ("store", "decisions"):
                (self.state / name).mkdir(parents=True, mode=0o700)
        (self.state / "decisions").chmod(0o1777)
        policy = "shadow" if cell.arm == "sbatch" else "auto"
        self.site = machine.site(cell.name, policy, cell.bound or 1.25, self.state, late=cell.arm == "late")
        self.become = [machine.become(cell, self.site, user) for user in USERS]
        self.pending, self.ids = Counter[str](), dict[int, int]()
        self.zero_s = 0.0

    def run(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Run it; return a row for each job, and one for the cell."""
        began_s = time.monotonic()
        self.ingest()
        self.zero_s = time.time()
        if self.cell.arm in BY_HAND:
            self.by_hand()
        else:
            with self.at_work():
                self.by_slurm()
        time.sleep(PERIOD_S * 2)
        shown = self.shown()
        rows = [self.row(job, shown) for job in self.jobs]
        last_s = max((row["ended_s"] for row in rows if row["ended_s"]), default=0.0)
        seen = (one for hour in hours(str(self.machine.journal)) for one in hour)
        did = {**self.cell._asdict(), "at": datetime.now(UTC).isoformat(), "gpu": self.machine.gpu_model}
        # Two jobs on one core's threads slow each other, whatever Slurm gave them.
        did["cpu0_siblings"] = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").read_text().strip()
        did |= {"pending": self.pending, **proof_report.activity(seen, self.zero_s, self.zero_s + last_s)}
        if self.cell.arm not in BY_HAND:
            self.ingest()
            since = datetime.fromtimestamp(self.zero_s, UTC).isoformat()
            said = json.loads(call([*COLLOC, "report", "--format=json", "--since", since], self.site))["total"]
            did |= {f"report_{name}": said[name] for name in _REPORTED}
        if self.cell.arm == "sbatch":
            copy(self.state, self.machine.learned)
        return rows, {**did, "took_s": time.monotonic() - began_s}

    def by_slurm(self) -> None:
        """Submit each job when it arrives, and wait until none is left."""
        own = {job.planned: job for job in self.jobs}
        for arrives_s, alike in proof_plan.submissions(list(own), packs=self.cell.arm == "packs"):
            self.sleep_until(self.zero_s + arrives_s)
            job, options = own[alike[0]], []
            if len(alike) > 1:
                options = ["--pack", "--array", ",".join(str(one.number) for one in alike)]
            output = job.output.with_name("%a.out") if options else job.output
            words = [] if job.planned.seed is None else [str(job.planned.seed)]
            argv = [*self.become[job.planned.user], *CSUB, *options, "-o", str(output), job.script.name, *words]
            done = subprocess.run(argv, cwd=job.script.parent, capture_output=True, text=True, check=False)
            said = f"{done.stdout.strip()} | {done.stderr.strip()}"
            print(f"{time.time() - self.zero_s:6.1f} {job.planned.name} {' '.join(options)} | {said}", flush=True)
            if done.stdout.strip():
                self.ids |= dict.fromkeys((one.number for one in alike), int(done.stdout.split()[-1]))
        quiet_s = time.monotonic()
        while time.monotonic() - quiet_s < _QUIET_S:
            if slurm.ask("squeue", "-h").strip():
                quiet_s = time.monotonic()
            self.sleep_until(time.time() + 0.3)

    def by_hand(self) -> None:
        """Start each job beside others as an expert would, who knows what each needs alone."""
        of = {job: proof_plan.need_of(self.rates[job.planned.command], job.planned.gpus) for job in self.jobs}
        waiting, running = list(self.jobs), dict[Job, tuple[subprocess.Popen[bytes], tuple[int, ...]]]()
        room = self.machine.gpu_mem_mib, self.machine.cores, self.cell.bound
        with self.machine.daemons(self.become[0]) as daemons:
            try:
                while waiting or running:
                    running = {job: one for job, one in running.items() if one[0].poll() is None}
                    for job in [one for one in waiting if self.zero_s + one.planned.arrives_s <= time.time()]:
                        there = [
                            [of[one] for one, on in running.items() if gpu in on[1]] for gpu in range(len(daemons))
                        ]
                        if gpus := proof_plan.gpus_for(of[job], there, *room):
                            waiting.remove(job)
                            running[job] = self.start(job, daemons, gpus), gpus
                    self.sleep_until(time.time() + 0.1)
            finally:
                for one, _ in running.values():
                    one.kill()

    def start(self, job: Job, daemons: Sequence[dict[str, str]], gpus: tuple[int, ...]) -> subprocess.Popen[bytes]:
        """Start a job's script by hand, under its GPU's daemon; on several GPUs without one."""
        own = daemons[gpus[0]] if len(gpus) == 1 else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
        argv = [*self.become[0], *(f"{name}={value}" for name, value in own.items()), "bash", job.script.name]
        argv += [] if job.planned.seed is None else [str(job.planned.seed)]
        with job.output.open("wb") as out:
            return subprocess.Popen(argv, cwd=job.script.parent, stdout=out, stderr=out)

    def sleep_until(self, at_s: float) -> None:
        """Sleep, unless this call's time is over first."""
        if time.monotonic() + at_s - time.time() > self.until_s:
            raise Late
        time.sleep(max(0.0, at_s - time.time()))

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Meanwhile ingest again and again, and count each second why jobs wait."""
        over = threading.Event()

        def ingest() -> None:
            while not over.wait(_INGEST_EVERY_S):
                self.ingest()

        def look() -> None:
            while not over.wait(1.0):
                reasons = slurm.ask("squeue", "-h", "-t", "PD", "-o", "%r").splitlines()
                # A job that begins again waits for that (BeginTime).
                self.pending.update(one for one in reasons if one not in ("None", "BeginTime"))

        threads = [threading.Thread(target=one) for one in (ingest, look)]
        for one in threads:
            one.start()
        try:
            yield
        finally:
            over.set()
            for one in threads:
                one.join()

    def ingest(self) -> None:
        """Take jobs and samples in, as the site's cron does."""
        call([*COLLOC, "ingest"], self.site)

    def shown(self) -> dict[str, list[Shown]]:
        """Return by file of output the jobs that slurmctld remembers, in their order."""
        found: dict[str, list[Shown]] = {}
        for line in slurm.ask("scontrol", "show", "job", "-d", "-o").splitlines():
            if match := _SHOWN.match(line):
                found.setdefault(match[4], []).append(Shown(int(match[1]), match[2], int(match[3])))
        return {output: sorted(runs) for output, runs in found.items()}

    def row(self, job: Job, shown: dict[str, list[Shown]]) -> dict[str, Any]:
        """Return the row of one job."""
        output = job.output.read_text(errors="replace") if job.output.exists() else ""
        said, runs = proof_report.ended(output), shown.get(str(job.output), [])
        job_id = self.ids.get(job.planned.number)
        decision = proof_report.decision(self.state / "decisions", str(job_id))
        found = {**self.cell._asdict(), **job.planned._asdict(), "job_id": job_id, "runs": max(1, len(runs))}
        found |= {name: said[name] - self.zero_s if said else None for name in ("began_s", "first_s", "ended_s")}
        found |= {"steps": said.get("steps"), "state": proof_report.state(said, output)}
        found |= {"cpus": runs[-1].cpus if runs else None, "states": [one.state for one in runs]}
        codes = [code for code, _ in decision.get("reasons", ())]
        found |= {"given": decision.get("given", ""), "rung": decision.get("rung", ""), "why": "; ".join(codes)}
        found["bound_s"] = decision["at_s"] - self.zero_s if "late-bound" in codes else None
        found["promised"] = proof_report.promised(decision)
        if found["state"] != "COMPLETED":
            print(self.cell.name, job.planned.name, found["state"], output[-1500:], flush=True)
        return found


def main() -> None:
    """Run what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packages", type=Path, default=Path("packages"))
    parser.add_argument("--minutes", type=float, default=9.3)
    parser.add_argument("--rounds", default="0,1,2", help="each draws other jobs of the trace")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--median-s", type=float, default=12.0)
    parser.add_argument("--bounds", default="1.25,1.6,1.1")
    parser.add_argument("--arms", default=",".join(one for one in proof_plan.ARMS if one not in proof_plan.PARTITIONS))
    parser.add_argument("--gpus", type=int, default=1, help="of this machine; each FOLDER is of one number of GPUs")
    parser.add_argument(
        "--users", type=int, default=1, choices=range(1, len(USERS) + 1), help="whose programs they are"
    )
    parser.add_argument("--mix", choices=("all", *proof_plan.CLASSES_MIB, *proof_plan.SWEEPS), default="all")
    parser.add_argument("--programs", default="", help="of a mix of sweeps these alone, by number")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    until_s = time.monotonic() + asked.minutes * 60
    rows, cells = asked.folder / "rows.jsonl", asked.folder / "cells.jsonl"
    done = proof_report.read(cells)
    if asked.report:
        print("\n\n".join(proof_report.tables(proof_report.read(rows), done)))
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    bounds, arms = [*map(float, asked.bounds.split(","))], asked.arms.split(",")
    rounds = [*map(int, asked.rounds.split(","))]
    trace, known = proof_plan.read_trace(), {*map(proof_report.key_of, done)}
    machine = Machine(asked, 1000 * (len(done) + 1))
    try:
        for cell in proof_plan.cells(asked.mix, rounds, bounds, arms):
            if cell in known or not proof_plan.is_ready(cell, known):
                continue
            planned = proof_plan.plan(trace, asked.jobs, cell.mix, cell.round, asked.median_s, asked.gpus, asked.users)
            planned = proof_plan.of_programs(planned, [word for word in asked.programs.split(",") if word])
            machine.rates(planned, until_s)
            needed_s = proof_plan.expected_s(cell, planned, done, asked.gpus)
            if needed_s > until_s - time.monotonic():
                print(f"{cell.name} would take {needed_s:.0f} s: left", flush=True)
                continue
            of_jobs, of_cell = Run(machine, cell, planned, until_s).run()
            proof_report.add(rows, of_jobs)
            proof_report.add(cells, [of_cell])
            machine.keep()
            known.add(cell)
            done.append(of_cell)
            print(cell.name, proof_report.times(of_jobs), of_cell, flush=True)
    except Late:
        print("this call's time is over", flush=True)
    finally:
        machine.close()


if __name__ == "__main__":
    main()
