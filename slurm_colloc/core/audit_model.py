# SPDX-License-Identifier: Apache-2.0
"""Types of audits: questions of rules, answers, findings.

As in model.py, units are the last word of a name, and None means not known and is never 0.
"""

from collections.abc import Mapping
from datetime import date, datetime
from typing import NamedTuple

from slurm_colloc.core.usage_model import GroupUsage

# The tables that rules ask.
RUNS, NODES = "audited_runs", "audited_nodes"
# The subjects of findings.
USER, NODE, JOB = "user", "node", "job"
# A program that only opens a GPU shows some milliseconds of work on it: 0.1 % of two seconds on an H100.
IDLE_PCT = 0.1
# Notices of a finding are kept by rule, about, cluster, subject.
Key = tuple[str, str, str, str]


def form_of(rule: str, about: str) -> str:
    """Return how an entry is counted: one can be about users and, in another form, about their jobs that run."""
    return f"{rule} (running jobs)" if about == JOB else rule


class Question(NamedTuple):
    """A rule's question to the table ``source``, as SQL over its columns; ``$name`` stands for a parameter.

    A row within ``scope`` can be judged if it has all that the rule ``needs`` (why a row without it cannot be judged ->
    a condition); the rule is about those ``found``. ``hours`` is what a found
    row adds to the finding, in GPU-hours. ``subject`` names what findings are of. ``figures`` are aggregates over the
    judged rows of one subject, in which ``found`` is a column, and ``label`` is one that is a text. ``coverage`` is how
    much of a row's time was sampled, in percent.
    """

    source: str
    subject: str
    scope: str
    needs: Mapping[str, str]
    found: str
    hours: str
    figures: Mapping[str, str]
    parameters: Mapping[str, object]
    label: str = "NULL"
    coverage: str = "coverage_pct"

    @property
    def judged(self) -> str:
        """Return the condition that a row can be judged."""
        return " AND ".join(f"({condition})" for condition in self.needs.values())


class JobLine(NamedTuple):
    """One run among those that a finding is about; ``gpu_hours`` is what the rule counts of it."""

    job_id: str
    job_name: str
    gres: str
    partition: str
    start_s: float
    gpu_hours: float
    account: str = ""


class Subject(NamedTuple):
    """The found runs or nodes of one subject of one cluster.

    ``user`` is empty where nobody is answerable. ``gpu_hours`` is of the found, ``coverage_pct`` the least of one of
    them, None where the source of a rule knows none. ``evidence`` is a digest of which runs they were. ``worst`` are
    the first by hours. ``newest_s`` is when the last of the found runs began, of one that still runs until when it was
    seen. ``excluded`` says how many of the subject's rows could not be judged, by why, most first.
    """

    cluster: str
    name: str
    user: str
    judged: int
    found: int
    gpu_hours: float
    coverage_pct: float | None
    methods: tuple[str, ...]
    evidence: str
    worst: tuple[JobLine, ...]
    newest_s: float | None
    figures: Mapping[str, float | None]
    label: str = ""
    excluded: tuple[tuple[str, int], ...] = ()


class Answer(NamedTuple):
    """The answer to one question: ``rows`` were within its scope, ``judged`` of them could be judged."""

    rows: int
    judged: int
    subjects: tuple[Subject, ...]


class Finding(NamedTuple):
    """The statement of one entry of [[audit.rule]] on one subject.

    ``rule`` is the entry's name, ``code`` the rule's. ``evidence`` says what was seen, over what, how surely, and the
    site's bound; ``reproduce`` is a command that shows it. ``digest`` changes when the runs behind it do;
    ``newest_s`` as of a Subject. ``judged`` of the subject's rows could be judged, ``excluded`` could not, by why.
    ``idle_since_s`` is when the idleness of a job that runs began, at the latest.
    """

    rule: str
    code: str
    severity: str
    about: str
    cluster: str
    subject: str
    user: str
    title: str
    gpu_hours: float
    evidence: str
    remedy: str
    reproduce: str
    coverage_pct: float | None
    methods: tuple[str, ...]
    jobs: tuple[JobLine, ...]
    digest: str
    newest_s: float | None = None
    judged: int | None = None
    excluded: tuple[tuple[str, int], ...] = ()
    idle_since_s: float | None = None


class MailDay(NamedTuple):
    """A workday, and how many users that night's run would have mailed; None where it could have judged nothing."""

    day: date
    mails: int | None


class Audited(NamedTuple):
    """A window, all runs with a GPU in it, for each rule (rows in its scope, rows judged), and what was found.

    ``accounted`` names rules that judge by the accounting, without a measurement. ``visible`` says whose jobs these
    are, where they are not everybody's. ``running`` names rules about jobs that run, and ``stale`` says why it is
    not known which do, empty where it is. ``mails_by_day`` is of a past window, where it was asked.
    """

    since: datetime
    until: datetime
    whole: GroupUsage
    rules: Mapping[str, tuple[int, int]]
    visible: str
    accounted: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    stale: str = ""
    findings: tuple[Finding, ...] = ()
    mails_by_day: tuple[MailDay, ...] = ()

    @property
    def judged(self) -> int:
        """Return how many rows the rule that could judge most could judge, among rules with measurements if any."""
        measured = [judged for name, (_, judged) in self.rules.items() if name not in self.accounted]
        return max(measured or [judged for _, judged in self.rules.values()], default=0)

    @property
    def unknown(self) -> bool:
        """Return whether that nothing was found would say nothing; that no job runs is known, unless ``stale``."""
        idle = bool(self.rules) and all(name in self.running and not rows for name, (rows, _) in self.rules.items())
        return bool(self.stale) or not (self.judged or idle)

    @property
    def blind(self) -> list[str]:
        """Return the rules that could judge nothing of what was in their scope."""
        return [name for name, (rows, judged) in self.rules.items() if rows and not judged]
