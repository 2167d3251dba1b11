# SPDX-License-Identifier: Apache-2.0
"""What a run found, for programs: metrics, and counts for a webhook."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.audit_model import Finding
from slurm_colloc.units import counted

SCHEMA = 1


class Metrics(NamedTuple):
    """What a run came to; ``findings`` and ``judged`` by rule, None where it got no answer.

    ``about`` says which rules it asked: those about running jobs, the others, or (empty) all.
    """

    ended_s: float
    duration_s: float
    status: int
    last_success_s: float | None
    errors: int
    findings: Mapping[str, int] | None
    judged: Mapping[str, int]
    in_doubt: int
    about: str = ""


def prometheus(metrics: Metrics) -> str:
    """Return the text that a textfile collector takes."""
    lines: list[str] = []

    of = {"about": metrics.about} if metrics.about else {}

    def add(name: str, meaning: str, values: Iterable[tuple[dict[str, str], float]]) -> None:
        lines.append(f"# HELP colloc_audit_{name} {meaning}")
        lines.append(f"# TYPE colloc_audit_{name} gauge")
        lines.extend(f"colloc_audit_{name}{_labels(of | labels)} {value!r}" for labels, value in values)

    add("last_run_timestamp_seconds", "When the last run ended.", [({}, metrics.ended_s)])
    if metrics.last_success_s is not None:
        add("last_success_timestamp_seconds", "When the last good one did.", [({}, metrics.last_success_s)])
    add("exit_status", "Of the last run: 0 clean, 1 findings, 2 error, 3 unknown.", [({}, int(metrics.status))])
    add("duration_seconds", "How long it took.", [({}, round(metrics.duration_s, 3))])
    add("errors", "What went wrong in it.", [({}, metrics.errors)])
    if metrics.findings is not None:
        add("findings", "Findings of a rule.", [({"rule": name}, n) for name, n in metrics.findings.items()])
        add("judged", "What a rule could judge.", [({"rule": name}, n) for name, n in metrics.judged.items()])
    add("messages_in_doubt", "Messages of which a person must look whether they went.", [({}, metrics.in_doubt)])
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    pairs = (
        '{}="{}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        for name, value in labels.items()
    )
    return f"{{{','.join(pairs)}}}" if labels else ""


def webhook(cluster: str, since_s: float, until_s: float, findings: Sequence[Finding]) -> bytes:
    """Return what is posted: counts by rule, and no name."""
    users: dict[str, set[str]] = {}
    for one in findings:
        users.setdefault(one.rule, set()).update([one.user] if one.user else [])
    counts = Counter(one.rule for one in findings)
    rules = [{"rule": rule, "findings": counts[rule], "users": len(users[rule])} for rule in sorted(users)]
    said = ", ".join(f"{rule}: {counts[rule]}" for rule in sorted(users))
    text = f"colloc audit of {cluster}: {counted(len(findings), 'finding')} ({said})"
    payload = {
        "text": text,
        "schema": SCHEMA,
        "cluster": cluster,
        "since_s": since_s,
        "until_s": until_s,
        "rules": rules,
    }
    return json.dumps(payload).encode()
