# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import pytest

from tests.rings import MISSING_S, SLOW_S, defined, function, listed, missing, slow, spent_s


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


def test_unit_tests_that_the_list_should_have_are_named() -> None:
    took = {"tests/unit/test_a.py::test_b": MISSING_S, "tests/unit/test_a.py::test_c": MISSING_S - 0.1}
    took |= {"tests/unit/test_a.py::test_known": 9.0, "tests/cluster/test_a.py::test_b": 9.0}
    assert missing(took, frozenset({"tests/unit/test_a.py::test_known"})) == ["tests/unit/test_a.py::test_b: 1.0 s"]


def test_what_a_child_that_still_runs_has_spent_counts() -> None:
    code = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True); input()"
    before_s = spent_s(os.getpid())
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline() == b"\n"
        assert spent_s(os.getpid()) - before_s >= 0.1
        child.communicate(b"\n")
    assert spent_s(os.getpid()) - before_s >= 0.1
    assert spent_s(child.pid) == 0
