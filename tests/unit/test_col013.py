# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from tests.unit.asked import ask, none, one
from tests.unit.audited_site import DAY, day_of, found, sacct_text
from tests.unit.made import decision

# csub took it to need 24,000 MiB.
WITHIN: dict[str, Any] = {}
ABOVE = {"peak_mib": 30_720}
BELOW = {"peak_mib": 11_999}


def test_too_many_above_the_estimate() -> None:
    answered, (finding,) = ask("COL013", *[WITHIN] * 8, *[ABOVE] * 2)
    assert (answered.judged, finding.gpu_hours) == (10, 48.0)
    assert (finding.about, finding.subject, finding.user) == ("application", "ann:sig", "ann")
    assert finding.evidence == (
        "of 10 runs with an estimate of GPU memory of 23.4 GiB or more 2 peaked above the estimate (20 %; up to 30 "
        "GiB): 2 runs (job 9, 10), sampled for at least 100 % of the time, measured; the site's bound is 5 % of "
        "at least 5"
    )
    assert finding.reproduce == "colloc audit run --rule COL013 --user ann --since A --until B"


def test_most_of_them_far_below_the_estimate() -> None:
    finding = one("COL013", *[WITHIN] * 2, *[BELOW] * 3)
    assert "3 used less than 50 % of the estimate (60 %): 3 runs" in finding.evidence
    assert none("COL013", *[WITHIN] * 3, *[BELOW] * 3)


@pytest.mark.parametrize(
    ("runs", "settings"),
    [
        ([*[WITHIN] * 2, *[ABOVE] * 2], {}),
        ([*[WITHIN] * 8, *[ABOVE] * 2], {"min_runs": 11.0}),
        ([*[WITHIN] * 8, *[ABOVE] * 2], {"above_pct": 20.0}),
        ([*[WITHIN] * 8, *[ABOVE] * 2], {"min_above": 3.0}),
        # One of ten may be, by chance.
        ([*[WITHIN] * 9, ABOVE], {}),
        # the estimate itself is within it, and half of it is not far below
        ([{"peak_mib": 24_000}] * 9, {}),
        ([{"peak_mib": 12_000}] * 9, {}),
        ([BELOW] * 9, {"below_pct": 40.0}),
    ],
)
def test_bounds(runs: list[dict[str, Any]], settings: dict[str, float]) -> None:
    assert none("COL013", *runs, bounds=settings)


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": None, "signature": None, "gpu_mem_q99_mib": None},
        {"gpu_mem_q99_mib": None},
        {"gpu_mem_q99_mib": 0.0},
        {"signature": ""},
        {"peak_mib": None},
        {"strong": False},
        {"coverage_pct": 59.0},
        {"coverage_pct": None},
        # an estimate is of one GPU
        {"devices": 2},
    ],
)
def test_runs_that_say_nothing_of_an_estimate(fields: dict[str, Any]) -> None:
    for wrong in (ABOVE, BELOW):
        answered, said = ask("COL013", *[wrong | fields] * 9)
        assert (answered.judged, said) == (0, [])


@pytest.mark.parametrize("state", ["FAILED", "OUT_OF_MEMORY", "CANCELLED", "TIMEOUT", "RUNNING"])
def test_a_run_that_did_not_complete_may_only_be_above(state: str) -> None:
    one("COL013", *[ABOVE | {"state": state}] * 5)
    answered, said = ask("COL013", *[BELOW | {"state": state}] * 9)
    assert (answered.judged, said) == (0, [])


def test_a_run_that_began_before_the_window_may_have_peaked_before() -> None:
    one("COL013", *[BELOW] * 5)
    assert none("COL013", *[BELOW] * 4, BELOW | {"start_s": -9})


def test_a_client_of_mps_is_never_below() -> None:
    assert none("COL013", *[BELOW | {"mode": "mps"}] * 9)
    one("COL013", *[ABOVE | {"mode": "mps"}] * 9)


def test_one_script_of_two_users_is_two_applications() -> None:
    runs = [run | {"user": user} for user in ("ann", "bob") for run in [ABOVE] * 4]
    assert none("COL013", *runs)
    _, said = ask("COL013", *runs, ABOVE, ABOVE | {"user": "bob"})
    assert [(one.subject, one.user) for one in said] == [("ann:sig", "ann"), ("bob:sig", "bob")]


def test_names_of_users_stay_what_they_are() -> None:
    name = "=cmd|'<b>\r\n\u202e\x1b[31m"
    finding = one("COL013", *[ABOVE | {"user": name, "job_name": name, "signature": name}] * 5)
    assert (finding.subject, finding.user) == (f"{name}:{name}", name)
    assert name not in finding.evidence


def test_runs_of_a_store(tmp_path: Path) -> None:
    runs = [{"JobID": f"7_{task}", "JobIDRaw": str(6 + task)} for task in range(2)]
    rounds = [*day_of("6", 1.0, 1000, gpu_mem_mib=9_100)]
    of_array = decision("7", at_s=float(DAY), signature="train.sh")
    bounds = {"min_runs": 1.0, "min_above": 1.0}
    (finding,) = found(tmp_path, "COL013", sacct_text(*runs), rounds, [of_array], bounds=bounds)
    assert finding.subject == "ann:train.sh"
    assert finding.evidence.startswith("of 1 run with an estimate of GPU memory of 8.79 GiB or more 1 peaked above")
    assert [line.job_id for line in finding.jobs] == ["7_0"]


def test_the_second_component_of_a_heterogeneous_job_has_an_estimate_of_its_own(tmp_path: Path) -> None:
    parts = [{"JobID": f"7+{part}", "JobIDRaw": str(7 + part)} for part in range(2)]
    rounds = [*day_of("8", 1.0, 1000, gpu_mem_mib=9_100)]
    asked = [decision(one, at_s=float(DAY), signature=f"part-{one}") for one in ("7", "8")]
    bounds = {"min_runs": 1.0, "min_above": 1.0}
    (finding,) = found(tmp_path, "COL013", sacct_text(*parts), rounds, asked, bounds=bounds)
    assert (finding.subject, [line.job_id for line in finding.jobs]) == ("ann:part-8", ["7+1"])
