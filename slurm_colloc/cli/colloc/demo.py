# SPDX-License-Identifier: Apache-2.0
"""colloc demo: the whole accounting path on a recording of a real cluster, on any Linux, without Slurm or a GPU."""

import json
import os
import shutil
import tempfile
from contextlib import suppress
from typing import Annotated

import typer

from slurm_colloc.cli.colloc import audit, ingest, report
from slurm_colloc.cli.colloc.output import say
from slurm_colloc.config import ENVIRONMENT_VARIABLE
from slurm_colloc.shipped import folder


def demo(
    output: Annotated[str, typer.Option("--output", "-o", help="folder for what is made; else a fresh one")] = "",
) -> None:
    """Report the recording of a small real cluster per user."""
    recorded = folder("recorded")
    target = os.path.abspath(output) if output else tempfile.mkdtemp(prefix="colloc-demo-")
    os.makedirs(target, exist_ok=True)
    shutil.copytree(recorded, os.path.join(target, "recorded"), dirs_exist_ok=True)
    with open(os.path.join(recorded, "recording.json")) as stream:
        about = json.load(stream)
    say(f"no cluster is asked: this is a recording of {about['what']}")
    os.environ[ENVIRONMENT_VARIABLE] = os.path.join(target, "recorded", "site.toml")
    store = os.path.join(target, "store")
    ingest.ingest(
        store=store,
        sacct_file=os.path.join(target, "recorded", "sacct.txt"),
        journal=os.path.join(target, "recorded", "journal"),
    )
    show(store, about["since"], about["until"], target)


def show(store: str, since: str, until: str, target: str) -> None:
    """Print the report and one audit rule, write the page, and say where everything lies."""
    print()
    report.report(since=since, until=until, store=store)
    page = os.path.join(target, "report.html")
    report.report(since=since, until=until, store=store, form="html", output=page)
    print()
    with suppress(typer.Exit):  # findings are what a demo is for
        audit.run_audit(since=since, until=until, store=store)
    print(f"\nthe same as a page:  {page}\neverything lies in:  {target}")
