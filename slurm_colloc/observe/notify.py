# SPDX-License-Identifier: Apache-2.0
"""Tell systemd how this service fares: sd_notify(3) without its library."""

import os
import socket

from slurm_colloc.core.errors import ProcessError


def notify(text: str) -> None:
    """Send ``READY=1``, ``WATCHDOG=1``, ``STATUS=...``; nothing where systemd did not start this process.

    Raises:
        ProcessError: there is a socket and it does not take the message.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(1.0)
            # A leading @ stands for the zero byte of a name that is not in the file system.
            channel.connect("\0" + address[1:] if address.startswith("@") else address)
            channel.sendall(text.encode())
    except OSError as error:
        raise ProcessError(f"systemd at '{address}' could not be told '{text}': {error.strerror or error}") from error
