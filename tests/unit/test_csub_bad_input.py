# SPDX-License-Identifier: Apache-2.0
"""csub where what it is told or has kept is absurd: it says why that does not count, and submits the job once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm_colloc.clock import now
from tests.unit.made import H100, evidence
from tests.unit.shell import Shell

SMALL = "--gres=gpu:h100_1g.10gb:1"


@pytest.fixture
def known(shell: Shell) -> Path:
    """Return the file of a run after which the job gets a slice."""
    asked = json.loads(shell.run("--dry-run", "--format=json", "job.sh").stdout)["request"]
    run = evidence("1", 5000, signature=asked["signature"], gpu_model=H100, sm_active_q95_pct=10.0, ended_s=now() - 60)
    path = shell.ran(run._asdict())
    assert shell.run("job.sh").returncode == 0
    assert shell.calls()[-1] == [SMALL, "job.sh"]
    return path


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        ("mem=0", "memory size '0' is not a number with a unit"),
        ("mem=-3G,sm=10", "memory size '-3G' is not a number with a unit"),
        ("10", "footprint '10': '10' is not one of mem=SIZE"),
        ("mem=4G,sm=0", "sm '0' lies outside 0 to 100 percent"),
        ("mem=500G,sm=10", "no piece of a GPU in partition 'gpu' holds 512256 MiB"),
        ("mem=9999999999999T,sm=10", "no piece of a GPU in partition 'gpu' holds "),
    ],
)
@pytest.mark.parametrize("line", [False, True])
def test_an_absurd_hint_leaves_the_job_as_asked_and_says_why(shell: Shell, hint: str, why: str, line: bool) -> None:
    if line:
        (shell.folder / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:1\n#CSUB --gpu-footprint={hint}\necho\n")
    done = shell.run(*([] if line else [f"--gpu-footprint={hint}"]), "job.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n")
    assert why in done.stderr
    assert shell.calls() == [["job.sh"]]


@pytest.mark.parametrize(
    ("field", "value"),
    [("gpu_mem_peak_mib", float("nan")), ("gpu_mem_peak_mib", -1), ("sm_active_q95_pct", "10"), ("ended_s", 2.5e11)],
)
def test_a_kept_run_that_cannot_be_true_leaves_the_job_as_asked(
    shell: Shell, known: Path, field: str, value: object
) -> None:
    known.write_text(json.dumps({**json.loads(known.read_text()), field: value}))
    done = shell.run("job.sh")
    assert "1 evidence files of this job could not be used" in done.stderr
    assert shell.calls()[-1] == ["job.sh"]


def test_a_clock_that_went_back_a_little_changes_nothing_and_by_years_is_said(shell: Shell, known: Path) -> None:
    for ahead_s, counts in ((3600.0, True), (400 * 86400.0, False)):
        known.write_text(json.dumps({**json.loads(known.read_text()), "ended_s": now() + ahead_s}))
        done = shell.run("job.sh")
        assert shell.calls()[-1] == ([SMALL, "job.sh"] if counts else ["job.sh"])
        assert ("could not be used" in done.stderr) is not counts


def test_runs_that_are_forgotten_up_to_a_time_to_come_are_named(shell: Shell, known: Path) -> None:
    said = {"forgotten_s": now() + 400 * 86400, "hint": "", "at_s": 0.0}
    (known.parent / "said").write_text(json.dumps(said))
    done = shell.run("job.sh")
    assert "forgotten up to a time to come: 'colloc history --forget' it again" in done.stderr
    assert shell.calls()[-1] == ["job.sh"]


def test_several_csub_at_once_use_and_keep_one_history(shell: Shell, known: Path) -> None:
    """Each settles the run that a sampler left without an end."""
    (shell.folder / "bin/sacct").write_text("#!/bin/sh\necho '1|COMPLETED'\n")
    (shell.folder / "bin/sacct").chmod(0o755)
    known.write_text(json.dumps({**json.loads(known.read_text()), "state": "RUNNING"}))
    before = len(shell.decisions())
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda _: shell.run("--explain", "job.sh"), range(6)))
    assert [(one.returncode, "footprint (exact)" in one.stderr) for one in done] == [(0, True)] * 6
    assert not any("could not be used" in one.stderr for one in done)
    assert len(shell.decisions()) == before + 6
    assert json.loads(known.read_text())["state"] == "COMPLETED"
    assert [path.name for path in known.parent.iterdir()] == [known.name]


def test_what_a_terminal_would_act_on_is_only_shown(shell: Shell) -> None:
    said = shell.run("--dry-run", "--gpu-footprint=mem=\x1b[2J", "job.sh").stderr
    assert "memory size '?[2J'" in said
    assert "\x1b" not in said
