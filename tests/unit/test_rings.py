# SPDX-License-Identifier: Apache-2.0

import pytest

from tests.rings import CI, defined, function, listed_in, slow, tenth


def test_a_slow_test_that_is_gone_is_no_longer_listed() -> None:
    assert [name for name in slow() if not defined(name)] == [], "run 'make slow'"


def test_what_ci_runs_is_there_and_slow_or_of_the_cluster() -> None:
    names = listed_in(CI)
    assert [name for name in names if not defined(name)] == []
    assert [name for name in names - slow() if not name.startswith("tests/cluster/")] == []


def test_ci_takes_a_tenth_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLOC_TEST_TENTH", raising=False)
    assert tenth(300) == 300
    monkeypatch.setenv("COLLOC_TEST_TENTH", "1")
    assert [tenth(300), tenth(12)] == [30, 3]


def test_what_is_listed_is_marked(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        name = function(item.nodeid)
        assert (name in slow()) == any(item.iter_markers("slow")), item.nodeid
        chosen = {name, name.partition("::")[0]} & listed_in(CI)
        is_quick = name.startswith("tests/unit/") and name not in slow()
        assert bool(chosen or is_quick) == any(item.iter_markers("ci")), item.nodeid
