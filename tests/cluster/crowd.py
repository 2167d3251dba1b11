# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.cluster.crowd [--release 26.05] [--users 500]`: what late binding of many users costs slurmctld.

Each user of a lab of its own has a held job whose need is learned then; all look at once, once with a job to change
and once with nothing left to do. The CPU seconds are slurmctld's, by /proc, less what it takes idle.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slurm_colloc.estimate.snapshot import write_snapshot
from tests.cluster import users
from tests.cluster.lab import Lab
from tests.cluster.releases import HOST
from tests.cluster.site import write_site
from tests.cluster.test_rebind import LOOK, SCRIPT
from tests.cluster.user import User
from tests.unit.made import HOUR, evidence

CHECKOUT = Path(__file__).resolve().parents[2]
# More would only wait for each other, and for longer than csub does.
AT_ONCE = 8
# A look that keeps beside it what it was answered.
TOLD = f"""
import slurm_colloc.slurm.client as client
def told(argv, *args, ask=client.run):
    answer = ask(argv, *args)
    with open("told", "a") as file:
        print(argv, args[2:], answer, file=file)
    return answer
client.run = told
{LOOK}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", default=HOST.name)
    parser.add_argument("--users", type=int, default=500)
    args = parser.parse_args()
    names = [f"u{number}" for number in range(args.users)]
    users.PEOPLE |= dict.fromkeys(names, "crowd")
    lab = Lab.create(release=args.release)
    lab.install(CHECKOUT)
    with lab:
        extra = {"sharing.order": '["mps"]', "sharing.late_binding": '"on"', "sharing.mps_daemon": '"prolog"'}
        folder = write_site(lab, agent=False, extra=extra)
        crowd = [User(lab, name, folder) for name in names]
        idle = measured(lab, "idle for 20 s", lambda: time.sleep(20))
        measured(lab, f"{len(crowd)} users submit", lambda: each(crowd, submit), idle)
        each(crowd, learn)
        # What the submissions have started ends by then.
        time.sleep(70)
        measured(lab, "all look, each has a job to change", lambda: each(crowd, look), idle)
        asked = dict(line.split("|") for line in lab.run(["squeue", "-h", "-o", "%u|%b"], check=True).stdout.split())
        print(f"{sum('mps' in one for one in asked.values())} of {len(asked)} waiting jobs ask for shares")
        for user in crowd:
            if "mps" not in asked.get(user.name, ""):
                print(f"{user.name}: {asked.get(user.name)}\n{(user.home / 'told').read_text()}", flush=True)
        measured(lab, "all look, nothing is left", lambda: each(crowd, look), idle)


def each(crowd: list[User], act: Callable[[User], object]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(act, crowd))


def submit(user: User) -> None:
    user.script(SCRIPT)
    user.submit("-H", "--gres=gpu:h100:1", "train.sh")


def learn(user: User) -> None:
    shown = user.run("csub", "--dry-run", "--colloc=off", "--format=json", "--gres=gpu:h100:1", "train.sh").stdout
    signature = json.loads(shown)["request"]["signature"]
    known = evidence(signature=signature, peak_mib=4000, sm_active_mean_pct=5.0, elapsed_s=float(HOUR))
    folder = user.folder / "history"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o711)
    uid = user.lab.users[user.name].uid
    write_snapshot(str(folder / f"{uid}.sqlite"), [known], uid)


def look(user: User) -> None:
    done = user.run(str(user.lab.bin / "python"), "-I", "-c", LOOK)
    assert done.returncode == 0, done.stderr


def measured(lab: Lab, what: str, act: Callable[[], object], idle: float = 0.0) -> float:
    """Do it, print what slurmctld took for it, and return its CPU seconds a second."""
    [pid] = [record.pid for record in lab.book.records() if record.name == "slurmctld"]
    before_s, at = cpu_s(pid), time.monotonic()
    act()
    wall_s = time.monotonic() - at
    took_s = cpu_s(pid) - before_s - idle * wall_s
    print(f"{what}: {took_s:.2f} CPU seconds of slurmctld in {wall_s:.1f} s", flush=True)
    return took_s / wall_s


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
