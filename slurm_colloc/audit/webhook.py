# SPDX-License-Identifier: Apache-2.0
"""The webhook: one POST, bounded as a whole, to a URL that is a secret."""

import http.client
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Timer

from slurm_colloc.audit.sendmail import NotTakenError
from slurm_colloc.config_audit import Notices
from slurm_colloc.config_check import parse_url
from slurm_colloc.errors import ConfigError, ProcessError, StoreError
from slurm_colloc.files import read_bounded

_TIMEOUT_S = 30.0


def post_json(settings: Notices, key: str, content: bytes) -> None:
    """Post to the webhook's URL; a receiver that knows the ``key`` takes the same only once.

    Raises:
        NotTakenError: nobody is there, or it was refused.
        ProcessError: it was sent, and no answer came.
    """
    try:
        tls, host, port, path = webhook_of(settings)
    except ConfigError as error:  # mails go all the same
        raise NotTakenError(str(error)) from error
    where = f"webhook at '{host}'"
    kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
    connection = kind(host, port, timeout=_TIMEOUT_S)
    try:
        connection.connect()
    except OSError as error:
        raise NotTakenError(f"{where} cannot be reached: {error}") from error
    try:
        with _bounded(connection.sock):
            headers = {"Content-Type": "application/json", "Idempotency-Key": key}
            connection.request("POST", path, content, headers)
            answer = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise ProcessError(f"{where} did not answer: {type(error).__name__}: {error}") from error
    finally:
        connection.close()
    if answer.status // 100 != 2:
        raise NotTakenError(f"{where} answered '{answer.status} {answer.reason}'")


@contextmanager
def _bounded(sock: socket.socket) -> Iterator[None]:
    """End the connection when all of what is done in here takes too long: a socket's own bound is for each piece."""
    with socket.socket(fileno=os.dup(sock.fileno())) as same:

        def end() -> None:
            with suppress(OSError):
                same.shutdown(socket.SHUT_RDWR)

        timer = Timer(_TIMEOUT_S, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def webhook_of(settings: Notices) -> tuple[bool, str, int, str]:
    """Return whether TLS is asked for, host, port and path of the URL in the webhook's file.

    The file is root's or of whoever runs this, and closed to others: the URL is a secret.

    Raises:
        ConfigError: it cannot be used, or has no URL.
    """
    path = settings.webhook_file
    try:
        text = read_bounded(path, 4096, owners=(0, os.geteuid())).decode("ascii").strip("\r\n")
        if stat.S_IMODE(os.lstat(path).st_mode) & 0o077:
            raise StoreError(f"file '{path}' can be read by others; chmod 0600 it")
    except (StoreError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"'notices.webhook_file': {error}") from error
    found = parse_url(text)
    if found is None:
        raise ConfigError("'notices.webhook_file' has no URL such as 'https://host/path'")
    return found
