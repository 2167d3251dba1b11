# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from tests.unit.asked import ask, none, one
from tests.unit.audited_site import DAY, day_of, found, sacct_text
from tests.unit.made import MIG_POOL, decision, site

PAST = {"csub_asked": False, "mode": None, "signature": None, "gpu_mem_q99_mib": None}


def test_runs_that_went_past_csub() -> None:
    answered, (finding,) = ask("COL015", PAST, {})
    assert (answered.judged, finding.gpu_hours, finding.subject) == (2, 24.0, "ann")
    assert finding.evidence == (
        "24 GPU-h in 1 run (job 1) of which csub has no record and that would have fitted a piece of a GPU, 21 GPU-h "
        "less; sampled for at least 100 % of the time, measured; the site's bound is 24 GPU-h"
    )


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"csub_asked": True}, {}),
        ({"csub_there": False}, {}),
        ({"from_s": 1.0}, {}),
        ({"fit_unit": None, "fit_gpus": None}, {}),
        ({"fit_gpus": 1.0}, {}),
        ({"fit_judged": False}, {}),
        ({"allocated": 23.9}, {}),
        ({}, {"min_gpu_hours": 24.1}),
    ],
)
def test_bounds_and_what_is_not_known(fields: dict[str, Any], settings: dict[str, float]) -> None:
    one("COL015", PAST)
    assert none("COL015", PAST | fields, bounds=settings)


def test_names_of_users_stay_what_they_are() -> None:
    name = "=cmd|'<b>\r\n\u202e\x1b[31m"
    finding = one("COL015", PAST | {"user": name, "job_name": name})
    assert (finding.subject, finding.user) == (name, name)
    assert name not in finding.evidence


def test_runs_of_a_store(tmp_path: Path) -> None:
    config = site(MIG_POOL._replace(gpu_type="h100", gpus_per_node=2))
    text, rounds = sacct_text({}), day_of("1", 1.0, 1000)
    # Where csub was never used, nobody went past it.
    assert found(tmp_path, "COL015", text, rounds, config=config) == []
    of_others = decision("9", user="bob", at_s=float(DAY))
    (finding,) = found(tmp_path, "COL015", text, decisions=[of_others], config=config)
    assert (finding.user, finding.gpu_hours) == ("ann", 24.0)
    # Before csub gave anybody anything, or where it gives nothing, nobody could ask it.
    for name, nobody in ("later", of_others._replace(at_s=DAY + 1.0)), ("shadow", of_others._replace(shadow=True)):
        assert found(tmp_path / name, "COL015", text, rounds, decisions=[nobody], config=config) == []
    for policy in ("off", "shadow"):
        assert found(tmp_path, "COL015", text, config=config._replace(policy=policy)) == []
    # Whenever it was: of a run of a requeued job it is not known.
    assert found(tmp_path, "COL015", text, decisions=[decision("1", at_s=float(9 * DAY))], config=config) == []


def test_parts_of_a_job_that_csub_decided_about_did_not_go_past_it(tmp_path: Path) -> None:
    config = site(MIG_POOL._replace(gpu_type="h100", gpus_per_node=2))
    for number, part in enumerate(("7+0", "7_1", "7")):
        text = sacct_text({"JobID": part, "JobIDRaw": "1"})
        of_it = [decision("7", at_s=float(DAY)), decision("9", user="bob", at_s=0.0)]
        folder, rounds = tmp_path / str(number), day_of("1", 1.0, 1000)
        assert found(folder, "COL015", text, rounds, decisions=of_it, config=config) == []
        assert len(found(folder, "COL007", text, config=config)) == 1
