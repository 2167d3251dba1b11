# SPDX-License-Identifier: Apache-2.0
"""What a user has forgotten of a job, and what colloc history shows; by the real colloc and csub."""

import contextlib
import json
import os
import sqlite3
from pathlib import Path

import pytest

from slurm_colloc.cli.colloc.terminal import put
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.model import GPU_OOM, because
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.lookup import look_up
from slurm_colloc.estimate.question import Question
from slurm_colloc.estimate.records import drop_evidence, forget, forgotten_s, runs_folder
from slurm_colloc.estimate.snapshot import snapshot_path, write_snapshot
from tests.unit.golden import Printed
from tests.unit.made import H100, evidence, near
from tests.unit.shell import Shell
from tests.unit.terminals import screen


def test_relatives_are_looked_for_where_a_job_only_ever_had_a_share(config: SiteConfig) -> None:
    runs = [evidence("1", signature="fam.64~~f", mode="mig"), evidence("2", signature="fam.32~~f")]
    write_snapshot(snapshot_path(config.paths.state, os.geteuid()), runs)
    assert [run.job_id for run in look_up(config, "fam.64~~f", None).relatives] == ["2"]
    assert look_up(config, "fam.32~~f", None).relatives == ()


def test_of_a_large_family_the_nearest_sizes_are_read_wherever_they_lie(config: SiteConfig) -> None:
    """Not the newest, nor those that a folder happens to list first."""
    sizes = range(1, 3101)
    kept = [evidence(str(size), signature=f"fam.{size}~~f", ended_s=float(size)) for size in sizes]
    write_snapshot(snapshot_path(config.paths.state, os.geteuid()), kept)
    for size in sizes:
        os.makedirs(runs_folder(user_data_folder(), f"fam.{2 * size + 4000}~~f"))
    drop_evidence(user_data_folder(), evidence("near", signature="fam.60.5~~f", ended_s=1.0))
    found = {run.job_id for run in look_up(config, "fam.60~~f", None).evidence}
    assert found == {"60"}
    (own,) = [evidence("x", signature="fam.60.25~~f", state=GPU_OOM)]
    drop_evidence(user_data_folder(), own)
    found = {run.job_id for run in look_up(config, own.signature, None).relatives}
    assert {"near", "60", "61", "50", "70"} <= found
    assert len(found) == 40


@pytest.mark.parametrize("content", [b"", b"[]", b"nan", b"1" * 4000])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, content: bytes, printed: Printed) -> None:
    assert forgotten_s(str(tmp_path), "fam.1") == 0.0
    forget(str(tmp_path), "fam.1", 5.0)
    assert forgotten_s(str(tmp_path), "fam.1") == 5.0
    path = next(tmp_path.rglob("forgotten"))
    path.write_bytes(content)
    with pytest.raises(StoreError, match=str(path)):
        forgotten_s(str(tmp_path), "fam.1")
    path.write_bytes(b"nan")
    with printed.raises("history", StoreError):
        forgotten_s(str(tmp_path), "fam.1")


def test_what_is_forgotten_counts_no_more_wherever_it_lies(config: SiteConfig) -> None:
    old, new, other = "fam.64~~f", "fam.64~~f", "fam.32~~f"
    snapshot = snapshot_path(config.paths.state, os.geteuid())
    write_snapshot(snapshot, [evidence("1", signature=old, ended_s=10.0), evidence("2", signature=other, ended_s=10.0)])
    drop_evidence(user_data_folder(), evidence("3", signature=old, ended_s=11.0))
    assert len(look_up(config, old, None).evidence) == 2
    assert forget(user_data_folder(), old, 12.0) == 1
    known = look_up(config, old, None)
    assert (known.evidence, known.notes) == ((), ())
    assert [run.job_id for run in known.relatives] == ["2"]
    # Neither as a relative, nor after it was written anew.
    assert [run.job_id for run in look_up(config, "fam.16~~f", None).relatives] == ["2"]
    drop_evidence(user_data_folder(), evidence("4", signature=new, ended_s=13.0))
    assert [run.job_id for run in look_up(config, old, None).evidence] == ["4"]


def test_by_command_is_looked_for_only_where_nothing_else_has_completed(config: SiteConfig) -> None:
    drop_evidence(user_data_folder(), evidence("1", signature="command-a.1~~f"))
    assert [run.job_id for run in look_up(config, "fam.64~~f", None, "command-a.1~~f").by_command] == ["1"]
    assert look_up(config, "fam.64~~f", None).by_command == ()
    drop_evidence(user_data_folder(), evidence("2", signature="fam.32~~f", state=GPU_OOM))
    known = look_up(config, "fam.64~~f", None, "command-a.1~~f")
    assert ([run.job_id for run in known.relatives], [run.job_id for run in known.by_command]) == (["2"], ["1"])
    drop_evidence(user_data_folder(), evidence("3", signature="fam.16~~f"))
    assert look_up(config, "fam.64~~f", None, "command-a.1~~f").by_command == ()


def test_a_command_has_a_rung_of_its_own() -> None:
    past = evidence("7", 4000, sample_count=0, source="jobstats")
    found = estimate(Question(by_command=[past]))
    assert (found.rung, found.gpu_mem_peak_mib and found.gpu_mem_peak_mib.q99) == ("command", near(4600))
    assert found.provenance[:3] == (
        because("same-command"),
        because("completed-runs", runs=1, gpu_model=H100),
        because("measured-by", sources=("jobstats",)),
    )
    out = evidence("8", 9000, state=GPU_OOM, ended_s=2.0)
    raised = estimate(Question(runs=[out], by_command=[past]))
    assert raised.gpu_mem_peak_mib
    assert (raised.rung, raised.gpu_mem_peak_mib.q99) == ("command", 9000)
    assert estimate(Question(runs=[evidence()], by_command=[past])).rung == "exact"


# --- the real csub and colloc ---


def history(shell: Shell, *words: str, fails: bool = False) -> str:
    code = "import sys; sys.argv[0] = 'colloc'; from slurm_colloc.cli.colloc import main; main()"
    done = shell.run("history", *words, code=code)
    assert (done.returncode != 0) is fails, done.stderr
    return done.stdout + done.stderr


def test_what_is_forgotten_is_no_more_known_to_csub(shell: Shell, printed: Printed) -> None:
    signature = str(shell.request("job.sh", "--batch", "64")["signature"])
    shell.ran(signature=signature, gpu_mem_peak_mib=5000)
    shell.run("job.sh", "--batch", "64")
    assert shell.calls()[-1][0] == "--gres=gpu:h100_1g.10gb:1"
    printed("history", history(shell, "--forget", signature))
    shell.run("job.sh", "--batch", "64")
    assert (shell.calls()[-1], shell.decisions()[-1]["rung"]) == (["job.sh", "--batch", "64"], "unknown")
    # What is known by its command is forgotten in a file of its own.
    next(one for one in shell.folder.rglob("forgotten") if "command-" not in str(one)).write_bytes(b"\0")
    done = shell.run("job.sh", "--batch", "64")
    assert (done.returncode, shell.calls()[-1]) == (0, ["job.sh", "--batch", "64"])
    assert "/forgotten'" in done.stderr


def test_what_nobody_can_mean_is_refused(shell: Shell, printed: Printed) -> None:
    shell.run("job.sh")
    for name in ("77", "../../.."):
        printed("history", history(shell, "--forget", name, fails=True))
    assert not list(shell.folder.rglob("forgotten"))


def test_history_shows_each_job_once_with_what_is_believed(shell: Shell, printed: Printed) -> None:
    for _ in range(2):
        shell.run("job.sh", "--batch", "64")
    found = shell.request("job.sh", "--batch", "64")
    shell.ran(signature=found["signature"])
    shell.run("job.sh", "--batch", "8")
    shell.ran(signature=shell.request("job.sh", "--batch", "8")["signature"], state=GPU_OOM, job_id="10")
    text = history(shell)
    jobs, _, submissions = text.partition("submissions:\n")
    assert jobs.count("job.sh --batch 64") == 1
    printed("history", jobs)
    assert submissions.count("4711") == 3
    assert "expected" not in submissions  # once for each job, not again for each submission
    told = json.loads(history(shell, "--format=json"))
    assert [job["line"] for job in told["jobs"]] == ["job.sh --batch 64", "job.sh --batch 8"]
    assert [job["last_run"]["job_id"] for job in told["jobs"]] == ["9", "10"]


def test_a_run_that_runs_has_not_ended(shell: Shell, printed: Printed) -> None:
    shell.run("job.sh")
    shell.ran(state="RUNNING")
    text = history(shell)
    printed("history", text.partition("submissions:\n")[0])


def test_what_ran_out_of_memory_is_said_to_need_more(shell: Shell) -> None:
    shell.run("job.sh")
    shell.ran(state=GPU_OOM, gpu_mem_peak_mib=4096)
    text = history(shell)
    assert text.count("needs more than 4096 MiB") == 1
    assert "memory not known" not in text
    assert json.loads(history(shell, "--format=json"))["jobs"][0]["needs_more_than_mib"] == 4096


def test_the_first_submission_of_a_command_that_accounting_knows_is_placed(shell: Shell, printed: Printed) -> None:
    shell.ran(signature=shell.request("job.sh", "--batch", "64")["command"], source="jobstats")
    done = shell.run("--explain", "job.sh", "--batch", "64")
    printed("csub-history", *(line for line in done.stderr.splitlines() if line.startswith("csub:   needs: ")))
    assert shell.calls()[-1][0] == "--gres=gpu:h100_1g.10gb:1"
    assert shell.decisions()[-1]["rung"] == "command"
    shell.run("job.sh", "--batch", "65")
    assert shell.calls()[-1] == ["job.sh", "--batch", "65"]


def test_a_history_of_a_later_release_is_said_in_both_formats(shell: Shell) -> None:
    state = shell.folder / "state"
    (state / "history").mkdir(parents=True)
    site_file = shell.folder / "site.toml"
    site_file.write_text(f'{site_file.read_text()}\n[paths]\nstate = "{state}"\n')
    shell.run("job.sh")
    path = snapshot_path(str(state), os.geteuid())
    write_snapshot(path, [])
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")
    assert "is of another release" in history(shell)
    assert "is of another release" in shell.run("--explain", "job.sh").stderr
    [job] = json.loads(history(shell, "--format", "json").partition("\ncolloc:")[0])["jobs"]
    assert "is of another release" in job["notes"][0]


def test_a_text_fits_the_terminal_and_a_command_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, "stdout", columns=40) as shown:
        put(f"    exact, from 3 runs: {'4000 MiB expected, ' * 5}9 % of the SMs\n")
        put(f"    see: colloc audit run {'--rule COL001 ' * 5}\n")
    *lines, command = shown.text.splitlines()
    assert len(command) > 70
    assert len(lines) > 2
    assert max(map(len, lines)) <= 40
    assert [line[:6].isspace() for line in lines] == [False] + [True] * (len(lines) - 1)
