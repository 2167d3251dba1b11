# SPDX-License-Identifier: Apache-2.0
import os
import re
from pathlib import Path
from typing import NoReturn

import pytest

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.usage_model import AllocationRow
from slurm_colloc.sources.means import JobMeans
from slurm_colloc.sources.sacct_client import Parsed
from slurm_colloc.store import parquet
from slurm_colloc.store.equivalents import node_names
from slurm_colloc.store.ingest import keep_runs
from slurm_colloc.store.sacct_rows import MEANS, RUNAWAY
from slurm_colloc.store.store import Store, open_store
from tests.unit.golden import Printed
from tests.unit.made import HOUR, run
from tests.unit.stored import at, busy, job_usage, only, runs_in_window, sampled, stored

# --- the six awkward rows ---

# --- what an allocation is worth ---


# --- the store ---


def test_newest_reading_of_a_run_counts(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_allocations("b", [run()], 2.0)
    store.write_allocations("a", [run(end_s=None, state="RUNNING")], 1.0)
    assert only(store, now_s=1e9).end_s == 3600.0
    # In one and the same ingest: the reading that knows the end.
    for rows in ([run(end_s=None, state="RUNNING"), run()], [run(), run(end_s=None, state="RUNNING")]):
        store.write_allocations("c", rows, 3.0)
        assert (only(store, now_s=1e9).end_s, only(store).state) == (3600.0, "COMPLETED")


def test_what_slurmctld_forgot_stays_and_what_a_file_no_longer_has_goes(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    cancelled = [run("9", None, None, submit_s=number, state="CANCELLED") for number in (1, 2)]
    for source in ("controller", "file"):
        keep = source == "controller"
        keep_runs(store, source, parsed(run("1"), run("2", end_s=None, state="RUNNING"), *cancelled), 600.0, keep=keep)
        keep_runs(store, source, parsed(run("2", state="COMPLETED"), run("3"), cancelled[0]), 7200.0, keep=keep)
    rows = store.rows("SELECT job_id, state FROM readings ORDER BY ALL", {})
    file = [("2", "COMPLETED"), ("3", "COMPLETED"), ("9", "CANCELLED")]
    assert rows == sorted([*file, *file, ("1", "COMPLETED"), ("9", "CANCELLED")])


def parsed(*rows: AllocationRow) -> Parsed:
    return Parsed(rows, len(rows), 0, {})


def test_a_runaway_counts_as_far_as_it_was_seen_before(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    running = run(end_s=None, state="RUNNING")

    def of_day(state: AllocationRow, now_s: float) -> None:
        store.write_allocations("sacct-1970-01-01", [state], now_s, keep=True)

    of_day(running, 5.0 * HOUR)
    for _ in range(2):
        of_day(running._replace(state=RUNAWAY), 0.0)
    assert only(store).allocated_gpu_hours == 5.0
    assert store.rows("SELECT state FROM readings ORDER BY ALL", {}) == [(RUNAWAY,), ("RUNNING",)]
    of_day(run(end_s=HOUR), 9.0 * HOUR)
    assert store.rows("SELECT state FROM readings", {}) == [("COMPLETED",)]


def test_a_days_file_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    store = stored(tmp_path, [run()])
    (tmp_path / "allocations" / "a.parquet").write_bytes(b"junk")
    with pytest.raises(StoreError, match=r"/allocations/a\.parquet'"):
        store.write_allocations("a", [run()], 1.0, keep=True)


def test_the_means_of_a_run_are_all_of_one_reading(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_allocations("a", [run()], 1.0, [JobMeans(90.0, 9000, 4, "job mean by old")])
    store.write_allocations("b", [run()], 2.0, [JobMeans(10.0, None, 1, "job mean by new")])
    store.write_allocations("c", [run()], 3.0)
    assert store.rows(f"SELECT {', '.join(MEANS)} FROM allocations", {}) == [(10.0, None, 1, "job mean by new")]


def test_empty_store(tmp_path: Path) -> None:
    for store in (Store(str(tmp_path / "none")), stored(tmp_path, [])):
        assert job_usage(store, 0, 1e10, 1e10) == []
        assert runs_in_window(store, 0, 1e10, 1e10) == (0, 0)
        assert store.logs() == {}


def test_text_that_parquet_cannot_hold(tmp_path: Path) -> None:
    store = stored(tmp_path / "it's", [run(job_name="\udcff\x00 é 'x'", user="a\nb")])
    assert (only(store).job_name, only(store).user) == ("\\xff\x00 é 'x'", "a\nb")


def test_corrupt_store(tmp_path: Path) -> None:
    (tmp_path / "allocations").mkdir()
    (tmp_path / "allocations" / "x.parquet").write_bytes(b"junk")
    with pytest.raises(StoreError, match=r"/allocations/x\.parquet'"):
        job_usage(Store(str(tmp_path)), 0, 1, 1)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is no folder"):
        Store(str(tmp_path / "file")).write_allocations("a", [run()], 1.0)


def test_the_file_that_is_damaged_is_named(tmp_path: Path, printed: Printed) -> None:
    store = stored(tmp_path, [run()])
    (tmp_path / "decisions.parquet").write_bytes(b"junk")
    with pytest.raises(StoreError, match=r"/decisions\.parquet'") as raised:
        store.rows("FROM decisions", {})
    printed("store", re.sub("Invalid .* file;", "(words of DuckDB);", str(raised.value)))


def test_a_store_of_a_later_release_is_neither_read_nor_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    store = Store(str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(parquet, "SCHEMA", parquet.SCHEMA + 1)
        store.write_allocations("a", [run()], 1.0)
        store.write_decisions([])
        store.write_past("c", [])
    later = (tmp_path / "allocations/a.parquet").read_bytes()
    for ask in (
        lambda: store.rows("SELECT * FROM readings", {}),
        lambda: store.write_allocations("a", [run()], 2.0),
        lambda: store.write_decisions([]),
        lambda: store.write_past("c", []),
        lambda: store.past("c"),
    ):
        with pytest.raises(StoreError, match=r"\.parquet' .*\b2\b.*\b1\b"):
            ask()
    with printed.raises("store", StoreError):
        store.past("c")
    assert (tmp_path / "allocations/a.parquet").read_bytes() == later


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_a_damaged_log_is_named(tmp_path: Path, content: str, printed: Printed) -> None:
    stored(tmp_path, [run()]).write_log("a", {})
    (tmp_path / "ingest" / "a.json").write_bytes(content.encode(errors="surrogateescape"))
    with printed.raises("store", StoreError, r"/ingest/a\.json'"):
        open_store(str(tmp_path))


def test_a_store_that_is_closed_to_its_reader_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    def closed(path: str) -> NoReturn:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(StoreError) as raised:
        open_store(str(tmp_path))
    printed("store", str(raised.value).replace(f"uid {os.getuid()}", "uid 1000"))


def test_the_path_of_a_store_is_no_pattern(tmp_path: Path) -> None:
    for name in ("a*b[1]?", "axb1y"):
        stored(tmp_path / name, [run(name)], busy(900))
    assert only(Store(str(tmp_path / "a*b[1]?"))).job_id == "a*b[1]?"


def test_errors_over_a_text_speak_of_the_text(tmp_path: Path, printed: Printed) -> None:
    with (
        pytest.raises(StoreError, match="Catalog Error") as raised,
        Store(str(tmp_path)).over(str(tmp_path), lambda database: database.execute("FROM nothing")),
    ):
        pass
    printed("store", str(raised.value).partition(": ")[0])


def test_a_list_of_nodes_that_cannot_be_read_is_a_node() -> None:
    assert node_names("n[1-2],x") == {"n1", "n2", "x"}
    assert node_names("n[1-") == {"n[1-"}
    assert node_names("") == frozenset()


def test_runs_are_synced_as_samples_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(parquet, "sync_folder", synced.append)
    stored(tmp_path, [run()])
    assert synced == [str(tmp_path / "allocations")]
    assert os.listdir(tmp_path / "allocations") == ["a.parquet"]


def test_logs(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    counted = keep_runs(store, "sacct-x", Parsed((run(),), 4, 2, {"why": 1}), 1.0)
    log = counted._asdict() | {"lost": list(counted.lost)}
    assert store.logs()["sacct-x"] == {name: value for name, value in log.items() if name not in ("named", "said")}
    assert (counted.rows_in, counted.used, counted.steps, counted.rejected) == (4, 1, 2, {"why": 1})


def test_the_last_sealed_hour_is_told(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert store.samples.flushed_until_s() is None
    began_s = at("2026-11-20T05:00:00")
    sampled(store, busy(began_s + 900, began_s + 4500))
    assert store.samples.flushed_until_s() == began_s + 7200
