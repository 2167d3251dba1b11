# SPDX-License-Identifier: Apache-2.0
"""csub where something is wrong around it: still one submission, and never two."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from slurm_colloc.submit.reasons import reason_to_keep_text
from tests.unit.golden import Printed
from tests.unit.programs import executable
from tests.unit.shell import HINT, SCRIPT, Shell
from tests.waiting import wait_for

PLACED = ["--gres=gpu:h100_1g.10gb:1", "job.sh"]


# --- around the process ---


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors(shell: Shell, closed: str) -> None:
    shell.site('"mps"', agent=True)
    done = shell.run("-c", f'exec "$@" {closed}', "sh", *shell.command(HINT, "job.sh"), program="sh")
    assert done.returncode == 0, done.stderr
    assert len(shell.calls()) == 1
    assert (shell.folder / "script.0").read_text().endswith("echo hello\n")


def test_a_full_disk_behind_standard_output_changes_nothing(shell: Shell) -> None:
    with open("/dev/full", "wb") as full:
        done = shell.run(HINT, "job.sh", stdout=full, stderr=full)
    assert done.returncode == 0
    assert shell.calls() == [PLACED]
    assert len(shell.decisions()) == 1


@pytest.mark.parametrize("planted", ["file", "link", "another's"])
def test_who_was_first_at_the_folder_of_decisions_does_not_keep_them_away(
    shell: Shell, planted: str, printed: Printed
) -> None:
    """They lie in the user's home then, and csub says so once."""
    shell.site('"mps"', agent=True)
    spool = shell.folder / "spool"
    spool.mkdir()
    site = shell.folder / "site.toml"
    site.write_text(f'{site.read_text()}\n[paths]\ndecisions = "{spool}"\n')
    own = spool / str(os.geteuid())
    if planted == "file":
        own.touch()
    elif planted == "link":
        own.symlink_to(shell.folder)
    else:
        own.mkdir()
        if os.geteuid() != 0:
            pytest.skip("needs root: another user's folder")
        os.chown(own, 1234, -1)
    done = shell.run(HINT, "job.sh")
    assert done.returncode == 0, done.stderr
    assert len(shell.decisions()) == 1
    home = shell.folder / "home/.local/share/slurm_colloc/decisions"
    (said,) = [line for line in done.stderr.splitlines() if str(own) in line]
    assert f"'{home}': '{own}'" in said
    printed("csub", said.replace(str(own), "OWN"))
    own.rename(spool / "aside")
    done = shell.run(HINT, "job.sh")
    assert (str(own) in done.stderr, len(list(own.glob("*.json")))) == (False, 1)


@pytest.mark.parametrize("shared", [False, True])
def test_a_decision_is_recorded_where_what_was_read_cannot_be_kept(shell: Shell, shared: bool) -> None:
    kept = shell.folder / "home/.local/share/slurm_colloc/submitted"
    assert shell.run("job.sh").returncode == 0
    assert kept.is_dir()
    shutil.rmtree(kept)
    kept.touch()
    if shared:
        site = shell.folder / "site.toml"
        (shell.folder / "spool").mkdir()
        site.write_text(f'{site.read_text()}\n[paths]\ndecisions = "{shell.folder / "spool"}"\n')
    done = shell.run("job.sh")
    assert done.returncode == 0
    assert "not recorded" not in done.stderr
    recorded = shell.folder / "spool" / str(os.geteuid()) if shared else kept.parent / "decisions"
    assert len(list(recorded.glob("*.json"))) == (1 if shared else 2)


def test_descriptors_meant_for_sbatch_reach_it(shell: Shell) -> None:
    shell.behave(0, 'cat <&"$NUMBER" > "$CALLS/../from3"')
    read, write = os.pipe()
    os.write(write, b"secret")
    os.close(write)
    done = shell.run(HINT, "job.sh", pass_fds=(read,), environ={"NUMBER": str(read)})
    os.close(read)
    assert done.returncode == 0, done.stderr
    assert (shell.folder / "from3").read_text() == "secret"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_sbatch_and_csub_says_how_it_ended(shell: Shell, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    shell.behave(0, f'trap "exit 7" {name}; touch "$CALLS/../ready"; sleep 60 <&- >&- 2>&- & wait')
    # Under nohup, or in the background of a script, the tests themselves ignore one of them.
    argv = ["env", f"--default-signal={name}", *shell.command(HINT, "job.sh")]
    running = subprocess.Popen(argv, cwd=shell.folder, env=shell.environment(), stdin=subprocess.DEVNULL)
    wait_for((shell.folder / "ready").exists, "sbatch did not begin", 20)
    running.send_signal(number)
    assert running.wait(timeout=20) == 7
    assert shell.calls() == [PLACED]


def test_a_caller_that_kills_csub_and_tries_again_has_one_job(shell: Shell) -> None:
    """As it has by sbatch: subprocess ends with SIGKILL what takes longer than its timeout."""
    waits = 'touch "$CALLS/../ready"; while [ ! -e "$CALLS/../go" ]; do sleep 0.05; done; touch "$CALLS/../submitted"'
    shell.behave(0, waits)
    running = subprocess.Popen(shell.command(HINT, "job.sh"), cwd=shell.folder, env=shell.environment())
    wait_for((shell.folder / "ready").exists, "sbatch did not begin", 20)
    running.kill()
    running.wait()
    (shell.folder / "go").touch()
    assert shell.run(HINT, "job.sh").stdout == "Submitted batch job 4711\n"
    assert not (shell.folder / "submitted").exists()


def test_what_sbatch_leaves_in_the_background_is_not_waited_for(shell: Shell) -> None:
    shell.behave(0, "sleep 50 &")
    begun = time.monotonic()
    done = shell.run(HINT, "job.sh", stdout=(shell.folder / "out").open("wb"), stderr=subprocess.DEVNULL)
    assert time.monotonic() - begun < 30
    assert (done.returncode, (shell.folder / "out").read_text()) == (0, "Submitted batch job 4711\n")


@pytest.mark.parametrize("where", ["record", "said_of", "remove_script"])
def test_a_fault_of_csubs_own_after_the_submission(shell: Shell, where: str) -> None:
    shell.keep_no_scripts()
    shell.site('"mps"', agent=True)
    code = f"""
import slurm_colloc.cli.csub as csub
import slurm_colloc.submit.handover as handover
def fault(*_):
    raise ValueError("made up")
assert handover.{where}
handover.{where} = fault
csub.main()
"""
    done = shell.run(HINT, "job.sh", code=code)
    assert "made up" in done.stderr
    assert (len(shell.calls()), done.stdout) == (1, "Submitted batch job 4711\n")


# --- around the site ---


@pytest.mark.parametrize("kind", ["missing", "fifo", "folder", "unreadable", "binary", "newer", "empty", "huge"])
def test_a_site_file_that_is_none(shell: Shell, kind: str) -> None:
    path = shell.folder / "site.toml"
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "unreadable":
        path.symlink_to("/proc/self/mem")
    elif kind != "missing":
        texts = {"binary": bytes(range(256)), "newer": b"schema = 99\n", "huge": b"#" * 17 * 1024 * 1024}
        path.write_bytes(texts.get(kind, b""))
    done = shell.run(HINT, "job.sh", "--dry-run")
    assert shell.calls() == [["job.sh", "--dry-run"]]
    assert "the job stays as you asked: " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_release_loses_csubs_own_options_and_nothing_else(shell: Shell) -> None:
    site = shell.folder / "site.toml"
    site.write_text(site.read_text().replace("22.05", "20.11"))
    done = shell.run("-J", "x", HINT, "job.sh", HINT)
    assert shell.calls() == [["-J", "x", "job.sh", HINT]]
    assert "'20.11' is not known" in done.stderr


def test_a_configured_sbatch_must_be_one(shell: Shell) -> None:
    own = executable(shell.folder / "own", '#!/bin/sh\nexec csub "$@"\n')
    for wrong in ("/nonexistent/sbatch", "sbatch", str(own), str(shell.folder)):
        site = shell.folder / "site.toml"
        shell.site('"mig"', agent=True)
        site.write_text(site.read_text() + f'[paths]\nsbatch = "{wrong}"\n')
        assert shell.run(HINT, "job.sh").returncode == 0
    assert shell.calls() == [PLACED] * 4


@pytest.mark.parametrize(
    "said",
    [
        "sbatch: error: Job 7: Access/permission denied",
        "sbatch: error: slurm_job_wait: Requested node configuration is not available",
        "sbatch: submission failed: Unable to contact slurm controller (connect failure)",
    ],
)
def test_only_a_verdict_on_the_submission_is_followed_by_another(shell: Shell, said: str) -> None:
    shell.behave(0, f'echo "{said}" >&2; exit 1')
    done = shell.run(HINT, "job.sh")
    assert shell.calls() == [PLACED]
    assert (done.returncode, done.stderr) == (1, said + "\n")


# --- around the script ---


def test_a_relative_tmpdir_is_not_looked_for_below_chdir(shell: Shell) -> None:
    shell.site('"mps"', agent=True)
    shell.keep_no_scripts()
    script = str(shell.folder / "job.sh")
    shell.run(HINT, "-D", "/", script, environ={"TMPDIR": "tmp"})
    [call] = shell.calls()
    assert Path(call[-1]).parent.parent == shell.folder / "tmp"


def test_what_can_be_read_only_once_or_is_too_large_is_left_to_sbatch(shell: Shell) -> None:
    os.mkfifo(shell.folder / "fifo")
    with (shell.folder / "large.sh").open("wb") as stream:
        stream.write(SCRIPT.encode())
        stream.truncate(65 * 1024 * 1024)
    writer = subprocess.Popen(["sh", "-c", "cat job.sh > fifo"], cwd=shell.folder)
    shell.run(HINT, "fifo")
    writer.kill()  # the made-up sbatch does not read a FIFO
    writer.wait()
    shell.run(HINT, "large.sh")
    assert shell.calls() == [["fifo"], ["large.sh"]]


def test_two_outputs_read_as_one_hold_sbatchs_answer_alone(shell: Shell) -> None:
    """The idiom job=$(sbatch job.sh 2>&1 | awk '{print $4}')."""
    for argv in ([HINT, "job.sh"], ["--no-such", "job.sh"], ["--gpu-footprint=mem=900G,sm=3", "job.sh"]):
        assert shell.run(*argv, stderr=subprocess.STDOUT).stdout == "Submitted batch job 4711\n"


KEPT = [
    b"sed -n '/^DATA/,$p' $0",
    b'exec python3 "$0" "$@"',
    b'tail -n +20 "${BASH_SOURCE[0]}"',
    b"# --- csub: this block was added by slurm_colloc ---",
    b"scontrol show job $SLURM_JOB_ID | grep Command=",
    b"squeue -h -j $SLURM_JOB_ID -o %o",
    b'bash -c "$(echo "$0")"',
    b'echo "$0" | xargs tail -n 5',
    b'echo "$(cat $0)"',
    b"echo `wc -l $0`",
    b"printf '%s' \"$0\" > where",
    b'[ -n "$1" ] || { echo usage; tail -n 3 "$0"; exit 1; }',
]
FREE = [
    b'[ $# -ge 1 ] || { echo "Usage: $0 <filename>"; exit 1; }',
    b'echo "usage: $0 DATA" >&2',
    b"if [ -z $1 ]; then echo $0: no data; fi",
    b'printf "%s: begins\\n" "$0"',
    b"# call it as: sbatch $0 DATA",
    b"########## Command Lines to Run ##########\nscontrol show job $SLURM_JOB_ID",
    b'echo "Command: train"; scontrol show job $SLURM_JOB_ID',
    b"# scontrol show job says Command=",
    b'cd "$(dirname "$0")"',
    b'here=$(dirname "${BASH_SOURCE[0]}")',
    b"name=$(basename $0)",
    b"awk '{print $0}' data",
    b"scontrol show hostnames $SLURM_JOB_NODELIST",
    b"echo $01",
    b"Command line",
]


@pytest.mark.parametrize("line", [*KEPT, *FREE])
def test_a_script_that_knows_its_own_text_keeps_it_and_its_name_alone_is_no_harm(line: bytes) -> None:
    assert bool(reason_to_keep_text(SCRIPT.encode() + line, "/bin/bash")) is (line in KEPT)


def test_a_script_that_keeps_its_text_gets_a_slice_and_no_share(shell: Shell) -> None:
    (shell.folder / "job.sh").write_bytes(SCRIPT.encode() + KEPT[0] + b"\n")
    shell.site('"mps"', agent=False)
    shell.run(HINT, "job.sh")
    assert shell.calls() == [["job.sh"]]
    shell.site('"mig"', agent=True)
    shell.run(HINT, "job.sh")
    assert shell.calls()[1:] == [PLACED]  # a slice needs no text in the script


@pytest.mark.parametrize(
    "shell_line",
    ["/bin/bash -x", "/bin/bash -l -v", "/bin/bash -r", "/bin/bash -o xtrace", "/bin/bash -Eeux", "/bin/bash -Cn"],
)
def test_a_shell_that_prints_or_runs_nothing_keeps_its_text(shell_line: str) -> None:
    assert reason_to_keep_text(SCRIPT.encode(), shell_line)
    for plain in ("/bin/bash -le", "/usr/bin/env bash", "/bin/sh -eu", "/usr/bin/env bash -l", "/bin/bash -o pipefail"):
        assert not reason_to_keep_text(SCRIPT.encode(), plain)


# A step, and whether its job goes on a slice, and on a share by MPS.
STEPS = [
    ("srun \\\n  --gres=gpu:1 ./a", True, False),
    ('OPTIONS="--gpus-per-task=1"\nsrun $OPTIONS ./a', True, False),
    ("srun -G 1 ./a", True, False),
    ("srun ./train.py --gpus 1", True, False),
    ("# srun -p gpu --gres=gpu:2 --pty bash\nsrun ./a", True, True),
    ("  # srun -G 4 \nsrun ./a", True, True),
    ("# one GPU:\nsrun --gres=gpu:2 ./a", False, False),
    # A program's own options, that only begin alike.
    ("srun ./a --gpu-collect --group=2 --gpu 0", True, True),
    ("srun ./a --gradient 0.1 --gpu_ids 0 --grad-clip=1 --gpus_per_node=2", True, True),
    ("srun --gres=gpu:h100:1 ./a", False, False),
    ("srun --gres gpu:2 ./a", False, False),
    ("srun --gpus-per-task=1 ./a; srun --cpus-per-gpu=4 ./b", False, False),
    ("srun -nG1 ./a", False, False),
    ("export SLURM_GPUS=1\nsrun ./a", False, False),
    ("SLURM_GRES=gpu:1 srun ./a", False, False),
    ("srun --gpu-b=closest ./a", False, False),
    ("srun --gpus-per-t 2 ./a", False, False),
    ("srun --tres-per-ta=gres/gpu:1 ./a", False, False),
    ("srun --mem-per-g=1G ./a", False, False),
]


@pytest.mark.parametrize(("step", "slice_too", "share_too"), STEPS)
def test_a_step_that_names_gpus(shell: Shell, step: str, slice_too: bool, share_too: bool) -> None:
    (shell.folder / "job.sh").write_text(SCRIPT + step + "\n")
    for order in ('"mig"', '"mps"') if slice_too else ('"mig", "mps"',):
        shell.site(order, agent=True)
        shell.run(HINT, "job.sh")
    on_slice, on_share = shell.calls()[0], shell.calls()[-1]
    assert on_slice == (PLACED if slice_too else ["job.sh"])
    assert on_share[0] == ("--gres=mps:10" if share_too else "job.sh")


# What is asked, what the script does, and on what it goes where there are slices, and where there are shares by MPS.
READING = [
    ("--gres=gpu:1", "torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE a.py", True, True),
    ("--gres=gpu:1", "srun torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE a.py", True, False),
    ("--gres=gpu:1", "echo ${SLURM_GPUS:-1}", True, True),
    ("--gpus=1", "echo of one", True, True),
    ("--gpus=1", "# SLURM_GPUS is 1", True, True),
    ("--gpus=1", "torchrun --nproc_per_node=$SLURM_GPUS a.py", True, False),
    ("--gpus=h100:1", "torchrun --nproc_per_node=${SLURM_GPUS#*:} a.py", False, False),
    ("--gpus=1", "cat $0 $SLURM_GPUS", False, False),
    ("--gpus-per-node=1", "python3 <<E\nos.environ['SLURM_GPUS_PER_NODE']\nE", True, False),
    ("-n1 --gpus-per-task=1", "echo $SLURM_GPUS_PER_TASK", True, False),
    ("-n1 --gpus-per-task=1", "echo $SLURM_TRES_PER_TASK", False, False),
    ("--gres=gpu:1 --cpus-per-gpu=2", "export OMP_NUM_THREADS=$SLURM_CPUS_PER_GPU", True, False),
    ("--gres=gpu:1 --mem-per-gpu=2G", "echo $SLURM_MEM_PER_GPU", True, False),
    ("--gres=gpu:1", "namd3 +devices $CUDA_VISIBLE_DEVICES in.inp", False, True),
    ("--gres=gpu:1", "echo $CUDA_VISIBLE_DEVICES", True, True),
]


@pytest.mark.parametrize(("asked", "line", "slice_too", "share_too"), READING)
def test_a_script_that_reads_what_a_piece_would_change(
    shell: Shell, asked: str, line: str, slice_too: bool, share_too: bool
) -> None:
    (shell.folder / "job.sh").write_text(f"#!/bin/sh\n{line}\n")
    given = []
    for order in ('"mig"', '"mps"'):
        shell.site(order, agent=True)
        done = shell.run(HINT, *asked.split(), "job.sh")
        given.append(any(word in str(shell.calls()[-1]) for word in ("h100_1g.10gb", "mps:")))
    assert given == [slice_too, share_too]
    assert share_too or "reads " in done.stderr


@pytest.mark.parametrize(("daemon", "share_too"), [("site", False), ("prolog", True)])
def test_under_a_daemon_of_the_sites_own_a_step_keeps_the_limit_and_its_job_gets_no_share(
    shell: Shell, daemon: str, share_too: bool
) -> None:
    shell.site('"mps"', agent=True)
    site = shell.folder / "site.toml"
    site.write_text(site.read_text().replace('"prolog"', f'"{daemon}"'))
    for line, on_share in (("srun ./a", share_too), ("# srun ./a", True)):
        (shell.folder / "job.sh").write_text(f"{SCRIPT}{line}\n")
        shell.run(HINT, "job.sh")
        assert ("--gres=mps:10" in shell.calls()[-1]) is on_share


def test_a_program_that_is_no_shell_and_reads_what_a_slice_would_change_is_left_alone(shell: Shell) -> None:
    (shell.folder / "job.py").write_text("#!/usr/bin/python3\nimport os\nos.environ['SLURM_GPUS']\n")
    shell.run(HINT, "--gres=gpu:1", "job.py")
    shell.run(HINT, "--gpus=1", "job.py")
    assert [len(call) for call in shell.calls()] == [3, 2]


EXPORTS = ["--export=NONE", "--export=A,B", "--export=NIL", "--export=ALL", "--export=ALL,A=1"]


@pytest.mark.parametrize("export", EXPORTS)
def test_a_job_may_choose_what_it_exports_and_a_step_that_does_gets_no_share(shell: Shell, export: str) -> None:
    shell.site('"mps"', agent=True)
    (shell.folder / "job.sh").write_text(SCRIPT + "srun ./a\n")
    shell.run(HINT, export, "job.sh")
    assert shell.calls()[0][:2] == [export, "--gres=mps:10"]
    (shell.folder / "job.sh").write_text(SCRIPT + "srun --export=NONE ./a\n")
    shell.run(HINT, "job.sh")
    assert shell.calls()[1] == ["job.sh"]
