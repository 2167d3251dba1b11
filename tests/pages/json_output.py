# SPDX-License-Identifier: Apache-2.0
"""The reference of JSON: what stands at the top of each output, and the fields of the nouns in it."""

from collections.abc import Iterator
from typing import Any

from slurm_colloc.core.audit_model import Finding, JobLine, MailDay
from slurm_colloc.core.chart_model import Fit
from slurm_colloc.core.model import Decision, Evidence, Footprint, JobRequest, Placement, Reason
from slurm_colloc.core.sharing_model import ArmFigure, Fairness, HarmRate
from slurm_colloc.core.usage_model import JobUsage
from slurm_colloc.facts.several import SeveralBy
from slurm_colloc.report.jobs import JobRow
from slurm_colloc.report.me import Hint, Sums
from slurm_colloc.report.proof import Proof
from slurm_colloc.report.shadow import ShadowReport
from slurm_colloc.site.doctor.checks import Fault, Unchecked

# Of each command that prints JSON what is at the top; a test compares it with what the command prints.
TOP_LEVEL: dict[str, tuple[str, ...]] = {
    "colloc audit run --format json": (
        *("schema", "since", "until", "runs", "runs_measured", "coverage_pct", "rules", "visible", "stale"),
        "findings",
    ),
    "colloc history --format json": ("schema", "submissions", "jobs", "unreadable"),
    "colloc job --format json": ("schema", "runs", "stories", "not_shown", "decision", "evidence"),
    "colloc jobs --format json": ("schema", "user", "since", "until", "source", "runs_without_gpu", "rows"),
    "colloc me --format json": (
        *("schema", "user", "cluster", "since", "until", "source", "runs_without_gpu", "total", "fit", "advice"),
        "idlest",
    ),
    "colloc report --several --format json": ("schema", "cluster", "since", "until", "by", "visible", "rows"),
    "colloc report --shadow --format json": ("schema", *ShadowReport._fields),
    "colloc report --harm --format json": ("schema", *Proof._fields),
    "colloc report --rollout --format json": ("schema", *Proof._fields),
    "colloc site doctor --format json": (
        *("schema", "cluster", "slurm_release", "seen_from", "checks", "findings", "not_checked"),
    ),
    "colloc site gpus": ("schema", "node", "complete", "units"),
    "csub --dry-run --format=json": (*("schema", "request", "footprint", "placement", "script", "sbatch_argv"),),
}
# What is there only where there is something to say.
SOMETIMES = {
    "colloc audit run --format json": ("mails_by_day", "missed"),
    "colloc job --format json": ("pack", "gpu_memory"),
    "csub --dry-run --format=json": ("pack",),
}
_NOUNS: dict[str, Any] = {
    "findings of colloc audit run": Finding,
    "jobs of a finding": JobLine,
    "mails_by_day of colloc audit run": MailDay,
    "runs of colloc job": JobUsage,
    "decision of colloc job and colloc history": Decision,
    "evidence of colloc job": Evidence,
    "request of csub": JobRequest,
    "footprint of csub and colloc history": Footprint,
    "placement of csub": Placement,
    "rows of colloc jobs": JobRow,
    "rows of colloc report --several": SeveralBy,
    "total of colloc me": Sums,
    "fit of colloc me": Fit,
    "advice of colloc me": Hint,
    "figures of colloc report --harm": HarmRate,
    "figures of colloc report --rollout": ArmFigure,
    "fairness of colloc report --rollout": Fairness,
    "findings of colloc site doctor": Fault,
    "not_checked of colloc site doctor": Unchecked,
}


def top_level() -> str:
    """Return a row of Markdown for each command."""
    rows = []
    for command, keys in TOP_LEVEL.items():
        sometimes = SOMETIMES.get(command, ())
        rows.append(f"| `{command}` | {_code(keys)} | {_code(sometimes)} |\n")
    return "| command | always | where there is one |\n| --- | --- | --- |\n" + "".join(rows)


def nouns() -> str:
    """Return a row of Markdown for each noun."""
    shown = {of: tuple(name for name in _keys(noun) if name != "submitted") for of, noun in _NOUNS.items()}
    rows = (f"| {of} | {_code(names)} |\n" for of, names in shown.items())
    return "| | fields |\n| --- | --- |\n" + "".join(rows)


def _keys(noun: Any) -> Iterator[str]:
    """Yield the keys of a noun; a reason is a text, and its code and parameters stand beside it."""
    for name, kind in noun.__annotations__.items():
        yield name
        if kind in (Reason, Reason | None):
            yield f"{name}_code"
        elif kind == tuple[Reason, ...]:
            yield f"{name}_codes"


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
