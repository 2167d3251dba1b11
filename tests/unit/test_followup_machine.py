# SPDX-License-Identifier: Apache-2.0
"""The companion's state machine: at every step something may happen, or end it, and the job is run again once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core import clock
from slurm_colloc.core.errors import ProcessError, StoreError, UnansweredError
from slurm_colloc.core.model import Footprint, Gres, Placement, SharingMode, because
from slurm_colloc.followup import companion
from slurm_colloc.followup.companion import follow_up
from slurm_colloc.followup.record import SUBMITTED, Record, read_state, record_folder, write_record, write_step
from slurm_colloc.followup.submission import Resubmitted
from slurm_colloc.slurm.jobs import QueuedJob
from slurm_colloc.slurm.parse import Submitted
from slurm_colloc.submit.own_options import parse_arguments
from slurm_colloc.submit.plan import Part, Plan
from tests.fuzz_submit import REQUEST
from tests.unit.golden import Printed
from tests.unit.made import site
from tests.unit.test_followup_retry import SITE, SMALL, accounted, record

RAN_OUT = record(job_id="10", options=("--requeue",), output="out", given="gpu:h100_1g.10gb:1")


class Died(BaseException):
    """The companion was killed."""


class Slurm:
    """A made-up Slurm: job 10 is followed, job 11 is the companion, job 13 and on are what it submits.

    ``at`` says what happens at a moment.
    """

    def __init__(self, folder: Path) -> None:
        self.output = folder / "out"
        self.ended = accounted("10", "10", "FAILED", "1:0", Gres("gpu", SMALL, 1))
        self.made: dict[str, str] = {}
        self.at: dict[str, Callable[[], None]] = {}
        self.killer = Killer()

    def happens(self, moment: str) -> None:
        if moment in self.at:
            self.at.pop(moment)()

    def resubmit(
        self, folder: str, told: Record, words: Sequence[str], environ: object, reason: str, waits: str, config: object
    ) -> Resubmitted:
        self.happens("begun")
        placement = Placement(SharingMode.MIG, Gres("gpu", "h100_1g.10gb", 1), 1, 9984, "", "", "", None, (), ())
        unknown = Footprint(None, None, None, "", "none", 0, (because("followup", why="not known"),))
        plan = Plan(Part(REQUEST, unknown, placement), tuple(words), None, b"", None, (), None)
        job = str(13 + len(self.made))
        self.killer.effect(lambda: self.made.update({job: waits.partition("=")[2]}))
        self.happens("made")
        return Resubmitted(Submitted(job, ""), plan, parse_arguments((*words, "job.sh"), site()), {}, site())

    def own_queue(self, *_: str) -> tuple[QueuedJob, ...]:
        return tuple(QueuedJob(job, job, dependency=f"{on}(unfulfilled)") for job, on in self.made.items())

    def begin(self) -> None:
        self.made = {}
        self.output.write_text("CUDA out of memory. Tried to allocate 2.00 GiB\n")
        write_record(RAN_OUT._replace(work_folder=str(self.output.parent)), b"#!/bin/sh\n")

    def follow(self) -> str:
        folder = record_folder("c", "10")
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


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    made = Slurm(tmp_path)
    monkeypatch.setattr(companion, "resubmit", made.resubmit)
    monkeypatch.setattr(companion, "CliClient", lambda *_: made)
    monkeypatch.setattr(companion, "_site", lambda: SITE)
    monkeypatch.setattr(companion, "record_decision", lambda *_: None)
    monkeypatch.setattr(companion, "how_it_ended", lambda told, config: (made.ended,))
    monkeypatch.setattr(clock, "pause", lambda seconds: None)
    made.begin()
    before = signal.getsignal(signal.SIGTERM)
    yield made
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("error", "said"), [(ProcessError, "could not be submitted"), (UnansweredError, "as job 13")])
def test_a_submission_that_is_not_answered_is_looked_for(slurm: Slurm, error: type[Exception], said: str) -> None:
    def fails() -> None:
        raise error("it hung")  # without an answer there may be a job all the same

    slurm.at["made"] = fails
    assert said in slurm.follow()


def test_a_folder_that_the_companion_does_not_find_is_named(slurm: Slurm, printed: Printed) -> None:
    def missing() -> None:
        raise FileNotFoundError(2, "no folder")

    slurm.at["begun"] = missing
    printed("companion", slurm.follow())


def test_a_job_whose_id_cannot_be_written_down_was_submitted(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: str, step: str, said: str) -> None:
        if step == SUBMITTED:
            raise StoreError("no space left")
        write_step(folder, step, said)

    monkeypatch.setattr(companion, "write_step", full)
    assert slurm.follow().endswith("submitted again as job 13")


def killed_everywhere(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Kill the companion before and behind each effect, once or twice; yield whether it ran to its end at last."""
    kept = {call: getattr(os, call) for call in ("replace", "symlink", "unlink", "write", "fsync")}
    for call, real in kept.items():
        monkeypatch.setattr(os, call, lambda *args, real=real, **kwargs: slurm.killer.effect(real, *args, **kwargs))
    for again in (0, 1, 2, 3, 5, 8, 13):
        for behind in (False, True):
            at = 0
            while True:
                at += 1
                slurm.killer.arm(-1, behind=False)
                slurm.begin()
                died = False
                for where in (at, again):
                    slurm.killer.arm(where or -1, behind=behind)
                    try:
                        slurm.follow()
                    except Died:
                        died = died or where == at
                        yield False
                slurm.killer.arm(-1, behind=False)
                assert slurm.follow()  # nobody is told what came of it
                yield True
                if not died:
                    break
            assert at > 8  # it has fewer effects than it must have


def test_killed_at_every_write_a_job_that_ran_out_is_submitted_again_once(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at_the_end in killed_everywhere(slurm, monkeypatch):
        assert len(slurm.made) == 1 if at_the_end else len(slurm.made) <= 1
