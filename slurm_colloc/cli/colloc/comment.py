# SPDX-License-Identifier: Apache-2.0
"""colloc comment: one line on each job's GPUs in Slurm's AdminComment, for who reads sacct."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import typer

from slurm_colloc.accounting.sweep import job_usage
from slurm_colloc.cli.colloc.output import say, site, window, write
from slurm_colloc.cli.colloc.seen import seen_store
from slurm_colloc.clock import now
from slurm_colloc.errors import Status
from slurm_colloc.measured import JobUsage
from slurm_colloc.report.comment import comment_line, may_write
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.jobs import Commented, is_job

# Others that write it, jobstats for one, do so as the job ends; they come first.
_SETTLED_S = 900.0
# sacctmgr takes up to 0.3 s for each, whether in one call or in many.
_AT_ONCE, _TIMEOUT_S = 50, 120.0


def comment(
    since: Annotated[str, typer.Option("--since", help="jobs that ran wholly since then")] = "8d",
    limit: Annotated[int, typer.Option("--limit", help="write so many at most; the next call goes on", min=1)] = 2000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the lines, write none")] = False,
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
) -> None:
    """Write what ended jobs used of GPUs into their AdminComment. A line for each, where nobody else's is.

    Slurm takes it of root, SlurmUser, operators and administrators only. Exit status 1: some were not taken.
    """
    config = site()
    start, end = window(since, "now")
    runs = job_usage(seen_store(store, config), start.timestamp(), end.timestamp(), now())
    lines = {run.job_id_raw: (run, line) for run, line in _lines(runs, config.cluster, start.timestamp())}
    client = CliClient(_TIMEOUT_S)
    counts: Counter[str] = Counter()
    jobs = sorted(lines)
    for first in range(0, len(jobs), _AT_ONCE):
        some = jobs[first : first + _AT_ONCE]
        found = client.comments(some)
        wanted = dict(_wanted(((raw_id, *lines[raw_id]) for raw_id in some), found, counts))
        texts = dict(list(wanted.items())[: limit - counts["written"] - counts["to be written"]])
        counts["left for the next call"] += len(wanted) - len(texts)
        if dry_run:
            write("".join(f"{_name(lines[raw_id][0])} {text}\n" for raw_id, text in texts.items()), "")
            counts["to be written"] += len(texts)
            continue
        if not texts:
            continue
        client.write_comments({_name(lines[raw_id][0]): text for raw_id, text in texts.items()})
        after = client.comments(list(texts))
        taken = sum(after[raw_id].comment == text for raw_id, text in texts.items() if raw_id in after)
        counts.update({"written": taken, "not taken by Slurm": len(texts) - taken})
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    settled = f"measured jobs that ended {_SETTLED_S // 60:.0f} min ago or earlier"
    say(f"AdminComment of {len(lines)} {settled}: {said or 'nothing to do'}")
    if counts["not taken by Slurm"]:
        raise typer.Exit(Status.FOUND)


def _lines(runs: Iterable[JobUsage], cluster: str, since_s: float) -> Iterator[tuple[JobUsage, str]]:
    """Yield the runs of which all is known that will be, the last of each job last, with their lines."""
    for run in runs:
        over = run.state != "RUNNING" and run.end_s < now() - _SETTLED_S
        # Of a run that reaches out of the window the figures are of a part.
        whole = run.start_s > since_s
        if run.cluster == cluster and over and whole and is_job(_name(run)) and (line := comment_line(run)):
            yield run, line


def _wanted(
    some: Iterable[tuple[str, JobUsage, str]], found: Mapping[str, Commented], counts: Counter[str]
) -> Iterator[tuple[str, str]]:
    for raw_id, run, line in some:
        there = found.get(raw_id)
        if there is None or not there.ended or there.start_s != int(run.start_s):
            counts["whose last run Slurm has is another"] += 1
        elif there.comment == line:
            counts["there already"] += 1
        elif not may_write(there.comment, line):
            counts["left as somebody else wrote them"] += 1
        else:
            yield raw_id, line


def _name(run: JobUsage) -> str:
    """Return what sacctmgr calls this job alone; an array's id would be all its tasks."""
    return run.job_id if "_" in run.job_id else run.job_id_raw
