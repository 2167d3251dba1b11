# SPDX-License-Identifier: Apache-2.0
"""csub --trace, unmodified, with a made-up Python: what it runs, keeps and leaves; the job goes in any case."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.unit.shell import Shell

SAYS = """#!/bin/sh
echo "$@" >> "$CALLS/../traced"
echo noise; echo noise >&2
while [ "$1" != --out ]; do shift; done
echo '{"why_not": "", "torch": "2.1", "what": "2 optimizer steps", "parameters_mib": 1, "gradients_mib": 1,
  "optimizer_mib": 1, "activations_mib": 97, "peak_mib": 100}' > "$2"
"""
SCRIPT = "#!/bin/bash\n#SBATCH --gres=gpu:1\npython3 train.py --batch-size 8 $1\n"
KEPT = ".local/share/slurm_colloc/traces"


@pytest.fixture
def traced(shell: Shell) -> Shell:
    python(shell, SAYS)
    (shell.folder / "job.sh").write_text(SCRIPT)
    return shell


def python(shell: Shell, text: str) -> None:
    path = shell.folder / "bin/python3"
    path.write_text(text)
    path.chmod(0o755)


def runs(shell: Shell) -> list[str]:
    path = shell.folder / "traced"
    return path.read_text().splitlines() if path.exists() else []


def test_a_program_is_traced_once_and_the_job_submitted_each_time(traced: Shell) -> None:
    for time_ in (1, 2):
        done = traced.run("--trace", "--explain", "job.sh", "--lr=1")
        assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n"), done.stderr
        assert "footprint (trace): memory q99 1664 MiB" in done.stderr
        assert ("traced 2 optimizer steps: 100 MiB of tensors (torch 2.1)" in done.stderr) is (time_ == 1)
        assert "noise" not in done.stderr
        assert traced.calls()[time_ - 1] == ["job.sh", "--lr=1"]
    [words] = runs(traced)
    assert words.endswith("-- train.py --batch-size 8 --lr=1")
    assert "--seconds 60 --memory-mib 32768" in words
    assert list((traced.folder / "tmp").iterdir()) == []
    assert len(list((traced.folder / "home" / KEPT).rglob("*.json"))) == 1


def test_nothing_is_traced_unasked_and_a_line_in_the_script_asks(traced: Shell) -> None:
    traced.run("job.sh")
    assert runs(traced) == []
    (traced.folder / "job.sh").write_text(SCRIPT.replace("python3", "#CSUB --trace\npython3", 1))
    traced.run("job.sh")
    assert len(runs(traced)) == 1
    traced.run("--trace", "--dry-run", "job.sh", "--batch-size=3")
    assert (len(runs(traced)), len(traced.calls())) == (2, 2)


@pytest.mark.parametrize(
    ("python_is", "why"),
    [
        ("#!/bin/sh\nexit 3\n", "not traced: file "),
        ('#!/bin/sh\nwhile [ $1 != --out ]; do shift; done; echo \'{"why_not": "no torch"}\' > $2\n', "no torch"),
        ("#!/bin/sh\nwhile [ $1 != --out ]; do shift; done; mkfifo $2\n", "is not a regular file"),
        ("#!/bin/sh\nwhile [ $1 != --out ]; do shift; done; yes > $2 & sleep 0.2\n", "larger than"),
        ("#!/nowhere\n", "cannot be started"),
    ],
)
def test_what_goes_wrong_is_said_and_the_job_is_submitted(traced: Shell, python_is: str, why: str) -> None:
    python(traced, python_is)
    done = traced.run("--trace", "job.sh")
    assert (done.returncode, done.stdout, traced.calls()) == (0, "Submitted batch job 4711\n", [["job.sh"]])
    assert why in done.stderr
    assert list((traced.folder / "tmp").iterdir()) == []


def test_one_that_does_not_end_is_ended_with_what_it_started(traced: Shell) -> None:
    with (traced.folder / "site.toml").open("a") as stream:
        stream.write("[trace]\ntimeout_s = 1\n")
    python(traced, '#!/bin/sh\nsleep 60 & echo $! > "$CALLS/../pid"\nwait\n')
    began = time.monotonic()
    done = traced.run("--trace", "job.sh")
    assert "not traced: " in done.stderr
    assert "did not end within 3 s" in done.stderr
    assert time.monotonic() - began < 30
    status = Path(f"/proc/{(traced.folder / 'pid').read_text().strip()}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()
    assert traced.calls() == [["job.sh"]]


@pytest.mark.parametrize(
    ("argv", "script", "why"),
    [
        (["--gpu-footprint=mem=1G,sm=1"], SCRIPT, "known better (hint)"),
        (["--gres=gpu:2"], SCRIPT, "it asks for 2 GPUs"),
        (["--gres=none"], SCRIPT, "it asks for no GPUs"),
        (["--export=NONE"], SCRIPT, "another environment"),
        ([], SCRIPT.replace("bash", "python3"), "not of a shell"),
        ([], SCRIPT.replace("python3", "module load x\npython3"), "chooses an environment"),
    ],
)
def test_what_need_not_or_cannot_be_traced_goes_as_usual(traced: Shell, argv: list[str], script: str, why: str) -> None:
    (traced.folder / "job.sh").write_text(script)
    done = traced.run("--trace", *argv, "--explain", "job.sh")
    assert (done.stdout, len(traced.calls()), runs(traced)) == ("Submitted batch job 4711\n", 1, [])
    assert f"not traced: {why}" in done.stderr or why in done.stderr


def test_a_named_python_is_run_in_the_scripts_place(traced: Shell) -> None:
    (traced.folder / "job.sh").write_text(SCRIPT.replace("python3", "module load x\npython3"))
    (traced.folder / "other").write_text(SAYS)
    (traced.folder / "other").chmod(0o755)
    done = traced.run("--trace", f"--trace-python={traced.folder}/other", "job.sh")
    assert "traced 2 optimizer steps" in done.stderr
    assert traced.calls() == [["job.sh"]]


def test_an_ordinary_submission_loads_none_of_it(traced: Shell) -> None:
    code = (
        "import os, sys, slurm_colloc.cli.csub as csub\nos._exit = sys.exit\ntry:\n    csub.main()\nfinally:\n"
        "    print(*sorted(sys.modules), file=sys.stderr)\n"
    )
    loaded = set(traced.run("job.sh", code=code).stderr.splitlines()[-1].split())
    for name in (
        "history.traces",
        "estimate.trace",
        "estimate.near",
        "estimate.probe",
        "estimate.command",
        "estimate.prior",
        "estimate.static",
        "submit.tracing",
        "cli.csub_trace",
    ):
        assert f"slurm_colloc.{name}" not in loaded
    assert "slurm_colloc.estimate.ladder" in loaded
