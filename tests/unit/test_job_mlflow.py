# SPDX-License-Identifier: Apache-2.0
"""colloc job --to mlflow: by MLflow's own client into a folder of files, in the names and units that radT gives it."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.cli.colloc import job_mlflow
from slurm_colloc.core.chart_model import JobPiece, JobTimeline
from slurm_colloc.core.errors import InputError, ProcessError
from slurm_colloc.core.usage_model import JobUsage
from slurm_colloc.report.job import JobStory, RunStory
from tests.unit.made import usage
from tests.unit.test_cli_job import Site, as_ann

__all__ = ["as_ann"]
RADT = Path(__file__).parents[1] / "recorded/radt-0.2.30/logged.jsonl"
# What radT read when it wrote that down: 40 % GPU_UTIL, 20 % of the SMs, 3,000 MiB.
READ = JobPiece(40.0, 20.0, 3000)
GAP = JobPiece(None, None, None)


@pytest.fixture(autouse=True)
def _only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in job_mlflow._SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


def story(*runs: JobUsage, pieces: tuple[JobPiece, ...] = (READ, GAP)) -> JobStory:
    return JobStory([RunStory(run, timeline=JobTimeline(0.0, 3600.0, pieces, 1, 0, 0)) for run in runs])


def kept(folder: Path) -> tuple[Any, list[Any]]:
    from mlflow import MlflowClient

    client = MlflowClient(str(folder))
    return client, [run for one in client.search_experiments() for run in client.search_runs([one.experiment_id])]


def test_series_are_radts_and_totals_ours_and_there_is_no_second_run(tmp_path: Path) -> None:
    first = job_mlflow.send(story(usage(start_s=1800.0, energy_j=7200.0)), str(tmp_path))
    client, [run] = kept(tmp_path)
    assert run.info.run_id in first[0]
    recorded: dict[str, float] = {}
    for line in RADT.read_text().splitlines():
        logged = json.loads(line)
        recorded.setdefault(logged["name"], logged["value"])
    series = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    ours = {name: points for name, points in series.items() if name.startswith("system/")}
    assert len(ours) == 3
    assert {name: [(point.value, point.timestamp) for point in points] for name, points in ours.items()} == {
        name: [(recorded[name], 1_800_000)] for name in ours
    }
    assert run.data.metrics["colloc/energy_j"] == 7200.0
    assert {name: run.data.tags[name] for name in ("job", "script", "piece")} == {
        "job": usage().job_id,
        "script": usage().job_name,
        "piece": usage().gres,
    }
    assert (run.info.start_time, run.info.end_time) == (1_800_000, int(1000 * usage().end_s))
    again = job_mlflow.send(story(usage(start_s=1800.0, energy_j=7200.0)), str(tmp_path))
    assert len(kept(tmp_path)[1]) == 1
    assert (run.info.run_id in again[0], again == first) == (True, False)


def test_each_run_of_a_job_is_one_and_what_broke_off_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    def broken(*_: object) -> None:
        raise OSError("the network is gone")

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "log_batch", broken)
        with pytest.raises(ProcessError, match="the network is gone"):
            job_mlflow.send(story(usage(start_s=1.0)), str(tmp_path))
    job_mlflow.send(story(usage(start_s=1.0), usage(start_s=7200.0, end_s=9000.0)), str(tmp_path))
    runs = kept(tmp_path)[1]
    assert {(run.info.start_time, run.info.status) for run in runs} == {(1000, "FINISHED"), (7_200_000, "FINISHED")}
    assert all(run.data.metrics for run in runs)


def test_all_pieces_and_totals_are_one_request(tmp_path: Path) -> None:
    job_mlflow.send(story(usage(), pieces=(READ,) * job_mlflow.PIECES), str(tmp_path))
    client, [run] = kept(tmp_path)
    points = client.get_metric_history(run.info.run_id, "system/SMI - GPU Util")
    assert (len(points), points[-1].timestamp) == (job_mlflow.PIECES, 3_600_000)


def test_what_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError):
        job_mlflow.send(story(usage(state="RUNNING")), str(tmp_path))
    with pytest.raises(ProcessError):
        job_mlflow.send(story(usage()), "nothing://here")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match="pip install mlflow-skinny"):
        job_mlflow.send(story(usage()), str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_at_a_shell(as_ann: Site, tmp_path: Path) -> None:
    status, out, err = as_ann.told("61", "--to", "mlflow", "--uri", str(tmp_path / "runs"))
    assert (status, err, out.count("\n")) == (0, "", 1)
    [run] = kept(tmp_path / "runs")[1]
    assert run.data.tags["job"] == "61"
    assert len([name for name in run.data.metrics if name.startswith("system/")]) >= 2
    assert as_ann.told("61", "--to", "wandb")[0] == as_ann.told("61", "--uri", "x")[0] == 2
