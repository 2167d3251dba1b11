# SPDX-License-Identifier: Apache-2.0
"""The benchmark of an audit, at a size at which it takes seconds."""

import pytest

from slurm_colloc.audit.rules import RULES
from tests import bench_audit


def test_each_part_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_audit.main(["--runs", "300", "--users", "7", "--days", "2", "--minute-days", "1"]) == 0
    first, *parts = capsys.readouterr().out.splitlines()
    assert first.startswith("300 runs of 7 users, 2 days; ")
    names = [line.split("  ")[0].rstrip() for line in parts]
    assert names == ["sweep_to_file", "make_audited", *RULES, "whole_usage", "in all"]
    assert "findings (targets: 60 s, 500 MB)" in parts[-1]
