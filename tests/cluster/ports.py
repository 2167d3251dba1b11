# SPDX-License-Identifier: Apache-2.0
"""Free loopback ports, held until the daemon that is to listen on them starts."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from tests.cluster.errors import LabError

RANGE_START = 10240


class Ports:
    """Ports by name; each is kept bound, so that no other lab picks it, until `release`."""

    def __init__(self, held: dict[str, socket.socket]) -> None:
        self._held = held
        self.numbers: dict[str, int] = {name: s.getsockname()[1] for name, s in held.items()}

    @classmethod
    def find(cls, names: list[str]) -> Ports:
        # Below the ephemeral range: a port in it may be some client's source port when the daemon wants to listen.
        end = _ephemeral_start()
        candidates = random.sample(range(RANGE_START, end), min(500, end - RANGE_START))
        held: dict[str, socket.socket] = {}
        for port in candidates:
            if len(held) == len(names):
                break
            if (bound := _bind(port)) is not None:
                held[names[len(held)]] = bound
        if len(held) < len(names):
            raise LabError(f"found only {len(held)} of {len(names)} free ports in {RANGE_START}-{end}")
        return cls(held)

    @classmethod
    def hold(cls, numbers: dict[str, int]) -> Ports:
        """Hold known ports again, for a lab that was down."""
        held = {}
        for name, port in numbers.items():
            # The lab's own last connections may still be in TIME_WAIT.
            bound = _bind(port, reuse=True)
            if bound is None:
                raise LabError(f"port {port}, this lab's for {name}, is taken by another process: make a new lab")
            held[name] = bound
        return cls(held)

    def release(self, name: str) -> int:
        if name in self._held:
            self._held.pop(name).close()
        return self.numbers[name]

    def release_all(self) -> None:
        for name in list(self._held):
            self.release(name)


def _bind(port: int, *, reuse: bool = False) -> socket.socket | None:
    # On all addresses, as Slurm's daemons listen on all. Two sockets share a port only where both ask for reuse.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    try:
        sock.bind(("", port))
    except OSError:
        sock.close()
        return None
    return sock


def _ephemeral_start() -> int:
    setting = Path("/proc/sys/net/ipv4/ip_local_port_range")
    return int(setting.read_text().split()[0]) if setting.exists() else 32768


def answers(port: int) -> bool:
    """Say whether something listens on this loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(1)
        return bool(sock.connect_ex(("127.0.0.1", port)) == 0)
