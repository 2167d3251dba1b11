# SPDX-License-Identifier: Apache-2.0
"""The two ends of a pack's shared loader, by tensorsocket: Python finds this module in its producer and its tasks.

It stands alone, for the Python of the user, and keeps to what was seen of tensorsocket 0.0.5: its producer waits for
ever for a consumer that went at the end of an epoch, hands a consumer that was silent for half a second no more of
that epoch, and after ten seconds writes over batches that a slow one has not read yet. Here it waits for those that
live, and a consumer whose epoch breaks off says so.
"""

import atexit
import os
import threading
from collections import Counter
from typing import Any, NoReturn

import tensorsocket
from tensorsocket import heartbeat, producer

_KNOWN = "0.0.5"
if tensorsocket.__version__ != _KNOWN:
    raise ImportError(
        f"csub_loader knows tensorsocket {_KNOWN}, not {tensorsocket.__version__}: install that, or give the ports in"
        " CSUB_LOADER_PORTS to its own TensorProducer and TensorConsumer"
    )
# Of its beats, two a second: one that holds Python's lock for a while is not dead.
_SILENT_BEATS = 20
# How many batches are handed out together: 1 hangs, and up to so many at the end of an epoch are left out.
_TOGETHER = 2
# In a shorter epoch nobody could tell a consumer that has read it from one that has not begun: it holds ten.
_LEAST = 16
_POLL_MS = 500
_LEAVE_S, _LOOK_S = 1.0, 0.1
# In place of how far a consumer has come, in its last beat.
_LEFT = b"\xff" * 8


def _ports() -> dict[str, Any]:
    port, ack_port, *heart_ports = map(int, os.environ["CSUB_LOADER_PORTS"].split(","))
    return {"port": port, "ack_port": ack_port, "heart_ports": tuple(heart_ports)}


def _whole_epoch(batches: int) -> int:
    """Return how many of an epoch's batches are handed out."""
    return (batches - 1) // _TOGETHER * _TOGETHER


class _HeartBeater(heartbeat.HeartBeater):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        self._silent: dict[bytes, int] = {}
        self.beats: Counter[str] = Counter()
        super().__init__(*args, **options)

    @property
    def consumers(self) -> list[str]:
        return [str(heart) for heart in tuple(self.hearts)]  # another thread changes them

    def handle_heart_failure(self, heart: bytes) -> None:
        self._silent[heart] = self._silent.get(heart, 0) + 1
        if self._silent[heart] > _SILENT_BEATS:
            del self._silent[heart]
            super().handle_heart_failure(heart)

    def handle_pong(self, msg: list[bytes]) -> None:
        self._silent.pop(msg[0], None)
        if msg[1] == _LEFT:
            self.hearts.discard(msg[0])
        else:
            super().handle_pong(msg)
            self.beats[str(msg[0])] += 1


producer.HeartBeater = _HeartBeater


def _pack(data: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy what is not on a GPU: the memory behind a slice is sent whole."""
    packed: tuple[Any, ...] = producer.pack(tuple(one if one.is_cuda else one.clone() for one in data))
    return packed


class Producer(tensorsocket.TensorProducer):  # type: ignore[misc]
    """Hands the batches of a DataLoader to the tasks of this pack."""

    def __init__(self, data_loader: Any, **options: Any) -> None:
        """Listen on the pack's ports; ``options`` are those of TensorProducer.

        Raises:
            ValueError: there are too few batches to hand out any.
        """
        if len(data_loader) < _LEAST:
            raise ValueError(f"{len(data_loader)} batches in an epoch are too few: the shared loader needs {_LEAST}")
        self._in_step: set[str] = set()
        super().__init__(data_loader, **_ports(), pack_fn=_pack, producer_batch_size=_TOGETHER, **options)

    def serve(self) -> NoReturn:
        """Hand out one epoch after the other until the pack ends this process."""
        while True:
            for _ in self:
                pass

    def __iter__(self) -> "Producer":
        """Wait until all who live have read the epoch to its end, by a beat that is of now."""
        self.hb.beats.clear()
        while any(self.hb.heart_progress[name] or self.hb.beats[name] < 2 for name in self.hb.consumers):
            threading.Event().wait(_LOOK_S)
        while self.ack_socket.poll(0):
            self._heard()
        self.consumers.clear()
        return self

    def get_sample(self) -> Any:
        """Do as upstream, and tell the length each time: who joins just then would miss it, and wait for ever."""
        self.send_len = True
        return super().get_sample()

    def _handle_acks(self, expected: list[str], payload: dict[str, Any]) -> None:
        """Wait until all have what was sent to them; what a consumer says last of itself holds."""
        sent = {name: payload.get(name[2:-1]) for name in expected}
        waiting = {name: own[-1]["current_batch_index"] if own else -1 for name, own in sent.items()}
        while waiting := {name: last for name, last in waiting.items() if name in self.hb.consumers}:
            if self.ack_socket.poll(_POLL_MS):
                name, last = self._heard()
                if name in waiting and last >= waiting[name]:
                    self._in_step.add(name)
                if name in self._in_step:  # else it answers what was sent before
                    waiting.pop(name, None)
            else:  # one that has only just come may not have heard it
                waiting = {name: last for name, last in waiting.items() if name in self._in_step}

    def _heard(self) -> tuple[str, int]:
        """Take one acknowledgement, and return whose it is and the last batch that it has."""
        who, said, _ = self.ack_socket.recv_multipart()
        name, last = str(who), int(said)
        if name in self.consumers:
            self.consumers[name].reset()
            if last >= 0:
                self.consumers[name].add_batch(last, {})
        return name, last


class _Gone:
    """Stands in for a socket, and ends the thread that would use it."""

    def __getattr__(self, name: str) -> NoReturn:
        raise SystemExit


class _Farewell:
    """Stands in for the socket of a consumer's beats: says with the next of them that it leaves."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def send_multipart(self, parts: list[bytes]) -> NoReturn:
        self._socket.send_multipart([parts[0], _LEFT, *parts[2:]])
        raise SystemExit


class Consumer(tensorsocket.TensorConsumer):  # type: ignore[misc]
    """The batches of this pack's loader: each iteration is an epoch."""

    def __init__(self, batch_size: int) -> None:
        """Join; the first batch is one that an epoch begins with.

        Args:
            batch_size: that of the loader.

        Raises:
            ValueError: the loader's is another.
        """
        super().__init__(**_ports(), batch_size=batch_size)
        # A thread that takes a batch while Python ends aborts the process.
        atexit.register(self.close)
        if self.loader_batch_size != batch_size:
            self.close()
            raise ValueError(f"the loader's batches are of {self.loader_batch_size}, not {batch_size}")

    def close(self) -> None:
        """Leave: the others wait for no one who has; call it where something is left to do behind the last epoch."""
        self.buffer.maxsize = 0
        self.socket = self.ack_socket = _Gone()
        with self.buffer.not_full:
            self.buffer.not_full.notify_all()
        if not isinstance(self.heart._out, _Farewell):
            self.heart._out = _Farewell(self.heart._out)
        for thread in (self.heart, self.fetch_thread):
            thread.join(_LEAVE_S)

    def __next__(self) -> Any:
        read = self.batch_count
        try:
            return super().__next__()
        except StopIteration:
            whole = _whole_epoch(self.data_loader_len)
            if read != whole:
                raise RuntimeError(f"the epoch broke off after {read} of {whole} batches") from None
            raise
