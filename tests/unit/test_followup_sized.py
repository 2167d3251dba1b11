# SPDX-License-Identifier: Apache-2.0
"""The companion of a job that is measured first: at every step something may happen, and the rest runs once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc import clock
from slurm_colloc.errors import ProcessError, UnansweredError
from slurm_colloc.followup import companion, sized
from slurm_colloc.followup.record import CSUB, FIRST, claim, read_outcome, record_folder, write_record
from slurm_colloc.followup.sized import size_the_rest, write_rest
from slurm_colloc.history.records import drop_evidence, read_evidence
from slurm_colloc.process import Finished
from slurm_colloc.slurm.running import Task, parse_tasks
from tests.unit.made import evidence, site
from tests.unit.test_followup_retry import accounted, record

GIVEN = "gpu:h100_1g.10gb:1"
TOLD = record(
    why=FIRST, name="first-10", job_id="10", array="1", options=("--array=2-3",), own=("--canary=off",), kind="canary"
)


class Died(BaseException):
    """The companion was killed."""


class Slurm:
    """A made-up Slurm: job 10 is measured, job 12 is the rest, job 13 is what is submitted in its place.

    ``at`` says what happens before a question or a command whose words hold the key.
    """

    def __init__(self, data: Path) -> None:
        self.data = data
        self.ended = accounted("10_1", "10", "COMPLETED", "0:0")
        self.rest = {2: "PENDING", 3: "PENDING"}
        self.sized: dict[int, str] = {}
        self.reason = "Dependency"
        self.gres = "gres/gpu:h100_1g.10gb:1"
        self.foreseen = GIVEN
        self.waiting: list[str] = []
        self.at: dict[str, Callable[[], None]] = {}

    def happens(self, words: Sequence[str]) -> str:
        line = " ".join(words)
        for key in [key for key in self.at if key in line]:
            self.at.pop(key)()
        return line

    def csub(self, folder: str, told: Any, words: Sequence[str], environ: Mapping[str, str], marker: str) -> Finished:
        line = self.happens(["csub", *words])
        assert json.loads(Path(marker).read_text())["attempt"] == 0
        if "--dry-run" in words:
            memory = {"q50": 1.0} if self.foreseen else None
            placement = {"gres": self.foreseen or "as asked", "reasons": ["sized by job 10", "it is too large"]}
            shown = {"placement": placement, "footprint": {"gpu_mem_peak_mib": memory, "provenance": ["not known"]}}
            return Finished(0, json.dumps(shown).encode(), b"")
        assert line.endswith("--array=2-3 --dependency=afternotok:12 --kill-on-invalid-dep=yes")
        self.sized = dict.fromkeys(self.rest, "PENDING")
        self.happens(["submitted"])
        return Finished(0, b"Submitted batch job 13\n", b"")

    def ask(self, words: Sequence[str], timeout_s: float, environ: Mapping[str, str]) -> bytes:
        assert "SQUEUE_PARTITION" not in environ
        line = self.happens(words)
        if line.startswith("scontrol"):
            return f"JobId=13 JobState=PENDING TresPerNode={self.gres}\n".encode()
        if "-u" in words:
            sized = ["13|afternotok:12(unfulfilled)"] if "PENDING" in self.sized.values() else []
            return "\n".join(["12|afterany:11(unfulfilled)", *sized, *self.waiting]).encode()
        of = self.rest if "12" in words else self.sized
        return "".join(f"{task}|{state}|{_ran(state)}|{self.reason}\n" for task, state in of.items()).encode()

    def run(self, words: Sequence[str], timeout_s: float, environ: Mapping[str, str]) -> Finished:
        assert "SCANCEL_NAME" not in environ
        self.happens(words)
        job, _, task = words[-1].partition("_")
        of = self.rest if job == "12" else self.sized
        for number, state in of.items():
            if (not task or number == int(task)) and state == "PENDING":
                of[number] = "CANCELLED"
        return Finished(0, b"", b"")

    @property
    def runs(self) -> dict[int, int]:
        """Return how often each task of the rest will run, or has run, once the companion has ended."""
        well = all(state in ("PENDING", "RUNNING") for state in self.rest.values())
        return {
            task: (state != "CANCELLED") + (self.sized.get(task) == "PENDING" and not well)
            for task, state in self.rest.items()
        }

    def follow(self) -> str:
        folder = record_folder("c", "first-10")
        size_the_rest(folder, TOLD, {"SLURM_JOB_ID": "11"})
        outcome = read_outcome(folder)
        return outcome.said if outcome else ""


def _ran(state: str) -> str:
    return "0:07" if state in ("RUNNING", "COMPLETED") else "0:00"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("SQUEUE_PARTITION", "SCANCEL_NAME"):
        monkeypatch.setenv(name, "elsewhere")
    made = Slurm(tmp_path / "slurm_colloc")
    monkeypatch.setattr(sized, "ask", made.ask)
    monkeypatch.setattr(sized, "run", made.run)
    monkeypatch.setattr(companion, "call_csub", made.csub)
    monkeypatch.setattr(companion, "site", site)
    monkeypatch.setattr(companion, "how_it_ended", lambda told, config: (made.ended,))
    monkeypatch.setattr(clock, "pause", lambda seconds: None)
    folder = write_record(TOLD, b"#!/bin/sh\n")
    write_rest(folder, "12")
    drop_evidence(str(made.data), evidence("10", signature="abc", state="RUNNING"))
    before = signal.getsignal(signal.SIGTERM)
    yield made
    signal.signal(signal.SIGTERM, before)


def leave(slurm: Slurm, why: str) -> None:
    """Follow, and find the rest as it was asked for, with nothing in its place."""
    assert slurm.follow().startswith(f"job 12 is left as it was asked for: {why}")
    assert "PENDING" not in slurm.sized.values()


def test_what_was_measured_sizes_the_rest_and_commits_by_one_cancel(slurm: Slurm) -> None:
    assert slurm.follow() == f"job 10 was measured; the rest runs as job 13 on {GIVEN}"
    assert slurm.runs == {2: 1, 3: 1}
    assert set(slurm.rest.values()) == {"CANCELLED"}
    assert read_evidence(str(slurm.data), "abc").evidence[0].state == "COMPLETED"
    assert os.readlink(record_folder("c", "first-13")) == "first-10"
    again_said = slurm.follow()
    assert again_said.startswith("job 10 was measured"), "a companion that runs again finds all done"


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"])
def test_a_first_job_that_does_not_end_well_sizes_nothing(slurm: Slurm, state: str) -> None:
    slurm.ended = slurm.ended._replace(state=state)
    leave(slurm, f"job 10 ended as {state}")
    assert slurm.runs == {2: 1, 3: 1}


def test_a_probe_may_be_cut(slurm: Slurm) -> None:
    slurm.ended = slurm.ended._replace(state="TIMEOUT")
    size_the_rest(record_folder("c", "first-10"), TOLD._replace(kind="probe"), {})
    assert set(slurm.sized.values()) == {"PENDING"}
    assert read_evidence(str(slurm.data), "abc").evidence[0].state == "TIMEOUT"


def test_without_a_piece_that_holds_it_the_rest_is_left(slurm: Slurm) -> None:
    slurm.foreseen = ""
    leave(slurm, "not known")


def test_without_evidence_the_rest_is_left(slurm: Slurm) -> None:
    slurm.ended = slurm.ended._replace(raw_id="99")
    leave(slurm, "nothing was measured of job 10")


def test_without_word_of_the_rest_nothing_is_done(slurm: Slurm) -> None:
    os.unlink(os.path.join(record_folder("c", "first-10"), "rest"))
    assert "csub did not say which job is the rest" in slurm.follow()
    assert slurm.sized == {}


def test_what_csub_closed_is_left_alone(slurm: Slurm) -> None:
    claim(record_folder("c", "first-10"), CSUB)
    assert slurm.follow() == ""
    assert slurm.sized == {}


def cancels(slurm: Slurm, *tasks: int) -> Callable[[], None]:
    return lambda: slurm.rest.update(dict.fromkeys(tasks, "CANCELLED"))


@pytest.mark.parametrize("moment", ["--dry-run", "squeue -h -a -r", "submitted", "scontrol show"])
@pytest.mark.parametrize("tasks", [(2, 3), (3,)])
def test_what_its_user_cancels_before_the_commit_stays_cancelled(
    slurm: Slurm, moment: str, tasks: tuple[int, ...]
) -> None:
    slurm.at[moment] = cancels(slurm, *tasks)
    leave(slurm, "it was changed or cancelled since, or has begun")
    assert slurm.runs == {task: int(task not in tasks) for task in (2, 3)}


def test_a_rest_that_its_user_holds_is_left_to_its_user(slurm: Slurm) -> None:
    slurm.reason = "JobHeldUser"
    leave(slurm, "it was changed")


@pytest.mark.parametrize("moment", ["--dry-run", "submitted"])
def test_a_rest_for_which_another_job_waits_keeps_its_id(slurm: Slurm, moment: str) -> None:
    slurm.at[moment] = lambda: slurm.waiting.append("20|afterok:12_*(unfulfilled)")
    leave(slurm, "job 20 waits for it")


def test_a_number_within_another_is_no_dependency(slurm: Slurm) -> None:
    slurm.waiting.append("20|afterok:112(unfulfilled),afterok:120(unfulfilled)")
    assert "the rest runs as job 13" in slurm.follow()


def test_where_csub_fell_back_to_what_was_asked_there_is_no_gain(slurm: Slurm) -> None:
    slurm.gres = "gres/gpu:1"
    leave(slurm, f"{GIVEN} was refused; job 13, made in its place, is cancelled")


@pytest.mark.parametrize("error", [ProcessError, UnansweredError])
def test_a_submission_that_fails_or_is_not_answered_leaves_the_rest(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def failing(*_: object) -> str:
        # Without an answer there may be a job all the same.
        slurm.sized = dict.fromkeys(slurm.rest, "PENDING")
        raise error("it hung")

    monkeypatch.setattr(companion, "submit_by_csub", failing)
    leave(slurm, "it hung")
    assert slurm.runs == {2: 1, 3: 1}


def dies() -> None:
    raise Died


KILLED = ["submitted", "scontrol show", "scancel --state=PENDING 12"]


@pytest.mark.parametrize("moment", KILLED)
def test_killed_between_the_two_steps_and_run_again_the_rest_is_as_asked(slurm: Slurm, moment: str) -> None:
    slurm.at[moment] = dies
    with pytest.raises(Died):
        slurm.follow()
    assert "PENDING" in slurm.sized.values()
    leave(slurm, "its companion ended while it was at work; job 13, made in its place, is cancelled")
    assert slurm.runs == {2: 1, 3: 1}


# At the last of them the user's cancel and the companion's own cannot be told apart.
@pytest.mark.parametrize("moment", KILLED[:-1])
def test_killed_there_and_cancelled_by_its_user_nothing_runs(slurm: Slurm, moment: str) -> None:
    slurm.at[moment] = dies
    with pytest.raises(Died):
        slurm.follow()
    cancels(slurm, 2, 3)()
    slurm.follow()
    assert slurm.runs == {2: 0, 3: 0}


def test_killed_behind_the_commit_and_run_again_the_sized_job_is_the_one(slurm: Slurm) -> None:
    def cancelled_and_dead() -> None:
        cancels(slurm, 2, 3)()
        raise Died

    slurm.at["scancel --state=PENDING 12"] = cancelled_and_dead
    with pytest.raises(Died):
        slurm.follow()
    assert slurm.follow() == "job 10 was measured; the rest runs as job 13"
    assert slurm.runs == {2: 1, 3: 1}


def unanswered() -> None:
    raise UnansweredError("no answer")


def test_a_companion_that_runs_again_takes_no_answer_for_no_job(slurm: Slurm) -> None:
    slurm.at["scancel --state=PENDING 12"] = dies
    with pytest.raises(Died):
        slurm.follow()
    slurm.at["squeue -h -a -r"] = unanswered
    leave(slurm, "its companion ended while it was at work; job 13, made in its place, is cancelled")


def test_where_slurm_never_says_what_became_of_the_rest_that_is_said(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.at["scancel --state=PENDING 12"] = dies
    with pytest.raises(Died):
        slurm.follow()

    def mute(words: Sequence[str], timeout_s: float, environ: Mapping[str, str]) -> bytes:
        raise ProcessError("'squeue' ended with status 1: Unable to contact slurm controller")

    monkeypatch.setattr(sized, "ask", mute)
    assert slurm.follow() == "job 12 is left as it was asked for: Slurm does not say whether it is cancelled"


def test_a_rest_that_slurm_has_forgotten_is_over(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.at["scancel --state=PENDING 12"] = dies
    with pytest.raises(Died):
        slurm.follow()

    def forgetful(words: Sequence[str], timeout_s: float, environ: Mapping[str, str]) -> bytes:
        raise ProcessError("'squeue' ended with status 1: slurm_load_jobs error: Invalid job id specified")

    monkeypatch.setattr(sized, "ask", forgetful)
    assert slurm.follow() == "job 10 was measured; the rest runs as job 13"


def test_a_task_that_began_is_taken_back_although_slurm_answers_late(slurm: Slurm) -> None:
    slurm.at["scancel --state=PENDING 12"] = lambda: slurm.rest.update({3: "RUNNING"})
    slurm.at["scancel 13_3"] = unanswered
    assert slurm.follow().endswith("but for what had begun as asked: 3")
    assert slurm.runs == {2: 1, 3: 1}


def test_a_folder_that_the_companion_does_not_find_is_named(slurm: Slurm) -> None:
    slurm.at["csub"] = missing
    leave(slurm, "what it would get is not known: [Errno 2] no folder")


def missing() -> None:
    raise FileNotFoundError(2, "no folder")


def test_a_task_that_began_in_the_last_moment_runs_once(slurm: Slurm) -> None:
    slurm.at["scancel --state=PENDING 12"] = lambda: slurm.rest.update({3: "RUNNING"})
    assert slurm.follow().endswith(f"on {GIVEN}, but for what had begun as asked: 3")
    assert slurm.sized == {2: "PENDING", 3: "CANCELLED"}
    assert slurm.runs == {2: 1, 3: 1}


def test_where_slurm_does_not_cancel_the_rest_the_sized_job_goes(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(words: Sequence[str], timeout_s: float, environ: Mapping[str, str]) -> Finished:
        return Finished(1, b"", b"") if words[-1] == "12" else slurm.run(words, timeout_s, environ)

    monkeypatch.setattr(sized, "run", deaf)
    leave(slurm, "Slurm did not cancel it in time; job 13, made in its place, is cancelled")
    assert slurm.runs == {2: 1, 3: 1}


def test_where_slurm_cancels_only_some_of_the_rest_each_task_runs_once(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_deaf(words: Sequence[str], timeout_s: float, environ: Mapping[str, str]) -> Finished:
        if words[-1] != "12":
            return slurm.run(words, timeout_s, environ)
        slurm.rest[2] = "CANCELLED"
        return Finished(0, b"", b"")

    monkeypatch.setattr(sized, "run", half_deaf)
    slurm.follow()
    assert slurm.sized == {2: "PENDING", 3: "CANCELLED"}
    assert slurm.runs == {2: 1, 3: 1}


def test_a_task_is_read_as_squeue_prints_it() -> None:
    assert parse_tasks("N/A|PENDING|0:00|Dependency\n") == (Task(None, "PENDING", "Dependency", "0:00"),)
    [ran] = parse_tasks("3|CANCELLED|1:02|None\n")
    assert ran.began
    assert not ran.waits
