# SPDX-License-Identifier: Apache-2.0
"""The machine of tests/gpu/proof.py: Slurm, the agent, site.toml and hooks as the how-to says, users, their programs.

Other than the how-to says: the project is copied to /opt/colloc and not installed by pip, and there is no accounting
database, so that `colloc ingest` asks slurmctld.
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
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.gpu import footprint_job, gres_mps, pack, slowdowns, slurm
from tests.gpu.footprints import add_rows, read_table
from tests.gpu.proof_plan import PARTITIONS, Cell, Need, Planned, script

USERS = ("nobody", "games", "mail")
PERIOD_S = 1.0
COLLOC = [sys.executable, "-m", "slurm_colloc.cli.colloc"]
_ROOT = Path("/tmp/proof")
_HOOKS = "PrologFlags=Alloc\nProlog={etc}/prolog.d/*\nEpilog={etc}/epilog.d/*\nTaskProlog={task}\n"
# What sleeps in place of a training, and what the simulated GPU sees of it.
_SLEEPS = """import json, sys, time
began, steps = time.time(), int(sys.argv[-1])
time.sleep(0.5)
first = time.time()
time.sleep(steps / {rate})
print(json.dumps({{"began_s": began, "first_s": first, "ended_s": time.time(), "steps": steps}}))
"""
_DRY_RATE = 20.0
_RATE_TRIES = 3
_DRY_NEEDS = {"light": Need(900, 12, 1), "medium": Need(6000, 45, 5), "heavy": Need(20000, 85, 5)}
_MODEL, _MEM_MIB = "NVIDIA H100 80GB HBM3", 81559
_DRY_GPU = {"model": _MODEL, "mem_total_mib": _MEM_MIB, "sm_count": 132, "slices": []}


class Machine:
    """What runs while cells do; ``learned`` is the site's state after the sbatch arms, with the samples of all."""

    def __init__(self, asked: argparse.Namespace, first_job: int) -> None:
        """Restore what earlier calls kept, and start all."""
        self.asked, self.folder, self.dry, self.gpus = asked, Path(asked.folder), bool(asked.dry), int(asked.gpus)
        self.cores = slurm.node(self.gpus)["cpus"]
        # Jobs are to have the same paths in each call.
        self.root = Path(tempfile.mkdtemp(prefix="proof-", dir="/tmp")) if self.dry else _ROOT
        self.root.mkdir(exist_ok=True)
        self.root.chmod(0o755)
        self.learned, self.journal = self.root / "learned", self.root / "learned/journal"
        for folder in (self.journal, self.learned / "store", self.learned / "decisions"):
            folder.mkdir(parents=True, mode=0o700)
        if (self.folder / "kept.tgz").exists():
            subprocess.run(["tar", "-xzpf", self.folder / "kept.tgz", "-C", self.root], check=True)
        self.learned.chmod(0o755)
        (self.learned / "decisions").chmod(0o1777)
        self.gpu_model = _MODEL if self.dry else driver_says("name")
        self.gpu_mem_mib = _MEM_MIB if self.dry else int(driver_says("memory.total").split()[0])
        self.agent: subprocess.Popen[bytes] | None = None
        try:
            self._start(first_job)
        except BaseException:
            self.close()
            raise

    def _start(self, first_job: int) -> None:
        etc, task, dev = Path("/etc/slurm"), Path("/usr/libexec/slurm_colloc/task_prolog"), Path("/dev")
        if self.dry:
            etc, task, dev = (self.root / str(one)[1:] for one in (etc, task, dev))
            dev.mkdir()
            for number in range(self.gpus):
                os.mknod(dev / f"nvidia{number}", 0o20666, os.makedev(195, number))
            from tests.fakes import mps_control

            for name in ("bin", "gpus"):
                (self.root / name).mkdir()
            mps_control.install(self.root / "bin")
            made = [{"uuid": f"GPU-{number}", **_DRY_GPU} for number in range(self.gpus)]
            (self.root / "gpus/n1.json").write_text(json.dumps({"devices": made}))
        else:
            gres_mps.install_code()
            slurm.unpack(Path(self.asked.packages))
        gpu = next((word.lower() for word in self.gpu_model.split() if re.fullmatch(r"[A-Z]+\d+", word)), "gpu")
        # slurmctld is the only one who knows the jobs, and no two have one id.
        cores = f"DefCpuPerGPU={slurm.CORES_PER_GPU}\n"
        conf = f"MinJobAge=3600\nFirstJobId={first_job}\n{slurm.CONF.rstrip()} ExclusiveUser=YES {cores}"
        conf += "".join(f"PartitionName={name} Nodes=n1 MaxTime=30 {cores}" for name in PARTITIONS.values())
        for plugin in ("task/none",) if self.dry else ("task/affinity", "task/none"):
            slurm.CONF = conf.replace("task/none", plugin)
            devices = [f"{dev}/nvidia{number}" for number in range(self.gpus)]
            slurm.start(self.root, gpu, etc, devices, _free_ports() if self.dry else (7817, 7818))
            bound = subprocess.run(["srun", "-c", "2", "-t", "1", "nproc"], capture_output=True, text=True, check=False)
            print("jobs are bound to their cores:", bound.stdout.strip() == "2", bound.stderr[-300:], flush=True)
            if bound.stdout.strip() == "2" or plugin == "task/none":
                break
            slurm.stop(self.root)
        base = self.site("base", "auto", 1.25, self.learned)
        print(base.read_text(), flush=True)
        gres_mps.install_hooks(base, *((self.root, "#!/bin/sh\nexit 0\n") if self.dry else ()))
        with (etc / "slurm.conf").open("a") as stream:
            stream.write(_HOOKS.format(etc=etc, task=task))
        subprocess.run(["scontrol", "reconfigure"], check=True)
        argv = [*COLLOC, "agent", "--node", "n1", "--period", str(PERIOD_S)]
        self.agent = subprocess.Popen(argv, env={**os.environ, "COLLOC_CONF": str(base)})

    def close(self) -> None:
        """End what was started."""
        if self.agent:
            self.agent.terminate()
            self.agent.wait()
        for user in USERS:
            subprocess.run(["scancel", "-u", user], check=False)
        slurm.stop(self.root)
        shutil.rmtree(self.root, ignore_errors=True)

    def site(self, name: str, policy: str, bound: float, state: Path, *, late: bool = False) -> Path:
        """Write a site.toml as the how-to says, with what lies elsewhere here."""
        path = self.root / f"{name}.toml"
        keys = {
            "policy": f'"{policy}"',
            "observe.agent": "true",
            "observe.period_s": str(PERIOD_S),
            "paths.journal": f'"{self.journal}"',
            "paths.state": f'"{state}"',
            "paths.decisions": f'"{state}/decisions"',
            "sharing.mps_daemon": '"prolog"',
            "sharing.max_slowdown": str(bound),
        }
        keys |= {"sharing.late_binding": '"on"', "sharing.settle_s": "10"} if late else {}
        argv = [*COLLOC, "site", "init", "-o", str(path), "--mps-daemon"]
        if self.dry:
            keys |= {"observe.gpu_reader": f'"simulated:{self.root}/gpus"'}
            argv += ["--gpu", f"h100={_MODEL}"]
        else:
            argv += ["--gpus", str(self._gpus())]
        call([*argv, *(word for key, value in keys.items() for word in ("--set", f"{key}={value}"))])
        head, named, rest = path.read_text().partition('name = "together"')
        path.write_text(head + named + rest.replace('mps_users = "each"', 'mps_users = "all"', 1))
        path.chmod(0o644)
        return path

    def _gpus(self) -> Path:
        """Return the file of what the driver says of the card, as `colloc site gpus` prints it on the node."""
        path = self.root / "gpus.json"
        if not path.exists():
            path.write_text(call([*COLLOC, "site", "gpus", "--node", "n1"]))
        return path

    def rates(self, jobs: Sequence[Planned], until_s: float) -> dict[str, dict[str, str]]:
        """Measure the programs that were not yet, each alone, and return what is known of each."""
        table = self.folder / "rates.csv"

        def known() -> dict[str, dict[str, str]]:
            return {row["command"]: row for row in read_table(table, slowdowns.COLUMNS) if row["steps_per_s"]}

        size = {job.command: job.size for job in jobs if job.command not in known()}
        if size and self.dry:
            needs = {one: _DRY_NEEDS[size[one]] for one in size}
            did = {
                one: {"sm_active_pct": need.sm_active_pct, "gpu_mem_used_mib": need.gpu_mem_mib}
                for one, need in needs.items()
            }
            known_of = {"state": "COMPLETED", "steps_per_s": _DRY_RATE}
            add_rows(table, slowdowns.COLUMNS, [{"command": one, **known_of, **did[one]} for one in size])
        # A process forked from one that has PyTorch's threads may fail at random.
        for _ in range(_RATE_TRIES):
            if todo := [(one, [100]) for one in sorted(size) if one not in known()]:
                slowdowns.run(table, todo, until_s)
        found = known()
        if failed := [one for one in size if one not in found]:
            raise RuntimeError(f"the speed of these alone is not measured: {failed}")
        return found

    def script(self, one: Planned, rates: dict[str, dict[str, str]]) -> Path:
        """Return a program's script, which lies in a folder of its own and is written once."""
        project = self.root / "projects" / one.name
        if not project.exists():
            project.mkdir(parents=True)
            need, extra = _DRY_NEEDS[one.size], ""
            if self.dry:
                (project / "train.py").write_text(_SLEEPS.format(rate=_DRY_RATE))
                load = f"mem={need.gpu_mem_mib:.0f}M,util={need.sm_active_pct},sm={need.sm_active_pct}"
                # A share's client is told 0, whichever GPU that is.
                extra = f"export CUDA_VISIBLE_DEVICES=${{SLURM_JOB_GPUS:-0}} COLLOC_SIMULATED_GPU_LOAD={load}\n"
            else:
                shutil.copy(str(footprint_job.__file__), project / "train.py")
            command = one.with_steps(float(rates[one.command]["steps_per_s"]))
            (project / "train.sh").write_text(script(one.name, command, one.steady_s, one.gpus, extra))
        return project / "train.sh"

    def become(self, cell: Cell, site: Path, user: str) -> list[str]:
        """Return what makes a command the user's, with a home of this cell's."""
        home = self.root / cell.name / f"home-{user}"
        home.mkdir(exist_ok=True)
        shutil.chown(home, user)
        path = f"{self.root}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = [f"PATH={path}", f"HOME={home}", f"USER={user}", f"LOGNAME={user}", f"COLLOC_CONF={site}"]
        if cell.arm in PARTITIONS:
            own.append(f"SBATCH_PARTITION={PARTITIONS[cell.arm]}")
        become = ["setpriv", f"--reuid={user}", "--regid=65534", "--clear-groups", "env", "-i"]
        return [*become, *own, f"SLURM_CONF={os.environ['SLURM_CONF']}"]

    @contextlib.contextmanager
    def daemons(self, become: Sequence[str]) -> Iterator[list[dict[str, str]]]:
        """Run the user's own MPS daemon for each GPU, where there is MPS; yield what its clients are told."""
        if self.dry:
            yield [{} for _ in range(self.gpus)]
            return
        with contextlib.ExitStack() as stack:
            made = []
            for gpu in range(self.gpus):
                of_gpu = [*become, f"CUDA_VISIBLE_DEVICES={gpu}", "CUDA_DEVICE_ORDER=PCI_BUS_ID"]
                own = stack.enter_context(pack.daemon(self.root / f"mps{gpu}", of_gpu))
                made.append({**own, "CUDA_VISIBLE_DEVICES": "0"})
            yield made

    def keep(self) -> None:
        """Put samples and what was learned into the folder."""
        part = self.folder / "kept.tgz.part"
        subprocess.run(["tar", "-czf", part, "-C", self.root, "learned"], check=True)
        part.rename(self.folder / "kept.tgz")


def copy(folder: Path, to: Path) -> None:
    """Copy a folder's contents, each with its owner."""
    subprocess.run(["cp", "-aT", folder, to], check=True)


def driver_says(what: str) -> str:
    """Return what the driver says of the first GPU."""
    return slurm.ask("nvidia-smi", "-i", "0", f"--query-gpu={what}", "--format=csv,noheader").strip()


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
