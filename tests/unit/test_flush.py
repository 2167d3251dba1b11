# SPDX-License-Identifier: Apache-2.0
"""colloc flush: a node's journal into Parquet, whatever happens on the way."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import duckdb
import pytest

from slurm_colloc.cli.colloc import flush as flush
from slurm_colloc.core import clock
from slurm_colloc.core.config import Observe
from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.facts.compact import compact
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.observe.journal import append, encode, hours
from slurm_colloc.store import parquet
from slurm_colloc.store.sample_tables import SHARES
from slurm_colloc.store.samples import Flushed, Samples, flush_hours
from slurm_colloc.store.store import Store
from tests.unit.golden import Printed
from tests.unit.made import HOUR, device, host, process, seen
from tests.unit.programs import colloc
from tests.unit.stored import at, sampled

NOON = at("2026-11-20T12:00")
DAY = 24 * HOUR


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a site with a node g1, at ten past one."""
    text = f'schema = 1\ncluster = "c"\nslurm_release = "22.05"\n[paths]\nstate = "{tmp_path}"\n'
    (tmp_path / "site.toml").write_text(text)
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    monkeypatch.setenv("SLURMD_NODENAME", "g1")
    it_is(monkeypatch, NOON + HOUR + 600)
    for name in ("journal", "store"):
        (tmp_path / name).mkdir(mode=0o700)
    return tmp_path


def it_is(monkeypatch: pytest.MonkeyPatch, at_s: float) -> None:
    monkeypatch.setattr(clock, "now", lambda: at_s)
    monkeypatch.setattr(flush, "now", lambda: at_s)


def one(at_s: float, **fields: Any) -> NodeSample:
    return seen(at_s, [device()], [process()], hosts=[host()])._replace(**fields)


def keep(folder: Path, *rounds: NodeSample) -> None:
    for passed in rounds:
        append(str(folder / "journal"), passed)


def flushed(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder / "store")) for path in (folder / "store").rglob("*.parquet"))


def times(folder: Path) -> list[float]:
    query = "SELECT at_s FROM shares WHERE job_id = '1' ORDER BY ALL"
    return [row[0] for row in Store(str(folder / "store")).rows(query, {})]


def test_closed_hours_only(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(site, one(NOON), one(NOON + 3599), one(NOON + HOUR))
    assert colloc("flush") == 0
    name = "c/2026-11-20/g1/12.parquet"
    assert flushed(site) == [f"hosts/{name}", f"samples/{name}"]
    assert times(site) == [NOON, NOON + 3599]
    assert (site / "store/samples" / name).stat().st_mode & 0o777 == 0o600
    assert (site / "store").stat().st_mode & 0o777 == 0o700
    it_is(monkeypatch, NOON + 2 * HOUR + 119)
    colloc("flush")
    assert len(times(site)) == 2  # a line of the hour may still be on its way
    it_is(monkeypatch, NOON + 2 * HOUR + 120)
    colloc("flush")
    assert times(site) == [NOON, NOON + 3599, NOON + HOUR]


def test_a_user_alone_need_not_wait_for_the_hour(site: Path) -> None:
    keep(site, one(NOON + HOUR))
    assert colloc("flush", "--open") == 0
    keep(site, one(NOON + HOUR + 10))
    assert colloc("flush", "--open") == 0
    assert times(site) == [NOON + HOUR, NOON + HOUR + 10]


def test_what_is_sealed_is_left_alone_until_it_grows(site: Path) -> None:
    keep(site, one(NOON))
    path = site / "store/samples/c/2026-11-20/g1/12.parquet"
    colloc("flush")
    first = path.stat()
    colloc("flush")
    # Reading it may change when it was last read.
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    keep(site, one(NOON + 10))
    colloc("flush")
    assert path.stat().st_ino != first.st_ino
    assert times(site) == [NOON, NOON + 10]


def test_a_run_that_finds_nothing_to_do_says_so(site: Path, printed: Printed) -> None:
    keep(site, one(NOON + HOUR))
    assert colloc("flush") == 0
    printed("flush", colloc.err)
    keep(site, one(NOON))
    assert colloc("flush") == colloc("flush") == 0
    printed("flush", colloc.err)


def test_only_this_nodes_journal(site: Path) -> None:
    keep(site, one(NOON), one(NOON, node="g2"))
    colloc("flush")
    assert [name for name in flushed(site) if "g2" in name] == []
    colloc("flush", "--node", "g2")
    assert len([name for name in flushed(site) if "g2" in name]) == 2


def test_a_line_that_comes_while_the_journal_is_read_is_sealed_by_the_next_run(site: Path) -> None:
    keep(site, one(NOON), one(NOON + 10))
    (hour,) = hours(str(site / "journal"))
    rounds: Iterator[NodeSample] = iter(hour)
    # Lines are read through a buffer; this one comes after it was filled.
    list(rounds)
    keep(site, one(NOON + 20))
    assert hour.read_bytes < hour.size_bytes()

    class Slow(Samples):
        def flush(self, *args: Any) -> int:
            count = super().flush(*args)
            keep(site, one(NOON + 30))
            return count

    def flushed(store: Samples) -> Flushed:
        return flush_hours(store, "c", hours(str(site / "journal")), attribute_sample)

    assert flushed(Slow(str(site / "store"))).rounds == 3
    assert times(site) == [NOON, NOON + 10, NOON + 20]
    again = flushed(Samples(str(site / "store")))
    assert (again.rounds, times(site)[-1]) == (4, NOON + 30)


def test_old_hours_go_by_a_later_run_than_the_one_that_sealed_them(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(site, one(NOON), one(NOON + 3 * DAY))
    it_is(monkeypatch, NOON + 3 * DAY + 2 * HOUR)
    colloc("flush")
    assert len(list(hours(str(site / "journal")))) == 2
    colloc("flush")
    assert [hour.began_s for hour in hours(str(site / "journal"))] == [NOON + 3 * DAY]
    assert "dropped 1 h flushed before" in colloc.err
    assert len(times(site)) == 2


def test_the_journal_of_an_hour_that_is_refused_stays(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(site, one(NOON - HOUR), one(NOON))
    colloc("flush")
    store = Store(str(site / "store"))
    for _ in range(2):
        compact(store, Observe(), NOON + 20 * DAY, anyway=True)
    keep(site, one(NOON + 10))
    it_is(monkeypatch, NOON + 5 * DAY)
    for _ in range(2):
        assert colloc("flush") == 0
    assert len(list(hours(str(site / "journal")))) == 1  # only there is all of it
    done = compact(store, Observe(), NOON + 20 * DAY, anyway=True)
    assert done
    assert len(done.refused) == 2
    assert capsys.readouterr().err.count("flushed 1 h") == 1, "once is enough"


def test_a_damaged_file_stops_its_own_day_only(site: Path) -> None:
    keep(site, one(NOON - DAY))
    colloc("flush")
    path = site / "store/samples/c/2026-11-19/g1/12.parquet"
    path.write_bytes(b"junk" * 10)
    keep(site, one(NOON - DAY + 10), one(NOON))
    assert colloc("flush") == 1
    assert str(path) in colloc.err
    assert (site / "store/samples/c/2026-11-20/g1/12.parquet").exists()


def test_a_link_among_the_work_folders_is_not_followed(site: Path, printed: Printed) -> None:
    keep(site, one(NOON))
    (site / "victim/c/g1").mkdir(parents=True)
    (site / "victim/c/g1/file.1").touch()
    (site / "store/work").mkdir()
    (site / "store/work/flush").symlink_to(site / "victim")
    assert colloc("flush") == 1
    printed("flush", colloc.err)
    assert os.listdir(site / "victim/c/g1") == ["file.1"]


def test_what_is_not_ours_stays_in_a_work_folder(site: Path) -> None:
    keep(site, one(NOON))
    work = site / "store/work/flush/c/g1"
    work.mkdir(parents=True)
    for name in ("notes", "part-0", "file.0123.new", "duckdb_temp_storage_DEFAULT-0.tmp"):
        (work / name).touch()
    assert colloc("flush") == 0
    assert sorted(os.listdir(work)) == ["lock", "notes"]


def test_torn_lines_are_counted_in_the_file(site: Path) -> None:
    keep(site, one(NOON))
    with open(site / "journal/g1/20261120T12.journal", "ab") as stream:
        stream.write(encode(one(NOON + 5))[:40])
    colloc("flush")
    assert "1 lines rejected" in colloc.err
    store = Samples(str(site / "store"))
    assert store.rejected(NOON, NOON + HOUR) == 1
    keep(site, one(NOON + 10))
    colloc("flush")
    assert (store.rejected(NOON, NOON + HOUR), len(times(site))) == (1, 2)
    assert store.rejected(NOON + 5 * DAY, NOON + 6 * DAY) == 0


def test_one_run_at_a_time(site: Path, printed: Printed) -> None:
    keep(site, one(NOON))
    lock = site / "store/work/flush/c/g1/lock"
    lock.parent.mkdir(parents=True)
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert colloc("flush") == 0
        printed("flush", colloc.err)
        assert flushed(site) == []
    colloc("flush")
    assert len(times(site)) == 1


def _no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def _stale(*_: object) -> None:
    raise OSError(116, "Stale file handle")


@pytest.mark.parametrize("fault", [_no_space, _stale])
def test_the_shared_file_system_is_away(
    site: Path, monkeypatch: pytest.MonkeyPatch, fault: FunctionType, printed: Printed
) -> None:
    keep(site, one(NOON), one(NOON + 3 * DAY))
    colloc("flush")
    it_is(monkeypatch, NOON + 3 * DAY + 2 * HOUR)
    before = flushed(site)
    with monkeypatch.context() as patched:
        patched.setattr(parquet, "sync_folder", fault)
        patched.setattr(os, "replace", fault)
        assert colloc("flush") == 1
    printed("flush", colloc.err, case=fault.__name__)
    assert flushed(site) == before
    assert len(list(hours(str(site / "journal")))) == 2, "nothing is dropped"
    assert os.listdir(site / "store/work/flush/c/g1") == ["lock"]
    assert colloc("flush") == 0
    assert len(times(site)) == 2


def test_the_store_cannot_be_made(site: Path) -> None:
    keep(site, one(NOON))
    (site / "file").touch()
    assert colloc("flush", "--store", str(site / "file/store")) == 1
    assert "cannot be made" in colloc.err


def test_two_journals_of_one_hour_lose_nothing(site: Path) -> None:
    """paths.journal was changed within the hour."""
    keep(site, one(NOON), one(NOON + 10))
    colloc("flush")
    append(str(site / "elsewhere"), one(NOON + 20))
    colloc("flush", "--journal", str(site / "elsewhere"))
    assert times(site) == [NOON, NOON + 10, NOON + 20]


def test_a_later_releases_file_is_not_written_over(
    site: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    keep(site, one(NOON))
    with monkeypatch.context() as patched:
        patched.setattr(parquet, "SCHEMA", parquet.SCHEMA + 1)
        colloc("flush")
    keep(site, one(NOON + 10))
    assert colloc("flush") == 1
    printed("flush", colloc.err)


def test_a_sealed_file_is_plain_parquet(site: Path) -> None:
    unit = device(sm_active_pct=33.3333, energy_j=None)
    keep(site, seen(NOON + 0.12345, [unit], [process()], hosts=[host(cpu_s=None)]))
    colloc("flush")
    path = f"{site}/store/samples/c/2026-11-20/g1/12.parquet"
    with duckdb.connect() as connection:
        found = connection.execute(
            f"SELECT at_s, uuid, job_id, sm_active_pct, energy_j, process_count, method FROM '{path}' ORDER BY job_id"
        ).fetchall()
        kinds = connection.execute(f"DESCRIBE SELECT * FROM '{path}'").fetchall()
        hosts = connection.execute(f"SELECT * FROM '{site}/store/hosts/c/2026-11-20/g1/12.parquet'").fetchall()
    at_s = NOON + 0.123
    assert found == [
        (at_s, "GPU-0", "", 0.0, None, 0, "unattributed"),
        (at_s, "GPU-0", "1", 33.3359375, None, 1, "measured"),
    ]
    assert {name: kind for name, kind, *_ in kinds} == SHARES.columns
    assert hosts == [("c", "g1", at_s, 10.0, "1", None, 4000, 100.0, 10.0)]


def test_parts_still_add_up_after_rounding(tmp_path: Path) -> None:
    unit = device(sm_active_pct=77.7777, gpu_util_pct=99.0, energy_j=1234.5678)
    sharing = [process(str(job), job, sm_util_pct=float(job)) for job in (1, 2, 4)]
    store = Store(str(tmp_path))
    sampled(store, [seen(NOON, [unit], sharing)])
    rows = store.rows("SELECT sum(sm_active_pct), sum(gpu_util_pct), sum(energy_j) FROM shares", {})
    assert rows == [(round(77.7777 * 128) / 128, 99.0, round(1234.5678 * 16) / 16)]  # the reading, to the last digit


def test_what_is_little_for_each_is_not_lost_for_all(tmp_path: Path) -> None:
    """14 jobs, each with less than half a step of energy and of CPU time in each reading."""
    unit = device(sm_active_pct=0.02, energy_j=0.4)
    sharing = [process(str(job), job, gpu_mem_used_mib=1) for job in range(14)]
    little = [host("1", cpu_s=0.03, read_mib=0.03, written_mib=0.03)]
    store = Store(str(tmp_path))
    sampled(store, [seen(NOON + at_s, [unit], sharing, hosts=little, interval_s=1.0) for at_s in range(360)])
    ((joules, least),) = store.rows("SELECT sum(energy_j), min(energy_j) FROM shares WHERE job_id != ''", {})
    assert (joules, least) == (360 * round(0.4 * 16) / 16, 0)
    (sums,) = store.rows("SELECT sum(cpu_s), sum(read_mib), sum(written_mib) FROM hosts", {})
    assert sums == pytest.approx((10.8, 10.8, 10.8), rel=0.02)


@pytest.mark.parametrize("value", [1e38, 1e300])
def test_a_value_beyond_all_bounds_costs_only_itself(tmp_path: Path, value: float) -> None:
    store = Store(str(tmp_path))
    sampled(store, [seen(NOON, [device(energy_j=value)], [process()], interval_s=1e9)])
    ((found, interval_s),) = store.rows("SELECT energy_j, interval_s FROM shares WHERE job_id = '1'", {})
    assert found is None or found == pytest.approx(value)
    assert interval_s == DAY


def test_neither_pandas_nor_pyarrow_is_carried_to_the_nodes() -> None:
    code = "import sys; from slurm_colloc.cli.colloc.app import build; build(['flush', 'compact']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "duckdb" in done.stdout.split()
    assert not {"pandas", "numpy", "pyarrow"} & set(done.stdout.split())
