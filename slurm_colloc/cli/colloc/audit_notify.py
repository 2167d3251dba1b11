# SPDX-License-Identifier: Apache-2.0
"""colloc audit run --notify: an audit that cron runs, and what is done about what it finds."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime

from slurm_colloc.audit.escalation import (
    ACTION,
    DAY_S,
    DONE,
    DOUBTFUL,
    FIRST,
    NOTHING,
    SECOND,
    SENT,
    Notification,
    Planned,
    in_doubt,
    kept_from_users,
    plan,
)
from slurm_colloc.audit.job_actions import act, finish, in_words
from slurm_colloc.audit.outlets import counts, prometheus
from slurm_colloc.audit.post import (
    COMMAND,
    Post,
    Texts,
    address_of,
    digest_id,
    fault_of,
    mail_content,
    message_id,
)
from slurm_colloc.audit.rules import Entry, entries
from slurm_colloc.audit.state import State, alone, audit_folder, opened
from slurm_colloc.audit.timing import (
    JOBS,
    OTHERS,
    Asked,
    check_bounds,
    check_notices,
    latest,
    names_of,
    window_days,
    windows,
)
from slurm_colloc.cli.colloc.audit_words import DONE_TO_JOB, did, next_step, would
from slurm_colloc.cli.colloc.output import say
from slurm_colloc.core.audit_model import JOB, Audited, Finding, form_of
from slurm_colloc.core.clock import now, ticking
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import ConfigError, ProcessError, Status, StoreError
from slurm_colloc.core.files import write_atomic
from slurm_colloc.core.units import counted, printable
from slurm_colloc.core.units import in_words as time_in_words
from slurm_colloc.report.digest import (
    ACTED,
    ADMIN,
    USER,
    ActionLine,
    ActionMail,
    Digest,
    Doubt,
    Item,
    Summary,
    digest_maker,
    see_it,
)
from slurm_colloc.report.text import local, stamp

# Rules, a window, and the jobs whose users were told of them.
Piece = tuple[tuple[Entry, ...], datetime, datetime, tuple[str, ...]]
# Whether what is found is shown, too.
Look = Callable[[Sequence[Piece], bool], list[Audited]]
Show = Callable[[str], object]
# Says the line to paste that does what a finding says.
Line = Callable[[Finding], str]
# Each finding, and what was done about it.
Fates = list[tuple[Finding, str]]
# For so long it is tried to tell a user what was done to a job.
_TOLD_OF_S = 7 * DAY_S


class _Run:
    """One run, which holds the lock; a ``dry`` one has a copy of the state, and does nothing."""

    def __init__(
        self, state: State, config: SiteConfig, request: Asked, look: Look, show: Show, line: Line, *, dry: bool
    ) -> None:
        self.state, self.config, self.settings, self.dry = state, config, config.notices, dry
        self.asked, self.look, self.show, self.line = request, look, show, line
        self.mode = "off" if dry else self.settings.mode
        self.ruleset = entries(config.audit)
        self.telling = {entry.name for entry in self.ruleset if entry.tells_users}
        self.make = digest_maker(config.paths.templates)
        self.post = Post(state, self.settings)
        self.began_s, self.began = now(), ticking()
        self.day = local(self.began_s).date()
        self.works = self.settings.is_workday(self.day)
        self.missed = ""
        self.errors: list[str] = []

    def run(self) -> tuple[Status, Audited]:
        """Look, do what is due, and return the exit status and what was looked at last."""
        pieces = self._pieces()
        ends = pieces[0][1].timestamp(), pieces[-1][2].timestamp()
        number = self.state.begin(self.settings.mode, self.asked.names, *ends, now())
        status, judged = Status.ERROR, None
        findings: list[Finding] = []
        try:
            looks = self.look(pieces, True)
            audited = looks[-1]
            findings = latest(looks)
            self.errors += [audited.stale] if audited.stale else []
            fates = self._notice(audited, findings)
            judged = audited
            if self.errors:
                status = Status.ERROR
            elif findings:
                status = Status.FOUND
            else:
                status = Status.UNKNOWN if audited.unknown else Status.DONE
            for finding, fate in fates:
                self.show(f"{finding.rule} {printable(finding.subject)}: {printable(fate)}\n")
        finally:
            self.errors += self.post.errors()
            for error in self.errors:
                say(error)
            self.state.end(number, status, now())
            self._write_metrics(status, judged, findings)
        return status, audited

    def _pieces(self) -> list[Piece]:
        """Return what is looked at: the run's own window as the last, before it those of missed runs."""
        entries = self.asked.entries
        last_s = self.state.last_good(self.settings.mode, self.asked.names)
        # A job that ran then runs no more, or is found now.
        run_rules = tuple(entry for entry in entries if entry.rule.about != JOB)
        ends = windows(self.began_s, window_days(self.asked.about), last_s if run_rules else None)
        *before, last = [(local(since_s), local(until_s)) for since_s, until_s in ends]
        if before and last_s is not None:
            judged = "; ".join(f"{stamp(since)} to {stamp(until)}" for since, until in before)
            self.missed = (
                f"The last good run was until {stamp(local(last_s))}. Judged as well, each on its own: {judged}"
            )
        jobs = self.state.jobs_told()
        pieces = [*((run_rules, *pair, jobs) for pair in before), (entries, *last, jobs)]
        self.first_since = self.looked_since = pieces[0][1]
        return pieces

    def _notice(self, audited: Audited, findings: Sequence[Finding]) -> Fates:
        """Tell who is to be told, and return what was done about each finding."""
        self._check_jobs_run()
        for_admins = [(finding, reason) for finding in findings if (reason := self._kept_from_users(finding))]
        findings = [finding for finding in findings if not self._kept_from_users(finding)]
        if self.mode == "users":
            self.state.seen(findings, now(), self.settings)
        planned = self._plan(findings)
        fates = [*self._do(audited, [*planned, *self._also_due(by_user(planned))]), *for_admins]
        if self.mode != "off":
            self._tell_admins(audited, fates)
        return fates

    def _kept_from_users(self, finding: Finding) -> str:
        return kept_from_users(finding, self.config.cluster, self.telling)

    def _plan(self, findings: Iterable[Finding]) -> list[Planned]:
        """Return what is due; nobody is told who has no address."""
        notifications, waivers = self.state.notifications(), self.state.waivers()
        planned = plan(findings, notifications, waivers, now(), self.settings, works=self.works)
        if self.settings.mode != "users":
            return planned
        return [
            due._replace(step=NOTHING, why="no address can be made of this name")
            if due.step in (FIRST, SECOND) and address_of(due.finding.user, self.settings) is None
            else due
            for due in planned
        ]

    def _also_due(self, users: Collection[str]) -> list[Planned]:
        """Return what the rules of the other timer have to tell these users, who get a mail now: it has all."""
        if not (users and self.asked.beside):
            return []
        days = window_days(OTHERS if self.asked.about == JOBS else JOBS)
        since, until = local(self.began_s - days * DAY_S), local(self.began_s)
        (looked,) = self.look([(self.asked.beside, since, until, self.state.jobs_told())], False)
        self.looked_since = min(self.looked_since, since)
        findings = [finding for finding in looked.findings if finding.user in users]
        planned = self._plan(finding for finding in findings if not self._kept_from_users(finding))
        return [due for due in planned if due.step in (FIRST, SECOND)]

    def _check_jobs_run(self) -> None:
        """Say where jobs shall be acted on, and this run leaves the rules about them to another that does not come."""
        settings = self.settings
        if self.asked.about != OTHERS or settings.mode != "users" or not settings.actions:
            return
        jobs = names_of(entry for entry in self.ruleset if entry.rule.about == JOB)
        last_s = self.state.last_good(settings.mode, jobs)
        if last_s is None or self.began_s - last_s > DAY_S:
            self.errors.append(
                "'notices.actions' is set, and no 'colloc audit run --notify --about jobs' ended well "
                "in the last day: no job gets as far as that; does colloc-audit-jobs.timer run?"
            )

    def _do(self, audited: Audited, planned: Sequence[Planned]) -> Fates:
        """Send one mail to each user who is to be told, act on jobs, and return what became of each finding."""
        fates: dict[Finding, str] = {}
        for user, steps in by_user(() if self.mode == "admins" else planned).items():
            texts, address = self._digest(audited, user, steps), address_of(user, self.settings) or ""
            if self.mode == "users":
                id = digest_id(address, steps, self.settings)
                became = self._send(id, address, texts, user, steps)
                fates |= {due.finding: did(due, became) for due in steps}
            else:
                address = address or "no address: see 'notices.address'"
                lines = [f"would be sent to {printable(user)} ({address}): {texts.subject}", *texts.plain.splitlines()]
                self.show("\n    ".join(lines) + "\n")
        if self.mode != "users":
            return [(due.finding, would(due, self.settings)) for due in planned]
        acted = {due.finding: act(self.state, due.finding, self.config) for due in planned if due.step == ACTION}
        fates |= {finding: in_words(action) for finding, action in acted.items()}
        self._say(acted.values())
        try:
            self._say(finish(self.state))
        except ProcessError as error:
            self.errors.append(f"what a run was killed over is not settled yet: {error}")
        self._tell_of_actions()
        return [(due.finding, fates.get(due.finding, f"not told: {due.why}")) for due in planned]

    def _say(self, actions: Iterable[Notification]) -> None:
        self.errors += [
            f"job {printable(action.subject)}: {in_words(action)}" for action in actions if action.state != DONE
        ]

    def _tell_of_actions(self) -> None:
        """Tell users what was done to their jobs, also by a run that was killed before it could say so."""
        for action in self.state.actions(DONE, now() - _TOLD_OF_S) if self.works else ():
            if address := address_of(action.user, self.settings):
                id = message_id([address, *action[:5], action.message], self.settings)
                done, held = DONE_TO_JOB[action.message], action.message == "hold"
                page = ActionMail(
                    self.config.cluster,
                    action.user,
                    action.subject,
                    done,
                    action.rule,
                    held,
                    self.settings.sender,
                    self.settings.footer,
                )
                self._send(id, address, self._texts(f"a job of yours was {done}", ACTED, page), action.user)

    def _tell_admins(self, audited: Audited, fates: Fates) -> None:
        """Give the command counts and send the admins' mail, once a day each: cron may run every few minutes."""
        topic = f"{self.mode} {self.asked.names}"
        period = self.day.isoformat()
        self._give_command(audited, [finding for finding, _ in fates], [topic, period])
        self.errors += self.post.errors()
        last_s = self.state.last_sent(topic)
        after_s = audited.since.timestamp() if last_s is None else last_s
        doubtful = doubts(self.state)
        actions = tuple(
            ActionLine(local(action.changed_s), action.rule, action.subject, action.user, in_words(action))
            for action in self.state.actions(after_s=after_s)
        )
        if fates or doubtful or actions or self.errors:
            page = Summary(
                self.config.cluster,
                audited,
                tuple(fates),
                local(after_s),
                actions,
                sum(bool(row.user) for row in self.state.messages(SENT, after_s)),
                doubtful,
                tuple(self.errors),
                self.mode,
                self.missed,
            )
            title = f"audit: {counted(len(fates), 'finding')}"
            if problems := len(doubtful) + len(self.errors):
                title += f", {counted(problems, 'problem')}"
            texts = self._texts(title, ADMIN, page)
            # Admins hear at once of a doubt that needs them.
            newest_s = max((row.changed_s for row in self.state.messages(DOUBTFUL) if row.user), default=0.0)
            for recipient in self.settings.admins:
                id = message_id([recipient, topic, period, newest_s], self.settings)
                self._send(id, recipient, texts, topic=topic)
        self.errors += self.post.errors()

    def _give_command(self, audited: Audited, findings: Sequence[Finding], key: Sequence[object]) -> None:
        findings = [finding for finding in findings if form_of(finding.rule, finding.about) in audited.rules]
        if self.settings.command and findings:
            id = message_id(["command", *key], self.settings)
            content = counts(id, self.config.cluster, self.first_since.timestamp(), audited.until.timestamp(), findings)
            self.post.give(in_doubt(id, "", COMMAND, now()), content)

    def _digest(self, audited: Audited, user: str, steps: Sequence[Planned]) -> Texts:
        """Return what a user is told of findings in all windows, of missed runs and of the other timer, too."""
        settings = self.settings
        items = tuple(
            Item(
                due.finding,
                due.step == SECOND,
                next_step(due, settings, now()),
                self.line(due.finding),
                see_it(due.finding),
            )
            for due in steps
        )
        page = Digest(
            self.config.cluster,
            user,
            self.looked_since,
            audited.until,
            items,
            settings.quiet_days,
            settings.sender,
            settings.footer,
        )
        return self._texts(f"{counted(len(items), 'finding')} about your use of GPUs", USER, page)

    def _texts(self, subject: str, name: str, page: object) -> Texts:
        return Texts(f"[{printable(self.config.cluster)}] {subject}", *self.make(name, page))

    def _send(
        self, id: str, recipient: str, texts: Texts, user: str = "", steps: Sequence[Planned] = (), topic: str = ""
    ) -> str:
        """Hand one mail over; return what it came to, as Post.give says."""
        message = in_doubt(id, user, recipient, now(), steps, topic)
        return self.post.give(message, mail_content(id, recipient, texts, self.settings, now()))

    def _write_metrics(self, status: Status, audited: Audited | None, findings: Sequence[Finding]) -> None:
        """Write the metrics, also those of a run that failed, for which ``audited`` is None."""
        if self.dry or not self.settings.textfile:
            return
        by_rule = Counter(form_of(finding.rule, finding.about) for finding in findings)
        values = {
            "last_run_timestamp_seconds": now(),
            "last_success_timestamp_seconds": self.state.last_success(self.asked.names),
            "exit_status": int(status),
            "duration_seconds": round(ticking() - self.began, 3),
            "errors": len(self.errors) + (audited is None),
            "findings": audited and {rule: by_rule[rule] for rule in audited.rules},
            "judged": audited and {rule: number for rule, (_, number) in audited.rules.items()},
            "messages_in_doubt": len(self.state.messages(DOUBTFUL)),
        }
        write_atomic(self.settings.textfile, prometheus(self.asked.about, values).encode(), 0o644)


def notify(
    config: SiteConfig, request: Asked, look: Look, show: Show, line: Line = lambda finding: "", *, dry: bool = False
) -> tuple[Status, Audited]:
    """Run the audit alone, tell who is to be told, and return the exit status: 0 clean, 1 findings, 2 error, 3 unknown.

    A ``dry`` run shows what a run would do now, and leaves no trace.

    Raises:
        ConfigError: [notices] cannot be used.
        StoreError: another run is at it, or the state or the store cannot be used.
    """
    check_notices(config)
    check_bounds(request.entries, window_days(request.about))
    if dry:
        with opened(config.audit_folder, copy=True) as state:
            return _Run(state, config, request, look, show, line, dry=True).run()
    if config.notices.command and (fault := fault_of(config.notices.command)):
        raise ConfigError(f"'notices.command' '{config.notices.command}': {fault}")
    folder = audit_folder(config.audit_folder)
    with alone(folder, request.wait_s) as held:
        if not held:
            raise StoreError(
                f"another run of the audit holds '{folder}/lock', after {time_in_words(request.wait_s)} still; "
                "nothing was done by this one"
            )
        with opened(folder) as state:
            return _Run(state, config, request, look, show, line, dry=False).run()


def by_user(planned: Iterable[Planned]) -> dict[str, list[Planned]]:
    """Return what each user is to be told of."""
    due_by_user: dict[str, list[Planned]] = {}
    for due in planned:
        if due.step in (FIRST, SECOND):
            due_by_user.setdefault(due.finding.user, []).append(due)
    return due_by_user


def doubts(state: State) -> tuple[Doubt, ...]:
    """Return the messages of which nobody knows whether they went."""
    findings = Counter(row.message for row in state.notifications(DOUBTFUL) if row.rule)
    return tuple(
        Doubt(row.message, row.recipient, local(row.changed_s), row.reply, findings[row.message])
        for row in state.messages(DOUBTFUL)
    )
