# SPDX-License-Identifier: Apache-2.0
"""colloc audit run --notify: an audit that cron runs, and what is done about what it finds."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from slurm_colloc.audit.act import act
from slurm_colloc.audit.ladder import (
    ACTION,
    DAY_S,
    DOUBT,
    FIRST,
    NOTHING,
    QUEUED,
    REFUSED,
    SECOND,
    TRYING,
    Due,
    key_of,
    plan,
)
from slurm_colloc.audit.message import Texts, address_of, check_settings, digest_id, mail, message_id
from slurm_colloc.audit.outlets import Metrics, append, json_lines, prometheus, webhook
from slurm_colloc.audit.post import Posted, deliver, parse_webhook
from slurm_colloc.audit.rules import Entry, entries
from slurm_colloc.audit.state import MAIL, WEBHOOK, Message, State, alone, audit_folder, opened
from slurm_colloc.audit.workdays import works_by
from slurm_colloc.audited import JOB, Finding
from slurm_colloc.clock import now, ticking
from slurm_colloc.config import SiteConfig
from slurm_colloc.config_audit import Notices
from slurm_colloc.errors import CollocError, ConfigError, StoreError
from slurm_colloc.files import write_atomic
from slurm_colloc.report.digest import ADMIN, USER, Digest, Fate, Item, Letter, Summary, digest_maker
from slurm_colloc.report.findings import Audited
from slurm_colloc.report.text import printable
from slurm_colloc.units import counted, in_words

Look = Callable[[datetime, datetime], tuple[Audited, list[Finding]]]
Show = Callable[[str], object]
_NO_POST = Posted(0, 0, 0, 0, "")


class Noticed(NamedTuple):
    """What a run came to."""

    seen: Audited
    findings: tuple[Finding, ...]
    errors: tuple[str, ...]


class _Run:
    """One run, which holds the lock."""

    def __init__(self, state: State, config: SiteConfig, entries: Sequence[Entry], show: Show) -> None:
        self.state, self.config, self.settings, self.show = state, config, config.notices, show
        self.meanings = {entry.name: _meaning(entry.rule.documentation) for entry in entries}
        self.rules = ",".join(sorted(self.meanings))
        self.make = digest_maker(config.paths.templates)
        self.until = ticking() + 60 * self.settings.deadline_min
        self.began_s, self.began = now(), ticking()
        self.errors: list[str] = []

    def window(self) -> tuple[datetime, datetime]:
        """Return what is looked at: back to the last good run, where that is longer ago than a window."""
        length_s = self.settings.window_days * DAY_S
        last_s = self.state.last_good(self.settings.mode, self.rules)
        since_s = self.began_s - length_s
        if last_s is not None:
            since_s = max(min(since_s, last_s), since_s - length_s)
        return _local(since_s), _local(self.began_s)

    def notice(self, seen: Audited, found: Sequence[Finding]) -> list[tuple[Finding, str]]:
        """Tell who is to be told, and return what was done about each finding."""
        works = works_by(self.settings)(_local(self.began_s).date())
        # A name is a person's on one cluster; the others have audits of their own.
        others = [one for one in found if one.cluster != self.config.cluster]
        elsewhere = [(one, f"not told: of cluster '{one.cluster}'") for one in others]
        found = [one for one in found if one.cluster == self.config.cluster]
        return [*self._notice(seen, found, works=works), *elsewhere]

    def _notice(self, seen: Audited, found: Sequence[Finding], *, works: bool) -> list[tuple[Finding, str]]:
        dues = [
            self._addressed(due)
            for due in plan(found, self.state.told(), self.state.waivers(), now(), self.settings, works=works)
        ]
        if self.settings.mode != "users":
            done = [(due.finding, _would(due, self.settings)) for due in dues]
            if self.settings.mode == "off":
                self._print_mails(seen, dues)
            else:
                self._tell_admins(seen, done, _NO_POST)
            return done
        self.state.seen(found, now(), self.settings)
        messages = self._queue_digests(seen, dues)
        self._queue_webhook(seen, found)
        acted = {due.finding: act(self.state, due.finding, self.config) for due in dues if due.step == ACTION}
        self.errors += [f"job {one.subject}: {what}" for one, what in acted.items() if "failed" in what]
        posted = self.post()
        states = {message.id: message.state for message in self.state.outbox()}
        done = [
            (due.finding, acted.get(due.finding) or _did(due, states.get(messages.get(due.finding, ""), "")))
            for due in dues
        ]
        self._tell_admins(seen, done, posted)
        return done

    def post(self) -> Posted:
        """Send what waits, and keep in mind what went wrong."""
        posted = deliver(self.state, self.settings, self.until, self.settings.mode == "users")
        for count, what in ((posted.refused, "refused"), (posted.in_doubt, "in doubt")):
            if count:
                self.errors.append(f"{counted(count, 'message')} {what}; see 'colloc audit outbox'")
        if posted.why:
            self.errors.append(posted.why)
        return posted

    def _addressed(self, due: Due) -> Due:
        if due.step in (NOTHING, ACTION) or self.settings.mode != "users":
            return due
        if address_of(due.finding.user, self.settings) is None:
            return Due(due.finding, NOTHING, "no address can be made of this name")
        return due

    def _digest(self, seen: Audited, user: str, dues: Sequence[Due]) -> Texts:
        items = tuple(
            Item(due.finding, due.step == SECOND, self.meanings[due.finding.rule], _next(due, self.settings))
            for due in dues
        )
        cluster, settings = self.config.cluster, self.settings
        reply_to = settings.reply_to or settings.sender
        page = Digest(cluster, user, seen.since, seen.until, items, settings.quiet_days, reply_to, settings.footer)
        subject = f"[{printable(cluster)}] {counted(len(items), 'finding')} about your use of GPUs"
        return Texts(subject, *self.make(USER, page))

    def _queue_digests(self, seen: Audited, dues: Sequence[Due]) -> dict[Finding, str]:
        """Put one mail for each user who is to be told into the outbox; return which message carries a finding."""
        carried: dict[Finding, str] = {}
        for user, of in _by_user(dues).items():
            recipient = address_of(user, self.settings)
            assert recipient is not None
            id = digest_id(recipient, of, self.settings)
            content = mail(id, recipient, self._digest(seen, user, of), self.settings, now())
            self.state.queue(Message(id, MAIL, user, recipient, content, now()), of, now())
            carried.update((due.finding, id) for due in of)
        return carried

    def _queue_webhook(self, seen: Audited, found: Sequence[Finding]) -> None:
        if self.settings.webhook and found:
            ends = seen.since.timestamp(), seen.until.timestamp()
            content = webhook(self.config.cluster, *ends, found, self.settings.min_group)
            id = message_id(["webhook", sorted([*key_of(one), one.digest] for one in found)], self.settings)
            self.state.queue(Message(id, WEBHOOK, "", self.settings.webhook, content, now()), (), now())

    def _tell_admins(self, seen: Audited, done: Sequence[tuple[Finding, str]], posted: Posted) -> None:
        troubled = self._letters(REFUSED, DOUBT)
        if not (done or troubled or self.errors):
            return
        sent = {"accepted": posted.accepted, REFUSED: posted.refused, DOUBT: posted.in_doubt, QUEUED: posted.again}
        fates = tuple(Fate(finding, what) for finding, what in done)
        page = Summary(
            self.config.cluster,
            seen,
            fates,
            sent,
            troubled,
            self._letters(QUEUED),
            tuple(self.errors),
            self.settings.mode,
        )
        title = f"[{printable(self.config.cluster)}] audit: {counted(len(done), 'finding')}"
        if troubled or self.errors:
            title += f", {counted(len(troubled) + len(self.errors), 'problem')}"
        texts = Texts(title, *self.make(ADMIN, page))
        # The same again is told once a day: cron may run every few minutes.
        same = [
            seen.until.date().isoformat(),
            sorted([*key_of(one), one.digest, what] for one, what in done),
            [(letter.id, letter.state) for letter in troubled],
            self.errors,
        ]
        for recipient in self.settings.admins:
            id = message_id([recipient, *same], self.settings)
            content = mail(id, recipient, texts, self.settings, now())
            self.state.queue(Message(id, MAIL, "", recipient, content, now()), (), now())
        self.post()

    def _letters(self, *states: str) -> tuple[Letter, ...]:
        return tuple(
            Letter(one.id, _shown(one), one.state, _local(one.changed_s), one.reply, self.state.carried(one.id))
            for one in self.state.outbox(*states)
            if one.user or one.channel == WEBHOOK
        )

    def _print_mails(self, seen: Audited, dues: Sequence[Due]) -> None:
        for user, of in _by_user(dues).items():
            address = address_of(user, self.settings) or "no address: see 'notices.address'"
            texts = self._digest(seen, user, of)
            lines = [f"would be sent to {printable(user)} ({address}): {texts.subject}", *texts.plain.splitlines()]
            self.show("\n    ".join(lines) + "\n")

    def outlets(self, number: int, seen: Audited, done: Sequence[tuple[Finding, str]]) -> None:
        """Add to the file of findings."""
        if self.settings.json_lines:
            ends = seen.since.timestamp(), seen.until.timestamp()
            append(self.settings.json_lines, json_lines(number, now(), *ends, done))

    def metrics(self, status: int, noticed: Noticed | None) -> None:
        """Write the metrics, of a run that failed as well."""
        if not self.settings.textfile:
            return
        outbox = Counter(message.state for message in self.state.outbox())
        counts = judged = None
        if noticed:
            by_rule = Counter(one.rule for one in noticed.findings)
            counts = {rule: by_rule[rule] for rule in noticed.seen.rules}
            judged = {rule: of for rule, (_, of) in noticed.seen.rules.items()}
        metrics = Metrics(
            ended_s=now(),
            duration_s=ticking() - self.began,
            status=status,
            last_success_s=self.state.last_success(),
            errors=len(self.errors) + (noticed is None),
            findings=counts,
            judged=judged or {},
            outbox={state: outbox[state] for state in (QUEUED, TRYING, "accepted", REFUSED, DOUBT, "dropped")},
        )
        write_atomic(self.settings.textfile, prometheus(metrics).encode(), 0o644)


def notify(config: SiteConfig, chosen: Sequence[Entry], look: Look, show: Show) -> tuple[int, Noticed]:
    """Run the audit alone, tell who is to be told, and return the exit status: 0 clean, 1 findings, 2 error, 3 unknown.

    Raises:
        ConfigError: [notices] cannot be used.
        StoreError: another run is at it, or the state or the store cannot be used.
    """
    check_settings(config.notices)
    check_action(config)
    if config.notices.webhook:
        parse_webhook(config.notices.webhook)
    folder = audit_folder(config.state_folder)
    with alone(folder) as held:
        if not held:
            raise StoreError(f"another run of the audit holds '{folder}/lock'; nothing was done by this one")
        with opened(folder) as state:
            return _alone(_Run(state, config, chosen, show), look)


def check_action(config: SiteConfig) -> None:
    """Raise ConfigError where a job shall be acted on by what is no rule about jobs: it never would be."""
    known = [entry.name for entry in entries(config.audit) if entry.rule.about == JOB]
    for name in config.notices.action_rules:
        if name not in known:
            raise ConfigError(
                f"'notices.action_rules': '{name}' is no rule in force about jobs; "
                f"there are {', '.join(known) or 'none'}"
            )


def _alone(run: _Run, look: Look) -> tuple[int, Noticed]:
    state = run.state
    state.put_back(now())
    since, until = run.window()
    number = state.begin(run.settings.mode, run.rules, since.timestamp(), until.timestamp(), now())
    status, noticed = 2, None
    try:
        try:
            seen, found = look(since, until)
        except CollocError:
            if run.settings.mode == "users":  # what waits does not wait for the store
                run.post()
            raise
        done = run.notice(seen, found)
        run.outlets(number, seen, done)
        noticed = Noticed(seen, tuple(found), tuple(run.errors))
        status = 2 if run.errors else 1 if found else 0 if seen.judged else 3
        for finding, what in done:
            run.show(f"{finding.rule} {printable(finding.subject)}: {printable(what)}\n")
    finally:
        state.end(number, status, now())
        run.metrics(status, noticed)
    return status, noticed


def _meaning(documentation: str) -> str:
    """Return what a rule looks at: the paragraph behind its title."""
    paragraphs = documentation.strip().split("\n\n")
    return " ".join(paragraphs[min(1, len(paragraphs) - 1)].split())


def _by_user(dues: Sequence[Due]) -> dict[str, list[Due]]:
    found: dict[str, list[Due]] = {}
    for due in dues:
        if due.step in (FIRST, SECOND):
            found.setdefault(due.finding.user, []).append(due)
    return found


def _local(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds).astimezone()


def _shown(message: Message) -> str:
    # A webhook's URL is a secret.
    return "the webhook" if message.channel == WEBHOOK else message.recipient


def _would(due: Due, settings: Notices) -> str:
    if due.step == NOTHING:
        return f"not told: {due.why}"
    if due.step == ACTION:
        return f"would get: {settings.action} ({due.why})"
    return f"would be told{' again' if due.step == SECOND else ''} ({due.why})"


def _did(due: Due, state: str) -> str:
    if due.step == NOTHING:
        return f"not told: {due.why}"
    return f"{'second notice' if due.step == SECOND else 'notice'} {state}"


def _next(due: Due, settings: Notices) -> str:
    """Return what a notice about a job says is done next."""
    if due.finding.about != JOB:
        return ""
    if due.step == FIRST:
        return f"if it is still found after {in_words(60 * settings.job_quiet_min)}, you are told again"
    if settings.action == "none" or due.finding.rule not in settings.action_rules:
        return ""
    done = {"hold": "stopped, requeued and held", "cancel": "cancelled"}[settings.action]
    wait = in_words(60 * settings.job_deadline_min)
    return f"if it is still found then, it is {done}, not before {wait} after this mail was handed over"
