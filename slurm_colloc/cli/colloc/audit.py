# SPDX-License-Identifier: Apache-2.0
"""colloc audit: rules over measured use."""

import json
import shlex
from typing import Annotated

import typer

from slurm_colloc.accounting.strays import stray_use
from slurm_colloc.accounting.sweep import Window, sweep, usages_of
from slurm_colloc.accounting.usage import group_usage
from slurm_colloc.audit.rules import RULES, run_rules
from slurm_colloc.cli.colloc.output import site_or_none, window, write
from slurm_colloc.cli.colloc.seen import seen_store
from slurm_colloc.clock import now
from slurm_colloc.config import Audit
from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.measured import GroupUsage
from slurm_colloc.model import Finding
from slurm_colloc.report.text import printable, stamp

SCHEMA = 1
app = typer.Typer(no_args_is_help=True, help="Rules over measured use; they name nobody on weak evidence.")


@app.command("run")
def run_audit(
    since: Annotated[str, typer.Option("--since", help="ISO 8601, or a span such as 7d")] = "7d",
    until: Annotated[str, typer.Option("--until", help="ISO 8601, a span, or now")] = "now",
    form: Annotated[str, typer.Option("--format", help="text or json")] = "text",
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
) -> None:
    """Print findings; exit status 0 clean, 1 findings, 2 error."""
    if form not in ("text", "json"):
        raise InputError(f"--format '{form}' is neither text nor json")
    start, end = window(since, until)
    config = site_or_none()
    bounds = config.audit if config else Audit()
    source = seen_store(store, config)
    with source.connect(start.timestamp(), end.timestamp()) as database:
        sweep(database, source, Window(start.timestamp(), end.timestamp(), now()))
        usages = usages_of(database)
        *_, whole = group_usage(database, "user")
        strays = stray_use(database)
    audited = run_rules(usages, strays, bounds)
    if not audited.runs_judged:
        raise StoreError(
            f"nothing can be said of {_count(whole.jobs, 'GPU run')} from {stamp(start)} to {stamp(end)}: {_why(whole)}"
        )
    findings = [_with_store(finding, store) for finding in audited.findings]
    if form == "json":
        shown = {
            "schema": SCHEMA,
            "since": start.isoformat(),
            "until": end.isoformat(),
            "runs": whole.jobs,
            "runs_measured": whole.jobs_measured,
            "runs_judged": audited.runs_judged,
            "coverage_pct": whole.coverage_pct,
            "rules": list(RULES),
            "visible": source.visible.whose,
            "findings": [finding._asdict() for finding in findings],
        }
        write(json.dumps(shown, indent=2) + "\n", "")
    else:
        write("".join(_lines(finding) for finding in findings), "")
        write(
            f"{_count(len(findings), 'finding')} by {_count(len(RULES), 'rule')} over {_count(whole.jobs, 'GPU run')}, "
            f"{audited.runs_judged} of them measured well enough to be judged{_coverage(whole.coverage_pct)}, "
            f"{stamp(start)} to {stamp(end)}\n",
            "",
        )
        if source.visible.whose:
            write(f"{printable(source.visible.whose)}\n", "")
    if findings:
        raise typer.Exit(1)


def _why(whole: GroupUsage) -> str:
    if not whole.jobs:
        return "there is none; does 'colloc ingest' still run?"
    if not whole.jobs_measured:
        return "not one was measured; does 'colloc agent' run on the nodes?"
    return f"{whole.jobs_measured} were measured, none by samples of enough of its time"


def _with_store(finding: Finding, store: str) -> Finding:
    ours = store and finding.reproduce.startswith("colloc ")
    return finding._replace(reproduce=f"{finding.reproduce} --store {shlex.quote(store)}") if ours else finding


def _lines(finding: Finding) -> str:
    return (
        f"{finding.code} {finding.severity}: {printable(finding.subject)}: {printable(finding.evidence)}\n"
        f"    do: {finding.remedy}\n    see: {printable(finding.reproduce)}\n"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _coverage(percent: float | None) -> str:
    return "" if percent is None else f" ({percent:.0f} % of all GPU-hours sampled)"
