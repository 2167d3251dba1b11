# SPDX-License-Identifier: Apache-2.0
"""DCGM's figures where NVML has none: recorded answers, a real HTTP server, and what goes wrong."""

import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from slurm_colloc.core.errors import ConfigError, GpuError
from slurm_colloc.gpu import dcgm
from slurm_colloc.gpu.dcgm import (
    WithDcgm,
    parse_discovery,
    parse_dmon,
    parse_exposition,
    parse_fraction,
)
from slurm_colloc.gpu.reader import GpuProcess, GpuUnit, UnitReading
from tests.fakes.http_server import Fake, fake_server
from tests.unit.golden import Printed
from tests.unit.made import RECORDED, near
from tests.unit.programs import program

A100 = "GPU-34319582-d595-d1c7-d1d2-179bcfa61660"
NVL = ("GPU-e48e2dd6-5b6f-f75b-9d3b-39d6ac744225", "GPU-d5f98c67-e581-45b1-9c08-025b7a08a9c1")
NAMES = ("gr_active_pct", "sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct")


def recorded(name: str) -> str:
    return (RECORDED / "dcgm" / name).read_text()


def unit(uuid: str, parent: str = "", instance: int | None = None) -> GpuUnit:
    return GpuUnit(uuid, 0, "M", "1g.5gb" if parent else "", 4864, 14, 108, parent, instance)


class Inner:
    """A reader of units that NVML counts nothing of."""

    complaint = ""

    def __init__(self, *units: GpuUnit, **known: float) -> None:
        self.found = units
        self.known = known
        self.closed = False

    def units(self) -> tuple[GpuUnit, ...]:
        return self.found

    def read(self) -> tuple[tuple[UnitReading, ...], tuple[GpuProcess, ...]]:
        empty = [UnitReading(unit.uuid, True) for unit in self.found]
        return tuple(one._replace(**self.known) for one in empty), ()  # type: ignore[arg-type]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def exporter() -> Iterator[Fake]:
    with fake_server() as server:
        yield server


def figures(reader: WithDcgm) -> list[tuple[float | None, ...]]:
    return [tuple(getattr(one, name) for name in NAMES) for one in reader.read()[0]]


def test_exporter_of_a_cut_gpu() -> None:
    assert parse_exposition(recorded("exporter-a100-mig.txt")) == {
        (A100, None): near({"gr_active_pct": 99.563, "tensor_active_pct": 92.926, "dram_active_pct": 69.0789}),
        (A100, 13): near({"gr_active_pct": 99.5687, "tensor_active_pct": 93.0433, "dram_active_pct": 80.0339}),
    }


def test_exporter_with_labels_of_containers() -> None:
    uuid = "GPU-58e8f5ea-13cc-013a-d88f-2bcf5ae8bc77"
    assert parse_exposition(recorded("exporter-h100-mig.txt")) == {
        (uuid, instance): {"gr_active_pct": 0.0} for instance in (7, 8, 9)
    }


def test_exporter_with_sm_activity() -> None:
    found = parse_exposition(recorded("exporter-t4.txt"))
    assert list(found.values()) == [{"sm_active_pct": 0.0, "sm_occupancy_pct": 0.0}] * 2


def test_labels_with_quotes_and_a_figure_for_each_job() -> None:
    line = r'DCGM_FI_PROF_SM_ACTIVE{modelName="a \"}\" \\",UUID="GPU-1",hpc_job="%d"} 0.5 1700000000000'
    assert parse_exposition("\n".join(line % job for job in (1, 2))) == {("GPU-1", None): {"sm_active_pct": 50.0}}


@pytest.mark.parametrize("instance", ["1" * 5000, "x", "-1", "\u0661"])
def test_a_slice_without_a_number_is_not_taken_for_the_card(instance: str) -> None:
    assert parse_exposition(f'DCGM_FI_PROF_SM_ACTIVE{{UUID="GPU-1",GPU_I_ID="{instance}"}} 0.5') == {}


def test_hostile_lines_cost_no_more_than_others() -> None:
    line = 'DCGM_FI_PROF_SM_ACTIVE{%sUUID="GPU-1"} 0.5'
    assert parse_exposition(line % ("a" * 4096 + '="",')) == {}
    assert parse_exposition(line % "a ") == {("", None): {"sm_active_pct": 50.0}}  # labels end with the first bad one


@pytest.mark.parametrize("text", ["GPU 0%s 0.1", "GPU-I %s1 0.1"])
def test_an_entity_that_is_no_number(text: str) -> None:
    assert parse_dmon("# Entity SMACT\n" + text % ("1" * 5000)) == {}


@pytest.mark.parametrize("text", ["2147483632", "9223372036854775794", "1.4e16", "N/A", "NaN", "+Inf", "-0.1", ""])
def test_blanks(text: str) -> None:
    assert parse_fraction(text) is None


def test_a_fraction_above_one() -> None:
    assert (parse_fraction("1.294"), parse_fraction("0.5")) == (100.0, 50.0)


def test_dcgmi() -> None:
    assert parse_discovery(recorded("discovery-h100-nvl.txt")) == {
        (NVL[0], None): ("GPU", 0),
        (NVL[0], 1): ("GPU-I", 0),
        (NVL[0], 2): ("GPU-I", 1),
        (NVL[1], None): ("GPU", 1),
        (NVL[1], 1): ("GPU-I", 7),
        (NVL[1], 2): ("GPU-I", 8),
    }
    assert parse_dmon(recorded("dmon-a100-mig.txt")) == {
        ("GPU", 0): near({"gr_active_pct": 84.5, "tensor_active_pct": 81.6}),
        ("GPU-I", 0): near({"gr_active_pct": 98.6, "tensor_active_pct": 95.3}),
        ("GPU-I", 1): near({"gr_active_pct": 98.5, "tensor_active_pct": 95.2}),
    }
    assert [tuple(one[name] for name in NAMES) for one in parse_dmon(recorded("dmon-five.txt")).values()] == [
        near((42.9, 42.9, 36.4, 1.1, 40.0)),
        near((0.0, 0.0, 0.0, 0.0, 0.0)),
        near((75.0, 75.0, 63.7, 2.0, 80.0)),
    ]


def test_only_what_is_lacking_is_filled(exporter: Fake) -> None:
    exporter.text = recorded("exporter-a100-mig.txt")
    inner = Inner(unit("MIG-1", A100, 13), unit("MIG-2", A100, 12), gr_active_pct=7.0)
    reader = WithDcgm(inner, exporter.url)
    assert figures(reader) == [(7.0, None, None, near(93.0433), near(80.0339)), (7.0, None, None, None, None)]
    assert "list of counters" in reader.complaint
    reader.close()
    assert inner.closed


def test_whole_gpus(exporter: Fake) -> None:
    exporter.text = recorded("exporter-t4.txt")
    reader = WithDcgm(Inner(unit("GPU-4812b59b-1f1a-430f-d8a4-69d2ee8c18bb")), exporter.url)
    assert figures(reader) == [(None, 0.0, 0.0, None, None)]
    assert reader.complaint == ""


def test_nobody_is_asked_where_nothing_is_lacking(exporter: Fake) -> None:
    reader = WithDcgm(Inner(unit(A100), **dict.fromkeys(NAMES, 1.0)), exporter.url)
    assert figures(reader) == [(1.0,) * 5]
    assert exporter.asked == []


def test_what_is_shared_or_unknown_is_nobodys(exporter: Fake) -> None:
    exporter.text = recorded("exporter-a100-mig.txt")
    shared = (unit("MIG-1", A100, 13), unit("MIG-2", A100, 13))
    assert figures(WithDcgm(Inner(*shared), exporter.url)) == [(None,) * 5] * 2
    assert figures(WithDcgm(Inner(unit("MIG-1", A100, None)), exporter.url)) == [(None,) * 5]


def test_zeros_of_a_busy_gpu(exporter: Fake) -> None:
    exporter.text = recorded("exporter-t4.txt")
    reader = WithDcgm(Inner(unit("GPU-4812b59b-1f1a-430f-d8a4-69d2ee8c18bb"), gpu_util_pct=99.0), exporter.url)
    assert figures(reader) == [(None,) * 5]


def test_a_source_that_is_down_is_complained_of_until_it_is_back(exporter: Fake, printed: Printed) -> None:
    reader = WithDcgm(Inner(unit("GPU-4812b59b-1f1a-430f-d8a4-69d2ee8c18bb")), exporter.url)
    exporter.status = 503
    assert figures(reader) == [(None,) * 5]
    assert f"'{exporter.url}'" in reader.complaint
    printed("agent", reader.complaint.replace(exporter.url, "URL"))
    exporter.status, exporter.text = 200, recorded("exporter-t4.txt")
    assert figures(reader) == [(None, 0.0, 0.0, None, None)]
    assert reader.complaint == ""


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    reader = WithDcgm(Inner(unit(A100)), f"http://127.0.0.1:{port}/metrics")
    assert figures(reader) == [(None,) * 5]
    assert "does not answer" in reader.complaint


def _told(answer: Callable[[socket.socket], object]) -> str:
    """Return the complaint about an exporter that answers like this."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(9999)
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        reader = WithDcgm(Inner(unit(A100)), url)
        assert figures(reader) == [(None,) * 5]
        thread.join()
        return reader.complaint.replace(url, "URL")


def test_an_exporter_that_drips_has_a_time_for_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcgm, "_ANSWER_S", 0.5)
    monkeypatch.setattr(dcgm, "_MOST_BYTES", math.inf)

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        while True:  # until the other end is closed
            connection.sendall(b"#")

    assert "no whole answer in 0.5 s" in _told(drip)


def test_an_answer_without_end(monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    monkeypatch.setattr(dcgm, "_MOST_BYTES", 99)
    printed("agent", _told(lambda connection: connection.sendall(b"x" * 100)))


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n"]
)
def test_what_is_no_plain_http(answer: bytes, printed: Printed) -> None:
    printed("agent", _told(lambda connection: connection.sendall(answer)))


def test_a_number_that_is_cut_is_none() -> None:
    answer = b'HTTP/1.0 200 OK\r\n\r\nDCGM_FI_PROF_SM_ACTIVE{UUID="%s"} 0.5' % A100.encode()
    assert "without SM activity" in _told(lambda connection: connection.sendall(answer))


def test_the_other_readers_error_is_an_error(exporter: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Inner(unit(A100))

    def gone() -> None:
        raise GpuError("gone")

    monkeypatch.setattr(inner, "read", gone)
    with pytest.raises(GpuError, match="gone"):
        WithDcgm(inner, exporter.url).read()


@pytest.mark.parametrize(
    "source",
    ["file:///etc/passwd", "localhost:9400", "nvidia", "http:///metrics", "http://h:99999/metrics", "http://h/a b"],
)
def test_sources_that_are_none(source: str) -> None:
    with pytest.raises(ConfigError, match="neither 'http"):
        WithDcgm(Inner(), source)


DCGMI = """
echo "$@" >> {log}
case "$1" in
    discovery) cat {folder}/discovery-h100-nvl.txt ;;
    dmon) cat <<'END'
#Entity   GRACT        SMACT        SMOCC        TENSO        DRAMA
ID
GPU-I 8   N/A          N/A          N/A          N/A          N/A
GPU-I 8   0.750        0.751        0.637        0.020        0.800
GPU 0     0.429        1.294        0.364        0.011        9223372036854775794.000
END
esac
"""


def test_the_host_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    program(tmp_path, "dcgmi", DCGMI.format(log=log, folder=RECORDED / "dcgm"), monkeypatch)
    reader = WithDcgm(Inner(unit("MIG-8", NVL[1], 2), unit(NVL[0])), "dcgmi")
    for _ in range(2):
        assert figures(reader) == [near((75.0, 75.1, 63.7, 2.0, 80.0)), near((42.9, 100.0, 36.4, 1.1, None))]
    asked = log.read_text().splitlines()
    assert [line.split()[0] for line in asked] == ["discovery", "dmon", "dmon"]  # the hierarchy is asked for once
    assert asked[1].endswith("-e 1001,1002,1003,1004,1005 -i i:8,0")
    assert reader.complaint == ""


def test_no_host_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "dcgmi", "echo 'Error: unable to establish a connection' >&2; exit 1", monkeypatch)
    reader = WithDcgm(Inner(unit(A100)), "dcgmi")
    assert figures(reader) == [(None,) * 5]
    assert "unable to establish a connection" in reader.complaint


def test_slices_that_were_cut_anew_are_looked_up_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a slice was called before it was gone must not be asked for under another's name."""
    known = "| GPU 0 | GPU GPU-1 (EntityID: 0)\n| -> I 0/%d | GPU Instance (EntityID: 5)\n"
    (tmp_path / "now").write_text(known % 1)
    dmon = "printf '#Entity SMACT\\nGPU-I 5 0.5\\n'"
    program(tmp_path, "dcgmi", f'[ "$1" = dmon ] && {dmon} || cat {tmp_path}/now', monkeypatch)
    read = dcgm.dcgmi()
    assert read([("GPU-1", 1)]) == {("GPU-1", 1): {"sm_active_pct": 50.0}}
    (tmp_path / "now").write_text(known % 2)
    places: list[dcgm.Place] = [("GPU-1", 1), ("GPU-1", 2)]
    assert read(places[1:]) == {places[1]: {"sm_active_pct": 50.0}}
    assert read(places[::-1]) == {places[1]: {"sm_active_pct": 50.0}}, "the first is gone"
