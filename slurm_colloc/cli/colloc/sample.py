# SPDX-License-Identifier: Apache-2.0
"""colloc sample: measure a node, or one's own job from inside."""

import os
import select
import signal
import socket
from collections.abc import Iterator
from typing import Annotated

import typer

from slurm_colloc import clock
from slurm_colloc.cli.colloc.output import say, site_or_none, state_folder
from slurm_colloc.errors import CollocError, ConfigError, InputError, StoreError
from slurm_colloc.gpu.reader import GpuReader
from slurm_colloc.history.records import drop_evidence
from slurm_colloc.observe.evidence import EvidenceBuilder
from slurm_colloc.observe.journal import append
from slurm_colloc.observe.mlflow import MlflowOutlet
from slurm_colloc.observe.sampler import Sampler


def sample(
    node: Annotated[str, typer.Option("--node", help="this node's name in Slurm")] = "",
    period: Annotated[float | None, typer.Option("--period", min=0.05, help="seconds between two samples")] = None,
    reader: Annotated[str, typer.Option("--reader", help="nvml, or simulated on a test cluster")] = "",
    devices: Annotated[str, typer.Option("--devices", help="folder of simulated devices")] = "",
    journal: Annotated[str, typer.Option("--journal", help="folder to keep every sample in")] = "",
    evidence: Annotated[str, typer.Option("--evidence", help="folder to keep one job's evidence in")] = "",
    job: Annotated[str, typer.Option("--job", help="look at this job only")] = "",
    signature: Annotated[str, typer.Option("--signature", help="of that job, from csub")] = "",
    mode: Annotated[str, typer.Option("--mode", help="how that job shares its GPU")] = "exclusive",
    watch_pid: Annotated[int, typer.Option("--watch-pid", help="end with this process")] = 0,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="log one's own job to $MLFLOW_RUN_ID")] = False,
    count: Annotated[int, typer.Option("--count", help="end after so many samples; 0: go on")] = 0,
) -> None:
    """Sample GPUs until told to stop: into the node's journal, or into one job's evidence."""
    config = site_or_none()
    period_s = period or (config.observe.period_s if config else 10.0)
    node = node or os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".", 1)[0]
    if not journal and not evidence and not mlflow:
        if config is None:
            raise ConfigError("no folder for samples: give --journal, or a site.toml with paths.state")
        journal = state_folder("journal", writing=True)
        say(f"sampling node {node} every {period_s:g} s into '{journal}'")
    if evidence and not (job and signature):
        raise InputError("--evidence needs --job and --signature")
    chosen = reader or (config.observe.gpu_reader if config else "nvml")
    simulated = devices or (config.observe.simulated_devices if config else "")
    cluster = os.environ.get("SLURM_CLUSTER_NAME") or (config.cluster if config else "")
    outlet = MlflowOutlet(os.environ) if mlflow else None
    opened = _open_reader(chosen, simulated, node, cluster)
    try:
        _loop(
            Sampler(opened, node, period_s, job, cluster=cluster),
            journal,
            evidence,
            (job, signature, mode),
            outlet,
            _ticks(period_s, watch_pid, count),
        )
    finally:
        opened.close()


def _open_reader(name: str, devices: str, node: str, cluster: str) -> GpuReader:
    if name == "nvml":
        from slurm_colloc.gpu.nvml import NvmlReader

        return NvmlReader()
    if name == "simulated":
        from slurm_colloc.gpu.simulated import SimulatedReader

        return SimulatedReader(os.path.join(devices, f"{node}.json"), node, cluster=cluster)
    raise InputError(f"--reader '{name}' is neither nvml nor simulated")


def _ticks(period_s: float, watch_pid: int, count: int) -> Iterator[float]:
    """Yield the times at which to sample: densely at first, so that a short job is seen too, then every period."""
    stop_read, stop_write = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(stop_write, b"."))
    waiting = select.poll()
    waiting.register(stop_read, select.POLLIN)
    if watch_pid:
        try:
            waiting.register(os.pidfd_open(watch_pid), select.POLLIN)
        except ProcessLookupError:
            return
    wait_s, taken = min(1.0, period_s), 0
    while True:
        yield clock.now()
        taken += 1
        if taken == count or waiting.poll(wait_s * 1000):
            return
        wait_s = min(period_s, wait_s * 2)


def _loop(
    sampler: Sampler,
    journal: str,
    evidence: str,
    job: tuple[str, str, str],
    outlet: MlflowOutlet | None,
    ticks: Iterator[float],
) -> None:
    builder = EvidenceBuilder(*job) if evidence else None
    complained, kept = "", 0
    for at_s in ticks:
        try:
            seen = sampler.sample(at_s)
            if journal:
                append(journal, seen)
            if builder is not None:
                drop_evidence(evidence, builder.add(seen))
            complained, kept = "", kept + 1
            if outlet is not None:
                outlet.add(seen)
        except CollocError as error:
            # A driver reload or a full disk passes; the gap shows as coverage. Say it once, not at every pass.
            if str(error) != complained:
                complained = str(error)
                say(complained)
    if outlet is not None:
        try:
            outlet.close()
        except CollocError as error:
            say(str(error))
    if complained and not kept:
        raise StoreError("not one sample could be taken or kept")
