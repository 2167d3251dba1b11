# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from tests.unit.asked import ask, none, one
from tests.unit.audited_site import day_of, found, sacct_text
from tests.unit.golden import Printed
from tests.unit.made import MIG_POOL, site

FITS = {"peak_mib": 9216}
LARGER = {"fit_unit": "gpu:h100_3g.40gb:1", "fit_gpus": 0.5, "fit_freed": 12.0}
NONE = {"fit_unit": None, "fit_gpus": None, "fit_freed": 0.0}


def test_runs_that_would_have_fitted_a_piece(printed: Printed) -> None:
    answered, (finding,) = ask("COL007", FITS, FITS, LARGER, NONE)
    assert (answered.judged, finding.gpu_hours, finding.subject) == (4, 72.0, "ann")
    printed("rules", finding.evidence, one("COL007", FITS, LARGER, LARGER).evidence)


def test_a_piece_is_asked_for_where_it_is() -> None:
    for place, option in (("", "such as --gres=gpu:"), ("mig", "such as --partition=mig --gres=gpu:")):
        assert option in one("COL007", FITS | {"fit_place": place, "csub_there": False}).remedy


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"allocated": 23.9}, {}),
        ({}, {"min_gpu_hours": 24.1}),
        (NONE, {}),
        # as much as a whole one
        ({"fit_gpus": 1.0}, {}),
    ],
)
def test_bounds(fields: dict[str, Any], settings: dict[str, float]) -> None:
    one("COL007", FITS)
    assert none("COL007", FITS | fields, bounds=settings)


@pytest.mark.parametrize(
    "fields", [{"fit_judged": False}, {"fit_judged": None}, {"allocated": None}, {"allocated": 0.0}, {"from_s": 1.0}]
)
def test_nobody_is_named_on_weak_evidence(fields: dict[str, Any]) -> None:
    answered, said = ask("COL007", FITS | fields)
    assert (answered.judged, said) == (0, [])


def test_runs_of_a_store(tmp_path: Path, printed: Printed) -> None:
    config = site(MIG_POOL._replace(gpu_type="h100", gpus_per_node=2))
    text = sacct_text({}, {"State": "FAILED", "User": "bob"})
    # 20 % of the SMs, in 3000 MiB.
    (finding,) = found(tmp_path, "COL007", text, day_of("1", 1.0, 1000), config=config)
    assert (finding.user, finding.gpu_hours) == ("ann", 24.0)
    printed("rules", finding.evidence, case="COL007")
    # Of a site without pieces, or without a description, nothing is said.
    assert found(tmp_path, "COL007", text, config=site(MIG_POOL._replace(slice=()))) == []
    assert found(tmp_path, "COL007", text, config=None) == []
