# SPDX-License-Identifier: Apache-2.0
"""Sessions of launchers: what the real clients submitted is known by its work's name, and the last ten say its need."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from slurm_colloc.core.model import Evidence, Footprint, Reason
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.question import Question
from slurm_colloc.estimate.sessions import from_sessions, session_key
from slurm_colloc.estimate.signature import BY_SESSION
from slurm_colloc.submit.launchers import launcher_of
from tests.unit.made import RECORDED, evidence, near
from tests.unit.shell import Shell

CLIENTS = RECORDED / "launchers"
KEY = f"{BY_SESSION}0.~~"
SUBMITIT = (CLIENTS / "submitit.sh").read_text()
DASK = (CLIENTS / "dask-jobqueue.sh").read_text()
SNAKEMAKE = (CLIENTS / "snakemake.argv").read_text().splitlines()
NEXTFLOW = (
    "#!/bin/bash\n### ---\n### name: 'FIT:TRAIN (1)'\n### ---\nnxf_launch() {\n    /bin/bash -ue .command.sh\n}\n"
)


def key(text: str, name: str = "submitit", folder: str = "/home/ann") -> str:
    return session_key(launcher_of(text.encode()), name, folder, text.encode(), ("gpu:1",))


@pytest.mark.parametrize(
    ("text", "same", "other"),
    [
        (DASK, DASK.replace(":45921", ":40001"), ""),
        (SNAKEMAKE[-1], SNAKEMAKE[-1].replace("seed=2", "seed=1").replace("1u_snrma", "x"), ""),
        (SNAKEMAKE[-1], SNAKEMAKE[-1], SNAKEMAKE[-1].replace("'train:", "'test:").replace("rules train", "rules test")),
        (SNAKEMAKE[-1], SNAKEMAKE[-1], SNAKEMAKE[-1].replace("study/Snakefile", "large/Snakefile")),
        # A group of two rules has no key.
        (SNAKEMAKE[-1], SNAKEMAKE[-1], SNAKEMAKE[-1].replace("rules train", "rules train test")),
        (NEXTFLOW, NEXTFLOW.replace("(1)", "(17)"), NEXTFLOW.replace("TRAIN", "TEST")),
        (NEXTFLOW, NEXTFLOW.replace("### name: 'FIT:TRAIN (1)'", "# NEXTFLOW TASK: FIT:TRAIN (2)"), ""),
    ],
)
def test_a_work_has_one_key(text: str, same: str, other: str) -> None:
    assert key(text).startswith(BY_SESSION)
    assert key(text) == key(same)
    assert key(text) != key(other)


def test_a_name_and_a_folder_tell_works_apart() -> None:
    assert key(DASK, "fit") not in (key(DASK, "other"), key(DASK, "fit", "/home/ann/other"))
    app = "source_helpers\n./script.sh &\njupyter lab\n"
    assert key(app, "sys/dashboard/sys/jupyter", "/a") == key(app, "sys/dashboard/sys/jupyter", "/b")
    assert key(app, "sys/dashboard/sys/jupyter") != key(app, "sys/dashboard/sys/rstudio")
    assert key(app, "notebook") == ""


def test_a_work_of_submitit_is_a_function_in_a_folder(tmp_path: Path) -> None:
    def known_by(call: str, folder: str = "logs", age_s: float = 0.0) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        at = tmp_path / folder / f"{len(call):032x}.pkl"
        shutil.copy(CLIENTS / f"call-{call}.pkl", at)
        os.utime(at, (time.time() - age_s,) * 2)
        return key(SUBMITIT.replace("/home/ann/logs", str(tmp_path / folder)))

    first = known_by("first")
    assert first.startswith(BY_SESSION)
    (tmp_path / "logs" / f"{5:032x}.pkl").rename(tmp_path / "logs/4711_submitted.pkl")
    assert known_by("second") == first
    assert known_by("third", "large") not in (first, known_by("first", "larger"))
    # The newest call is the one that is submitted now; an older one was never submitted.
    assert known_by("third", age_s=60.0) == first
    (tmp_path / "logs" / f"{6:032x}.pkl").write_bytes(b"no pickle")
    assert known_by("third", age_s=60.0) == ""
    assert key(SUBMITIT) == ""


@pytest.mark.parametrize("beside", ["# {}\n", 'echo "{}"\n', "{}\n", "{} && "])
def test_a_program_beside_a_rule_is_no_session(beside: str) -> None:
    command = SNAKEMAKE[-1].removeprefix("--wrap=")
    assert key(f"#!/bin/sh\n{command}\n").startswith(BY_SESSION)
    assert key(f"#!/bin/sh\n{beside.format(command)}python train.py\n") == ""


def test_another_configuration_is_another_work(tmp_path: Path) -> None:
    shutil.copy(CLIENTS / "call-first.pkl", tmp_path / f"{0:032x}.pkl")
    submitit = SUBMITIT.replace("/home/ann/logs", str(tmp_path))
    rule, worker = SNAKEMAKE[-1], "/home/ann/venv/bin/python -m distributed"
    for text, one, other in (
        (rule, " --config model=small --jobs 1", " --config model=large --jobs 1"),
        (rule, " --configfiles a.yaml", " --configfiles b.yaml"),
        (DASK, f"export MODEL=small\n{worker}", f"export MODEL=large\n{worker}"),
        (DASK, " --nworkers 4", " --nworkers 8"),
        (submitit, "export MODEL=small", "export MODEL=large"),
    ):
        at = (
            worker
            if worker in one
            else " --nworkers 4"
            if text == DASK
            else " --jobs 1"
            if text == rule
            else "# command"
        )
        first, second = (key(text.replace(at, word, 1)) for word in (one, other))
        assert first.startswith(BY_SESSION)
        assert second.startswith(BY_SESSION)
        assert first != second


def test_a_folder_tells_works_of_one_name_apart() -> None:
    work, task = "/home/ann/small/work", "/3f/0123456789abcdef0123456789abcd"
    assert key(NEXTFLOW, folder=work + task) == key(NEXTFLOW, folder=f"{work}/aa{task[3:]}")
    assert key(NEXTFLOW, folder=work + task) != key(NEXTFLOW, folder=work.replace("small", "large") + task)
    assert key(SNAKEMAKE[-1].removeprefix("--wrap="), folder="/a") != key(SNAKEMAKE[-1], folder="/b")


def test_a_newline_in_a_name_hides_no_folder() -> None:
    assert key(DASK, "a\nb", "/x") != key(DASK, "a\nb", "/y")
    assert key(DASK, "a", "/x\nb") != key(DASK, "a", "/x")


def test_a_name_that_nobody_chose_names_no_work() -> None:
    assert key(DASK, "dask-worker") == ""
    assert key(DASK, "dask-worker-fit").startswith(BY_SESSION)


def test_a_name_that_its_user_chose_is_no_app() -> None:
    assert key("jupyter lab\n", "ondemand/sys/myjobs/default") == ""
    assert key("jupyter lab\n", "ondemand/sys/dashboard/sys/jupyter").startswith(BY_SESSION)


def test_calls_of_several_functions_at_once_have_no_key(tmp_path: Path) -> None:
    for number, call in enumerate(["first", "second", "third"]):
        shutil.copy(CLIENTS / f"call-{call}.pkl", tmp_path / f"{number:032x}.pkl")
    text = SUBMITIT.replace("/home/ann/logs", str(tmp_path))
    assert key(text) == ""
    (tmp_path / f"{2:032x}.pkl").unlink()
    assert key(text).startswith(BY_SESSION)
    os.mkfifo(tmp_path / f"{3:032x}.pkl")
    assert key(text) == ""


def test_a_hostile_name_takes_no_time() -> None:
    began_s = time.process_time()
    assert key("jupyter lab\n", f"{'sys/dashboard/' * 8000} x") == ""
    assert time.process_time() - began_s < 1.0


def test_a_hostile_script_takes_no_time() -> None:
    one = " -m snakemake --snakefile a --target-jobs 'a:b"
    began_s = time.process_time()
    assert key(one * 20_000) == ""
    assert key(f"{'submitit.core._submit ' * 20_000}\nsrun python -m submitit.core._submit x") == ""
    assert time.process_time() - began_s < 5.0


def sessions(*peaks_mib: int, **fields: object) -> tuple[Evidence, ...]:
    return tuple(
        evidence(str(number), peak_mib, signature=KEY, ended_s=float(number), **fields)
        for number, peak_mib in enumerate(peaks_mib, 1)
    )


def asked(*runs: Evidence) -> Footprint | Reason:
    return from_sessions(Question(signature=KEY, runs=runs))


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT"])
def test_ten_alike_say_the_need_of_the_next(state: str) -> None:
    found = asked(*sessions(*range(4000, 4400, 40), state=state, elapsed_s=600.0))
    assert isinstance(found, Footprint)
    assert (found.rung, found.evidence_count, found.confidence) == ("sessions", 10, None)
    assert found.gpu_mem_peak_mib
    assert found.gpu_mem_peak_mib.q99 == near(1.15 * 4360)


@pytest.mark.parametrize("elapsed_s", [None, 599.0])
def test_an_array_that_was_cancelled_at_once_says_nothing(elapsed_s: float | None) -> None:
    soon = sessions(*[4400] * 10, state="CANCELLED", elapsed_s=elapsed_s)
    found = asked(*soon)
    assert isinstance(found, Reason)
    assert (found.code, found.params["runs"]) == ("few-sessions", 0)
    # Each of them is a bound all the same.
    later = sessions(*[3700] * 10)
    found = asked(*soon[:1], *(run._replace(ended_s=run.ended_s + 99) for run in later))
    assert isinstance(found, Footprint)
    assert found.gpu_mem_peak_mib
    assert (found.expected_mib, found.gpu_mem_peak_mib.q99) == (3700, 4400)


@pytest.mark.parametrize(
    ("peaks", "code"),
    [
        ([4000] * 9, "few-sessions"),
        ([], "few-sessions"),
        ([4000] * 9 + [4401], "sessions-differ"),
        ([4401] + [4000] * 9, "sessions-differ"),
        ([60000] + [4000] * 9, "sessions-differ"),
    ],
)
def test_fewer_or_others_say_nothing(peaks: list[int], code: str) -> None:
    found = asked(*sessions(*peaks))
    assert isinstance(found, Reason)
    assert found.code == code
    # Not one run is taken for the job's need by any other rung.
    assert estimate(Question(signature=KEY, runs=sessions(*peaks))).gpu_mem_peak_mib is None
    assert estimate(Question("mem=9G", KEY, runs=sessions(*peaks))).sm_active_pct is None


@pytest.mark.parametrize(("state", "ended_s"), [("COMPLETED", 0.5), ("GPU_OOM", 99.0), ("FAILED", 99.0)])
def test_no_session_that_held_more_is_forgotten(state: str, ended_s: float) -> None:
    larger = evidence("99", 30000, signature=KEY, state=state, ended_s=ended_s)
    runs = sorted((*sessions(*[4000] * 10), larger), key=lambda run: run.ended_s)
    found = estimate(Question(signature=KEY, runs=runs))
    assert (found.rung, found.expected_mib) == ("sessions", 4000)
    assert found.gpu_mem_peak_mib
    assert found.gpu_mem_peak_mib.q99 == 30000


@pytest.mark.parametrize(("count", "rung"), [(9, "unknown"), (10, "sessions")])
def test_csub_knows_a_rule_of_snakemake_by_its_sessions(shell: Shell, count: int, rung: str) -> None:
    argv = ["--dry-run", "--format=json", *(word for word in SNAKEMAKE if word not in ("-D", "/home/ann/study"))]
    first = json.loads(shell.run(*argv).stdout)["request"]["signature"]
    assert first.startswith(BY_SESSION)
    for number in range(count):
        shell.ran(job_id=str(number + 1), signature=first, ended_s=float(number + 1))
    shown = json.loads(shell.run(*[word.replace("seed=2", "seed=3") for word in argv]).stdout)
    assert (shown["request"]["signature"], shown["footprint"]["rung"]) == (first, rung)
