# SPDX-License-Identifier: Apache-2.0
"""The rules in force; each lives in a file of its own."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from slurm_colloc.audit import col001_zero_use
from slurm_colloc.config import Audit
from slurm_colloc.model import Finding, JobUsage


class Rule(NamedTuple):
    """A rule: what it finds, and of which runs it can say anything at all."""

    find: Callable[[Iterable[JobUsage], Audit], list[Finding]]
    can_judge: Callable[[JobUsage, Audit], bool]


class Audited(NamedTuple):
    """What the rules found, and how many runs at least one of them could judge."""

    findings: tuple[Finding, ...]
    runs_judged: int


RULES = {col001_zero_use.CODE: Rule(col001_zero_use.find, col001_zero_use.can_judge)}


def run_rules(usages: Sequence[JobUsage], bounds: Audit) -> Audited:
    """Apply every rule."""
    findings = tuple(finding for rule in RULES.values() for finding in rule.find(usages, bounds))
    judged = sum(any(rule.can_judge(usage, bounds) for rule in RULES.values()) for usage in usages)
    return Audited(findings, judged)
