# SPDX-License-Identifier: Apache-2.0
"""A published trace of mixed trainings through a real Slurm on a real GPU: `python -m tests.gpu.proof FOLDER`.

The machine is that of tests/gpu/slurm.py, with what `colloc` needs, PyTorch, torchvision, timm, transformers and PIL;
--packages names a folder with Slurm's .deb packages (tests/gpu/carry.sh). Each call runs the arms of the rounds that
are missing in FOLDER and fit its --minutes, and adds to FOLDER: rates.csv (each program alone), rows.jsonl (a line for
each job), cells.jsonl (a line for each arm of a round) and kept.tgz (samples, and what the sbatch arms taught csub).
--report prints the tables of what is there. Jobs are a user's batch scripts, which name no footprint; site.toml is what
`colloc site init` writes, prolog, epilog and task prolog what `colloc site render` does.

- sbatch: under the policy "shadow", as in a center's first week. Slurm gets each script and its words unchanged.
- cold, warm: csub with an empty history, and with that of the sbatch arms. `colloc ingest` runs all the time.
- packs: warm, and jobs of one program are one `csub --pack --array`, submitted when the last of them arrives.
- expert: the scripts by hand under one MPS daemon, as many as memory, cores and bound allow by what was measured of
  each alone; unbounded: by memory.

--dry runs sleeping programs on a made-up GPU of this machine's Slurm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from slurm_colloc.observe.journal import hours
from tests.gpu import footprint_job, gres_mps, pack, proof_plan, proof_report, slowdowns, slurm
from tests.gpu.footprints import read_table
from tests.gpu.proof_plan import BY_HAND, Cell, Need, Planned

USER = "nobody"
NODE_CORES = 16
COLLOC = [sys.executable, "-m", "slurm_colloc.cli.colloc"]
CSUB = [sys.executable, "-m", "slurm_colloc.cli.csub"]
_INGEST_EVERY_S, _PERIOD_S, _QUIET_S = 6.0, 1.0, 2.0
_HOOKS = "PrologFlags=Alloc\nProlog={etc}/prolog.d/*\nEpilog={etc}/epilog.d/*\nTaskProlog={task}\n"
_SHOWN = re.compile(r"JobId=(\d+) .*? JobState=(\S+) .*? NumCPUs=(\d+) .*? StdOut=(\S+)")
# What sleeps in place of a training, and what the simulated GPU sees of it.
_SLEEPS = """import json, sys, time
began, steps = time.time(), int(sys.argv[-1])
time.sleep(0.5)
first = time.time()
time.sleep(steps / {rate})
print(json.dumps({{"began_s": began, "first_s": first, "ended_s": time.time(), "steps": steps}}))
"""
_DRY_RATE = 20.0
_DRY_NEEDS = {"light": Need(900, 12, 1), "medium": Need(6000, 45, 5), "heavy": Need(20000, 85, 5)}
_DRY_GPU: dict[str, Any] = {
    "uuid": "GPU-0",
    "model": "NVIDIA H100 80GB HBM3",
    "mem_total_mib": 81559,
    "sm_count": 132,
    "slices": [],
}


class Job(NamedTuple):
    """A planned job with its script and the file of its output."""

    planned: Planned
    script: Path
    output: Path


class Late(Exception):
    """A cell would not end in this call's time."""


class Bench:
    """Slurm, the agent and the site on this machine, and the folder of what was measured."""

    def __init__(self, asked: argparse.Namespace, first_job: int) -> None:
        """Restore what earlier calls kept, and start all."""
        self.asked, self.folder = asked, Path(asked.folder)
        self.until_s = time.monotonic() + asked.minutes * 60
        self.root = Path(tempfile.mkdtemp(prefix="proof-", dir="/tmp"))
        self.root.chmod(0o755)
        self.learned, self.journal = self.root / "learned", self.root / "learned/journal"
        for folder in (self.journal, self.learned / "store", self.learned / "decisions"):
            folder.mkdir(parents=True, mode=0o700)
        if (self.folder / "kept.tgz").exists():
            with tarfile.open(self.folder / "kept.tgz") as kept:
                kept.extractall(self.root, filter="tar")
        self.learned.chmod(0o755)
        (self.learned / "decisions").chmod(0o1777)
        self.started: list[subprocess.Popen[bytes]] = []
        etc, task = Path("/etc/slurm"), Path("/usr/libexec/slurm_colloc/task_prolog")
        device = Path("/dev/nvidia0")
        if asked.dry:
            etc, task, device = (self.root / str(one)[1:] for one in (etc, task, device))
            device.parent.mkdir()
            os.mknod(device, 0o20666, os.makedev(195, 0))
            (self.root / "gpus").mkdir()
            (self.root / "gpus/n1.json").write_text(json.dumps({"devices": [_DRY_GPU]}))
        else:
            gres_mps.install_code()
            slurm.unpack(Path(asked.packages))
        name = _DRY_GPU["model"] if asked.dry else _driver_says("name")
        gpu = next((word.lower() for word in str(name).split() if re.fullmatch(r"[A-Z]+\d+", word)), "gpu")
        # slurmctld is the only one who knows the jobs, and no two have one id.
        conf = f"MinJobAge=3600\nFirstJobId={first_job}\n{slurm.CONF.rstrip()} ExclusiveUser=YES"
        for plugin in ("task/affinity", "task/none"):
            slurm.CONF = f"{conf} DefCpuPerGPU={NODE_CORES}\n".replace("task/none", plugin)
            slurm.start(self.root, gpu, etc, str(device), _free_ports() if asked.dry else (7817, 7818))
            bound = subprocess.run(["srun", "-c", "2", "-t", "1", "nproc"], capture_output=True, text=True, check=False)
            print("jobs are bound to their cores:", bound.stdout.strip() == "2", bound.stderr[-300:], flush=True)
            if bound.stdout.strip() == "2" or plugin == "task/none":
                break
            slurm.stop(self.root)
        self.site = self._site("base", "auto", 1.25, self.learned)
        print(self.site.read_text(), flush=True)
        gres_mps.install_hooks(self.site, *((self.root, "#!/bin/sh\nexit 0\n") if asked.dry else ()))
        with (etc / "slurm.conf").open("a") as stream:
            stream.write(_HOOKS.format(etc=etc, task=task))
        subprocess.run(["scontrol", "reconfigure"], check=True)
        agent = [*COLLOC, "agent", "--node", "n1", "--period", str(_PERIOD_S)]
        self.started.append(subprocess.Popen(agent, env={**os.environ, "COLLOC_CONF": str(self.site)}))
        self.gpu_mem_mib = int(_DRY_GPU["mem_total_mib"] if asked.dry else _driver_says("memory.total").split()[0])

    def _site(self, name: str, policy: str, bound: float, state: Path) -> Path:
        """Write a site.toml as the how-to says, with what lies elsewhere here."""
        path = self.root / f"{name}.toml"
        keys = {
            "policy": f'"{policy}"',
            "observe.agent": "true",
            "observe.period_s": str(_PERIOD_S),
            "paths.journal": f'"{self.journal}"',
            "paths.state": f'"{state}"',
            "paths.decisions": f'"{state}/decisions"',
            "sharing.mps_daemon": '"prolog"',
            "sharing.max_slowdown": str(bound),
        }
        argv = [*COLLOC, "site", "init", "-o", str(path), "--mps-daemon"]
        if self.asked.dry:
            keys |= {"observe.gpu_reader": '"simulated"', "observe.simulated_devices": f'"{self.root}/gpus"'}
            argv += ["--gpu", f"h100={_DRY_GPU['model']}"]
        call([*argv, *(word for key, value in keys.items() for word in ("--set", f"{key}={value}"))])
        path.chmod(0o644)
        return path

    def close(self) -> None:
        """End what was started."""
        for process in self.started:
            process.terminate()
            process.wait()
        subprocess.run(["scancel", "-u", USER], check=False)
        slurm.stop(self.root)
        shutil.rmtree(self.root, ignore_errors=True)

    # --- what a cell needs --------------------------------------------------------------------------------------------

    def rates(self, jobs: Sequence[Planned]) -> dict[str, dict[str, str]]:
        """Measure the programs that were not yet, each alone, and return what is known of each."""
        table = self.folder / "rates.csv"
        rows = {row["command"]: row for row in read_table(table, slowdowns.COLUMNS)}
        todo = sorted({job.command for job in jobs} - set(rows))
        if todo and self.asked.dry:
            need = {job.command: _DRY_NEEDS[job.size] for job in jobs}
            made = [
                {"command": one, "steps_per_s": _DRY_RATE, "sm_active_pct": need[one].sm_active_pct,
                 "gpu_mem_used_mib": need[one].gpu_mem_mib, "state": "COMPLETED"} for one in todo
            ]  # fmt: skip
            slowdowns.add(table, made)
        elif todo:
            slowdowns.run(table, [(one, [100]) for one in todo], self.until_s)
        return {row["command"]: row for row in read_table(table, slowdowns.COLUMNS)}

    def jobs(self, cell: Cell, planned: Sequence[Planned]) -> list[Job]:
        """Write each program's folder, once, and return the jobs of a cell."""
        rates = self.rates(planned)
        out = self.root / cell.name / "out"
        out.mkdir(parents=True)
        shutil.chown(out, USER)
        found = []
        for one in planned:
            project = self.root / "projects" / one.name
            if not project.exists():
                project.mkdir(parents=True)
                extra = ""
                if self.asked.dry:
                    (project / "train.py").write_text(_SLEEPS.format(rate=_DRY_RATE))
                    need = _DRY_NEEDS[one.size]
                    load = f"mem={need.gpu_mem_mib:.0f}M,util={need.sm_active_pct},sm={need.sm_active_pct}"
                    extra = f"export CUDA_VISIBLE_DEVICES=0 COLLOC_SIMULATED_GPU_LOAD={load}\n"
                else:
                    shutil.copy(footprint_job.__file__, project / "train.py")
                command = one.with_steps(float(rates[one.command]["steps_per_s"] or 1.0))
                (project / "train.sh").write_text(proof_plan.script(one.name, command, self.asked.cores, extra))
            found.append(Job(one, project / "train.sh", out / f"{one.number}.out"))
        return found

    def become(self, cell: Cell, site: Path) -> list[str]:
        """Return what makes a command the user's, with a home of this cell's."""
        home = self.root / cell.name / "home"
        home.mkdir(exist_ok=True)
        shutil.chown(home, USER)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = [f"PATH={path}", f"HOME={home}", f"USER={USER}", f"LOGNAME={USER}", f"COLLOC_CONF={site}"]
        become = ["setpriv", f"--reuid={USER}", "--regid=65534", "--clear-groups", "env", "-i"]
        return [*become, *own, f"SLURM_CONF={os.environ['SLURM_CONF']}"]

    # --- one cell -----------------------------------------------------------------------------------------------------

    def run(self, cell: Cell, planned: Sequence[Planned]) -> None:
        """Run one arm of one round, and add what came to the folder."""
        began = time.monotonic()
        jobs = self.jobs(cell, planned)
        home = self.root / cell.name
        state = home / "state"
        if cell.arm in ("sbatch", *proof_plan.LEARNED):
            _copy(self.learned, state)
            shutil.rmtree(state / "journal")
        else:
            for name in ("store", "decisions"):
                (state / name).mkdir(parents=True, mode=0o700)
        (state / "decisions").chmod(0o1777)
        site = self._site(cell.name, "shadow" if cell.arm == "sbatch" else "auto", cell.bound or 1.25, state)
        self.ingest(site)
        become, pending = self.become(cell, site), Counter[str]()
        zero_s = time.time()
        if cell.arm in BY_HAND:
            self.by_hand(cell, jobs, become, zero_s)
        else:
            with self.at_work(site, pending):
                self.by_slurm(cell, jobs, become, zero_s)
        ended_s = time.time()
        time.sleep(_PERIOD_S * 2)
        shown = {} if cell.arm in BY_HAND else self.shown()
        rows = [self.row(cell, job, zero_s, shown, state) for job in jobs]
        seen = (one for hour in hours(str(self.journal)) for one in hour)
        did: dict[str, Any] = {**cell._asdict(), "at": datetime.now(UTC).isoformat(), "pending": pending}
        last_s = max((row["ended_s"] for row in rows if row["ended_s"]), default=ended_s - zero_s)
        did |= proof_report.activity(seen, zero_s, zero_s + last_s) | {
            "gpu": _driver_says("name") if not self.asked.dry else ""
        }
        if cell.arm not in BY_HAND:
            self.ingest(site)
            did |= self.reported(site, zero_s)
        if cell.arm == "sbatch":
            _copy(state, self.learned)
        did["took_s"] = time.monotonic() - began
        add(self.folder / "rows.jsonl", rows)
        add(self.folder / "cells.jsonl", [did])
        self.keep()
        print(
            cell.name,
            proof_report.times(rows),
            Counter(row["state"] for row in rows),
            did,
            flush=True,
        )

    def by_slurm(self, cell: Cell, jobs: Sequence[Job], become: Sequence[str], zero_s: float) -> None:
        """Submit each job when it arrives, and wait until none is left."""
        for job in jobs:
            self.sleep_until(zero_s + job.planned.arrives_s)
            argv = [*become, *CSUB, "-o", str(job.output), job.script.name]
            done = subprocess.run(argv, cwd=job.script.parent, capture_output=True, text=True, check=False)
            print(
                f"{time.time() - zero_s:6.1f}",
                job.planned.name,
                done.stdout.strip(),
                done.stderr.strip(),
                sep=" | ",
                flush=True,
            )
        quiet_s = time.monotonic()
        while time.monotonic() - quiet_s < _QUIET_S:
            if slurm.ask("squeue", "-h").strip():
                quiet_s = time.monotonic()
            self.sleep_until(time.time() + 0.3)

    def by_hand(self, cell: Cell, jobs: Sequence[Job], become: Sequence[str], zero_s: float) -> None:
        """Start each job beside others as an expert would, who knows what each needs alone."""
        rates = self.rates([job.planned for job in jobs])
        need = {job: _need(rates[job.planned.command]) for job in jobs}
        waiting, running = list(jobs), dict[Job, subprocess.Popen[bytes]]()
        with self.daemon(become) as own:
            words = [*become, *(f"{name}={value}" for name, value in own.items()), "bash"]
            try:
                while waiting or running:
                    running = {job: one for job, one in running.items() if one.poll() is None}
                    for job in [one for one in waiting if zero_s + one.planned.arrives_s <= time.time()]:
                        beside = [need[one] for one in running]
                        if proof_plan.fits(need[job], beside, self.gpu_mem_mib, NODE_CORES, cell.bound):
                            with job.output.open("wb") as out:
                                argv = [*words, job.script.name]
                                running[job] = subprocess.Popen(argv, cwd=job.script.parent, stdout=out, stderr=out)
                            waiting.remove(job)
                    self.sleep_until(time.time() + 0.1)
            finally:
                for one in running.values():
                    one.kill()

    @contextlib.contextmanager
    def daemon(self, become: Sequence[str]) -> Iterator[dict[str, str]]:
        """Run the user's own MPS daemon, where there is MPS."""
        if self.asked.dry:
            yield {}
        else:
            with pack.daemon(self.root / "mps", become) as own:
                yield own

    def sleep_until(self, at_s: float) -> None:
        """Sleep, unless this call's time is over first."""
        if time.monotonic() + at_s - time.time() > self.until_s:
            raise Late
        time.sleep(max(0.0, at_s - time.time()))

    @contextlib.contextmanager
    def at_work(self, site: Path, pending: Counter[str]) -> Iterator[None]:
        """Meanwhile ingest again and again, and count each second why jobs wait."""
        over = threading.Event()

        def ingest() -> None:
            while not over.wait(_INGEST_EVERY_S):
                self.ingest(site)

        def look() -> None:
            while not over.wait(1.0):
                reasons = slurm.ask("squeue", "-h", "-t", "PD", "-o", "%r").splitlines()
                # csub's companions wait for what they follow.
                pending.update(one for one in reasons if one not in ("None", "Dependency"))

        threads = [threading.Thread(target=one) for one in (ingest, look)]
        for one in threads:
            one.start()
        try:
            yield
        finally:
            over.set()
            for one in threads:
                one.join()

    def ingest(self, site: Path) -> None:
        """Take jobs and samples in, as the site's cron does."""
        call([*COLLOC, "ingest"], site)

    def reported(self, site: Path, since_s: float) -> dict[str, Any]:
        """Return the GPU-hours of the cell's jobs as `colloc report` says them."""
        since = datetime.fromtimestamp(since_s, UTC).isoformat()
        found = json.loads(call([*COLLOC, "report", "--format=json", "--since", since], site))["total"]
        columns = ("allocated_gpu_hours", "sm_used_gpu_hours", "util_used_gpu_hours", "coverage_pct", "energy_kwh")
        return {f"report_{name}": found[name] for name in columns}

    def shown(self) -> dict[str, list[tuple[str, str, int, str]]]:
        """Return by file of output the jobs that slurmctld remembers: id, state, CPUs, and the whole line."""
        found: dict[str, list[tuple[str, str, int, str]]] = {}
        for line in slurm.ask("scontrol", "show", "job", "-d", "-o").splitlines():
            if match := _SHOWN.match(line):
                found.setdefault(match[4], []).append((match[1], match[2], int(match[3]), line))
        return found

    def row(self, cell: Cell, job: Job, zero_s: float, shown: dict[str, Any], state: Path) -> dict[str, Any]:
        """Return the line of one job."""
        output = job.output.read_text(errors="replace") if job.output.exists() else ""
        said = proof_report.ended(output)
        runs = sorted(shown.get(str(job.output), ()), key=lambda one: int(one[0]))
        decision = _decision(state / "decisions", runs[0][0]) if runs else {}
        last = runs[-1] if runs else ("", "", None, "")
        ended = {name: said[name] - zero_s if said else None for name in ("began_s", "first_s", "ended_s")}
        found = {
            **cell._asdict(),
            "number": job.planned.number,
            "task": job.planned.name,
            "size": job.planned.size,
            "command": job.planned.command,
            "arrived_s": job.planned.arrives_s,
            **ended,
            "steps": said.get("steps"),
            "state": proof_report.state(said, output),
            "job_id": last[0],
            "runs": max(1, len(runs)),
            "ooms": int(len(runs) > 1),
            "cpus": last[2],
            "given": decision.get("given", ""),
            "rung": decision.get("rung", ""),
            "why": "; ".join(decision.get("reasons", ())),
            "promised": proof_report.promised(decision),
        }
        if found["state"] != "COMPLETED":
            print(cell.name, job.planned.name, found["state"], output[-1500:], flush=True)
        return found

    def keep(self) -> None:
        """Put samples and what was learned into the folder."""
        part = self.folder / "kept.tgz.part"
        with tarfile.open(part, "w:gz") as kept:
            kept.add(self.learned, "learned")
        part.rename(self.folder / "kept.tgz")


def _copy(folder: Path, to: Path) -> None:
    """Copy a folder's contents, each with its owner."""
    subprocess.run(["cp", "-aT", folder, to], check=True)


def _need(row: dict[str, str]) -> Need:
    cores = 1 + (4 if "--decode" in row["command"] else 0)
    return Need(float(row["gpu_mem_used_mib"] or 0), float(row["sm_active_pct"] or 100), cores)


def _decision(folder: Path, job_id: str) -> dict[str, Any]:
    for path in folder.glob("*/*.json"):
        if (found := json.loads(path.read_text())).get("job_id") == job_id:
            return dict(found)
    return {}


def _driver_says(what: str) -> str:
    return slurm.ask("nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader").strip()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def call(argv: Sequence[str], site: Path | None = None) -> str:
    """Run a command of the site's; what it says when it fails is printed."""
    own = {**os.environ, **({"COLLOC_CONF": str(site)} if site else {})}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=own)
    if done.returncode:
        print(argv[3:], done.returncode, done.stdout[-2000:], done.stderr[-2000:], flush=True)
    return done.stdout


def add(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Append lines of JSON."""
    with path.open("a") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of JSON that are there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Run what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packages", type=Path, default=Path(".proof"))
    parser.add_argument("--minutes", type=float, default=9.3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--median-s", type=float, default=15.0)
    parser.add_argument("--cores", type=int, default=8, help="what each script asks for; 0: nothing")
    parser.add_argument("--bounds", default="1.25,1.6,1.1")
    parser.add_argument("--arms", default=",".join(proof_plan.ARMS))
    parser.add_argument("--mix", choices=("all", *proof_plan.CLASSES_MIB), default="all")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    if asked.report:
        print("\n\n".join(proof_report.tables(read(asked.folder / "rows.jsonl"), read(asked.folder / "cells.jsonl"))))
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    done = read(asked.folder / "cells.jsonl")
    wanted = proof_plan.cells(asked.mix, asked.rounds, [*map(float, asked.bounds.split(","))], asked.arms.split(","))
    todo = [cell for cell in wanted if cell not in map(proof_report.key_of, done)]
    trace = proof_plan.read_trace()
    bench = Bench(asked, 1000 * (len(done) + 1))
    try:
        for cell in todo:
            jobs = proof_plan.plan(trace, asked.jobs, cell.mix, cell.round, asked.median_s)
            bench.rates(jobs)
            known = read(asked.folder / "cells.jsonl")
            left_s = bench.until_s - time.monotonic()
            if proof_plan.expected_s(cell, jobs, known) > left_s or not proof_plan.is_ready(
                cell, map(proof_report.key_of, known)
            ):
                print(f"{cell.name} is left: {left_s:.0f} s", flush=True)
                continue
            bench.run(cell, jobs)
    except Late:
        print("this call's time is over", flush=True)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
