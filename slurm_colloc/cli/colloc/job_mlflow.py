# SPDX-License-Identifier: Apache-2.0
"""colloc job --to mlflow: each run of a job as a run of MLflow's, its series under the names and units of radT.

It is found again by the cluster, the job and its start: a whole one stays there, and one that broke off is written
again, the same points at the same times.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from slurm_colloc.core.chart_model import JobTimeline
from slurm_colloc.core.errors import InputError, ProcessError
from slurm_colloc.core.units import printable
from slurm_colloc.core.usage_model import JobUsage
from slurm_colloc.report.job import JobStory

# Three series of so many pieces and the totals are one request.
PIECES = 300
# Nothing goes out but what was asked for, a folder is taken where one is named, and a server that is not there is told
# within seconds.
_SETTINGS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_GOES_ON = ("RUNNING", "SUSPENDED", "REQUEUED")


def send(story: JobStory, uri: str) -> list[str]:
    """Write the runs of a job, and return of each in words where it is.

    Args:
        story: of a job; the runs that the store knows are written.
        uri: the server's, or that of a folder of files; if empty, MLFLOW_TRACKING_URI says.

    Raises:
        InputError: nothing of the job can be written, or MLflow is not installed.
        ProcessError: MLflow refuses it.
    """
    runs = [(run.usage, run.timeline) for run in story.runs if run.usage and run.usage.state not in _GOES_ON]
    if not runs:
        raise InputError("no run of this job has ended and is in the store: there is nothing for MLflow yet")
    if find_spec("mlflow") is None:
        raise InputError("--to mlflow needs MLflow's client, which is not here: pip install mlflow-skinny")
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient  # a second, which no other command shall wait
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient(uri or None)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "slurm_colloc")
        existing = client.get_experiment_by_name(name)
        experiment = existing.experiment_id if existing else client.create_experiment(name)
        return [_sent(client, experiment, usage, timeline) for usage, timeline in runs]
    except (MlflowException, OSError) as error:
        raise ProcessError(f"MLflow does not take it: {error}") from error


def _sent(client: Any, experiment: str, usage: JobUsage, timeline: JobTimeline | None) -> str:
    tags = {"cluster": usage.cluster, "job": usage.job_id, "script": usage.job_name, "piece": usage.gres}
    began_ms, ended_ms = int(1000 * usage.start_s), int(1000 * usage.end_s)
    condition = " AND ".join(f"tags.{name} = '{tags[name]}'" for name in ("cluster", "job"))
    matches = client.search_runs([experiment], f"{condition} AND attributes.start_time = {began_ms}")
    run = matches[0] if matches else client.create_run(experiment, began_ms, tags, f"{usage.job_name} {usage.job_id}")
    where = f"job {printable(usage.job_id)} is run {run.info.run_id} of MLflow's experiment {experiment}"
    if run.info.status == "FINISHED":
        return f"{where}, written before"
    client.log_batch(run.info.run_id, list(_metrics(usage, timeline, ended_ms)))
    client.set_terminated(run.info.run_id, "FINISHED", ended_ms)
    return where


def _metrics(usage: JobUsage, timeline: JobTimeline | None, ended_ms: int) -> Iterator[Any]:
    """Yield the points of the series, each at the end of its piece, and the totals under the names of our JSON."""
    from mlflow.entities import Metric

    pieces = timeline.pieces if timeline else ()
    for number, piece in enumerate(pieces, 1):
        assert timeline
        at_ms = int(1000 * (timeline.since_s + (timeline.until_s - timeline.since_s) * number / len(pieces)))
        if piece.gpu_util_pct is not None:
            yield Metric("system/SMI - GPU Util", piece.gpu_util_pct / 100, at_ms, number)
        if piece.sm_active_pct is not None:
            yield Metric("system/DCGMI - SM Active", piece.sm_active_pct / 100, at_ms, number)
        if piece.gpu_mem_mib is not None:
            yield Metric("system/SMI - Mem Used", piece.gpu_mem_mib, at_ms, number)
    for name, value in usage._asdict().items():
        if isinstance(value, float | int) and name not in ("start_s", "end_s"):
            yield Metric(f"colloc/{name}", float(value), ended_ms, 0)
