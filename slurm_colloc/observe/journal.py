# SPDX-License-Identifier: Apache-2.0
"""The node's journal: one checksummed line for each pass, one file for each hour.

Appending a line is all that happens on the node; a line cut short by a crash fails its checksum and is counted.
"""

import fcntl
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import Any, TypeVar

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import closed_folder, file_mode, open_regular, whose
from slurm_colloc.core.usage_model import DeviceAllocation, DeviceSample, HostSample, NodeSample, ProcessSample
from slurm_colloc.core.value_types import fits

SUFFIX = ".journal"
_LOCK = "sampler.lock"
_HOUR = "%Y%m%dT%H"
_HOUR_S = 3600
# A longer line is no line of ours, and must not be held in memory.
_LINE_LIMIT_BYTES = 64 * 1024 * 1024
# A line is a list that begins with its form.
FORM = 2
# The most by a name's last word, which is its unit: a line that says more would spoil every sum that it is in.
_MOST = {"pct": 100.0, "mib": 2.0**40, "w": 1e5, "j": 1e9}
_Record = TypeVar("_Record", DeviceSample, ProcessSample, DeviceAllocation, HostSample, NodeSample)


def encode(sample: NodeSample) -> bytes:
    """Return the line for one NodeSample."""
    body = json.dumps((FORM, *sample), separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode(lines: Iterable[bytes]) -> Iterator[NodeSample | None]:
    """Yield the NodeSample of each line, None for one that fails its checksum or form."""
    for line in lines:
        if not line:  # a writer that looked while another was half-way through took that line for a torn one
            continue
        checksum, _, body = line.partition(b" ")
        try:
            if int(checksum, 16) != zlib.crc32(body):
                raise ValueError("checksum")
            yield _round(json.loads(body))
        except (ValueError, TypeError, RecursionError):
            yield None


def _round(values: list[Any]) -> NodeSample:
    """Return the NodeSample that ``values`` spell, each of its kind and finite.

    Raises:
        ValueError, TypeError: they do not.
    """
    form, at_s, interval_s, node, boot_id, devices, processes, holders, hosts = values
    if form != FORM:
        raise ValueError(f"form {form}")
    return fitting(
        NodeSample(
            at_s,
            interval_s,
            node,
            boot_id,
            devices=tuple(fitting(DeviceSample(*item)) for item in devices),
            processes=tuple(fitting(ProcessSample(*item)) for item in processes),
            holders=tuple(fitting(DeviceAllocation(*item)) for item in holders),
            hosts=tuple(fitting(HostSample(*item)) for item in hosts),
        )
    )


def fitting(record: _Record) -> _Record:
    """Return ``record`` if each scalar in it is of its kind, and no more than its unit can be.

    Raises:
        ValueError: one is not.
    """
    for name, kind in type(record).__annotations__.items():
        value = getattr(record, name)
        if isinstance(value, tuple):
            continue
        most = _MOST.get(name.rsplit("_", 1)[-1], inf)
        if not fits(value, kind) or (isinstance(value, int | float) and not 0 <= value <= most):
            raise ValueError(f"field '{name}' holds '{value}'")
    return record


def claim(folder: str, node: str) -> int:
    """Make this process the only one that samples ``node`` into ``folder``, until it ends; return the lock held.

    Raises:
        StoreError: another one does, or the folder cannot be written.
    """
    path = os.path.join(folder, node, _LOCK)
    try:
        closed_folder(folder)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, file_mode(folder))
    except OSError as error:
        raise StoreError(
            f"journal '{folder}' cannot be written: {error.strerror}; {whose(path)}; the folder has to belong to the "
            "user whom the agent runs as (install -d -m 0700 -o USER)"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        problem = f"journal '{folder}' cannot be locked: {error.strerror}; put it on the node's own disk"
        if isinstance(error, BlockingIOError):
            problem = f"process {owner} samples node '{node}' into '{folder}' already; end that one first"
        raise StoreError(problem) from error
    os.truncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


# O_NONBLOCK: a FIFO in its place must not hang the agent when it is full.
_APPENDED = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK


def append(folder: str, sample: NodeSample) -> None:
    """Append one NodeSample to the journal of its node and hour under ``folder``.

    Raises:
        StoreError: the folder cannot be written.
    """
    hour = time.strftime(_HOUR, time.gmtime(sample.at_s))
    path = os.path.join(folder, sample.node, hour + SUFFIX)
    try:
        closed_folder(folder)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, _APPENDED, file_mode(folder))
        try:
            size = os.fstat(descriptor).st_size
            # A line that a crash cut short must not take this one with it.
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            line = b"\n" + encode(sample) if torn else encode(sample)
            # One write: with O_APPEND two agents started by mistake interleave lines, not bytes.
            if os.write(descriptor, line) != len(line):
                raise StoreError(f"journal '{path}' could be written in part only; is the disk full?")
            os.fdatasync(descriptor)  # a node that loses power loses no more than a process that is killed
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(f"journal '{path}' cannot be written: {error.strerror}") from error


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise StoreError(f"journal folder '{error.filename}' cannot be read: {error.strerror}") from error


class Hour:
    """The lines of one node's sampler in the hour from ``began_s`` on; iterating reads it line by line.

    ``read_bytes`` and ``rejected`` are of the last reading, and final once every NodeSample was taken: a line that is
    appended meanwhile is either among the NodeSamples or beyond ``read_bytes``.
    """

    def __init__(self, path: str, node: str, began_s: int) -> None:
        self.path, self.node, self.began_s = path, node, began_s
        self.read_bytes = self.rejected = 0

    def __iter__(self) -> Iterator[NodeSample]:
        self.read_bytes = self.rejected = 0
        for sample in decode(self._lines()):
            # A pass that began within the hour may be written somewhat later; another day's has no place here.
            if sample is None or not -_HOUR_S <= sample.at_s - self.began_s < 2 * _HOUR_S or sample.node != self.node:
                self.rejected += 1
            else:
                yield sample

    def _lines(self) -> Iterator[bytes]:
        try:
            with open_regular(self.path, os.O_NOFOLLOW) as stream:
                while line := stream.readline(_LINE_LIMIT_BYTES):
                    self.read_bytes += len(line)
                    yield line.rstrip(b"\n")
        except OSError as error:
            raise StoreError(f"journal '{self.path}' cannot be read: {error.strerror}") from error

    def size_bytes(self) -> int:
        """Return how long the file is now.

        Raises:
            StoreError: it cannot be looked at.
        """
        try:
            return os.stat(self.path).st_size
        except OSError as error:
            raise StoreError(f"journal '{self.path}' cannot be read: {error.strerror}") from error


def hours(folder: str) -> Iterator[Hour]:
    """Yield the journal's files under ``folder``, by node and time; nothing where there is no such folder.

    Raises:
        StoreError: a folder cannot be read.
    """
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders.sort()
        for name in sorted(names):
            with suppress(ValueError):  # not a file of ours
                began = datetime.strptime(name, _HOUR + SUFFIX).replace(tzinfo=UTC)
                yield Hour(os.path.join(parent, name), os.path.basename(parent), int(began.timestamp()))
