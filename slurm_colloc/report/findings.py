# SPDX-License-Identifier: Apache-2.0
"""Findings of audit rules, for people and for programs."""

from collections.abc import Iterable, Iterator, Sequence

from slurm_colloc.core.audit_model import JOB, Audited, Finding, form_of
from slurm_colloc.core.units import at_least, counted, printable, significant
from slurm_colloc.report.layout import NO_TERMINAL, Terminal, left_out_line, list_lines, narrowed
from slurm_colloc.report.text import csv_table, json_text, stamp

SCHEMA = 2
# Columns beside the subject: those of the highest are left out first.
_RANKS = {"RULE": 0, "GPU-h": 2, "JUDGED": 3, "SAMPLED %": 4, "DO": 1}
_NAME_COLUMNS = 16
_BELOW = "SAMPLED %: of the run that was sampled least. GPU-h of several rules overlap: do not add them up."


def as_json(looks: Sequence[Audited]) -> str:
    """Return findings as JSON, with what they are of; windows of missed runs, before the last one, stand apart."""
    *missed, last = looks
    record = _shown(last) | ({"missed": [_shown(look) for look in missed]} if missed else {})
    return json_text(SCHEMA, record)


def _shown(look: Audited) -> dict[str, object]:
    return {
        "since": look.since,
        "until": look.until,
        "runs": look.whole.jobs,
        "runs_measured": look.whole.jobs_measured,
        "coverage_pct": look.whole.coverage_pct,
        "rules": {name: {"rows": rows, "judged": judged} for name, (rows, judged) in look.rules.items()},
        "visible": look.visible,
        "stale": look.stale,
        "findings": look.findings,
    } | ({"mails_by_day": look.mails_by_day} if look.mails_by_day else {})


def as_text(look: Audited, terminal: Terminal = NO_TERMINAL) -> str:
    """Return findings for a terminal: the runs, a table, what to do, each thing once, and what was seen, by rule."""
    coverage = look.whole.coverage_pct
    rules = {name.removesuffix(form_of("", JOB)) for name in look.rules}
    sampled = "" if coverage is None else f"; {coverage:.0f} % of all GPU-hours were sampled"
    lines = [
        f"{counted(len(look.findings), 'finding')} by {len({one.rule for one in look.findings})} of "
        f"{counted(len(rules), 'rule')}, {stamp(look.since)} to {stamp(look.until)}: one rule could judge "
        f"{look.judged} of {counted(look.whole.jobs, 'GPU run')}{sampled}"
    ]
    if look.blind:
        lines.append(
            f"these rules could judge no run: {', '.join(look.blind)} (too short, too little measured, or a limit or "
            "node not known)"
        )
    lines += map(printable, filter(None, (look.stale, look.visible)))
    if look.findings:
        lines += _by_user(look.findings, terminal)
    if look.mails_by_day:
        lines.append(
            "mails of each night, as if nobody had been told before: one a user, on a later day again for a new finding"
        )
        days = ((day.day.isoformat(), "-" if day.mails is None else str(day.mails)) for day in look.mails_by_day)
        lines += list_lines([("DAY", "MAILS"), *days])
    return "\n".join([*lines, ""])


def as_csv(looks: Sequence[Audited]) -> str:
    """Return a row for each finding."""
    rows = (
        [look.since.isoformat(), look.until.isoformat(), *_cells(finding)]
        for look in looks
        for finding in look.findings
    )
    return csv_table(["since", "until", *Finding._fields], rows)


def _cells(finding: Finding) -> Iterable[object]:
    excluded = "; ".join(f"{number} {reason}" for reason, number in finding.excluded)
    jobs = " ".join(line.job_id for line in finding.jobs)
    texts = {"methods": " and ".join(finding.methods), "excluded": excluded, "jobs": jobs}
    return (finding._asdict() | texts).values()


def judged_of(finding: Finding) -> str:
    """Return of how many runs a finding's subject had enough is known, and why of the others it is not."""
    if finding.judged is None:
        return ""
    excluded = "; ".join(f"{number} not: {reason}" for reason, number in finding.excluded)
    return f"{finding.judged} of {finding.judged + sum(number for _, number in finding.excluded)}" + (
        f" ({excluded})" if excluded else ""
    )


def _by_user(findings: Iterable[Finding], terminal: Terminal) -> Iterator[str]:
    """Yield the figures of each finding, those of one user together, what to do, and what was seen, by rule."""
    most = {finding.user: finding.gpu_hours for finding in sorted(findings, key=lambda finding: finding.gpu_hours)}
    ordered = sorted(findings, key=lambda finding: (-most[finding.user], finding.user, -finding.gpu_hours))
    numbers: dict[str, int] = {}
    titles = ("SUBJECT", *_RANKS)
    rows = [titles]
    seen: dict[str, list[str]] = {}
    for finding in ordered:
        number = numbers.setdefault(finding.remedy, len(numbers) + 1)
        sampled = "-" if finding.coverage_pct is None else str(at_least(finding.coverage_pct))
        subject, rule, judged = printable(finding.subject), printable(finding.rule), judged_of(finding)
        figures = significant(finding.gpu_hours), judged.partition(" (")[0] or "-", sampled, str(number)
        rows.append((subject, rule, *figures))
        of_rule = seen.setdefault(f"{rule}: {printable(finding.title)}", [])
        of_rule.append(f"  {subject}: {printable(finding.evidence)}")
        if finding.excluded:
            of_rule.append(f"    judged: {judged}")
    table = narrowed(rows, [*_RANKS.values()], terminal, _NAME_COLUMNS)
    yield from ("", *list_lines(table), *left_out_line(titles, table[0]), _BELOW)
    yield from ("", "what to do")
    yield from (f"  {number}. {printable(remedy)}" for remedy, number in numbers.items())
    for title, lines in sorted(seen.items()):
        yield from ("", title, *lines)
    yield from ("", "a finding alone, by its rule and user, such as the first")
    yield f"    see: {printable(ordered[0].reproduce)}"
