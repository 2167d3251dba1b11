# SPDX-License-Identifier: Apache-2.0
"""The table of card, telemetry and kind of job: by what csub makes of such evidence, and as the docs have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.question import Question
from slurm_colloc.model import Reason
from slurm_colloc.placement.choose import place
from slurm_colloc.placement.packing import pack
from slurm_colloc.site.telemetry import JOBS, TELEMETRY, Outcome, Telemetry, of_cards, outcome, rows
from tests.unit.made import H100, MPS_POOL, evidence, request, site

A100 = "NVIDIA A100-SXM4-80GB"
ROLLOUT = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "rollout.md"


@pytest.mark.parametrize("model", [H100, A100])
@pytest.mark.parametrize("telemetry", TELEMETRY, ids=lambda one: one.name)
def test_the_table_says_what_csub_does(model: str, telemetry: Telemetry) -> None:
    """A job of 3 GiB that keeps a tenth of the SMs busy, with the evidence that there would be of it."""
    tells = model == H100
    known = telemetry.sm_active or (tells and telemetry.sm_active_from_hopper)
    seen = evidence(peak_mib=3000 if telemetry.peak else None, gpu_model=model)
    run = seen if known else seen._replace(sm_active_mean_pct=None, sm_active_q95_pct=None)
    question = Question(hint="mem=3000M,sm=10") if telemetry == TELEMETRY[0] else Question(runs=[run])
    pool = MPS_POOL._replace(gpu_model=model)
    config, found = site(pool, mps_daemon="site"), estimate(question)
    placed = not place(request(), found, config).as_asked
    assert (outcome(tells, telemetry, JOBS[0]) == Outcome.PLACES) == placed
    packed = not isinstance(pack(found, pool, config.sharing, None), Reason)
    assert (outcome(tells, telemetry, JOBS[1]) == Outcome.PACKS) == packed
    assert not isinstance(pack(found, pool, config.sharing, 4), Reason)
    assert outcome(tells, telemetry, JOBS[2]) == Outcome.REPORTS


def test_each_kind_of_card_of_a_site_once() -> None:
    lines = list(of_cards([A100, H100, "NVIDIA H200", A100, ""]))
    heads = [number for number, line in enumerate(lines) if line.startswith("source of a job's use, on ")]
    assert heads == [0, len(TELEMETRY) + 1]
    assert (f"{H100}, NVIDIA H200" in lines[0], A100 in lines[heads[1]]) == (True, True)
    assert list(of_cards([""])) == []


def test_the_docs_have_it() -> None:
    text = ROLLOUT.read_text()
    for tells in (True, False):
        for row in rows(tells):
            assert f"| {' | '.join(row)} |" in text
