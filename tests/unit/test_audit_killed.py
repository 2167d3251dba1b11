# SPDX-License-Identifier: Apache-2.0
"""Runs killed at any instant: second notices, what is done to jobs and given to the command, none twice, none lost."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_colloc.audit.escalation import DOUBTFUL
from slurm_colloc.audit.state import opened
from tests.fakes.squeue import squeue_line
from tests.unit.mail_service import Taken, mail_service, plain
from tests.unit.programs import program
from tests.unit.test_audit_post import command, got

USERS = tuple(f"user{number}" for number in range(4))
# A whole run on a clock of the test's choice, that finds what the test says: argv are folder, command and time.
RUN = """
import sys
from tests.unit.noticed import finding, finds, idle_now, idle_site
from slurm_colloc.audit.rules import entries
from slurm_colloc.audit.timing import JOBS, Asked
from slurm_colloc.cli.colloc import audit_notify
from slurm_colloc.audit import job_actions, post

folder, command, at_s, users = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]
for module in (audit_notify, job_actions, post):
    module.now = lambda: at_s
config = idle_site(folder, command=command, actions={"idle now": "cancel"})
jobs = [
    idle_now(subject=str(at), user=user, newest_s=at_s - 30, idle_since_s=1.7e9, digest=f"of {at}",
             jobs=(finding().jobs[0]._replace(job_id=str(at)),))
    for at, user in enumerate(users, 1) if user
]
open(folder.removesuffix("state") + "at work", "w").close()
sys.exit(audit_notify.notify(config, Asked(entries(config.audit), JOBS, 0.0), finds(*jobs), len)[0])
"""
# A job is a file, that is there or is not; as in slurmctld, nothing is in between.
SCANCEL = 'mv "$FOLDER/jobs/$1" "$FOLDER/cancelled/"\n'
SQUEUE = 'for last; do :; done; cat "$FOLDER/jobs/$last" 2>/dev/null || :\n'


class Story:
    """Runs that are killed, in a folder of their own, at one time after the other."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance, self.at_s = folder, chance, 1_800_000_000.0
        folder.mkdir()
        for name in ("jobs", "cancelled"):
            (folder / name).mkdir()
        for number, user in enumerate(USERS, 1):
            (folder / f"jobs/{number}").write_text(squeue_line(str(number), UserName=user))
        self.argv = [str(folder / "state"), command(folder)]
        self.environment = os.environ | {"FOLDER": str(folder)}

    def run(self, kill: bool) -> int:
        """Run, or be killed in it, with the jobs that still run."""
        users = [user if (self.folder / f"jobs/{at}").exists() else "" for at, user in enumerate(USERS, 1)]
        (self.folder / "at work").unlink(missing_ok=True)
        argv = [sys.executable, "-c", RUN, *self.argv, str(self.at_s), *users]
        running = subprocess.Popen(argv, env=self.environment, stderr=subprocess.PIPE)
        if kill:
            self.wait(running)
            running.send_signal(signal.SIGKILL)
        said = running.communicate()[1].decode()
        assert "Traceback" not in said, said
        return running.returncode

    def wait(self, running: "subprocess.Popen[bytes]") -> None:
        """Wait until the run is at work, its imports take most of the time, and then for some of it."""
        at_work = self.folder / "at work"
        while not at_work.exists() and running.poll() is None:
            time.sleep(0.005)
        time.sleep(self.chance.random() * 1.2)

    def step(self, after_min: float, kills: int) -> None:
        """Let time pass; be killed so often, and then run to the end."""
        self.at_s += 60 * after_min
        for _ in range(kills):
            self.run(kill=True)
        assert self.run(kill=False) in (0, 1, 2)


def kill_and_look(folder: Path, monkeypatch: pytest.MonkeyPatch, stories: int, kills: int, seed: int) -> None:
    program(folder, "squeue", SQUEUE, monkeypatch)
    program(folder, "scancel", SCANCEL, monkeypatch)
    chance = random.Random(seed)
    for number in range(stories):
        taken = mail_service(folder / f"mails{number}", monkeypatch, slow_s=0.02)
        story = Story(folder / f"story{number}", chance)
        for after_min in (0, 61, 61, 61, 1):
            story.step(after_min, kills)
        taken.settle()
        settled(story, taken)
        ids = [json.loads(content)["id"] for content in got(story.folder)]
        assert len(ids) == len(set(ids)), "the command had the same twice"


def settled(story: Story, taken: Taken) -> None:
    """Check that each user had both notices before their job was cancelled, once, and was told of that."""
    assert len(taken.ids()) == len(set(taken.ids())), "a mail came twice"
    cancelled = {path.name for path in (story.folder / "cancelled").iterdir()}
    with opened(str(story.folder / "state/audit")) as state:
        assert state._all("PRAGMA integrity_check") == [("ok",)]
        doubtful = {one.user for one in state.messages(DOUBTFUL)}
        assert state.actions("begun") == []
    for number, user in enumerate(USERS, 1):
        texts = [plain(mail) for mail in taken.to(f"{user}@x")]
        told = ["was cancelled, as two notices" in text for text in texts]
        if user not in doubtful:
            assert (told, str(number) in cancelled) == ([False, False, True], True), user
        elif str(number) in cancelled:
            # One in doubt is no warning: both that are counted were handed over, and only its end can be in doubt.
            assert told[:2] == [False, False]


def test_second_notices_and_actions_of_runs_that_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_and_look(tmp_path, monkeypatch, 1, 1, 5)


@pytest.mark.soak
def test_second_notices_and_actions_of_two_hundred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_and_look(tmp_path, monkeypatch, 10, 5, int(os.environ.get("COLLOC_SEED", "13")))
