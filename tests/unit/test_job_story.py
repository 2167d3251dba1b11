# SPDX-License-Identifier: Apache-2.0
"""One job's story: from a store and Slurm's own words to text and JSON."""

import json
from typing import Any

import pytest

from slurm_colloc.core.chart_model import JobPiece, JobTimeline
from slurm_colloc.core.model import LATE, Decision, Evidence, Gres, because
from slurm_colloc.core.usage_model import JobUsage
from slurm_colloc.core.wording import sentence
from slurm_colloc.facts.judgement import never_used
from slurm_colloc.report.job import Advice, JobStory, RunStory, as_json, as_text, as_ticket
from slurm_colloc.report.layout import Terminal
from slurm_colloc.report.text import sparkline
from slurm_colloc.slurm.jobs import Accounted
from tests.unit.golden import Printed
from tests.unit.hostile import HOSTILE
from tests.unit.made import decision, usage

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


def test_a_gap_is_shown_as_a_gap(printed: Printed) -> None:
    pieces = (JobPiece(0.0, 0.0, 0), GAP, JobPiece(1.0, 0.5, 3000), JobPiece(100.0, 50.0, 6000))
    text = as_text(told(usage(), timeline=JobTimeline(0.0, 3600.0, pieces, 1, 0, 0)))
    assert "             |▁ ▂█| 0 to 100 %\n" in text
    assert "             |▁ ▂▄| 0 to 100 %\n" in text
    assert "             |▁ ▄█| 0 to 6000 MiB, the peak\n" in text
    printed("job", text)


def test_a_ticket_is_of_the_last_run_and_of_what_came_after(printed: Printed) -> None:
    bound = decision(arm=LATE, given="mps:10", mode="mps", reasons=(because("late-bound", asked="gpu:1", runs=3),))
    first = RunStory(usage(job_id="1_2", state="REQUEUED", gres="mps:10", allocated_gpu_hours=0.1))
    last = RunStory(usage(job_id="1_2"), ROW._replace(job_id="1_2", billing="8"))
    again = "job 1_2 ran out of GPU memory on mps:10; it begins again on gpu:1"
    printed("why", as_ticket(JobStory([first, last], bound, again=again)))
    assert as_ticket(JobStory([], bound, again=again)) == as_text(JobStory([], bound, again=again))


def test_of_a_job_that_was_suspended_all_the_time_nothing_is_said_to_be_unused(printed: Printed) -> None:
    none: dict[str, float] = dict.fromkeys(
        (f"{by}_{what}_gpu_hours" for by in ("util", "sm") for what in ("measured", "used")), 0.0
    )
    still = usage(allocated_gpu_hours=0.0, **none)
    assert not never_used(still)
    pieces = (JobPiece(40.0, 20.0, 3000),)
    text = as_text(JobStory([RunStory(still, timeline=JobTimeline(0.0, 3600.0, pieces, 1, 0, 0))]))
    printed("job", text)


def test_a_suspension_is_said_and_took_is_without_it(printed: Printed) -> None:
    lines = as_text(told(usage(suspended_s=600), slurm=ROW._replace(suspended_s=1200.0))).splitlines()
    printed("job", *(line for line in lines if line.startswith(("  ran ", "  time ", "  cores "))))
    stored = as_text(told(usage(suspended_s=600)))
    printed("job", *(line for line in stored.splitlines() if line.startswith("  ran ")))
    assert "suspended" not in as_text(told(usage(suspended_s=0), slurm=ROW))


def test_the_cluster_is_named_where_there_are_two() -> None:
    both = JobStory([RunStory(usage()), RunStory(usage(cluster="d"))])
    assert ["' of ann on c," in as_text(both), "' of ann on d," in as_text(both)] == [True, True]
    assert " on c," not in as_text(told(usage()))


@pytest.mark.parametrize("allocated", [0.25, None])
def test_a_drawn_share_is_never_called_not_measured(allocated: float | None, printed: Printed) -> None:
    known = {} if allocated is None else {"sm_measured_gpu_hours": 0.25, "sm_used_gpu_hours": 0.25}
    unknown = dict.fromkeys((f"{by}_{what}_gpu_hours" for by in ("util", "sm") for what in ("measured", "used")), None)
    share = usage(gres="shard:1", allocated_gpu_hours=allocated, **(unknown | known | {"sm_beyond_gpu_hours": 0.1}))
    line = JobTimeline(0.0, 3600.0, (JobPiece(40.0, 80.0, 3000),) * 3, 1, 0, 0)
    told = as_text(JobStory([RunStory(share, timeline=line)])).splitlines()
    at = next(number for number, text in enumerate(told) if text.startswith("  SM  "))
    # Of GPU_UTIL, which says nothing of a share, there is neither a figure nor a curve.
    printed("job", *told[at - 1 : at + 2], case=f"{allocated}")


_SIGNS = [(0.0, "▁"), (0.001, "▂"), (16.0, "▂"), (50.0, "▄"), (93.0, "▇"), (100.0, "█"), (150.0, "█"), (None, " ")]


@pytest.mark.parametrize(("value", "sign"), _SIGNS)
def test_a_bar_is_the_nearest_and_little_looks_unlike_nothing(value: float | None, sign: str) -> None:
    assert sparkline([value], 100.0) == sign


@pytest.mark.parametrize("width", [40, 60, 80])
def test_text_folds_at_the_terminals_width(width: int) -> None:
    reasons = (because("sm-unknown"), because("whole-node-memory"), because("history-error", error="no size"))
    lines = as_text(told(usage(job_name="n" * 120), decision(reasons=reasons)), Terminal(width)).splitlines()
    assert max(map(len, lines)) <= width
    at = next(number for number, line in enumerate(lines) if line.startswith("  csub gave  "))
    assert lines[at + 1].startswith(" " * 13)
    assert " ".join(line.strip() for line in lines[at:-1]).endswith(sentence(reasons))


def test_json_has_no_number_that_json_lacks() -> None:
    shown = json.loads(as_json(told(usage(), slurm=ROW._replace(time_limit_min=float("inf")))))
    assert shown["stories"][0]["slurm"]["time_limit_min"] == "UNLIMITED"


def test_a_run_that_the_window_cuts_began_before_it() -> None:
    run = usage()
    assert "  ran        since before " in as_text(JobStory([RunStory(run)], since_s=run.start_s))
    assert "since before" not in as_text(JobStory([RunStory(run)], since_s=run.start_s - 1))


@pytest.mark.parametrize("text", [text for text in HOSTILE if text])
def test_hostile_story(text: str) -> None:
    fields = ("user", "job_name", "signature", "asked", "given", "mode", "rung")
    what = decision(**dict.fromkeys(fields, text), reasons=(because("history-error", error=text), because(text)))
    run = usage(job_name=text, user=text, partition=text, state=text, gres=text, job_id=text)
    words: dict[str, Any] = dict.fromkeys(("user", "job_name", "partition", "state", "exit_code", "node_list"), text)
    row = ROW._replace(**words)
    advice = Advice(text, text, text)
    story = JobStory([RunStory(run, row, advice=advice)], what, -1.0, again=text)
    shown = as_text(story)
    assert [character for character in shown if not character.isprintable() and character != "\n"] == []
    plain = JobStory([RunStory(usage(), ROW, advice=Advice("a", "b", "c"))], decision(), -1.0, again="x")
    assert shown.count("\n") == as_text(plain).count("\n")
    assert json.loads(as_json(story))["decision"]["given"] == text


def test_a_verdict_from_few_samples_says_how_few(printed: Printed) -> None:
    little = usage(util_used_gpu_hours=0.0, sm_used_gpu_hours=0.0, coverage_pct=10.0)
    first = as_text(JobStory([RunStory(little)])).splitlines()[0]
    more = as_text(JobStory([RunStory(little._replace(coverage_pct=60.0))])).splitlines()[0]
    printed("job", first, more)
