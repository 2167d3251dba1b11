# SPDX-License-Identifier: Apache-2.0
"""Findings of a run for programs: metrics, and counts for the site's command."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from slurm_colloc.core.audit_model import Finding
from slurm_colloc.core.units import counted

SCHEMA = 1


_MEANINGS = {
    "last_run_timestamp_seconds": "When the last run ended.",
    "last_success_timestamp_seconds": "When the last good one did.",
    "exit_status": "Of the last run: 0 clean, 1 findings, 2 error, 3 unknown.",
    "duration_seconds": "How long it took.",
    "errors": "What went wrong in it.",
    "findings": "Findings of a rule.",
    "judged": "What a rule could judge.",
    "messages_in_doubt": "Messages of which a person must look whether they went.",
}


def prometheus(about: str, values: Mapping[str, float | Mapping[str, int] | None]) -> str:
    """Return the text that a textfile collector takes.

    Args:
        about: which rules were asked: those about running jobs, the others, or (empty) all.
        values: each metric's number, or those of its rules; None is not known.
    """
    lines: list[str] = []
    for name, meaning in _MEANINGS.items():
        value = values[name]
        if value is None or value == {}:
            continue
        by_rule = value if isinstance(value, Mapping) else {"": value}
        lines += [f"# HELP colloc_audit_{name} {meaning}", f"# TYPE colloc_audit_{name} gauge"]
        lines += [
            f"colloc_audit_{name}{_labels(about=about, rule=rule)} {number!r}" for rule, number in by_rule.items()
        ]
    return "\n".join(lines) + "\n"


def _labels(**labels: str) -> str:
    pairs = (
        '{}="{}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        for name, value in labels.items()
        if value
    )
    return f"{{{','.join(pairs)}}}" if any(labels.values()) else ""


def counts(id: str, cluster: str, since_s: float, until_s: float, findings: Sequence[Finding]) -> bytes:
    """Return what the command gets: counts by rule, and no name; a known ``id`` has the same content as before."""
    by_rule = Counter(finding.rule for finding in findings)
    users = Counter(rule for rule, user in {(finding.rule, finding.user) for finding in findings} if user)
    rules = [{"rule": rule, "findings": by_rule[rule], "users": users[rule]} for rule in sorted(by_rule)]
    summary = ", ".join(f"{rule}: {by_rule[rule]}" for rule in sorted(by_rule))
    payload = {
        "text": f"colloc audit of {cluster}: {counted(len(findings), 'finding')} ({summary})",
        "schema": SCHEMA,
        "id": id,
        "cluster": cluster,
        "since_s": since_s,
        "until_s": until_s,
        "rules": rules,
    }
    return json.dumps(payload).encode()
