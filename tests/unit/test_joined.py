# SPDX-License-Identifier: Apache-2.0
"""A job that runs as a step of another one: who may begin it, how its end is told, and where its words go."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc.cli.colloc.job_step import step_story
from slurm_colloc.errors import CollocError
from slurm_colloc.files import private_folder
from slurm_colloc.runtime import joined
from slurm_colloc.runtime.again_record import record_folder
from slurm_colloc.runtime.joined import Started, Task, begin, files_of, had_its_end, read_started, read_task, write_task
from tests.unit.made import site

TASK = Task("", ("/bin/sh",), ("a b", "c"), "light", "alice", "", "%x-%j-%J-%u-%N.out", "", "", False)
# Measured on 22.05: steps that ended by themselves, were cancelled, and were taken along.
ROWS = "1|100|140\n1.batch|100|140\n1.1|121|126\n1.3|123|131\n1.5|125|143\n1.6|125|140\n1.7|125|Unknown\n"


@pytest.mark.parametrize(("step", "own"), [("1.1", True), ("1.3", True), ("1.5", False), ("1.6", False)])
def test_a_step_that_ended_before_its_job_had_its_end(step: str, own: bool) -> None:
    assert had_its_end(ROWS, Started(step, 122.5)) == own


@pytest.mark.parametrize("text", ["", "1|100|140\n", "1.1|121|126\n", "1|100|Unknown\n1.1|121|126\n"])
def test_without_the_accountings_word_it_had_none(text: str) -> None:
    assert not had_its_end(text, Started("1.1", 122.5))


def test_the_steps_of_a_job_that_was_requeued_since_are_others() -> None:
    assert not had_its_end(ROWS, Started("1.1", 50.0))


def test_only_the_first_may_say_who_begins(tmp_path: Path) -> None:
    assert read_started(str(tmp_path)) is None
    assert begin(str(tmp_path), "1.2")
    assert not begin(str(tmp_path), "")
    started = read_started(str(tmp_path))
    assert started is not None
    assert started.step == "1.2"
    assert [path.name for path in tmp_path.iterdir()] == ["started"]


def test_a_task_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_task(str(tmp_path), TASK)
    assert read_task(str(tmp_path)) == TASK
    (tmp_path / "task.json").write_text("{}")
    with pytest.raises(CollocError):
        read_task(str(tmp_path))


def test_files_are_named_by_the_step() -> None:
    task = TASK._replace(folder="/sweep")
    output = "/sweep/light-1.2-1.2-alice-g1.out"
    assert files_of(task, "1.2", "g1") == (output, output, "/dev/null")
    assert files_of(task._replace(error="%5A.err", input="in"), "1.2", "g1")[1:] == ("/sweep/001.2.err", "/sweep/in")


@pytest.mark.parametrize("later", ["join-1", "join-2"])
def test_of_two_steps_of_one_number_the_last_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    """A job that is requeued numbers its steps anew."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    config = site()
    for name in ("join-1", "join-2"):
        folder = record_folder(config.cluster, name)
        private_folder(folder)
        write_task(folder, TASK._replace(output=f"{name}.out"))
        monkeypatch.setattr(joined, "now", lambda name=name: 2.0 if name == later else 1.0)
        begin(folder, "1.2")
    assert json.loads(step_story(config, "1.2", "json"))["output"] == f"{later}.out"


class Step:
    """A wrapper as srun would start it."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder / "record"
        self.folder.mkdir()
        (folder / "job.sh").write_text(script)
        self.work = folder
        task = TASK._replace(script=str(folder / "job.sh"), folder=str(folder), output="%j.out", error="%j.err")
        write_task(str(self.folder), task)

    def run(self, **env: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "2", "CUDA_VISIBLE_DEVICES": "0"}
        argv = [sys.executable, "-m", joined.__name__, str(self.folder)]
        return subprocess.run(argv, env=environ | env, capture_output=True, text=True, check=False, timeout=60)

    @property
    def finished(self) -> dict[str, float] | None:
        path = self.folder / "finished"
        return json.loads(path.read_text()) if path.exists() else None


def test_the_script_runs_with_its_arguments_and_files_and_its_status_is_kept(tmp_path: Path) -> None:
    step = Step(tmp_path, 'echo "$# $1 $2"; echo bad >&2; exit 3\n')
    done = step.run()
    assert (done.returncode, done.stdout) == (3, "began 1.2\n")
    assert (tmp_path / "1.2.out").read_text() == "2 a b c\n"
    assert (tmp_path / "1.2.err").read_text() == "bad\n"
    assert step.finished is not None
    assert step.finished["status"] == 3


def test_after_a_sigterm_nobody_says_that_it_is_done(tmp_path: Path) -> None:
    step = Step(tmp_path, "trap '' TERM\nkill -TERM $PPID; sleep 0.3; exit 0\n")
    assert step.run().returncode == 0
    assert step.finished is None


def test_nor_where_the_script_heard_of_it_first(tmp_path: Path) -> None:
    """Slurm signals the processes of a step one after the other, and a trap ends bash at once."""
    step = Step(tmp_path, "(sleep 0.4; kill -TERM $PPID) & exit 0\n")
    assert step.run().returncode == 0
    assert step.finished is None


def test_a_script_that_a_signal_ends_is_done(tmp_path: Path) -> None:
    step = Step(tmp_path, "kill -9 $$\n")
    assert step.run().returncode == 137
    assert step.finished is not None
    assert step.finished["status"] == -9


def test_nothing_runs_once_csub_has_given_up(tmp_path: Path) -> None:
    step = Step(tmp_path, "touch ran\n")
    begin(str(step.folder), "")
    done = step.run()
    assert (done.returncode, done.stdout) == (75, "refused: csub had given up by then\n")
    assert not (tmp_path / "ran").exists()


def test_without_a_gpu_or_on_one_for_a_single_process_nothing_begins(tmp_path: Path) -> None:
    step = Step(tmp_path, "true\n")
    assert "refused: the step was given no GPU" in step.run(CUDA_VISIBLE_DEVICES="").stdout
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho Exclusive_Process\n")
    program.chmod(0o755)
    said = step.run(PATH=f"{program.parent}:{os.environ['PATH']}").stdout
    assert said == "refused: the GPU serves one process at a time (compute mode Exclusive_Process)\n"
    assert read_started(str(step.folder)) is None


def test_an_output_that_cannot_be_written_is_a_refusal(tmp_path: Path) -> None:
    step = Step(tmp_path, "true\n")
    write_task(str(step.folder), read_task(str(step.folder))._replace(output="missing/x"))
    assert step.run().stdout.startswith("refused: output file '")
