# SPDX-License-Identifier: Apache-2.0
"""More time for jobs on pieces that near their limits: how much, for whom, and once."""

from math import inf
from pathlib import Path

import pytest

from slurm_colloc.config import Partition, SiteConfig
from slurm_colloc.errors import ProcessError, StoreError
from slurm_colloc.followup.time_limit import follow, most_time_min
from slurm_colloc.model import Decision, Gres
from slurm_colloc.slurm.jobs import QueuedJob
from tests.unit.made import MIG_POOL, MPS_POOL, site

SLICE = Gres("gpu", MIG_POOL.slice[0].type, 1)
JOB = QueuedJob("7", "7", None, "7", "ann", "RUNNING", "mig", gres=(SLICE,), ran_s=3000.0, limit_s=3600.0)
DECISION = Decision("7", "c", 0.0, "ann", "", "", "", str(SLICE), "mig", "exact", None, None, (), limit_asked_min=60.0)


class Slurm:
    def __init__(self, *jobs: QueuedJob, refuses: bool = False, silent: bool = False) -> None:
        self.jobs, self.refuses, self.silent = jobs, refuses, silent
        self.extended: list[tuple[str, int]] = []

    def queue(self, *filters: str) -> tuple[QueuedJob, ...]:
        assert filters == ("-r", "-t", "R")
        if self.silent:
            raise ProcessError("squeue does not answer")
        return self.jobs

    def extend(self, job_id: str, limit_min: int) -> None:
        if self.refuses:
            raise ProcessError("access denied")
        self.extended.append((job_id, limit_min))


@pytest.fixture
def config(tmp_path: Path) -> SiteConfig:
    (tmp_path / "history").mkdir()
    found = site(MIG_POOL, MPS_POOL, extend_time_limits=True, max_time_stretch=1.5)
    return found._replace(
        partition=(Partition("gpu", mps_users="one"), Partition("mig", max_time_min=85)),
        paths=found.paths._replace(state=str(tmp_path)),
    )


def test_a_job_on_a_piece_gets_more_time_once(config: SiteConfig) -> None:
    slurm = Slurm(JOB)
    [said] = follow([DECISION], slurm, config)
    assert slurm.extended == [("7", 85)], "the partition allows no more"
    assert "it has 85 now" in said
    [said] = follow([DECISION], slurm, config)
    assert (len(slurm.extended), "was given more before" in said) == (1, True)


@pytest.mark.parametrize(
    ("job", "decision", "most"),
    [
        (JOB._replace(limit_s=2400.0), DECISION._replace(limit_asked_min=40.0), 60),
        # csub itself had made it longer; what was asked for counts.
        (JOB._replace(limit_s=3000.0), DECISION._replace(limit_asked_min=40.0), 60),
        # Whatever a user writes down, a limit grows by the site's bound at most.
        (JOB._replace(limit_s=600.0), DECISION._replace(limit_asked_min=9000.0), 15),
        (JOB._replace(partition="other"), DECISION, 0),
        # Four fifths of a GPU slow nothing more than 1.25 times.
        (JOB._replace(gres=(Gres("mps", "", 80),), partition="gpu"), DECISION, 75),
    ],
)
def test_it_gets_no_more_than_the_piece_can_have_taken(
    job: QueuedJob, decision: Decision, most: int, config: SiteConfig
) -> None:
    assert job.limit_s is not None
    assert job.gres
    assert most_time_min(job.limit_s / 60, job.gres[0], job.partition, decision, config) == most


def test_others_are_left_alone(config: SiteConfig) -> None:
    whole = JOB._replace(gres=(Gres("gpu", "h100", 1),))
    slurm = Slurm(
        *(JOB._replace(ran_s=2400.0), whole, JOB._replace(user="bob"), JOB._replace(array_id="8")),
        *(JOB._replace(limit_s=inf), JOB._replace(limit_s=None), JOB._replace(ran_s=None), JOB._replace(gres=None)),
    )
    assert list(follow([DECISION], slurm, config)) == []
    assert list(follow([DECISION._replace(limit_asked_min=None)], Slurm(JOB), config)) == []
    assert slurm.extended == []


def test_without_the_sites_consent_it_is_named_and_no_more(config: SiteConfig) -> None:
    slurm, strict = Slurm(JOB), config._replace(sharing=config.sharing._replace(extend_time_limits=False))
    [said] = follow([DECISION], slurm, strict)
    assert said.startswith(f"job 7 of ann on {SLICE} has run 50 of its 60 min; it might have 85")
    [said] = follow([DECISION], Slurm(JOB._replace(limit_s=5100.0, ran_s=4800.0)), config)
    assert "may have no more" in said
    assert slurm.extended == []


def test_what_slurm_refuses_or_does_not_say_is_told(config: SiteConfig) -> None:
    assert "squeue does not answer" in next(follow([DECISION], Slurm(silent=True), config))
    assert "access denied" in next(follow([DECISION], Slurm(JOB, refuses=True), config))
    Path(config.paths.state, "history/more_time.json").write_text("[1]")
    with pytest.raises(StoreError, match="remove it"):
        list(follow([DECISION], Slurm(JOB), config))
