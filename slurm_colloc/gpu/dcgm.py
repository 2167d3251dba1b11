# SPDX-License-Identifier: Apache-2.0
"""Figures of DCGM where NVML counts nothing: the profiling figures of GPUs before Hopper, and of their MIG slices.

The source is what already runs: a dcgm-exporter, or the host engine through ``dcgmi``. Its figures are means over its
own period, not over the sampler's. An exporter's list of counters has to name those of SM activity, which the default
list does not.
"""

import re
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from slurm_colloc import __version__
from slurm_colloc.core import clock
from slurm_colloc.core.config_schema import parse_url
from slurm_colloc.core.errors import CollocError, ConfigError, GpuError
from slurm_colloc.core.process import ask
from slurm_colloc.gpu.reader import GpuProcess, GpuReader, GpuUnit, UnitReading, activity_pct, stands_still

# Our field, DCGM's number, its name in Prometheus, and its heading in `dcgmi dmon`; all are fractions.
_FIELDS = (
    ("gr_active_pct", 1001, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "GRACT"),
    ("sm_active_pct", 1002, "DCGM_FI_PROF_SM_ACTIVE", "SMACT"),
    ("sm_occupancy_pct", 1003, "DCGM_FI_PROF_SM_OCCUPANCY", "SMOCC"),
    ("tensor_active_pct", 1004, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "TENSO"),
    ("dram_active_pct", 1005, "DCGM_FI_PROF_DRAM_ACTIVE", "DRAMA"),
)
_BY_METRIC = {metric: name for name, _, metric, _ in _FIELDS}
_BY_HEADING = {heading: name for name, _, _, heading in _FIELDS}
# Another program on an exporter's port must neither stall the sampling nor fill the memory.
_ANSWER_S, _CONNECT_S = 1.5, 0.5
_MOST_BYTES, _LONGEST_LINE = 4 * 1024 * 1024, 4096
# Two readings a second apart: the first of a watch that has just begun is blank.
_DMON = ("dcgmi", "dmon", "-d", "1000", "-c", "2", "-e", ",".join(str(number) for _, number, _, _ in _FIELDS), "-i")
_DISCOVERY = ("dcgmi", "discovery", "-c")
_DCGMI_TIMEOUT_S = 6.0

_LINE = re.compile(r"(DCGM_FI_PROF_\w+)\{(.*)\}\s+(\S+)")
_LABEL = re.compile(r'\s*(\w+)="((?:[^"\\]|\\.)*)"\s*,?')
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})\b")
_INSTANCE = re.compile(r"[0-9]{0,4}")
_ESCAPED = re.compile(r"\\(.)")
_HIERARCHY_GPU = re.compile(r"\| GPU \d+\s+\| GPU (GPU-\S+) \(EntityID: (\d{1,9})\)")
_HIERARCHY_SLICE = re.compile(r"\| -> I \d+/(\d{1,9})\s+\| GPU Instance \(EntityID: (\d{1,9})\)")
_DMON_ROW = re.compile(r"\s*(GPU|GPU-I)\s+(\d{1,9})\s+(.*)")

# A GPU's uuid and the GPU instance on it, None for the whole GPU; and its figures by our names.
Place = tuple[str, int | None]
Figures = dict[str, float | None]
Source = Callable[[Sequence[Place]], dict[Place, Figures]]


def parse_exposition(text: str) -> dict[Place, Figures]:
    """Return the profiling figures in a dcgm-exporter's answer (Prometheus' text format).

    A figure that is repeated for each job or container on a GPU is the GPU's every time, and counts once.
    """
    figures: dict[Place, Figures] = {}
    for line in text.splitlines():
        match = _LINE.match(line) if len(line) <= _LONGEST_LINE else None
        name = _BY_METRIC.get(match[1]) if match else None
        if match is None or name is None:
            continue
        labels = parse_labels(match[2])
        instance = labels.get("GPU_I_ID", "")
        if _INSTANCE.fullmatch(instance):
            place = labels.get("UUID", ""), int(instance) if instance else None
            figures.setdefault(place, {})[name] = parse_fraction(match[3])
    return figures


def parse_labels(text: str) -> dict[str, str]:
    """Return the labels of one line, up to the first that is none."""
    labels: dict[str, str] = {}
    start = 0
    while match := _LABEL.match(text, start):
        labels[match[1]] = _ESCAPED.sub(r"\1", match[2])
        start = match.end()
    return labels


def parse_fraction(text: str) -> float | None:
    """Return a fraction as a percentage; None for DCGM's blanks (2147483632, 9223372036854775794), ``N/A`` and NaN."""
    try:
        return activity_pct(float(text) * 100)
    except ValueError:
        return None


def parse_discovery(text: str) -> dict[Place, tuple[str, int]]:
    """Return how dcgmi calls each GPU and GPU instance, from ``dcgmi discovery -c``: ("GPU" or "GPU-I", number)."""
    entities: dict[Place, tuple[str, int]] = {}
    uuid = ""
    for line in text.splitlines():
        if match := _HIERARCHY_GPU.match(line):
            uuid = match[1]
            entities[uuid, None] = "GPU", int(match[2])
        elif uuid and (match := _HIERARCHY_SLICE.match(line)):
            entities[uuid, int(match[1])] = "GPU-I", int(match[2])
    return entities


def parse_dmon(text: str) -> dict[tuple[str, int], Figures]:
    """Return the last figures of each entity in the output of ``dcgmi dmon``."""
    headings: list[str] = []
    figures: dict[tuple[str, int], Figures] = {}
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            headings = line.replace("#", " ").split()[1:]
        elif match := _DMON_ROW.match(line):
            values = zip(headings, match[3].split(), strict=False)
            figures[match[1], int(match[2])] = {
                _BY_HEADING[heading]: parse_fraction(value) for heading, value in values if heading in _BY_HEADING
            }
    return figures


def exporter(url: str) -> Source:
    """Return the source that is the dcgm-exporter at ``url``.

    Raises:
        ConfigError: it is no http or https URL.
    """
    address = parse_url(url, "/metrics")
    if address is None:
        raise ConfigError(f"observe.dcgm '{url}' is neither 'http://host:port/path' of a dcgm-exporter nor 'dcgmi'")
    tls, host, port, path = address

    def read(places: Sequence[Place]) -> dict[Place, Figures]:
        try:
            answer = _answer(tls, host, port, path)
        except (OSError, UnicodeError) as error:  # the latter of a name too long for DNS
            raise GpuError(
                f"dcgm-exporter '{url}' does not answer: {error}; start it or correct observe.dcgm, until "
                f"'curl {url}' prints figures"
            ) from error
        head, _, body = answer.partition(b"\r\n\r\n")
        status = _STATUS.match(head)
        if status is None or b"\ntransfer-encoding:" in head.lower():
            raise GpuError(f"dcgm-exporter '{url}' answers what is no HTTP/1.0; is it one?")
        if status[1] != b"200":
            raise GpuError(f"dcgm-exporter '{url}' answers with status {status[1].decode()}")
        # A last line without its end may be cut, and with it a number.
        return parse_exposition(body.rpartition(b"\n")[0].decode(errors="replace"))

    return read


def _answer(tls: bool, host: str, port: int, path: str) -> bytes:
    """Return all that is answered, in a time that is for the whole: http.client's begins anew with each byte."""
    deadline_s = clock.ticking() + _ANSWER_S
    with socket.create_connection((host, port), timeout=_CONNECT_S) as plain, _secured(plain, tls, host) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\nUser-Agent: colloc/{__version__}\r\n\r\n".encode())
        pieces, size = list[bytes](), 0
        while True:
            left_s = deadline_s - clock.ticking()
            if left_s <= 0:
                raise TimeoutError(f"no whole answer in {_ANSWER_S:g} s")
            connection.settimeout(left_s)
            try:
                piece = connection.recv(65536)
            except TimeoutError:
                continue  # the time for the whole is over, too
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
            if size > _MOST_BYTES:
                raise OSError(f"more than {_MOST_BYTES} bytes")


def _secured(plain: socket.socket, tls: bool, host: str) -> socket.socket:
    if not tls:
        return plain
    import ssl  # only where it is needed: it takes memory for months

    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)


def dcgmi() -> Source:
    """Return the source that is the host engine on this node, asked through dcgmi; each reading takes two seconds."""
    entities_of: dict[Place, tuple[str, int]] = {}

    def read(places: Sequence[Place]) -> dict[Place, Figures]:
        if not entities_of.keys() >= set(places):
            entities_of.clear()
            entities_of.update(parse_discovery(ask(_DISCOVERY, _DCGMI_TIMEOUT_S).decode(errors="replace")))
        wanted_places = {entities_of[place]: place for place in places if place in entities_of}
        if not wanted_places:
            return {}
        entities = ",".join(f"i:{number}" if kind == "GPU-I" else str(number) for kind, number in wanted_places)
        figures = parse_dmon(ask([*_DMON, entities], _DCGMI_TIMEOUT_S).decode(errors="replace"))
        return {wanted_places[entity]: values for entity, values in figures.items() if entity in wanted_places}

    return read


class WithDcgm:
    """A GpuReader that takes from DCGM what another one has not.

    ``complaint`` says why nothing came of it at the last reading, empty when all was well; sampling goes on without.
    """

    def __init__(self, reader: GpuReader, source: str) -> None:
        self.complaint = ""
        self._reader = reader
        self._source = dcgmi() if source == "dcgmi" else exporter(source)

    def units(self) -> tuple[GpuUnit, ...]:
        """Return the other reader's units."""
        return self._reader.units()

    def read(self) -> tuple[tuple[UnitReading, ...], tuple[GpuProcess, ...]]:
        """Return the other reader's readings, with DCGM's figures where it has none.

        Raises:
            GpuError: the other reader's.
        """
        readings, processes = self._reader.read()
        places = _places(self._reader.units())
        lacking = {
            reading.uuid: places[reading.uuid]
            for reading in readings
            if reading.uuid in places and any(getattr(reading, name) is None for name, *_ in _FIELDS)
        }
        self.complaint = ""
        figures: Mapping[Place, Figures] = {}
        if lacking:
            try:
                figures = self._source(tuple(lacking.values()))
                if all(figures.get(place, {}).get("sm_active_pct") is None for place in lacking.values()):
                    self.complaint = "DCGM answers without SM activity; does the exporter's list of counters name it?"
            except CollocError as error:
                self.complaint = f"no figures of DCGM: {error}"
        by_uuid = {uuid: figures.get(place, {}) for uuid, place in lacking.items()}
        return tuple(_filled(reading, by_uuid.get(reading.uuid, {})) for reading in readings), processes

    def close(self) -> None:
        """Close the other reader."""
        self._reader.close()


def _places(units: Sequence[GpuUnit]) -> dict[str, Place]:
    """Return the place of each unit whose figures DCGM counts for itself."""
    places = {unit.uuid: (unit.parent_uuid or unit.uuid, unit.gpu_instance) for unit in units}
    # Compute instances share the counters of their GPU instance; a slice of unknown instance must not get the card's.
    alone = Counter(places.values())
    return {
        unit.uuid: places[unit.uuid]
        for unit in units
        if alone[places[unit.uuid]] == 1 and (not unit.profile or unit.gpu_instance is not None)
    }


def _filled(reading: UnitReading, figures: Figures) -> UnitReading:
    if stands_still(reading.gpu_util_pct, figures):
        return reading
    new = {name: value for name, value in figures.items() if getattr(reading, name) is None and value is not None}
    return reading._replace(**new)  # type: ignore[arg-type]
