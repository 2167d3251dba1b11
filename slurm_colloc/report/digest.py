# SPDX-License-Identifier: Apache-2.0
"""Mails about findings, for a user and for the site's admins, from templates that a site may replace.

Each is made twice: as plain text, in which nothing that a user wrote can act on a terminal or end a line, and as HTML,
in which it is escaped as well.
"""

import shlex
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from slurm_colloc.core.audit_model import Audited, Finding
from slurm_colloc.core.units import in_words, significant
from slurm_colloc.report.findings import judged_of
from slurm_colloc.report.page import renderer
from slurm_colloc.report.text import minute, short_name, stamp

USER, ADMIN, ACTED = "digest", "admin", "action"


class Item(NamedTuple):
    """A finding in a user's mail.

    ``again`` says that it is the second notice of it, and ``next`` what is done when nothing changes, empty where
    nothing is. ``line`` does what is to be done, once it is pasted; empty where nobody can be sure of it. ``see`` are
    commands by which its reader sees it.
    """

    finding: Finding
    again: bool
    next: str
    line: str
    see: tuple[str, ...]


class Digest(NamedTuple):
    """A user's mail: findings in [since, until), and whom to answer."""

    cluster: str
    user: str
    since: datetime
    until: datetime
    items: tuple[Item, ...]
    quiet_days: float
    sender: str
    footer: str


class ActionMail(NamedTuple):
    """A user's mail about a job that was acted on by a ``rule``: ``held``, it waits for its user's release."""

    cluster: str
    user: str
    job: str
    done: str
    rule: str
    held: bool
    sender: str
    footer: str


class ActionLine(NamedTuple):
    """An action on a job, and its time, in the admins' mail."""

    at: datetime
    rule: str
    job: str
    user: str
    what: str


class Doubt(NamedTuple):
    """A message in the admins' mail of which nobody knows whether it went, since when and why."""

    id: str
    recipient: str
    at: datetime
    reply: str
    findings: int


class Summary(NamedTuple):
    """The admins' mail: all that was found, who was told, and which messages need a person.

    ``fates`` are findings, and what was done about each or why nothing was. ``sent`` is how many messages to users were
    handed over since ``last``, when the admins were last told; ``actions`` likewise. ``errors`` say what else went
    wrong, and ``missed`` which windows of missed runs were judged as well.
    """

    cluster: str
    seen: Audited
    fates: tuple[tuple[Finding, str], ...]
    last: datetime
    actions: tuple[ActionLine, ...]
    sent: int
    doubtful: tuple[Doubt, ...]
    errors: tuple[str, ...]
    mode: str
    missed: str = ""


def see_it(finding: Finding) -> tuple[str, ...]:
    """Return commands by which the user whom a finding is about sees it, who may be shut out of the site's store."""
    commands = tuple(f"colloc job {shlex.quote(line.job_id)}" for line in finding.jobs[:1])
    return (*commands, f"colloc audit explain {shlex.quote(finding.rule)}")


def digest_maker(templates: str) -> Callable[[str, Any], tuple[str, str]]:
    """Return what makes the two bodies, plain and HTML, of the mail USER, ADMIN or ACTED from what it says.

    Raises:
        ConfigError: when it is called, a site's template that does not render.
    """
    render = renderer(
        templates,
        stamp=stamp,
        hours=significant,
        at=minute,
        short=short_name,
        table=_table,
        judged=judged_of,
        days=lambda days: in_words(days * 86_400),
    )
    return lambda name, mail: (render(f"audit/{name}.txt.j2", mail=mail), render(f"audit/{name}.html.j2", mail=mail))


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines with columns side by side, the first of them the heads."""
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(f"    {line}" for line in lines)
