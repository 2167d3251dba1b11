# SPDX-License-Identifier: Apache-2.0
"""The companion's state machine: at every step something may happen, or end it, and the work is done once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc import clock
from slurm_colloc.errors import ProcessError, UnansweredError
from slurm_colloc.followup import companion
from slurm_colloc.followup.companion import follow_up
from slurm_colloc.followup.record import (
    CANARY,
    CSUB,
    PROBE,
    REST,
    Record,
    claim,
    read_state,
    record_folder,
    write_record,
    write_step,
)
from slurm_colloc.followup.submission import Prepared, Submitted
from slurm_colloc.history.records import drop_evidence, read_evidence
from slurm_colloc.model import Footprint, Gres, Placement, SharingMode, because
from slurm_colloc.placement.choose import as_asked
from slurm_colloc.process import Finished
from slurm_colloc.slurm.jobs import QueuedJob
from slurm_colloc.submit.own_options import parse_arguments
from slurm_colloc.submit.plan import Part, Plan
from tests.fuzz_submit import REQUEST
from tests.unit.made import evidence, site
from tests.unit.test_followup_retry import SITE, SMALL, accounted, record

GIVEN = "gpu:h100_1g.10gb:1"
MEASURED = record(
    kind=CANARY, name="measured-10", job_id="10", array="1", options=("--array=2-3",), own=(), begins={}, output=""
)
RAN_OUT = record(name="10", job_id="10", options=("--requeue",), output="out", given=GIVEN)


class Died(BaseException):
    """The companion was killed."""


class Slurm:
    """A made-up Slurm: job 10 is followed, job 12 is the rest, job 13 and on are what is submitted in its place.

    ``at`` says what happens before a question or a command whose words hold the key.
    """

    def __init__(self, folder: Path) -> None:
        self.data = folder / "slurm_colloc"
        self.output = folder / "out"
        self.ended = accounted("10_1", "10", "COMPLETED", "0:0")
        self.rest = {2: "PENDING", 3: "PENDING"}
        self.made: dict[str, dict[int, str]] = {}
        self.depends: dict[str, str] = {}
        self.reason = "Dependency"
        self.foreseen = GIVEN
        self.others: dict[str, str] = {}
        self.at: dict[str, Callable[[], None]] = {}
        self.killer = Killer()

    @property
    def sized(self) -> dict[int, str]:
        return self.made.get("13", {})

    def happens(self, line: str) -> None:
        for key in [key for key in self.at if key in line]:
            self.at.pop(key)()

    def prepare(self, folder: str, told: Record, words: Sequence[str], *_: object, **__: object) -> Prepared:
        self.happens("prepare")
        piece = Placement(SharingMode.MIG, Gres("gpu", "h100_1g.10gb", 1), 1, 9984, "", "", "", None, (), ())
        unknown = Footprint(None, None, None, "", "none", 0, (because("followup", why="not known"),))
        placement = piece if self.foreseen else as_asked((because("followup", why="it is too large"),))
        plan = Plan(Part(REQUEST, unknown, placement), tuple(words), None, b"", None, (), None)
        return Prepared(parse_arguments((*words, "job.sh"), site()), plan, {}, site())

    def submit(self, prepared: Prepared, options: Sequence[str], *, or_as_asked: bool) -> tuple[Submitted, Plan]:
        self.happens("submit")
        [dependency] = [word for word in options if word.startswith("--dependency=")]
        assert or_as_asked or "--kill-on-invalid-dep=yes" in options
        job = str(13 + len(self.made))

        def make() -> None:
            self.made[job] = dict.fromkeys(self.rest, "PENDING")
            self.depends[job] = dependency.partition("=")[2]

        self.killer.effect(make)
        self.happens("made")
        return Submitted(job, "", False, Finished(0, job.encode(), b"")), prepared.plan

    def of(self, job: str) -> dict[int, str]:
        return self.rest if job == "12" else self.made[job]

    def tasks(self, job: str) -> tuple[QueuedJob, ...]:
        self.happens(f"tasks {job}")
        return tuple(
            QueuedJob(f"{job}_{task}", job, task, "99", state=state, ran_s=_ran_s(state), reason=self.reason)
            for task, state in self.of(job).items()
        )

    def waiting(self) -> tuple[QueuedJob, ...]:
        self.happens("waiting")
        waits = {"12": "afterany:11", **self.depends}
        left = {job: f"{on}(unfulfilled)" for job, on in waits.items() if "PENDING" in self.of(job).values()}
        return tuple(QueuedJob(job, job, None, job, dependency=on) for job, on in (left | self.others).items())

    def cancel(self, job: str, *, waiting: bool = False) -> None:
        self.happens(f"cancel {job}")
        job, _, task = job.partition("_")

        def cancelled() -> None:
            for number, state in self.of(job).items():
                if (not task or number == int(task)) and state == "PENDING":
                    self.of(job)[number] = "CANCELLED"

        self.killer.effect(cancelled)

    @property
    def runs(self) -> dict[int, int]:
        """Return how often each task of the rest will run, or has run, once the companion has ended."""
        well = all(state in ("PENDING", "RUNNING") for state in self.rest.values())
        return {
            task: (state != "CANCELLED")
            + (0 if well else sum(job.get(task) == "PENDING" for job in self.made.values()))
            for task, state in self.rest.items()
        }

    def follow(self, name: str = "measured-10") -> str:
        folder = record_folder("c", name)
        follow_up(folder, {"SLURM_JOB_ID": "11"})
        return read_state(folder).outcome


class Killer:
    """Ends the companion before or behind one of its effects, after which it has none."""

    def __init__(self) -> None:
        self.count, self.at, self.behind, self.dead = 0, -1, False, False

    def arm(self, at: int, *, behind: bool) -> None:
        self.count, self.at, self.behind, self.dead = 0, at, behind, False

    def effect(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.dead:
            raise Died
        self.count += 1
        self.dead = self.count == self.at
        if self.dead and not self.behind:
            raise Died
        result = call(*args, **kwargs)
        if self.dead:
            raise Died
        return result


def _ran_s(state: str) -> float:
    return 7.0 if state in ("RUNNING", "COMPLETED") else 0.0


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    made = Slurm(tmp_path)
    for name in ("prepare", "submit"):
        monkeypatch.setattr(companion, name, getattr(made, name))
    monkeypatch.setattr(companion, "CliClient", lambda *_: made)
    monkeypatch.setattr(companion, "_site", lambda: SITE)
    monkeypatch.setattr(companion, "record_decision", lambda *_: None)
    monkeypatch.setattr(companion, "how_it_ended", lambda told, config: (made.ended,))
    monkeypatch.setattr(clock, "pause", lambda seconds: None)
    follow_measured(made)
    before = signal.getsignal(signal.SIGTERM)
    yield made
    signal.signal(signal.SIGTERM, before)


def follow_measured(slurm: Slurm, kind: str = CANARY) -> None:
    folder = write_record(MEASURED._replace(kind=kind), b"#!/bin/sh\n")
    write_step(folder, REST, "12")
    drop_evidence(str(slurm.data), evidence("10", signature="abc", state="RUNNING"))


def follow_one_that_ran_out(slurm: Slurm) -> None:
    slurm.output.write_text("CUDA out of memory. Tried to allocate 2.00 GiB\n")
    slurm.ended = accounted("10", "10", "FAILED", "1:0", Gres("gpu", SMALL, 1))
    slurm.rest = {0: "CANCELLED"}
    write_record(RAN_OUT._replace(work_folder=str(slurm.output.parent)), b"#!/bin/sh\n")


def leave(slurm: Slurm, why: str) -> None:
    """Follow, and find the rest as it was asked for, with nothing in its place."""
    assert slurm.follow().startswith(f"job 12 stays as asked: {why}")
    assert "PENDING" not in slurm.sized.values()


def test_what_was_measured_sizes_the_rest_and_commits_by_one_cancel(slurm: Slurm) -> None:
    assert slurm.follow() == f"job 10 was measured; the rest runs as job 13 on {GIVEN}"
    assert slurm.runs == {2: 1, 3: 1}
    assert set(slurm.rest.values()) == {"CANCELLED"}
    assert read_evidence(str(slurm.data), "abc").evidence[0].state == "COMPLETED"
    assert os.readlink(record_folder("c", "measured-13")) == "measured-10"
    assert slurm.follow().startswith("job 10 was measured"), "a companion that runs again finds all done"


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"])
def test_a_first_job_that_does_not_end_well_sizes_nothing(slurm: Slurm, state: str) -> None:
    slurm.ended = slurm.ended._replace(state=state)
    leave(slurm, f"job 10 ended as {state}")
    assert slurm.runs == {2: 1, 3: 1}


def test_a_probe_may_be_cut(slurm: Slurm) -> None:
    slurm.ended = slurm.ended._replace(state="TIMEOUT")
    follow_measured(slurm, PROBE)
    slurm.follow()
    assert set(slurm.sized.values()) == {"PENDING"}
    assert read_evidence(str(slurm.data), "abc").evidence[0].state == "TIMEOUT"


def test_without_a_piece_that_holds_it_the_rest_is_left(slurm: Slurm) -> None:
    slurm.foreseen = ""
    leave(slurm, "not known")


def test_without_evidence_the_rest_is_left(slurm: Slurm) -> None:
    slurm.ended = slurm.ended._replace(raw_id="99")
    leave(slurm, "nothing was measured of job 10")


def test_without_word_of_the_rest_nothing_is_done(slurm: Slurm) -> None:
    os.unlink(os.path.join(record_folder("c", "measured-10"), "rest"))
    assert "csub did not say which job is the rest" in slurm.follow()
    assert slurm.sized == {}


def test_what_csub_closed_is_left_alone(slurm: Slurm) -> None:
    claim(record_folder("c", "measured-10"), CSUB)
    assert slurm.follow() == ""
    assert slurm.sized == {}


def cancels(slurm: Slurm, *tasks: int) -> Callable[[], None]:
    return lambda: slurm.rest.update(dict.fromkeys(tasks, "CANCELLED"))


@pytest.mark.parametrize("moment", ["prepare", "tasks 12", "submit", "made"])
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


@pytest.mark.parametrize("moment", ["prepare", "made"])
def test_a_rest_for_which_another_job_waits_keeps_its_id(slurm: Slurm, moment: str) -> None:
    slurm.at[moment] = lambda: slurm.others.update({"20": "afterok:12_*(unfulfilled)"})
    leave(slurm, "job 20 waits for it")


def test_a_number_within_another_is_no_dependency(slurm: Slurm) -> None:
    slurm.others["20"] = "afterok:112(unfulfilled),afterok:120(unfulfilled)"
    assert "the rest runs as job 13" in slurm.follow()


@pytest.mark.parametrize("error", [ProcessError, UnansweredError])
def test_a_submission_that_fails_or_is_not_answered_leaves_the_rest(slurm: Slurm, error: type[Exception]) -> None:
    def fails() -> None:
        raise error("it hung")  # without an answer there may be a job all the same

    slurm.at["made"] = fails
    leave(slurm, "it hung; job 13, made in its place, is cancelled")
    assert slurm.runs == {2: 1, 3: 1}


def dies() -> None:
    raise Died


def killed_everywhere(slurm: Slurm, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Slurm], None]) -> Iterator[bool]:
    """Kill the companion before and behind each effect, once or twice; yield whether it ran to its end at last."""
    name = "measured-10" if begin is follow_measured else "10"
    kept = {call: getattr(os, call) for call in ("replace", "symlink", "unlink", "write", "fsync")}
    for call, real in kept.items():
        monkeypatch.setattr(os, call, lambda *args, real=real, **kwargs: slurm.killer.effect(real, *args, **kwargs))
    for again in (0, 1, 2, 3, 5, 8, 13):
        for behind in (False, True):
            at = 0
            while True:
                at += 1
                slurm.killer.arm(-1, behind=False)
                slurm.made, slurm.depends, slurm.rest = {}, {}, {2: "PENDING", 3: "PENDING"}
                begin(slurm)
                died = False
                for where in (at, again):
                    slurm.killer.arm(where or -1, behind=behind)
                    try:
                        slurm.follow(name)
                    except Died:
                        died = died or where == at
                        yield False
                slurm.killer.arm(-1, behind=False)
                said = slurm.follow(name)
                assert said, "nobody is told what came of it"
                yield True
                if not died:
                    break
            assert at > 8, "it has fewer effects than it must have"


def test_killed_at_every_write_the_rest_runs_once(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in killed_everywhere(slurm, monkeypatch, follow_measured):
        # Whether anybody goes on or not: the rest, or what took its place.
        assert slurm.runs == {2: 1, 3: 1}


def test_killed_at_every_write_a_job_that_ran_out_is_submitted_again_once(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at_the_end in killed_everywhere(slurm, monkeypatch, follow_one_that_ran_out):
        assert len(slurm.made) == 1 if at_the_end else len(slurm.made) <= 1


def test_another_companion_does_not_take_over_a_claim(slurm: Slurm) -> None:
    follow_one_that_ran_out(slurm)
    claim(record_folder("c", "10"), "9")
    assert "whether it did is not known" in slurm.follow("10")
    assert slurm.made == {}


@pytest.mark.parametrize("moment", ["made", "tasks 13", "cancel 12"])
def test_killed_and_run_again_it_goes_on_behind_the_last_step(slurm: Slurm, moment: str) -> None:
    slurm.at[moment] = dies
    if moment != "tasks 13":
        with pytest.raises(Died):
            slurm.follow()
        assert "PENDING" in slurm.sized.values()
    if moment == "cancel 12":
        assert slurm.follow() == "job 10 was measured; the rest runs as job 13"
    elif moment == "made":
        leave(slurm, "its companion ended while it was at work; job 13, made in its place, is cancelled")
    assert slurm.runs == {2: 1, 3: 1}


def test_killed_before_the_commit_and_cancelled_by_its_user_nothing_runs(slurm: Slurm) -> None:
    slurm.at["made"] = dies
    with pytest.raises(Died):
        slurm.follow()
    cancels(slurm, 2, 3)()
    slurm.follow()
    assert slurm.runs == {2: 0, 3: 0}


def unanswered() -> None:
    raise UnansweredError("no answer")


def mute(*_: object, **__: object) -> None:
    raise ProcessError("'squeue' ended with status 1: Unable to contact slurm controller")


def test_where_slurm_never_says_what_became_of_the_rest_that_is_said(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.at["cancel 12"] = dies
    with pytest.raises(Died):
        slurm.follow()
    monkeypatch.setattr(slurm, "tasks", mute)
    assert slurm.follow() == "job 12 stays as asked: Slurm does not say whether it is cancelled"


def test_a_rest_that_slurm_has_forgotten_is_over(slurm: Slurm) -> None:
    slurm.at["cancel 12"] = dies
    with pytest.raises(Died):
        slurm.follow()
    slurm.rest = {}
    assert slurm.follow() == "job 10 was measured; the rest runs as job 13"


def test_a_task_that_began_is_taken_back_although_slurm_answers_late(slurm: Slurm) -> None:
    slurm.at["cancel 12"] = lambda: slurm.rest.update({3: "RUNNING"})
    slurm.at["cancel 13_3"] = unanswered
    assert slurm.follow().endswith("but for what had begun as asked: 3")
    assert slurm.runs == {2: 1, 3: 1}


def test_a_folder_that_the_companion_does_not_find_is_named(slurm: Slurm) -> None:
    slurm.at["prepare"] = missing
    leave(slurm, "what it would get is not known: [Errno 2] no folder")


def missing() -> None:
    raise FileNotFoundError(2, "no folder")


def test_a_task_that_began_in_the_last_moment_runs_once(slurm: Slurm) -> None:
    slurm.at["cancel 12"] = lambda: slurm.rest.update({3: "RUNNING"})
    assert slurm.follow().endswith(f"on {GIVEN}, but for what had begun as asked: 3")
    assert slurm.sized == {2: "PENDING", 3: "CANCELLED"}
    assert slurm.runs == {2: 1, 3: 1}


def test_where_slurm_does_not_cancel_the_rest_the_sized_job_goes(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = slurm.cancel
    monkeypatch.setattr(slurm, "cancel", lambda job, waiting=False: None if job == "12" else cancel(job))
    leave(slurm, "Slurm did not cancel it in time; job 13, made in its place, is cancelled")
    assert slurm.runs == {2: 1, 3: 1}


def test_where_slurm_cancels_only_some_of_the_rest_each_task_runs_once(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = slurm.cancel
    some = cancels(slurm, 2)
    monkeypatch.setattr(slurm, "cancel", lambda job, waiting=False: some() if job == "12" else cancel(job))
    slurm.follow()
    assert slurm.sized == {2: "PENDING", 3: "CANCELLED"}
    assert slurm.runs == {2: 1, 3: 1}
