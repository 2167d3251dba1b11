# SPDX-License-Identifier: Apache-2.0
"""How long a pack's jobs may take."""

from collections.abc import Mapping, Sequence

import pytest

from slurm_colloc.core.config import Limits as Enforced
from slurm_colloc.core.config import Partition, SiteConfig
from slurm_colloc.core.errors import ProcessError
from slurm_colloc.core.model import JobRequest, Reason, because
from slurm_colloc.pack.time_limits import PackTime, time_of, within_limits
from slurm_colloc.slurm.free_gpus import Free
from slurm_colloc.slurm.limits import Association, Limits
from slurm_colloc.submit.plan import NotPackedError
from tests.unit.made import request, site

DAY_MIN = 1440.0


def of(asked: JobRequest, partition: Partition) -> PackTime | list[str]:
    """Return the time of 40 tasks, or the codes of why there is not so much."""
    config = site()._replace(partition=(partition,))
    try:
        return time_of(asked, 40, 1, 10, 0, 1.5, config)
    except NotPackedError as error:
        return [reason.code for reason in error.reasons]


def test_what_the_user_asked_for_is_a_tasks_time() -> None:
    limited = Partition("gpu", max_time_min=DAY_MIN)
    assert of(request(time_limit_min=10.0), limited) == PackTime(1, 10, 60, 15, 15.0)
    # The spare time ends at the partition's limit.
    assert of(request(time_limit_min=10.0), limited._replace(max_time_min=70.0)) == PackTime(1, 10, 60, 10, 15.0)


def test_a_default_that_no_pack_fits_asks_for_a_time() -> None:
    days = Partition("gpu", max_time_min=DAY_MIN)
    assert of(request(), days) == ["tasks-take-too-long", "tasks-lack-time"]
    assert of(request(time_limit_min=DAY_MIN), days) == ["tasks-take-too-long"]


def test_a_default_makes_as_many_jobs_as_it_needs() -> None:
    found = of(request(), Partition("gpu", default_time_min=60.0, max_time_min=100.0))
    assert isinstance(found, PackTime)
    assert (found.jobs, found.limit_min) == (4, 90)
    assert of(request(), Partition("gpu", default_time_min=60.0)) == PackTime(1, 10, 360, 90, 90)


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
