# SPDX-License-Identifier: Apache-2.0
"""Findings of audit rules, for people and for programs."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from slurm_colloc.core.audit_model import JOB, Audited, Finding, form_of
from slurm_colloc.core.units import counted, printable
from slurm_colloc.report.layout import list_lines
from slurm_colloc.report.text import csv_table, json_text, stamp

SCHEMA = 2


def as_json(looks: Sequence[Audited]) -> str:
    """Return findings as JSON, with what they are of; windows of missed runs, before the last one, stand apart."""
    *missed, seen = looks
    shown = _shown(seen) | ({"missed": [_shown(one) for one in missed]} if missed else {})
    return json_text(SCHEMA, shown)


def _shown(seen: Audited) -> dict[str, object]:
    return {
        "since": seen.since,
        "until": seen.until,
        "runs": seen.whole.jobs,
        "runs_measured": seen.whole.jobs_measured,
        "coverage_pct": seen.whole.coverage_pct,
        "rules": {name: {"rows": rows, "judged": judged} for name, (rows, judged) in seen.rules.items()},
        "visible": seen.visible,
        "stale": seen.stale,
        "findings": seen.findings,
    } | ({"mails_by_day": seen.mails_by_day} if seen.mails_by_day else {})


def as_text(seen: Audited) -> str:
    """Return findings for a terminal: the runs, then each finding; a remedy stands once for alike ones."""
    coverage = seen.whole.coverage_pct
    rules = {name.removesuffix(form_of("", JOB)) for name in seen.rules}
    sampled = "" if coverage is None else f"; {coverage:.0f} % of all GPU-hours were sampled"
    lines = [
        f"{counted(len(seen.findings), 'finding')} by {counted(len(rules), 'rule')}, {stamp(seen.since)} to "
        f"{stamp(seen.until)}: {seen.judged} of {counted(seen.whole.jobs, 'GPU run')} could be judged{sampled}\n"
    ]
    if seen.blind:
        lines.append(f"no run could be judged by {', '.join(seen.blind)}\n")
    lines += [f"{printable(said)}\n" for said in (seen.stale, seen.visible) if said]
    for remedy, group in groupby(seen.findings, key=lambda finding: (finding.rule, finding.remedy)):
        alike = list(group)
        lines += map(_lines, alike)
        lines.append(f"    do: {printable(remedy[1])}\n    see: {printable(alike[0].reproduce)}\n")
    if seen.mails_by_day:
        lines.append(
            "mails by day, one for each user: first notices of the nightly runs, as if nobody had been told before\n"
        )
        days = ((one.day.isoformat(), "-" if one.mails is None else str(one.mails)) for one in seen.mails_by_day)
        lines += [f"{line}\n" for line in list_lines([("DAY", "MAILS"), *days])]
    return "".join(lines)


def as_csv(looks: Sequence[Audited]) -> str:
    """Return a row for each finding."""
    rows = (
        [seen.since.isoformat(), seen.until.isoformat(), *_cells(finding)]
        for seen in looks
        for finding in seen.findings
    )
    return csv_table(["since", "until", *Finding._fields], rows)


def _cells(finding: Finding) -> Iterable[object]:
    excluded = "; ".join(f"{number} {why}" for why, number in finding.excluded)
    jobs = " ".join(line.job_id for line in finding.jobs)
    texts = {"methods": " and ".join(finding.methods), "excluded": excluded, "jobs": jobs}
    return (finding._asdict() | texts).values()


def judged_of(finding: Finding) -> str:
    """Return of how many runs a finding's subject had enough is known, and why of the others it is not."""
    if finding.judged is None:
        return ""
    others = "; ".join(f"{number} not: {why}" for why, number in finding.excluded)
    return f"{finding.judged} of {finding.judged + sum(number for _, number in finding.excluded)}" + (
        f" ({others})" if others else ""
    )


def _lines(finding: Finding) -> str:
    judged = f"    judged: {judged_of(finding)}\n" if finding.excluded else ""
    return f"{finding.rule} {finding.severity}: {printable(finding.subject)}: {printable(finding.evidence)}\n{judged}"
