# SPDX-License-Identifier: Apache-2.0
"""colloc's commands from their arguments to their exit status, in this process."""

import json
import sys
from pathlib import Path

import pytest

from slurm_colloc.cli.colloc import main

TABLE = """job_id,user,project,cluster,partition,num_acc,start_time,duration_s,acc_utilization_avg,state
1,ann,lab,c,gpu,1,1767225600,3600,{util},completed
2,bob,lab,c,gpu,2,1767225600,3600,{util},completed
"""
WINDOW = ("--since", "2026-01-01T00:00:00+00:00", "--until", "2026-01-02T00:00:00+00:00")


def colloc(*argv: str) -> int:
    before, sys.argv = sys.argv, ["colloc", *argv]
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.argv = before


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def take(tmp_path: Path, store: str, util: str) -> None:
    (tmp_path / "jobs.csv").write_text(TABLE.replace("{util}", util))
    assert colloc("ingest", "--store", store, "--clustercockpit", str(tmp_path / "jobs.csv")) == 0


@pytest.mark.parametrize("command", [["report"], ["audit", "run"], ["job", "1"]])
def test_an_empty_store_is_an_error_and_never_a_clean_answer(
    store: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for more in (["--store", store], []):
        assert colloc(*command, *more) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert len(said.err.splitlines()) == 1
        assert "holds nothing; run 'colloc ingest' first" in said.err


def test_an_audit_of_what_was_not_measured_is_an_error(
    tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    take(tmp_path, store, "")
    assert colloc("audit", "run", "--store", store, *WINDOW) == 2
    assert "not one of 2 GPU runs was measured" in capsys.readouterr().err


def test_an_audit_says_how_much_was_measured(tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    take(tmp_path, store, "0")
    capsys.readouterr()
    assert colloc("audit", "run", "--store", store, *WINDOW) == 0  # a mean by others names nobody
    assert "0 findings by 1 rule over 2 GPU runs, 2 of them measured, 2026-01-01" in capsys.readouterr().out
    assert colloc("audit", "run", "--store", store, "--format", "json", *WINDOW) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["schema"], shown["runs"], shown["runs_measured"], shown["findings"]) == (1, 2, 2, [])
    assert (shown["rules"], shown["coverage_pct"]) == (["COL001"], None)


def test_the_store_is_closed_to_others_unless_opened(tmp_path: Path, store: str) -> None:
    take(tmp_path, store, "10")
    assert Path(store).stat().st_mode & 0o777 == 0o700
    Path(store).chmod(0o750)
    take(tmp_path, store, "10")
    assert Path(store).stat().st_mode & 0o777 == 0o750


def test_errors_of_the_system_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for argv in (
        ["demo", "-o", str(tmp_path / "file")],
        ["report", "--store", str(tmp_path / "file")],
        ["ingest", "--store", str(tmp_path / "file" / "x"), "--clustercockpit", "/nonexistent"],
    ):
        assert colloc(*argv) == 2, argv
        said = capsys.readouterr()
        assert said.err.splitlines()[-1].startswith("colloc: error: "), said.err
        assert "Traceback" not in said.err
