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
from tests.unit.made import site
from tests.unit.mail_service import mail_service, plain
from tests.unit.noticed import finding, finds, idle_now, idle_site
from tests.unit.programs import program

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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = squeue_line("12_3")
    done = [("cancel", "done")]
    assert acts(tmp_path, monkeypatch, "cancel", runs) == ("cancel: done", done, "scancel 12_3\n")
    held = ("hold: done", [("hold", "done")], "scontrol requeuehold 12_3\n")
    assert acts(tmp_path, monkeypatch, "hold", runs) == held
    cases: list[tuple[str, dict[str, Any], str]] = [
        (squeue_line("12_3", StartTime="1767999999"), {}, "does not run any more, or was started anew"),
        (squeue_line("12_3", UserName="bob"), {}, "does not run any more"),
        (squeue_line("12_3", State="COMPLETING"), {}, "does not run any more"),
        (squeue_line("12_3", State="PENDING", StartTime="N/A"), {}, "does not run any more"),
        ("", {}, "does not run any more"),
        ("nonsense\n", {}, "'squeue' printed 1 lines of another form"),
        (runs, {"cluster": "d"}, "is of the cluster 'd'"),
    ]
    for shown, fields, why in cases:
        said, recorded, ran = acts(tmp_path, monkeypatch, "cancel", shown, **fields)
        assert said.startswith("cancel failed: ")
        assert why in said
        assert (recorded, ran) == ([("cancel", "failed")], "")
    assert acts(tmp_path, monkeypatch, "cancel", runs, ': > "$FOLDER/ran"')[0].startswith(
        "cancel failed: job 12_3 runs on"
    )
    said, recorded, _ = acts(tmp_path, monkeypatch, "cancel", runs, "echo no >&2; exit 1")
    assert (said, recorded) == ("cancel failed: 'scancel 12_3' ended with status 1: no", [("cancel", "tried")])


class Story:
    """Runs of the audit at times of a test's choice, that find what the test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.now_s = now()
        self.idle_s = self.now_s - 7200
        for module in ("cli.colloc.audit_notify", "cli.colloc.audit_mails", "audit.post", "audit.job_actions"):
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path))
    (tmp_path / "squeue").write_text(squeue_line("12_3"))
    program(tmp_path, "squeue", SQUEUE, monkeypatch)
    program(tmp_path, "scancel", 'echo "$@" >> "$FOLDER/ran"\n', monkeypatch)
    quiet = "not told: told, and the quiet period is not over"
    taken = mail_service(tmp_path, monkeypatch)
    story = Story(tmp_path / "state", monkeypatch, actions={"idle now": "cancel"})
    assert story.run(0) == ["notice handed over"]
    assert story.run(15) == [quiet]
    assert story.run(46) == ["second notice handed over"]
    assert story.run(50) == [quiet]
    assert story.run(50) == [quiet]
    assert not (tmp_path / "ran").exists()
    assert story.run(21) == ["cancel: done"]
    assert (tmp_path / "ran").read_text() == "12_3\n"
    assert story.run(15) == ["not told: acted on: cancel"]
    first, second, third = map(plain, taken.to("ann@x"))
    assert "your job 12_3 on the cluster c was cancelled, as two notices had said." in third
    assert "Next:   if it is still found after 1 h, you are told again" in first
    assert "Next:   if it is still found then, it is cancelled, not before 2 h after this mail was" in second
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = "echo 'Requested operation is presently disabled for job 12_3' >&2; exit 1"
    taken = mail_service(tmp_path, monkeypatch)
    story = held_site(tmp_path, monkeypatch, never)
    (said,) = story.run(21)
    assert said.startswith("hold is impossible for this job, and not tried again: 'scontrol requeuehold 12_3' ended")
    assert story.run(15) == story.run(15) == ["not told: hold is impossible for this job"]
    assert (tmp_path / "tried").read_text() == "requeuehold 12_3\n"
    story.idle_s = story.now_s + 60 * 60
    story.run(24 * 60 - 30)
    assert len(taken.to("ann@x")) == 3  # two of the first spell, one of the next
    told = [plain(mail) for mail in taken.to("root@x")]
    assert any("hold is impossible for this job, and not tried again" in text for text in told), told
    # What went wrong for once is tried again.
    (tmp_path / "b").mkdir()
    story = held_site(tmp_path / "b", monkeypatch, "echo 'Unable to contact slurm controller' >&2; exit 1")
    for _ in range(2):
        assert story.run(21)[0].startswith("hold failed: ")
    assert (tmp_path / "b/tried").read_text() == "requeuehold 12_3\n" * 2


def test_a_user_is_told_of_what_a_killed_run_did_to_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "your job 12_3 on the cluster c was stopped, requeued and held, as two notices had said." in told
    assert "scontrol release 12_3" in told
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
    assert sum("was stopped, requeued and held" in plain(mail) for mail in taken.to("ann@x")) == 1


@pytest.mark.parametrize(("ended", "told"), [("COMPLETED", False), ("CANCELLED", True)])
def test_of_a_job_that_ended_by_itself_nobody_is_told_that_it_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str, told: bool
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
    assert any("was cancelled, as two notices" in plain(mail) for mail in taken.to("ann@x")) is told
