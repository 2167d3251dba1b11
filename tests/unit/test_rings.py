# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.rings import SLOW_S, defined, function, listed, slow


def test_a_slow_test_that_is_gone_is_no_longer_listed() -> None:
    assert [name for name in slow() if not defined(name)] == [], "run 'make slow'"


def test_what_is_listed_is_marked(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        assert (function(item.nodeid) in slow()) == any(item.iter_markers("slow")), item.nodeid


def test_what_was_not_run_stays_and_what_is_gone_goes() -> None:
    here = "tests/unit/test_rings.py::test_what_was_not_run_stays_and_what_is_gone_goes"
    marked = "tests/unit/test_rings.py::test_what_is_listed_is_marked"
    before = frozenset({here, marked, "tests/unit/test_rings.py::test_gone", "tests/unit/test_gone.py::test_gone"})
    assert listed({marked: SLOW_S / 2, "new": SLOW_S}, before).splitlines()[1:] == ["new", here]
