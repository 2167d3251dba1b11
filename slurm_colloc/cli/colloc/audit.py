# SPDX-License-Identifier: Apache-2.0
"""colloc audit: rules over measured use."""

import json
from typing import Annotated

import typer

from slurm_colloc.accounting.store import Store
from slurm_colloc.accounting.sweep import job_usage
from slurm_colloc.audit.rules import RULES, run_rules
from slurm_colloc.cli.colloc.output import site_or_none, store_folder, window, write
from slurm_colloc.clock import now
from slurm_colloc.config import Audit
from slurm_colloc.errors import InputError
from slurm_colloc.report.usage import printable, stamp

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
    usages = job_usage(Store(store_folder(store)), start.timestamp(), end.timestamp(), now())
    command = f"colloc report --by user --since '{start.isoformat()}' --until '{end.isoformat()}'"
    findings = run_rules(usages, bounds, command)
    if form == "json":
        write(json.dumps([finding._asdict() for finding in findings], indent=2) + "\n", "")
    else:
        for finding in findings:
            write(
                f"{finding.code} {finding.severity}: {printable(finding.subject)}: {finding.evidence}\n"
                f"    do: {finding.remedy}\n    see: {finding.reproduce}\n",
                "",
            )
        write(
            f"{len(findings)} findings by {len(RULES)} rule over {len(usages)} GPU runs, "
            f"{stamp(start)} to {stamp(end)}\n",
            "",
        )
    if findings:
        raise typer.Exit(1)
