# SPDX-License-Identifier: Apache-2.0
"""The line in AdminComment: short, of what is known only, and never in the place of somebody else's."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.cli.colloc import comment as command
from slurm_colloc.measured import JobUsage
from slurm_colloc.report.comment import comment_line, may_write
from slurm_colloc.slurm.jobs import Commented, comment_commands, comments_question, parse_comments
from tests.unit.made import site, usage
from tests.unit.programs import colloc

LINE = (
    "colloc=1 gpu_hours=1.000000 util_pct=50.0 sm_pct=25.0 gpu_mem_mib=3000 empty_gpu_hours=0.000000 "
    "energy_j=3600000 coverage_pct=100"
)


def test_the_line_says_what_is_known_and_no_more() -> None:
    assert comment_line(usage()) == LINE
    known = usage(util_used_gpu_hours=None, gpu_mem_peak_mib=None, energy_j=None, held_idle_gpu_hours=None)
    assert comment_line(known) == "colloc=1 gpu_hours=1.000000 sm_pct=25.0 coverage_pct=100"
    assert comment_line(usage(methods=())) == ""


LARGE = st.floats(0, 1e9)


@given(LARGE, LARGE, LARGE, st.integers(0, 10**9))
def test_the_line_is_short_and_one_that_sacctmgr_takes(hours: float, used: float, energy_j: float, mib: int) -> None:
    run: JobUsage = usage(
        allocated_gpu_hours=hours, sm_used_gpu_hours=used, energy_j=energy_j, gpu_mem_peak_mib=mib, job_name='x" \n;'
    )
    line = comment_line(run)
    assert len(line) <= 200
    assert comment_commands({"4711_2": line}) == f'modify job where jobid=4711_2 set AdminComment="{line}"\n'


@pytest.mark.parametrize(
    ("job", "text"), [("1 or jobid=2", "x"), ("1", 'x" where'), ("1", "x\n"), ("1+0", "x"), ("", "x")]
)
def test_nothing_else_reaches_sacctmgr(job: str, text: str) -> None:
    with pytest.raises(AssertionError):
        comment_commands({job: text})


@pytest.mark.parametrize(
    ("there", "written"),
    [
        ("", True),
        ("colloc=1 gpu_hours=0.5000", True),
        (LINE, False),
        ("JS1:H4sIA", False),
        ("checked by carol", False),
        (" ", False),
        ("JS1:None colloc=1", False),
    ],
)
def test_only_ones_own_earlier_line_is_replaced(there: str, written: bool) -> None:
    assert may_write(there, LINE) is written


def test_what_sacct_says_of_comments() -> None:
    assert "1,2" in comments_question(["1", "2"])
    text = (
        "1|100|COMPLETED|a|b=c\n2|200|CANCELLED by 0|\n3|Unknown|PENDING|\n4|300|RUNNING|x\n5|400|FAILED|two\nlines\n"
    )
    assert parse_comments(text) == {
        "1": Commented(100, True, "a|b=c"),
        "2": Commented(200, True, ""),
        "4": Commented(300, False, "x"),
        "5": Commented(400, True, "two"),
    }


def test_runs_that_are_not_over_or_not_whole_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "now", lambda: 10_000.0)

    def lines(**fields: Any) -> list[str]:
        run = usage(start_s=100.0, **fields)
        return [line for _, line in command._lines([run], "c", 50.0)]

    assert lines() == [LINE]
    assert lines(cluster="other") == []
    assert lines(job_id="1_*; x", job_id_raw="1") == []
    assert lines(state="RUNNING") == []
    assert lines(end_s=9_500.0) == []  # others may be writing theirs
    assert list(command._lines([usage(start_s=50.0)], "c", 50.0)) == []  # cut by the window


def test_a_call_is_bounded_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [usage(job_id=str(job), job_id_raw=str(job), start_s=100.0) for job in range(1, 121)]
    slurm = {str(job): "" for job in range(1, 121)} | {"7": "JS1:abc"}
    asked: list[int] = []

    class Client:
        def __init__(self, *_: float) -> None: ...

        def comments(self, ids: list[str]) -> dict[str, Commented]:
            asked.append(len(ids))
            return {job: Commented(100, True, slurm[job]) for job in ids}

        def write_comments(self, comments: dict[str, str]) -> None:
            slurm.update(comments)

    monkeypatch.setattr(command, "CliClient", Client)
    monkeypatch.setattr(command, "site", lambda: site()._replace(cluster="c"))
    monkeypatch.setattr(command, "seen_store", lambda folder, config: None)
    monkeypatch.setattr(command, "job_usage", lambda *words: runs)
    monkeypatch.setattr(command, "now", lambda: 10_000.0)
    since = ("--since", "1970-01-01T00:00:50Z")
    assert colloc("comment", "--limit", "70", *since) == 0
    assert sum(text == LINE for text in slurm.values()) == 70
    assert "70 written" in (said := capsys.readouterr().err)
    assert "49 left for the next call" in said
    assert colloc("comment", *since) == 0
    assert "49 written" in capsys.readouterr().err
    assert slurm.pop("7") == "JS1:abc"
    assert set(slurm.values()) == {LINE}
    assert max(asked) <= 50
