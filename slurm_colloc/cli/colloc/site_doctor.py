# SPDX-License-Identifier: Apache-2.0
"""colloc site doctor: faults in how the live cluster shares its GPUs."""

import os
from pathlib import Path
from typing import Annotated

from typer import Exit, Option

from slurm_colloc.cli.colloc.options import Form
from slurm_colloc.cli.colloc.output import node_name, write
from slurm_colloc.cli.colloc.terminal import put
from slurm_colloc.core.errors import InputError, Status
from slurm_colloc.core.units import counted, printable
from slurm_colloc.report.text import json_text
from slurm_colloc.site.doctor.checks import Diagnosis, diagnose
from slurm_colloc.site.doctor.facts import TRIED, Site
from slurm_colloc.site.doctor.gather import gather
from slurm_colloc.site.doctor.memory_limits import memory_limits_of

SCHEMA = 1


def doctor(
    form: Form = "text",
    skip: Annotated[list[str] | None, Option(metavar="CODE", help="a check to leave out")] = None,
    timeout_s: Annotated[
        float, Option("--timeout", metavar="SECONDS", min=1.0, max=3600.0, help="for each question to Slurm")
    ] = 60.0,
) -> None:
    """Look for what is wrong with how the cluster shares its GPUs. Nothing is changed.

    Exit status 0 nothing found, 1 something found, 2 error, 3 nothing found but not all could be looked at.
    """
    node = node_name()
    site = gather(timeout_s, node, os.environ)
    if not any(gpu_node.gpu_types or gpu_node.quantity("gpu") for gpu_node in site.nodes):
        raise InputError("no node of the cluster has a gres called gpu: there is nothing to judge")
    diagnosis = diagnose(site, skip or ())
    if form == "json":
        answer = {
            "cluster": site.settings.get("ClusterName", ""),
            "slurm_release": site.release,
            "seen_from": site.this_node,
            "checks": diagnosis.codes,
            "findings": diagnosis.faults,
            "not_checked": diagnosis.unchecked,
        }
        write(json_text(SCHEMA, answer), "")
    else:
        put(_text(site, diagnosis))
    if diagnosis.faults or diagnosis.unchecked:
        raise Exit(Status.FOUND if diagnosis.faults else Status.UNKNOWN)


def _text(site: Site, diagnosis: Diagnosis) -> str:
    looked = f"{counted(len(diagnosis.codes), 'check')} of Slurm {site.release} on {printable(site.this_node)}"
    untried = "" if site.release in TRIED else f"; they were tried on {TRIED}"
    uncounted = f", {len(diagnosis.unchecked)} not checked" if diagnosis.unchecked else ""
    lines = [f"{counted(len(diagnosis.faults), 'finding')}{uncounted}, by {looked}{untried}"]
    before = ""
    for fault in diagnosis.faults:
        lines.append(f"{fault.code} {fault.severity}: {printable(fault.subject)}: {printable(fault.evidence)}")
        if fault.code != before:  # its remedy is the same for all of its subjects
            lines += [f"    so: {fault.consequence}", f"    do: {fault.mend}", f"    see: {fault.source}"]
        before = fault.code
    for gap in diagnosis.unchecked:
        subject = f" {printable(gap.subject)}:" if gap.subject else ""
        lines.append(f"not checked {gap.code}:{subject} {printable(gap.why)}")
    if possible := memory_limits_of(Path("/"), os.uname().release):
        lines.append(f"note: {possible}")
    return "\n".join(lines) + "\n"
