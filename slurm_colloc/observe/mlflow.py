# SPDX-License-Identifier: Apache-2.0
"""Metrics of one's own run for MLflow: the devices under the names that radT gives them, the job's share under ours.

radT's names and units are those of release 0.2.30 (tests/recorded/radt-0.2.30); unlike it, what is not known is not
logged (radT logs 0 or -1 then).
"""

import logging
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from slurm_colloc.errors import CollocError, InputError, StoreError
from slurm_colloc.measured import ADDITIVE, HostSample, Round
from slurm_colloc.observe.attribute import attribute_round
from slurm_colloc.observe.sampler import only_job

# radT's name -> the field of DeviceSample, and the factor to radT's unit: dcgmi gives fractions of 1 but for
# GPU_UTIL, and of nvidia-smi's percent radT makes one.
DEVICE_NAMES: dict[str, tuple[str, float]] = {
    "system/SMI - Power Draw": ("power_w", 1.0),
    "system/SMI - GPU Util": ("gpu_util_pct", 0.01),
    "system/SMI - Mem Used": ("gpu_mem_used_mib", 1.0),
    "system/DCGMI - Power Usage": ("power_w", 1.0),
    "system/DCGMI - GPU Utilization": ("gpu_util_pct", 1.0),
    "system/DCGMI - GR Engine Active": ("gr_active_pct", 0.01),
    "system/DCGMI - SM Active": ("sm_active_pct", 0.01),
    "system/DCGMI - SM Occupancy": ("sm_occupancy_pct", 0.01),
    "system/DCGMI - Tensor Active": ("tensor_active_pct", 0.01),
    "system/DCGMI - DRAM Active": ("dram_active_pct", 0.01),
}
# In percent of one core, as top has it; radT's is of what is called python on the node, this of the job's processes.
CPU_NAME = "system/TOP - CPU Utilization"
OWN = "system/colloc"

# What the server does not take for so long is given up, and with it MLflow.
_PATIENCE_MS = 5 * 60 * 1000
_CLOSE_S = 5.0
# As many as the server takes at once.
_BATCH = 1000
# The client's own defaults: two minutes, eight times over, and a report of its use to its makers.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_TOO_MANY_REQUESTS = 429


class Point(NamedTuple):
    """One value of one metric."""

    name: str
    value: float
    at_ms: int


def points(seen: Round, job_id: str) -> list[Point]:
    """Return what is logged of ``seen``: the devices of ``job_id``, its share of each, and what it did on the host.

    Several devices of a job have the same names in radT and so here; the job's shares bear the device's uuid, and the
    method by which they were found.
    """
    seen = only_job(seen, job_id)
    found: list[tuple[str, float | None, float]] = []
    for device in seen.devices:
        found += [(name, getattr(device, field), factor) for name, (field, factor) in DEVICE_NAMES.items()]
    for share in attribute_round(seen):
        if share.job_id == job_id:
            at = f"{OWN}/{share.uuid}"
            found += [(f"{at}/{field}/{share.method}", getattr(share, field), 1.0) for field in ADDITIVE]
            found.append((f"{at}/gpu_mem_used_mib", share.gpu_mem_used_mib, 1.0))
    for host in seen.hosts:
        if seen.interval_s:
            found.append((CPU_NAME, host.cpu_s, 100 / seen.interval_s))
        found += [(f"{OWN}/{seen.node}/{field}", getattr(host, field), 1.0) for field in HostSample._fields[1:]]
    at_ms = round(seen.at_s * 1000)
    return [Point(name, value * factor, at_ms) for name, value, factor in found if value is not None]


class MlflowOutlet:
    """Log Rounds to an MLflow run from a thread of its own: whoever samples never waits for the server."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Take run, server and job from ``environment``.

        Raises:
            InputError: it does not name them, or there is no mlflow.
        """
        self._run_id = environment.get("MLFLOW_RUN_ID") or environment.get("RADT_RUN_ID", "")
        self._server = environment.get("MLFLOW_TRACKING_URI", "")
        self._job_id = environment.get("SLURM_JOB_ID", "")
        named = {"MLFLOW_RUN_ID": self._run_id, "MLFLOW_TRACKING_URI": self._server, "SLURM_JOB_ID": self._job_id}
        missing = [f"${name}" for name, value in named.items() if not value]
        if missing:
            raise InputError(f"no MLflow run of a job to log to: {', '.join(missing)} not set")
        if find_spec("mlflow") is None:
            raise InputError("metrics for MLflow need its client: pip install mlflow-skinny")
        self._waiting: SimpleQueue[list[Point] | None] = SimpleQueue()
        self._problem: CollocError | None = None
        self._thread = Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def add(self, seen: Round) -> None:
        """Hand one Round over; nothing more is sent once MLflow was given up.

        Raises:
            StoreError: MLflow was given up; said once.
        """
        if self._thread.is_alive():
            self._waiting.put(points(seen, self._job_id))
        self._complain()

    def close(self) -> None:
        """Send what waits, for some seconds at most.

        Raises:
            StoreError: the last metrics were not taken; said once.
        """
        self._waiting.put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            raise StoreError(f"MLflow at '{self._server}' did not answer: the last metrics of the run are missing")
        self._complain()

    def _complain(self) -> None:
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _work(self) -> None:
        try:
            send, held, ended = _sender(self._server, self._run_id), list[Point](), False
            while not ended:
                for more in self._taken():
                    ended = ended or more is None
                    held += more or ()
                held = _sent(send, held, patient=not ended)
        except Exception as error:  # noqa: BLE001 - raised again in the thread that samples
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._problem = StoreError(
                f"MLflow at '{self._server}' did not take the metrics of run '{self._run_id}': {said}; no more are sent"
            )
            self._problem.__cause__ = error

    def _taken(self) -> list[list[Point] | None]:
        """Return all that waits, as soon as something does."""
        taken = [self._waiting.get()]
        while not self._waiting.empty():
            taken.append(self._waiting.get())
        return taken


def _sent(send: Callable[[list[Point]], None], held: list[Point], patient: bool) -> list[Point]:
    """Send ``held`` and return what is to be tried again with the next Round."""
    while held:
        try:
            send(held[:_BATCH])
        except Exception as error:
            if not patient or _final(error) or held[-1].at_ms - held[0].at_ms > _PATIENCE_MS:
                raise
            break
        held = held[_BATCH:]
    return held


def _final(error: Exception) -> bool:
    """Return whether the server answered, and would answer so again: no such run, no right to it."""
    status: int = getattr(error, "get_http_status_code", lambda: 500)()
    return 400 <= status < 500 and status != _TOO_MANY_REQUESTS


def _sender(server: str, run_id: str) -> Callable[[list[Point]], None]:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)  # where mlflow looks; what the user has set stands
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it reports every retry
    from mlflow.entities import Metric  # a second, and twice the memory of all else
    from mlflow.tracking import MlflowClient

    client = MlflowClient(server)

    def send(batch: list[Point]) -> None:
        # radT's step is always 0.
        client.log_batch(run_id, [Metric(*point, 0) for point in batch], synchronous=True)

    return send
