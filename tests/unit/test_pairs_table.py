# SPDX-License-Identifier: Apache-2.0
"""csub on the table of pairs of submissions (tests/recorded/job-pairs), which tests/pairs.py reads as it is meant."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pairs import HALVES, TABLE, answer, figures, load, materialise, pair_of

PAIRS = {half: load(TABLE / half) for half in HALVES}
ROW_SAME: dict[str, Any] = {
    "id": "a",
    "class": "made-up",
    "like": "nobody/nothing",
    "verdict": "unchanged",
    "why": "A log.",
    "first": {
        "argv": ["--gres=gpu:1", "HOME_OF_JOB/p/job.sh"],
        "files": {
            "p/job.sh": "#!/bin/bash\ncd HOME_OF_JOB/p\npython train.py --batch 8\n",
            "p/train.py": "B = 1\n",
            "p/w.pt": {"size": 7},
            "p/old": "",
        },
        "folder": "p",
    },
    "second": {"files": {"p/slurm-1.out": "ok\n", "p/old": None}, "env": {"A": "HOME_OF_JOB/x"}},
}
ROW_BIGGER = {**ROW_SAME, "verdict": "bigger", "second": {"argv": ["--gres=gpu:2", "--wrap=python other.py"]}}


def test_a_pair_is_laid_out_one_over_the_other(tmp_path: Path) -> None:
    pair = pair_of(ROW_SAME)
    argv, env = materialise(pair, "first", tmp_path)
    assert argv == ["--gres=gpu:1", f"{tmp_path}/p/job.sh"]
    assert env["PWD"] == f"{tmp_path}/p"
    assert f"cd {tmp_path}/p\n" in (tmp_path / "p/job.sh").read_text()
    assert (tmp_path / "p/w.pt").stat().st_size == 7
    before = (tmp_path / "p/train.py").stat()
    _, env = materialise(pair, "second", tmp_path)
    assert env["A"] == f"{tmp_path}/x"
    assert {path.name for path in (tmp_path / "p").iterdir()} == {"job.sh", "train.py", "w.pt", "slurm-1.out"}
    after = (tmp_path / "p/train.py").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("half", HALVES)
def test_bigger_jobs_are_not_taken_for_the_same(half: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one of a hundred bigger ones is; and at most a fifth of the unchanged are measured again."""
    monkeypatch.setattr("slurm_colloc.history.files._MOST_S", 60.0)  # a busy machine has nothing to do with it
    found = Counter((pair.verdict, answer(pair)) for pair in PAIRS[half] if pair.verdict != "unsure")
    of = {verdict: sum(count for (one, _), count in found.items() if one == verdict) for verdict, _ in found}
    assert (found["bigger", "same"] + found["bigger", "near"]) / of["bigger"] <= 0.01
    assert found["unchanged", "same"] / of["unchanged"] >= {"open": 0.90, "held-out": 0.83}[half]


def test_csub_is_asked_and_counted() -> None:
    pairs = [pair_of(ROW_SAME), pair_of(ROW_BIGGER)]
    assert [answer(pair) for pair in pairs] == ["same", "other"]
    lines = [line.split() for line in figures(pairs, by_class=True)]
    assert ["made-up", "1", "0", "0", "0", "1", "1", "1", "0", "0", "0"] in lines
    assert not any("made-up" in line for line in figures(pairs, by_class=False))
