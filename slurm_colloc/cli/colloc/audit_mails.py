# SPDX-License-Identifier: Apache-2.0
"""The messages of a run of the audit, and in words what was done about each finding."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from slurm_colloc.audit.ladder import (
    ACTION,
    DOUBTFUL,
    FIRST,
    NOTHING,
    SECOND,
    SENT,
    Planned,
    deadline_min,
)
from slurm_colloc.audit.message import Texts, address_of, digest_id, mail, message_id
from slurm_colloc.audit.post import NOT_TAKEN
from slurm_colloc.audit.state import MAIL, Action, Message
from slurm_colloc.core.audit_model import JOB, Audited, Finding
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.core.units import counted, in_words, printable
from slurm_colloc.report.digest import (
    ACTED,
    ADMIN,
    USER,
    ActionMail,
    Digest,
    Item,
    Summary,
    digest_maker,
    see_it,
)

# Says the line to paste that does what a finding says.
Line = Callable[[Finding], str]
_DONE = {"hold": "stopped, requeued and held", "cancel": "cancelled"}


class Mails:
    """The mails of a site, made by its templates."""

    def __init__(self, config: SiteConfig, line: Line) -> None:
        self._cluster, self._settings, self._line = config.cluster, config.notices, line
        self._make = digest_maker(config.paths.templates)

    def digest(self, look: Audited, user: str, planned: Sequence[Planned]) -> Texts:
        """Return what a user is told of these findings."""
        items = tuple(
            Item(
                due.finding,
                due.step == SECOND,
                _next(due, self._settings),
                self._line(due.finding),
                see_it(due.finding),
            )
            for due in planned
        )
        settings = self._settings
        page = Digest(
            self._cluster, user, look.since, look.until, items, settings.quiet_days, settings.sender, settings.footer
        )
        return Texts(self._subject(f"{counted(len(items), 'finding')} about your use of GPUs"), *self._make(USER, page))

    def digest_mail(self, look: Audited, user: str, planned: Sequence[Planned]) -> tuple[Message, bytes]:
        """Return the mail to a user who has an address."""
        recipient = address_of(user, self._settings)
        assert recipient is not None
        id = digest_id(recipient, planned, self._settings)
        return self._message(id, user, recipient, self.digest(look, user, planned))

    def action(self, acted: Action) -> tuple[Message, bytes] | None:
        """Return the mail that tells a user what was done to a job; None where the name makes no address."""
        recipient = address_of(acted.user, self._settings)
        if recipient is None:
            return None
        id = message_id([recipient, *acted[:5], acted.what], self._settings)
        done, held = _DONE[acted.what], acted.what == "hold"
        sender, footer = self._settings.sender, self._settings.footer
        page = ActionMail(self._cluster, acted.user, acted.subject, done, acted.rule, held, sender, footer)
        return self._message(
            id, acted.user, recipient, Texts(self._subject(f"a job of yours was {done}"), *self._make(ACTED, page))
        )

    def summary(self, key: Sequence[object], topic: str, recipient: str, page: Summary) -> tuple[Message, bytes]:
        """Return the admins' mail, of which there is one of a ``key``."""
        title = f"audit: {counted(len(page.fates), 'finding')}"
        problems = len(page.doubtful) + len(page.errors)
        if problems:
            title += f", {counted(problems, 'problem')}"
        texts = Texts(self._subject(title), *self._make(ADMIN, page))
        return self._message(message_id([recipient, topic, *key], self._settings), "", recipient, texts, topic)

    def _subject(self, text: str) -> str:
        return f"[{printable(self._cluster)}] {text}"

    def _message(self, id: str, user: str, recipient: str, texts: Texts, topic: str = "") -> tuple[Message, bytes]:
        content = mail(id, recipient, texts, self._settings, now())
        return Message(id, MAIL, user, recipient, topic), content


def by_user(planned: Sequence[Planned]) -> dict[str, list[Planned]]:
    """Return what each user is to be told of."""
    due_by_user: dict[str, list[Planned]] = {}
    for due in planned:
        if due.step in (FIRST, SECOND):
            due_by_user.setdefault(due.finding.user, []).append(due)
    return due_by_user


def would(due: Planned, settings: Notices) -> str:
    """Return what would be done about a finding."""
    if due.step == NOTHING:
        return f"not told: {due.why}"
    if due.step == ACTION:
        return f"would get: {settings.actions[due.finding.rule]} ({due.why})"
    return f"would be told{' again' if due.step == SECOND else ''} ({due.why})"


def did(due: Planned, became: str) -> str:
    """Return what was done about a finding; ``became`` is what the mail came to, as Post.give says."""
    if due.step == NOTHING:
        return f"not told: {due.why}"
    if not became:
        return "not told: the very mail went before"
    fate = {SENT: "handed over", DOUBTFUL: "in doubt", NOT_TAKEN: "not handed over"}[became]
    return f"{'second notice' if due.step == SECOND else 'notice'} {fate}"


def _next(due: Planned, settings: Notices) -> str:
    """Return what a notice about a job says is done next."""
    if due.finding.about != JOB:
        return ""
    if due.finding.rule not in settings.actions or due.finding.idle_since_s is None:
        return ""
    done = _DONE[settings.actions[due.finding.rule]]
    if due.step == FIRST:
        wait = in_words(60 * settings.job_wait_min)
        return f"if the job is still idle in {wait}, you get a second and last notice; after that the job is {done}"
    earliest = datetime.fromtimestamp(now() + 60 * deadline_min(settings), UTC)
    return f"unless the job uses its GPUs, it is {done} after {earliest:%Y-%m-%d %H:%M} UTC"
