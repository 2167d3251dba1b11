# SPDX-License-Identifier: Apache-2.0
"""The program of a pack's job, unmodified, against a made-up srun: what it starts, judges, writes down and says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Load
from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.job import read_pack
from slurm_colloc.pack.ledger import Ledger, missing, read_ledger
from slurm_colloc.pack.processes import families_of, signal_processes
from slurm_colloc.pack.shared_gpu import only_device
from slurm_colloc.pack.spec import Task
from slurm_colloc.pack.srun import Files, command_line, into_steps, read_job, slots, srun_environment, task_variables
from slurm_colloc.slurm.job_files import file_name, last_words, open_output
from tests.cluster.packs import JOIN, a_spec, pack_script
from tests.fakes import mps_control
from tests.unit.golden import Printed
from tests.unit.programs import executable
from tests.unit.test_pack_clients import FORGETS, RUN
from tests.waiting import wait_for

# Runs the command itself, whose descriptor 9 is what srun says; keeps how it was called.
SRUN = """#!/bin/sh
printf '%s ' "$@" >>"$CALLS"; echo >>"$CALLS"
[ ! -e "$CALLS.refuse" ] || { echo "srun: error: Unable to create step for job 4711" >&2; exit 1; }
while [ "$1" != /bin/sh ]; do shift; done
SRUN_DEBUG=2 SLURM_STEPID=$$ SLURM_STEP_ID=$$ exec "$@" 9>&2
"""


class Job:
    """A folder in which a pack's job runs."""

    program = ("-m", "slurm_colloc.pack.job")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "home").mkdir()
        (folder / "tmp").mkdir()
        executable(folder / "bin/srun", SRUN)
        self.calls = folder / "calls"

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin",
            "HOME": f"{self.folder}/home",
            "TMPDIR": f"{self.folder}/tmp",
            "CALLS": str(self.calls),
            "SLURM_JOB_ID": "4711",
            "SLURM_CLUSTER_NAME": "lab",
            "SLURM_CPUS_ON_NODE": "64",
            "SLURM_MEM_PER_NODE": "900",
            "SLURM_JOB_USER": "alice",
            "CUDA_VISIBLE_DEVICES": "3",
            **more,
        }

    def mps(self) -> None:
        mps_control.install(self.folder / "bin")

    def patch(self, code: str) -> None:
        """Have the program run this first."""
        called = "import os, sys; sys.exit(job.main(sys.argv[1:], dict(os.environ)))"
        self.program = ("-c", f"from slurm_colloc.pack import job, loop; {code}; {called}")

    def start(self, content: bytes, **more: str) -> subprocess.Popen[str]:
        (self.folder / "script").write_bytes(content)
        return subprocess.Popen(
            [sys.executable, *self.program, str(self.folder / "script")],
            cwd=self.folder,
            env=self.environment(**more) | {"PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, content: bytes, **more: str) -> tuple[int, str, str]:
        started = self.start(content, **more)
        out, err = started.communicate(timeout=60)
        return started.returncode, out, err

    def pack(self, at_once: int = 1, script: str = "", environ: dict[str, str] | None = None, **fields: Any) -> str:
        """Run a pack that is to succeed, and return what it says."""
        status, out, err = self.run(pack_script("", a_spec(at_once, **fields), script), **(environ or {}))
        assert (status, err) == (0, ""), out
        return out

    def told(self, name: str = "4711") -> Ledger:
        return read_ledger(f"{self.folder}/home/.local/share/slurm_colloc/packs/lab/{name}.jsonl")

    def wait_for(self, name: str) -> None:
        wait_for((self.folder / name).exists, f"{name} did not come", 30)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_script_runs_once_for_each_task(job: Job) -> None:
    for number in (3, 5):
        (job.folder / f"in.{number}").write_text(f"input {number}\n")
    # A path may have an equals sign: env would take it for a variable.
    (job.folder / "env=a").mkdir()
    (job.folder / "env=a/sh").symlink_to("/bin/sh")
    shell = (f"{job.folder}/env=a/sh", "-e")
    script = 'echo "$1 $SLURM_ARRAY_TASK_ID $0"\ncat\n'
    said = job.pack(script=script, array="3,5", script_args=("x y",), input="in.%a", interpreter=shell)
    assert "2 tasks: 2 succeeded\n" in said
    first = job.read("out.3").splitlines()
    assert first[0].startswith("x y 3 ")
    assert first[1:] == ["input 3"]
    assert os.listdir(job.folder / "tmp") == []
    assert [task.outcome for task in job.told().tasks] == [Outcome.DONE, Outcome.DONE]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "it is a pipe that nobody reads"),
        (os.mkdir, "out.1' cannot be written: Is a directory"),
        # Its input is missing.
        (None, "in.1"),
    ],
)
def test_a_file_that_cannot_be_opened_fails_its_task_alone(
    job: Job, make: Callable[[Path], None] | None, said: str
) -> None:
    (job.folder / "in.2").touch()
    if make:
        (job.folder / "in.1").touch()
        make(job.folder / "out.1")
    assert job.run(pack_script("", a_spec(commands=("echo 1", "echo 2"), input="in.%a")))[0] == 1
    assert [task.outcome for task in job.told().tasks] == [Outcome.FAILED, Outcome.DONE]
    assert said in (job.told().tasks[0].message if make else job.read("out.1"))
    assert job.read("out.2") == "2\n"


def test_output_and_errors_keep_their_order(job: Job) -> None:
    job.pack(commands=("echo 1; echo 2 >&2; echo 3",))
    assert job.read("out.1") == "1\n2\n3\n"
    job.pack(commands=("echo 1; echo 2 >&2; echo 3",), append=True, error="err.%a")
    assert (job.read("out.1"), job.read("err.1")) == ("1\n2\n3\n1\n3\n", "2\n")


LATE = "slurmstepd: error: *** STEP 4711.{step} ON g1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***"


def test_each_kind_of_end_is_told(job: Job) -> None:
    commands = (
        "exit 3",
        "kill -9 $$",
        "echo CUDA out of memory; exit 1",
        "echo an illegal memory access was encountered; exit 1",
        "echo slurmstepd: error: Detected 1 oom_kill event in StepId=4711.$$ >&9; exit 137",
        "echo CUDA out of memory; exit 0",
        'echo "slurmstepd: error: *** STEP 4711.$$ ON g1 CANCELLED AT 2026-01-01T00:00:00 ***" >&9',
        f'echo "{LATE.format(step="$$")}" >&9',
    )
    status, said, _ = job.run(pack_script("", a_spec(commands=commands, retries=0)))
    assert status == 1
    outcomes = [Outcome.FAILED, Outcome.FAILED, Outcome.GPU_OOM, Outcome.GPU_FAULT, Outcome.HOST_OOM, Outcome.DONE]
    assert [task.outcome for task in job.told().tasks] == [*outcomes, Outcome.STOPPED, Outcome.TIME_LIMIT]
    assert "8 tasks: 1 succeeded\n" in said
    assert "\n  failed: 1-2\n" in said


def test_words_of_an_earlier_attempt_count_no_more(job: Job, printed: Printed) -> None:
    command = "[ -e again ] && exit 7; touch again; echo CUDA out of memory; exit 1"
    status, out, _ = job.run(pack_script("", a_spec(commands=(command,), load=Load(400, 10.0), append=True)))
    assert "\n  failed: 1\n  1 attempt repeated\n  0:0" in out
    printed("pack", out.partition(": ")[2])
    [task] = job.told().tasks
    assert (status, task.attempts, task.outcome, task.status) == (1, 2, Outcome.FAILED, 7)


def test_what_slurm_says_of_a_step_comes_last_in_its_errors_and_of_another_tells_nothing(job: Job) -> None:
    own, late = LATE.format(step="$$"), LATE.format(step="1")
    other = (f'echo "{late}" >&9; exit 1', f'echo "{late}"; exit 1', f'echo "{late}" >&9')
    job.run(pack_script("", a_spec(commands=(f'echo "{own}" >&9; echo mine; exit 1', *other))))
    assert job.read("out.1").splitlines()[0] == "mine"
    assert job.read("out.1").endswith("DUE TO TIME LIMIT ***\n")
    assert [task.outcome for task in job.told().tasks][1:] == [Outcome.FAILED, Outcome.FAILED, Outcome.DONE]


def test_words_in_a_shared_file_tell_nothing(job: Job) -> None:
    commands = ("echo CUDA out of memory; exit 1", "exit 3")
    job.run(pack_script("", a_spec(commands=commands, output="all", append=True)))
    assert [(task.outcome, task.attempts) for task in job.told().tasks] == [(Outcome.FAILED, 1)] * 2
    assert [note.startswith("several tasks write to") for note in job.told().notes] == [True]


def test_a_task_may_remove_the_packs_private_folder(job: Job) -> None:
    script = "[ $SLURM_ARRAY_TASK_ID != 1 ] || rm -rf ${0%/*}\necho ok\n"
    assert "3 tasks: 3 succeeded" in job.pack(script=script, array="1-3")
    assert job.read("out.3") == "ok\n"


def test_a_step_that_does_not_start_is_tried_again(job: Job, printed: Printed) -> None:
    refused = Path(f"{job.calls}.refuse")
    refused.touch()
    started = job.start(pack_script("", a_spec(commands=("true",) * 5, retries=0)))
    job.wait_for("calls")
    time.sleep(0.3)
    refused.unlink()
    out, err = started.communicate(timeout=60)
    assert (started.returncode, "5 tasks: 5 succeeded" in out) == (0, True)
    printed("pack", err.splitlines()[0])


def test_a_pack_gives_up_when_no_step_starts(job: Job) -> None:
    Path(f"{job.calls}.refuse").touch()
    job.patch("loop._FIRST_WAIT_S = 0.001")
    status, out, _ = job.run(pack_script("", a_spec(commands=("true",) * 3)))
    assert (status, "not run: 1-3\n" in out, "--resume=4711" in out) == (1, True, True)
    assert "10 times in a row" in job.told().stopped
    assert len(job.calls.read_text().splitlines()) == 10


def test_a_job_that_is_stopped_while_the_daemon_starts_runs_nothing(job: Job) -> None:
    job.mps()
    control = job.folder / "bin/nvidia-cuda-mps-control"
    control.rename(control.with_name("real"))
    slow = f'[ "$1" = -d ] && touch {job.folder}/here && sleep 1'
    executable(control, f'#!/bin/sh\n{slow}\nexec {job.folder}/bin/real "$@"\n')
    started = job.start(pack_script("", a_spec(2, commands=("true",) * 2)))
    job.wait_for("here")
    started.terminate()
    started.communicate(timeout=60)
    assert (started.returncode, job.calls.exists()) == (143, False)


def test_tasks_share_one_daemon(job: Job) -> None:
    job.mps()
    job.pack(3, commands=("echo $CUDA_MPS_PIPE_DIRECTORY $CUDA_VISIBLE_DEVICES $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",) * 3)
    said = {job.read(f"out.{number}") for number in (1, 2, 3)}
    assert len(said) == 1
    folder, device, limit = said.pop().split()
    assert folder.startswith((f"{job.folder}/tmp/", "/tmp/"))
    assert (device, limit) == ("0", "0=1000M")
    assert not Path(folder).exists()


def test_no_daemon_no_sharing(job: Job) -> None:
    status, _, err = job.run(pack_script("", a_spec(2, commands=("echo ${CUDA_MPS_PIPE_DIRECTORY-none}",) * 2)))
    assert (status, job.read("out.1")) == (0, "none\n")
    assert "one at a time" in err
    assert job.told().notes


@pytest.mark.parametrize("devices", ["0,1", "", "NoDevFiles"])
def test_one_gpu_is_shared_and_neither_none_nor_several(job: Job, devices: str) -> None:
    content = pack_script("", a_spec(2, commands=("true",) * 2))
    status, _, err = job.run(content, CUDA_VISIBLE_DEVICES=devices)
    assert (status, "share one GPU" in err, job.calls.exists()) == (2, True, False)
    assert only_device({"CUDA_VISIBLE_DEVICES": "MIG-1"}) == "MIG-1"


def test_tasks_that_run_together_begin_together_and_wait_for_each_other(job: Job) -> None:
    job.mps()
    met = "touch here.$SLURM_ARRAY_TASK_ID; until [ -e here.1 ] && [ -e here.2 ]; do sleep 0.1; done"
    job.pack(2, commands=(met,) * 2, together=True, retries=0)


def test_when_one_fails_those_that_run_together_with_it_end(job: Job) -> None:
    job.mps()
    stay = "trap 'echo saved; exit 0' TERM; touch here; while :; do sleep 0.1; done"
    fails = "until [ -e here ]; do sleep 0.1; done; exit 3"
    status, out, _ = job.run(pack_script("", a_spec(2, commands=(stay, fails), together=True, retries=0)))
    assert status == 1, out
    assert {task.number: task.outcome for task in job.told().tasks} == {1: Outcome.STOPPED, 2: Outcome.FAILED}
    assert job.read("out.1").endswith("saved\n")


def test_one_that_cannot_begin_keeps_the_others_from_beginning(job: Job) -> None:
    job.mps()
    (job.folder / "out.1").mkdir()
    status, out, _ = job.run(pack_script("", a_spec(2, commands=("true", "touch began"), together=True, retries=0)))
    assert (status, (job.folder / "began").exists(), "not run: 2\n" in out) == (1, False, True)


def test_without_a_daemon_tasks_that_run_together_do_not_begin(job: Job) -> None:
    status, out, _ = job.run(pack_script("", a_spec(2, commands=("touch began",) * 2, together=True, retries=0)))
    assert (status, (job.folder / "began").exists(), "not run: 1-2\n" in out) == (1, False, True)
    assert "MPS daemon" in job.told().stopped


def test_tasks_that_run_together_all_run_again_in_a_requeued_job(job: Job) -> None:
    job.mps()
    spec = a_spec(
        2, commands=("echo ran >>first", "[ -e again ] || { touch again; exit 3; }"), together=True, retries=0
    )
    assert job.run(pack_script("", spec))[0] == 1
    assert job.run(pack_script("", spec), SLURM_RESTART_COUNT="1")[0] == 0
    assert job.read("first") == "ran\nran\n"


def test_a_task_that_writes_over_its_environment_hears_of_a_stop(job: Job) -> None:
    """As one does that sets its own title: nothing in its environment says any more whose it is."""
    (job.folder / "train.py").write_text(
        f"{FORGETS}import signal\ndef save(*_):\n    print('saved', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nopen('here', 'w').close()\ntime.sleep(60)\n"
    )
    started = job.start(pack_script("", a_spec(commands=(f"exec {sys.executable} -I train.py",))))
    job.wait_for("here")
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=60)
    assert job.read("out.1") == "forgot\nsaved\n"


def test_a_stop_is_passed_on_and_written_down(job: Job) -> None:
    stay = "trap 'echo saved; exit 0' TERM; touch here; while :; do sleep 0.1; done"
    started = job.start(pack_script("", a_spec(commands=("true", stay, "true"))))
    job.wait_for("here")
    started.send_signal(signal.SIGTERM)
    out, err = started.communicate(timeout=30)
    assert started.returncode == 143
    assert "not run: 3\n" in out
    assert "SIGTERM" in err
    assert job.read("out.2").endswith("saved\n")
    told = job.told()
    assert [task.outcome for task in told.tasks] == [Outcome.DONE, Outcome.STOPPED]
    assert "SIGTERM" in told.stopped


def test_users_signals_reach_the_tasks(job: Job) -> None:
    stay = "trap 'echo checkpoint; exit 0' USR1; touch here; while :; do sleep 0.05; done"
    started = job.start(pack_script("", a_spec(commands=(stay,))))
    job.wait_for("here")
    started.send_signal(signal.SIGUSR1)
    started.communicate(timeout=30)
    assert (started.returncode, job.read("out.1")) == (0, "checkpoint\n")


def test_a_requeued_job_runs_what_is_not_done(job: Job, printed: Printed) -> None:
    commands = ("date >>one", "echo $SLURM_RESTART_COUNT; [ -e go ] || exit 1")
    assert job.run(pack_script("", a_spec(commands=commands)))[0] == 1
    (job.folder / "go").touch()
    said = job.pack(commands=commands, environ={"SLURM_RESTART_COUNT": "1"})
    printed("pack", said.splitlines()[0].partition(": ")[2])
    assert (len(job.read("one").splitlines()), job.read("out.2")) == (1, "1\n")


def test_a_job_id_that_slurm_gave_before_hides_no_task(job: Job) -> None:
    job.pack(commands=("true", "true"))
    note_of = job.folder / "home/.local/share/slurm_colloc/packs/lab/4711.resumed"
    note_of.write_text("4712\n")
    commands = ("touch began; sleep 60", "echo >two")
    started = job.start(pack_script("", a_spec(commands=commands)))
    job.wait_for("began")
    started.kill()
    started.communicate(timeout=30)
    assert not note_of.exists()
    (job.folder / "began").unlink()
    commands = ("true", "echo >two")
    # Neither where the killed run wrote a header nor where it wrote none.
    for name, spec in (("two", commands), ("three", ("true", "echo >three"))):
        assert "2 tasks: 2 succeeded\n" in job.pack(commands=spec, environ={"SLURM_RESTART_COUNT": "1"})
        assert (job.folder / name).exists()


def test_of_two_jobs_that_resume_one_pack_the_first_to_begin_runs_its_tasks(job: Job, printed: Printed) -> None:
    """Where sbatch's answer is lost csub has noted no job, and its user submits another."""
    commands = ("echo >>ran",)
    job.pack(commands=commands, resumes="4000")
    second = pack_script("", a_spec(commands=commands, resumes="4000"))
    status, out, err = job.run(second, SLURM_JOB_ID="4712")
    assert (status, out, job.read("ran")) == (2, "", "\n")
    printed("pack", err)
    assert job.pack(commands=commands, resumes="4000", environ={"SLURM_RESTART_COUNT": "1"})
    # 4711 was noted and never began.
    (job.folder / "home/.local/share/slurm_colloc/packs/lab/4711.jsonl").unlink()
    assert job.run(second, SLURM_JOB_ID="4712")[0] == 0


def test_a_pack_that_resumes_another_runs_where_nobody_can_note_it(job: Job) -> None:
    (job.folder / "home/.local").write_text("in the way")
    status, out, err = job.run(pack_script("", a_spec(commands=("true",), resumes="4000")))
    assert (status, "1 succeeded" in out) == (0, True), err


def test_without_a_ledger_the_pack_runs_all_the_same(job: Job) -> None:
    (job.folder / "home/.local").write_text("in the way")
    status, out, err = job.run(pack_script("", a_spec(commands=("true",))))
    assert (status, "1 succeeded" in out) == (0, True)
    assert "will not be possible" in err


def test_the_jobs_of_an_array_share_the_tasks(job: Job) -> None:
    said = job.pack(commands=("true",) * 5, jobs=2, environ={"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "4710"})
    assert "2 tasks: 2 succeeded" in said
    assert [task.number for task in job.told("4710_1").tasks] == [2, 4]
    assert kept(job, "4710") == pack_script("", a_spec(commands=("true",) * 5, jobs=2))


def test_an_array_in_which_the_pack_was_submitted_is_none_of_its_own(job: Job) -> None:
    environ = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_STEP": "3"}
    said = job.pack(commands=('echo "$SLURM_ARRAY_JOB_ID" "$SLURM_ARRAY_TASK_STEP"',) * 3, environ=environ)
    assert "3 tasks: 3 succeeded" in said
    assert [task.number for task in job.told().tasks] == [1, 2, 3]
    assert job.read("out.1") == "4711 1\n"


def kept(job: Job, name: str) -> bytes:
    path = job.folder / f"home/.local/share/slurm_colloc/packs/lab/{name}.sh"
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_bytes()


def test_what_a_resume_needs_is_kept(job: Job, printed: Printed) -> None:
    job.pack(script="#!/bin/sh\ntrue\n", array="1-2")
    assert kept(job, "4711") == pack_script("", a_spec(array="1-2"), "#!/bin/sh\ntrue\n")
    assert job.told().job["folder"] == os.path.realpath(job.folder)
    (job.folder / "home/.local/share/slurm_colloc/packs/lab/4711.sh").unlink()
    (job.folder / "home/.local/share/slurm_colloc/packs/lab/4711.sh").mkdir()
    status, _, said = job.run(pack_script("", a_spec(array="1-2"), "#!/bin/sh\ntrue\n"))
    assert status == 0
    printed("pack", said)


def test_many_tasks_that_end_at_once(job: Job) -> None:
    job.mps()
    said = job.pack(40, commands=("true",) * 400, output="/dev/null")
    assert "400 tasks: 400 succeeded" in said


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\ntrue\n", b"#!/bin/sh\n#csub-pack {}\ntrue\n"])
def test_what_is_no_pack(job: Job, content: bytes) -> None:
    status, out, err = job.run(content)
    assert (status, out) == (2, "")
    assert err.startswith("csub pack: error: ")


def test_a_packs_script_is_the_users_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_bytes(pack_script("", a_spec(array="1"), "#!/bin/sh\r\n#csub-pack x\n\0é"))
    assert read_pack(str(path))[1:] == (a_spec(array="1"), "#!/bin/sh\r\n#csub-pack x\n\0é".encode())
    path.write_bytes(pack_script("", a_spec(array="1")))
    with pytest.raises(InputError, match="neither commands nor a script"):
        read_pack(str(path))


NAMES = [
    ("slurm-%A_%a.out", "/w/slurm-10_7.out"),
    ("%4a_%3x_%4A", "/w/0007_na me_0010"),
    ("f%%%a", "/w/f%7"),
    (r"g\%j", "/w/g%j"),
    ("h%q_%", "/w/h%q_%"),
    ("%0a_%00003a_%20a", "/w/7_007_0000000007"),
    ("%j %J %u %N %n%s%t", "/w/12_7 12_7 al n1 0batch0"),
    ("/abs/%a", "/abs/7"),
    ("None", "/dev/null"),
]


@pytest.mark.parametrize(("pattern", "name"), NAMES)
def test_names_of_files(pattern: str, name: str) -> None:
    facts = {"job_id": "12_7", "array_job_id": "10", "name": "na me", "user": "al", "node": "n1", "folder": "/w"}
    assert file_name(pattern, task=7, **facts) == name
    assert file_name("%a", task=None, **facts) == "/w/4294967294", "as of a job that is no array"


def test_last_words(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    assert open_output(path, append=True) == 0
    Path(path).write_text("before")
    at = open_output(path, append=True)
    Path(path).write_text("before after")
    assert (at, last_words(path, at, 100), last_words(path, at, 3)) == (6, b" after", b"ter")
    assert open_output(path, append=False) == 0
    assert last_words(path, at, 100) == last_words("/nonexistent", 0, 100) == b""
    os.mkfifo(tmp_path / "fifo")
    assert last_words(str(tmp_path / "fifo"), 0, 100) == b""


def test_what_slurm_says_of_the_job() -> None:
    given = {"SLURM_JOB_ID": "12", "SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_CPU": "100"}
    job = read_job(given, {0, 2, 4, 6}, 3, "/w")
    assert (job.array_job_id, job.cores, job.mem_share_mib) == ("12", (0, 2, 4, 6), 266)
    assert read_job(given, set(range(64)), 3, "/w").cores == (), "not kept to its cores"
    assert read_job(given | {"SLURM_MEM_PER_NODE": "0"}, {0}, 3, "/w").mem_share_mib is None
    with pytest.raises(InputError, match="inside a Slurm job"):
        read_job({}, {0}, 1, "/w")


def test_cores_are_shared_out() -> None:
    assert slots(range(8), 3, 2) == [(0, 1), (2, 3), (4, 5)]
    assert slots(range(4), 3, 2) == [(0, 1), (2, 3), (0, 1)]
    assert slots(range(2), 2, 4) == [(0, 1), (0, 1)]


def test_what_a_step_is_asked_for() -> None:
    job = read_job({"SLURM_JOB_ID": "12", "SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_NODE": "900"}, range(8), 3, "/w")
    files = Files("/p/step-1", "/w/o", "/w/e", "/dev/null")
    spec = a_spec(3, array="0-4:2,9", time_limit_min=1.5, interpreter=("/usr/bin/env", "python3"), cpus_per_task=2)
    environ = {"OMP_NUM_THREADS": "5", "SLURM_RESTART_COUNT": "1", "SLURM_EXPORT_ENV": "NONE", "SLURM_NTASKS": "4"}
    variables = task_variables(spec, job, Task(2), 2, environ)
    assert [variables[f"SLURM_ARRAY_TASK_{name}"] for name in ("COUNT", "MIN", "MAX", "STEP")] == ["4", "0", "9", "2"]
    assert (variables["SLURM_RESTART_COUNT"], "OMP_NUM_THREADS" in variables) == ("2", False)
    argv = command_line("srun", spec, job, Task(2), script="/p/s", files=files, cores=(0, 1), variables={"A": "b c"})
    assert {"--overlap", "--exact", "-N1", "-n1", "--mem=300M", "--time=1:30", "task-2", "--export=ALL"} < set(argv)
    assert argv[argv.index("-c") + 1] == "8"
    assert argv[-8:] == ["taskset", "-c", "0,1", "env", "A=b c", "/usr/bin/env", "python3", "/p/s"]
    assert srun_environment(environ) == {"OMP_NUM_THREADS": "5", "SLURM_RESTART_COUNT": "1"}


# As some releases do it: the step's srun ends well before what runs in it, and before the batch script hears of it.
SRUN_THAT_ENDS_FIRST = """#!/bin/sh
while [ "$1" != /bin/sh ]; do shift; done
SLURM_STEP_ID=0 setsid "$@" &
while [ ! -e began ]; do sleep 0.05; done
touch srun-ended
echo "slurmstepd: error: *** STEP 4711.0 ON g1 CANCELLED AT 2026-01-02T03:04:05 ***" >&2
"""


def test_a_task_whose_srun_ended_first_may_still_save(job: Job) -> None:
    (job.folder / "bin/srun").write_text(SRUN_THAT_ENDS_FIRST)
    task = "trap 'sleep 1; echo saved; exit 0' TERM; touch began; while :; do sleep 0.1; done"
    running = job.start(pack_script("", a_spec(commands=(task,))))
    job.wait_for("srun-ended")
    time.sleep(0.4)
    running.terminate()
    running.communicate(timeout=60)
    assert "saved" in job.read("out.1")
    assert [one.outcome for one in job.told().tasks] == [Outcome.STOPPED]


def test_a_task_is_no_step_to_its_programs(job: Job) -> None:
    """Not started by srun as far as they can see, and with nothing in the environment that Python added."""
    command = "env | grep -E '^(SLURM_(STEP|JOB_NUM|NNODES|SRUN)|LC_|SRUN)' | sort"
    job.pack(commands=(command,), environ={"SLURM_JOB_NUM_NODES": "1"})
    assert job.read("out.1") == "SLURM_JOB_NUM_NODES=1\nSLURM_NNODES=1\n"
    job.pack(commands=(command,), environ={"SLURM_STEP_ID": "-5"})
    assert job.read("out.1") == "SLURM_JOB_NUM_NODES=1\nSLURM_NNODES=1\nSLURM_STEP_ID=-5\n"


def test_only_processes_of_this_run_and_this_job_are_signalled(tmp_path: Path) -> None:
    def begun(**marks: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], **marks})

    mine = {"SLURM_JOB_ID": "7", "SLURM_CSUB_RUN": RUN, "SLURM_CSUB_TASK": "2"}
    task = begun(**mine)
    others = [
        begun(**mine | {"SLURM_CSUB_TASK": "3"}),
        begun(**mine | {"SLURM_CSUB_RUN": "7-cd"}),
        begun(**mine | {"SLURM_JOB_ID": "8"}),
        begun(SLURM_JOB_ID="7", SLURM_CSUB_TASK="2"),
    ]
    try:
        signal_processes(families_of(RUN, (2,), {})[2].values(), signal.SIGKILL)
        assert task.wait(10) == -signal.SIGKILL
        assert [one.poll() for one in others] == [None] * 4
    finally:
        for one in others:
            one.kill()
            one.wait()


def test_a_gpu_that_is_gone_ends_the_pack_and_not_its_tasks(job: Job, printed: Printed) -> None:
    gone = "echo 'Xid 79: GPU has fallen off the bus.'; exit 1"
    commands = (gone, "true", gone, gone, "touch burnt", "touch burnt")
    status, out, err = job.run(pack_script("", a_spec(commands=commands, retries=0)))
    assert (status, (job.folder / "burnt").exists()) == (1, False)
    printed("pack", err)
    assert "gpu fault: 1,3-4\n  not run: 5-6\n" in out
    assert missing([job.told()]) == (1, 3, 4, 5, 6)


def test_a_task_over_its_time_is_taken_off_the_gpu_and_told_to_end(job: Job, printed: Printed) -> None:
    job.mps()
    stubborn = "trap '' TERM; while :; do sleep 0.1; done"
    saves = "trap 'echo saved; exit 0' TERM; while :; do sleep 0.1; done"
    commands = (stubborn, saves, "sleep 4")
    status, out, _ = job.run(pack_script("", a_spec(3, commands=commands, time_limit_min=0.1)))
    assert (status, "\n  time limit: 1-2\n" in out, "saved\n" in job.read("out.2")) == (1, True, True)
    told = job.told()
    assert [task.outcome for task in told.tasks] == [Outcome.TIME_LIMIT, Outcome.TIME_LIMIT, Outcome.DONE]
    printed("pack", told.tasks[0].message)
    assert [task.attempts for task in told.tasks] == [1, 1, 1]


def test_a_task_that_has_ended_well_in_time_is_done_however_long_its_srun_takes(job: Job) -> None:
    srun = (job.folder / "bin/srun").read_text()
    (job.folder / "bin/srun").write_text(srun.replace('exec "$@" 9>&2', '"$@" 9>&2; sleep 6'))
    status, out, err = job.run(pack_script("", a_spec(commands=("sleep 1",), time_limit_min=0.05)))
    assert (status, "time limit" in out) == (0, False), out + err


def test_a_task_past_the_daemon_is_run_again_alone(job: Job, printed: Printed) -> None:
    job.mps()
    job.patch("loop._LOOK_S = 0.2")
    (job.folder / "dev").mkdir()
    for name in ("nvidia0", mps_control.CONTEXT):
        (job.folder / "dev" / name).touch()
    only_asks = "exec 7<dev/nvidia0"
    cuda = f"{only_asks} 8<dev/{mps_control.CONTEXT}"
    past = f"{cuda}; [ -e seen ] && exec sleep 3; touch seen; sleep 60"
    client = f'{cuda}; {sys.executable} -I -c "{JOIN}" $$; sleep 5'
    status, _, said = job.run(pack_script("", a_spec(3, commands=(past, client, f"{only_asks}; sleep 5"))))
    assert status == 0
    printed("pack", said)
    ended = [(task.outcome, task.attempts) for task in job.told().tasks]
    assert ended == [(Outcome.DONE, 2), (Outcome.DONE, 1), (Outcome.DONE, 1)]


def test_what_a_task_starts_is_handed_the_daemon(job: Job) -> None:
    job.mps()
    job.pack(2, commands=("env >env.$CSUB_PACK_TASK",) * 2, environ={"SLURM_EXPORT_ENV": "A,B", "APPTAINER_BIND": "/d"})
    found = dict(line.split("=", 1) for line in job.read("env.1").splitlines() if "=" in line)
    pipe, log = found["CUDA_MPS_PIPE_DIRECTORY"], found["CUDA_MPS_LOG_DIRECTORY"]
    assert found["APPTAINERENV_CUDA_MPS_PIPE_DIRECTORY"] == found["SINGULARITYENV_CUDA_MPS_PIPE_DIRECTORY"] == pipe
    assert (found["APPTAINER_BIND"], found["SINGULARITY_BIND"]) == (f"/d,{pipe},{log}", f"{pipe},{log}")
    exported = found["SLURM_EXPORT_ENV"].split(",")
    assert exported[:2] == ["A", "B"]
    assert {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES", "CSUB_PACK_TASK", "APPTAINER_BIND"} < set(exported)
    assert not [name for name in exported if name.startswith("SLURM_")]
    # The GPU is number 3 of the node, and the daemon's number 0.
    assert found["SLURM_TASK_PROLOG"].endswith("/prolog")
    job.pack(2, commands=("env >env.$CSUB_PACK_TASK",) * 2, environ={"CUDA_VISIBLE_DEVICES": "0"})
    assert "SLURM_TASK_PROLOG" not in job.read("env.1")
    assert "SLURM_EXPORT_ENV" not in job.read("env.1")


@pytest.mark.parametrize(
    ("exported", "then"),
    [("NONE", "A"), ("none,X", "A"), ("", "A"), ("NIL", "A"), ("X", "X,A"), ("ALL", None), ("ALL,X=1", None)],
)
def test_what_an_srun_is_told_to_export(exported: str, then: str | None) -> None:
    found = into_steps({"A": "1", "SLURM_B": "2"}, {"SLURM_EXPORT_ENV": exported})
    assert found == ({} if then is None else {"SLURM_EXPORT_ENV": then})
    assert into_steps({"A": "1"}, {}) == {}


def test_an_srun_inside_a_task_finds_one_number_of_cores() -> None:
    job = read_job({"SLURM_JOB_ID": "12", "SLURM_CPUS_ON_NODE": "8"}, range(8), 3, "/w")
    spec = a_spec(3, array="1-3", cpus_per_task=2)
    assert task_variables(spec, job, Task(1), 1, {"SLURM_TRES_PER_TASK": "cpu=8"})["SLURM_TRES_PER_TASK"] == "cpu=2"
    assert "SLURM_TRES_PER_TASK" not in task_variables(spec, job, Task(1), 1, {})
