# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from tests.unit.asked import ask, none, one
from tests.unit.audited_site import day_of, found, sacct_text
from tests.unit.golden import Printed
from tests.unit.made import MIG_POOL, site

FITS = {"peak_mib": 9216}
LARGER = {"fit_unit": "gpu:h100_3g.40gb:1", "fit_gpus": 0.5, "fit_most_mib": 40448, "fit_freed": 12.0}
NONE = {"fit_unit": None, "fit_gpus": None, "fit_most_mib": None, "fit_freed": 0.0}


def test_runs_that_would_have_fitted_a_piece(printed: Printed) -> None:
    answered, (finding,) = ask("COL007", FITS, FITS, LARGER, NONE)
    assert (answered.judged, finding.gpu_hours, finding.subject) == (4, 72.0, "ann")
    printed("rules", finding.evidence)


@pytest.mark.parametrize("code", ["COL003", "COL007"])
def test_the_piece_that_is_named_is_enough_for_each_run(code: str, printed: Printed) -> None:
    little = {"sm_used": 0.5, "csub_there": False}

    def remedy(*fields: dict[str, Any]) -> str:
        return one(code, *(FITS | little | of for of in fields), bounds={"min_gpu_hours": 1.0}).remedy

    # By compute slices as large as 1g.10gb.
    more_memory = {"fit_unit": "gpu:h100_1g.20gb:1", "fit_most_mib": 19968}
    printed("rules", remedy({}), remedy({}, {}, LARGER, NONE), remedy({}, more_memory, {}), case=code)
    # Of pieces of several kinds of GPU none is enough for all.
    for elsewhere in ({"kind": "a100"}, {"partition": "other"}):
        assert "--gres" not in remedy({}, LARGER | elsewhere)


def test_a_piece_is_asked_for_where_it_is() -> None:
    for place, option in (("", ": --gres=gpu:"), ("mig", ": --partition=mig --gres=gpu:")):
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
    "fields", [{"fit_judged": False}, {"fit_judged": None}, {"allocated": None}, {"allocated": 0.0}]
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
