# SPDX-License-Identifier: Apache-2.0
"""The rules and windows of an audit run, and what of [audit] and [notices] no site can mean.

Rules about running jobs have a timer of their own: they look at now, every half an hour, and the others at days, every
night.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import NamedTuple

from slurm_colloc.audit.escalation import (
    DAY_S,
    FIRST,
    SENT,
    Notification,
    in_doubt,
    kept_from_users,
    key_of,
    plan,
    still,
)
from slurm_colloc.audit.post import check_settings, fault_of, find_sendmail
from slurm_colloc.audit.rules import Entry, entries
from slurm_colloc.core.audit_model import JOB, Audited, Finding, Key, MailDay
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.core.errors import ConfigError, InputError
from slurm_colloc.core.units import in_words

JOBS, OTHERS = "jobs", "others"
# A job that runs is judged by how long it idles now, which no rule asks to be a day.
JOB_WINDOW_DAYS = 1.0
# Every day of the week counts once, so that no week-end looks like idleness.
WINDOW_DAYS = 7.0
# After a longer pause nobody remembers what they did in its first weeks.
_MOST_WINDOWS = 4


class Asked(NamedTuple):
    """Which rules, whether they are those about running jobs or the others, and how long another run may take yet.

    The rules in force that it leaves to the other timer are ``beside``.
    """

    entries: tuple[Entry, ...]
    about: str
    wait_s: float
    beside: tuple[Entry, ...] = ()

    @property
    def names(self) -> str:
        """Return what runs of these rules are remembered by."""
        return names_of(self.entries)


def names_of(entries: Iterable[Entry]) -> str:
    """Return the names of rules, whatever their order."""
    return ",".join(sorted(entry.form for entry in entries))


def of_about(ruleset: Sequence[Entry], about: str) -> tuple[Entry, ...]:
    """Return the rules about running ``jobs``, the ``others``, or (empty) all.

    Raises:
        InputError: it is another word, or no rule is left.
    """
    if about not in ("", JOBS, OTHERS):
        raise InputError(f"--about '{about}' is neither {JOBS} nor {OTHERS}")
    chosen = tuple(entry for entry in ruleset if not about or (entry.rule.about == JOB) == (about == JOBS))
    if ruleset and not chosen:
        names = ", ".join(entry.name for entry in ruleset)
        opposite = OTHERS if about == JOBS else JOBS
        raise InputError(f"--about {about} leaves out {names}; give --about {opposite}")
    return chosen


def window_days(about: str) -> float:
    """Return how far a run looks back."""
    return JOB_WINDOW_DAYS if about == JOBS else WINDOW_DAYS


def check_bounds(chosen: Sequence[Entry], length_days: float) -> None:
    """Raise ConfigError where a job cannot idle in a window for as long as a rule about jobs asks."""
    for entry in chosen:
        if entry.rule.about != JOB:
            continue
        minutes = {name: value for name, value in entry.bounds.items() if name.endswith("_warning_min")}
        name, bound_min = max(minutes.items(), key=lambda bound: bound[1])
        if 60 * bound_min >= length_days * DAY_S:
            raise ConfigError(
                f"[[audit.rule]] '{entry.name}': it would find nothing: 'bounds.{name}' of {bound_min:g} min is "
                f"not shorter than the window of {in_words(length_days * DAY_S)}; lower it"
            )


def check_notices(config: SiteConfig) -> None:
    """Look at what the types of [audit] and [notices] do not say.

    Raises:
        ConfigError: a rule or bound that is none, or mails or actions that could never come to anybody.
    """
    check_settings(config.notices)
    job_rules = [entry.name for entry in entries(config.audit) if entry.rule.about == JOB and entry.tells_users]
    for name in config.notices.actions:
        if name not in job_rules:
            raise ConfigError(
                f"'notices.actions': '{name}' is no rule in force about jobs that tells users; "
                f"there are {', '.join(job_rules) or 'none'}"
            )


def faults(config: SiteConfig) -> Iterator[str]:
    """Yield why runs of the audits would end in an error, by what site.toml says itself."""
    steps: tuple[Callable[[], None], ...] = (
        lambda: check_notices(config),
        lambda: check_bounds(entries(config.audit), JOB_WINDOW_DAYS),
    )
    for step in steps:
        try:
            step()
        except ConfigError as error:
            yield str(error)


def file_faults(config: SiteConfig) -> Iterator[tuple[str, str, str]]:
    """Yield key, path and fault of the command of [notices] and of the mail service, as who audits finds them."""
    if config.notices.mode != "off" and not find_sendmail():
        yield "notices.mode", config.notices.mode, "there is no 'sendmail' on this host; install a mail service"
    path = config.notices.command
    if path and (fault := fault_of(path)):
        yield "notices.command", path, fault


def windows(until_s: float, length_days: float, last_good_s: float | None) -> list[tuple[float, float]]:
    """Return the windows of a run, its own as the last.

    More windows are before it if the last good run ended longer ago than one reaches: end to end, each as long as the
    bounds of rules mean it, back to that run; at most four in all.
    """
    length_s = length_days * DAY_S
    count = 1 if last_good_s is None else min(_MOST_WINDOWS, max(1, ceil((until_s - last_good_s) / length_s)))
    return [(until_s - (back + 1) * length_s, until_s - back * length_s) for back in reversed(range(count))]


def latest(looks: Sequence[Audited]) -> list[Finding]:
    """Return what was found in several windows, each finding once: as the last of them says it."""
    return [*{key_of(finding): finding for look in looks for finding in look.findings}.values()]


def nights(since: datetime, until: datetime) -> list[tuple[datetime, datetime]]:
    """Return the windows of runs a day apart that end in (since, until], the last of them ``until``."""
    count = -(-(until - since) // timedelta(days=1))
    ends = (until - timedelta(days=back) for back in reversed(range(count)))
    return [(end - timedelta(days=WINDOW_DAYS), end) for end in ends]


def first_mails(
    looks: Sequence[Audited], telling: Collection[str], cluster: str | None, settings: Notices
) -> tuple[MailDay, ...]:
    """Return how many users the run of each workday would have told of something new.

    As if nobody had been told before the first run, each mail had gone out, and nobody had waived any.

    Args:
        looks: findings of each of these runs, a day apart.
        telling: the rules that tell users.
        cluster: the site's own, whose users alone are told; None where that is not known.
        settings: the site's.
    """
    first_notices: dict[Key, Notification] = {}
    days = []
    for look in looks:
        at_s, day = look.until.timestamp(), look.until.date()
        works = settings.is_workday(day)
        findings = [finding for finding in look.findings if not kept_from_users(finding, cluster, telling)]
        users = set()
        for due in plan(findings, first_notices.values(), (), at_s, settings, works=works):
            key = key_of(due.finding)
            if due.step == FIRST:
                users.add(due.finding.user)
                first_notices[key] = in_doubt("", "", "", at_s, [due])[0]._replace(state=SENT)
            elif key in first_notices:
                first_notices[key] = still(first_notices[key], due.finding, at_s, settings)
        if works:
            days.append(MailDay(day, None if look.unknown else len(users)))
    return tuple(days)
