# SPDX-License-Identifier: Apache-2.0
"""A mail service in place of the host's own: a 'sendmail' that keeps, refuses, hangs and dies as a test says."""

import email
import os
import time
from email.message import EmailMessage
from email.policy import default
from pathlib import Path

import pytest

from tests.unit.programs import program

# What it does with a mail to a recipient is in a file of that name; a mail is there whole, or it is not.
_PROGRAM = """
cd "{folder}"
echo "$*" >> argv
cat > $$.part
to=$(sed -n 's/^To: //p;/^$/q' $$.part)
what=$(cat "odd/$to" 2>/dev/null || cat odd/all 2>/dev/null)
case "$what" in
    '' | take*) ;;
    hang) exec sleep 600 ;;
    *) echo "$to: no" >&2; exit "$what" ;;
esac
sleep {slow_s}
mv $$.part "taken/$(date +%s%N)-$$"
case "$what" in
    'take and hang') exec sleep 600 ;;
    'take and die') kill -9 $$ ;;
esac
"""


class Taken:
    """What the mail service has taken, mail for mail, whatever it said of it; ``odd``: recipient (or all) -> what."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def odd(self, recipient: str, what: str) -> None:
        """Treat mails to a recipient so: an exit status, 'hang', 'take and hang', 'take and die'; empty: take them."""
        path = self._folder / "odd" / recipient
        path.write_text(what)
        if not what:
            path.unlink()

    @property
    def argv(self) -> list[str]:
        """What it was called with, call for call."""
        path = self._folder / "argv"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def mails(self) -> list[EmailMessage]:
        made = [
            email.message_from_bytes(path.read_bytes(), policy=default)
            for path in sorted((self._folder / "taken").iterdir())
        ]
        return [one for one in made if isinstance(one, EmailMessage)]

    def ids(self) -> list[str]:
        return [str(one["Message-ID"]) for one in self.mails]

    def to(self, recipient: str) -> list[EmailMessage]:
        return [one for one in self.mails if one["To"] == recipient]

    def forget(self) -> None:
        for path in (self._folder / "taken").iterdir():
            path.unlink()

    def settle(self) -> None:
        """Wait until what is at work when its caller was killed has come to its end."""
        until = time.monotonic() + 30
        while list(self._folder.glob("*.part")) and time.monotonic() < until:
            time.sleep(0.01)


def mail_service(folder: Path, monkeypatch: pytest.MonkeyPatch, slow_s: float = 0.0) -> Taken:
    """Put a mail service before the host's own; what it takes lies in a folder beside it."""
    service = folder / "mail service"
    for name in ("odd", "taken"):
        (service / name).mkdir(parents=True, exist_ok=True)
    program(service, "sendmail", _PROGRAM.format(folder=service, slow_s=slow_s), monkeypatch)
    return Taken(service)


def no_mail_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no 'sendmail' anywhere."""
    monkeypatch.setattr("slurm_colloc.audit.post._FOLDERS", (str(folder),))
    folders = os.environ["PATH"].split(":")
    kept = [one for one in folders if not os.path.exists(os.path.join(one, "sendmail"))]
    monkeypatch.setenv("PATH", ":".join(kept))


def plain(mail: EmailMessage) -> str:
    """Return the body of a mail that is plain text."""
    body = mail.get_body(("plain",))
    assert isinstance(body, EmailMessage)
    return str(body.get_content())


def html(mail: EmailMessage) -> str:
    """Return the body that is HTML."""
    body = mail.get_body(("html",))
    assert isinstance(body, EmailMessage)
    return str(body.get_content())
