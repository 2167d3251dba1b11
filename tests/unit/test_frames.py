# SPDX-License-Identifier: Apache-2.0
import csv
from pathlib import Path

import pandas as pd

from slurm_colloc.accounting.frames import runs_frame
from slurm_colloc.accounting.sweep import sweep
from slurm_colloc.accounting.window import Window
from tests.unit.made import HOUR, run
from tests.unit.programs import colloc
from tests.unit.stored import busy, stored


def test_a_frame_has_each_run_and_what_is_not_known_is_missing(tmp_path: Path) -> None:
    rows = [run("1"), run("2", user="bob", start_s=HOUR, end_s=2 * HOUR)]
    store = stored(tmp_path, rows, busy(900, 1800))
    with store.connect() as database:
        sweep(database, store, Window(0, 1e6, 1e6))
        frame = runs_frame(database)
    assert list(frame["job_id"]) == ["1", "2"]
    assert list(frame["start"]) == [pd.Timestamp(0, tz="UTC"), pd.Timestamp(HOUR, unit="s", tz="UTC")]
    assert list(frame["methods"]) == ["measured", ""]
    assert frame["gpu_mem_peak_mib"].isna().tolist() == [False, True]
    assert frame["sm_used_gpu_hours"].isna().tolist() == [False, True]
    # Nothing of the host is known.
    kinds = [str(frame[name].dtype) for name in ("sm_used_gpu_hours", "cpu_cores_used", "host_mem_peak_mib")]
    assert kinds == ["float64", "float64", "Int64"]
    assert frame.groupby("user")["allocated_gpu_hours"].sum().to_dict() == {"ann": 1.0, "bob": 1.0}


def test_runs_as_csv_are_inert_in_a_spreadsheet(tmp_path: Path) -> None:
    stored(tmp_path / "store", [run("1", job_name="=cmd()")]).write_log(
        "a", {"rows_in": 1, "used": 1, "steps": 0, "rejected": {}}
    )
    path = tmp_path / "runs.csv"
    argv = ["report", "--store", str(tmp_path / "store"), "--since", "1970-01-01T00:00:00+00:00", "--runs", str(path)]
    assert colloc(*argv) == 0
    (found,) = csv.DictReader(path.open())
    assert (found["job_id"], found["job_name"], found["gpu_mem_peak_mib"]) == ("1", "'=cmd()", "")
