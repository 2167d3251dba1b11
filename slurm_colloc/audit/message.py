# SPDX-License-Identifier: Apache-2.0
"""Mails as they are sent: headers that no user writes in, and one id for one content."""

import hashlib
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import default
from email.utils import format_datetime
from typing import NamedTuple

from slurm_colloc.audit.ladder import Planned, key_of
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.core.errors import ConfigError

# A header and an envelope take these as they are: no quoted local part, no comment, no list.
_LOCAL = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,62}"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
_ADDRESS = re.compile(f"{_LOCAL}@{_HOST}", re.ASCII)
_USER = re.compile(_LOCAL, re.ASCII)


class Texts(NamedTuple):
    """A mail's subject, which no word of a user is in, and its two bodies."""

    subject: str
    plain: str
    html: str


def check_settings(settings: Notices) -> None:
    """Look at what the configuration's types do not say.

    Raises:
        ConfigError: an address that is none, or something that a mode needs and has not.
    """
    template = settings.address.replace("{user}", "u")
    admins = (("admins", address) for address in settings.admins)
    for key, address in (("sender", settings.sender), ("address", template), *admins):
        if address and not _ADDRESS.fullmatch(address):
            raise ConfigError(f"'notices.{key}': '{address}' is no plain address such as 'hpc@example.org'")
    if settings.address and "{user}" not in settings.address:
        raise ConfigError(f"'notices.address': '{settings.address}' is one address for all; write {{user}} in it")
    needed = {"off": (), "admins": ("sender", "admins"), "users": ("sender", "admins", "address")}[settings.mode]
    for key in needed:
        if not getattr(settings, key):
            raise ConfigError(f"mails to {settings.mode} need 'notices.{key}', which site.toml does not set")
    for rule, action in settings.actions.items():
        if action not in ("hold", "cancel"):
            raise ConfigError(f"'notices.actions': '{rule}' must be 'hold' or 'cancel', not '{action}'")


def address_of(user: str, settings: Notices) -> str | None:
    """Return a user's address; None where the name makes none that is surely one."""
    address = settings.address.replace("{user}", user)
    return address if _USER.fullmatch(user) and _ADDRESS.fullmatch(address) else None


def digest_id(recipient: str, steps: Iterable[Planned], settings: Notices) -> str:
    """Return the Message-ID of a digest, always the same of the same steps on the same evidence to the same address."""
    keys = sorted([*key_of(due.finding), due.finding.digest, due.step] for due in steps)
    return message_id([recipient, *keys], settings)


def message_id(content: object, settings: Notices) -> str:
    """Return the id by which the same mail is known, so that it is not sent twice: only the same content has it."""
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:40]
    return f"<colloc-{key}@{settings.sender.rpartition('@')[2] or 'localhost'}>"


def mail(message: str, recipient: str, texts: Texts, settings: Notices, now_s: float) -> bytes:
    """Return a mail as the mail service gets it, which makes of it what goes over the wire."""
    email = EmailMessage(policy=default)
    email["From"] = settings.sender
    email["To"] = recipient
    email["Subject"] = texts.subject
    email["Date"] = format_datetime(datetime.fromtimestamp(now_s, UTC))
    email["Message-ID"] = message
    # Absence notices do not answer such a mail (RFC 3834).
    email["Auto-Submitted"] = "auto-generated"
    email["Precedence"] = "bulk"
    email["List-Unsubscribe"] = f"<mailto:{settings.sender}?subject=no%20more%20notices>"
    email.set_content(texts.plain, cte="quoted-printable")
    email.add_alternative(texts.html, subtype="html", cte="quoted-printable")
    return email.as_bytes()
