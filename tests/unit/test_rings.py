# SPDX-License-Identifier: Apache-2.0

import pytest

from tests.rings import defined, function, slow


def test_a_slow_test_that_is_gone_is_no_longer_listed() -> None:
    assert [name for name in slow() if not defined(name)] == [], "run 'make slow'"


def test_what_is_listed_is_marked(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        assert (function(item.nodeid) in slow()) == any(item.iter_markers("slow")), item.nodeid
