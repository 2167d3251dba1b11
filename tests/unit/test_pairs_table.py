# SPDX-License-Identifier: Apache-2.0
"""The table of pairs of submissions (tests/recorded/job-pairs) is whole, and tests/pairs.py reads it as it is meant."""

import ast
import configparser
import json
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.pairs import HALVES, TABLE, Pair, answer, figures, load, materialise, pair_of

FILE = {"type": ["string", "object", "null"], "required": ["size"], "properties": {"size": {"type": "integer"}}}
SUBMISSION = {
    "type": "object",
    "properties": {
        "argv": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "files": {"type": "object", "propertyNames": {"not": {"pattern": r"^/|(^|/)\.\.(/|$)"}}},
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
        "folder": {"type": "string"},
    },
    "additionalProperties": False,
}
SUBMISSION["properties"]["files"]["additionalProperties"] = FILE  # type: ignore[index]
ROW = {
    "type": "object",
    "properties": {
        **{name: {"type": "string", "minLength": 1} for name in ("id", "class", "like")},
        "why": {"type": "string", "pattern": r"^\S.*\.$"},
        "verdict": {"enum": ["unchanged", "bigger", "unsure"]},
        "first": {**SUBMISSION, "required": ["argv", "files"]},
        "second": {**SUBMISSION, "minProperties": 1},
    },
    "required": ["id", "class", "like", "verdict", "why", "first", "second"],
    "additionalProperties": False,
}
PAIRS = {half: load(TABLE / half) for half in HALVES}
ALL = [pair for half in HALVES for pair in PAIRS[half]]


def _ini(text: str) -> None:
    configparser.ConfigParser().read_string(text)


PARSERS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys((".json", ".ipynb"), json.loads),
    **dict.fromkeys((".yaml", ".yml"), yaml.safe_load),
    ".ini": _ini,
    ".py": ast.parse,
    ".toml": tomllib.loads,
}


def texts(pair: Pair) -> dict[tuple[str, str], None]:
    files = [*pair.first.files.items(), *pair.second.files.items()]
    return {(path, text): None for path, text in files if isinstance(text, str)}


@pytest.mark.parametrize("half", HALVES)
def test_each_row_is_whole_and_in_the_file_of_its_class(half: str) -> None:
    valid = jsonschema.Draft202012Validator(ROW)
    for path in sorted((TABLE / half).glob("*.json")):
        rows: list[dict[str, Any]] = json.loads(path.read_text())
        assert [f"{row['id']}: {error.message}" for row in rows for error in valid.iter_errors(row)] == []
        assert {row["class"] for row in rows} == {path.stem}


def test_there_are_enough_of_each() -> None:
    verdicts = Counter(pair.verdict for pair in ALL)
    assert verdicts["unchanged"] >= 80
    assert verdicts["bigger"] >= 100
    assert len({pair.kind for pair in ALL if pair.verdict != "unsure"}) >= 15
    assert len({pair.id for pair in ALL}) == len(ALL)


def test_both_halves_have_as_many_of_each_class_and_verdict() -> None:
    ours, theirs = (Counter((pair.kind, pair.verdict) for pair in PAIRS[half]) for half in HALVES)
    assert {key: (ours[key], theirs[key]) for key in ours | theirs if abs(ours[key] - theirs[key]) > 1} == {}


def test_no_pair_is_of_two_equal_submissions() -> None:
    assert [pair.id for pair in ALL if pair.first == pair.second] == []


def test_the_script_of_each_submission_is_there_unless_it_is_wrapped() -> None:
    for pair in ALL:
        for one in (pair.first, pair.second):
            words = {f"{one.folder}/{word}".lstrip("/") for word in one.argv}
            words |= {word.removeprefix("HOME_OF_JOB/") for word in one.argv}
            assert words & set(one.files) or any(word.startswith("--wrap=") for word in one.argv), pair.id


def test_files_are_what_their_endings_say(tmp_path: Path) -> None:
    found = [one for pair in ALL for one in texts(pair)]
    for path, text in dict.fromkeys(found):
        parse = PARSERS.get(Path(path).suffix)
        if parse is not None:
            parse(text)
    scripts = dict.fromkeys(text for path, text in found if path.endswith((".sh", ".sbatch", ".slurm")))
    assert len(scripts) > 100
    joined = tmp_path / "all.sh"
    joined.write_text("\n".join(scripts))
    subprocess.run(["bash", "-n", str(joined)], check=True)


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
