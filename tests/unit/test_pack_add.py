# SPDX-License-Identifier: Apache-2.0
"""csub pack --add, unmodified, against the real program of a pack's job: taken and run, or refused, and never both."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from pathlib import Path

import pytest

from slurm_colloc.errors import InputError
from slurm_colloc.files import remove
from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.inbox import Inbox, added_tasks, put
from slurm_colloc.pack.ledger import Ledger, missing, read_ledger
from slurm_colloc.pack.spec import Task
from tests.cluster.packs import a_spec, pack_script
from tests.fakes.squeue import squeue_line
from tests.unit.programs import executable
from tests.unit.shell import CSUB, HINT, Shell
from tests.unit.test_csub_pack import packed, site, stored
from tests.unit.test_pack import Job
from tests.waiting import wait_for

STAY = "touch here; until [ -e go ]; do sleep 0.05; done"


class Pack(Job):
    """A pack's job, and the csub of its user."""

    def __init__(self, shell: Shell) -> None:
        (shell.folder / "node").mkdir()
        super().__init__(shell.folder / "node")
        self.shell, self.home = shell, shell.folder / "home"
        executable(shell.folder / "bin/squeue", '#!/bin/sh\ncat "$CALLS/../queue"\n')
        self.left("1:00:00")

    def told(self, name: str = "4711") -> Ledger:
        return read_ledger(self.ledger.replace("4711", name))

    def left(self, time_left: str) -> None:
        (self.shell.folder / "queue").write_text(squeue_line("4711", TimeLeft=time_left))

    @property
    def ledger(self) -> str:
        return f"{self.home}/.local/share/slurm_colloc/packs/lab/4711.jsonl"

    def begin(self, *argv: str, **environ: str) -> subprocess.Popen[str]:
        """Submit a pack, and run its job until its first task runs."""
        packed(self.shell, "pack", "--gres=gpu:1", "-t", "10", "--output=out.%a", *argv)
        return self.again(stored(self.shell).encode(), **environ)

    def again(self, content: bytes, **environ: str) -> subprocess.Popen[str]:
        started = self.start(content, HOME=str(self.home), **environ)
        self.wait_for("here")
        return started

    def add(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.shell.run("pack", "--add=4711", *argv)

    def refused(self, *argv: str) -> str:
        done = self.add(*argv)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        return done.stderr

    def said(self, number: int) -> str:
        wait_for(lambda: (self.folder / f"out.{number}").exists() and self.read(f"out.{number}"), "no output", 30)
        return self.read(f"out.{number}")

    def end(self, started: subprocess.Popen[str]) -> tuple[int, str]:
        (self.folder / "go").touch()
        out, err = started.communicate(timeout=60)
        return started.returncode, out + err


@pytest.fixture
def pack(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Pack:
    site(shell)
    monkeypatch.setenv("HOME", str(shell.folder / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return Pack(shell)


def test_a_free_place_takes_an_added_task_at_once(pack: Pack) -> None:
    pack.mps()
    started = pack.begin(HINT, "--pack-tasks=2", "--mem=100M", "--", "sh", "-c", STAY)
    (pack.shell.folder / "list").write_text("echo one\necho two\n")
    done = pack.add("list")
    assert (done.returncode, done.stdout.split(" on ")[0]) == (0, "Added task 2-3 to job 4711"), done.stderr
    assert f"output: {pack.folder}/out.%a" in done.stderr
    assert (pack.said(2), pack.said(3), started.poll()) == ("one\n", "two\n", None)
    assert pack.end(started)[0] == 0
    assert [task.outcome for task in pack.told().tasks] == [Outcome.DONE] * 3
    assert (pack.told().job["SLURM_JOB_ID"], missing([pack.told()])) == ("4711", ())


def test_a_full_pack_takes_one_when_a_place_is_free(pack: Pack) -> None:
    started = pack.begin(HINT, "--", "sh", "-c", STAY)
    (pack.shell.folder / "list").write_text("# more\necho $CSUB_PACK_TASK $SLURM_ARRAY_JOB_ID\n")
    assert pack.add("list").returncode == 0
    time.sleep(1.2)
    assert not (pack.folder / "out.2").exists()
    status, said = pack.end(started)
    assert (status, "2 tasks: 2 succeeded" in said, pack.read("out.2")) == (0, True, "2 4711\n")


def test_one_that_has_ended_refuses_and_names_no_task(pack: Pack) -> None:
    assert "is not a running pack of yours that takes tasks" in pack.refused("--", "true")
    started = pack.begin(HINT, "--", "sh", "-c", STAY)
    assert pack.end(started)[0] == 0
    assert "is not a running pack of yours that takes tasks" in pack.refused("--", "true")
    # A node that died left its inbox.
    Path(pack.ledger.replace(".jsonl", ".inbox")).mkdir()
    (pack.shell.folder / "queue").write_text("")
    assert "job 4711 is not a running job of yours" in pack.refused("--", "true")
    assert missing([pack.told()]) == ()


def test_what_does_not_fit_is_refused_and_the_pack_goes_on(pack: Pack) -> None:
    started = pack.begin(HINT, "--pack-tasks=2", "--", "sh", "-c", STAY)
    pack.left("9:00")
    assert "has 0:09:00 left" in pack.refused("--", "true")
    pack.left("1:00:00")
    assert pack.add("--dry-run", "--", "true").returncode == 0
    for wrong in ("--mem=8G", "-pgpu", "--pack-tasks=3", "--time=5", "--gpu-footprint=mem=1G", "--resume=4711"):
        pack.refused(wrong, "--", "true")
    (pack.shell.folder / "list").write_text("#SBATCH --mem=8G\ntrue\n")
    pack.refused("list")
    pack.refused()
    status, said = pack.end(started)
    assert (status, "1 task: 1 succeeded" in said) == (0, True)


def test_what_was_added_and_not_begun_is_run_by_the_next_pack(pack: Pack) -> None:
    started = pack.begin(HINT, "--", "sh", "-c", STAY)
    (pack.shell.folder / "list").write_text("touch a\ntouch b\n")
    assert pack.add("list").returncode == 0
    started.terminate()
    status, said = pack.end(started)
    assert (status, "not run: 2-3\n" in said, missing([pack.told()])) == (143, True, (1, 2, 3))
    shown = pack.shell.run("pack", "--add=4711", "--", "true")
    assert shown.returncode == 2
    (pack.shell.folder / "queue").write_text("")
    done = pack.shell.run("pack", "--resume=4711")
    assert done.returncode == 0, done.stderr
    status, out, err = pack.run(stored(pack.shell).encode(), HOME=str(pack.home), SLURM_JOB_ID="4800")
    assert (status, "3 tasks: 3 succeeded" in out, (pack.folder / "b").exists()) == (0, True, True), err
    assert pack.told("4800").spec.added == (Task(2, "touch a"), Task(3, "touch b"))


def test_what_was_added_is_run_by_a_job_that_slurm_requeued(pack: Pack) -> None:
    started = pack.begin(HINT, "--", "sh", "-c", STAY)
    script = stored(pack.shell).encode()
    assert pack.add("--", "touch", "added").returncode == 0
    started.kill()
    started.communicate(timeout=30)
    again = pack.again(script, SLURM_RESTART_COUNT="1")
    assert pack.add("--", "touch", "later").stdout.startswith("Added task 3 to job 4711")
    status, said = pack.end(again)
    assert (status, "3 tasks: 3 succeeded" in said, (pack.folder / "added").exists()) == (0, True, True), said
    # A job of that id which begins for the first time is another one.
    status, said, _ = pack.run(script, HOME=str(pack.home))
    assert (status, "1 task: 1 succeeded" in said) == (0, True)


def test_two_adds_at_once_get_numbers_of_their_own(pack: Pack) -> None:
    started = pack.begin(HINT, "--", "sh", "-c", STAY)
    argv = [str(CSUB), "pack", "--add=4711", "--", "sh", "-c", "echo x >>both"]
    adding = [
        subprocess.Popen(argv, cwd=pack.shell.folder, env=pack.shell.environment(), stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = {one.communicate(timeout=60)[0].split()[2] for one in adding}
    assert said == {"2", "3", "4"}
    assert pack.end(started)[0] == 0
    assert pack.read("both") == "x\n" * 3


def test_what_many_add_while_packs_end_is_taken_or_refused_and_never_both(tmp_path: Path) -> None:
    (tmp_path / "packs").mkdir(0o700)
    taken: list[int] = []
    accepted: list[int] = []
    for turn in range(60):
        ledger = str(tmp_path / f"packs/{turn}.jsonl")
        inbox, ended = Inbox(ledger, pytest.fail), threading.Event()

        def adder(numbers: range, ledger: str = ledger, ended: threading.Event = ended) -> None:
            for number in numbers:
                try:
                    path = put(ledger, [Task(number, "true")])
                except InputError:
                    continue
                if random.random() < 0.5:
                    ended.wait(0.001)
                if not remove(path):
                    accepted.append(number)

        adders = [threading.Thread(target=adder, args=(range(at, at + 20),)) for at in (1000 * turn, 1000 * turn + 500)]
        for one in adders:
            one.start()
        ends_s = time.monotonic() + random.random() * 0.01
        found = inbox.take()
        while time.monotonic() < ends_s or not inbox.close():
            found += inbox.take()
        ended.set()
        for one in adders:
            one.join()
        assert list(added_tasks(ledger)) == sorted(found)
        taken += [task.number for task in found]
    assert sorted(taken) == sorted(accepted)
    assert 0 < len(taken) < 60 * 40


def test_a_file_that_the_pack_cannot_read_keeps_it_from_nothing(tmp_path: Path) -> None:
    inbox = Inbox(str(tmp_path / "1.jsonl"), pytest.fail)
    path = tmp_path / "1.inbox/7"
    for content in ("{", '[{"number": 7, "further": 1}]', "[[" * 100_000):
        path.write_text(content)
        assert inbox.take() == []
    (tmp_path / "1.inbox/8").symlink_to(path)
    assert inbox.take() == []
    assert inbox.close()
    assert remove(str(path))


def test_a_pack_without_a_ledger_takes_none(pack: Pack) -> None:
    folder = pack.home / ".local/share/slurm_colloc/packs/lab"
    folder.parent.mkdir(parents=True, mode=0o700)
    folder.write_text("")
    content = pack_script("", a_spec(commands=(STAY,)))
    started = pack.again(content)
    assert "is not a running pack of yours that takes tasks" in pack.refused("--", "true")
    assert pack.end(started)[0] == 0
