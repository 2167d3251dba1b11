# SPDX-License-Identifier: Apache-2.0
"""csub --join, unmodified, against a made-up Slurm on PATH: a step, or the usual submission, and never both."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_colloc.cli.sampling import Settings, _Kept
from slurm_colloc.history.records import note_joined, read_evidence
from slurm_colloc.history.said import Said, write_said
from slurm_colloc.model import Evidence
from tests.unit.shell import DEFINITE, Shell

CHECKOUT = Path(__file__).resolve().parents[2]
HOST = "11|11|N/A|1|8|cpu=8,mem=64G,node=1,gres/gpu=1,gres/gpu:h100=1|gres:gpu:1|10:00:00|1:00:00|gpu|ml|normal|h1|\n"
LIGHT = ("--join=auto", "--gpu-footprint=mem=20G,sm=5", "--mem=8G", "-t", "60")
PROGRAMS = {
    "squeue": 'case " $* " in *" -s "*) cat "$CALLS/../steps" ;; *) cat "$CALLS/../running" ;; esac',
    "sstat": 'echo "11.batch|1|4000M"',
    "scancel": 'echo "$@" >>"$CALLS/../cancelled"',
    # The step outlives its srun, as under slurmstepd.
    "srun": 'while [ "${1#/}" = "$1" ]; do shift; done\n. "$CALLS/../srun.how"',
}
STEP = "SLURM_JOB_ID=11 SLURM_STEP_ID=0 CUDA_VISIBLE_DEVICES=0 setsid"
BEGINS = f'{STEP} "$@" & wait\n'
DECISION = {
    "job_id": "11",
    "cluster": "lab",
    "at_s": 1.0,
    "user": "",
    "job_name": "host",
    "signature": "0123",
    "asked": "gpu:1",
    "given": "as asked",
    "mode": "exclusive",
    "rung": "hint",
    "gpu_mem_q99_mib": 9000.0,
    "sm_active_q95_pct": 82.0,
    "reasons": ["a test"],
}


@pytest.fixture
def slurm(shell: Shell) -> Shell:
    """A site of whole GPUs, a running job of which csub knows, and a srun that starts what it is told."""
    shell.site("", agent=True)
    sbatch = shell.folder / "bin/sbatch"
    words = 'case " $* " in *\' --parsable \'*) echo 4711; exit ;; esac\necho "Submitted'
    sbatch.write_text(sbatch.read_text().replace('echo "Submitted', words))
    for name, text in PROGRAMS.items():
        path = shell.folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    for name, text in {"running": HOST, "steps": "11.batch|batch\n", "srun.how": BEGINS}.items():
        (shell.folder / name).write_text(text)
    folder = shell.folder / "home/.local/share/slurm_colloc/decisions"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "1.000000-1-11.json").write_text(json.dumps(DECISION))
    (shell.folder / "job.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:1\necho hello $1 >ran\n")
    return shell


def submitted(slurm: Shell) -> list[str]:
    """Return which jobs were submitted: the companion and the user's."""
    return ["companion" if any("csub-retry" in word for word in call) else "job" for call in slurm.calls()]


def claimed(slurm: Shell) -> list[Path]:
    return list((slurm.folder / "home/.local/share/slurm_colloc/again").glob("lab/*/claimed"))


def ran(slurm: Shell) -> bool:
    for _ in range(50):
        if (slurm.folder / "ran").exists():
            return True
        time.sleep(0.1)
    return False


def test_a_light_job_becomes_a_step_with_a_companion_behind_it(slurm: Shell) -> None:
    done = slurm.run(*LIGHT, "job.sh", "a")
    assert (done.returncode, done.stdout) == (0, "Joined job 11 as step 11.0\n"), done.stderr
    assert submitted(slurm) == ["companion"]
    assert "--dependency=afterany:11" in slurm.calls()[0]
    assert "csub: step 11.0: if job 11 ends first, job 4711 submits it anew\n" in done.stderr
    assert ran(slurm)
    assert not claimed(slurm)
    given = {decision["job_id"]: decision["given"] for decision in slurm.decisions()}
    assert given == {"11": DECISION["given"], "11.0": "joined job 11"}


def test_a_damaged_correction_of_a_running_job_keeps_nobody_out(slurm: Shell) -> None:
    write_said(str(slurm.folder / "home/.local/share/slurm_colloc"), str(DECISION["signature"]), Said(hint="mem=lots"))
    assert slurm.run(*LIGHT, "job.sh").stdout == "Joined job 11 as step 11.0\n"


def test_the_host_keeps_what_it_was_given_and_is_one_submission(slurm: Shell) -> None:
    assert slurm.run(*LIGHT, "job.sh").returncode == 0
    argv = (sys.executable, "-m", "slurm_colloc.cli.colloc", "history")
    environment = {**slurm.environment(), "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    submissions = done.stdout.partition("submissions:\n")[2].splitlines()
    assert [line.split()[0] for line in submissions if line[0] != " "] == ["11", "11.0", "2"], done.stderr


def test_parsable_says_the_step_alone(slurm: Shell) -> None:
    assert slurm.run(*LIGHT, "--parsable", "job.sh").stdout == "11.0\n"


def test_a_step_whose_words_are_lost_has_begun_all_the_same(slurm: Shell) -> None:
    (slurm.folder / "srun.how").write_text(f'{STEP} "$@" >/dev/null & sleep 2\n')
    assert slurm.run(*LIGHT, "job.sh").stdout == "Joined job 11 as step 11.0\n"
    assert submitted(slurm) == ["companion"]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("echo 'srun: error: Unable to create step: busy' >&2; exit 1\n", "error: Unable to create step: busy"),
        ("exit 0\n", "it ended without a word"),
        (BEGINS.replace("CUDA_VISIBLE_DEVICES=0", ""), "the step was given no GPU"),
    ],
)
def test_a_step_that_does_not_begin_is_submitted_as_usual_once(slurm: Shell, how: str, why: str) -> None:
    (slurm.folder / "srun.how").write_text(how)
    done = slurm.run(*LIGHT, "job.sh", environ={"CUDA_VISIBLE_DEVICES": "7"})
    assert done.stdout == "Submitted batch job 4711\n"
    assert "csub: not joined: " in done.stderr
    assert why in done.stderr
    assert submitted(slurm) == ["companion", "job"]
    assert (slurm.folder / "cancelled").read_text() == "4711\n"
    assert len(claimed(slurm)) == 1
    assert not (slurm.folder / "ran").exists()


def test_where_the_companion_is_refused_nothing_begins_inside(slurm: Shell) -> None:
    slurm.behave(0, f"echo '{DEFINITE}' >&2; exit 1\n")
    done = slurm.run(*LIGHT, "job.sh")
    assert done.stdout == "Submitted batch job 4711\n"
    assert submitted(slurm) == ["companion", "job"]
    assert "could not be submitted: its companion job was refused" in done.stderr
    assert len(claimed(slurm)) == 1
    assert not (slurm.folder / "ran").exists()


NOT_ME = [
    (["--array=0-1"], "--array=0-1"),
    (["--no-requeue"], "may have to be run again"),
    (["--export=NONE"], "--export=NONE"),
    (["-d", "afterok:1"], "-d afterok:1"),
    (["--wait"], "--wait"),
    (["-N2"], "-N2"),
    (["--gres=gpu:2"], "just one GPU"),
    (["-p", "other"], "it runs in partition 'gpu', not 'other'"),
    (["-A", "phys"], "its account is 'ml', not 'phys'"),
    (["--gpu-footprint=mem=20G,sm=30"], "their SM activity comes to 112 %"),
    (["--join=12"], "job 12 is no running job of yours"),
    (["--join=off"], ""),
]


@pytest.mark.parametrize(("argv", "why"), NOT_ME)
def test_what_cannot_join_with_certainty_is_submitted_as_usual(slurm: Shell, argv: list[str], why: str) -> None:
    done = slurm.run(*LIGHT, *argv, "job.sh")
    assert done.stdout == "Submitted batch job 4711\n"
    assert submitted(slurm) == ["job"]
    assert ("not joined: " in done.stderr) == bool(why)
    assert why in done.stderr


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("running", "", "no job runs"),
        ("running", HOST.replace("gpu=1", "gpu=2").replace("h100=1", "h100=2"), "it has gpu:h100:2"),
        ("running", HOST.replace("|11|N/A|", "|9_3|N/A|"), "job 9_3: it is a task of an array"),
        ("running", HOST.replace("10:00:00|", "30:00|"), "it has 30 min left"),
        ("running", HOST.replace("h100=1|", "b7=1|"), "site.toml does not say how large 'b7'"),
        ("running", HOST.replace("11|11|", "13|13|"), "csub has no record of it"),
        ("steps", "11.batch|batch\n11.3|join-x\n", "another job has joined it already"),
    ],
)
def test_a_job_that_cannot_be_joined_is_named_with_the_reason(slurm: Shell, file: str, text: str, why: str) -> None:
    (slurm.folder / file).write_text(text)
    done = slurm.run(*LIGHT, "job.sh")
    assert done.stdout == "Submitted batch job 4711\n"
    assert why in done.stderr
    assert submitted(slurm) == ["job"]


def test_a_line_in_the_script_joins_too_and_the_second_run_does_not(slurm: Shell) -> None:
    text = "#!/bin/bash\n#SBATCH --gres=gpu:1\n#CSUB --join=auto\necho hello >ran\n"
    (slurm.folder / "job.sh").write_text(text)
    done = slurm.run(*LIGHT[1:], "job.sh")
    assert done.stdout == "Joined job 11 as step 11.0\n", done.stderr
    [record] = (slurm.folder / "home/.local/share/slurm_colloc/again").glob("lab/*/record.json")
    assert json.loads(record.read_text())["own"] == ["--gpu-footprint=mem=20G,sm=5", "--join=off"]


def test_a_wish_that_is_none_submits_nothing(slurm: Shell) -> None:
    done = slurm.run("--join=maybe", "job.sh")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--join='maybe' is neither auto, off nor the id of a job" in done.stderr


def test_a_dry_run_shows_the_step_and_starts_nothing(slurm: Shell) -> None:
    done = slurm.run(*LIGHT, "--dry-run", "job.sh")
    assert "--jobid=11 --overlap --exact -N1 -n1 -c 1 --mem=8192M --time=84 -J join-job.sh" in done.stdout
    assert submitted(slurm) == []
    assert not ran_now(slurm)


def ran_now(slurm: Shell) -> bool:
    return (slurm.folder / "ran").exists()


def test_without_the_option_nothing_of_it_is_loaded_and_nobody_is_asked(slurm: Shell) -> None:
    (slurm.folder / "bin/squeue").write_text("#!/bin/sh\ntouch $CALLS/../asked\n")
    code = (
        "import os, sys; exit = os._exit\n"
        "def ended(status): print(sorted(m for m in sys.modules if 'join' in m or m.endswith('running'))); "
        "sys.stdout.flush(); exit(status)\n"
        "os._exit = ended\nfrom slurm_colloc.cli.csub import main; main()"
    )
    done = slurm.run("--gpu-footprint=mem=20G,sm=5", "job.sh", code=code)
    assert done.stdout.splitlines() == ["Submitted batch job 4711", "[]"]
    assert not (slurm.folder / "asked").exists()


def test_what_a_sampler_sees_after_a_job_was_joined_is_kept_by_nobody(tmp_path: Path) -> None:
    settings = Settings("g1", "lab", 1.0, "simulated", evidence=str(tmp_path), job="11", signature="0123")
    peaks = iter((100, 9999))

    class Builder:
        def add(self, _: object) -> Evidence:
            return Evidence(
                "11", "0123", "RUNNING", "exclusive", "H100", next(peaks), 1.0, 1.0, False, 9, 9.0, 9.0, 9.0
            )

    keep = _Kept(settings, Builder())  # type: ignore[arg-type]
    keep(None)  # type: ignore[arg-type]
    note_joined(str(tmp_path), "0123", "11")
    for _ in range(2):
        keep(None)  # type: ignore[arg-type]
    found = read_evidence(str(tmp_path), "0123")
    assert [(run.state, run.gpu_mem_peak_mib) for run in found.evidence] == [("UNKNOWN", 100)]
    assert found.unreadable == 0


def test_a_job_that_runs_again_for_its_memory_joins_none(slurm: Shell) -> None:
    """A companion waits for a job's id, and the step would have none."""
    marker = slurm.folder / "next.json"
    marker.write_text(json.dumps({"job": "9", "attempt": 1, "reason": "again", "begins": {}}))
    done = slurm.run(*LIGHT, "job.sh", environ={"CSUB_AGAIN": str(marker)})
    assert done.stdout == "Submitted batch job 4711\n"


def test_in_shadow_mode_nothing_is_joined(slurm: Shell) -> None:
    site = slurm.folder / "site.toml"
    site.write_text(site.read_text().replace("schema = 1", 'schema = 1\npolicy = "shadow"'))
    done = slurm.run(*LIGHT, "job.sh")
    assert done.stdout == "Submitted batch job 4711\n"
    assert "csub: not joined: shadow mode" in done.stderr
    assert submitted(slurm) == ["job"]


def test_a_job_that_is_to_say_nothing_is_submitted_as_usual(slurm: Shell) -> None:
    """Of its second submission the companion could not say whether there is a job."""
    slurm.run(*LIGHT, "-Q", "job.sh")
    assert submitted(slurm) == ["job"]


def test_a_hangup_that_was_to_be_ignored_costs_nothing(slurm: Shell) -> None:
    (slurm.folder / "srun.how").write_text(f"kill -HUP $PPID; sleep 1; {BEGINS}")
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\nfrom slurm_colloc.cli.csub import main; main()"
    done = slurm.run(*LIGHT, "job.sh", code=code)
    assert done.stdout == "Joined job 11 as step 11.0\n", done.stderr


def test_where_the_hosts_evidence_cannot_be_marked_it_is_submitted_as_usual(slurm: Shell) -> None:
    (slurm.folder / "elsewhere").mkdir()
    evidence_folder(slurm).symlink_to(slurm.folder / "elsewhere")
    done = slurm.run(*LIGHT, "job.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n"), done.stderr
    assert submitted(slurm) == ["companion", "job"]
    assert "is a link, which is not followed" in done.stderr


def test_a_srun_that_cannot_be_started_is_no_doubt(slurm: Shell) -> None:
    (slurm.folder / "bin/srun").write_text("no program\n")
    done = slurm.run(*LIGHT, "job.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n"), done.stderr
    assert submitted(slurm) == ["companion", "job"]


def evidence_folder(slurm: Shell) -> Path:
    return slurm.folder / "home/.local/share/slurm_colloc/evidence"


def test_what_goes_wrong_after_it_began_submits_nothing(slurm: Shell) -> None:
    code = (
        "import slurm_colloc.cli.csub_join as module\n"
        "def fault(*_): raise RuntimeError('no thread')\n"
        "module.drop = fault\nfrom slurm_colloc.cli.csub import main; main()"
    )
    done = slurm.run(*LIGHT, "job.sh", code=code)
    assert done.stdout == "Joined job 11 as step 11.0\n"
    assert "the decision is not recorded: no thread" in done.stderr
    assert submitted(slurm) == ["companion"]


def test_an_input_that_is_missing_begins_nothing(slurm: Shell) -> None:
    done = slurm.run(*LIGHT, "-i", "missing", "job.sh")
    assert done.stdout == "Submitted batch job 4711\n"
    assert "missing" in done.stderr
    assert not ran_now(slurm)
