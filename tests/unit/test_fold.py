# SPDX-License-Identifier: Apache-2.0
"""Old runs are folded, and nothing that bounds the next one is lost."""

import os
import random
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.model import GPU_OOM, Evidence, Footprint
from slurm_colloc.estimate.exact import from_runs
from slurm_colloc.estimate.fold import bounded, fold, fold_drops
from slurm_colloc.estimate.question import Question
from slurm_colloc.estimate.records import drop_evidence, evidence_path, read_evidence
from slurm_colloc.estimate.snapshot import SCHEMA, read_snapshot, write_snapshot
from tests.unit.made import evidence


def runs(count: int, **fields: Any) -> list[Evidence]:
    return [evidence(str(number), 1000 + number, ended_s=float(number))._replace(**fields) for number in range(count)]


def q99(found: Sequence[Evidence]) -> float:
    answer = from_runs(Question(runs=found))
    assert isinstance(answer, Footprint)
    assert answer.gpu_mem_peak_mib
    return answer.gpu_mem_peak_mib.q99


def names(folder: Path, signature: str = "sig") -> list[str]:
    return sorted(os.listdir(os.path.dirname(evidence_path(str(folder), signature, "0"))))


def test_the_newest_stay_whole_and_the_others_become_one() -> None:
    old = evidence("999", 9000, ended_s=0.5, sm_active_q95_pct=77.0)
    found = fold([*runs(50), old])
    assert [run.job_id for run in found[1:]] == [str(number) for number in range(30, 50)]
    assert (found[0].run_count, found[0].gpu_mem_peak_mib, found[0].sm_active_q95_pct) == (31, 9000, 77.0)
    assert sum(run.run_count for run in found) == 51
    assert fold(found) == found


def test_a_bound_stays_a_bound() -> None:
    old = [
        evidence("901", 20_000, state=GPU_OOM, ended_s=0.1),
        evidence("902", 15_000, state="TIMEOUT", ended_s=0.2),
        evidence("903", 30_000, sample_count=1, ended_s=0.3),
        evidence("904", 12_000, state=GPU_OOM, ended_s=0.4),
    ]
    everything = [*old, *runs(60)]
    found = fold(everything)
    assert q99(found) == q99(everything) == 30_000
    (oom,) = [run for run in found if run.state == GPU_OOM]
    assert (oom.gpu_mem_peak_mib, oom.run_count) == (20_000, 2)


def test_another_gpu_model_and_another_piece_are_kept_apart() -> None:
    old = [*runs(3, gpu_model="A100"), *runs(3, mode="mig")]
    found = fold([*[run._replace(job_id=f"9{n}", ended_s=0.1) for n, run in enumerate(old)], *runs(40)])
    assert {(run.gpu_model, run.mode) for run in found if run.run_count == 3} == {
        ("A100", "exclusive"),
        ("NVIDIA H100 80GB HBM3", "mig"),
    }


def test_what_is_folded_twice_counts_once() -> None:
    everything = runs(100)
    # An interrupted fold: the folded record is there, and the files that went into it are, too.
    there = {run.job_id: run for run in [*fold(everything[:60]), *everything]}
    assert sum(run.run_count for run in fold(there.values())) == 100
    random.Random(1).shuffle(everything)
    assert fold(everything) == fold(sorted(everything, key=lambda run: run.ended_s))


def test_a_user_is_told_of_the_jobs_that_ran_last() -> None:
    many = [evidence(str(n), signature=f"s{n % 50}", ended_s=float(n)) for n in range(1000)]
    kept = bounded(many, 100)
    assert len(kept) <= 100
    assert {run.signature for run in kept} == {f"s{n}" for n in range(45, 50)}
    assert max(run.ended_s for run in kept) == 999


def test_drops_are_folded_and_runs_whose_end_is_not_known_wait(tmp_path: Path) -> None:
    for run in [*runs(60), evidence("a", state="RUNNING", ended_s=0.1)]:
        drop_evidence(str(tmp_path), run)
    assert fold_drops(str(tmp_path), "sig") == 40
    assert fold_drops(str(tmp_path), "sig") == 0
    assert len(names(tmp_path)) == 22
    assert "a.json" in names(tmp_path)
    found = read_evidence(str(tmp_path), "sig")
    assert found.unreadable == 0
    assert sum(run.run_count for run in found.evidence if run.state == "COMPLETED") == 60
    assert fold_drops(str(tmp_path), "none") == 0


def test_a_thousand_tasks_whose_ends_nobody_asked_for_do_not_stay(tmp_path: Path) -> None:
    for run in runs(260, state="RUNNING"):
        drop_evidence(str(tmp_path), run)
    fold_drops(str(tmp_path), "sig")
    found = read_evidence(str(tmp_path), "sig").evidence
    assert len(names(tmp_path)) < 230
    assert max(run.gpu_mem_peak_mib or 0 for run in found) == 1259


def test_several_that_fold_at_once_lose_nothing(tmp_path: Path) -> None:
    for run in runs(80):
        drop_evidence(str(tmp_path), run)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: fold_drops(str(tmp_path), "sig"), range(6)))
    found = read_evidence(str(tmp_path), "sig").evidence
    assert q99(found) >= 1079 * 1.05
    assert {str(number) for number in range(60, 80)} <= {run.job_id for run in found}
    assert sum(run.run_count for run in found) == 80
    assert "folding" not in names(tmp_path)


def test_who_was_killed_while_folding_stops_the_others_for_an_hour_only(tmp_path: Path) -> None:
    for run in runs(80):
        drop_evidence(str(tmp_path), run)
    mark = Path(os.path.dirname(evidence_path(str(tmp_path), "sig", "0")), "folding")
    mark.touch()
    assert fold_drops(str(tmp_path), "sig") == 0
    os.utime(mark, (1, 1))
    assert fold_drops(str(tmp_path), "sig") == 60


def test_a_damaged_file_is_left_where_it_is(tmp_path: Path) -> None:
    for run in runs(40):
        drop_evidence(str(tmp_path), run)
    bad = Path(evidence_path(str(tmp_path), "sig", "7777"))
    bad.write_bytes(b'{"gpu_mem_peak_mib": NaN}')
    fold_drops(str(tmp_path), "sig")
    assert bad.exists()
    assert read_evidence(str(tmp_path), "sig").unreadable == 1


def test_a_clock_that_went_back_folds_by_its_times_and_keeps_the_peak(tmp_path: Path) -> None:
    back = [evidence(str(1000 + n), 5000 + n, ended_s=-1.0 + n / 1e6) for n in range(5)]
    assert max(run.gpu_mem_peak_mib or 0 for run in fold([*fold(runs(60)), *back])) == 5004


# --- schemas ---


@pytest.mark.parametrize("schema", [1, SCHEMA - 1, SCHEMA + 1, 99])
def test_another_schema_is_not_read(tmp_path: Path, schema: int) -> None:
    path = str(tmp_path / "1.sqlite")
    write_snapshot(path, runs(1))
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {schema}")
    with pytest.raises(StoreError, match=f"schema {schema}, this one reads {SCHEMA}"):
        read_snapshot(path, "sig")


def test_one_flipped_byte_in_a_history_is_named(tmp_path: Path) -> None:
    """Of a damaged schema even SQLite's own words are damaged."""
    path = tmp_path / "1.sqlite"
    write_snapshot(str(path), runs(1))
    whole = path.read_bytes()
    begins, ends = whole.index(b"CREATE INDEX by_family") - 20, whole.index(b"CREATE TABLE evidence") + 500
    named = 0
    for at in range(begins, ends):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 0x80,)) + whole[at + 1 :])
        try:
            read_snapshot(str(path), "sig")
        except StoreError as error:
            named += "run 'colloc ingest' again" in str(error)
    assert named > 300
