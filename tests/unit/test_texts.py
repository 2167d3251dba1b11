# SPDX-License-Identifier: Apache-2.0
"""What a text is called in the store, and what is taken in of it there."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest

from slurm_colloc.cli.colloc.sacct_text import Text, content_name
from slurm_colloc.core.errors import InputError
from slurm_colloc.store.ingest import keep_text, take_text
from slurm_colloc.store.store import Store
from tests.unit.golden import Printed

HEADER = "JobID|User|State|Start|End|AllocTRES\n"


def test_a_text_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text("one\n")
    text = content_name(str(path))
    path.write_text("one\ntwo\n")
    assert content_name(str(path)) != text
    path.write_text("one\n")
    assert content_name(str(path)) == text
    (tmp_path / "empty").write_text("")
    with duckdb.connect() as database, pytest.raises(InputError, match="is empty"):
        take_text(database, str(tmp_path / "empty"), (), None, 2e9, str(tmp_path), "x")


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, HEADER.encode())
    os.close(writing)
    with duckdb.connect() as database, pytest.raises(InputError, match=f"/dev/fd/{reading}' is a pipe"):
        take_text(database, f"/dev/fd/{reading}", (), None, 2e9, str(tmp_path), "x")
    os.close(reading)


def test_a_fifo_that_nobody_writes_is_not_waited_for(tmp_path: Path, printed: Printed) -> None:
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    with printed.raises("ingest", InputError):
        content_name(path)
    with duckdb.connect() as database, pytest.raises(InputError, match=f"'{path}' is a pipe"):
        take_text(database, path, (), None, 2e9, str(tmp_path), "x")


def test_runs_in_a_store_are_known_by_cluster_and_raw_id(tmp_path: Path, printed: Printed) -> None:
    path, store = tmp_path / "jobs.txt", Store(str(tmp_path / "store"))
    path.write_text(HEADER + "5|ann|COMPLETED|1|2|gres/gpu=1\n")
    with printed.raises("ingest", InputError):
        keep_text(store, "x", str(path), (), None, 2e9, cluster="")
    keep_text(store, "x", str(path), (), None, 2e9, cluster="lab")
    assert store.rows("SELECT cluster FROM allocations", {}) == [("lab",)]
    path.write_text(HEADER + "5_1|ann|COMPLETED|1|2|gres/gpu=1\n")
    with printed.raises("ingest", InputError, "JobIDRaw"):
        keep_text(store, "x", str(path), (), None, 2e9, cluster="lab")


def test_fields_are_named_in_any_case_as_sacct_takes_them() -> None:
    named = Text("jobs.txt", "jobidraw,JOBID, user,state,Start,end,elapsedraw,alloctres%80,tresusageintot,jobname", "")
    written = "JobIDRaw,JobID,User,State,Start,End,ElapsedRaw,AllocTRES,TRESUsageInTot,JobName"
    assert named.columns == tuple(written.split(","))
    # What is not read may be called what it likes.
    assert Text("jobs.txt", "jobid,mine", "").columns == ("JobID", "mine")


def test_each_database_takes_two_threads_however_many_cores_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With eight threads a million runs did not fit into the memory that the database may take."""
    opened, connect = [], duckdb.connect

    def told(config: Mapping[str, Any]) -> duckdb.DuckDBPyConnection:
        opened.append(config["threads"])
        return connect(config=dict(config))

    monkeypatch.setattr(duckdb, "connect", told)
    path, store = tmp_path / "jobs.txt", Store(str(tmp_path / "store"))
    path.write_text(HEADER + "5|ann|COMPLETED|1|2|gres/gpu=1\n")
    keep_text(store, "x", str(path), (), None, 2e9, cluster="lab")
    assert store.rows("SELECT count(*) FROM allocations", {}) == [(1,)]
    assert max(opened) == 2
