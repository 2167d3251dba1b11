# SPDX-License-Identifier: Apache-2.0
"""How long a pack's jobs may take."""

from collections.abc import Mapping, Sequence

import pytest

from slurm_colloc.config import Limits as Enforced
from slurm_colloc.config import Partition, SiteConfig
from slurm_colloc.errors import ProcessError
from slurm_colloc.model import JobRequest, Quantiles, Reason, because
from slurm_colloc.pack.time_limits import Time, time_of, within_limits
from slurm_colloc.slurm.free import Free
from slurm_colloc.slurm.limits import Association, Limits
from slurm_colloc.submit.plan import NotPackedError
from tests.unit.made import request, site

DAY_MIN = 1440.0


def of(
    asked: JobRequest, ran_min: float | None, partition: Partition, tasks: int = 40, jobs: int = 1
) -> Time | list[str]:
    """Return the time, or the codes of why there is not so much."""
    ran = None if ran_min is None else Quantiles(60.0, 60.0, ran_min * 60)
    config = site()._replace(partition=(partition,))
    try:
        return time_of(asked, ran, tasks, jobs, 10, 0, 1.5, config)
    except NotPackedError as error:
        return [reason.code for reason in error.reasons]


def test_what_the_user_asked_for_is_a_tasks_time() -> None:
    limited = Partition("gpu", max_time_min=DAY_MIN)
    assert of(request(time_limit_min=10.0), 1, limited) == Time(1, 10, 60, 15, 15.0)
    # The spare time ends at the partition's limit.
    assert of(request(time_limit_min=10.0), 1, limited._replace(max_time_min=70.0)) == Time(1, 10, 60, 10, 15.0)


def test_a_default_that_no_pack_fits_gives_way_to_earlier_runs() -> None:
    days = Partition("gpu", max_time_min=DAY_MIN)
    found = of(request(), 20, days)
    said = because("time-by-history", ran_min=20)
    assert found == Time(1, 10, 120, 30, None, said)
    assert of(request(), None, days) == ["tasks-take-too-long", "tasks-lack-time"]
    assert of(request(), 1600, days) == ["tasks-take-too-long", "tasks-lack-time"]
    # What was asked for is not made less.
    assert of(request(time_limit_min=DAY_MIN), 20, days) == ["tasks-take-too-long"]


def test_earlier_runs_spare_jobs_and_nothing_else() -> None:
    half = Partition("gpu", default_time_min=60.0, max_time_min=100.0)
    by_default, by_history = of(request(), None, half), of(request(), 15, half)
    assert isinstance(by_default, Time)
    assert isinstance(by_history, Time)
    assert (by_default.jobs, by_default.limit_min, by_default.said) == (4, 90, None)
    assert (by_history.jobs, by_history.time_min, by_history.limit_min) == (1, 90, None)
    fits = Partition("gpu", default_time_min=60.0)
    assert of(request(), 15, fits) == Time(1, 10, 360, 90, 90)


def test_earlier_runs_that_fill_the_partition_are_said() -> None:
    found = of(request(), 80, Partition("gpu", max_time_min=100.0))
    assert found == ["tasks-take-too-long", "time-was-by-history"]


class Accounting:
    """Answers for the user's limits."""

    def __init__(self, limits: Limits | None) -> None:
        self.answer = limits

    def limits(self, cluster: str) -> Limits:
        if self.answer is None:
            raise ProcessError(f"sacctmgr of {cluster} is down")
        return self.answer

    def job_states(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        return {}

    def free(self) -> Free:
        return Free(0.0, {})


def enforced(minutes: int | None, config: SiteConfig) -> tuple[int | None, Reason | None]:
    own = Association("ml", "ml", "", "", (), {})
    qos = {"short": {"MaxWall": {"minutes": minutes or 0}}}
    limits = None if minutes is None else Limits(0.0, "ml", (own,), {}, qos)
    asked = request(qos="short", time_limit_min=10.0)
    return within_limits(asked, {"cpu": 1}, 60, 15, config, Accounting(limits))


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> SiteConfig:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
    # What is kept is of 1970, and asked anew each time.
    return site()._replace(limits=Enforced(enforced=True))


def test_spare_time_is_given_up_before_the_pack(config: SiteConfig) -> None:
    assert enforced(75, config) == (75, None)
    cut = enforced(74, config)
    assert cut[0] == 60
    assert cut[1] == because("limit-most", limit="MaxWall", what="QOS", name="short", most=74, tres="minutes")
    assert enforced(60, config)[0] == 60
    with pytest.raises(NotPackedError, match="QOS 'short'"):
        enforced(59, config)


def test_limits_that_are_not_known_are_a_reason(config: SiteConfig) -> None:
    with pytest.raises(NotPackedError, match="sacctmgr of c is down"):
        enforced(None, config)
    assert enforced(None, site()) == (75, None)
