# SPDX-License-Identifier: Apache-2.0
"""csub --canary and --probe, unmodified, against a made-up sbatch: what is submitted, and what where one is refused."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.followup.canary_split import divide
from slurm_colloc.followup.record import CANARY, PROBE
from slurm_colloc.slurm.array import parse_array, ranges
from slurm_colloc.slurm.options import Given
from tests.unit.made import site
from tests.unit.shell import DEFINITE, DOUBTFUL, HINT, Shell

ARRAY = ("--canary", "--array=2-5%2")
FAILS = 'echo "{}" >&2\nexit 1\n'


@pytest.fixture
def slurm(shell: Shell) -> Shell:
    """A site without samplers on its nodes, and an sbatch that counts its jobs."""
    shell.site('"mig", "mps"', agent=False)
    sbatch = shell.folder / "bin/sbatch"
    counted = (
        'case " $* " in *\' --parsable \'*) echo $((100 + n)) ;; *) echo "Submitted batch job $((100 + n))" ;; esac'
    )
    sbatch.write_text(sbatch.read_text().replace('echo "Submitted batch job 4711"', counted))
    scancel = shell.folder / "bin/scancel"
    scancel.write_text('#!/bin/sh\necho "$@" >>"$CALLS/../cancelled"\n')
    scancel.chmod(0o755)
    return shell


def cancelled(slurm: Shell) -> list[str]:
    path = slurm.folder / "cancelled"
    return path.read_text().split() if path.exists() else []


def folder(slurm: Shell) -> Path:
    return slurm.folder / "home/.local/share/slurm_colloc/followup/lab/measured-100"


def options(call: list[str], *names: str) -> dict[str, str]:
    found = dict(word[2:].partition("=")[::2] for word in call if word.startswith("--"))
    return {name: found[name] for name in names if name in found}


def test_three_jobs_are_submitted_each_waiting_for_the_one_before(slurm: Shell) -> None:
    done = slurm.run(*ARRAY, "--dependency=afterok:7", "job.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 102\n"), done.stderr
    assert "csub: job 102: job 100 measures task 2 first; then job 101 submits this one again" in done.stderr
    first, companion, rest = slurm.calls()
    assert options(first, "dependency") == {"dependency": "afterok:7"}
    assert [word for word in first if word.startswith("--array")][-1] == "--array=2"
    assert options(companion, "dependency", "job-name") == {"dependency": "afterany:100", "job-name": "csub-canary-100"}
    assert [word for word in rest if word.startswith("--array")][-1] == "--array=3-5%2"
    assert [word for word in rest if word.startswith("--dep")][-1] == "--dependency=afterok:7,afterany:101"
    scripts = [(slurm.folder / f"script.{number}").read_text() for number in (0, 2)]
    assert scripts[0] == scripts[1]
    assert "sampl" in scripts[0]
    for call in (first, rest):
        assert call[-1].endswith("job.sh")
        assert not any(word.startswith(("--gres", "--canary", "--hold")) for word in call)
    record = json.loads((folder(slurm) / "record.json").read_text())
    assert record["options"] == ["--array=3-5%2"]
    assert (record["own"], record["kind"], record["array"]) == (["--canary"], "canary", "2")
    assert (folder(slurm) / "rest").read_text() == "102"
    assert os.readlink(folder(slurm).parent / "measured-102") == "measured-100"
    noted = {str(decision["job_id"]): decision for decision in slurm.decisions()}
    assert sorted(noted) == ["100", "102"]
    assert noted["102"]["given"] == "as asked"
    [why, *_] = noted["102"]["reasons"]
    assert why[1]["why"].startswith("job 100 measures task 2 first; then job 101 submits this one")


def test_parsable_says_the_id_of_the_rest_alone(slurm: Shell) -> None:
    assert slurm.run(*ARRAY, "--parsable", "job.sh").stdout == "102\n"


def test_a_probe_is_the_job_with_limits_of_its_own(slurm: Shell) -> None:
    path = slurm.folder / "site.toml"
    path.write_text(path.read_text() + '[probe]\npartition = "debug"\n')
    slurm.behave(0, 'echo "[$CSUB_PROBE]" >"$CALLS/../marked"')
    slurm.behave(2, 'echo "[$CSUB_PROBE]" >>"$CALLS/../marked"')
    done = slurm.run("--probe", "-o", "mine", "job.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 102\n"), done.stderr
    first, _, rest = slurm.calls()
    mine = {"partition": "debug,gpu", "time": "3", "output": "csub-probe-%j.out", "error": "csub-probe-%j.out"}
    assert options(first, *mine) == mine
    assert options(rest, *mine, "dependency") == {"dependency": "afterany:101"}
    assert (slurm.folder / "marked").read_text() == "[1]\n[]\n"


def test_standard_input_is_given_to_both(slurm: Shell) -> None:
    done = slurm.run(*ARRAY, input="#!/bin/bash\n#SBATCH --gres=gpu:1\necho hello\n")
    assert done.stdout == "Submitted batch job 102\n", done.stderr
    assert all("echo hello" in (slurm.folder / f"script.{number}").read_text() for number in (0, 2))


def test_samplers_on_the_nodes_are_too_late_so_the_first_job_has_its_own(slurm: Shell) -> None:
    slurm.site('"mig", "mps"', agent=True)
    assert slurm.run(*ARRAY, "job.sh").stdout == "Submitted batch job 102\n"
    scripts = [(slurm.folder / f"script.{number}").read_text() for number in (0, 2)]
    assert ["sampl" in text for text in scripts] == [True, False]


def test_a_refused_first_job_leaves_the_array_as_it_is(slurm: Shell) -> None:
    slurm.behave(0, FAILS.format(DEFINITE))
    done = slurm.run(*ARRAY, "job.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 101\n")
    assert "csub: not measured first: its first job was refused" in done.stderr
    assert [word for word in slurm.calls()[1] if "array" in word] == ["--array=2-5%2"]


def test_after_a_doubtful_answer_nothing_more_is_submitted(slurm: Shell) -> None:
    slurm.behave(0, FAILS.format(DOUBTFUL))
    done = slurm.run(*ARRAY, "job.sh")
    assert (done.returncode, done.stdout, len(slurm.calls())) == (1, "", 1)
    assert DOUBTFUL in done.stderr


@pytest.mark.parametrize("said", [DEFINITE, DOUBTFUL])
def test_without_a_companion_the_rest_waits_for_the_first_job_as_asked(slurm: Shell, said: str) -> None:
    slurm.behave(1, FAILS.format(said))
    done = slurm.run(*ARRAY, "job.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 102\n")
    assert options(slurm.calls()[2], "dependency") == {"dependency": "afterany:100"}
    assert "job 100 is task 2; this job begins as asked when that has ended, without being sized" in done.stderr
    assert os.readlink(folder(slurm) / "claimed") == "csub", "there may be a companion all the same"


def test_a_rest_that_is_refused_behind_the_companion_is_tried_without(slurm: Shell) -> None:
    slurm.behave(2, FAILS.format(DEFINITE))
    done = slurm.run(*ARRAY, "job.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 103\n")
    assert options(slurm.calls()[3], "dependency") == {"dependency": "afterany:100"}
    assert cancelled(slurm) == ["101"]


def test_a_rest_that_is_refused_takes_the_first_job_with_it(slurm: Shell) -> None:
    for number in (2, 3):
        slurm.behave(number, FAILS.format(DEFINITE))
    done = slurm.run(*ARRAY, "job.sh")
    assert (done.returncode, done.stdout) == (1, "")
    assert "csub: error: the rest was refused, and job 100 (task 2) was told to end" in done.stderr
    assert cancelled(slurm) == ["101", "100"]


@pytest.mark.parametrize(
    "said",
    ["Invalid job array specification", "Job dependency problem", "Pathname of a file, directory or other parameter"],
)
def test_an_array_that_slurm_refuses_leaves_no_first_task_behind(slurm: Shell, said: str) -> None:
    said += " too long" if said.startswith("Path") else ""
    for number in (2, 3):
        slurm.behave(number, FAILS.format(f"sbatch: error: Batch job submission failed: {said}"))
    assert slurm.run("--canary", "--array=1-5000", "job.sh").returncode == 1
    assert cancelled(slurm) == ["101", "100"]


def test_that_a_job_was_told_to_end_is_said_only_where_it_was(slurm: Shell) -> None:
    for number in (2, 3):
        slurm.behave(number, FAILS.format(DEFINITE))
    (slurm.folder / "bin/scancel").write_text('#!/bin/sh\n[ -z "$SCANCEL_NAME" ] && echo "no answer" >&2\nexit 1\n')
    done = slurm.run(*ARRAY, "job.sh", environ={"SCANCEL_NAME": "other"})
    assert (done.returncode, done.stdout) == (1, "")
    assert "csub: error: the rest was refused, and job 100 could not be cancelled: " in done.stderr


def test_a_probe_that_is_one_job_too_many_is_taken_back_and_the_job_submitted_as_usual(slurm: Shell) -> None:
    path = slurm.folder / "site.toml"
    path.write_text(path.read_text() + '[probe]\npartition = "debug"\n')
    for number in (1, 2):
        slurm.behave(number, FAILS.format(DEFINITE))
    done = slurm.run("--probe", "job.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 103\n"), done.stderr
    assert "csub: not measured first: behind job 100, which is cancelled, sbatch: error: " in done.stderr
    assert cancelled(slurm) == ["100"]
    assert options(slurm.calls()[3], "dependency", "partition") == {}


def test_a_rest_of_which_nobody_knows_whether_it_is_there_is_not_submitted_again(slurm: Shell) -> None:
    slurm.behave(2, FAILS.format(DOUBTFUL))
    done = slurm.run(*ARRAY, "job.sh")
    assert (done.returncode, done.stdout, len(slurm.calls())) == (1, "", 3)
    assert "csub cannot tell whether a job of the rest exists: see squeue" in done.stderr
    assert "100" not in cancelled(slurm)


FAULTY = """
import sys
import slurm_colloc.cli.csub as csub, slurm_colloc.followup.canary as canary
import slurm_colloc.followup.submission as submission
where, name, at, when = sys.argv.pop(1).split(",")
home, count = globals()[where], [0]
was = getattr(home, name)
def faulty(*args, **kwargs):
    count[0] += 1
    if count[0] == int(at):
        if when == "behind":
            was(*args, **kwargs)
        raise RuntimeError("made up")
    return was(*args, **kwargs)
setattr(home, name, faulty)
csub.main()
"""
FAULTS = [("canary", name, at) for name in ("name_also", "write_all") for at in (1, 2)]
FAULTS += [("submission", name, at) for name in ("run", "remove_script") for at in (1, 2)]
FAULTS += [("canary", name, 1) for name in ("_record", "write_record", "submit_companion", "write_step", "_done")]
FAULTS.append(("csub", "tell", 1))


@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize(("where", "name", "at"), FAULTS)
def test_whatever_fails_the_whole_is_not_submitted_beside_a_part(
    slurm: Shell, where: str, name: str, at: int, when: str
) -> None:
    done = slurm.run(f"{where},{name},{at},{when}", *ARRAY, "job.sh", code=FAULTY)
    tasks = [word for call in slurm.calls() for word in call if word.startswith("--array")]
    whole = [call for call in slurm.calls() if [word for word in call if word.startswith("--array")] == [ARRAY[1]]]
    assert len(slurm.calls()) == 1 if whole else tasks.count("--array=3-5%2") <= 1
    assert whole or done.returncode == 0 or "csub: error: " in done.stderr


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("signal", ["INT", "TERM", "HUP", "KILL"])
def test_whatever_ends_csub_no_part_is_submitted_twice(slurm: Shell, signal: str, at: int) -> None:
    slurm.behave(at, f"kill -{signal} $PPID\nsleep 0.2\n")
    done = slurm.run(*ARRAY, "job.sh")
    tasks = [[word for word in call if word.startswith("--array")][-1:] for call in slurm.calls()]
    assert tasks == [["--array=2"], [], ["--array=3-5%2"]][: at + 1 if signal == "KILL" else 3]
    assert done.stdout == ("" if signal == "KILL" else "Submitted batch job 102\n")


def test_without_room_for_the_script_it_goes_as_it_is(slurm: Shell) -> None:
    done = slurm.run(*ARRAY, "job.sh", environ={"TMPDIR": str(slurm.folder / "missing")})
    assert (done.returncode, done.stdout, len(slurm.calls())) == (0, "Submitted batch job 100\n", 1), done.stderr
    assert ARRAY[1] in slurm.calls()[0]


def test_an_sbatch_that_a_signal_ended_is_not_passed_over_in_silence(slurm: Shell) -> None:
    slurm.behave(0, "kill -INT $$\n")
    done = slurm.run(*ARRAY, "job.sh")
    assert (done.returncode, done.stdout, len(slurm.calls())) == (130, "", 1)
    assert "csub: error: csub cannot tell whether a job of task 2 exists: see squeue; no other job was" in done.stderr


AGAINST = [
    (["--canary", "job.sh"], "--canary needs an array"),
    (["--canary", "--array=3", "job.sh"], "the array has one task"),
    ([*ARRAY, "--wait", "job.sh"], "sbatch waits for one job"),
    ([*ARRAY, "--hold", "job.sh"], "the job is held"),
    ([*ARRAY, "--dependency=aftercorr:3", "job.sh"], "task by task"),
    ([*ARRAY, "--dependency=afterok:3?afterok:4", "job.sh"], "any one of several jobs"),
    ([*ARRAY, "--gres=gpu:1", "--wrap", "true"], "the job is a command of --wrap"),
    ([*ARRAY, "--pack", "job.sh"], "a pack needs a known footprint"),
    ([*ARRAY, HINT, "job.sh"], "csub already knows what the job needs: "),
    ([*ARRAY, "--colloc=off", "job.sh"], "the user said --colloc=off"),
    ([*ARRAY, "--gres=gpu:2", "job.sh"], "'gpu:2'"),
    (["--probe", "job.sh"], "site.toml names no partition for probes"),
]


@pytest.mark.parametrize(("argv", "why"), AGAINST)
def test_where_it_cannot_be_it_goes_as_usual_and_says_why(slurm: Shell, argv: list[str], why: str) -> None:
    done = slurm.run(*argv)
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 100\n"), done.stderr
    assert len(slurm.calls()) == 1
    [said] = [line for line in done.stderr.splitlines() if "not measured first: " in line]
    assert why in said


@pytest.mark.parametrize(("option", "line"), [("--signal=USR1@90", "train"), ("-v", "scontrol requeue $SLURM_JOB_ID")])
def test_a_probe_that_might_requeue_itself_for_ever_is_none(slurm: Shell, option: str, line: str) -> None:
    path = slurm.folder / "site.toml"
    path.write_text(path.read_text() + '[probe]\npartition = "debug"\n')
    (slurm.folder / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:1\n{line}\n")
    done = slurm.run("--probe", option, "job.sh")
    assert (done.stdout, len(slurm.calls())) == ("Submitted batch job 100\n", 1)
    assert "not measured first: the job handles its own end or requeues itself" in done.stderr


def test_a_script_may_ask_for_it_and_the_command_line_take_it_back(slurm: Shell) -> None:
    script = slurm.folder / "asks.sh"
    script.write_text("#!/bin/bash\n#SBATCH --gres=gpu:1 -a 1-3\n#CSUB --canary\necho hello\n")
    assert slurm.run("--canary=off", "asks.sh").stdout == "Submitted batch job 100\n"
    assert slurm.run("asks.sh").stdout == "Submitted batch job 103\n"
    assert len(slurm.calls()) == 4


def test_a_dry_run_submits_nothing_and_says_what_would_be_first(slurm: Shell) -> None:
    done = slurm.run(*ARRAY, "--dry-run", "job.sh")
    assert (done.returncode, slurm.calls()) == (0, [])
    assert "csub: task 2 would be measured first" in done.stderr


def test_numbers_become_ranges() -> None:
    assert ranges((1, 2, 3, 5, 7, 8)) == "1-3,5,7-8"
    assert ranges(()) == ""
    assert ranges((3,)) == "3"
    assert ranges((3, 9)) == "3,9"
    assert ranges((0, 5, 10, 15, 16)) == "0-15:5,16"
    assert ranges((0, 5, 6, 7, 20, 22, 24)) == "0,5-7,20-24:2"


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ranges_name_each_number(numbers: set[int]) -> None:
    assert parse_array(ranges(sorted(numbers))) == tuple(sorted(numbers))


def test_an_array_with_a_step_stays_as_short_as_it_was(slurm: Shell) -> None:
    done = slurm.run("--canary", "--array=0-99999:2%5", "job.sh")
    assert done.stdout == "Submitted batch job 102\n", done.stderr
    assert [word for word in slurm.calls()[2] if word.startswith("--array")][-1] == "--array=2-99998:2%5"


def test_an_array_that_becomes_too_long_goes_as_usual(slurm: Shell) -> None:
    done = slurm.run("--canary", "--array=0-3000:3,1-3001:3", "job.sh")
    assert (done.stdout, len(slurm.calls())) == ("Submitted batch job 100\n", 1)
    assert "not measured first: the array without its first task is too long to write down" in done.stderr


def test_a_probe_of_an_array_is_its_first_task_and_the_rest_is_all_of_it() -> None:
    asked = {"array": Given("array", "4,0-2:2%1", "argv", "")}
    config = site()._replace(probe=site().probe._replace(partition="debug"))
    assert divide(PROBE, asked, config).rest_array == "0-4:2%1"
    assert divide(PROBE, asked, config).first[0] == "--array=0"
    assert divide(CANARY, asked, config).rest_array == "2,4%1"


LISTED = (
    "import os, sys, slurm_colloc.cli.csub as csub\nos._exit = sys.exit\ntry:\n    csub.main()\nfinally:\n"
    "    print(*sorted(name for name in sys.modules if name.startswith('slurm_colloc')), file=sys.stderr)\n"
)


def test_a_submission_without_it_loads_nothing_of_it(slurm: Shell) -> None:
    loaded = slurm.run("--array=1-3", "job.sh", code=LISTED).stderr.splitlines()[-1].split()
    assert "slurm_colloc.cli.csub" in loaded
    assert not [name for name in loaded if "followup" in name]


@pytest.mark.parametrize(
    ("asked", "tried"),
    [((), "debug,gpu"), (("-p", "long,debug"), "debug,long"), (("--partition=debug",), "debug")],
)
def test_a_probe_may_start_wherever_the_job_may_so_that_it_never_waits_longer(
    slurm: Shell, asked: tuple[str, ...], tried: str
) -> None:
    path = slurm.folder / "site.toml"
    path.write_text(path.read_text() + '[probe]\npartition = "debug"\n')
    assert slurm.run("--probe", *asked, "job.sh").returncode == 0
    assert [word for word in slurm.calls()[0] if word.startswith("--partition")][-1] == f"--partition={tried}"
    path.write_text(path.read_text().replace('default_partition = "gpu"\n', ""))
    done = slurm.run("--probe", "job.sh")
    assert "not measured first: csub does not know the job's partition" in done.stderr


@pytest.mark.parametrize(
    ("limits", "asked", "measured"),
    [
        ("default_time_min = 3.0", (), False),
        ("max_time_min = 2.5", (), False),
        ("max_time_min = 2.5", ("-p", "other,gpu"), True),
        ("default_time_min = 3.0", ("--time=4",), True),
        ("default_time_min = 4.0", (), True),
        ("", (), True),
    ],
)
def test_a_probe_is_shorter_than_what_the_partition_gives_a_job_that_names_no_time(
    slurm: Shell, limits: str, asked: tuple[str, ...], measured: bool
) -> None:
    """It ran whole, at most, and then once more; or waited for ever for a partition that takes no job so long."""
    path = slurm.folder / "site.toml"
    text = path.read_text().replace('[[partition]]\nname = "gpu"\n', f'[[partition]]\nname = "gpu"\n{limits}\n')
    path.write_text(text + '[probe]\npartition = "debug"\n')
    done = slurm.run("--probe", *asked, "job.sh")
    assert done.returncode == 0
    assert len(slurm.calls()) == (3 if measured else 1)
    assert ("the job's time limit is not longer than a probe's 3 min" in done.stderr) is not measured


def test_a_partition_that_is_closed_is_a_definite_refusal(slurm: Shell) -> None:
    path = slurm.folder / "site.toml"
    path.write_text(path.read_text() + '[probe]\npartition = "debug"\n')
    closed = "Required partition not available (inactive or drain)"
    slurm.behave(0, FAILS.format(f"sbatch: error: Batch job submission failed: {closed}"))
    done = slurm.run("--probe", "job.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 101\n"), done.stderr
    assert "not measured first: its first job was refused" in done.stderr


LEAVES = "sleep 20 &\n"


def test_what_a_wrapper_of_sbatch_leaves_running_holds_nobody_up(slurm: Shell) -> None:
    for number in range(3):
        slurm.behave(number, LEAVES)
    began_s = time.monotonic()
    done = slurm.run(*ARRAY, "job.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 102\n"), done.stderr
    assert "then job 101 submits this one again" in done.stderr
    assert time.monotonic() - began_s < 15


def test_a_job_submitted_anew_is_listed_under_its_users_own_script(slurm: Shell) -> None:
    """Not under the path of the copy that is kept for the companion."""
    slurm.run(*ARRAY, "job.sh")
    copy = folder(slurm) / "script/job.sh"
    assert copy.exists()
    slurm.run(str(copy), "--epochs", "3")
    assert [one["line"] for one in slurm.decisions()][-1] == "job.sh --epochs 3"
