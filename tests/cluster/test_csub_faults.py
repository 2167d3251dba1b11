# SPDX-License-Identifier: Apache-2.0
"""Whatever fails around csub: submitted once, or refused as sbatch refuses; counted in sacct after each fault."""

from __future__ import annotations

import itertools
import json
import os
import random
import shlex
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.estimate.snapshot import write_snapshot
from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.user import SLICE, SMALL, User, job_id, tres
from tests.unit.made import evidence

pytestmark = pytest.mark.cluster

ONE = tres(f"gpu:{SLICE}_1g.10gb:1")
WHOLE = tres("gpu:1")
NAMES = (f"fault-{number}" for number in itertools.count())
# How many jobs of each name there must be in the accounting when all is over.
LEDGER: dict[str, int] = {}


@pytest.fixture
def site(lab: Lab) -> Iterator[Path]:
    folder = write_site(lab, "fault-site")
    yield folder
    path = folder / "site.toml"
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


@pytest.fixture
def alice(lab: Lab, site: Path) -> User:
    user = User(lab, "alice", site)
    user.script("#!/bin/sh\n#SBATCH --gres=gpu:1\ntrue\n")
    return user


def count(alice: User, name: str, jobs: int) -> list[str]:
    """See that the controller knows so many jobs of this name, and enter them into the ledger."""
    LEDGER[name] = jobs
    found = alice.known(name)
    assert len(found) == jobs, found
    return found


@pytest.fixture
def ends(lab: Lab, alice: User) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Submit train.sh held, under a name of its own, and see that sacct has exactly so many jobs, asking for this."""

    def check(
        *before: str, jobs: int = 1, gres: str | None = ONE, hint: str = SMALL, **env: str
    ) -> subprocess.CompletedProcess[str]:
        name = next(NAMES)
        done = alice.run(*before, "csub", "-J", name, *filter(None, [hint]), "train.sh", **env)
        recorded = count(alice, name, jobs)
        if jobs == 1 and done.returncode == 0:
            assert job_id(done) == recorded[0]
            assert gres is None or alice.shown(recorded[0])["TresPerNode"] == gres, done.stderr
        if jobs == 0:
            assert "Submitted" not in done.stdout
        return done

    return check


Ends = Callable[..., subprocess.CompletedProcess[str]]


# --- history ---


def test_history_locked_corrupt_or_in_the_way(lab: Lab, alice: User, site: Path, ends: Ends) -> None:
    uid = lab.users["alice"].uid
    folder = site / "history"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o711)
    path = folder / f"{uid}.sqlite"
    shown = alice.run("csub", "--dry-run", "--format=json", "train.sh").stdout
    known = evidence(signature=json.loads(shown)["request"]["signature"], peak_mib=4000, sm_active_mean_pct=9.0)
    write_snapshot(str(path), [known], uid)
    assert "instead of" in ends(hint="").stderr, "the history alone places it"
    lock = sqlite3.connect(path)
    lock.execute("BEGIN EXCLUSIVE")
    try:
        assert "instead of" in ends(hint="").stderr, "nobody's lock is waited for"
    finally:
        lock.close()
    for content in (b"", b"garbage" * 1000, path.read_bytes()[:5000]):
        path.write_bytes(content)
        assert "history" in ends(hint="", gres=WHOLE).stderr
    path.unlink()
    path.mkdir()
    assert "history" in ends(hint="", gres=WHOLE).stderr
    path.rmdir()
    os.mkfifo(path)
    ends(hint="", gres=WHOLE)
    path.unlink()


def test_every_file_system_is_full(lab: Lab, alice: User, site: Path) -> None:
    """Home, the spool for decisions and TMPDIR: a share needs a script, so that one goes as asked."""
    text = (site / "site.toml").read_text().replace('order = ["mig", "mps", "shard"]', 'order = ["mps"]')
    (site / "site.toml").write_text(text)
    name, full = next(NAMES), alice.home / "full"
    mounts = f"mkdir -p {full}; mount -t tmpfs -o size=4k,mode=777 none {full}; dd if=/dev/zero of={full}/x 2>/dev/null"
    mounts += f"; mount --bind {full} {site}/spool; cd {alice.home}; exec "
    argv = ["csub", "-p", "gpu", "-J", name, SMALL, "train.sh"]
    command = lab.command(["env", f"HOME={full}", f"TMPDIR={full}", *argv], "alice")
    environment = lab.environment("alice") | alice.environment
    outer = ["unshare", "--mount", "sh", "-c", mounts + shlex.join(command)]
    done = subprocess.run(outer, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert count(alice, name, 1) == [job_id(done)], done
    assert alice.shown(job_id(done))["TresPerNode"] == WHOLE
    assert "cannot be written: No space left on device" in done.stderr


# --- around the process ---


def test_no_home_no_terminal_no_user(lab: Lab, ends: Ends) -> None:
    ends("env", "-u", "HOME", "-u", "USER", "-u", "LOGNAME", "-u", "TMPDIR", "-u", "SHELL")
    ends("setsid", "-w")
    ends("env", "HOME=/nonexistent", "TMPDIR=/nonexistent")
    ends("sh", "-c", 'umask 777; exec "$@"', "sh")
    ends("sh", "-c", 'ulimit -n 16; exec "$@"', "sh")
    ends("sh", "-c", 'exec "$@" <&- 2>&-', "sh")


def test_a_script_of_one_megabyte(lab: Lab, alice: User, site: Path) -> None:
    text = "#!/bin/sh\n#SBATCH --gres=gpu:1 -p gpu\n" + "# a line of a long script\n" * 40_000 + "true\n"
    assert len(text) > 1_000_000
    name = next(NAMES)
    job = alice.submit("-J", name, SMALL, alice.script(text, "large.sh"))
    assert count(alice, name, 1) == [job]
    assert alice.shown(job)["TresPerNode"] == tres("mps:12")
    stored = lab.run(["scontrol", "write", "batch_script", job, "-"]).stdout
    assert stored.startswith(text[:1_000_000])
    assert stored.rstrip("\n").endswith("true")


@pytest.mark.parametrize("name", ["two\nlines", "quote'\"$(touch x)`id`", "-dash", "ü\u202e", "a" * 900])
def test_odd_job_names(lab: Lab, alice: User, name: str) -> None:
    before = alice.jobs()
    done = alice.run("csub", f"--job-name={name}", SMALL, "train.sh")
    [new] = set(alice.jobs()) - set(before)
    assert new == job_id(done)
    assert ONE in lab.run(["scontrol", "show", "job", "-o", new]).stdout
    plain = job_id(alice.run("sbatch", f"--job-name={name}", "train.sh"))
    said = [lab.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%j"]).stdout for job in (new, plain)]
    assert said[0] == said[1]


KILLS = 40


def test_killed_at_any_instant(lab: Lab, alice: User) -> None:
    """SIGKILL from the first moment to after the answer: never two jobs, and none that was answered is missing."""
    chance = random.Random(4)
    environment = lab.environment("alice") | alice.environment
    outcomes: dict[str, str] = {}
    begun = time.monotonic()
    for _ in range(3):
        alice.submit(SMALL, "train.sh")
    whole_s = (time.monotonic() - begun) / 3
    for _ in range(KILLS):
        name = next(NAMES)
        argv = lab.command(["csub", "-J", name, SMALL, "train.sh"], "alice")
        running = subprocess.Popen(
            argv, cwd=alice.home, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        time.sleep(chance.uniform(0, 2 * whole_s))
        running.send_signal(signal.SIGKILL)
        outcomes[name] = running.communicate()[0].decode()
    time.sleep(2)  # an sbatch whose csub was killed may still be at it
    counts = {name: len(alice.known(name)) for name in outcomes}
    LEDGER.update(counts)
    assert max(counts.values()) == 1
    answered = {name for name, said in outcomes.items() if "Submitted" in said}
    assert all(counts[name] == 1 for name in answered)
    lost = sum(1 for name in outcomes if counts[name] == 0)
    assert 0 < lost < KILLS, "the instants reach from before to after the submission"


def test_in_the_end_the_accounting_has_the_same(lab: Lab, alice: User) -> None:
    assert len(LEDGER) > KILLS
    wanted = {name: jobs for name, jobs in LEDGER.items() if jobs}
    for _ in range(40):
        recorded = alice.recorded()
        if all(recorded[name] == jobs for name, jobs in wanted.items()):
            break
        time.sleep(1)  # a short job's row is shown some seconds after its end
    assert {name: recorded[name] for name in LEDGER} == LEDGER
