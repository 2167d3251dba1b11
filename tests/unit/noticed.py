# SPDX-License-Identifier: Apache-2.0
"""Findings and settings made up for tests of notices."""

from collections.abc import Callable, Sequence
from typing import Any

from slurm_colloc.cli.colloc.audit_notify import Piece
from slurm_colloc.core.audit_model import JOB, Audited, Finding, JobLine, form_of
from slurm_colloc.core.config import Paths, SiteConfig
from slurm_colloc.core.config_audit import Audit, AuditRule, Notices
from tests.unit.made import site, usage
from tests.unit.stored import grouped

IDLE_NOW = "idle now"
MAILS = Notices(
    "users",
    sender="hpc@x",
    admins=("root@x",),
    address="{user}@x",
    workdays=("mon", "tue", "wed", "thu", "fri", "sat", "sun"),
)


def finding(**fields: Any) -> Finding:
    """Return a finding of COL001 about ann that differs by these fields."""
    line = JobLine("12_3", "train", "gpu:h100:1", "gpu", 1_767_225_600.0, 24.0)
    one = Finding(
        rule="COL001",
        code="COL001",
        severity="warning",
        about="user",
        cluster="c",
        subject="ann",
        user="ann",
        title="GPUs held at zero use",
        gpu_hours=24.0,
        evidence="24 GPU-h in 1 run (job 12_3) with no kernel seen",
        remedy="end jobs that wait at a prompt",
        reproduce="colloc audit run --rule COL001 --user ann",
        coverage_pct=97.0,
        methods=("measured",),
        jobs=(line,),
        digest="new",
        newest_s=99 * 86_400.0,
    )
    return one._replace(**fields)


def idle_now(**fields: Any) -> Finding:
    """Return a finding of the rule IDLE_NOW about a job that differs by these fields."""
    return finding(rule=IDLE_NOW, about=JOB, subject="12_3")._replace(**fields)


def idle_site(folder: str, **settings: Any) -> SiteConfig:
    """Return a site that mails everybody on every day of what IDLE_NOW finds; its state is in this folder."""
    audit = Audit(rule=(AuditRule("COL001", name=IDLE_NOW),))
    return site()._replace(paths=Paths(state=folder), notices=MAILS._replace(**settings), audit=audit)


def finds(*jobs: Finding) -> Callable[[Sequence[Piece], bool], list[Audited]]:
    """Return what finds that in each window."""
    *_, whole = grouped([usage()])
    rules = {form_of(IDLE_NOW, JOB): (1, 1)}
    return lambda pieces, shown: [Audited(one[1], one[2], whole, rules, "", findings=jobs) for one in pieces]
