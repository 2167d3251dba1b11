# SPDX-License-Identifier: Apache-2.0
"""Evidence from what accounting knows of past jobs: what counts, what does not, and why."""

import base64
import gzip
import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Evidence, because
from slurm_colloc.estimate.bounds import share_at_most_pct
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.question import Question
from slurm_colloc.estimate.signature import command_signature, parts_of
from slurm_colloc.estimate.snapshot import read_snapshot, snapshot_path
from slurm_colloc.facts.evidence import device_mib, measured_runs
from slurm_colloc.feedback.bootstrap import Past, PastRun, past_evidence, read_past
from slurm_colloc.feedback.user_histories import Collected, build_history
from slurm_colloc.slurm.submit_line import parse_submit_line
from slurm_colloc.sources import jobstats, tres_usage
from slurm_colloc.store.store import Store
from tests.unit.golden import Printed
from tests.unit.made import H100, MIG_POOL, MPS_POOL, decision, run, site
from tests.unit.stored import busy, sampled

CONFIG = site(MPS_POOL, MIG_POOL)
LINE = "sbatch -p gpu train.sh --batch 64"
COMMAND = command_signature("train.sh", ("--batch", "64"), 1, ("c",), "/home/ann")
UID = os.geteuid()
NAME = pwd.getpwuid(UID).pw_name


def past(**fields: Any) -> PastRun:
    row = PastRun(
        *("7", "7", "c", "ann", "COMPLETED", 0.0, 3600.0, "gres/gpu:h100=1,gres/gpu=1", "g1", "train.sh"),
        *(3.0, 4000, jobstats.METHOD, LINE, "/home/ann"),
    )
    return row._replace(**fields)


def found(*runs: PastRun, **options: Any) -> Past:
    return past_evidence(runs, options.pop("measured", ()), CONFIG, "22.05", 120.0, **options)


def reason(**fields: Any) -> str:
    told = found(past(**fields))
    assert (told.read, len(told.evidence)) == (1, 0)
    (why,) = told.rejected
    return why


def test_jobstats_peak_is_one_and_its_mean_has_the_error_of_its_readings() -> None:
    ((user, one),) = found(past()).evidence
    assert user == "ann"
    most = share_at_most_pct(3.0, 120)  # an hour, a reading each half minute
    assert most == pytest.approx(6.8, abs=0.1)
    assert one == Evidence(
        *("7", COMMAND, "COMPLETED", "exclusive", H100, 4000, most, most, True, 0, 0.0, 3600.0, 3600.0, None, 80000),
        source="jobstats",
    )
    ((_, short),) = found(past(end_s=150.0)).evidence
    assert (short.sm_active_mean_pct or 0.0) > 30
    ((_, one),) = found(past(util_pct=None)).evidence
    assert (one.sm_active_q95_pct, one.sm_is_bound) == (None, False)


def test_gpu_util_sizes_nothing_on_a_card_that_never_tells_sm_activity() -> None:
    a100 = MPS_POOL._replace(gpu_model="NVIDIA A100-SXM4-80GB")
    ((_, one),) = past_evidence([past()], (), site(a100), "22.05", 120.0).evidence
    assert (one.gpu_mem_peak_mib, one.sm_active_mean_pct, one.sm_is_bound) == (4000, None, False)
    answer = estimate(Question(runs=[one]))
    assert answer.sm_active_pct is None
    assert because("card-tells-no-sm", gpu=a100.gpu_model) in answer.provenance


def test_slurms_highest_reading_bounds_what_comes_in_one_twentieth_of_the_time() -> None:
    ((_, one),) = found(past(method=tres_usage.METHOD, util_pct=None, util_high_pct=35.0)).evidence
    assert (one.sm_active_mean_pct, one.sm_active_q95_pct, one.source) == (35.0, 35.0, "Slurm")


@pytest.mark.parametrize(
    ("why", "fields"),
    [
        ("it did not complete", {"state": "FAILED"}),
        ("it did not complete", {"state": "TIMEOUT"}),
        ("it did not complete", {"end_s": None}),
        ("it had no GPU", {"gres": ""}),
        ("it had several GPUs", {"gres": "gres/gpu:h100=2,gres/gpu=2"}),
        ("nobody measured its peak of GPU memory", {"mem_mib": None}),
        ("nobody measured its peak of GPU memory", {"method": ""}),
        ("it ran on another cluster", {"cluster": "other"}),
        ("it ran for less than 120 s", {"end_s": 119.0}),
        ("site.toml does not say which GPU it had", {"node_list": "elsewhere"}),
        ("it had a piece of one", {"gres": "gres/gpu:h100_1g.10gb=1,gres/gpu=1", "node_list": "m1"}),
        ("it had a piece of one", {"gres": "gres/mps=20"}),
        ("sacct has no SubmitLine of it", {"submit_line": ""}),
        ("it was not submitted by sbatch", {"submit_line": "srun -G 1 python train.py"}),
        ("it was a command of --wrap", {"submit_line": "sbatch --wrap=python a.py"}),
        ("its script came by standard input", {"submit_line": "sbatch -G 1"}),
        ("its script is relative and --chdir was given", {"submit_line": "sbatch -D /d train.sh"}),
        ("it was handed variables (--export)", {"submit_line": "sbatch --export=ALL,BS=64 train.sh"}),
        ("cannot be read with certainty", {"submit_line": "sbatch --no-such train.sh"}),
    ],
)
def test_what_counts_for_nothing_is_counted_with_its_reason(why: str, fields: dict[str, Any]) -> None:
    assert why in reason(**fields)


def test_which_of_two_cards_of_a_node_it_was_is_not_guessed(printed: Printed) -> None:
    other = MPS_POOL._replace(name="other", gpu_type="a100", gpu_model="NVIDIA A100-SXM4-40GB", gpu_mem_mib=40960)
    configs = [site(*pools) for pools in ((MPS_POOL, other), (other, MPS_POOL))]
    assert [device_mib(H100, "", "g1", config) for config in configs] == [MPS_POOL.gpu_mem_mib] * 2
    printed("past-jobs", *{str(past_evidence([past()], (), config, "22.05", 120.0).rejected) for config in configs})


def test_what_csub_submitted_is_not_taken_a_second_time(printed: Printed) -> None:
    task, component = past(job_id="8", shown_id="9_1"), past(job_id="7", shown_id="6+1")
    told = found(past(), task, component, csub_jobs=frozenset({"7", "9"}))
    assert told.evidence == []
    printed("past-jobs", told.rejected)


def test_our_own_samples_go_before_what_others_measured(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_allocations("a", [run("7")], 1.0)
    sampled(store, busy(900, 1800, 2700, job="7", sm=20.0, mib=3000))
    measured = list(measured_runs(store, "c", CONFIG))
    told = found(past(start_s=0), measured=measured)
    ((_, one),) = told.evidence
    assert (one.gpu_mem_peak_mib, one.sm_active_q95_pct, one.source, one.mode) == (3000, 20.0, "", "exclusive")
    assert told.by_source == {"samples": 1}
    # Another run of the same id is another run.
    ((_, one),) = found(past(start_s=5.0), measured=measured).evidence
    assert one.source == "jobstats"


@pytest.mark.parametrize(
    ("line", "script", "arguments"),
    [
        ("sbatch train.sh", "train.sh", ()),
        ("/usr/bin/sbatch -N1 --gres gpu:1 d/train.sh a b", "d/train.sh", ("a", "b")),
        ("sbatch --comment=two words train.sh -x", "train.sh", ("-x",)),
        ("sbatch -J other run.sh train.sh", "run.sh", ("train.sh",)),
    ],
)
def test_the_script_in_a_line_without_quotes(line: str, script: str, arguments: tuple[str, ...]) -> None:
    assert parse_submit_line(line, "train.sh", "24.11") == (script, arguments)


def test_a_line_of_an_unknown_release_is_read_by_the_newest_rules() -> None:
    assert parse_submit_line("sbatch -p x t.sh", "t.sh", "99.99") == ("t.sh", ())
    with pytest.raises(InputError, match="not submitted by sbatch"):
        parse_submit_line("salloc -p x", "x", "")


def test_a_commands_signature_never_is_a_scripts() -> None:
    told = parts_of(COMMAND)
    assert told
    assert (told.family.startswith("command-"), told.values, told.program) == (True, (64.0,), "")
    assert command_signature("train.sh", ("--batch", '"64"'), 1, ("c",), "/home/ann/") == COMMAND
    for other in (("a/train.sh", "/home/ann"), ("train.sh", "/home/ann/a")):
        assert command_signature(other[0], ("--batch", "64"), 1, ("c",), other[1]) != COMMAND


# --- texts of sacct ---

HEADER = (
    "JobIDRaw|JobID|Cluster|User|State|Submit|Start|End|Suspended|AllocTRES|NodeList|AdminComment|SubmitLine|WorkDir|"
    "TRESUsageInTot|JobName\n"
)


def text(tmp_path: Path, *rows: str) -> str:
    path = tmp_path / "sacct.txt"
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return str(path)


def row(job: str, comment: str = "", line: str = LINE, usage: str = "", state: str = "COMPLETED") -> str:
    gres = "billing=1,gres/gpu:h100=1,gres/gpu=1"
    named = f"{job}|{job}|c|{'' if '.' in job else NAME}|{state}|1000|1000|2000|00:00:00|{gres}|g1"
    return f"{named}|{comment}|{line}|/home/ann|{usage}|train.sh"


def blob(memory_mib: int) -> str:
    node = {"gpu_utilization": {"0": 2.0}, "gpu_used_memory": {"0": memory_mib * 2**20}}
    return "JS1:" + base64.b64encode(gzip.compress(json.dumps({"nodes": {"g1": node}}).encode())).decode()


def test_a_text_of_sacct_tells_runs_and_what_was_measured(tmp_path: Path, printed: Printed) -> None:
    usage = "cpu=00:00:10,gres/gpumem=5000M,gres/gpuutil=35"
    path = text(
        *(tmp_path, row("1", blob(4000)), row("2"), row("2.batch", line="", usage=usage), row("3", "JS1:bad!")),
        row("4", state="FAILED"),
    )
    runs, rows, rejected, refused = read_past(path, str(tmp_path), 2e9, "24.11.5")
    assert [(one.job_id, one.mem_mib, one.util_high_pct, one.submit_line) for one in runs] == [
        ("1", 4000, None, LINE),
        ("2", 5000, 35.0, LINE),
        ("3", None, None, LINE),
        ("4", None, None, LINE),
    ]
    assert (rows, rejected) == (4, {})
    printed("past-jobs", refused)
    # What older releases say of GPU memory is wrong.
    runs, _, _, refused = read_past(path, str(tmp_path), 2e9, "22.05.8")
    assert [one.mem_mib for one in runs] == [4000, None, None, None]
    printed("past-jobs", refused)


def test_a_text_without_command_lines_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("JobID|User|State|Start|End|AllocTRES\n1|a|COMPLETED|1|2|\n")
    with pytest.raises(InputError, match="lacks SubmitLine or WorkDir"):
        read_past(str(path), str(tmp_path), 2e9, "")


# --- the store, and the histories of all users ---


def test_past_jobs_stay_in_the_histories_however_often_they_are_written(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    state = str(tmp_path / "state")
    ((_, one),) = found(past(user=NAME)).evidence
    for _ in range(2):
        store.write_past("c", [(NAME, one), ("nobody-of-that-name", one)])
        assert build_history(store, "c", state, Collected({}, 0)).runs == 1
    assert read_snapshot(snapshot_path(state, UID), COMMAND).evidence == (one,)
    store.write_past("c", [(NAME, one._replace(gpu_mem_peak_mib=5000))])
    assert store.past("c")[NAME] == [one._replace(gpu_mem_peak_mib=5000)]
    assert store.past("other") == {}


def test_a_run_that_csub_decided_about_is_kept_by_its_own_signature(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.write_allocations("a", [run("7", user=NAME)], 1.0)
    sampled(store, busy(900, job="7"))
    ((_, one),) = found(past(user=NAME)).evidence
    store.write_past("c", [(NAME, one)])
    collected = Collected({(NAME, "7"): (UID, decision("7"))}, 0)
    assert build_history(store, "c", str(tmp_path / "state"), collected).runs == 1
    assert [item.signature for item in read_snapshot(snapshot_path(str(tmp_path / "state"), UID), "sig").evidence] == [
        "sig"
    ]
