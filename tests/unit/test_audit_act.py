# SPDX-License-Identifier: Apache-2.0
"""What is done to a job that idles on, with programs in Slurm's place."""

from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.audit.job_actions import act, in_words
from slurm_colloc.audit.rules import entries
from slurm_colloc.audit.state import opened
from slurm_colloc.audit.timing import JOBS, Asked
from slurm_colloc.cli.colloc.audit_notify import notify
from slurm_colloc.core.audit_model import JOB
from slurm_colloc.core.clock import now
from slurm_colloc.core.config_audit import Notices
from tests.fakes.squeue import squeue_line
from tests.unit.golden import Printed
from tests.unit.made import HOUR, site
from tests.unit.mail_service import mail_service, plain
from tests.unit.noticed import finding, finds, idle_now, idle_site
from tests.unit.programs import program, timeless

SQUEUE = """test "$SLURM_TIME_FORMAT" = %s || exit 1
test -n "$SQUEUE_USERS" && exit 1
test -s "$FOLDER/ran" || cat "$FOLDER/squeue"
"""


def acts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, action: str, shown: str, scancel: str = "", **fields: Any
) -> tuple[str, list[tuple[str, str]], str]:
    """Return what is said of acting on job 12_3, what is recorded, and what was run."""
    monkeypatch.setenv("FOLDER", str(folder))
    monkeypatch.setenv("SQUEUE_USERS", "bob")
    (folder / "squeue").write_text(shown)
    (folder / "ran").write_text("")
    program(folder, "squeue", SQUEUE, monkeypatch)
    for name in ("scancel", "scontrol"):
        program(folder, name, f'echo {name} "$@" >> "$FOLDER/ran"\n{scancel}', monkeypatch)
    config = site()._replace(notices=Notices(actions={"COL001": action}))
    job = finding(about=JOB, subject="12_3")._replace(**fields)
    (folder / "state.sqlite").unlink(missing_ok=True)
    with opened(str(folder)) as state:
        said = in_words(act(state, job, config))
        return said, [(one.message, one.state) for one in state.notifications()], (folder / "ran").read_text()


def test_what_is_done_to_a_job_is_recorded_and_done_to_that_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    runs = squeue_line("12_3")
    done = [("cancel", "done")]
    assert acts(tmp_path, monkeypatch, "cancel", runs) == ("cancel: done", done, "scancel 12_3\n")
    held = ("hold: done", [("hold", "done")], "scontrol requeuehold 12_3\n")
    assert acts(tmp_path, monkeypatch, "hold", runs) == held
    gone = [
        squeue_line("12_3", StartTime="1767999999"),
        squeue_line("12_3", UserName="bob"),
        squeue_line("12_3", State="COMPLETING"),
        squeue_line("12_3", State="PENDING", StartTime="N/A"),
        "",
    ]
    heard = []
    for shown, cluster in (*((line, "c") for line in (*gone, "nonsense\n")), (runs, "d")):
        said, *left = acts(tmp_path, monkeypatch, "cancel", shown, cluster=cluster)
        heard.append(said)
        assert left == [[("cancel", "failed")], ""]
    heard.append(acts(tmp_path, monkeypatch, "cancel", runs, ': > "$FOLDER/ran"')[0])
    said, recorded, _ = acts(tmp_path, monkeypatch, "cancel", runs, "echo no >&2; exit 1")
    assert recorded == [("cancel", "tried")]
    printed("audit", *heard, said)


class Story:
    """Runs of the audit at times of a test's choice, that find what the test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        # In the morning: the admins' mail is one a day, and no story is to run into the next at night.
        self.now_s = now() // (24 * HOUR) * (24 * HOUR) + 8 * HOUR
        self.idle_s = self.now_s - 7200
        for module in ("cli.colloc.audit_notify", "audit.post", "audit.job_actions"):
            monkeypatch.setattr(f"slurm_colloc.{module}.now", lambda: self.now_s)
        self.config = idle_site(str(folder), **settings)

    def run(self, after_min: float, **fields: Any) -> list[str]:
        """Run so many minutes later, find job 12_3 idle, and return what was done."""
        self.now_s += 60 * after_min
        job = idle_now(**{"newest_s": self.now_s - 30, "idle_since_s": self.idle_s} | fields)
        said: list[str] = []
        notify(self.config, Asked(entries(self.config.audit), JOBS, 0.0), finds(job), said.append)
        return [line.strip().removeprefix("idle now 12_3: ") for line in said]


def test_a_job_is_cancelled_after_two_notices_that_were_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path))
    (tmp_path / "squeue").write_text(squeue_line("12_3"))
    program(tmp_path, "squeue", SQUEUE, monkeypatch)
    program(tmp_path, "scancel", 'echo "$@" >> "$FOLDER/ran"\n', monkeypatch)
    taken = mail_service(tmp_path, monkeypatch)
    story = Story(tmp_path / "state", monkeypatch, actions={"idle now": "cancel"})
    said = [story.run(after_min) for after_min in (0, 15, 46, 50, 50)]
    assert not (tmp_path / "ran").exists()
    said.append(story.run(21))
    assert (tmp_path / "ran").read_text() == "12_3\n"
    printed("audit", *map("; ".join, (*said, story.run(15))))
    first, second, third = map(plain, taken.to("ann@x"))
    printed("audit-mail", *map(timeless, (first, second, third)))
    assert (tmp_path / "ran").read_text() == "12_3\n"


def test_a_job_is_not_cancelled_while_a_notice_was_not_taken_or_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "scancel", f'echo "$@" >> {tmp_path}/ran\n', monkeypatch)
    taken = mail_service(tmp_path, monkeypatch)
    for number, what in enumerate(("67", "75", "take and die")):
        taken.forget()
        taken.odd("ann@x", what)
        story = Story(tmp_path / f"state{number}", monkeypatch, actions={"idle now": "cancel"})
        for _ in range(10):
            story.run(90)
        assert len(taken.to("ann@x")) == (what == "take and die")
    assert not (tmp_path / "ran").exists()


def test_a_notice_by_a_reading_that_the_rule_takes_is_sent_however_short_the_quiet_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = mail_service(tmp_path, monkeypatch)
    story = Story(tmp_path / "state", monkeypatch, job_wait_min=10.0)
    assert story.run(0, newest_s=story.now_s - 110 * 60, idle_since_s=story.now_s - 300 * 60) == ["notice handed over"]
    assert len(taken.to("ann@x")) == 1


def held_site(folder: Path, monkeypatch: pytest.MonkeyPatch, scontrol: str) -> Story:
    """Return a story whose job is told of twice, and is to be held by this program."""
    monkeypatch.setenv("FOLDER", str(folder))
    (folder / "squeue").write_text(squeue_line("12_3"))
    program(folder, "squeue", SQUEUE, monkeypatch)
    program(folder, "scontrol", f'echo "$@" >> "$FOLDER/tried"\n{scontrol}', monkeypatch)
    story = Story(folder / "state", monkeypatch, actions={"idle now": "hold"})
    assert story.run(0) == ["notice handed over"]
    assert story.run(61) == ["second notice handed over"]
    story.run(100)
    return story


def test_what_slurm_never_does_to_a_job_is_tried_once_and_said_to_the_admins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    never = "echo 'Requested operation is presently disabled for job 12_3' >&2; exit 1"
    taken = mail_service(tmp_path, monkeypatch)
    story = held_site(tmp_path, monkeypatch, never)
    said = [story.run(after_min) for after_min in (21, 15, 15)]
    printed("audit", *map("; ".join, said))
    assert (tmp_path / "tried").read_text() == "requeuehold 12_3\n"
    story.idle_s = story.now_s + 60 * 60
    story.run(24 * 60 - 30)
    assert len(taken.to("ann@x")) == 3  # two of the first spell, one of the next
    told = "".join(plain(mail) for mail in taken.to("root@x")).splitlines()
    printed("audit-mail", *dict.fromkeys(timeless(line) for line in told if "not tried" in line))
    # What went wrong for once is tried again.
    (tmp_path / "b").mkdir()
    story = held_site(tmp_path / "b", monkeypatch, "echo 'Unable to contact slurm controller' >&2; exit 1")
    for _ in range(2):
        assert story.run(21)[0].startswith("hold failed: ")
    assert (tmp_path / "b/tried").read_text() == "requeuehold 12_3\n" * 2


def test_a_user_is_told_of_what_a_killed_run_did_to_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    taken = mail_service(tmp_path, monkeypatch)
    story = held_site(tmp_path, monkeypatch, 'echo x >> "$FOLDER/ran"')

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as cut:
        cut.setattr("slurm_colloc.audit.job_actions._end", killed)
        with pytest.raises(KeyboardInterrupt):
            story.run(21)
    assert len(taken.to("ann@x")) == 2
    # The job is found no more: it is held.
    story.run(15, user="bob", subject="99")
    _, _, told = map(plain, taken.to("ann@x"))
    assert "scontrol release 12_3" in told
    printed("audit-mail", timeless(told))
    story.run(15, user="bob", subject="99")
    assert len(taken.to("ann@x")) == 3


# What Slurm does though nobody hears of it: at once, or when the run has looked already.
AT_ONCE, LATER = ': > "$FOLDER/squeue"', 'cp "$FOLDER/squeue" "$FOLDER/once"; : > "$FOLDER/squeue"'
NO_ANSWER = "echo 'slurm_kill_job: Socket timed out on send/recv operation' >&2; exit 1"
IN_TIME = """test -f "$FOLDER/mute" && { rm "$FOLDER/mute"; exit 1; }
if test -s "$FOLDER/once"; then cat "$FOLDER/once"; rm "$FOLDER/once"; else cat "$FOLDER/squeue"; fi
"""
OTHER: dict[str, Any] = {"user": "bob", "subject": "99"}


@pytest.mark.parametrize(
    ("scontrol", "said"),
    [
        (f"{AT_ONCE}; {NO_ANSWER}", "hold failed: 'scontrol requeuehold 12_3' ended with status 1"),
        (f"{LATER}; {NO_ANSWER}", "hold failed: 'scontrol requeuehold 12_3' ended with status 1"),
        (LATER, "hold failed: job 12_3 runs on"),
        (f'{AT_ONCE}; : > "$FOLDER/mute"', "hold failed: 'squeue "),
    ],
)
def test_a_user_is_told_of_what_slurm_did_to_a_job_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scontrol: str, said: str
) -> None:
    taken = mail_service(tmp_path, monkeypatch)
    story = held_site(tmp_path, monkeypatch, f"test $1 = requeuehold || exit 1\n{scontrol}")
    program(tmp_path, "squeue", IN_TIME, monkeypatch)
    (what,) = story.run(21)
    assert what.startswith(said)
    for _ in range(2):
        story.run(30, **OTHER)
    (told,) = [text for text in map(plain, taken.to("ann@x")) if "was stopped, requeued and held" in text]
    assert "your job 12_3 " in told


def test_a_user_is_told_where_the_command_of_a_killed_run_comes_between_two_looks_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = mail_service(tmp_path, monkeypatch)
    story = held_site(tmp_path, monkeypatch, "")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as cut:
        cut.setattr("slurm_colloc.audit.job_actions._still_runs", killed)
        with pytest.raises(KeyboardInterrupt):
            story.run(21)
    (tmp_path / "squeue").write_text("")
    story.run(0)
    story.run(30, **OTHER)
    assert sum("scontrol release 12_3" in plain(mail) for mail in taken.to("ann@x")) == 1


@pytest.mark.parametrize(("ended", "told"), [("COMPLETED", False), ("CANCELLED", True)])
def test_of_a_job_that_ended_by_itself_nobody_is_told_that_it_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str, told: bool, printed: Printed
) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path))
    (tmp_path / "squeue").write_text(squeue_line("12_3"))
    program(tmp_path, "squeue", SQUEUE, monkeypatch)
    program(tmp_path, "scancel", NO_ANSWER, monkeypatch)
    program(tmp_path, "scontrol", f"echo JobId=14 ArrayJobId=12 ArrayTaskId=3 JobState={ended}", monkeypatch)
    taken = mail_service(tmp_path, monkeypatch)
    story = Story(tmp_path / "state", monkeypatch, actions={"idle now": "cancel"})
    for after_min in (0, 61, 121):
        story.run(after_min)
    (tmp_path / "squeue").write_text("")
    for _ in range(2):
        story.run(5, **OTHER)
    _, _, *mails = map(plain, taken.to("ann@x"))
    assert len(mails) == told
    for mail in mails:
        printed("audit-mail", timeless(mail))
