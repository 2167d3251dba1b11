# SPDX-License-Identifier: Apache-2.0
"""A job that ran out of GPU memory: what its companion is told, how it judges, and what it submits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.clock import now
from slurm_colloc.core.config import MigSlice, Pool
from slurm_colloc.core.errors import InputError, StoreError
from slurm_colloc.core.model import GPU_OOM, Gres
from slurm_colloc.followup import companion, submission
from slurm_colloc.followup import record as records
from slurm_colloc.followup.record import (
    OUTCOME,
    VERSION,
    Record,
    claim,
    read_record,
    read_state,
    record_folder,
    write_record,
    write_step,
)
from slurm_colloc.followup.verdict import Found, Verdict, as_evidence, judge, retry_arguments
from slurm_colloc.gpu.failure import Outcome, tried_mib
from slurm_colloc.slurm.client import ASK_S
from slurm_colloc.slurm.jobs import Accounted, parse_controller
from tests.unit.golden import Printed
from tests.unit.made import RECORDED, RELEASES, evidence, site
from tests.unit.programs import executable
from tests.unit.shell import HINT, Shell

SMALL = "h100_1g.10gb"
SITE = site(Pool("m", "m1", ("mig",), slice=(MigSlice(SMALL, "1g.10gb", 9984, 16, 2),)))
REQUEUE = "--requeue"
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB\n"


def record(**fields: Any) -> Record:
    whole = Record(
        version=VERSION,
        cluster="c",
        job_id="12",
        attempt=0,
        user="alice",
        job_name="train.sh",
        signature="abc",
        own=("--gpu-footprint=mem=4G,sm=10",),
        options=("--requeue", "--gres=gpu:1"),
        script="train.sh",
        from_stdin=False,
        script_args=("a b",),
        folder="/work",
        names=("PATH", "MARK", "SLURM_CONF"),
        variables={"SLURM_CONF": "/etc/slurm.conf"},
        output="slurm-%j.out",
        work_folder="/work",
        budget_mib=4352,
        sm_active_pct=10.0,
    )
    return whole._replace(**fields)


def accounted(job_id: str, raw_id: str, state: str, exit_code: str, *given: Gres) -> Accounted:
    said = f"JobId={raw_id} JobState={state} ExitCode={exit_code} NodeList=m1 UserId=alice(1)"
    return parse_controller(said)[0]._replace(job_id=job_id, given=given)


def found(
    gres: Gres | None = Gres("gpu", SMALL, 1),  # noqa: B008
    *,
    outcome: Outcome = Outcome.GPU_OOM,
    said: bytes = b"",
    peak: int | None = None,
    task: int | None = None,
) -> Found:
    job_id = "12" if task is None else f"12_{task}"
    measured = evidence("12", peak) if peak is not None else None
    return Found(accounted(job_id, "12", "FAILED", "1:0", *[gres] if gres else []), outcome, said, measured)


def judged(one: Found, **fields: Any) -> Verdict:
    verdict = judge(record(**fields), [one], SITE)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("release", RELEASES)
def test_slurmctld_tells_how_jobs_ended(release: str) -> None:
    rows = parse_controller((RECORDED / f"slurm-{release}" / "ended/scontrol.txt").read_text())
    ended = {row.job_id: row for row in rows if row.is_final}
    assert sorted(ended) == ["1_0", "1_1", "1_2", "2", "3", "4"]
    assert [(one.state, one.status, one.task) for one in [ended["1_1"]]] == [("FAILED", 1, 1)]
    assert [ended[job].given for job in ("2", "3")] == [(Gres("shard", "", 2),), (Gres("mps", "", 25),)]
    assert ended["4"].status == -6
    assert len(rows) == 7  # an array that waits is one row


def test_on_a_slice_the_memory_was_the_jobs_own_and_more_is_asked_for() -> None:
    verdict = judged(found())
    assert (verdict.hint_mib, len(verdict.offenders), verdict.gives_up) == (9985, 1, "")
    assert retry_arguments(record(), verdict) == ("--gpu-footprint=mem=9985M,sm=10", "--requeue", "--gres=gpu:1")
    learned = as_evidence(record(), verdict.offenders[0], SITE, 7.0)
    assert (learned.state, learned.gpu_mem_peak_mib, learned.job_id) == (GPU_OOM, 9985, "12")
    learned = as_evidence(record(), found(SHARE), SITE, 7.0)
    assert (learned.gpu_mem_peak_mib, learned.sample_count) == (4353, 0), "without a measurement too"


def test_where_slurm_tracks_no_gpus_a_job_had_what_was_asked_for(printed: Printed) -> None:
    """Without gres/gpu in AccountingStorageTRES neither sacct nor scontrol says what a job had of a GPU."""
    verdict = judged(found(None), given=f"gpu:{SMALL}:1")
    assert (verdict.hint_mib, verdict.gives_up) == (9985, "")
    assert verdict.cause.endswith(f" gpu:{SMALL}:1")
    assert judged(found(Gres("gpu", "", 1)), given=f"gpu:{SMALL}:1") == verdict  # its total alone is tracked
    unknown = judged(found(None))
    assert unknown.gives_up
    assert unknown.offenders == ()
    printed("companion", verdict.cause, unknown.gives_up)


SHARE = Gres("shard", "", 2)


@pytest.mark.parametrize(
    ("peak", "said", "is_offender"),
    [
        (4000, b"", False),
        (4400, b"", True),
        (4000, b"Tried to allocate 2.00 GiB", True),
        (1000, b"Tried to allocate 2.00 GiB", False),
        (None, b"Tried to allocate 2.00 GiB", False),
    ],
)
def test_on_a_share_only_who_went_beyond_his_budget_is_the_offender(
    peak: int | None, said: bytes, is_offender: bool
) -> None:
    verdict = judged(found(SHARE, peak=peak, said=said))
    assert bool(verdict.offenders) is is_offender
    assert verdict.hint_mib == (8704 if is_offender else None)
    own = retry_arguments(record(), verdict)[0]
    assert own == ("--gpu-footprint=mem=8704M,sm=10" if is_offender else "--colloc=off")


def test_what_a_program_could_not_get_is_read_in_mib() -> None:
    assert tried_mib(b"Tried to allocate 1.50 GiB. then Tried to allocate 20.00 MiB") == 20
    assert tried_mib(b"Out of memory while trying to allocate 1048577 bytes.") == 2
    assert tried_mib(b"CUDA out of memory") is None


def test_a_whole_gpu_and_the_third_run_are_the_end_of_it() -> None:
    assert "nothing larger" in judged(found(Gres("gpu", "h100", 1))).gives_up
    assert "nothing larger" in judged(found(Gres("gpu", "", 1))).gives_up
    assert judged(found(), attempt=1).gives_up == ""
    assert "run again 2 times" in judged(found(), attempt=2).gives_up


def test_other_ends_are_none_of_a_companions_business() -> None:
    others = [found(outcome=Outcome.FAILED), found(outcome=Outcome.HOST_OOM)]
    # But under MPS a fault is the job's own.
    for gres in (Gres("gpu", SMALL, 1), Gres("shard", "", 1), Gres("gpu", "h100", 1)):
        others.append(found(gres, outcome=Outcome.GPU_FAULT))
    assert judge(record(), others, SITE) is None
    assert judge(record(), [], SITE) is None


def test_who_died_of_a_fault_under_mps_runs_again_as_asked_since_it_may_be_a_neighbours(printed: Printed) -> None:
    verdict = judged(found(Gres("mps", "", 14), outcome=Outcome.GPU_FAULT))
    assert (verdict.offenders, verdict.hint_mib, verdict.gives_up) == ((), None, "")
    assert retry_arguments(record(), verdict)[0] == "--colloc=off"
    last = judge(record(attempt=2), [found(Gres("mps", "", 14), outcome=Outcome.GPU_FAULT)], SITE)
    assert last
    printed("companion", verdict.said, last.gives_up)  # more memory helps nobody here
    ran_out = found(Gres("mps", "", 14), peak=4400)
    both = judge(record(array="0-1"), [ran_out, found(Gres("mps", "", 14), outcome=Outcome.GPU_FAULT)], SITE)
    assert both
    assert (both.offenders, both.hint_mib) == ((ran_out,), None)


def test_of_an_array_only_the_tasks_that_ran_out_are_run_again_no_more_at_a_time() -> None:
    tasks = [found(task=7), found(task=3), found(task=4, outcome=Outcome.FAILED)]
    verdict = judge(record(array="0-9%2"), tasks, SITE)
    assert verdict is not None
    arguments = retry_arguments(record(array="0-9%2"), verdict, append=True)
    assert arguments[-2:] == ("--open-mode=append", "--array=3,7%2")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def test_a_record_is_private_and_comes_back_as_it_was(data: Path) -> None:
    folder = Path(write_record(record(begins={"/w/x": 5}), b"#!/bin/sh\n"))
    assert read_record(str(folder)) == record(begins={"/w/x": 5})
    assert (folder / "script/train.sh").read_bytes() == b"#!/bin/sh\n"
    assert {path.stat().st_mode & 0o077 for path in [folder, *folder.rglob("*")]} == {0}


def test_a_record_is_claimed_once_and_one_of_an_earlier_job_of_that_id_is_forgotten(data: Path) -> None:
    folder = write_record(record(), b"")
    assert [claim(folder, "13"), claim(folder, "14"), read_state(folder).claimed_by] == [True, False, "13"]
    write_step(folder, OUTCOME, "said")
    assert write_record(record(), b"") == folder
    assert not any(read_state(folder))


def test_a_record_of_a_release_with_fewer_fields_is_read_and_one_with_more_is_refused(
    data: Path, printed: Printed
) -> None:
    path = Path(write_record(record(), b"")) / "record.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in whole.items() if name != "budget_mib"}))
    assert read_record(str(path.parent)) == record(budget_mib=0)
    path.write_text(json.dumps({**whole, "new": 1}))
    with pytest.raises(InputError, match="the fields differ"):
        read_record(str(path.parent))
    assert companion.main([str(path.parent)], {"SLURM_JOB_ID": "13"}) != 0
    printed("companion", read_state(str(path.parent)).outcome)


def test_old_records_go_when_there_are_many_but_not_while_somebody_waits(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_KEPT", 0)
    waited_for, done = (write_record(record(job_id=name), b"") for name in ("1", "2"))
    claim(done, "csub")
    for folder in (waited_for, done):
        os.utime(folder, (0, now() - 40 * 86400))
    write_record(record(job_id="3"), b"")
    assert [os.path.exists(folder) for folder in (waited_for, done)] == [True, False]


@pytest.mark.parametrize("name", ["../x", "", "a/b", "."])
def test_a_record_stays_in_its_folder(data: Path, name: str) -> None:
    with pytest.raises(InputError):
        record_folder("c", name)
    with pytest.raises(InputError):
        write_record(record(script=name), b"")


class Followed:
    """A job that csub submitted with a companion, and what is in its record."""

    def __init__(self, shell: Shell, *options: str, answer: str = "echo 4712; exit\n") -> None:
        self.shell = shell
        self.program("sacct", "exit 1")
        shell.behave(1, answer)
        environ = {"MARK": "1", "SBATCH_COMMENT": "c"}
        self.done = shell.run(REQUEUE, *options, HINT, "job.sh", "a b", environ=environ)
        self.folder = shell.folder / "home/.local/share/slurm_colloc/followup/lab/4711"

    def companion(self, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the companion as Slurm would."""
        argv = [sys.executable, "-I", "-m", "slurm_colloc.followup.companion", str(self.folder)]
        environment = {**self.shell.environment(), "MARK": "1", "SLURM_JOB_ID": "4712", **environ}
        return subprocess.run(argv, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False)

    def program(self, name: str, text: str) -> None:
        """Have one of Slurm's programs say something; there is no accounting unless a test makes one."""
        executable(self.shell.folder / "bin" / name, f"#!/bin/sh\n{text}\n")

    def ended(self, state: str, words: str, gres: str = f"gres/gpu:{SMALL}=1,gres/gpu=1") -> None:
        """Have slurmctld say how the job ended."""
        said = f"JobId=4711 JobState={state} ExitCode=1:0 NodeList=h1 AllocTRES=cpu=1,{gres}"
        self.program("scontrol", f"echo '{said}'")
        (self.shell.folder / "slurm-4711.out").write_text(words)

    @property
    def said(self) -> str:
        return (self.shell.folder / "slurm-4711.out").read_text()


@pytest.fixture
def followed(shell: Shell) -> Followed:
    return Followed(shell)


def test_the_companion_is_a_second_small_job_and_standard_output_stays_sbatchs(
    followed: Followed, printed: Printed
) -> None:
    assert followed.done.stdout == "Submitted batch job 4711\n"
    printed("csub", followed.done.stderr.partition("\n")[0])
    _, call = followed.shell.calls()
    wanted = {"--dependency=afternotok:4711", "--kill-on-invalid-dep=yes", "--requeue", "--export=ALL", "--parsable"}
    assert wanted <= set(call)
    assert not any("gres" in word or "gpu" in word for word in call if not word.startswith("--output"))
    text = (followed.shell.folder / "script.1").read_text()
    assert text.endswith(f"-I -m slurm_colloc.followup.companion '{followed.folder}'\n")


def test_a_job_that_ran_out_is_submitted_again_once_with_its_own_environment(
    followed: Followed, printed: Printed
) -> None:
    followed.ended("FAILED", OOM)
    followed.shell.behave(2, 'env > "$CALLS/../env"; echo Submitted batch job 4713; exit\n')
    followed.shell.behave(3, "echo 4714; exit\n")
    for _ in range(2):
        assert followed.companion().returncode == 0
    _, _, again, companion = followed.shell.calls()
    assert again[:2] == ["--requeue", "--gres=mps:13"]
    assert again[-1] == "a b"
    assert "--dependency=afternotok:4713" in companion
    piece = f"gpu:{SMALL}:1"
    assert followed.said.startswith(OOM)
    assert all(fact in followed.said for fact in (" job 4711 ", f" {piece};", " job 4713\n"))
    environment = (followed.shell.folder / "env").read_text().splitlines()
    assert {"MARK=1", "SBATCH_COMMENT=c"} <= set(environment)
    assert not any(line.startswith("SLURM_JOB_ID") for line in environment)
    [why, *_] = followed.shell.decisions()[-1]["reasons"]
    printed("companion", followed.said, *why)
    assert why[0] == "followup"
    noted = [one for one in followed.shell.decisions() if one["job_id"] == "4711" and one["out_of_memory"]]
    assert len(noted) == 1  # the site's margins hear of it
    assert read_state(str(followed.folder)).submitted == "4713"


def test_an_array_is_judged_when_all_its_tasks_are_told(shell: Shell) -> None:
    """Seconds after its end Slurm may tell of only some of them."""
    followed = Followed(shell, "--array=0-1", "-o", "out.%a")
    followed.program(
        "scontrol",
        'cd "$CALLS/.."; for n in 0 $(cat told 2>&-); do '
        "echo JobId=471$((n + 2)) ArrayJobId=4711 ArrayTaskId=$n JobState=FAILED "
        f"ExitCode=1:0 NodeList=h1 AllocTRES=gres/gpu:{SMALL}=1,gres/gpu=1; done; echo 1 >told",
    )
    for number in (0, 1):
        (shell.folder / f"out.{number}").write_text(OOM if number == 0 else "ImportError\n")
    shell.behave(2, "echo Submitted batch job 4713; exit\n")
    assert followed.companion().returncode == 0
    call = shell.calls()[2]
    assert {"--array=0", "--open-mode=append"} <= set(call)
    assert " job 4713" in (shell.folder / "out.0").read_text()
    assert (shell.folder / "out.1").read_text() == "ImportError\n"


def test_an_answer_that_cannot_be_read_is_asked_for_once_more(followed: Followed) -> None:
    followed.ended("FAILED", OOM)
    path = followed.shell.folder / "bin/scontrol"
    _, says = path.read_text().rstrip().split("\n")
    followed.program("scontrol", f'[ -e "$CALLS/../asked" ] && exec {says}\ntouch "$CALLS/../asked"\necho JobId=x')
    assert followed.companion().returncode == 0
    assert len(followed.shell.calls()) > 2


@pytest.mark.parametrize(("state", "words"), [("FAILED", "ImportError\n"), ("TIMEOUT", OOM), ("COMPLETED", OOM)])
def test_another_end_is_left_alone(followed: Followed, state: str, words: str) -> None:
    followed.ended(state, words)
    assert followed.companion().returncode == 0
    assert len(followed.shell.calls()) == 2
    assert followed.said == words


def test_words_that_stood_in_the_output_before_are_not_the_jobs(shell: Shell) -> None:
    (shell.folder / "slurm-4711.out").write_text(OOM)
    followed = Followed(shell, "--open-mode=append")
    followed.ended("FAILED", f"{OOM}ImportError\n")
    assert followed.companion().returncode == 0
    assert len(shell.calls()) == 2


def test_what_slurm_refuses_the_second_time_is_said_where_the_user_looks(followed: Followed, printed: Printed) -> None:
    followed.ended("FAILED", OOM)
    for number in (2, 3):
        said = "sbatch: error: Batch job submission failed: Access/permission denied"
        followed.shell.behave(number, f"echo '{said}' >&2; exit 1\n")
    followed.companion()
    printed("companion", followed.said)


@pytest.mark.parametrize(
    ("words", "requeue"),
    [
        ("", ""),
        ("", "no"),
        ("--requeue --no-requeue", ""),
        ("--requeue --hold", ""),
        ("--requeue --wait", ""),
        ("--requeue --colloc=off", ""),
    ],
)
def test_where_there_is_no_companion(shell: Shell, words: str, requeue: str) -> None:
    done = shell.run(*words.split(), HINT, "job.sh", environ={"SBATCH_REQUEUE": requeue} if requeue else {})
    assert (done.returncode, len(shell.calls())) == (0, 1)


@pytest.mark.parametrize(
    ("case", "output", "line"),
    [
        ("counted", "%a", "echo $SLURM_ARRAY_TASK_COUNT"),
        ("one output file", "all.txt", ""),
        ("one output file", "out.%A", ""),
    ],
)
def test_tasks_that_count_each_other_or_cannot_be_told_apart_have_none(
    shell: Shell, case: str, output: str, line: str, printed: Printed
) -> None:
    (shell.folder / "job.sh").write_text(f"#!/bin/sh\n#SBATCH --gres=gpu:1\n{line}\n")
    done = shell.run("--requeue", "--array=0-3", "-o", output, HINT, "job.sh")
    assert (done.returncode, len(shell.calls())) == (0, 1)
    printed("csub", done.stderr.partition("\n")[0], case=case)


def test_consent_may_stand_in_a_variable(shell: Shell) -> None:
    shell.behave(1, "echo 4712; exit\n")
    shell.run(HINT, "job.sh", environ={"SBATCH_REQUEUE": "1"})
    assert len(shell.calls()) == 2


def test_a_refused_companion_is_a_note_and_the_status_is_sbatchs(shell: Shell, printed: Printed) -> None:
    done = Followed(shell, answer="echo 'sbatch: error: no such partition' >&2; exit 1\n").done
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n")
    printed("csub", done.stderr.partition("\n")[0])


def test_a_companion_that_may_be_there_after_all_does_nothing(shell: Shell, printed: Printed) -> None:
    followed = Followed(shell, answer=f"sleep {ASK_S + 2}; echo 4712; exit\n")
    printed("csub", followed.done.stderr.partition("\n")[0])
    followed.ended("FAILED", OOM)
    assert followed.companion().returncode == 0
    assert len(shell.calls()) == 2
    assert (followed.said, read_state(str(followed.folder)).outcome) == (OOM, "")


def test_a_second_submission_that_took_too_long_may_have_come_about(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    monkeypatch.setattr(submission, "_RESUBMIT_TIMEOUT_S", 1.0)
    for name, value in followed.shell.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir("/")
    followed.ended("FAILED", OOM)
    followed.shell.behave(2, "sleep 3; exit\n")
    assert companion.main([str(followed.folder)], {**followed.shell.environment(), "SLURM_JOB_ID": "4712"}) == 0
    printed("companion", followed.said)


def test_a_user_without_a_name_has_the_decision_recorded_all_the_same(shell: Shell, printed: Printed) -> None:
    code = (
        "import pwd\ndef nobody(uid): raise KeyError('getpwuid(): uid not found')\n"
        "pwd.getpwuid = nobody\nfrom slurm_colloc.cli.csub import main; main()"
    )
    done = shell.run(REQUEUE, HINT, "job.sh", code=code)
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n")
    printed("csub", done.stderr.partition("\n")[0])
    assert len(shell.decisions()) == 1


def test_a_data_folder_below_the_current_one_is_found_from_elsewhere(shell: Shell) -> None:
    shell.behave(1, "echo 4712; exit\n")
    shell.run(REQUEUE, HINT, "job.sh", environ={"XDG_DATA_HOME": "data"})
    folder = shell.folder / "data/slurm_colloc/followup/lab/4711"
    assert (shell.folder / "script.1").read_text().endswith(f" '{folder}'\n")


def test_a_claim_that_a_full_disk_refuses_is_none(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_record(record(), b"")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left"):
            claim(folder, "13")
    assert read_state(folder).claimed_by == ""
    assert claim(folder, "14")


def test_a_companion_that_died_while_it_submitted_leaves_it_at_that(followed: Followed, printed: Printed) -> None:
    followed.ended("FAILED", OOM)
    assert claim(str(followed.folder), "4700")
    assert followed.companion().returncode == 0
    assert len(followed.shell.calls()) == 2
    printed("companion", read_state(str(followed.folder)).outcome)
