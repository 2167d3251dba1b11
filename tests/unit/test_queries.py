# SPDX-License-Identifier: Apache-2.0
"""Queries in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.store.queries import query
from tests import mutate_sql


def test_each_query_has_tests_that_mutants_of_it_are_tried_on() -> None:
    assert sorted(mutate_sql.TESTS) == sorted(path.stem for path in mutate_sql.PACKAGE.rglob("*.sql"))
    names = {name for tests in mutate_sql.TESTS.values() for name in (*tests, mutate_sql.GOLDEN)}
    assert [name for name in names if not Path(__file__).with_name(f"{name}.py").exists()] == []


def test_words_of_a_query_are_replaced_once_and_all_must_be_given() -> None:
    assert "FROM {units} JOIN" in query("facts/sql/cut", units="{units}")
    with pytest.raises(KeyError, match="units"):
        query("facts/sql/cut")
