# SPDX-License-Identifier: Apache-2.0
"""A pack whose tasks read from one loader: the order of starts and ends, and what a loader's end costs."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.runtime.loader import FOR_TASKS, free_ports, listeners
from slurm_colloc.runtime.queue import Outcome
from slurm_colloc.runtime.spec import Loader, from_json, to_json
from tests.cluster.packs import a_spec, pack_script
from tests.unit.shell import HINT, Shell
from tests.unit.test_csub_pack import HEAD, lab, packed
from tests.unit.test_pack import SRUN, Job, job
from tests.unit.test_pack_clients import FORGETS

__all__ = ["job", "lab"]

# Serves until it is told to end, or until there is the file $1; then it ends with $2.
SERVE = """
import os, signal, socket, sys, time
if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
    os.unlink(sys.argv[1])
out = open("events", "a", buffering=1)
def end(*_):
    out.write("told to end\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
server = socket.create_server(("", int(os.environ["CSUB_LOADER_PORT"])))
out.write("serves\\n")
while len(sys.argv) == 1 or not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
out.write("ends\\n")
sys.exit(int(sys.argv[2]))
"""
# Waits for ever for what does not come, as a consumer does.
READ = "touch began; while [ ! -e go ]; do sleep 0.05; done; "


def serving(job: Job, *words: object, **fields: Any) -> Loader:
    (job.folder / "serve.py").write_text(SERVE)
    command = f"{sys.executable} serve.py {' '.join(map(str, words))}"
    return Loader(command=command, output="loader.%j", **({"cpus": 3, "wait_s": 30} | fields))


def pack(job: Job, at_once: int = 1, environ: dict[str, str] | None = None, **fields: Any) -> tuple[int, str]:
    """Run a pack and return its exit status and all it said."""
    status, out, err = job.run(pack_script("", a_spec(at_once, **fields)), **(environ or {}))
    return status, out + err


def events(job: Job) -> list[str]:
    return job.read("events").splitlines()


def test_it_serves_before_the_first_task_and_ends_behind_the_last(job: Job) -> None:
    job.mps()
    told = f'echo task >>events; env >env.$CSUB_PACK_TASK; {sys.executable} -c "import socket, os; '
    told += "socket.create_connection((os.environ['CSUB_LOADER_ADDRESS'], os.environ['CSUB_LOADER_PORT']))\""
    status, said = pack(job, 2, commands=(told,) * 3, loader=serving(job))
    assert (status, "3 tasks: 3 succeeded" in said) == (0, True), said
    assert events(job) == ["serves", "task", "task", "task", "told to end"]
    variables = dict(line.split("=", 1) for line in job.read("env.1").splitlines() if "=" in line)
    ports = variables["CSUB_LOADER_PORTS"].split(",")
    assert (len(set(ports)), variables["CSUB_LOADER_PORT"]) == (4, ports[0])
    assert variables["PYTHONPATH"].split(":")[0] == FOR_TASKS
    assert (Path(FOR_TASKS) / "csub_loader.py").exists()
    first, *_ = job.calls.read_text().splitlines()
    assert first.startswith("-J loader --overlap --exact ")
    # A third part of the job's memory, and the daemon of the tasks.
    assert " --mem=300M " in first
    assert " CUDA_MPS_PIPE_DIRECTORY=" in first
    assert " SLURM_CPUS_PER_TASK=3 " in first
    assert "SLURM_ARRAY_TASK_ID" not in first


def test_its_words_go_into_its_own_file_and_notes_into_the_packs(job: Job) -> None:
    (job.folder / "loader.4711").write_text("of the run before\n")
    loader = serving(job)
    pack(job, commands=("true",), loader=loader._replace(command=f"echo begins; {loader.command}"))
    assert job.read("loader.4711") == "of the run before\nbegins\n"
    assert any("the shared loader serves, after" in note for note in job.told().notes)


def test_tasks_that_wait_for_a_loader_that_died_run_again_beside_a_new_one(job: Job) -> None:
    job.mps()
    once = "[ ! -e died ] || exec {0}; touch died; exec {0} began 7"
    loader = serving(job)
    loader = loader._replace(command=once.format(loader.command))
    reads = f"env | grep LOADER_PORTS >>ports.$CSUB_PACK_TASK; [ $(wc -l <ports.$CSUB_PACK_TASK) = 2 ] || {{ {READ} }}"
    status, said = pack(job, 2, commands=(reads, reads), loader=loader)
    assert (status, "2 tasks: 2 succeeded" in said) == (0, True), said
    assert "the shared loader ended with status 7, and is started anew" in said
    assert events(job) == ["serves", "ends", "serves", "told to end"]
    assert len(set(job.read("ports.1").splitlines())) == 2
    assert [(task.outcome, task.attempts) for task in job.told().tasks] == [(Outcome.DONE, 2)] * 2


def test_a_task_that_saves_and_ends_well_because_its_loader_died_is_not_done(job: Job) -> None:
    loader = serving(job, "began", 7)
    saves = "trap 'echo saved; exit 0' TERM; touch began; while :; do sleep 0.05; done"
    status, _ = pack(job, commands=(saves,), loader=loader, retries=0)
    assert (status, "saved\n" in job.read("out.1")) == (1, True)
    assert [task.outcome for task in job.told().tasks] == [Outcome.LOST]


def test_a_loader_that_dies_again_and_again_ends_the_pack(job: Job) -> None:
    loader = serving(job, "began", 7)
    status, said = pack(job, 1, commands=(READ, READ), loader=loader, retries=1)
    assert (status, "not run: 1-2\n" in said) == (1, True), said
    assert "status 7, 2 times without a task done in between" in said
    assert "no more tasks are started" in job.told().stopped
    assert events(job) == ["serves", "ends"] * 2


def test_a_loader_that_cannot_begin_is_tried_as_often_as_a_task_and_its_words_are_told(job: Job) -> None:
    loader = Loader("echo no such data >&2; exit 3", 1, 30, "loader.%j")
    status, said = pack(job, 1, commands=("touch ran",), loader=loader, retries=1)
    assert (status, (job.folder / "ran").exists()) == (1, False)
    assert "the shared loader ended with status 3 before it served, 2 times" in said
    assert "no such data" in said
    assert job.read("loader.4711") == "no such data\n" * 2


def test_a_loader_that_never_serves_is_waited_for_so_long_and_no_longer(job: Job) -> None:
    loader = Loader("echo reads; exec sleep 600", 1, 1, "loader.%j")
    status, said = pack(job, 1, commands=("touch ran",), loader=loader)
    assert (status, (job.folder / "ran").exists()) == (1, False)
    assert "did not listen on its port within 1 s: reads" in said
    assert "--loader-wait" in said


def test_one_that_has_come_to_its_end_is_followed_by_the_next_when_its_tasks_have_ended(job: Job) -> None:
    loader = serving(job)
    loader = loader._replace(command=f"[ ! -e began ] || exec {loader.command}; exec {loader.command} began 0")
    status, said = pack(job, 1, commands=("touch began; sleep 2", "true"), loader=loader)
    assert (status, "2 tasks: 2 succeeded" in said) == (0, True), said
    assert events(job) == ["serves", "ends", "serves", "told to end"]
    assert [task.attempts for task in job.told().tasks] == [1, 1]


def test_a_step_that_slurm_refuses_is_no_death_of_the_loader(job: Job) -> None:
    (job.folder / "calls.refuse").touch()
    started = job.start(pack_script("", a_spec(1, commands=("true",), loader=serving(job), retries=0)))
    job.wait_for("calls")
    time.sleep(0.5)
    (job.folder / "calls.refuse").unlink()
    out, err = started.communicate(timeout=60)
    assert (started.returncode, "1 task: 1 succeeded" in out) == (0, True), err


def test_with_the_job_the_tasks_are_stopped_first(job: Job) -> None:
    saves = "trap 'echo saved >>events; exit 0' TERM; touch began; while :; do sleep 0.05; done"
    started = job.start(pack_script("", a_spec(1, commands=(saves,), loader=serving(job))))
    job.wait_for("began")
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=60)
    assert started.returncode == 143
    assert events(job) == ["serves", "saved", "told to end"]


def test_one_that_hears_nothing_is_killed_with_all_it_started(job: Job) -> None:
    (job.folder / "deaf.sh").write_text("trap '' TERM; sleep 321.5 & sleep 321.5\n")
    loader = serving(job)
    pack(job, commands=("true",), loader=loader._replace(command=f"sh deaf.sh & {loader.command}"))
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"321.5" in read(path)]
    assert left == []


def test_one_that_writes_over_its_environment_hears_of_the_end(job: Job) -> None:
    """As one does that sets its own title: nothing in its environment says any more whose it is."""
    loader = serving(job)
    port = 'int(os.environ["CSUB_LOADER_PORT"])'
    forgets = f"import os\nport = {port}\n{FORGETS}{SERVE.replace(port, 'port')}"
    (job.folder / "serve.py").write_text(forgets)
    # As on a cluster it is no child of srun's that a signal to srun would reach.
    (job.folder / "bin/srun").write_text(SRUN.replace('exec "$@"', '"$@"'))
    status, said = pack(job, commands=("true",), loader=loader._replace(command=f"exec {loader.command}"))
    assert (status, events(job)) == (0, ["serves", "told to end"]), said


def test_a_requeued_pack_has_a_loader_of_its_own_and_runs_what_is_not_done(job: Job) -> None:
    loader = serving(job)
    second = "echo second >>events; [ -e go ] || { touch began; sleep 60; }"
    content = pack_script("", a_spec(1, commands=("echo first >>events", second), loader=loader))
    started = job.start(content)
    job.wait_for("began")
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=60)
    (job.folder / "go").touch()
    status, out, err = job.run(content, SLURM_RESTART_COUNT="1")
    assert (status, "1 task: 1 succeeded (1 more had done so before)" in out) == (0, True), err
    assert events(job) == ["serves", "first", "second", "told to end", "serves", "second", "told to end"]
    assert [task.outcome for task in job.told().tasks] == [Outcome.DONE] * 2


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_daemon_that_dies_takes_the_loader_with_it(job: Job) -> None:
    job.mps()
    kill = "[ -e killed ] || { touch killed; kill -9 $(cat $CUDA_MPS_PIPE_DIRECTORY/*.pid); sleep 100; }"
    status, said = pack(job, 2, commands=(kill, "true"), loader=serving(job), retries=1)
    assert (status, "2 tasks: 2 succeeded" in said) == (0, True), said
    assert events(job) == ["serves", "told to end"] * 2


def test_who_listens_is_known_and_ports_are_free() -> None:
    ports = free_ports(4)
    assert len(set(ports)) == 4
    assert [listeners(port) for port in ports] == [set()] * 4
    with socket.create_server(("", ports[0])), socket.create_server(("::1", ports[1]), family=socket.AF_INET6):
        assert listeners(ports[0]) == listeners(ports[1]) == {os.geteuid()}


def test_what_another_user_serves_is_not_taken_for_the_loader(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    patched = "import os, sys; from slurm_colloc.runtime import loader, pack"
    patched += "; loader.listeners = lambda _: {os.geteuid() + 1}; sys.exit(pack.main(sys.argv[1:], dict(os.environ)))"
    monkeypatch.setattr(Job, "PROGRAM", ("-c", patched))
    status, said = pack(job, commands=("touch ran",), loader=serving(job, wait_s=1))
    assert (status, (job.folder / "ran").exists()) == (1, False)
    assert "did not listen on its port within 1 s" in said


def test_a_spec_of_before_has_no_loader() -> None:
    told = json.loads(to_json(a_spec(1)))
    del told["loader"]
    told["version"] = 1
    assert from_json(json.dumps(told)).loader is None
    spec = a_spec(1, loader=Loader("a", 1, 2, "b"))
    assert from_json(to_json(spec)) == spec


def test_the_loader_counts_as_one_task(lab: Shell) -> None:
    _, without = packed(lab, "--pack", HINT, "job.sh")
    argv = ("--pack", HINT, "--shared-loader=producer.py --epochs 3", "job.sh")
    options, spec = packed(lab, *argv)
    assert spec.loader == Loader("python3 producer.py --epochs 3", 2, 300, "logs/slurm-%j.loader.out")
    assert spec.room.tasks == without.room.tasks - 1
    assert spec.room.memory_mib == without.room.memory_mib - spec.load.memory_mib
    # Cores and memory of twelve, of which one is the loader.
    assert {"--cpus-per-task=24", "--mem=48G"} <= set(options)
    assert spec.cpus_per_task == 2
    # Ten rounds of 10 min, slowed by 12 x 10 % x 1.06; 5 min until it serves; one task again.
    assert "--time=167" in options
    assert spec.argv == argv


def test_what_the_user_says_of_the_loader_holds(lab: Shell) -> None:
    own = ("--shared-loader", ". env; make batches", "--loader-cpus=6", "--loader-wait=900")
    options, spec = packed(lab, HINT, *own, "--pack-tasks=4", "job.sh")
    assert spec.loader == Loader(". env; make batches", 6, 900, "logs/slurm-%j.loader.out")
    assert (spec.room.tasks, spec.cpus_per_task) == (4, 2)
    assert {"--cpus-per-task=14", "--mem=20G"} <= set(options)
    (lab.folder / "job.sh").write_text(HEAD + '#CSUB --shared-loader="producer.py"\n#CSUB --pack-tasks=2\n\ntrue\n')
    _, spec = packed(lab, HINT, "job.sh")
    assert spec.loader is not None
    assert spec.loader.command == "python3 producer.py"


def test_a_single_task_at_a_time_may_have_a_loader_too(lab: Shell) -> None:
    options, spec = packed(
        lab, "pack", "--gres=gpu:1", "--mem=4G", "--shared-loader=p.py", "--", "run", "{a}", ":::", "a=1,2"
    )
    assert spec.loader is not None
    assert (spec.room.tasks, "--mem=8G" in options) == (1, True)


@pytest.mark.parametrize(
    "argv", [["--pack", "--loader-cpus=2"], ["--shared-loader= "], ["--shared-loader=a", "--loader-wait=0"]]
)
def test_what_is_said_of_a_loader_must_make_sense(lab: Shell, argv: list[str]) -> None:
    done = lab.run(HINT, *argv, "job.sh")
    assert (done.returncode, lab.calls()) == (2, [])
    assert "loader" in done.stderr
