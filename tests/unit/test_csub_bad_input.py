# SPDX-License-Identifier: Apache-2.0
"""csub where what it is told or has kept is absurd: it says why that does not count, and submits the job once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm_colloc.core.clock import now
from slurm_colloc.core.model import because
from slurm_colloc.core.wording import words
from slurm_colloc.submit.own_options import OWN_OPTIONS
from tests.unit.golden import Printed
from tests.unit.programs import executable
from tests.unit.shell import Shell

SMALL = "--gres=gpu:h100_1g.10gb:1"


@pytest.fixture
def known(shell: Shell) -> Path:
    """Return the file of a run after which the job gets a slice."""
    path = shell.ran(job_id="1", ended_s=now() - 60)
    assert shell.run("job.sh").returncode == 0
    assert shell.calls()[-1] == [SMALL, "job.sh"]
    return path


# What no hint is, test_estimate.py has.
@pytest.mark.parametrize(
    ("hint", "why"),
    [
        ("9G", "'9G' is not one of mem=SIZE"),
        ("mem=0", "memory size '0' is not a number with a unit"),
        ("mem=9999999999999T", "memory size '9999999999999T' is beyond any GPU"),
    ],
)
@pytest.mark.parametrize("how", ["argument", "line", "wrap", "dry"])
def test_a_hint_outside_its_grammar_submits_nothing(shell: Shell, hint: str, why: str, how: str) -> None:
    """The job would get a whole GPU, and its user would think otherwise."""
    asked = [f"--gpu-footprint={hint}", *{"wrap": ["--wrap=true"], "dry": ["--dry-run", "job.sh"]}.get(how, ["job.sh"])]
    if how == "line":
        script(shell, f"#CSUB {asked.pop(0)}")
    refused(shell, why, *asked)


def test_a_hint_that_no_piece_holds_leaves_the_job_as_asked_and_says_why(shell: Shell, printed: Printed) -> None:
    hint = "mem=500G,sm=10"
    done = shell.run(f"--gpu-footprint={hint}", "job.sh")
    assert (done.returncode, shell.calls()) == (0, [["job.sh"]])
    assert [code for code, _ in shell.decisions()[0]["reasons"]] == ["nothing-holds", "too-little-memory"]
    printed("csub", done.stderr)
    assert shell.run(f"--gpu-footprint={hint}", "--colloc=off", "job.sh").stderr == ""
    assert shell.decisions()[-1]["reasons"][0] == ["switched-off", {"wish": "off"}]


def script(shell: Shell, line: str) -> None:
    (shell.folder / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:1\n{line}\necho\n")


def refused(shell: Shell, why: str, *argv: str) -> None:
    done = shell.run(*argv)
    assert (done.returncode, done.stdout, shell.calls()) == (2, "", [])
    assert why in done.stderr
    assert done.stderr.endswith("; nothing was submitted\n")


# Of each of csub's own options at least one misuse, and of options together.
MISUSED = {
    "--gpu-footprint": "has no value",
    "--colloc=on": "is none of auto, off",
    **{f"--max-slowdown={value}": "is not a number from 1 up" for value in ("", "0.9", "nan", "inf", "1_5", "\u0661")},
    "--max-slowdown=1.1 --pack": "is not for packs",
    "--pack-tasks=0": "is not a whole number from 1 up",
    "--pack-jobs=two": "is not a whole number",
    "--pack-retries=-1": "is not a whole number from 0 up",
    "--pack=4": "does not take a value",
    "--pack-retries=1": "without --pack",
    "--pack --pack-together": "csub pack",
}
NOT_IN_LINES = {
    "--format=xml --dry-run": "is not known",
    "--format=json": "is for --dry-run",
    "--explain=all": "does not take a value",
    "--dry-run=yes": "does not take a value",
}
ONLY_IN_LINES = {
    "--gpu-footprnt=mem=9G": "did you mean '--gpu-footprint'",
    "--gres=gpu:1": "is unknown",
    "--dry-run": "is unknown",
    "-p gpu": "is unknown",
    "mem=9G": "is no option",
    '--colloc="off': "a quote is not closed",
}


@pytest.mark.parametrize("words", [*MISUSED, *NOT_IN_LINES])
def test_an_own_option_that_is_misused_submits_nothing(shell: Shell, words: str) -> None:
    why = (MISUSED | NOT_IN_LINES)[words]
    refused(shell, why, *words.split(), *([] if "no value" in why else ["--array=1-3", "job.sh"]))


@pytest.mark.parametrize("words", [*MISUSED, *ONLY_IN_LINES])
def test_a_line_that_is_misused_submits_nothing(shell: Shell, words: str) -> None:
    script(shell, f"#CSUB {words}")
    refused(shell, (MISUSED | ONLY_IN_LINES)[words], "--array=1-3", "job.sh")


def test_each_own_option_is_misused_by_a_test() -> None:
    tried = {word.partition("=")[0] for words in (*MISUSED, *NOT_IN_LINES) for word in words.split()}
    assert {f"--{option.name}" for option in OWN_OPTIONS} - tried == set()


def test_a_line_is_a_comment_where_the_site_only_looks_on(shell: Shell) -> None:
    script(shell, "#CSUB --gpu-footprint=9G")
    site = shell.folder / "site.toml"
    site.write_text(site.read_text().replace('policy = "auto"', 'policy = "shadow"'))
    assert shell.run("job.sh").returncode == 0
    assert shell.calls() == [["job.sh"]]


def test_a_kept_run_that_cannot_be_true_leaves_the_job_as_asked(shell: Shell, known: Path) -> None:
    known.write_text(json.dumps({**json.loads(known.read_text()), "gpu_mem_peak_mib": float("nan")}))
    done = shell.run("job.sh")
    assert words(because("evidence-unreadable", files=1)) in done.stderr
    assert shell.calls()[-1] == ["job.sh"]


def test_runs_that_are_forgotten_up_to_a_time_to_come_are_named(shell: Shell, known: Path) -> None:
    (known.parent / "forgotten").write_text(str(now() + 400 * 86400))
    done = shell.run("job.sh")
    assert "'colloc history --forget " in done.stderr
    assert shell.calls()[-1] == ["job.sh"]


def test_several_csub_at_once_use_and_keep_one_history(shell: Shell, known: Path) -> None:
    """Each settles the run that a sampler left without an end."""
    executable(shell.folder / "bin/sacct", "#!/bin/sh\necho '1|COMPLETED'\n")
    known.write_text(json.dumps({**json.loads(known.read_text()), "state": "RUNNING"}))
    before = len(shell.decisions())
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda _: shell.run("--explain", "job.sh"), range(6)))
    assert [(one.returncode, "completed run" in one.stderr) for one in done] == [(0, True)] * 6
    assert not any("evidence file" in one.stderr for one in done)
    assert len(shell.decisions()) == before + 6
    assert json.loads(known.read_text())["state"] == "COMPLETED"
    assert [path.name for path in known.parent.iterdir()] == [known.name]


def test_what_a_terminal_would_act_on_is_only_shown(shell: Shell) -> None:
    said = shell.run("--dry-run", "--gpu-footprint=mem=\x1b[2J", "job.sh").stderr
    assert "memory size '?[2J'" in said
    assert "\x1b" not in said
