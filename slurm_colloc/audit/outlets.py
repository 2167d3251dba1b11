# SPDX-License-Identifier: Apache-2.0
"""What a run found, for programs: metrics, a line for each finding, and counts for a webhook."""

import fcntl
import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.audited import Finding
from slurm_colloc.errors import StoreError
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


def json_lines(run: int, at_s: float, since_s: float, until_s: float, done: Sequence[tuple[Finding, str]]) -> bytes:
    """Return a line for each finding, with what was done about it."""
    about = {"schema": SCHEMA, "run": run, "at_s": at_s, "since_s": since_s, "until_s": until_s}
    rows = (
        {**about, **finding._asdict(), "jobs": [line._asdict() for line in finding.jobs], "done": what}
        for finding, what in done
    )
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def append(path: str, lines: bytes) -> None:
    """Add whole lines to a file, behind what another run is adding; on the disk when this returns.

    Raises:
        StoreError: it cannot be written, or others may write to it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as stream:
            _own_alone(path, os.fstat(descriptor))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = stream.seek(0, os.SEEK_END)
            # A writer that was killed left half a line.
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            stream.write(b"\n" + lines if torn else lines)
            os.fsync(descriptor)
    except OSError as error:
        raise StoreError(f"file '{path}' cannot be written: {error.strerror}") from error


def _own_alone(path: str, found: os.stat_result) -> None:
    """Raise StoreError where what is open is no file, or others than whoever runs this, or root, may write to it."""
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise StoreError(
            f"file '{path}' belongs to uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}; it must be a file "
            f"of uid {os.geteuid()} or root to which nobody else may write"
        )


def webhook(cluster: str, since_s: float, until_s: float, findings: Sequence[Finding], min_group: int) -> bytes:
    """Return what is posted: counts by rule, and no name; of a rule about fewer users than ``min_group`` nothing."""
    users: dict[str, set[str]] = {}
    for one in findings:
        users.setdefault(one.rule, set()).update([one.user] if one.user else [])
    counts = Counter(one.rule for one in findings)
    # What is about nobody names nobody.
    shown = [rule for rule, of in users.items() if not of or len(of) >= min_group]
    rules = [{"rule": rule, "findings": counts[rule], "users": len(users[rule])} for rule in sorted(shown)]
    said = ", ".join(f"{rule}: {counts[rule]}" for rule in sorted(shown))
    text = f"colloc audit of {cluster}: {counted(sum(counts[rule] for rule in shown), 'finding')}" + (
        f" ({said})" if said else ""
    )
    payload = {
        "text": text,
        "schema": SCHEMA,
        "cluster": cluster,
        "since_s": since_s,
        "until_s": until_s,
        "rules": rules,
        "rules_left_out": len(users) - len(shown),
    }
    return json.dumps(payload).encode()
