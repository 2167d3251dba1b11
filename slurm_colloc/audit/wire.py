# SPDX-License-Identifier: Apache-2.0
"""Connections to mail servers and webhooks, bounded as a whole, and the secrets that they need."""

import os
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Timer

from slurm_colloc.errors import CollocError, ConfigError, StoreError
from slurm_colloc.files import read_bounded


class ServerError(CollocError):
    """The server cannot be used at all: what is wrong is no single message's fault."""


@contextmanager
def bounded(sock: socket.socket, timeout_s: float) -> Iterator[None]:
    """End the connection when all of what is done in here takes too long: a socket's own bound is for each piece."""
    with socket.socket(fileno=os.dup(sock.fileno())) as same:

        def end() -> None:
            with suppress(OSError):
                same.shutdown(socket.SHUT_RDWR)

        timer = Timer(timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def dial(host: str, port: int, timeout_s: float, *, tls: bool) -> socket.socket:
    """Return a connection to a host, by TLS to one that proves to be it.

    Raises:
        OSError: nobody is there, it takes too long, or it is somebody else.
    """
    plain = socket.create_connection((host, port), timeout_s)
    if not tls:
        return plain
    try:
        with bounded(plain, timeout_s):
            return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def read_secret(path: str, key: str) -> str:
    """Return the one line of the file that the setting ``key`` names; it is root's, or of whoever runs this.

    Raises:
        ConfigError: it cannot be read, is somebody else's, others may read it, or it is more than a line of ASCII.
    """
    try:
        text = read_bounded(path, 4096, owners=(0, os.geteuid())).decode("ascii").strip("\r\n")
        if stat.S_IMODE(os.lstat(path).st_mode) & 0o077:
            raise StoreError(f"file '{path}' can be read by others; chmod 0600 it")
        if not text or not text.isprintable():
            raise StoreError(f"file '{path}' has not one line")
        return text
    except (StoreError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{key}': {error}") from error
