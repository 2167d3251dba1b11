# SPDX-License-Identifier: Apache-2.0
"""What tests/gpu/footprints.py runs and writes, on a machine that is made up."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.gpu.footprints import COLUMNS, Config, Seen, Table, batches, fill, missing, read_table

A, B, C = (Config(("--model", name)) for name in "abc")


class FakeMachine:
    def __init__(self, room: float = 1000.0) -> None:
        self.room, self.calls = room, list[str]()

    def alone(self, config: Config) -> Seen:
        self.calls.append(f"alone {config.words[-1]}")
        if config == C:
            return Seen("GPU_OOM", "H100", 900.0, 800.0)
        return Seen("COMPLETED", "H100", 400.0, 300.5, 55.25, None)

    def together(self, configs: Sequence[Config]) -> list[Seen]:
        self.calls.append("together " + " ".join(config.words[-1] for config in configs))
        return [Seen("COMPLETED", "H100", 410.0, 300.5) for _ in configs]

    def room_mib(self) -> float:
        return self.room


def test_each_runs_alone_first_and_then_beside_others_and_what_failed_runs_once(tmp_path: Path) -> None:
    table, machine = Table(tmp_path / "t.csv", now=lambda: 7.0), FakeMachine()
    assert fill(table, [A, B, C], machine, lambda: 1.0) == 0
    assert machine.calls == ["alone a", "alone b", "alone c", "together a b", "together a b"]
    assert (tmp_path / "t.csv").read_text().splitlines() == [
        ",".join(COLUMNS),
        "7,python train.py --model a,H100,COMPLETED,400,300.5,55.25,",
        "7,python train.py --model b,H100,COMPLETED,400,300.5,55.25,",
        "7,python train.py --model c,H100,GPU_OOM,900,800,,",
        "7,python train.py --model a,H100,COMPLETED,410,300.5,,",
        "7,python train.py --model b,H100,COMPLETED,410,300.5,,",
        "7,python train.py --model a,H100,COMPLETED,410,300.5,,",
        "7,python train.py --model b,H100,COMPLETED,410,300.5,,",
    ]


def test_a_run_that_was_cut_short_goes_on_where_it_was(tmp_path: Path) -> None:
    path, times = tmp_path / "t.csv", iter([1.0, 0.0, 0.0, 0.0])
    assert fill(Table(path), [A, B], FakeMachine(), lambda: next(times)) == 2
    with path.open("a") as stream:
        stream.write("9,python train.py --model b,H1")
    table, machine = Table(path), FakeMachine(room=0.0)
    assert len(table.rows) == 1
    assert fill(table, [A, B], machine, lambda: 1.0) == 0
    assert machine.calls == ["alone b", *["alone a", "alone b"] * 2]
    assert len(read_table(path)) == 6


def test_only_what_fits_runs_side_by_side() -> None:
    peaks = {A.command: 600.0, B.command: 300.0}
    assert batches([A, B, C], peaks, 1000.0) == [[B, A], [C]]
    assert batches([A, B], peaks, 800.0) == [[B], [A]]
    assert missing([A], [{"command": A.command, "state": "COMPLETED"}]) == ([], [A])


def test_a_table_of_other_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit, match="other columns"):
        Table(tmp_path / "t.csv")
