# SPDX-License-Identifier: Apache-2.0
"""A real SMTP server on loopback that takes, refuses, hangs and hangs up as the recipient's name says."""

import asyncio
import email
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from email.policy import default
from typing import Any

from aiosmtpd.controller import Controller


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Taken:
    """What the server has taken, mail for mail, whatever the client was told of it."""

    def __init__(self, slow_s: float = 0.0) -> None:
        self.mails: list[EmailMessage] = []
        self.events: list[float] = []
        self.slow_s = slow_s
        self.odd: dict[str, str] = {}
        self.no_sender = ""

    def ids(self) -> list[str]:
        return [str(one["Message-ID"]) for one in self.mails]

    def to(self, recipient: str) -> list[EmailMessage]:
        return [one for one in self.mails if one["To"] == recipient]

    async def _pause(self) -> None:
        self.events.append(time.monotonic())
        await asyncio.sleep(self.slow_s)

    async def handle_MAIL(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        envelope.mail_from = None if self.no_sender else address
        return self.no_sender or "250 OK"

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        await self._pause()
        what = self.odd.get(address, "")
        if what == "hang up at once":
            server.transport.abort()
        if what == "hang":
            await asyncio.sleep(30)
        if what in ("later", "no"):
            return "451 4.2.1 come back later" if what == "later" else "550 5.1.1 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        await self._pause()
        what = self.odd.get(envelope.rcpt_tos[0], "")
        if what == "full":
            return "552 5.2.2 mailbox full"
        if what == "not now":
            return "452 4.3.1 no space"
        made = email.message_from_bytes(envelope.content, policy=default)
        assert isinstance(made, EmailMessage)
        self.mails.append(made)
        if what == "take and hang up":
            server.transport.abort()
        if what == "take and hang":
            await asyncio.sleep(30)
        await self._pause()
        return "250 taken"


@contextmanager
def mail_server(slow_s: float = 0.0) -> Iterator[tuple[int, Taken]]:
    """Serve on a port of loopback; give it, and what is taken."""
    taken, port = Taken(slow_s), free_port()
    controller = Controller(taken, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield port, taken
    finally:
        controller.stop()


def plain(mail: EmailMessage) -> str:
    """Return the body of a mail that is plain text."""
    body = mail.get_body(("plain",))
    assert isinstance(body, EmailMessage)
    return str(body.get_content()).replace("\r\n", "\n")


def html(mail: EmailMessage) -> str:
    """Return the body that is HTML."""
    body = mail.get_body(("html",))
    assert isinstance(body, EmailMessage)
    return str(body.get_content())
