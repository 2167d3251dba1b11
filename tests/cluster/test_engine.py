# SPDX-License-Identifier: Apache-2.0
"""Facts that real jobs make, killed, cancelled, without their node: the numbers stay the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_colloc.core.model import Gres
from slurm_colloc.store.store import Store
from tests.cluster.lab import Lab
from tests.cluster.processes import with_environment
from tests.cluster.site import write_site
from tests.cluster.user import User
from tests.unit.made import HOUR, host, run
from tests.unit.stored import busy, sampled

pytestmark = pytest.mark.cluster

DAYS = 8
DAY_S = 24 * HOUR
WINDOW = ("--since", "1970-01-01T00:20:00+00:00", "--until", "1970-01-12T00:00:00+00:00")
# These days are long past.
KEPT = {"observe.keep_raw_days": "40000", "observe.keep_job_days": "40000"}
WAIT_S = 120.0


@pytest.fixture
def ann(lab: Lab) -> Iterator[User]:
    """A user with a store of several days, whose jobs run one by one."""
    site = write_site(lab, "engine-site", extra=KEPT)
    user = User(lab, "alice", site)
    user.environment["SBATCH_PARTITION"] = "gpu"
    store = Store(str(user.home / "days"))
    rows = [run(end_s=DAYS * DAY_S, gres=(Gres("gpu", "h100", 2),))]
    rows += [run(str(2 + day), start_s=day * DAY_S, end_s=(day + 2) * DAY_S, user=f"u{day % 3}") for day in range(DAYS)]
    store.write_allocations("a", rows, 1e6)
    store.write_log("a", {"rows_in": 1, "used": 1, "steps": 0, "rejected": {}})
    for day in range(DAYS):
        hours = [float(day * DAY_S + hour * HOUR) for hour in (1, 9, 17)]
        rounds = [*busy(*hours, util=33.3, sm=7.77), *busy(*hours, uuid="GPU-1", util=90.1, sm=None)]
        rounds += [one._replace(hosts=(host(),)) for one in busy(*hours, job=str(2 + day), uuid="GPU-2", sm=11.1)]
        sampled(store, rounds)
    person = lab.users["alice"]
    for folder, _, names in os.walk(store.samples.folder):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, person.uid, person.gid)
    yield user
    lab.run(["scancel", "-u", "alice"])
    subprocess.run(["rm", "-r", store.samples.folder], check=True)


def report(user: User) -> str:
    argv = ["colloc", "report", "--store", str(user.home / "days"), "--format", "json", *WINDOW]
    done = user.run(*argv)
    assert done.returncode == 0, done.stderr
    return done.stdout


def argv_of(user: User) -> list[str]:
    return ["colloc", "compact", "--store", str(user.home / "days"), "--anyway", "--engine", "slurm"]


def made(user: User) -> list[str]:
    return sorted(path.stem for path in (user.home / "days/facts").glob("c/*.parquet"))


def queued(user: User) -> list[str]:
    argv = ["squeue", "-h", "-r", "-u", user.name, "-t", "PENDING,RUNNING,SUSPENDED", "-o", "%i"]
    return user.lab.run(argv).stdout.split()


class Worker(NamedTuple):
    """A job whose worker has begun: its id of its own, as its array has it, the worker's pid, the node."""

    job: str
    task: str
    pid: int
    node: str


def running(user: User, but: Collection[str]) -> Worker:
    """Return a job whose worker has begun, but none of these."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        rows = user.lab.run(
            ["squeue", "-h", "-r", "-u", user.name, "-t", "RUNNING", "-o", "%A %i %N"]
        ).stdout.splitlines()
        for job, task, node in (row.split() for row in rows):
            here = [f"SLURM_CONF={user.lab.slurm_conf}", f"SLURM_JOB_ID={job}"]
            for worker in with_environment(here) if job not in but else ():
                if is_worker(worker.pid):
                    return Worker(job, task, worker.pid, node)
        time.sleep(0.02)
    raise AssertionError(f"no worker in {WAIT_S:g} s")


def is_worker(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"-P"]
    except OSError:
        return False


def begin(user: User) -> subprocess.Popen[str]:
    return subprocess.Popen(
        user.lab.command(argv_of(user), user.name),
        env=user.lab.environment(user.name) | user.environment,
        cwd=user.home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_lost_workers_change_nothing(lab: Lab, ann: User) -> None:
    before = report(ann)
    assert json.loads(before)["total"]["sm_used_gpu_hours"] > 0
    losses: dict[str, Callable[[Worker], object]] = {
        "FAILED": lambda worker: os.kill(worker.pid, signal.SIGKILL),
        "CANCELLED": lambda worker: lab.run(["scancel", worker.task], check=True),
        "NODE_FAIL": lambda worker: lab.run(
            ["scontrol", "update", f"NodeName={worker.node}", "State=DOWN", "Reason=test"], check=True
        ),
    }
    struck: dict[str, str] = {}
    with begin(ann) as compact:
        for state, strike in losses.items():
            worker = running(ann, struck)
            strike(worker)
            struck[worker.job] = state
        _, told = compact.communicate(timeout=WAIT_S)
    # Refused where the node has come back by itself.
    lab.run(["scontrol", "update", f"NodeName={worker.node}", "State=RESUME"])
    assert compact.returncode == 1, told
    states = {str(job): state for job, state in lab.wait_jobs(list(struck)).items()}
    assert {job: states[job] for job in struck} == struck
    # What a worker had written before it was struck is there, and the next run makes the others.
    assert 0 < told.count("; logs: ") <= len(struck)
    assert ann.run(*argv_of(ann)).returncode == 0
    assert (len(made(ann)), queued(ann)) == (DAYS, [])
    assert report(ann) == before
