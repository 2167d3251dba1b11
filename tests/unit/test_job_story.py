# SPDX-License-Identifier: Apache-2.0
"""One job's story: from a store and Slurm's own words to text and JSON."""

import json
from typing import Any

import pytest

from slurm_colloc.charted import JobPiece, JobTimeline
from slurm_colloc.measured import JobUsage
from slurm_colloc.model import Decision, Evidence, Gres, because
from slurm_colloc.report.job import Advice, JobStory, RunStory, as_json, as_text
from slurm_colloc.report.layout import Terminal
from slurm_colloc.report.sparkline import sparkline
from slurm_colloc.report.usage import never_used
from slurm_colloc.slurm.jobs import Accounted
from slurm_colloc.wording import sentence
from tests.unit.hostile import HOSTILE
from tests.unit.made import decision, evidence, usage

GAP = JobPiece(None, None, None)
ROW = Accounted(
    job_id="1",
    raw_id="1",
    user="ann",
    account="lab",
    partition="gpu",
    qos="normal",
    state="COMPLETED",
    exit_code="0:0",
    submit_s=-60,
    start_s=0,
    end_s=3600,
    time_limit_min=120.0,
    cpus=8,
    mem_mib=16000,
    asked=(Gres("gpu", "", 1),),
    given=(Gres("gpu", "h100", 1),),
    node_list="g1",
    host_mem_peak_mib=4000,
    cpu_time_s=7200.0,
    reason="",
    work_dir="/home/ann",
    submit_line="sbatch train.sh",
    job_name="train",
)


def told(run: JobUsage | None, what: Decision | None = None, kept: Evidence | None = None, **fields: Any) -> JobStory:
    return JobStory([RunStory(run, evidence=kept, **fields)], what, -1.0)


def test_story() -> None:
    lines = as_text(told(usage(), decision())).splitlines()
    assert lines[0] == "job 1 'train' of ann, COMPLETED: used 25 % of its GPU (SM activity) in 1 h"
    assert lines[2:7] == [
        "  given      gpu:h100:1",
        "  allocated  1.0000 GPU-h in whole-GPU equivalents",
        "  GPU_UTIL   0.5000 of 1.0000 covered GPU-h, 50.0 %",
        "  SM active  0.2500 of 1.0000 covered GPU-h, 25.0 %",
        "  memory     3000 MiB at peak",
    ]
    assert lines[7] == "  coverage   100 % of its device time (measured)"
    assert lines[8:12] == [
        "  idle       not at its end",
        "  empty      0.0000 GPU-h (sampled, and no process of the job on its GPU)",
        "  energy     1.0000 kWh",
        "  host       2.0 cores used, 8000 MiB at peak, 100 MiB read, 10 MiB written",
    ]
    assert lines[13] == "  csub       gpu:1 (mig), footprint: hint: the job asks for no GPU"


def test_what_slurm_says_stands_beside_what_was_measured() -> None:
    text = as_text(told(usage(), slurm=ROW))
    assert "  time       waited 1 min, took 1 h, limit 2 h, exit code 0:0\n" in text
    assert "  cores      2.00 of 8 used on average (sacct)\n" in text
    assert "  host mem   4000 of 16000 MiB, the largest task's peak (sacct)\n" in text
    assert "  asked      gpu:1\n" in text
    assert " in partition gpu on g1\n" in text


def test_a_gap_is_shown_as_a_gap() -> None:
    pieces = (JobPiece(0.0, 0.0, 0), GAP, JobPiece(1.0, 0.5, 3000), JobPiece(100.0, 50.0, 6000))
    text = as_text(told(usage(), timeline=JobTimeline(0.0, 3600.0, pieces, 1, 0, 0)))
    assert "             |▁ ▂█| 0 to 100 %\n" in text
    assert "             |▁ ▂▅| 0 to 100 %\n" in text
    assert "             |▁ ▅█| 0 to 6000 MiB\n" in text
    assert "             from start to end, 1 h; blank where nothing was sampled\n" in text
    plain = as_text(told(usage(), timeline=JobTimeline(0.0, 3600.0, pieces, 1, 0, 0)), Terminal(encoding="latin-1"))
    assert "             |_ .@| 0 to 100 %\n" in plain
    assert plain.isascii()


def test_a_job_that_used_nothing_is_told_once_what_was_idle() -> None:
    span_s = 20.7 * 3600
    nothing = usage(end_s=span_s, util_used_gpu_hours=0.0, sm_used_gpu_hours=0.0, held_idle_gpu_hours=0.08,
                    idle_tail_s=span_s - 1)  # fmt: skip
    text = as_text(JobStory([RunStory(nothing)]))
    assert "  idle       in all samples: the job did not use its GPU\n" in text
    assert "for the last" not in text
    assert text.startswith("job 1 'train' of ann, COMPLETED: did not use its GPU in 21 h\n")
    late = as_text(JobStory([RunStory(nothing._replace(sm_used_gpu_hours=0.1))]))
    assert "  idle       for the last 21 h sampled\n" in late


def test_of_a_job_that_was_suspended_all_the_time_nothing_is_said_to_be_unused() -> None:
    none: dict[str, float] = dict.fromkeys(
        (f"{by}_{what}_gpu_hours" for by in ("util", "sm") for what in ("measured", "used")), 0.0
    )
    still = usage(allocated_gpu_hours=0.0, **none)
    assert not never_used(still)
    pieces = (JobPiece(40.0, 20.0, 3000),)
    text = as_text(JobStory([RunStory(still, timeline=JobTimeline(0.0, 3600.0, pieces, 1, 0, 0))]))
    assert "did not use" not in text
    assert "COMPLETED: what it used of its GPU in 1 h is not known\n" in text
    assert "not measured" not in text


@pytest.mark.parametrize("allocated", [0.25, None])
def test_a_drawn_share_is_never_called_not_measured(allocated: float | None) -> None:
    known = {} if allocated is None else {"sm_measured_gpu_hours": 0.25, "sm_used_gpu_hours": 0.25}
    unknown = dict.fromkeys((f"{by}_{what}_gpu_hours" for by in ("util", "sm") for what in ("measured", "used")), None)
    share = usage(gres="shard:1", allocated_gpu_hours=allocated, **(unknown | known | {"sm_beyond_gpu_hours": 0.1}))
    line = JobTimeline(0.0, 3600.0, (JobPiece(40.0, 80.0, 3000),) * 3, 1, 0, 0)
    told = as_text(JobStory([RunStory(share, timeline=line)])).splitlines()
    at = next(number for number, text in enumerate(told) if text.startswith("  SM active"))
    assert "not measured" not in told[at]
    assert told[at + 1].endswith("0 to 100 % of the whole GPU")
    assert ("0.1000 GPU-h beyond it" in told[at]) == (allocated is not None)
    # Of GPU_UTIL, which says nothing of a share, there is neither a figure nor a curve.
    assert told[at - 1] == "  GPU_UTIL   not measured"


def test_neighbours_are_a_number_and_unused_gpus_are_said() -> None:
    seen = JobTimeline(0.0, 3600.0, (), 4, 3, 2, (80.0, 0.0, 0.0, 0.0))
    text = as_text(told(usage(shared_hours=0.5), timeline=seen))
    assert "  neighbours at most 2 other jobs at a time on its GPU; 0.5 device hours shared\n" in text
    assert "  GPUs       1 of 4 used; active 80, 0, 0, 0 %" in text
    assert "balance 0.25" in text
    assert "COMPLETED: used 25 % of its GPUs, on 1 of 4 (SM activity) in 1 h\n" in text
    assert "|" not in text
    # Of one GPU the other lines say it, and where nobody saw one of several its use is not known.
    assert "  GPUs  " not in as_text(told(usage(), timeline=seen._replace(devices=1, devices_unused=0)))
    unseen = as_text(told(usage(), timeline=seen._replace(devices_unused=1, active_pct=(80.0, 0.0, None, None))))
    assert "used;" not in unseen
    assert "on 1 of its 4 no activity in any sample" in unseen


@pytest.mark.parametrize(("value", "sign"), [(0.0, "▁"), (0.001, "▂"), (100.0, "█"), (150.0, "█"), (None, " ")])
def test_little_looks_unlike_nothing(value: float | None, sign: str) -> None:
    assert sparkline([value], 100.0) == sign


def test_advice_ends_with_a_line_to_copy() -> None:
    advice = Advice("gpu:1g.10gb:1 (mig)", "cd /home/ann && csub --gpu-footprint=mem=4G,sm=9 train.sh", "submitted so")
    lines = as_text(told(usage(), advice=advice), Terminal(60)).splitlines()
    assert "  would fit  gpu:1g.10gb:1 (mig)" in lines
    assert lines[-2] == "             $ cd /home/ann && csub --gpu-footprint=mem=4G,sm=9 train.sh"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_text_folds_at_the_terminals_width(width: int) -> None:
    reasons = (because("sm-unknown"), because("whole-node-memory"), because("history-error", error="no size"))
    lines = as_text(told(usage(job_name="n" * 120), decision(reasons=reasons)), Terminal(width)).splitlines()
    assert max(map(len, lines)) <= width
    at = next(number for number, line in enumerate(lines) if line.startswith("  csub  "))
    assert lines[at + 1].startswith(" " * 13)
    assert " ".join(line.strip() for line in lines[at:-1]).endswith(sentence(reasons))


@pytest.mark.parametrize(
    ("row", "lines"),
    [
        (ROW._replace(state="PENDING", start_s=None, end_s=None, given=(), node_list="", reason="Priority"),
         ["  ran        not started: Priority", "  given      nothing yet"]),
        (ROW._replace(given=(), asked=()), ["  asked      no GPU", "  given      no GPU"]),
        (ROW, ["  used       not known here: samples of its nodes, where there are any, come with 'colloc ingest'"]),
    ],
)  # fmt: skip
def test_a_job_that_only_slurm_knows_has_a_story(row: Accounted, lines: list[str]) -> None:
    text = as_text(told(None, slurm=row))
    assert text.startswith("job 1 'train' of ann, ")
    assert [line for line in lines if line not in text.splitlines()] == []
    shown = json.loads(as_json(told(None, slurm=row)))
    assert (shown["schema"], shown["runs"]) == (2, [])
    assert shown["stories"][0]["slurm"]["asked"] == [str(gres) for gres in row.asked]


def test_a_running_job_is_told_so_far() -> None:
    assert " so far in partition gpu" in as_text(told(usage(state="RUNNING")))
    row = ROW._replace(state="RUNNING", end_s=None)
    text = as_text(told(None, slurm=row))
    assert " to now so far in partition gpu on g1\n" in text
    assert "took" not in text


def test_of_a_long_array_the_last_runs_are_shown() -> None:
    story = JobStory([RunStory(usage(job_id="60_99"))], not_shown=99)
    assert as_text(story).startswith("99 earlier runs not shown; name a task, such as 4711_7, to see it\n")
    assert json.loads(as_json(story))["not_shown"] == 99


def test_json_has_no_number_that_json_lacks() -> None:
    shown = json.loads(as_json(told(usage(), slurm=ROW._replace(time_limit_min=float("inf")))))
    assert shown["stories"][0]["slurm"]["time_limit_min"] == "UNLIMITED"


def test_a_run_that_the_window_cuts_began_before_it() -> None:
    run = usage()
    assert "  ran        since before " in as_text(JobStory([RunStory(run)], since_s=run.start_s))
    assert "since before" not in as_text(JobStory([RunStory(run)], since_s=run.start_s - 1))


def test_story_of_an_unknown_run() -> None:
    blank = usage(
        allocated_gpu_hours=None,
        util_used_gpu_hours=None,
        sm_used_gpu_hours=None,
        gpu_mem_peak_mib=None,
        coverage_pct=None,
        held_idle_gpu_hours=None,
        idle_tail_s=None,
        energy_j=None,
        cpu_cores_used=None,
        host_mem_peak_mib=None,
        read_mib=None,
        written_mib=None,
        methods=(),
    )
    text = as_text(told(blank))
    assert "idle       not known at its end" in text
    assert "empty      not known" in text
    assert "energy     not known\n  host       not known" in text
    assert "allocated  not known" in text
    assert text.count("not measured") == 2
    assert "memory     not known" in text
    assert "coverage   not recorded (no samples)" in text
    assert "csub" not in text
    assert json.loads(as_json(told(blank)))["runs"][0]["gpu_mem_peak_mib"] is None


@pytest.mark.parametrize("text", [text for text in HOSTILE if text])
def test_hostile_story(text: str) -> None:
    fields = ("user", "job_name", "signature", "asked", "given", "mode", "rung")
    what = decision(**dict.fromkeys(fields, text), reasons=(because("history-error", error=text), because(text)))
    run = usage(job_name=text, user=text, partition=text, state=text, gres=text, job_id=text)
    words: dict[str, Any] = dict.fromkeys(("user", "job_name", "partition", "state", "exit_code", "node_list"), text)
    row = ROW._replace(**words)
    advice = Advice(text, text, text)
    story = JobStory([RunStory(run, row, advice=advice)], what, -1.0, again=text, first=text)
    shown = as_text(story)
    assert [character for character in shown if not character.isprintable() and character != "\n"] == []
    plain = JobStory([RunStory(usage(), ROW, advice=Advice("a", "b", "c"))], decision(), -1.0, again="x", first="y")
    assert shown.count("\n") == as_text(plain).count("\n")
    assert json.loads(as_json(story))["decision"]["given"] == text


def test_where_samples_are_not_at_hand_the_evidence_speaks() -> None:
    blank = usage(util_used_gpu_hours=None, sm_used_gpu_hours=None, gpu_mem_peak_mib=None, methods=())
    text = as_text(told(blank, decision(), evidence()))
    assert "SM active  20.0 % of a whole GPU" in text
    assert "memory     8000 MiB at peak" in text
    assert "100 s of 3600 s, 10 samples (evidence kept for csub)" in text
    assert "not measured" not in text
    assert "above the 9000 MiB" in as_text(told(blank, decision(), evidence(peak_mib=9500)))
