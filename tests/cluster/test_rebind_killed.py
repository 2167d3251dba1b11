# SPDX-License-Identifier: Apache-2.0
"""A look that is killed behind each of its calls and writes: the job is as asked or as bound, and starts."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from tests.cluster.config import cluster_name
from tests.cluster.fixtures import RELEASE
from tests.cluster.lab import Lab
from tests.cluster.test_rebind import SMALL, _ended, bind, learn, look, tell, user_of  # noqa: F401
from tests.cluster.user import User, tres

pytestmark = pytest.mark.cluster

# One release goes through all steps; on the others the three kills that leave most behind.
EVERY_STEP = "26.05"
# Counts what leaves something behind: a program that was called, and a file that has come, gone or got its name.
KILLED = """
import os, signal, sys
from slurm_colloc.core import process
from slurm_colloc.rebind.program import main
last, undo, seen = int(sys.argv[1]), sys.argv[2] == "undo", []
def step(frame, event, arg):
    if event == "c_return" and arg in (os.replace, os.rename, os.unlink, os.utime):
        seen.append(arg.__name__)
    elif event == "return" and frame.f_code is process.run.__code__:
        seen.append(" ".join(frame.f_locals["argv"][:2]))
    else:
        return
    print(seen[-1], flush=True)
    if len(seen) == last:
        os.kill(os.getpid(), signal.SIGKILL)
sys.setprofile(step)
main(0, undo=undo)
"""


class Way(NamedTuple):
    """How a job asks, what it becomes, and each as slurmctld shows it."""

    mode: str
    words: tuple[str, ...]
    asked: dict[str, str]
    bound: dict[str, str]
    has: tuple[str, str]


SLICE_TRES = f"gres/{SMALL.rpartition(':')[0]}"
SHARES = Way(
    "mps", ("--gpus=h100:1",), {"TresPerJob": tres("gpu:h100:1")}, {"TresPerNode": tres("mps:6")}, ("gres/mps", "6")
)
# 22.05 shows a slice of a request without a type in another field, and of any job the old field with nothing in it.
SLICES = Way("mig", ("--gres=gpu:1", "-p", "all"), {"TresPerNode": tres("gpu:1")}, {}, (SLICE_TRES, "1"))
WAY = SLICES if RELEASE == "22.05" else SHARES


def killed(user: User, step: int, what: str) -> list[str]:
    """Have a look be killed behind this step, 0 for none, and return the steps that it came to."""
    done = user.run(str(user.lab.bin / "python"), "-I", "-c", KILLED, str(step), what)
    steps = done.stdout.splitlines()
    assert done.returncode == (-9 if step and len(steps) == step else 0), done.stderr
    return steps


def submitted(user: User, way: Way = WAY) -> list[str]:
    """Submit two held jobs of which nobody knows the need, then have it known; csub itself has nobody look."""
    tell(user)
    look(user)  # what is gone by now takes no step of the look that is killed
    folder = user.home / ".local/share/slurm_colloc/waiting" / cluster_name(user.lab.ports.numbers)
    user.run("sh", "-c", 'umask 77; mkdir -p "$1"; touch "$1/looked"', "sh", str(folder))
    jobs = [user.submit("-H", *way.words, "train.sh") for _ in range(2)]
    learn(user, *way.words, "train.sh")
    return jobs


def request(user: User, job: str) -> dict[str, str]:
    """Return what a job asks of GPUs, as slurmctld has it."""
    return {name: value for name, value in user.shown(job).items() if name.startswith("TresPer") and value}


def is_bound(user: User, job: str) -> bool:
    """Return whether a job is as bound; it fails where it is neither that nor as asked."""
    found = request(user, job)
    if RELEASE == "22.05":
        return found != WAY.asked
    assert found in (WAY.asked, WAY.bound), found
    return found == WAY.bound


def starts(user: User, job: str, *, shares: bool) -> None:
    """Let a job go, and see that it runs to its end on one or the other."""
    user.run("scontrol", "release", job)
    assert user.lab.wait_jobs([job]) == {int(job): "COMPLETED"}
    name, amount = WAY.has if shares else ("gres/gpu:h100", "1")
    given = user.allocated(job)
    assert given.get(name) == amount, given
    assert (user.home / f"out.{job}").read_text().splitlines()[-2:] == ["step", "end"]


def update_in(steps: list[str]) -> int:
    """Return the number of the update: the first call of scontrol for jobs only shows them."""
    return [number for number, name in enumerate(steps, 1) if name == "scontrol -o"][1]


def chosen(steps: list[str]) -> list[int]:
    """Return behind which steps a look is killed: all, or just before and behind the update, and at the end."""
    if RELEASE == EVERY_STEP:
        return list(range(1, len(steps) + 1))
    update = update_in(steps)
    return [update - 1, update, len(steps)]


def test_killed_behind_each_step_of_a_binding(lab: Lab) -> None:
    user = user_of(lab, WAY.mode)
    jobs = submitted(user)
    steps = killed(user, 0, "")
    assert [is_bound(user, job) for job in jobs] == [True, True]
    user.run("scancel", *jobs)
    for step in chosen(steps):
        now, later = jobs = submitted(user)
        assert len(killed(user, step, "")) == step
        # The one is let go as it is, the other when somebody has looked once more.
        starts(user, now, shares=is_bound(user, now))
        bind(user, later)
        assert is_bound(user, later)
        starts(user, later, shares=True)
        assert [user.jobs().count(job) for job in jobs] == [1, 1]
    print(len(steps), "steps:", ", ".join(steps))


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 knows no way back from a slice")
def test_killed_behind_each_step_of_the_way_back(lab: Lab) -> None:
    user = user_of(lab, WAY.mode)
    jobs = submitted(user)
    for job in jobs:
        bind(user, job)
    steps = killed(user, 0, "undo")
    assert [is_bound(user, job) for job in jobs] == [False, False]
    user.run("scancel", *jobs)
    for step in chosen(steps):
        now, later = jobs = submitted(user)
        for job in jobs:
            bind(user, job)
        assert len(killed(user, step, "undo")) == step
        starts(user, now, shares=is_bound(user, now))
        killed(user, 0, "undo")
        assert not is_bound(user, later)
        starts(user, later, shares=False)
        assert [user.jobs().count(job) for job in jobs] == [1, 1]
    print(len(steps), "steps:", ", ".join(steps))


# A job that names no type of GPU may be given the slice by Slurm itself, and only such a one is changed on 22.05.
ON_22_05 = pytest.mark.skipif(RELEASE == "22.05", reason="22.05 changes no request that names its type")


@pytest.mark.parametrize(
    ("what", "behind", "bound"),
    [
        pytest.param("", False, False, marks=ON_22_05),
        ("", True, True),
        pytest.param("undo", True, False, marks=ON_22_05),
    ],
)
def test_killed_around_the_update_a_job_says_what_it_was_given(
    lab: Lab, what: str, *, behind: bool, bound: bool
) -> None:
    """A slice looks as a whole GPU does, and the look had no time to write down how it ended."""
    way = SLICES if RELEASE == "22.05" else SLICES._replace(words=("--gres=gpu:h100:1", "-p", "all"))
    user = user_of(lab, way.mode)
    jobs = submitted(user, way)
    if what:
        for job in jobs:
            bind(user, job)
    steps = killed(user, 0, what)
    user.run("scancel", *jobs)
    job, later = submitted(user, way)
    if what:
        for one in (job, later):
            bind(user, one)
    killed(user, update_in(steps) - (not behind), what)
    user.run("scontrol", "release", job)
    assert lab.wait_jobs([job]) == {int(job): "COMPLETED"}
    assert (SLICE_TRES in user.allocated(job)) is bound
    words, *rest = (user.home / f"out.{job}").read_text().splitlines()
    assert (f"; became {SMALL} at " in words, words.startswith("mps=")) == (bound, not bound)
    assert rest[-2:] == ["step", "end"]
    look(user)
    lab.wait_accounted([job])
    decision = json.loads(user.run("colloc", "job", job, "--format=json").stdout)["decision"]
    assert decision["given"] == (SMALL if bound else "as asked")
    user.run("scancel", later)
