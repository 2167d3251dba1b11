# SPDX-License-Identifier: Apache-2.0
"""What Prometheus gets to see of a node: read by prometheus-client's own parser, over HTTP."""

import re
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slurm_colloc import __version__
from slurm_colloc.core.errors import ConfigError
from slurm_colloc.core.usage_model import HostSample
from slurm_colloc.observe import prometheus
from slurm_colloc.observe.prometheus import CLIENTS_MOST, JOBS_MOST, Endpoint
from tests.unit.golden import Printed
from tests.unit.made import device, near, process, seen

Scraped = dict[tuple[str, tuple[tuple[str, str], ...]], float]
UNIT = {"uuid": "GPU-0", "gpu": "0", "model": "NVIDIA H100 80GB HBM3", "profile": ""}


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def endpoint(clock: Clock) -> Iterator[Endpoint]:
    made = Endpoint("127.0.0.1", 0, period_s=10.0, ticking=clock)
    yield made
    made.close()


def scrape(endpoint: Endpoint) -> Scraped:
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def at(scraped: Scraped, name: str, **labels: str) -> float | None:
    return scraped.get((name, tuple(sorted(labels.items()))))


def names(scraped: Scraped) -> set[str]:
    return {name for name, _ in scraped}


def test_nothing_before_the_first_round(endpoint: Endpoint) -> None:
    assert scrape(endpoint) == {}


def test_a_unit_and_the_job_on_it(endpoint: Endpoint) -> None:
    host = HostSample("1", cpu_s=5.0, host_mem_mib=2, read_mib=3.0, written_mib=0.0)
    endpoint.show(seen(1000.0, [device()], [process("1")], hosts=[host]))
    found = scrape(endpoint)
    assert at(found, "colloc_gpu_utilization_ratio", **UNIT) == 0.4
    assert at(found, "colloc_gpu_sm_active_ratio", **UNIT) == 0.2
    assert at(found, "colloc_gpu_memory_used_bytes", **UNIT) == 3000 * 1024**2
    assert at(found, "colloc_gpu_memory_total_bytes", **UNIT) == 81559 * 1024**2
    assert at(found, "colloc_gpu_power_watts", **UNIT) == 300.0
    assert at(found, "colloc_gpu_energy_joules_total", **UNIT) == 3000.0
    mine = {"uuid": "GPU-0", "job_id": "1"}
    assert at(found, "colloc_job_gpu_sm_active_ratio", **mine, method="measured") == 0.2
    assert at(found, "colloc_job_gpu_energy_joules_total", **mine, method="measured") == 3000.0
    assert at(found, "colloc_job_gpu_memory_used_bytes", **mine) == 3000 * 1024**2
    assert at(found, "colloc_job_gpu_processes", **mine) == 1
    rest = {"uuid": "GPU-0", "job_id": ""}
    assert at(found, "colloc_job_gpu_sm_active_ratio", **rest, method="unattributed") == 0.0
    assert at(found, "colloc_job_cpu_seconds_total", job_id="1") == 5.0
    assert at(found, "colloc_job_host_memory_bytes", job_id="1") == 2 * 1024**2
    assert at(found, "colloc_job_read_bytes_total", job_id="1") == 3 * 1024**2
    assert at(found, "colloc_job_written_bytes_total", job_id="1") == 0.0
    assert at(found, "colloc_node_info", node="g1", boot_id="boot", version=__version__) == 1
    assert at(found, "colloc_last_round_timestamp_seconds") == 1000.0
    assert at(found, "colloc_jobs_omitted") == 0


def test_the_jobs_parts_and_the_rest_add_up_to_the_unit(endpoint: Endpoint) -> None:
    both = [process("1", 1, sm_util_pct=30.0), process("2", 2, sm_util_pct=10.0), process("", 3, sm_util_pct=20.0)]
    endpoint.show(seen(1000.0, [device()], both))
    found = scrape(endpoint)
    parts = {labels: value for (name, labels), value in found.items() if name == "colloc_job_gpu_sm_active_ratio"}
    assert len(parts) == 3
    assert sum(parts.values()) == near(0.2)


def test_what_is_missing_is_absent(endpoint: Endpoint) -> None:
    slice_ = device(gpu_util_pct=None, power_w=None, energy_j=None, gpu_mem_used_mib=None, mem_total_mib=0)
    host = HostSample("1", cpu_s=None, host_mem_mib=None, read_mib=None, written_mib=None)
    endpoint.show(seen(1000.0, [slice_], [process("1", gpu_mem_used_mib=None)], hosts=[host]))
    assert names(scrape(endpoint)) == {
        "colloc_last_round_timestamp_seconds",
        "colloc_node_info",
        "colloc_jobs_omitted",
        *(
            f"colloc_{whose}gpu_{figure}_ratio"
            for whose in ("", "job_")
            for figure in ("gr_engine_active", "sm_active", "sm_occupancy", "tensor_active", "dram_active")
        ),
        "colloc_job_gpu_processes",
    }


def test_counters_add_up_while_a_job_is_there_and_go_with_it(endpoint: Endpoint) -> None:
    def show(at_s: float, energy_j: float | None, *jobs: str) -> Scraped:
        host = [HostSample(job, 2.0, None, None, None) for job in jobs]
        endpoint.show(seen(at_s, [device(energy_j=energy_j)], [process(job) for job in jobs], hosts=host))
        return scrape(endpoint)

    mine = {"uuid": "GPU-0", "job_id": "1", "method": "measured"}
    show(10.0, 100.0, "1")
    found = show(20.0, 50.0, "1")
    assert at(found, "colloc_gpu_energy_joules_total", **UNIT) == 150.0
    assert at(found, "colloc_job_gpu_energy_joules_total", **mine) == 150.0
    assert at(found, "colloc_job_cpu_seconds_total", job_id="1") == 4.0
    assert at(show(30.0, None, "1"), "colloc_gpu_energy_joules_total", **UNIT) == 150.0
    # What was split by another method meanwhile is a series of its own, and neither falls back.
    shared = show(40.0, 60.0, "1", "2")
    assert at(shared, "colloc_job_gpu_energy_joules_total", **mine) == 150.0
    assert at(shared, "colloc_job_gpu_energy_joules_total", **(mine | {"method": "split by memory"})) == 30.0
    gone = show(50.0, 10.0)
    assert at(gone, "colloc_gpu_energy_joules_total", **UNIT) == 220.0
    assert at(gone, "colloc_job_cpu_seconds_total", job_id="1") is None
    assert not any(dict(labels).get("job_id") for _, labels in gone)


def test_an_old_round_vanishes(endpoint: Endpoint, clock: Clock) -> None:
    endpoint.show(seen(1000.0, [device()]))
    clock.now_s += 25.0
    assert "colloc_gpu_sm_active_ratio" in names(scrape(endpoint))
    clock.now_s += 0.1
    assert names(scrape(endpoint)) == {"colloc_last_round_timestamp_seconds"}
    endpoint.show(seen(1030.0, [device()]))
    assert "colloc_gpu_sm_active_ratio" in names(scrape(endpoint))


def test_labels_come_from_what_is_there_and_are_bounded(endpoint: Endpoint) -> None:
    ids = [str(number) for number in range(90, 90 + JOBS_MOST + 3)]
    host = [HostSample(job, 1.0, 1, 1.0, 1.0) for job in ids]
    endpoint.show(seen(1000.0, [device()], [process(job) for job in [*ids, '1"} 7\nevil', "neighbour-1"]], hosts=host))
    found = scrape(endpoint)
    shown = {dict(labels).get("job_id") for _, labels in found} - {None, ""}
    assert shown == set(ids[:JOBS_MOST])
    assert at(found, "colloc_jobs_omitted") == 5
    endpoint.show(seen(1010.0, [device("GPU-1")]))
    assert {dict(labels).get("uuid") for _, labels in scrape(endpoint)} == {None, "GPU-1"}


@pytest.mark.parametrize("job", ["evil", "neighbour-1", "7_1", "-7", "\u0667"])
def test_only_a_number_is_a_jobs_id(endpoint: Endpoint, job: str) -> None:
    endpoint.show(
        seen(1000.0, [device()], [process(job), process("7", 101)], hosts=[HostSample(job, 1.0, 1, 1.0, 1.0)])
    )
    found = scrape(endpoint)
    assert {dict(labels).get("job_id") for _, labels in found} == {None, "", "7"}
    assert at(found, "colloc_jobs_omitted") == 1


def test_it_ends_when_closed_and_its_port_is_free_again() -> None:
    first = Endpoint("127.0.0.1", 0, 10.0)
    with pytest.raises(ConfigError, match=f"'127.0.0.1' port {first.port} .*in use.*observe.prometheus"):
        Endpoint("127.0.0.1", first.port, 10.0)
    first.close()
    with pytest.raises(urllib.error.URLError):
        scrape(first)
    Endpoint("127.0.0.1", first.port, 10.0).close()


@pytest.mark.parametrize("address", ["256.0.0.1", "no such host"])
def test_an_address_that_is_none(address: str, printed: Printed) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(address)}.*observe\.prometheus") as raised:
        Endpoint(address, 0, 10.0)
    printed("agent", str(raised.value).replace(address, "ADDRESS").partition(": ")[0])


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match="pip install prometheus-client"):
        Endpoint("127.0.0.1", 0, 10.0)


def test_a_client_that_says_nothing_or_goes_away_stops_nobody(
    endpoint: Endpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    endpoint.show(seen(1000.0, [device()]))
    for words in (b"", b"GET /metrics HTTP/1.1\r\n\r\n"):
        rude = socket.create_connection(("127.0.0.1", endpoint.port))
        rude.sendall(words)
        # Closed with a reset.
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        rude.close()
    assert names(scrape(endpoint))
    assert capfd.readouterr() == ("", "")


def test_a_client_that_drips_has_a_time_for_the_whole(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_CLIENT_S", 0.1)
    endpoint.show(seen(1000.0, [device()]))
    with socket.create_connection(("127.0.0.1", endpoint.port)) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        gone = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not gone.wait(0.01):
                    slow.sendall(b"a")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert names(scrape(endpoint))
        finally:
            gone.set()
            thread.join()


@pytest.mark.parametrize("number", [12, 3 * CLIENTS_MOST])
def test_silent_connections_keep_nobody_from_scraping(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(prometheus, "_CLIENT_S", 600.0)
    endpoint.show(seen(1000.0, [device()]))
    address = "127.0.0.1", endpoint.port
    with ExitStack() as open_:
        silent = [open_.enter_context(socket.create_connection(address)) for _ in range(number)]
        for client in silent[::2]:
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert names(scrape(endpoint))
        assert len(endpoint._server._clients) <= CLIENTS_MOST


def test_a_silent_connection_is_ended(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_CLIENT_S", 0.05)
    with socket.create_connection(("127.0.0.1", endpoint.port)) as silent:
        silent.settimeout(10)
        assert silent.recv(1) == b""


def test_who_asks_goes_after_who_is_silent(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest has asked and does not take its answer; for one connection too many the oldest silent one goes."""
    monkeypatch.setattr(prometheus, "_CLIENT_S", 600.0)
    endpoint._server.render = lambda: bytes(50_000_000)
    address = "127.0.0.1", endpoint.port
    with ExitStack() as open_:
        asking, *silent = (open_.enter_context(socket.create_connection(address)) for _ in range(CLIENTS_MOST))
        asking.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert asking.recv(12) == b"HTTP/1.0 200"
        open_.enter_context(socket.create_connection(address))
        silent[0].settimeout(1)
        assert silent[0].recv(1) == b""
        silent[1].settimeout(0.05)
        with pytest.raises(TimeoutError):
            silent[1].recv(1)
        asking.settimeout(1)
        assert asking.recv(1)


@pytest.mark.parametrize(
    ("question", "status"),
    [(b"POST / HTTP/1.1\r\n\r\n", b"HTTP/1.0 405"), (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n", b"")],
)
def test_what_is_no_scrape(endpoint: Endpoint, question: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port)) as client, suppress(ConnectionError):
        client.sendall(question)
        assert client.recv(12) == status


def test_it_ends_beside_a_client_that_is_being_served() -> None:
    made = Endpoint("127.0.0.1", 0, 10.0)
    served, ended = threading.Event(), threading.Event()

    def render() -> bytes:
        served.set()
        ended.wait()
        return b""

    made._server.render = render
    with socket.create_connection(("127.0.0.1", made.port)) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        served.wait()
        made.close()  # would not return if it waited
        Endpoint("127.0.0.1", made.port, 10.0).close()
        ended.set()


def test_the_library_is_imported_only_when_switched_on() -> None:
    code = "import sys, slurm_colloc.observe.prometheus; print('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
