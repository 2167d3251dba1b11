# SPDX-License-Identifier: Apache-2.0
"""The rules in force; each lives in a file of its own."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from slurm_colloc.audit import col001_zero_use, col002_outside_jobs
from slurm_colloc.config import Audit
from slurm_colloc.measured import JobUsage, StrayUse
from slurm_colloc.model import Finding


class Rule(NamedTuple):
    """A rule: what it finds, and of which runs it can say anything at all."""

    find: Callable[[Iterable[JobUsage], Audit], list[Finding]]
    can_judge: Callable[[JobUsage, Audit], bool]


class Audited(NamedTuple):
    """What the rules found, and how many runs at least one of them could judge."""

    findings: tuple[Finding, ...]
    runs_judged: int


_OF_RUNS = {col001_zero_use.CODE: Rule(col001_zero_use.find, col001_zero_use.can_judge)}
RULES = (*_OF_RUNS, col002_outside_jobs.CODE)


def run_rules(usages: Sequence[JobUsage], strays: Sequence[StrayUse], bounds: Audit) -> Audited:
    """Apply every rule."""
    findings = [finding for rule in _OF_RUNS.values() for finding in rule.find(usages, bounds)]
    findings += col002_outside_jobs.find(strays, bounds)
    judged = sum(any(rule.can_judge(usage, bounds) for rule in _OF_RUNS.values()) for usage in usages)
    return Audited(tuple(findings), judged)
