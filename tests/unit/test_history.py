# SPDX-License-Identifier: Apache-2.0
import json
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.errors import InputError, StoreError
from slurm_colloc.core.model import because
from slurm_colloc.estimate.lookup import Known, look_up
from slurm_colloc.estimate.records import (
    drop_decision,
    drop_evidence,
    evidence_path,
    note_out_of_memory,
    parse_decision,
    parse_evidence,
    read_decisions,
    read_evidence,
)
from slurm_colloc.estimate.snapshot import read_snapshot, snapshot_path, write_snapshot
from tests.unit.golden import Printed
from tests.unit.made import decision, evidence, site

DEEP = b"[" * 100_000


def as_json(record: Any, **changes: Any) -> bytes:
    return json.dumps({**record._asdict(), **changes}).encode()


def no_states(_: Sequence[str]) -> Mapping[str, str]:
    raise AssertionError("Slurm was asked without need")


# --- one file for each record ---


def test_evidence_there_and_back(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    item = evidence(peak_mib=None, sm_active_mean_pct=None, sm_is_bound=True)
    drop_evidence(folder, item)
    drop_evidence(folder, evidence("2"))
    drop_evidence(folder, item._replace(state="FAILED"))
    os.utime(evidence_path(folder, "sig", "1"), (1, 1))
    assert read_evidence(folder, "sig") == ((item._replace(state="FAILED"), evidence("2")), 0)
    assert read_evidence(folder, "other") == ((), 0)
    assert os.stat(evidence_path(folder, "sig", "1")).st_mode & 0o777 == 0o600


def test_decision_there_and_back(tmp_path: Path) -> None:
    item = decision(
        gpu_mem_q99_mib=None, reasons=(because("no-gpu"), because("margin", factor=1.5)), job_name="\u202e\x1b[31m"
    )
    path = drop_decision(str(tmp_path / "1000"), item)
    assert parse_decision(Path(path).read_bytes()) == item


def test_what_did_not_suffice_is_noted_once_beside_what_was_decided(tmp_path: Path) -> None:
    folder = str(tmp_path / "1000")
    note_out_of_memory(folder, "1")
    assert not (tmp_path / "1000").exists(), "nothing was decided"
    for item in (decision("1"), decision("11"), decision("1", at_s=2.0)):
        drop_decision(folder, item)
    for _ in range(2):
        note_out_of_memory(folder, "1")
    found, _ = read_decisions(folder)
    assert found == [decision("1"), decision("11"), decision("1", at_s=2.0, out_of_memory=True)]


def test_evidence_of_an_earlier_release_is_still_of_use(printed: Printed) -> None:
    older = {name: value for name, value in evidence()._asdict().items() if name != "dram_active_q95_pct"}
    assert parse_evidence(json.dumps(older).encode()) == evidence()
    with printed.raises("history", InputError):
        parse_evidence(json.dumps({name: value for name, value in older.items() if name != "state"}).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"extra": 1},
        {"sample_count": -1},
        {"sample_count": 1.5},
        {"sample_count": "3"},
        {"sample_count": True},
        {"sample_count": None},
        {"run_count": 0},
        {"sampled_s": float("nan")},
        {"sampled_s": float("inf")},
        {"sampled_s": -0.5},
        {"ended_s": 10**400},
        {"ended_s": 253402300799.0},
        {"ended_s": "yesterday"},
        {"elapsed_s": -5.0},
        {"grew_until_s": float("-inf")},
        {"gpu_mem_peak_mib": -1},
        {"gpu_mem_peak_mib": 2.5},
        {"gpu_mem_peak_mib": 2**60},
        {"gpu_mem_peak_mib": [1]},
        {"gpu_mem_total_mib": -1},
        {"sm_active_mean_pct": float("inf")},
        {"sm_active_q95_pct": -0.1},
        {"dram_active_q95_pct": 1e300},
        {"cpu_cores_q95": -1.0},
        {"host_mem_peak_mib": -1},
        {"mode": "half"},
        {"sm_is_bound": None},
        {"state": 3},
        {"source": None},
        {"signature": ["x"]},
        {"signature": "\ud800"},
    ],
)
def test_evidence_of_a_wrong_form(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^evidence file "):
        parse_evidence(as_json(evidence(), **changes))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", DEEP, b"1" * 10_000, b'{"a":' * 50_000])
def test_not_a_record(content: bytes) -> None:
    with pytest.raises(InputError):
        parse_evidence(content)
    with pytest.raises(InputError):
        parse_decision(content)


@pytest.mark.parametrize(
    "changes",
    [
        {"reasons": "text"},
        {"reasons": [1]},
        {"reasons": ["no-gpu"]},
        {"reasons": [["x"]]},
        {"reasons": [["\udcff", {}]]},
        {"reasons": [["no-gpu", {"a": {}}]]},
        {"at_s": 10**400},
        {"at_s": float("nan")},
        {"gpu_mem_q99_mib": -1.0},
        {"signature": "\ud800"},
        {"user": None},
    ],
)
def test_decision_of_a_wrong_form(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^decision file "):
        parse_decision(as_json(decision(), **changes))


def test_what_is_planted_among_evidence_is_counted(tmp_path: Path) -> None:
    folder = str(tmp_path)
    drop_evidence(folder, evidence("1"))
    place = tmp_path / "evidence" / "sig"
    os.mkfifo(place / "fifo.json")
    (place / "link.json").symlink_to(place / "1.json")
    (place / "dangling.json").symlink_to(place / "none")
    (place / "folder.json").mkdir()
    (place / "huge.json").write_bytes(b" " * 300_000)
    (place / "deep.json").write_bytes(DEEP)
    (place / "other.txt").write_bytes(b"x")
    drop_evidence(folder, evidence("2", ended_s=1e308))
    # Clocks may differ, by less than a day.
    ahead = evidence("3", ended_s=now() + 3600)
    drop_evidence(folder, ahead)
    assert read_evidence(folder, "sig") == ((evidence("1"), ahead), 7)


def test_only_the_newest_runs_are_read(tmp_path: Path) -> None:
    for number in range(25):
        drop_evidence(str(tmp_path), evidence(str(number)))
        os.utime(evidence_path(str(tmp_path), "sig", str(number)), (number, number))
    assert [item.job_id for item in read_evidence(str(tmp_path), "sig").evidence] == [str(n) for n in range(5, 25)]


def test_unreadable_evidence_folder(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "sig").touch()
    with pytest.raises(StoreError, match="cannot be read"):
        read_evidence(str(tmp_path), "sig")


# --- the snapshot ---


def test_snapshot_there_and_back(tmp_path: Path) -> None:
    path = str(tmp_path / "odd name?#%.sqlite")
    runs = [evidence(str(number), ended_s=float(number), sm_is_bound=bool(number % 2)) for number in range(25)]
    write_snapshot(path, [*runs[::-1], evidence("x", None, signature="other")])
    assert read_snapshot(path, "sig").evidence == tuple(runs[5:])
    assert read_snapshot(path, "other").evidence[0].gpu_mem_peak_mib is None
    assert read_snapshot(path, "none").evidence == ()
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["odd name?#%.sqlite"]
    write_snapshot(path, runs[:1])
    assert read_snapshot(path, "sig").evidence == (runs[0],)


def test_no_snapshot_is_no_evidence(tmp_path: Path) -> None:
    assert read_snapshot(str(tmp_path / "none"), "sig").evidence == ()


@pytest.mark.parametrize("content", [b"", b"junk" * 1000, b"SQLite format 3\0" + b"\xff" * 4096])
def test_corrupt_snapshot(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s").write_bytes(content)
    with pytest.raises(StoreError, match="colloc ingest"):
        read_snapshot(str(tmp_path / "s"), "sig")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_snapshot_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_snapshot(str(path), [evidence()])
    path.chmod(0)
    with pytest.raises(StoreError, match="cannot be read"):
        read_snapshot(str(path), "sig")


def test_failed_snapshot_leaves_nothing_and_goes_through_no_link(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with pytest.raises(StoreError, match="cannot be written"):
        write_snapshot(path, [evidence(signature="\ud800")])
    with pytest.raises(StoreError, match="cannot be written"):
        write_snapshot(path, [evidence(sample_count=2**70)])
    assert os.listdir(tmp_path) == []
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "s").symlink_to(tmp_path / "victim")
    write_snapshot(path, [evidence()])
    assert (tmp_path / "victim").read_bytes() == b"mine"
    assert not (tmp_path / "s").is_symlink()


# --- both together ---


def test_nothing_known(config: SiteConfig) -> None:
    assert look_up(config, "sig", no_states) == Known((), ())


def test_snapshot_and_drops_by_time(config: SiteConfig) -> None:
    snapshot = snapshot_path(config.paths.state, os.geteuid())
    write_snapshot(snapshot, [evidence("1", ended_s=5.0), evidence("2", ended_s=1.0)])
    drop_evidence(user_data_folder(), evidence("3", ended_s=3.0))
    known = look_up(config, "sig", no_states)
    assert ([item.job_id for item in known.evidence], known.notes) == (["2", "3", "1"], ())


def test_open_runs_are_settled_once(config: SiteConfig) -> None:
    asked: list[list[str]] = []

    def states(job_ids: Sequence[str]) -> Mapping[str, str]:
        asked.append(sorted(job_ids))
        return {"1": "OUT_OF_MEMORY", "2": "RUNNING"}

    for number in ("1", "2", "3"):
        drop_evidence(user_data_folder(), evidence(number, state="RUNNING", ended_s=time.time()))
    drop_evidence(user_data_folder(), evidence("4", state="RUNNING", ended_s=time.time() - 90_000))
    found = {item.job_id: item.state for item in look_up(config, "sig", states).evidence}
    assert found == {"1": "OUT_OF_MEMORY", "2": "RUNNING", "3": "RUNNING", "4": "UNKNOWN"}
    look_up(config, "sig", states)
    assert asked == [["1", "2", "3", "4"], ["2", "3"]], "what Slurm has forgotten for a day is asked for no more"


def test_an_open_run_does_not_displace_its_known_end(config: SiteConfig) -> None:
    write_snapshot(snapshot_path(config.paths.state, os.geteuid()), [evidence("1", 9000)])
    drop_evidence(user_data_folder(), evidence("1", 8000, state="RUNNING", ended_s=time.time()))
    (kept,) = look_up(config, "sig", lambda _: {}).evidence
    assert (kept.state, kept.gpu_mem_peak_mib) == ("COMPLETED", 9000)
    (kept,) = look_up(config, "sig", lambda _: {"1": "COMPLETED"}).evidence
    assert (kept.state, kept.gpu_mem_peak_mib) == ("COMPLETED", 8000)


def test_what_cannot_be_read_is_a_note(config: SiteConfig) -> None:
    Path(snapshot_path(config.paths.state, os.geteuid())).write_bytes(b"junk" * 1000)
    drop_evidence(user_data_folder(), evidence("1"))
    Path(user_data_folder(), "evidence", "sig", "2.json").write_bytes(b"{}")
    known = look_up(config, "sig", no_states)
    assert [item.job_id for item in known.evidence] == ["1"]
    assert len(known.notes) == 2
    assert known.notes[0].code == "history-error"
    assert known.notes[1] == because("evidence-unreadable", files=1)


@pytest.mark.parametrize("slices", [5, 40])
def test_the_newest_run_on_a_whole_gpu_is_not_forgotten(tmp_path: Path, slices: int) -> None:
    """Only such a run shows SM activity; without it the twenty-first run on a slice would get a whole GPU again."""
    runs = [evidence("100", ended_s=1.0)]
    for number in range(slices):
        runs.append(evidence(str(101 + number), mode="mig", sm_active_q95_pct=None, ended_s=2.0 + number))
    for item in runs:
        drop_evidence(str(tmp_path), item)
    path = str(tmp_path / "1.sqlite")
    write_snapshot(path, runs)
    for found in (read_evidence(str(tmp_path), "sig").evidence, read_snapshot(path, "sig").evidence):
        assert found[0].job_id == "100"
        assert len(found) == min(slices, 20) + 1
        assert found[-1].job_id == str(100 + slices)


@pytest.mark.parametrize(("field", "value"), [("gpu_mem_total_mib", b"\xff"), ("sm_is_bound", "yes"), ("run_count", 0)])
def test_a_row_that_cannot_be_true_is_not_counted_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: object
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    path = snapshot_path(str(tmp_path), os.geteuid())
    os.mkdir(os.path.dirname(path))
    name = "ab12.64~c~d"
    write_snapshot(path, [evidence("1", signature=name), evidence("2", 9000, signature=name)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE evidence SET {field} = ? WHERE job_id = '2'", (value,))
    plain = site()
    config = plain._replace(paths=plain.paths._replace(state=str(tmp_path)))
    for asked in (name, "ab12.128~c~d"):
        known = look_up(config, asked, None)
        assert [run.job_id for run in (*known.evidence, *known.relatives)] == ["1"]
        assert known.notes == (because("runs-impossible", runs=1, path=path),)
