# SPDX-License-Identifier: Apache-2.0
"""The rung of runs of the same job that are not over."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.config import user_data_folder
from slurm_colloc.core.model import GPU_OOM, Evidence, Footprint, Quantiles, because
from slurm_colloc.core.wording import words
from slurm_colloc.estimate.calibration import RUNNING, SHIPPED, Calibration, Margin
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.lookup import look_up
from slurm_colloc.estimate.question import Question, question
from slurm_colloc.estimate.records import drop_evidence
from slurm_colloc.estimate.snapshot import snapshot_path, write_snapshot
from tests.unit.made import H100, codes, evidence, near, site
from tests.unit.programs import executable
from tests.unit.shell import Shell

# Each of its conditions is just met.
JUST_MET = {"sampled_s": 600.0, "ran_s": 300.0, "grew_until_s": 150.0, "sm_active_q95_pct": 1.0, "sample_count": 3}


def going(job_id: str = "1", peak_mib: int | None = 8000, **fields: object) -> Evidence:
    return evidence(job_id, peak_mib, **{"state": "RUNNING", **JUST_MET, **fields})


def asked(*running: Evidence, others: Sequence[Evidence] = (), **fields: Any) -> Footprint:
    return estimate(Question(runs=[*others, *running], running=running, **{"settle_s": 600.0, **fields}))


def test_a_settled_run_counts_while_it_goes_on() -> None:
    found = asked(going())
    assert (found.rung, found.margin, found.expected_mib) == (RUNNING, RUNNING, 8000)
    assert found.gpu_mem_peak_mib == Quantiles(8000, 8000, near(9200))
    assert found.sm_active_pct == Quantiles(20.0, 20.0, 20.0)
    assert found.run_time_s is None, "nobody knows how long it will take"
    assert found.provenance[0] == because("running-at-rest", runs=1, gpu_model=H100)


@pytest.mark.parametrize(
    "missed",
    [
        {"sampled_s": 599.9, "grew_until_s": 0.0},
        # Its start takes long, and its kernels have only begun.
        {"ran_s": 299.9, "grew_until_s": 0.0},
        {"ran_s": None},
        {"grew_until_s": 150.1},
        {"grew_until_s": None},
        {"sm_active_q95_pct": 0.9},
        {"sm_active_q95_pct": None, "ran_s": 0.0},
        {"sample_count": 2},
        {"peak_mib": 0},
        {"peak_mib": None},
        {"peak_mib": 61_200, "gpu_mem_total_mib": 81_559, "grew_until_s": 5.0},
    ],
    ids=str,
)
def test_each_condition_just_missed_leaves_it_out(missed: Mapping[str, Any]) -> None:
    found = asked(run := going(**missed))
    assert found.gpu_mem_peak_mib is None
    assert found.provenance[-1] == because("not-settled", job_id="1", sampled_s=run.sampled_s, settle_s=600.0)


def test_of_several_those_count_that_have_settled_and_the_longest_measured_is_named() -> None:
    found = asked(going("1", 7000), going("2", 8000), going("3", 9000, grew_until_s=301.0))
    assert (found.evidence_count, found.gpu_mem_peak_mib) == (2, Quantiles(7500, 8000, near(9200)))
    newest = asked(going("1", 7000, gpu_model="A100"), going("2", 8000))
    assert (newest.gpu_model, newest.evidence_count) == (H100, 1)
    unsettled = asked(going("1", sampled_s=20.0), going("2", sampled_s=300.0), going("3", sampled_s=90.0))
    assert unsettled.provenance[-1].params["job_id"] == "2"


def test_a_completed_run_is_worth_more_and_is_only_raised() -> None:
    done = evidence("0", 8000)
    for peak_mib, most_mib in ((7000, 9200), (9200, 9200), (12_000, 12_000)):
        found = asked(going(peak_mib=peak_mib), others=[done])
        assert (found.rung, found.gpu_mem_peak_mib) == ("exact", Quantiles(8000, 8000, near(most_mib)))
    relatives = [evidence("5", 8000, signature=f"fam.{batch}~p~f") for batch in (32, 128)]
    fields: dict[str, Any] = {"signature": "fam.64~p~f", "numbers": ("batch-size",)}
    assert asked(going(), relatives=relatives, **fields).rung == "near"
    assert asked(going(), by_command=[done]).rung == "command"


def test_how_others_of_the_job_ended_raises_it() -> None:
    for state in (GPU_OOM, "FAILED", "TIMEOUT"):
        found = asked(going(), others=[evidence("0", 9985, state=state, grew_until_s=None)])
        assert (found.rung, found.gpu_mem_peak_mib) == (RUNNING, Quantiles(8000, 8000, 9985))


def test_the_margin_is_never_below_that_of_a_completed_run_until_the_sites_own() -> None:
    same, own = Margin(1.3, 200, 0.97), Margin(1.05, 150, 0.98)
    for margins, factor in (
        ({}, 1.15),
        ({"same": same}, 1.3),
        ({"same": own}, 1.15),
        ({"same": same, RUNNING: own}, 1.05),
    ):
        found = asked(going(), calibration=Calibration(margins))
        assert found.gpu_mem_peak_mib == Quantiles(8000, 8000, near(8000 * factor))
    assert found.confidence == 0.98
    assert Calibration({"same": same}).margin(RUNNING).confidence == SHIPPED.margins[RUNNING].confidence


def test_only_what_slurm_says_is_running_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does not know, or has put back into the queue, stays a bound, and so does what a snapshot knows ended."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    name, config = "fam.64~p~f", site()
    config = config._replace(paths=config.paths._replace(state=str(tmp_path)))
    (tmp_path / "history").mkdir()
    states = {"1": "RUNNING", "2": "PENDING", "4": "COMPLETED", "5": "RUNNING"}
    for job_id in "12345":
        drop_evidence(user_data_folder(), going(job_id, signature=name, ended_s=time.time()))
    write_snapshot(snapshot_path(str(tmp_path), os.geteuid()), [going("5", signature=name, state="PREEMPTED")])
    known = look_up(config, name, lambda _: states)
    assert {run.job_id: run.state for run in known.evidence}["3"] == "RUNNING"
    assert [run.job_id for run in known.running] == ["1"]
    assert question(name, (), known).running == known.running
    assert look_up(config, name, None).running == ()
    assert look_up(config, "fam.32~p~f", lambda _: states).running == (), "of a relative"


# --- the unmodified csub ---

SLICE = ["--gres=gpu:h100_1g.10gb:1", "job.sh"]


def of_site(shell: Shell, behind: str, line: str) -> None:
    """Add a key; before a run is left, for site.toml lies in the job's folder and makes it another job."""
    path = shell.folder / "site.toml"
    path.write_text(path.read_text().replace(behind, behind + line))


def siblings(shell: Shell, state: str = "RUNNING", **fields: object) -> None:
    shell.ran(state="RUNNING", **{**JUST_MET, "elapsed_s": 900.0, **fields})
    executable(shell.folder / "bin/sacct", f'#!/bin/sh\necho asked >> "$CALLS/../sacct"\necho "9|{state}"\n')


def said(shell: Shell) -> dict[str, Any]:
    """Return by their codes what the last submission was decided by."""
    return dict(shell.decisions()[-1]["reasons"])


def test_a_second_submission_gets_a_piece_while_the_first_still_runs(shell: Shell) -> None:
    siblings(shell)
    shell.run("job.sh")
    assert shell.calls() == [SLICE]
    assert [(one["rung"], one["margin"]) for one in shell.decisions()] == [(RUNNING, RUNNING)]
    assert (shell.folder / "sacct").read_text() == "asked\n"


def test_before_it_has_settled_the_next_is_left_as_asked_and_told_since_when_it_is_measured(shell: Shell) -> None:
    siblings(shell, sampled_s=240.0, grew_until_s=9.0)
    told = shell.run("--explain", "job.sh").stderr
    assert words(because("not-settled", job_id="9", sampled_s=240.0, settle_s=600.0)) in told
    assert shell.calls() == [["job.sh"]]
    assert said(shell)["not-settled"] == {"job_id": "9", "sampled_s": 240.0, "settle_s": 600.0}


def test_of_what_slurm_does_not_say_is_running_nothing_more_is_said(shell: Shell) -> None:
    siblings(shell, state="PENDING")
    shell.run("job.sh")
    assert shell.calls() == [["job.sh"]]
    assert list(said(shell)) == ["none-completed"]


@pytest.mark.parametrize(("minutes", "given"), [("100", True), ("101", False)])
@pytest.mark.parametrize("by_default", [False, True])
def test_a_tenth_of_the_time_limit_must_have_been_measured(
    shell: Shell, minutes: str, given: bool, by_default: bool
) -> None:
    if by_default:
        of_site(shell, 'name = "gpu"\n', f"default_time_min = {minutes}\n")
    siblings(shell)
    shell.run(*([] if by_default else [f"--time={minutes}"]), "job.sh")
    assert (SLICE[0] in shell.calls()[0]) is given
    assert given or said(shell)["not-settled"]["settle_s"] == 606.0


@pytest.mark.parametrize(("settle_s", "given"), [("900", True), ("901", False), ("0", False)])
def test_the_site_says_after_which_time(shell: Shell, settle_s: str, given: bool) -> None:
    of_site(shell, "[sharing]\n", f"settle_s = {settle_s}\n")
    siblings(shell, sampled_s=900.0, ran_s=450.0)
    shell.run("job.sh")
    assert shell.calls() == ([SLICE] if given else [["job.sh"]])
    assert given or list(said(shell)) == ["none-completed", *(["not-settled"] if settle_s == "901" else [])]


def test_without_a_run_that_goes_on_the_rung_is_not_asked() -> None:
    assert codes(estimate(Question(runs=[evidence(state="FAILED")], settle_s=600.0)).provenance) == ["none-completed"]
