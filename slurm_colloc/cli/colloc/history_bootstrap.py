# SPDX-License-Identifier: Apache-2.0
"""colloc history bootstrap: evidence of past jobs, from what a site's accounting has already."""

import os
import pwd
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from slurm_colloc.cli.colloc.output import say, site, state_folder, window
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.process import ask
from slurm_colloc.estimate.fold import fold_drops
from slurm_colloc.estimate.records import drop_evidence, evidence_path, read_decisions

if TYPE_CHECKING:
    from slurm_colloc.feedback.bootstrap import Past, PastRun, ReadPast
    from slurm_colloc.store.store import Store

_SACCT_TIMEOUT_S = 600.0


def bootstrap(
    since: Annotated[str, typer.Option("--since", help="take past jobs from here on")] = "90d",
    until: Annotated[str, typer.Option("--until", help="up to here")] = "now",
    everybody: Annotated[bool, typer.Option("--all", help="for all users, as root; else for yourself")] = False,
    sacct_file: Annotated[
        str, typer.Option("--sacct-file", help="a text of sacct, with its SubmitLine and WorkDir, instead of sacct")
    ] = "",
    slurm_release: Annotated[
        str, typer.Option("--slurm-release", help="of the Slurm that ran those jobs, as 24.05.4; else this one's")
    ] = "",
    shortest_s: Annotated[
        float, typer.Option("--shortest", min=0, help="seconds that a job must have run for others to see its peak")
    ] = 120.0,
) -> None:
    """Fill the evidence from jobs that ran before csub.

    What they used is from jobstats, Slurm's own figures, Prometheus or samples.
    """
    from slurm_colloc.facts.evidence import measured_runs
    from slurm_colloc.feedback.bootstrap import past_evidence
    from slurm_colloc.store.store import Store

    config = site()
    if everybody and os.geteuid() != 0:
        raise InputError("--all is for root, who can give each user their history; without it you fill your own")
    start, end = window(since, until)
    release = slurm_release or ("" if sacct_file else _release())
    store = Store(state_folder("store", writing=everybody), config)
    user = "" if everybody else pwd.getpwuid(os.geteuid()).pw_name
    known = frozenset[str]()
    if not everybody:
        known = frozenset(one.job_id for one in read_decisions(config.decisions_folder)[0])
    found = _merged(_read(sacct_file, (start.timestamp(), end.timestamp()), user, release), user)
    measured = list(measured_runs(store, config.cluster, config)) if store.logs() else []
    past = past_evidence(found.runs, measured, config, config.slurm_release, shortest_s, known)
    _keep(store, config, past, everybody=everybody)
    _say(past, found.rows, Counter(found.rejected) + Counter(past.rejected), Counter(found.refused))


def _release() -> str:
    found = re.search(r"\d+\.\d+\.\d+", ask(["sacct", "--version"], _SACCT_TIMEOUT_S).decode(errors="replace"))
    return found[0] if found else ""


def _read(path: str, asked: tuple[float, float], user: str, release: str) -> Iterator["ReadPast"]:
    """Yield what a text, or sacct for each day, says."""
    from slurm_colloc.feedback.bootstrap import MORE_FIELDS, read_past
    from slurm_colloc.sources import sacct

    with TemporaryDirectory(prefix="colloc-") as work:
        if path:
            yield read_past(path, work, now(), release)
            return
        sacct.ask_tracked(_SACCT_TIMEOUT_S, os.environ)
        fields = sacct.ask_fields(_SACCT_TIMEOUT_S, os.environ, MORE_FIELDS)
        for day_s, next_s in sacct.day_windows(*asked):
            text = os.path.join(work, "sacct.txt")
            with open(text, "wb") as out:
                out.write(sacct.ask_rows(day_s, next_s, fields, _SACCT_TIMEOUT_S, os.environ, user, steps=True))
            yield read_past(text, work, now(), release)


def _merged(texts: Iterable["ReadPast"], user: str) -> "ReadPast":
    """Return what several texts say of the runs of a user (empty: of everybody), each run once."""
    from slurm_colloc.feedback.bootstrap import ReadPast

    once: dict[tuple[str, float | None], PastRun] = {}
    rejected: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    rows = 0
    for found in texts:
        own = [run for run in found.runs if user in ("", run.user)]
        rejected["it is somebody else's"] += len(found.runs) - len(own)
        rejected["a run of two days, told twice"] += len(own)
        once.update({(run.job_id, run.start_s): run for run in own})
        rejected.update(found.rejected)
        refused.update(found.refused)
        rows += found.rows
    rejected["a run of two days, told twice"] -= len(once)
    return ReadPast(tuple(once.values()), rows, rejected, refused)


def _keep(store: "Store", config: SiteConfig, past: "Past", *, everybody: bool) -> None:
    """Write what was found: for all into the store and from there each user's history, else the user's own drops."""
    from slurm_colloc.feedback.user_histories import Collected, build_history, collect_decisions

    if everybody:
        store.write_past(config.cluster, past.evidence)
        spool = config.paths.decisions
        collected = collect_decisions(spool) if spool else Collected({}, 0)
        built = build_history(store, config.cluster, config.state_folder, collected, config)
        say(f"histories hold {built.runs} runs")
        return
    folder = user_data_folder()
    new = [run for _, run in past.evidence if not os.path.lexists(evidence_path(folder, run.signature, run.job_id))]
    for run in new:
        drop_evidence(folder, run)
    for signature in {run.signature for run in new}:
        fold_drops(folder, signature)
    say(f"{len(new)} records written to '{folder}', {len(past.evidence) - len(new)} were there")


def _say(past: "Past", rows: int, rejected: Counter[str], refused: Counter[str]) -> None:
    by_source = ", ".join(f"{number} measured by {name}" for name, number in sorted(past.by_source.items()))
    used = f"{sum(past.by_source.values())} runs used{f' ({by_source})' if by_source else ''}"
    say(f"{rows} rows of sacct read, {used}; {sum(rejected.values())} rejected")
    for reason, number in sorted(rejected.items(), key=lambda item: (-item[1], item[0])):
        say(f"rejected: {number}: {reason}")
    for reason, number in sorted(refused.items()):
        say(f"figures of GPU use that cannot be believed: {number}: {reason}")
