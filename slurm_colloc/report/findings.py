# SPDX-License-Identifier: Apache-2.0
"""What audit rules found, for people and for programs."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from slurm_colloc.audited import Finding
from slurm_colloc.measured import GroupUsage
from slurm_colloc.report.text import printable, stamp
from slurm_colloc.units import counted

SCHEMA = 2


class Audited(NamedTuple):
    """What was looked at: the window, all runs with a GPU in it, and for each rule (rows in its scope, rows judged).

    ``accounted`` names rules that judge by the accounting, without a measurement. ``visible`` says whose jobs these
    are, where they are not everybody's.
    """

    since: datetime
    until: datetime
    whole: GroupUsage
    rules: Mapping[str, tuple[int, int]]
    visible: str
    accounted: tuple[str, ...] = ()

    @property
    def judged(self) -> int:
        """Return how many rows the rule that could judge most could judge; of those that need measurements, if any."""
        measured = [judged for name, (_, judged) in self.rules.items() if name not in self.accounted]
        return max(measured or [judged for _, judged in self.rules.values()], default=0)

    @property
    def blind(self) -> list[str]:
        """Return the rules that could judge nothing of what was in their scope."""
        return [name for name, (rows, judged) in self.rules.items() if rows and not judged]


def as_json(seen: Audited, findings: Sequence[Finding]) -> str:
    """Return findings as JSON, with what they are of."""
    shown = {
        "schema": SCHEMA,
        "since": seen.since.isoformat(),
        "until": seen.until.isoformat(),
        "runs": seen.whole.jobs,
        "runs_measured": seen.whole.jobs_measured,
        "coverage_pct": seen.whole.coverage_pct,
        "rules": {name: {"rows": rows, "judged": judged} for name, (rows, judged) in seen.rules.items()},
        "visible": seen.visible,
        "findings": [{**finding._asdict(), "jobs": [line._asdict() for line in finding.jobs]} for finding in findings],
    }
    return json.dumps(shown, indent=2) + "\n"


def as_text(seen: Audited, findings: Sequence[Finding]) -> str:
    """Return findings for a terminal, and what they are of in a last line."""
    lines = [_lines(finding) for finding in findings]
    coverage = seen.whole.coverage_pct
    sampled = "" if coverage is None else f" ({coverage:.0f} % of all GPU-hours sampled)"
    lines.append(
        f"{counted(len(findings), 'finding')} by {counted(len(seen.rules), 'rule')} over "
        f"{counted(seen.whole.jobs, 'GPU run')}, {seen.judged} of them known well enough to be judged{sampled}, "
        f"{stamp(seen.since)} to {stamp(seen.until)}\n"
    )
    if seen.blind:
        lines.append(f"nothing could be judged by {', '.join(seen.blind)}\n")
    if seen.visible:
        lines.append(f"{printable(seen.visible)}\n")
    return "".join(lines)


def _lines(finding: Finding) -> str:
    return (
        f"{finding.rule} {finding.severity}: {printable(finding.subject)}: {printable(finding.evidence)}\n"
        f"    do: {printable(finding.remedy)}\n    see: {printable(finding.reproduce)}\n"
    )
