# SPDX-License-Identifier: Apache-2.0
"""A mail server, and what it says to one mail.

The server may take a mail as soon as it has the dot on a line of its own, and never before. So the dot is sent apart
from all before it, and by then it is recorded that nobody knows.
"""

import re
import select
import smtplib
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

from slurm_colloc.audit.ladder import ACCEPTED, DOUBT, QUEUED, REFUSED
from slurm_colloc.audit.wire import ServerError, bounded, dial, read_secret
from slurm_colloc.config_audit import Notices

_LEADING_DOT = re.compile(rb"^\.", re.MULTILINE)


class Outcome(NamedTuple):
    """What became of a message: ACCEPTED, REFUSED, QUEUED (to be tried again) or DOUBT, and the reply."""

    state: str
    reply: str


class _Smtp(smtplib.SMTP):
    """A client over a connection that is there already."""

    def __init__(self, sock: socket.socket, host: str, timeout_s: float) -> None:
        super().__init__(timeout=timeout_s)
        # Its own constructor would not say which host a certificate is of.
        self._host, self._given = host, sock

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return self._given


class MailServer:
    """The site's mail server, connected when the first mail goes, and again after a connection was lost."""

    def __init__(self, settings: Notices) -> None:
        self._settings = settings
        self._smtp: smtplib.SMTP | None = None

    def send(self, recipient: str, content: bytes, before_dot: Callable[[], None]) -> Outcome:
        """Send one mail; ``before_dot`` is called when the next thing that is sent makes it the server's.

        Raises:
            ServerError: there is no server, or it does not let this one in.
        """
        fresh = self._smtp is None
        outcome = self._send_once(recipient, content, before_dot)
        # A server may end a connection over which it has taken enough.
        if outcome.state == QUEUED and self._smtp is None and not fresh:
            outcome = self._send_once(recipient, content, before_dot)
        return outcome

    def _send_once(self, recipient: str, content: bytes, before_dot: Callable[[], None]) -> Outcome:
        smtp = self._smtp = self._smtp or self._connect()
        beyond = False

        def now_in_doubt() -> None:
            nonlocal beyond
            before_dot()
            beyond = True

        try:
            assert smtp.sock is not None
            with bounded(smtp.sock, self._settings.timeout_s):
                outcome = _transaction(smtp, self._settings.sender, recipient, content, now_in_doubt)
        except _LostError as error:  # before the dot was out
            outcome = Outcome(QUEUED, str(error))
            self.close()
        except (OSError, smtplib.SMTPException) as error:
            said = f"{type(error).__name__}: {error}"
            outcome = Outcome(DOUBT, f"lost after the last line: {said}") if beyond else Outcome(QUEUED, said)
            self.close()
        if outcome.state != ACCEPTED and self._smtp is not None:
            self._clear()
        return outcome

    def _clear(self) -> None:
        """Make the connection ready for the next mail, or end it."""
        assert self._smtp is not None
        try:
            assert self._smtp.sock is not None
            with bounded(self._smtp.sock, self._settings.timeout_s):
                ready = self._smtp.rset()[0] == 250
        except (OSError, smtplib.SMTPException):
            ready = False
        if not ready:
            self.close()

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._smtp is not None:
            self._smtp.close()
            self._smtp = None

    def _connect(self) -> smtplib.SMTP:
        settings = self._settings
        where = f"mail server '{settings.smtp_host}:{settings.smtp_port}'"
        key = "notices.smtp_password_file"
        password = read_secret(settings.smtp_password_file, key) if settings.smtp_user else ""
        sock: socket.socket | None = None
        smtp: _Smtp | None = None
        try:
            sock = dial(settings.smtp_host, settings.smtp_port, settings.timeout_s, tls=settings.smtp_tls == "tls")
            smtp = _Smtp(sock, settings.smtp_host, settings.timeout_s)
            with bounded(sock, settings.timeout_s):
                code, said = smtp.connect(settings.smtp_host, settings.smtp_port)
                if code != 220:
                    raise smtplib.SMTPConnectError(code, said)
                smtp.ehlo_or_helo_if_needed()
                if settings.smtp_tls == "starttls":
                    smtp.starttls(context=ssl.create_default_context())
                    smtp.ehlo_or_helo_if_needed()
                if settings.smtp_user:
                    smtp.login(settings.smtp_user, password)
        except (OSError, smtplib.SMTPException) as error:
            for one in (smtp, sock):  # after STARTTLS they are two
                if one is not None:
                    one.close()
            raise ServerError(
                f"{where} cannot be used: {type(error).__name__}: {error}; "
                "it is the one that notices.smtp_host and notices.smtp_port name"
            ) from error
        return smtp


class _LostError(Exception):
    """The connection was lost before the dot could be sent."""


def _transaction(
    smtp: smtplib.SMTP, sender: str, recipient: str, content: bytes, before_dot: Callable[[], None]
) -> Outcome:
    for command in (f"MAIL FROM:<{sender}>", f"RCPT TO:<{recipient}>", "DATA"):
        code, said = smtp.docmd(command)
        if code // 100 not in (2, 3):
            outcome = _outcome(code, said)
            # The sender, or who we are, is nothing that a message can help.
            ours = command.startswith("MAIL") or code in (503, 530)
            return outcome._replace(state=QUEUED) if ours else outcome
    assert smtp.sock is not None
    try:
        smtp.sock.sendall(_LEADING_DOT.sub(b"..", content if content.endswith(b"\r\n") else content + b"\r\n"))
        # A server that speaks before its turn has gone, or will not take it.
        if not isinstance(smtp.sock, ssl.SSLSocket) and select.select([smtp.sock], [], [], 0)[0]:
            raise _LostError("the server ended the connection in the middle of the mail")
    except OSError as error:
        raise _LostError(f"the connection was lost in the middle of the mail: {error}") from error
    before_dot()
    try:
        smtp.sock.sendall(b".\r\n")
    except OSError as error:
        raise _LostError(f"the connection was lost before the last line: {error}") from error
    return _outcome(*smtp.getreply())


def _outcome(code: int, said: bytes) -> Outcome:
    reply = f"{code} {said.decode('ascii', 'replace')}".replace("\n", " ")[:500]
    return Outcome({2: ACCEPTED, 5: REFUSED}.get(code // 100, QUEUED), reply)
