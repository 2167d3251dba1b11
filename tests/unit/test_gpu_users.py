# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from tests.gpu.proof_report import add
from tests.gpu.users import report


def row(mode: str, *rates: float) -> dict[str, object]:
    trainings = [{"user": user, "size": "small", "steps_per_s": rate} for user, rate in enumerate(rates)]
    return {"round": 0, "set": "three", "mode": mode, "alone": {"small": 100.0}, "trainings": trainings}


def test_what_all_do_together_is_told_in_times_of_one_alone(tmp_path: Path) -> None:
    add(tmp_path / "speeds.jsonl", [row("one", 90, 100, 80), row("one", 60, 50, 40), row("each", 30, 30, 30)])
    assert report(tmp_path).splitlines()[2:] == [
        "| three | one | 2.10 (1.50 to 2.70) | 0.40 | 2 |",
        "| three | each | 0.90 (0.90 to 0.90) | 0.30 | 1 |",
    ]
