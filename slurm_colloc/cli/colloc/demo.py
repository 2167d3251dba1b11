# SPDX-License-Identifier: Apache-2.0
"""colloc demo: the whole accounting path on a made-up week, on any Linux, without Slurm or a GPU."""

import json
import os
import tempfile
from datetime import UTC, datetime
from typing import Annotated

import typer

from slurm_colloc.cli.colloc import demo_week, ingest, report
from slurm_colloc.cli.colloc.output import say
from slurm_colloc.core.config import ENVIRONMENT_VARIABLE, load_site
from slurm_colloc.store.store import Store

_USERS = 6


def demo(
    output: Annotated[str, typer.Option("--output", "-o", help="folder for what is made; else a fresh one")] = "",
) -> None:
    """Report a made-up week of 12 users on 8 GPUs."""
    target = os.path.abspath(output) if output else tempfile.mkdtemp(prefix="colloc-demo-")
    site, sacct, journal, store, figures, page = (
        os.path.join(target, name)
        for name in ("site.toml", "sacct.txt", "journal", "store", "report.json", "report.html")
    )
    os.makedirs(target, exist_ok=True)
    say("this is a made-up week of 12 users on a node of 8 H100s; nothing is read from a real cluster")
    jobs = demo_week.made_jobs()
    for path, text in ((site, demo_week.SITE), (sacct, demo_week.sacct_text(jobs))):
        with open(path, "w") as stream:
            stream.write(text)
    demo_week.write_journal(jobs, journal)
    os.environ[ENVIRONMENT_VARIABLE] = site
    config = load_site(site)
    ingest.take_in(Store(store, config), config, ingest.Asked(sacct_file=sacct, journal=journal))
    Store(store).write_decisions(demo_week.decisions(jobs, config))
    since, until = (datetime.fromtimestamp(at_s, UTC).isoformat() for at_s in (demo_week.BEGIN_S, demo_week.END_S))
    print()
    report.report(since=since, until=until, store=store, top=_USERS)
    for form, path in (("json", figures), ("html", page)):
        report.report(since=since, until=until, store=store, form=form, output=path)
    with open(figures) as stream:
        known = json.load(stream)
    idle, most, total = known["groups"][0], known["fits"][0], known["total"]
    fits = next(one for one in known["fits"] if one["name"] == total["name"])
    window = f"--store {store} --since {since[:10]} --until {until[:10]}"
    print(
        f"\nidle   {idle['name']} has most: {idle['sm_idle_gpu_hours']:.0f} of {idle['allocated_gpu_hours']:.0f} "
        f"GPU-hours of {idle['jobs']} runs, by SM activity\n"
        f"fits   {fits['fitting_runs']} of {total['jobs']} runs fit a piece of a GPU; most runs of {most['name']} "
        f"fit {most['unit']}: {most['unit'].partition(':')[2]} of the GPU's 100 MPS shares\n"
        f"free   {fits['freed_gpu_hours']:.0f} of {total['allocated_gpu_hours']:.0f} GPU-hours are left for "
        "other jobs if each of these runs gets the smallest piece that it fits\n"
        f"page   {page}\n"
        f"try    export {ENVIRONMENT_VARIABLE}={site}\n"
        f"       colloc job {jobs[-1].job_id} --store {store}\n"
        f"       colloc audit run {window}\n"
        f"       colloc report --shadow {window}"
    )
