# SPDX-License-Identifier: Apache-2.0
"""colloc audit run --notify: an audit that cron runs, and what is done about what it finds."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from slurm_colloc.audit.job_actions import act, finish, in_words
from slurm_colloc.audit.ladder import (
    ACTION,
    DAY_S,
    DONE,
    DOUBTFUL,
    FIRST,
    NOTHING,
    SECOND,
    SENT,
    Planned,
    kept_from_users,
    plan,
)
from slurm_colloc.audit.message import address_of, message_id
from slurm_colloc.audit.outlets import counts, prometheus
from slurm_colloc.audit.post import Post, fault_of
from slurm_colloc.audit.rules import Entry, entries
from slurm_colloc.audit.state import COMMAND, Action, Message, State, alone, audit_folder, copied, opened
from slurm_colloc.audit.timing import (
    JOBS,
    OTHERS,
    Asked,
    check_bounds,
    latest,
    names_of,
    window_days,
    windows,
)
from slurm_colloc.audit.validate import check_notices
from slurm_colloc.cli.colloc.audit_mails import Line, Mails, by_user, did, would
from slurm_colloc.cli.colloc.output import say
from slurm_colloc.core.audit_model import JOB, Audited, Finding, form_of
from slurm_colloc.core.clock import now, ticking
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import ConfigError, ProcessError, Status, StoreError
from slurm_colloc.core.files import write_atomic
from slurm_colloc.core.units import in_words as time_in_words
from slurm_colloc.core.units import printable
from slurm_colloc.report.digest import ActionLine, Doubt, Summary
from slurm_colloc.report.text import local, stamp

# Rules, a window, and the jobs whose users were told of them.
Piece = tuple[tuple[Entry, ...], datetime, datetime, tuple[str, ...]]
# Whether what is found is shown, too.
Look = Callable[[Sequence[Piece], bool], list[Audited]]
Show = Callable[[str], object]
# For so long it is tried to tell a user what was done to a job.
_TOLD_OF_S = 7 * DAY_S


class _Run:
    """One run, which holds the lock; a ``dry`` one has a copy of the state, and does nothing."""

    def __init__(
        self, state: State, config: SiteConfig, request: Asked, look: Look, show: Show, line: Line, *, dry: bool
    ) -> None:
        self.state, self.config, self.settings, self.show, self.dry = state, config, config.notices, show, dry
        self.asked, self.look, self.missed = request, look, ""
        self.mode = "off" if dry else self.settings.mode
        ruleset = entries(config.audit)
        self.told = {entry.name for entry in ruleset if entry.tells_users}
        self.mails = Mails(config, line)
        self.post = Post(state, self.settings)
        self.began_s, self.began = now(), ticking()
        self.errors: list[str] = []

    def pieces(self) -> list[Piece]:
        """Return what is looked at: the run's own window as the last, before it those of missed runs."""
        entries, until_s = self.asked.entries, self.began_s
        last_s = self.state.last_good(self.settings.mode, self.asked.names)
        # A job that ran then runs no more, or is found now.
        run_rules = tuple(entry for entry in entries if entry.rule.about != JOB)
        days = window_days(self.asked.about)
        *before, last = windows(until_s, days, last_s if run_rules else None)
        ends = [(local(since_s), local(until_s)) for since_s, until_s in before]
        if before and last_s is not None:
            judged = "; ".join(f"{stamp(since)} to {stamp(until)}" for since, until in ends)
            self.missed = (
                f"The last good run was until {stamp(local(last_s))}. Judged as well, each on its own: {judged}"
            )
        jobs = self._told_jobs()
        pieces = [*((run_rules, *pair, jobs) for pair in ends), (entries, local(last[0]), local(last[1]), jobs)]
        self.first_since = self.looked_since = pieces[0][1]
        return pieces

    def _told_jobs(self) -> tuple[str, ...]:
        """Return the jobs of which their users were told while they ran."""
        return tuple(
            dict.fromkeys(
                notification.subject for notification in self.state.notifications() if notification.about == JOB
            )
        )

    def notice(self, audited: Audited, findings: Sequence[Finding]) -> list[tuple[Finding, str]]:
        """Tell who is to be told, and return what was done about each finding."""
        self._check_jobs_run()
        with_reasons = [(finding, self._kept_from_users(finding)) for finding in findings]
        admins_only = [(finding, reason) for finding, reason in with_reasons if reason]
        findings = [finding for finding, reason in with_reasons if not reason]
        if self.mode == "users":
            self.state.seen(findings, now(), self.settings)
        planned = self._plan(findings)
        done = self._do(audited, [*planned, *self._also_due(by_user(planned))])
        if self.mode != "off":
            self._tell_admins(audited, [*done, *admins_only])
        return [*done, *admins_only]

    def _kept_from_users(self, finding: Finding) -> str:
        return kept_from_users(finding, self.config.cluster, self.told)

    def _plan(self, findings: Sequence[Finding]) -> list[Planned]:
        notifications, waivers, works = self.state.notifications(), self.state.waivers(), self._works_today()
        return [
            self._addressed(due) for due in plan(findings, notifications, waivers, now(), self.settings, works=works)
        ]

    def _also_due(self, users: Collection[str]) -> list[Planned]:
        """Return what the rules of the other timer have to tell these users, who get a mail now: it has all."""
        if not (users and self.asked.beside):
            return []
        days = window_days(OTHERS if self.asked.about == JOBS else JOBS)
        since, until = local(self.began_s - days * DAY_S), local(self.began_s)
        (looked,) = self.look([(self.asked.beside, since, until, self._told_jobs())], False)
        findings = [
            finding for finding in looked.findings if finding.user in users and not self._kept_from_users(finding)
        ]
        self.looked_since = min(self.looked_since, since)
        return [due for due in self._plan(findings) if due.step in (FIRST, SECOND)]

    def _check_jobs_run(self) -> None:
        """Say where jobs shall be acted on, and this run leaves the rules about them to another that does not come."""
        settings = self.settings
        if self.asked.about != OTHERS or settings.mode != "users" or not settings.actions:
            return
        jobs = names_of(entry for entry in entries(self.config.audit) if entry.rule.about == JOB)
        last_s = self.state.last_good(settings.mode, jobs)
        if last_s is None or self.began_s - last_s > DAY_S:
            self.errors.append(
                "'notices.actions' is set, and no 'colloc audit run --notify --about jobs' ended well "
                "in the last day: no job gets as far as that; does colloc-audit-jobs.timer run?"
            )

    def _do(self, audited: Audited, planned: Sequence[Planned]) -> list[tuple[Finding, str]]:
        if self.mode == "off":
            self._print_mails(audited, planned)
        if self.mode != "users":
            return [(due.finding, would(due, self.settings)) for due in planned]
        became = self._tell_users(audited, planned)
        acted = {due.finding: act(self.state, due.finding, self.config) for due in planned if due.step == ACTION}
        self._say(list(acted.values()))
        try:
            self._say(finish(self.state))
        except ProcessError as error:
            self.errors.append(f"what a run was killed over is not settled yet: {error}")
        self._tell_of_actions()
        return [
            (
                due.finding,
                in_words(acted[due.finding]) if due.finding in acted else did(due, became.get(due.finding, "")),
            )
            for due in planned
        ]

    def _say(self, acted: Sequence[Action]) -> None:
        self.errors += [
            f"job {printable(action.subject)}: {in_words(action)}" for action in acted if action.state != DONE
        ]

    def _works_today(self) -> bool:
        return self.settings.is_workday(local(now()).date())

    def _addressed(self, due: Planned) -> Planned:
        if due.step in (NOTHING, ACTION) or self.settings.mode != "users":
            return due
        if address_of(due.finding.user, self.settings) is None:
            return Planned(due.finding, NOTHING, "no address can be made of this name")
        return due

    def _tell_users(self, audited: Audited, planned: Sequence[Planned]) -> dict[Finding, str]:
        """Send one mail to each user who is to be told; return what became of it, by finding."""
        became: dict[Finding, str] = {}
        for user, user_steps in by_user(planned).items():
            message, content = self.mails.digest_mail(self._looked_at(audited), user, user_steps)
            became |= dict.fromkeys((due.finding for due in user_steps), self.post.give(message, content, user_steps))
        return became

    def _tell_of_actions(self) -> None:
        """Tell users what was done to their jobs, also by a run that was killed before it could say so."""
        if not self._works_today():
            return
        for acted in self.state.actions(DONE, now() - _TOLD_OF_S):
            if mail := self.mails.action(acted):
                self.post.give(*mail)

    def _tell_admins(self, audited: Audited, done: Sequence[tuple[Finding, str]]) -> None:
        """Give the command counts and send the admins' mail, once a day each: cron may run every few minutes."""
        topic = f"{self.mode} {self.asked.names}"
        period = local(now()).date().isoformat()
        self._give_command(
            audited,
            [finding for finding, _ in done if form_of(finding.rule, finding.about) in audited.rules],
            [topic, period],
        )
        self.errors += self.post.errors()
        last_s = self.state.last_sent(topic)
        after_s = audited.since.timestamp() if last_s is None else last_s
        doubtful = self.state.messages(DOUBTFUL)
        actions = tuple(
            ActionLine(local(action.changed_s), action.rule, action.subject, action.user, in_words(action))
            for action in self.state.actions(after_s=after_s)
        )
        if done or doubtful or actions or self.errors:
            page = Summary(
                self.config.cluster,
                audited,
                tuple(done),
                local(after_s),
                actions,
                sum(bool(message.user) for message in self.state.messages(SENT, after_s)),
                tuple(
                    Doubt(mail.id, mail.recipient, local(mail.changed_s), mail.reply, len(self.state.carried(mail.id)))
                    for mail in doubtful
                ),
                tuple(self.errors),
                self.mode,
                self.missed,
            )
            # Admins hear at once of a doubt that needs them.
            key = [period, max((mail.changed_s for mail in doubtful if mail.user), default=0.0)]
            for recipient in self.settings.admins:
                self.post.give(*self.mails.summary(key, topic, recipient, page))
        self.errors += self.post.errors()

    def _give_command(self, audited: Audited, findings: Sequence[Finding], key: Sequence[object]) -> None:
        if self.settings.command and findings:
            id = message_id([COMMAND, *key], self.settings)
            content = counts(id, self.config.cluster, self.first_since.timestamp(), audited.until.timestamp(), findings)
            self.post.give(Message(id, COMMAND, "", "the command"), content)

    def _print_mails(self, audited: Audited, planned: Sequence[Planned]) -> None:
        for user, user_steps in by_user(planned).items():
            address = address_of(user, self.settings) or "no address: see 'notices.address'"
            texts = self.mails.digest(self._looked_at(audited), user, user_steps)
            lines = [f"would be sent to {printable(user)} ({address}): {texts.subject}", *texts.plain.splitlines()]
            self.show("\n    ".join(lines) + "\n")

    def _looked_at(self, audited: Audited) -> Audited:
        """Return what was looked at for each user who is told: windows of missed runs and of the other timer, too."""
        return audited._replace(since=self.looked_since)

    def metrics(self, status: Status, audited: Audited | None, findings: Sequence[Finding]) -> None:
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
        with copied(config.audit_folder) as state:
            return _alone(_Run(state, config, request, look, show, line, dry=True))
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
            return _alone(_Run(state, config, request, look, show, line, dry=False))


def _alone(run: _Run) -> tuple[Status, Audited]:
    state = run.state
    pieces = run.pieces()
    ends = pieces[0][1].timestamp(), pieces[-1][2].timestamp()
    number = state.begin(run.settings.mode, run.asked.names, *ends, now())
    status, judged = Status.ERROR, None
    findings: list[Finding] = []
    try:
        looks = run.look(pieces, True)
        audited = looks[-1]
        findings = latest(looks)
        run.errors += [audited.stale] if audited.stale else []
        done = run.notice(audited, findings)
        judged = audited
        unknown = Status.UNKNOWN if audited.unknown else Status.DONE
        status = Status.ERROR if run.errors else Status.FOUND if findings else unknown
        for finding, outcome in done:
            run.show(f"{finding.rule} {printable(finding.subject)}: {printable(outcome)}\n")
    finally:
        run.errors += run.post.errors()
        for error in run.errors:
            say(error)
        state.end(number, status, now())
        run.metrics(status, judged, findings)
    return status, audited
