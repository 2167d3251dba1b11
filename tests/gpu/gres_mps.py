# SPDX-License-Identifier: Apache-2.0
"""gres/mps end to end on a real GPU: `python -m tests.gpu.gres_mps FOLDER [--rounds N]`; about four minutes a round.

FOLDER and the machine are those of tests/gpu/pack.py. What `colloc site render` writes for prolog, epilog and task
prolog is installed as ORDER.md says, in a partition with ExclusiveUser=YES. In every round one training runs alone,
seven separate jobs that csub sent to gres/mps share the site's daemon, and the same seven run by hand under one
daemon. Then two users want the GPU at once. Prints what tests/gpu/pack.py prints, and who had which daemon when.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import statistics
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_colloc.core.config_file import load_site
from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.pack.mps_daemon import CONTROL
from slurm_colloc.site.render import Host, Kind, render_site
from tests.gpu import slurm
from tests.gpu.pack import CHECKOUT, SITE, TASKS, Bench, Trained, _figures, daemon, say

INSTALLED = Path("/opt/colloc")
DAEMONS = Path("/run/colloc/mps")
# Seven of these fill the shares of a GPU; one alone keeps 13 % of an H200's SMs busy.
HINT = "mem=1100M,sm=14"
SHARED = 'order = ["mps"]\nmps_daemon = "prolog"\nheadroom_mib = 0\n'
USERS = {"alice": 2001, "bob": 2002}
CGROUPS = "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\nConstrainDevices=yes\n"
HOOKS = (
    "PrologFlags=Alloc,Contain\nProlog=/etc/slurm/prolog.d/*\nEpilog=/etc/slurm/epilog.d/*\n"
    "TaskProlog=/usr/libexec/slurm_colloc/task_prolog\n"
)


def user(name: str) -> list[str]:
    """Return what makes a command that user's own, as a login would."""
    uid = pwd.getpwnam(name).pw_uid
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "env", "-i"]
    own = (f"PATH={os.environ['PATH']}", f"HOME=/home/{name}", f"USER={name}", f"PYTHONPATH={INSTALLED}")
    return [*become, *own, f"COLLOC_CONF={INSTALLED}/site.toml"]


def csub(name: str, *options: str) -> list[str]:
    """Return csub as that user calls it."""
    return [*user(name), sys.executable, "-m", "slurm_colloc.cli.csub", "--gres=gpu:1", *options]


def install(root: Path) -> None:
    """Install the project where nobody but root writes, users, and what is rendered from its site.toml."""
    install_code()
    for name, uid in USERS.items():
        subprocess.run(["useradd", "-m", "-u", str(uid), "-U", name], check=True)
    reader = NvmlReader()
    (unit,) = reader.units()
    text = SITE.format(root=root, mem_mib=unit.mem_total_mib, sm_count=unit.sm_count)
    text = text.replace('order = ["mps"]\n', SHARED).replace('name = "all"\n', 'name = "all"\nmps_users = "one"\n')
    site = INSTALLED / "site.toml"
    site.write_text(text)
    install_hooks(site)


def install_code() -> None:
    """Put the project where nobody but root writes, and each Python finds it."""
    # A second run on one machine begins anew.
    shutil.rmtree(INSTALLED, ignore_errors=True)
    shutil.copytree(CHECKOUT / "slurm_colloc", INSTALLED / "slurm_colloc")
    for name in ("templates", "site-configs"):
        shutil.copytree(CHECKOUT / name, INSTALLED / name)
    shutil.copy(CHECKOUT / "pyproject.toml", INSTALLED)
    import ClusterShell

    shutil.copytree(Path(ClusterShell.__file__).parent, INSTALLED / "ClusterShell")
    # Jobs start Python with -I, which hears no PYTHONPATH.
    Path(sysconfig.get_path("purelib"), "slurm_colloc-installed.pth").write_text(f"{INSTALLED}\n")
    if not shutil.which(CONTROL, path="/usr/bin:/usr/sbin:/bin"):
        # Where the driver is installed as usual it is there.
        Path("/usr/bin", CONTROL).symlink_to(str(shutil.which(CONTROL)))


def install_hooks(site: Path, below: Path = Path("/"), colloc_mps: str = "") -> None:
    """Install prolog, epilog and task prolog of a site; elsewhere than at / with another text of colloc-mps."""
    for file in render_site(load_site(str(site)), Host(str(INSTALLED), str(site))):
        if file.installed.startswith(("/etc/slurm/", "/usr/libexec/")) and file.kind != Kind.PART:
            path = below / file.installed[1:]
            path.parent.mkdir(parents=True, exist_ok=True)
            text = file.text.replace("/usr/libexec/", f"{below}/usr/libexec/") if below != Path("/") else file.text
            path.write_text(colloc_mps if colloc_mps and path.name == "colloc-mps" else text)
            path.chmod(0o755)
            print("installed", path, flush=True)


def make_cgroups() -> None:
    """Make what systemd has made where it runs."""
    top = Path("/sys/fs/cgroup")
    (top / "system.slice").mkdir(exist_ok=True)
    for folder in (top, top / "system.slice"):
        (folder / "cgroup.subtree_control").write_text("+cpuset +cpu +memory")


@contextmanager
def witness() -> Iterator[list[tuple[float, tuple[str, ...], str]]]:
    """See every half second which daemons there are, and who runs or waits; a line for each change."""
    seen: list[tuple[float, tuple[str, ...], str]] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.5):
            daemons = tuple(
                sorted(
                    f"{path.name} pid {(path / 'pipe/nvidia-cuda-mps-control.pid').read_text().strip()}"
                    f" jobs {len(list((path / 'jobs').iterdir()))}"
                    for path in DAEMONS.glob("*-*")
                    if (path / "pipe/nvidia-cuda-mps-control.pid").exists()
                )
            )
            jobs = " ".join(sorted(slurm.ask("squeue", "-h", "-o", "%u:%t").split()))
            if not seen or seen[-1][1:] != (daemons, jobs):
                seen.append((time.time(), daemons, jobs))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def as_jobs(bench: Bench, name: str, count: int, hint: str) -> Trained:
    """Submit that many trainings, each as a job of its own."""
    with witness() as seen:
        found = bench.by_slurm(csub(name, f"--gpu-footprint={hint}", "--time=3"), "small", count, [{}] * count)
    for at_s, daemons, jobs in seen:
        print(f"{at_s:.1f} | {jobs} | {'; '.join(daemons)}", flush=True)
    return found


def two_users(bench: Bench) -> None:
    """Let two users want the GPU at once: one is kept off while the other's jobs run, and gets his turn after."""
    folder = bench.fresh()
    folder.chmod(0o777)
    with witness() as seen:
        for name, count in (("alice", 3), ("bob", 2)):
            for number in range(count):
                script = folder / f"{name}{number}.sh"
                script.write_text(
                    f"#!/bin/sh\n{sys.executable} {bench.program} small 8 {folder}/{name}{number}.json\n"
                    f'echo {name} "$CUDA_MPS_PIPE_DIRECTORY"\necho get_server_list | nvidia-cuda-mps-control\n'
                )
                argv = csub(name, f"--gpu-footprint={HINT}", "--time=3", "-c", "2", "-D", str(folder))
                done = subprocess.run([*argv, str(script)], capture_output=True, text=True, check=False)
                print(name, done.returncode, done.stdout.strip(), done.stderr.strip(), flush=True)
        while slurm.ask("squeue", "-h").strip():
            time.sleep(0.3)
        time.sleep(2)
    for at_s, daemons, jobs in seen:
        print(f"{at_s:.1f} | {jobs} | {'; '.join(daemons)}", flush=True)
    for path in sorted(folder.glob("slurm-*.out")):
        print(f"--- {path.name}: {path.read_text()[-300:]}", flush=True)


def main() -> None:
    """Run the rounds, then the two users."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    root = Path("/tmp/gpulab")
    root.mkdir()
    install(root)
    slurm.unpack(asked.folder)
    slurm.CONF = slurm.CONF.replace("proctrack/linuxproc", "proctrack/cgroup").replace("task/none", "task/cgroup")
    slurm.CONF = f"{HOOKS}{slurm.CONF.rstrip()} ExclusiveUser=YES\n"
    slurm.CGROUP_CONF = CGROUPS
    make_cgroups()
    slurm.start(root)
    bench = Bench(root, NvmlReader())
    bench.reader.read()
    # Results are the users' to write.
    os.umask(0)
    phases: dict[str, Callable[[], Trained]] = {
        "one alone": lambda: bench.by_slurm(csub("alice"), "small", 1, [{}]),
        "seven gres/mps jobs of the site's daemon": lambda: as_jobs(bench, "alice", TASKS, HINT),
        "seven under MPS by hand": lambda: by_hand(bench),
    }
    found: dict[str, list[Trained]] = {}
    try:
        for number in range(asked.rounds):
            for name, run in phases.items():
                trained = run()
                found.setdefault(name, []).append(trained)
                say(phase=name, round=number, **_figures(trained))
        alone = statistics.median(sum(one.rates) for one in found["one alone"])
        for name, rounds in found.items():
            totals = sorted(sum(one.rates) for one in rounds)
            say(phase=name, images_a_s=totals, times_one=[total / alone for total in totals])
        two_users(bench)
    finally:
        print(json.dumps({"left": [str(path) for path in DAEMONS.glob("*")], "nodes": slurm.ask("sinfo", "-N")}))
        print((root / "slurmd.log").read_text()[-3000:], flush=True)


def by_hand(bench: Bench) -> Trained:
    """Run the seven under a daemon that somebody starts on the node."""
    with daemon(Path("/tmp/mps0")) as environment:
        return bench.by_hand(["small"] * TASKS, environment)


if __name__ == "__main__":
    main()
