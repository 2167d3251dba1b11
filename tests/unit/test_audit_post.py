# SPDX-License-Identifier: Apache-2.0
"""Mails to a real server that takes, refuses, hangs and hangs up; posts to a real receiver."""

import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.audit.ladder import FIRST, Due
from slurm_colloc.audit.message import Texts, address_of, check_settings, digest_id, mail
from slurm_colloc.audit.post import Posted, deliver, parse_webhook
from slurm_colloc.audit.smtp import MailServer
from slurm_colloc.audit.state import MAIL, WEBHOOK, Message, State, opened
from slurm_colloc.audit.wire import ServerError
from slurm_colloc.clock import now, ticking
from slurm_colloc.config_audit import Notices
from slurm_colloc.errors import ConfigError
from tests.unit.hostile import HOSTILE
from tests.unit.mail_server import Taken, free_port, mail_server
from tests.unit.noticed import finding

TEXTS = Texts("[c] 1 finding", "Hello\n.\n..dots\nend\n", "<p>Hello</p>")


def settings(port: int, **fields: Any) -> Notices:
    given = Notices("users", "127.0.0.1", port, sender="hpc@example.org", admins=("root@example.org",))
    return given._replace(address="{user}@example.org", timeout_s=1.0)._replace(**fields)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with opened(str(tmp_path)) as one:
        yield one


@pytest.fixture
def served() -> Iterator[tuple[int, Taken]]:
    with mail_server() as one:
        yield one


def queue(state: State, given: Notices, *users: str, at_s: float | None = None) -> None:
    for user in users:
        to = f"{user}@example.org"
        due = Due(finding(subject=user, user=user), FIRST, "new")
        id = digest_id(to, [due], given)
        state.queue(Message(id, MAIL, user, to), mail(id, to, TEXTS, given, 0.0), [due], at_s or now())


def post(state: State, given: Notices) -> Posted:
    return deliver(state, given, ticking() + 60, True)


def test_what_is_sent_arrives_as_it_is(state: State, served: tuple[int, Taken]) -> None:
    port, taken = served
    given = settings(port, reply_to="help@example.org")
    queue(state, given, "ann", "bob")
    assert post(state, given) == (2, 0, 0, 0, "")
    (got,) = taken.to("ann@example.org")
    assert (got["From"], got["Reply-To"], got["Subject"]) == ("hpc@example.org", "help@example.org", "[c] 1 finding")
    assert got["Auto-Submitted"] == "auto-generated"
    assert got["List-Unsubscribe"] == "<mailto:help@example.org?subject=no%20more%20notices>"
    plain, html = got.get_body(("plain",)), got.get_body(("html",))
    assert isinstance(plain, EmailMessage)
    assert isinstance(html, EmailMessage)
    assert (plain.get_content(), html.get_content()) == (TEXTS.plain.replace("\n", "\r\n"), "<p>Hello</p>\r\n")
    # Nothing is left to do.
    assert post(state, given) == (0, 0, 0, 0, "")
    assert len(taken.mails) == 2


@pytest.mark.parametrize(
    ("what", "became", "reply"),
    [
        ("no", "refused", "550 5.1.1 no such user"),
        ("full", "refused", "552 5.2.2 mailbox full"),
        ("later", "queued", "451 4.2.1 come back later"),
        ("not now", "queued", "452 4.3.1 no space"),
        ("hang", "queued", "Connection unexpectedly closed"),
        ("hang up at once", "queued", "Connection unexpectedly closed"),
        ("take and hang", "in doubt", "lost after the last line"),
        ("take and hang up", "in doubt", "lost after the last line"),
    ],
)
def test_one_recipient_stops_no_other(
    state: State, served: tuple[int, Taken], what: str, became: str, reply: str
) -> None:
    port, taken = served
    given = settings(port)
    taken.odd["bob@example.org"] = what
    queue(state, given, "ann", "bob", "eve")
    post(state, given)
    by_user = {one.user: one for one in state.outbox()}
    assert [by_user[user].state for user in ("ann", "bob", "eve")] == ["accepted", became, "accepted"]
    assert reply in by_user["bob"].reply
    # In doubt, refused or too early: not sent again by itself.
    post(state, given)
    assert len(taken.to("bob@example.org")) == (1 if became == "in doubt" else 0)
    assert len(taken.ids()) == len(set(taken.ids()))


def test_a_mail_that_was_put_off_goes_later(
    state: State, served: tuple[int, Taken], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, taken = served
    given = settings(port)
    clock = [1000.0]
    monkeypatch.setattr("slurm_colloc.audit.post.now", lambda: clock[0])
    taken.odd["ann@example.org"] = "later"
    queue(state, given, "ann", "bob", at_s=clock[0])
    waits = []
    for _ in range(3):
        post(state, given)
        (left,) = state.outbox("queued")
        waits.append(left.next_s - clock[0])
        clock[0] = left.next_s
    assert waits == [300.0, 600.0, 1200.0]
    taken.odd.clear()
    assert post(state, given).accepted == 1


def test_without_a_server_all_wait_and_it_is_said_once(state: State) -> None:
    given = settings(free_port())
    queue(state, given, "ann", "bob")
    posted = post(state, given)
    assert (posted.accepted, posted.again) == (0, 0)
    assert posted.why.startswith(f"mail server '127.0.0.1:{given.smtp_port}' cannot be used: ConnectionRefusedError")
    assert [one.state for one in state.outbox()] == ["queued", "queued"]


def test_a_connection_lost_in_the_middle_of_a_mail_is_no_doubt(state: State) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        given = settings(listening.getsockname()[1])

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as lines:
                connection.sendall(b"220 x\r\n")
                for line in lines:
                    if line.startswith(b"DATA"):
                        # What it sends is read by nobody, and more than a connection holds.
                        connection.sendall(b"354 go on\r\n")
                        connection.recv(1000)
                        return
                    connection.sendall(b"250 ok\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        content = b"x" * 79 + b"\r\n"
        state.queue(Message("<big@x>", MAIL, "ann", "ann@example.org"), content * 400_000, (), now())
        post(state, given)
        thread.join()
    (left,) = state.outbox()
    assert left.state == "queued"
    assert "in the middle of the mail" in left.reply


def test_a_server_that_speaks_too_slowly_is_left(state: State) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        given = settings(listening.getsockname()[1])
        done = threading.Event()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"220 x\r\n250-")
                while not done.wait(0.05):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=serve)
        thread.start()
        queue(state, given, "ann")
        posted = post(state, given)
        done.set()
        thread.join()
    assert "cannot be used" in posted.why


def test_a_deadline_leaves_the_rest_to_the_next_run(state: State, served: tuple[int, Taken]) -> None:
    port, _ = served
    given = settings(port)
    queue(state, given, "ann")
    assert deliver(state, given, ticking() - 1, True).why == "30 min were over ('notices.deadline_min')"
    assert [one.state for one in state.outbox()] == ["queued"]
    assert deliver(state, given, ticking() + 60, False) == (0, 0, 0, 0, "")
    assert post(state, given).accepted == 1


def test_no_tls_no_mail(state: State, served: tuple[int, Taken], tmp_path: Path) -> None:
    port, taken = served
    given = settings(port, smtp_tls="starttls")
    queue(state, given, "ann")
    assert "STARTTLS extension not supported" in post(state, given).why
    assert "cannot be used" in post(state, settings(port, smtp_tls="tls")).why
    secret = tmp_path / "password"
    secret.write_text("x")
    secret.chmod(0o644)
    for path, said in (
        (str(secret), "can be read by others; chmod 0600 it"),
        (str(tmp_path / "none"), "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=said):
            MailServer(settings(port, smtp_user="u", smtp_password_file=path)).send("a@x", b"", lambda: None)
    os.chmod(secret, 0o600)
    with pytest.raises(ServerError, match="SMTPNotSupportedError"):
        MailServer(settings(port, smtp_user="u", smtp_password_file=str(secret))).send("a@x", b"", lambda: None)
    assert taken.mails == []


def test_no_name_gets_into_a_header_or_an_envelope() -> None:
    given = settings(25)
    for name in (
        *HOSTILE,
        "ann\r\nBcc: eve@x",
        "ann@evil.example",
        "ann eve",
        "ann>",
        "-oQ",
        "ann,eve",
        "änn",
        "a" * 80,
    ):
        assert address_of(name, given) is None, name
    assert address_of("ann.b-c_1", given) == "ann.b-c_1@example.org"
    assert address_of("ann", given._replace(address="")) is None


def test_settings_that_cannot_be_meant_are_refused() -> None:
    check_settings(Notices())
    check_settings(settings(25))
    for fields, said in (
        ({"sender": ""}, "mails to users need 'notices.sender', which site.toml does not set"),
        ({"admins": ()}, "need 'notices.admins'"),
        ({"address": ""}, "need 'notices.address'"),
        ({"address": "all@example.org"}, "is one address for all"),
        ({"address": "{user}@x, eve@x"}, "is no plain address"),
        ({"sender": "a@x\r\nBcc: eve@x"}, "is no plain address"),
        ({"reply_to": "HPC <a@x>"}, "is no plain address"),
        ({"admins": ("a@x", "b")}, "'notices.admins': 'b' is no plain address"),
        ({"smtp_user": "u", "smtp_host": "mail"}, "would send its password in the clear"),
        ({"action": "cancel"}, "by no rule"),
    ):
        with pytest.raises(ConfigError, match=said):
            check_settings(settings(25, **fields))


def test_the_same_content_has_the_same_id_and_other_content_another() -> None:
    given = settings(25)
    two = [Due(finding(subject=one), FIRST, "new") for one in "ab"]
    id = digest_id("ann@x", two, given)
    assert id == digest_id("ann@x", two[::-1], given)
    assert id.endswith("@example.org>")
    others = ([two[0]], [two[0], two[1]._replace(step=2)], [two[0], Due(finding(subject="b", digest="x"), FIRST, "")])
    assert len({id, digest_id("bob@x", two, given), *(digest_id("ann@x", other, given) for other in others)}) == 5


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes posts, and answers as the path says."""

    got: list[tuple[str | None, bytes]]

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.headers["Idempotency-Key"], content))
        if self.path == "/gone":
            self.connection.close()
            return
        self.send_response(int(self.path.strip("/")))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def secret(folder: Path, text: str) -> str:
    """Return the path of a file with this line, closed to others."""
    path = folder / "secret"
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    return str(path)


@contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[str | None, bytes]]]]:
    got: list[tuple[str | None, bytes]] = []
    handler = type("Handler", (Receiver,), {"got": got})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", got
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "became"),
    [("/200", "accepted"), ("/404", "refused"), ("/302", "refused"), ("/503", "queued"), ("/gone", "in doubt")],
)
def test_a_webhook_goes_through_the_outbox(state: State, tmp_path: Path, path: str, became: str) -> None:
    with receiver() as (url, got):
        given = settings(25, webhook_file=secret(tmp_path, url + path))
        state.queue(Message("<w@x>", WEBHOOK, "", "the webhook"), json.dumps({"text": "x"}).encode(), (), now())
        post(state, given)
        post(state, given)
    assert [one.state for one in state.outbox()] == [became]
    assert got == [("<w@x>", b'{"text": "x"}')]


def test_a_webhook_that_is_not_there_is_tried_again(state: State, tmp_path: Path) -> None:
    given = settings(25, webhook_file=secret(tmp_path, f"http://127.0.0.1:{free_port()}/secret"))
    state.queue(Message("<w@x>", WEBHOOK, "", "the webhook"), b"{}", (), now())
    why = post(state, given).why
    assert why.startswith("webhook at '127.0.0.1' cannot be reached")
    assert "secret" not in why
    assert [one.state for one in state.outbox()] == ["queued"]


def test_webhooks() -> None:
    assert parse_webhook("https://h:8/p?q=1") == (True, "h", 8, "/p?q=1")
    for url in ("ftp://h/", "h/p", "https://", "http://h:x/", "http://h/a b", "http://h/\r\nX: y", "http://[::1"):
        with pytest.raises(ConfigError, match=r"'notices.webhook_file' has no URL"):
            parse_webhook(url)
