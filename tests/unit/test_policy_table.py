# SPDX-License-Identifier: Apache-2.0
"""The table of known jobs: Python writes what each Lua finds, and a table that is not whole is no table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.estimate.policy_table import (
    HEADER_BYTES,
    MOST_BYTES,
    RECORD_BYTES,
    KnownJob,
    job_key,
    model_hash,
    table_text,
    text_hash,
)
from tests.unit.lua import VERSIONS, Loaded

NOW = 1_763_830_000
DAY = 86_400
JOB = KnownJob(1000, "train", "/home/ann", 3000, 20, 30, 5, "H100")
LOADED = {version: Loaded(version) for version in VERSIONS}


def find(loaded: Loaded, path: Path, job: KnownJob = JOB, now: int = NOW) -> Any:
    finder = opened(loaded, path)
    return finder(loaded.table.key(job.uid, job.name, job.folder), now)


def opened(loaded: Loaded, path: Path, said: list[str] | None = None) -> Any:
    return loaded.table.open(str(path), (said if said is not None else []).append)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=300, deadline=None)
@given(text=st.binary(max_size=300))
def test_both_sides_make_the_same_hash_of_any_bytes(version: str, text: bytes) -> None:
    assert LOADED[version].table.hash(text.decode("latin-1")) == text_hash(text)


names = st.text(alphabet=st.characters(codec="latin-1", exclude_characters='\0"'), max_size=40)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60, deadline=None)
@given(jobs=st.lists(st.tuples(st.integers(0, 2**32 - 1), names, names), max_size=40), other=names)
def test_every_job_that_was_written_is_found_and_no_other(
    version: str, jobs: list[tuple[int, str, str]], other: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    loaded = LOADED[version]
    known = {
        job: JOB._replace(uid=job[0], name=job[1], folder=job[2], mem_mib=number) for number, job in enumerate(jobs)
    }
    path = tmp_path_factory.mktemp("table") / "t"
    path.write_bytes(table_text(known.values(), NOW))
    finder = opened(loaded, path)
    for uid, name, folder in jobs:
        # Lua has bytes; the strategy's letters are those of one byte, which Python writes as UTF-8.
        key = loaded.table.key(uid, *(text.encode().decode("latin-1") for text in (name, folder)))
        assert key == job_key(uid, name, folder)
        assert finder(key, NOW)["mem_mib"] == known[uid, name, folder].mem_mib
    if not any(name == other for _, name, _ in jobs):
        assert finder(loaded.table.key(1, other.encode().decode("latin-1"), "/"), NOW) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_quoted_name_is_found_as_accounting_spells_it(version: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(table_text([JOB._replace(name="say `x`")], NOW))
    assert find(LOADED[version], path, JOB._replace(name='say "x"')) is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_record_comes_back_as_it_was_written(version: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(table_text([JOB, JOB._replace(name="other")], NOW))
    found = find(LOADED[version], path)
    assert dict(found.items()) == {
        "mem_mib": 3000,
        "sm_pct": 20,
        "minutes": 30,
        "runs": 5,
        "model": model_hash("H100"),
    }


def test_of_two_jobs_under_one_key_the_larger_is_kept_and_what_fits_no_field_is_left_out() -> None:
    text = table_text([JOB, JOB._replace(mem_mib=4000), JOB._replace(mem_mib=3500)], NOW)
    assert len(text) == HEADER_BYTES + RECORD_BYTES
    assert b" 0004000 " in text
    assert len(table_text([JOB._replace(mem_mib=10**8), JOB._replace(name="n" * 257)], NOW)) == HEADER_BYTES


@pytest.mark.parametrize(
    ("spoiled", "why"),
    [
        (lambda text: text[:-1], "length"),
        (lambda text: text[: HEADER_BYTES - 9], "begin"),
        (lambda text: text + b"x", "length"),
        (lambda text: b"", "begin"),
        (lambda text: text.replace(b"table 1 ", b"table 2 "), "version 2"),
        (lambda text: text.replace(b" 0000001 ", b" 9999999 "), "length"),
        (lambda text: table_text([JOB], NOW - 15 * DAY), "older than 14 days"),
        (lambda text: table_text([JOB], NOW + 2 * DAY), "future"),
        (lambda text: b"\0" * 1000, "begin"),
        (lambda text: text + b"x" * MOST_BYTES, "larger"),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_broken_table_is_not_used_and_said_once(version: str, spoiled: Any, why: str, tmp_path: Path) -> None:
    path, said = tmp_path / "t", list[str]()
    path.write_bytes(table_text([JOB], NOW))
    loaded = LOADED[version]
    finder, key = opened(loaded, path, said), loaded.table.key(*JOB[:3])
    assert finder(key, NOW) is not None
    path.write_bytes(spoiled(table_text([JOB], NOW)))
    assert [finder(key, NOW + 61 * turn) for turn in range(1, 4)] == [None] * 3
    assert len(said) == 2
    assert why in said[1]
    path.write_bytes(table_text([JOB], NOW + 1))
    assert finder(key, NOW + 400) is not None


def test_a_table_that_is_not_there_or_closed_or_a_folder_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    for path in (tmp_path / "none", tmp_path):
        finder = opened(LOADED["lua51"], path, said)
        assert [finder("k", NOW + 61 * turn) for turn in range(3)] == [None] * 3
    assert len(said) == 2


def test_the_table_is_looked_at_once_a_minute_and_read_when_it_is_another(tmp_path: Path) -> None:
    path, said = tmp_path / "t", list[str]()
    loaded = LOADED["lua54"]
    path.write_bytes(table_text([JOB], NOW))
    finder, key = opened(loaded, path, said), loaded.table.key(*JOB[:3])
    assert finder(key, NOW)["mem_mib"] == 3000
    new = tmp_path / "new"
    new.write_bytes(table_text([JOB._replace(mem_mib=4000)], NOW))  # made in the same second
    os.replace(new, path)
    assert finder(key, NOW + 59)["mem_mib"] == 3000
    assert finder(key, NOW + 60)["mem_mib"] == 4000
    assert finder(key, NOW + 200)["mem_mib"] == 4000
    assert [line.split(" from")[0] for line in said] == ["known jobs: 1"] * 2
    assert finder(key, NOW + 15 * DAY) is None
    assert "older" in said[-1]


def test_a_record_with_a_spoiled_number_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(table_text([JOB], NOW).replace(b" 0003000 ", b" 00x3000 "))
    assert find(LOADED["lua53"], path) is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "bad", [(None, "a", "/"), (1.5, "a", "/"), (-1, "a", "/"), (1, None, "/"), (1, "a" * 257, "/")]
)
def test_what_no_record_can_be_of_has_no_key(version: str, bad: tuple[Any, ...]) -> None:
    assert LOADED[version].table.key(*bad) is None
