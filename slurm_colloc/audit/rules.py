# SPDX-License-Identifier: Apache-2.0
"""The rules in force; each lives in a file of its own."""

from collections.abc import Callable, Sequence

from slurm_colloc.audit import col001_zero_use
from slurm_colloc.config import Audit
from slurm_colloc.model import Finding, JobUsage

RULES: dict[str, Callable[[Sequence[JobUsage], Audit], list[Finding]]] = {
    col001_zero_use.CODE: col001_zero_use.find,
}


def run_rules(usages: Sequence[JobUsage], bounds: Audit) -> list[Finding]:
    """Return the findings of every rule."""
    return [finding for rule in RULES.values() for finding in rule(usages, bounds)]
