# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a page, at a size at which it takes seconds: each form is made to its end."""

import pytest

from tests import bench_report


def test_each_form_is_made_and_measured(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--runs", "300", "--users", "7", "--days", "2", "--raw-days", "1")
    assert bench_report.main([*sizes, "--forms", "html,json,table"]) == 0
    first, *forms = capsys.readouterr().out.splitlines()
    assert first.startswith("300 runs of 7 users, 2 days, ")
    assert [line.split()[0] for line in forms] == ["html", "json", "table"]
    assert all("then figures and rendering" in line for line in forms), forms
