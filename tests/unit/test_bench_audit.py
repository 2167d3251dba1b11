# SPDX-License-Identifier: Apache-2.0
"""The benchmark of an audit, at a size at which it takes seconds: what it measures, and that it can fail."""

import pytest

from slurm_colloc.audit.rules import entries
from slurm_colloc.core.config_audit import Audit
from tests import bench_audit

FORMS = [entry.form for entry in entries(Audit())]
SMALL = ["--runs", "1000", "--users", "9", "--days", "1", "--raw-days", "1"]


def test_every_rule_is_measured_on_something_that_it_can_judge(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_audit, "TARGET_S", 600)
    assert bench_audit.main(SMALL) == 0
    first, *parts, whole, verdict = capsys.readouterr().out.splitlines()
    assert first.startswith("1,000 runs of 9 users; 1 of 1 days of samples, ")
    assert [line.split("  ")[0].rstrip() for line in parts] == ["aggregate", "make_audited", *FORMS, "whole_usage"]
    assert "Slurm was asked 0 times" in whole
    # The summary for the admins is one of them.
    assert int(whole.split(" mails")[0].rsplit(" ", 1)[1]) > 1
    assert verdict == "targets hold: 600 s, 500 MB, every rule judged"


def test_a_target_that_is_missed_is_an_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_audit, "TARGET_MB", 1)
    assert bench_audit.main(["--runs", "30", "--users", "2", "--days", "1", "--raw-days", "0"]) == 1
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("missed: ")
    assert " MB of 1 MB" in verdict
    assert "COL001 judged nothing" in verdict
