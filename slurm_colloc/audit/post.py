# SPDX-License-Identifier: Apache-2.0
"""The outbox, emptied: each message on its own, and what became of it recorded before anything else happens."""

import http.client
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from slurm_colloc.audit.ladder import ACCEPTED, DOUBT, QUEUED, REFUSED, TRYING
from slurm_colloc.audit.smtp import MailServer, Outcome
from slurm_colloc.audit.state import WEBHOOK, Message, State
from slurm_colloc.audit.wire import ServerError, bounded, dial, read_secret
from slurm_colloc.clock import now, ticking
from slurm_colloc.config_audit import Notices
from slurm_colloc.errors import ConfigError

# As mail servers do: sooner at first, hours apart later.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 300.0, 4 * 3600.0


def _none(message: Message) -> bool:
    """Say of no message that it is not to be sent any more."""
    return False


class Posted(NamedTuple):
    """What a round came to: messages by what became of them, and why it ended early (empty: it did not)."""

    accepted: int
    refused: int
    in_doubt: int
    again: int
    why: str


def deliver(
    state: State, settings: Notices, until: float, users: bool, withdrawn: Callable[[Message], bool] = _none
) -> Posted:
    """Send what is due, without ``users`` to admins only, until ``ticking()`` is ``until``; the caller has the lock.

    ``withdrawn`` is asked of each message right before; it takes back what is not to be sent any more.
    """
    counts = dict.fromkeys((ACCEPTED, REFUSED, DOUBT, QUEUED), 0)
    down: dict[str, str] = {}
    server = MailServer(settings)
    try:
        for message in state.outbox(QUEUED):
            if message.next_s > now() or message.channel in down or (message.user and not users) or withdrawn(message):
                continue
            if ticking() > until:
                down.setdefault("", f"{settings.deadline_min:g} min were over ('notices.deadline_min')")
                break
            try:
                outcome = _try(state, message, settings, server)
            except ServerError as error:
                down[message.channel] = str(error)
                state.mark(message.id, QUEUED, now(), str(error))
                continue
            counts[outcome.state] += 1
    finally:
        server.close()
    return Posted(counts[ACCEPTED], counts[REFUSED], counts[DOUBT], counts[QUEUED], "; ".join(down.values()))


def _try(state: State, message: Message, settings: Notices, server: MailServer) -> Outcome:
    content = state.content(message.id)
    state.mark(message.id, TRYING, now(), message.reply)

    def in_doubt() -> None:
        state.mark(message.id, DOUBT, now(), "it was cut short while the last line was sent")

    if message.channel == WEBHOOK:
        outcome = post_json(_url(settings), message.id, content, settings.timeout_s, in_doubt)
    else:
        outcome = server.send(message.recipient, content, in_doubt)
    wait_s = min(_FIRST_WAIT_S * 2**message.attempts, _LONGEST_WAIT_S) if outcome.state == QUEUED else 0.0
    state.mark(message.id, outcome.state, now(), outcome.reply, now() + wait_s)
    return outcome


def _url(settings: Notices) -> str:
    try:
        return webhook_url(settings)
    except ConfigError as error:  # mails go all the same
        raise ServerError(str(error)) from error


def post_json(url: str, key: str, content: bytes, timeout_s: float, before: Callable[[], None]) -> Outcome:
    """Post to a URL; ``before`` is called when the next thing that is sent makes it the receiver's.

    A receiver that knows the ``key`` takes the same only once.

    Raises:
        ServerError: nobody is there.
    """
    tls, host, port, path = parse_webhook(url)
    where = f"webhook at '{host}'"
    connection = http.client.HTTPConnection(host, port)
    try:
        connection.sock = sock = dial(host, port, timeout_s, tls=tls)
    except OSError as error:
        raise ServerError(f"{where} cannot be reached: {error}") from error
    try:
        before()
        with bounded(sock, timeout_s):
            headers = {"Content-Type": "application/json", "Idempotency-Key": key}
            connection.request("POST", path, content, headers)
            answer = connection.getresponse()
        reply = f"{answer.status} {answer.reason}"
    except (OSError, http.client.HTTPException) as error:
        return Outcome(DOUBT, f"{where}: {type(error).__name__}: {error}")
    finally:
        connection.close()
    if answer.status // 100 == 2:
        return Outcome(ACCEPTED, reply)
    return Outcome(QUEUED if answer.status // 100 == 5 or answer.status == 429 else REFUSED, reply)


def webhook_url(settings: Notices) -> str:
    """Return the webhook's URL, which is a secret: whoever knows it may post there.

    Raises:
        ConfigError: its file cannot be used, or what it has is no URL.
    """
    url = read_secret(settings.webhook_file, "notices.webhook_file")
    parse_webhook(url)
    return url


def parse_webhook(url: str) -> tuple[bool, str, int, str]:
    """Return whether TLS is asked for, host, port and path.

    Raises:
        ConfigError: it is no http or https URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or not url.isascii()
        or not url.isprintable()
        or " " in url
    ):
        raise ConfigError("'notices.webhook_file' has no URL such as 'https://host/path'")
    return (
        parts.scheme == "https",
        parts.hostname,
        port or (443 if parts.scheme == "https" else 80),
        (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
    )
