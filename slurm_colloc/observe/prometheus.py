# SPDX-License-Identifier: Apache-2.0
"""The last NodeSample for Prometheus to scrape: units by uuid, and what of them belongs to which job.

Names follow Prometheus: base units, and shares as ratios from 0 to 1, so that sums of them count whole units.
"""

import math
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

import slurm_colloc
from slurm_colloc.core.errors import ConfigError
from slurm_colloc.core.units import BYTES_PER_MIB
from slurm_colloc.core.usage_model import AttributedUse, NodeSample
from slurm_colloc.observe.attribute import attribute_sample

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Older than this many periods a NodeSample is no longer shown.
_VALID_PERIODS = 2.5
# Eight GPUs in seven slices each hold 56 jobs; more would be a runaway, which must not fill a Prometheus server.
JOBS_MOST = 64
# For a whole scrape, and how many there may be at a time: the oldest that has asked nothing yet makes room for another.
_CLIENT_S = 2.0
CLIENTS_MOST = 32
_QUESTION_MOST_BYTES = 8192
_UNIT_LABELS = ("uuid", "gpu", "model", "profile")
_SHARE_LABELS = ("uuid", "job_id", "method")
# field -> what follows "colloc_gpu_" and "colloc_job_gpu_", and what it means; GPU_UTIL and SM activity are two things.
_RATIOS = {
    "gpu_util_pct": ("utilization_ratio", "Share of time in which at least one kernel ran (GPU_UTIL)."),
    "gr_active_pct": ("gr_engine_active_ratio", "Share of time in which the graphics or compute engine was active."),
    "sm_active_pct": ("sm_active_ratio", "Share of cycles in which an SM held a warp, mean over the SMs (SMACT)."),
    "sm_occupancy_pct": ("sm_occupancy_ratio", "Resident warps over the most possible, mean over the SMs (SMOCC)."),
    "tensor_active_pct": ("tensor_active_ratio", "Share of cycles in which the tensor pipe was active (TENSO)."),
    "dram_active_pct": ("dram_active_ratio", "Share of the device memory's bandwidth in use (DRAMA)."),
}

_Values = Iterable[tuple[tuple[str, ...], float | None]]
# (metric, owner, method): the owner is a uuid, a job, or both.
_Key = tuple[str, tuple[str, ...], str]


class _Shown(NamedTuple):
    """One NodeSample, ready to be scraped; never changed, so that the server's thread needs no lock."""

    seen: NodeSample
    shares: tuple[AttributedUse, ...]
    jobs: frozenset[str]
    jobs_omitted: int
    totals: Mapping[_Key, float]
    until_s: float


class Endpoint:
    """A server in a thread of its own that answers with the last NodeSample for as long as it is fresh."""

    def __init__(self, address: str, port: int, period_s: float, ticking: Callable[[], float] = time.monotonic) -> None:
        """Listen.

        Args:
            address: the one of this host to listen on.
            port: likewise; 0 picks a free one.
            period_s: between two NodeSamples.
            ticking: a clock that nobody sets.

        Raises:
            ConfigError: the library is missing, or address and port cannot be had.
        """
        try:
            from prometheus_client import CollectorRegistry, generate_latest
            from prometheus_client.exposition import CONTENT_TYPE_LATEST
        except ImportError as error:
            raise ConfigError(
                "observe.prometheus is set, its library is missing: pip install prometheus-client, or leave it empty"
            ) from error
        self._period_s = period_s
        self._ticking = ticking
        self._shown: _Shown | None = None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server = _Server(address, port, CONTENT_TYPE_LATEST, lambda: generate_latest(registry))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on '{address}' port {port} for Prometheus: {error.strerror or error}; "
                "see observe.prometheus"
            ) from error
        self.port: int = self._server.port
        # A daemon: it must not keep an agent that ends.
        Thread(target=self._server.serve, daemon=True).start()

    def show(self, sample: NodeSample) -> None:
        """Answer with this NodeSample from now on."""
        shares = attribute_sample(sample)
        named = {share.job_id for share in shares} | {host.job_id for host in sample.hosts}
        # By age: a job that is shown stays while it runs. A word that is not a number is no job's id.
        numbers = sorted((job for job in named if job.isascii() and job.isdecimal()), key=lambda job: (len(job), job))
        jobs = frozenset(numbers[:JOBS_MOST])
        totals = self._totals(sample, tuple(share for share in shares if share.job_id in jobs | {""}), jobs)
        until_s = self._ticking() + _VALID_PERIODS * self._period_s
        self._shown = _Shown(sample, shares, jobs, len(named - jobs - {""}), totals, until_s)

    def close(self) -> None:
        """Stop answering, without waiting for a client."""
        self._server.close()

    def _totals(self, sample: NodeSample, shares: tuple[AttributedUse, ...], jobs: frozenset[str]) -> dict[_Key, float]:
        """Return the counters so far of what is still there: Prometheus wants sums, however often it asks."""
        added: list[tuple[_Key, float | None]] = [
            (("colloc_gpu_energy_joules", (device.uuid,), ""), device.energy_j) for device in sample.devices
        ]
        added += [
            (("colloc_job_gpu_energy_joules", (share.uuid, share.job_id), share.method), share.energy_j)
            for share in shares
        ]
        for host in sample.hosts:
            if host.job_id in jobs:
                added += [
                    (("colloc_job_cpu_seconds", (host.job_id,), ""), host.cpu_s),
                    (("colloc_job_read_bytes", (host.job_id,), ""), _bytes(host.read_mib)),
                    (("colloc_job_written_bytes", (host.job_id,), ""), _bytes(host.written_mib)),
                ]
        present = {key[:2] for key, _ in added}
        totals = {key: sum_ for key, sum_ in (self._shown.totals if self._shown else {}).items() if key[:2] in present}
        for key, value in added:
            if value is not None:
                totals[key] = totals.get(key, 0.0) + value
        return totals

    def collect(self) -> Iterator["Metric"]:
        """Return what there is to scrape; prometheus-client calls this."""
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        exposed = self._shown
        if exposed is None:
            return
        last = "colloc_last_round_timestamp_seconds", "When the node was last sampled; stays when the figures are gone."
        yield GaugeMetricFamily(*last, value=exposed.seen.at_s)
        if self._ticking() > exposed.until_s:
            return
        sample = exposed.seen
        node = {"node": sample.node, "boot_id": sample.boot_id, "version": slurm_colloc.__version__}
        yield InfoMetricFamily("colloc_node", "What was sampled, and by which release.", value=node)
        yield GaugeMetricFamily(
            "colloc_jobs_omitted", "Jobs of this node that are not shown.", value=exposed.jobs_omitted
        )
        for family in (*_units(exposed), *_job_shares(exposed), *_hosts(exposed)):
            if family.samples:
                yield family


def _units(exposed: _Shown) -> Iterator["Metric"]:
    units = [((unit.uuid, str(unit.gres_index), unit.model, unit.profile), unit) for unit in exposed.seen.devices]
    for field, (name, meaning) in _RATIOS.items():
        values = [(labels, _ratio(getattr(unit, field))) for labels, unit in units]
        yield _gauge(f"colloc_gpu_{name}", meaning, _UNIT_LABELS, values)
    used = [(labels, _bytes(unit.gpu_mem_used_mib)) for labels, unit in units]
    yield _gauge("colloc_gpu_memory_used_bytes", "Device memory in use.", _UNIT_LABELS, used)
    total = [(labels, _bytes(unit.mem_total_mib or None)) for labels, unit in units]
    yield _gauge("colloc_gpu_memory_total_bytes", "Device memory there is.", _UNIT_LABELS, total)
    power = [(labels, unit.power_w) for labels, unit in units]
    yield _gauge("colloc_gpu_power_watts", "Power draw at the moment of reading.", _UNIT_LABELS, power)
    energy = [(labels, exposed.totals.get(("colloc_gpu_energy_joules", (unit.uuid,), ""))) for labels, unit in units]
    yield _counter("colloc_gpu_energy_joules", "Energy taken.", _UNIT_LABELS, energy)


def _job_shares(exposed: _Shown) -> Iterator["Metric"]:
    shares = [share for share in exposed.shares if share.job_id in exposed.jobs | {""}]
    for field, (name, meaning) in _RATIOS.items():
        values = [((part.uuid, part.job_id, part.method), _ratio(getattr(part, field))) for part in shares]
        text = f"The job's part of the unit's figure; without a job the rest. {meaning}"
        yield _gauge(f"colloc_job_gpu_{name}", text, _SHARE_LABELS, values)
    # The method is of the figures that are split; memory and processes are the job's own.
    memory = [((part.uuid, part.job_id), _bytes(part.gpu_mem_used_mib)) for part in shares]
    yield _gauge("colloc_job_gpu_memory_used_bytes", "Device memory of the job's processes.", _SHARE_LABELS[:2], memory)
    processes = [((part.uuid, part.job_id), part.process_count) for part in shares]
    yield _gauge(
        "colloc_job_gpu_processes", "Processes of the job on the unit; 0: held idle.", _SHARE_LABELS[:2], processes
    )
    name = "colloc_job_gpu_energy_joules"
    energy = [((*owner, method), total) for (metric, owner, method), total in exposed.totals.items() if metric == name]
    yield _counter(name, "The job's part of the energy taken; without a job the rest.", _SHARE_LABELS, energy)


def _hosts(exposed: _Shown) -> Iterator["Metric"]:
    memory = [((host.job_id,), _bytes(host.host_mem_mib)) for host in exposed.seen.hosts if host.job_id in exposed.jobs]
    yield _gauge("colloc_job_host_memory_bytes", "Host memory of the job on this node.", ("job_id",), memory)
    for name, meaning in (
        ("colloc_job_cpu_seconds", "CPU time of the job on this node."),
        ("colloc_job_read_bytes", "What the job read on this node."),
        ("colloc_job_written_bytes", "What the job wrote on this node."),
    ):
        values = [(owner, total) for (metric, owner, _), total in exposed.totals.items() if metric == name]
        yield _counter(name, meaning, ("job_id",), values)


def _family(kind: str, name: str, meaning: str, labels: tuple[str, ...], values: _Values) -> "Metric":
    from prometheus_client import core

    family: Metric = getattr(core, kind)(name, meaning, labels=labels)
    for labelled, value in values:
        if value is not None:
            family.add_metric(labelled, value)  # type: ignore[attr-defined]
    return family


_gauge, _counter = partial(_family, "GaugeMetricFamily"), partial(_family, "CounterMetricFamily")


def _ratio(pct: float | None) -> float | None:
    return None if pct is None else pct / 100


def _bytes(mib: float | None) -> float | None:
    return None if mib is None else mib * BYTES_PER_MIB


class _Client:
    """A connection: its question so far, then the rest of the answer."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.question = b""
        self.answer: memoryview | None = None
        # For the whole: a time for each byte would begin anew with the next.
        self.end_s = time.monotonic() + _CLIENT_S


class _Server:
    """All connections in one thread that waits for none of them."""

    def __init__(self, address: str, port: int, content_type: str, render: Callable[[], bytes]) -> None:
        self._content_type = content_type
        self.render = render
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listening = socket.create_server((address, port), family=family)
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._open = True
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(self._listening, selectors.EVENT_READ)
        # The oldest first.
        self._clients: dict[int, _Client] = {}

    def close(self) -> None:
        """Stop listening, which also wakes the thread."""
        self._open = False
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def serve(self) -> None:
        """Answer until closed."""
        while self._open:
            until_s = min((client.end_s for client in self._clients.values()), default=time.monotonic() + _CLIENT_S)
            for key, _ in self._waiting.select(max(0.0, until_s - time.monotonic())):
                client: _Client | None = key.data
                if client is None:
                    self._accept()
                elif self._clients.get(key.fd) is client:  # and was not dropped for another just now
                    self._go_on(client)
            self._drop_those(time.monotonic())
        self._drop_those(math.inf)
        self._waiting.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it went away meanwhile, or we do
            connection, _ = self._listening.accept()
            if len(self._clients) >= CLIENTS_MOST:
                self._drop(min(self._clients.values(), key=lambda client: client.answer is not None))
            connection.setblocking(False)
            client = self._clients[connection.fileno()] = _Client(connection)
            self._waiting.register(connection, selectors.EVENT_READ, client)

    def _go_on(self, client: _Client) -> None:
        try:
            if client.answer is None:
                part = client.connection.recv(_QUESTION_MOST_BYTES)
                client.question += part
                if not part or len(client.question) > _QUESTION_MOST_BYTES:
                    self._drop(client)
                    return
                if b"\r\n\r\n" not in client.question:
                    return
                client.answer = memoryview(self._answer(client.question))
                self._waiting.modify(client.connection, selectors.EVENT_WRITE, client)
            client.answer = client.answer[client.connection.send(client.answer) :]
        except BlockingIOError:
            return
        except OSError:  # it went away
            self._drop(client)
            return
        if not client.answer:
            self._drop(client)

    def _answer(self, question: bytes) -> bytes:
        if not question.startswith(b"GET "):
            return b"HTTP/1.0 405 Method Not Allowed\r\nAllow: GET\r\nContent-Length: 0\r\n\r\n"
        body = self.render()
        head = f"HTTP/1.0 200 OK\r\nContent-Type: {self._content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def _drop_those(self, now_s: float) -> None:
        for client in [open_client for open_client in self._clients.values() if open_client.end_s <= now_s]:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.connection.fileno()]
        self._waiting.unregister(client.connection)
        client.connection.close()
