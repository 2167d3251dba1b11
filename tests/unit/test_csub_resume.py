# SPDX-License-Identifier: Apache-2.0
"""csub pack --resume, unmodified, against a made-up sbatch and squeue: only what is missing, and never twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.ledger import LedgerWriter, ledger_path, ledgers_of
from slurm_colloc.pack.resume import keep_script, note_resumed, resumed_by
from slurm_colloc.pack.spec import Spec, Task, from_json, split_script
from slurm_colloc.pack.starts_and_retries import Start
from slurm_colloc.placement.packing import of_equal
from tests.fakes.squeue import squeue_line
from tests.unit.golden import Printed
from tests.unit.programs import executable
from tests.unit.shell import CSUB, DEFINITE, HINT, Shell
from tests.unit.test_csub_pack import SCRIPT, keep_the_script, packed, site, stored

SQUEUE = """#!/bin/sh
echo "$@" >>"$CALLS/../asked"
[ -n "$SQUEUE_PARTITION" ] || cat "$CALLS/../queue" 2>/dev/null || true
"""


@pytest.fixture
def lab(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A site of whole GPUs, an array of 100 tasks, and a Slurm with an empty queue."""
    site(shell)
    (shell.folder / "job.sh").write_text(SCRIPT)
    executable(shell.folder / "bin/squeue", SQUEUE)
    keep_the_script(shell)
    monkeypatch.setenv("HOME", str(shell.folder / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return shell


def ran(shell: Shell, done: range, job: str = "4711", part: int | None = None, failed: range = range(0)) -> Spec:
    """Do what the newest submitted pack would have left behind, had it been ended in the middle."""
    script = stored(shell).encode()
    spec = from_json(split_script(script)[1])
    keep_script("lab", job, script)
    ledger = LedgerWriter(ledger_path("lab", job if part is None else f"{job}_{part}"), print)
    ledger.header(spec, {"SLURM_JOB_ID": job, "folder": f"{shell.folder}/work"})
    for number in (*done, *failed):
        start = Start(Task(number), 1, spec.load)
        ledger.start(start)
        ledger.end(start, Outcome.FAILED if number in failed else Outcome.DONE, int(number in failed))
    ledger.note("stopped by SIGTERM", "stop")
    ledger.close()
    return spec


def begun(shell: Shell, done: int) -> None:
    """Submit a pack that has done so many of its tasks."""
    shell.run("--pack", HINT, "job.sh")
    ran(shell, range(done))


def resume(shell: Shell, *argv: str, job: str = "4711", new: str = "4800") -> tuple[list[str], Spec]:
    """Resume a pack, and return the arguments before the script and what the new one is told."""
    shell.behave(len(shell.calls()), f'echo "Submitted batch job {new}"; exit')
    return packed(shell, "pack", f"--resume={job}", *argv, job=new)


def test_only_what_is_missing_of_an_array_is_submitted(lab: Shell) -> None:
    lab.run("--pack", HINT, "--parsable", "--dependency=afterok:7", "-J", "sweep", "--array=0-99%6", "job.sh", "a b")
    first = from_json(split_script(stored(lab).encode())[1])
    ran(lab, range(90), failed=range(90, 95))
    options, spec = resume(lab)
    assert spec.only == tuple(range(90, 100))
    assert (spec.array, spec.script_args, spec.name) == ("0-99", ("a b",), "sweep")
    assert (spec.interpreter, spec.load, spec.room.tasks) == (first.interpreter, first.load, 6)
    assert [task.number for task in spec.tasks()] == list(range(90, 100))
    assert options[:3] == ["-J", "sweep", f"--chdir={lab.folder}/work"]
    assert stored(lab).endswith("}\n" + SCRIPT)
    assert Path(lab.calls()[-1][-2]).name == "sweep"
    assert resumed_by("lab", "4711")[0] == ("4800",)
    assert lab.decisions()[-1]["reasons"][-1] == ["resumes", {"job_id": "4711"}]


def test_two_at_the_same_moment_do_not_both_resume(lab: Shell, printed: Printed) -> None:
    begun(lab, 90)
    calls = len(lab.calls())
    inner = f"{CSUB} pack --resume=4711 2>{lab.folder}/second; echo $? >{lab.folder}/status"
    lab.behave(calls, f'{inner}; echo "Submitted batch job 4800"; exit')
    done = lab.run("pack", "--resume=4711")
    assert done.returncode == 0, done.stderr
    assert len(lab.calls()) == calls + 1
    printed("csub-pack", (lab.folder / "second").read_text())
    assert (lab.folder / "status").read_text() == "2\n"
    assert resumed_by("lab", "4711")[0] == ("4800",)


def test_options_given_now_win(lab: Shell) -> None:
    lab.run("--pack", HINT, "-t", "20", "job.sh")
    ran(lab, range(96))
    options, spec = resume(lab, "--gpu-footprint=mem=20G,sm=10", "--time=30", "--pack-retries", "5")
    assert (spec.load.memory_mib, spec.retries) == (20 * 1024 + 256, 5)
    assert spec.time_limit_min == pytest.approx(30 * of_equal(3, 10).upper)
    assert options.index("--time=30") > options.index("20")


def test_commands_are_resumed_with_the_lines_of_their_file(lab: Shell) -> None:
    lines = [
        "#!/bin/sh",
        "#SBATCH --gres=gpu:1 -t 10",
        f"#CSUB {HINT}",
        "echo 1",
        "# two",
        "echo 'b  c'",
        "echo 3",
        "echo 4",
    ]
    (lab.folder / "list").write_text("\n".join(lines))
    lab.run("pack", "--mem=1G", "list")
    ran(lab, range(2, 3))
    (lab.folder / "list").unlink()
    options, spec = resume(lab)
    assert (spec.commands, spec.only) == (("echo 1", "echo 'b  c'", "echo 3", "echo 4"), (1, 3, 4))
    assert (spec.room.tasks, spec.load.memory_mib) == (3, 4096 + 256)
    assert {"--mem=1G", "--mem=3G"} <= set(options)
    ran(lab, range(3, 4), "4800")
    options, spec = resume(lab, job="4800", new="4801")
    assert (spec.only, spec.argv[0], spec.argv[-1]) == ((1, 4), "pack", "list")
    assert sum(word.startswith("--chdir") for word in options) == 1


def test_what_a_later_pack_did_is_not_done_again(lab: Shell, printed: Printed) -> None:
    begun(lab, 10)
    resume(lab)
    ran(lab, range(10, 50), "4800")
    resume(lab, job="4800", new="4900")
    ran(lab, range(50, 90), "4900")
    _, spec = resume(lab, new="4950")
    assert spec.only == tuple(range(90, 100))
    assert resumed_by("lab", "4711")[0] == ("4800", "4900", "4950")
    ran(lab, range(90, 99), "4950")
    # One missing task is a pack too.
    _, spec = resume(lab, new="4960")
    assert (spec.only, spec.room.tasks) == ((99,), 1)
    ran(lab, range(99, 100), "4960")
    done = lab.run("pack", "--resume", "4711")
    assert (done.returncode, done.stdout) == (0, "")
    printed("csub-pack", done.stderr)


def test_all_jobs_of_an_array_of_packs_count(lab: Shell) -> None:
    lab.run("--pack-jobs=3", HINT, "job.sh")
    ran(lab, range(0, 100, 3), part=0)
    ran(lab, range(1, 40, 3), part=1)
    assert [Path(path).name for path in ledgers_of("lab", "4711")] == ["4711_0.jsonl", "4711_1.jsonl"]
    _, spec = resume(lab, "--pack-jobs=1", job="4711_1")
    assert spec.jobs == 1
    assert spec.only == tuple(sorted({*range(2, 100, 3), *range(40, 100, 3)}))


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        (squeue_line("4711"), "job 4711 is still running; wait for its end, or end it by 'scancel 4711'"),
        (squeue_line("9") + squeue_line("4711", State="PENDING"), "job 4711 is still pending"),
        (squeue_line("4800", State="PENDING"), "job 4800, which resumes job 4711, is still pending"),
    ],
)
def test_what_may_still_run_is_not_run_twice(lab: Shell, queue: str, said: str) -> None:
    begun(lab, 9)
    note_resumed("lab", "4711", "4800")
    (lab.folder / "queue").write_text(queue)
    done = lab.run("pack", "--resume=4711", environ={"SQUEUE_PARTITION": "another"})
    assert (done.returncode, len(lab.calls())) == (2, 1)
    assert said in done.stderr


def test_a_slurm_that_does_not_answer_leaves_the_tasks_alone(lab: Shell, printed: Printed) -> None:
    begun(lab, 9)
    (lab.folder / "bin/squeue").write_text("#!/bin/sh\necho 'squeue: error: Unable to contact slurm' >&2; exit 1\n")
    done = lab.run("pack", "--resume=4711")
    assert (done.returncode, len(lab.calls())) == (2, 1)
    printed("csub-pack", done.stderr)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--resume=12"], "job 12 cannot be resumed: no ledger of it"),
        (["--resume=../x"], "is no id of a job"),
        (["--resume="], "is no id of a job"),
        (["--resume"], "has no value"),
        (["--resume=4711", "--resume=4712"], "twice"),
        (["--resume=4711", "list"], "'list' beside --resume"),
        (["--resume=4711", "--", "echo"], "'-- echo' beside --resume"),
        (["--resume=4711", "--array=1-5"], "leave --array"),
        (["--resume=4711", "--wrap=true"], "leave --array"),
        (["--resume=4711", "--array=0-99%x"], "--array='0-99%x' is not understood"),
    ],
)
def test_what_is_not_understood_submits_nothing(lab: Shell, argv: list[str], said: str) -> None:
    begun(lab, 9)
    done = lab.run("pack", *argv)
    assert said in done.stderr
    assert "nothing was submitted" in done.stderr
    assert (done.returncode, len(lab.calls())) == (2, 1)


def test_a_refusal_of_slurm_is_no_array(lab: Shell) -> None:
    begun(lab, 9)
    lab.behave(1, f'echo "{DEFINITE}" >&2; exit 1')
    done = lab.run("pack", "--resume=4711")
    assert (done.returncode, len(lab.calls())) == (1, 2)
    assert resumed_by("lab", "4711")[0] == ()


def test_a_dry_run_submits_and_notes_nothing(lab: Shell, printed: Printed) -> None:
    begun(lab, 9)
    done = lab.run("pack", "--resume=4711", "--dry-run", "--explain")
    assert (done.returncode, len(lab.calls())) == (0, 1)
    assert from_json(split_script(done.stdout.encode())[1]).only == tuple(range(9, 100))
    printed("csub-pack", done.stderr)
    assert resumed_by("lab", "4711")[0] == ()


def test_a_script_that_was_not_kept_is_said(lab: Shell, printed: Printed) -> None:
    begun(lab, 9)
    path = Path(ledger_path("lab", "4711")).with_suffix(".sh")
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    done = lab.run("pack", "--resume=4711")
    assert done.returncode == 2
    printed("csub-pack", done.stderr)


def test_a_ledger_without_a_header_leaves_its_tasks_to_be_run(lab: Shell, printed: Printed) -> None:
    lab.run("--pack-jobs=2", HINT, "job.sh")
    ran(lab, range(0, 100, 2), part=0)
    Path(ledger_path("lab", "4711_1")).write_text('{"at_s":')
    _, spec = resume(lab)
    assert spec.only == tuple(range(1, 100, 2))
    Path(ledger_path("lab", "4711_0")).write_text("")
    done = lab.run("pack", "--resume=4711")
    printed("csub-pack", done.stderr)


def test_a_pack_that_resumes_another_shares_its_tasks_with_whatever_else_resumes_that(
    lab: Shell, printed: Printed
) -> None:
    begun(lab, 90)
    resume(lab, new="4800")
    ran(lab, range(90, 92), job="4800")
    resume(lab, new="4900")
    (lab.folder / "queue").write_text(squeue_line("4900", State="PENDING"))
    calls = len(lab.calls())
    done = lab.run("pack", "--resume=4800")
    assert (done.returncode, len(lab.calls())) == (2, calls), done.stderr
    printed("csub-pack", done.stderr)
    (lab.folder / "queue").write_text("")
    ran(lab, range(92, 95), job="4900")
    assert resume(lab, job="4800", new="4950")[1].only == tuple(range(95, 100))
