# SPDX-License-Identifier: Apache-2.0
"""Six awkward rows by three conventions; what job_defense_shield 1.3.4 prints of them was measured: 245 and 240."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.made import near
from tests.unit.programs import colloc
from tests.unit.stored import at

FIELDS = "JobIDRaw|JobID|Cluster|User|State|Submit|Start|End|Suspended|ElapsedRaw|AllocTRES|JobName"


def row(job: str, gres: str, name: str = "train", start: str = "2026-11-20T00:00", hours: int = 1) -> str:
    start_s = at(start)
    times = "|".join(map(str, (start_s, start_s, start_s + 3600 * hours, "00:00:00", 3600 * hours)))
    return f"{job}|{job}|c|ann|COMPLETED|{times}|cpu=4,mem=8G,{gres}|{name}"


ROWS = (
    row("100", "gres/gpu:a100=2"),
    row("101", "gres/gpu:1g.10gb=1,gres/gpu=1"),
    row("102", "gres/shard=2"),
    row("103", "gres/gpu:a100=1,gres/gpu:h100=2,gres/gpu=3", "pipe|in|name"),
    row("104", "gres/gpu=1", start="2026-11-10T23:00", hours=240),
    row("105", "gres/gpu=1"),
)


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "sacct.txt"
    path.write_text("".join(f"{one}\n" for one in (FIELDS, *ROWS)))
    return str(path)


def reported(capsys: pytest.CaptureFixture[str], text: str, until_day: int, *argv: str) -> dict[str, Any]:
    window = ("--since", "2026-11-19T00:00:00+00:00", "--until", f"2026-11-{until_day}T00:00:00+00:00")
    assert colloc("report", *window, "--sacct-file", text, "--format", "json", *argv) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


@pytest.mark.parametrize(
    ("convention", "until_day", "gpu_hours"),
    [
        ("colloc", 21, 53 + 1 / 7),
        ("colloc", 20, 24),
        # A slice is a GPU, a share is none, and the window cuts.
        ("sreport", 21, 54),
        ("sreport", 20, 24),
        # Nothing is cut, and typed entries without a total are not seen.
        ("jds", 21, 245),
        ("jds", 20, 240),
    ],
)
def test_six_rows_by_each_convention(
    convention: str, until_day: int, gpu_hours: float, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = reported(capsys, text, until_day, "--convention", convention)
    assert shown["convention"] == convention
    assert shown["total"]["allocated_gpu_hours"] == near(gpu_hours)


@pytest.mark.parametrize(("convention", "gpu_hours"), [("colloc", 1.5), ("sreport", 2), ("jds", 3)])
def test_suspended_time_counts_for_sreport_alone(
    convention: str, gpu_hours: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sacct.txt"
    suspended = row("1", "gres/gpu=1", start="2026-11-18T22:00", hours=4).replace("00:00:00|14400", "01:00:00|10800")
    path.write_text(f"{FIELDS}\n{suspended}\n")
    shown = reported(capsys, str(path), 20, "--convention", convention)
    assert shown["total"]["allocated_gpu_hours"] == near(gpu_hours)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--convention", "xdmod"), "--convention 'xdmod' is not one of colloc, sreport, jds"),
        (("--convention", "jds", "--equivalents", "sms"), "--equivalents does nothing"),
    ],
)
def test_what_a_convention_cannot_be(
    argv: tuple[str, ...], said: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert colloc("report", "--sacct-file", text, *argv) == 2
    assert said in capsys.readouterr().err
    assert colloc("report", "--convention", "jds") == 2
    assert "--convention is for --sacct-file" in capsys.readouterr().err


def test_the_table_says_by_which_convention(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    window = ("--since", "2026-11-19T00:00:00+00:00", "--until", "2026-11-21T00:00:00+00:00")
    for convention, name in (("sreport", "sreport"), ("jds", "job_defense_shield")):
        assert colloc("report", *window, "--sacct-file", text, "--convention", convention) == 0
        said = capsys.readouterr().out
        assert f"as {name} counts" in said
        assert "whole-GPU equivalents" not in said
