# SPDX-License-Identifier: Apache-2.0
"""colloc history: decisions of csub for me, its beliefs about each of my jobs, and how to correct them."""

import os
import pwd
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Context, Option, Typer

from slurm_colloc.cli.colloc.options import Form
from slurm_colloc.cli.colloc.output import say, site, state_folder, window, write
from slurm_colloc.cli.colloc.terminal import put
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.errors import CollocError, InputError
from slurm_colloc.core.files import temporary_folder
from slurm_colloc.core.model import Decision, Evidence, Footprint
from slurm_colloc.core.process import ask
from slurm_colloc.core.units import counted, printable
from slurm_colloc.core.wording import sentence, shown, words
from slurm_colloc.estimate.exact import out_of_memory
from slurm_colloc.estimate.fold import fold_drops
from slurm_colloc.estimate.ladder import estimate, estimate_at_site
from slurm_colloc.estimate.lookup import ENDED, Known, look_up
from slurm_colloc.estimate.question import Question, question
from slurm_colloc.estimate.records import drop_evidence, evidence_path, forget, latest_of_jobs, own_decisions
from slurm_colloc.pack.report import pack_summary, read_pack
from slurm_colloc.report.text import json_text, local, stamp
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.submit.show import how_sure

SCHEMA = 2

app = Typer(help="Show what csub decided for my jobs, and what it expects of them.")
_SACCT_TIMEOUT_S = 600.0


class Believed(NamedTuple):
    """One job: its last decision, what is expected of its next run and the newest run known."""

    decision: Decision
    footprint: Footprint
    known: Known

    @property
    def last_run(self) -> Evidence | None:
        """Return the newest run, of the job itself or of its command."""
        runs = [*self.known.evidence, *self.known.by_command]
        return max(runs, key=lambda run: run.ended_s, default=None)


@app.callback(invoke_without_command=True)
def history(
    context: Context,
    form: Form = "text",
    last: Annotated[int, Option(min=1, help="so many submissions, and so many jobs")] = 20,
    forgotten: Annotated[
        str, Option("--forget", help="a job's id, or its signature: what was measured of it counts no more")
    ] = "",
) -> None:
    """Show my last submissions by csub, and what is known of each of those jobs."""
    if context.invoked_subcommand:
        return
    config = site()
    decided, unreadable = own_decisions(config)
    decisions = latest_of_jobs(decided)
    if forgotten:
        _forget(forgotten, decisions)
        return
    jobs = _jobs(config, decisions, last)
    if form == "json":
        _as_json(jobs, decisions[-last:], unreadable)
        return
    if jobs:
        put("what csub believes about each of these jobs:\n")
    for job in list(jobs.values())[-last:]:
        _show_job(job)
    if jobs:
        put("submissions:\n")
    for decision in decisions[-last:]:
        _show_submission(decision)
    put(f"{len(decisions[-last:])} of {len(decisions)} submissions shown, {unreadable} files unreadable\n")


def _jobs(config: SiteConfig, decisions: Sequence[Decision], last: int) -> dict[str, Believed]:
    """Return by signature what is believed of the jobs that were submitted last, the newest at the end."""
    newest: dict[str, Decision] = {}
    for decision in decisions:
        if not decision.is_pack:  # a pack's use tells nothing of one task
            newest.pop(decision.signature, None)
            newest[decision.signature] = decision
    recent = {decision.signature for decision in decisions[-last:]}
    client = CliClient()
    jobs = {}
    for number, (signature, decision) in enumerate(reversed(newest.items())):
        if number >= last and signature not in recent:
            continue
        knowledge = look_up(config, signature, client.job_states, decision.command)
        # Their ends are known now; csub itself never tidies up.
        fold_drops(user_data_folder(), signature)
        next_run = question(decision.signature, decision.numbers, knowledge)
        jobs[signature] = Believed(decision, estimate_at_site(next_run, config.paths.state), knowledge)
    return dict(reversed(jobs.items()))


def _as_json(believed: dict[str, Believed], decisions: Sequence[Decision], unreadable: int) -> None:
    unknown = estimate(Question())
    submissions = [
        {
            "decision": shown(decision),
            "footprint": shown(believed[decision.signature].footprint if not decision.is_pack else unknown),
            "pack": decision.is_pack,
        }
        for decision in decisions
    ]
    jobs = [
        {
            "signature": signature,
            "name": job.decision.job_name,
            "line": job.decision.line,
            "footprint": shown(job.footprint),
            "needs_more_than_mib": _too_little(job),
            "last_run": job.last_run,
            "notes": list(map(words, job.known.notes)),
        }
        for signature, job in believed.items()
    ]
    answer = {"submissions": submissions, "jobs": jobs, "unreadable": unreadable}
    write(json_text(SCHEMA, answer), "")


def _too_little(believed: Believed) -> int | None:
    """Return how much memory did not suffice, where that is all that is known."""
    run = out_of_memory(believed.known.evidence)
    return run.gpu_mem_peak_mib if run and believed.footprint.gpu_mem_peak_mib is None else None


def _size(believed: Believed) -> str:
    memory, active = believed.footprint.gpu_mem_peak_mib, believed.footprint.sm_active_pct
    less = _too_little(believed)
    size = f"needs more than {less} MiB" if less else "memory not known"
    size = f"{memory.q50:.0f} MiB expected, {memory.q99:.0f} MiB at most" if memory else size
    return size + (f", at most {active.q95:.0f} % of the SMs" if active else ", SM activity not known")


def _show_job(believed: Believed) -> None:
    decision, footprint = believed.decision, believed.footprint
    runs = f", from {counted(footprint.evidence_count, 'run')}" if footprint.evidence_count else ""
    run = believed.last_run
    ended = _last_run(run) if run else "no run known"
    text = printable(sentence(footprint.provenance))
    put(
        f"{printable(decision.job_name)}  {printable(decision.line)}  (last job {printable(decision.job_id)})\n"
        f"    {footprint.rung}{runs}: {_size(believed)}; {text}{how_sure(footprint)}\n"
        f"    {printable(ended)}\n"
    )
    for note in believed.known.notes:
        put(f"    {printable(words(note))}\n")


def _last_run(run: Evidence) -> str:
    """Return when and how a run ended, or until when it was watched if its end is not known."""
    time = stamp(local(run.ended_s))
    return f"last run {run.job_id} " + (
        f"ended {time} ({run.state})" if run.state in ENDED else f"was last seen {time}"
    )


def _show_submission(decision: Decision) -> None:
    pack = "  pack" if decision.is_pack else ""
    put(
        f"{printable(decision.job_id)}  {printable(decision.job_name)}  {stamp(local(decision.at_s))}{pack}\n"
        f"    asked {printable(decision.asked) or 'no GPU'}, given {printable(decision.how)}: "
        f"{printable(sentence(decision.reasons))}\n"
    )
    if decision.is_pack:
        put(f"    {_how_it_went(decision)}\n")


def _how_it_went(decision: Decision) -> str:
    """Return how a pack's tasks went, as far as they are written down."""
    try:
        pack = read_pack(decision.cluster, decision.job_id)
    except CollocError as error:
        return f"how its tasks went is not known: {printable(str(error))}"
    if pack is None:
        return "it has not begun, or wrote nothing down"
    return f"{pack_summary(pack)}; see 'colloc job {printable(decision.job_id)}'"


def _job(named: str, decisions: Sequence[Decision]) -> Decision:
    matches = [decision for decision in decisions if named in (decision.job_id, decision.signature)]
    if not matches:
        raise InputError(
            f"'{named}' is no job of yours that csub submitted, nor the signature of one; 'colloc history' lists them"
        )
    if matches[-1].is_pack:
        raise InputError(f"job {named} is a pack, of which nothing is kept; name a job of one of its tasks")
    return matches[-1]


def _forget(named: str, decisions: Sequence[Decision]) -> None:
    decision = _job(named, decisions)
    folder = user_data_folder()
    # Runs that are known by the command alone would take its place.
    gone = sum(forget(folder, key, now()) for key in (decision.signature, decision.command) if key)
    say(
        f"'{decision.job_name}' is forgotten: {counted(gone, 'file')} of evidence removed, and what the site "
        "knows of its runs until now does not count"
    )


if TYPE_CHECKING:
    from slurm_colloc.feedback.bootstrap import Past, PastRun, ReadPast
    from slurm_colloc.store.store import Store


@app.command()
def bootstrap(
    since: Annotated[str, Option(help="take past jobs from here on")] = "90d",
    until: Annotated[str, Option(help="up to here")] = "now",
    everybody: Annotated[bool, Option("--all", help="for all users, as root; else for yourself")] = False,
    sacct_file: Annotated[str, Option(help="a text of sacct, with its SubmitLine and WorkDir, instead of sacct")] = "",
    slurm_release: Annotated[str, Option(help="of the Slurm that ran those jobs, as 24.05.4; else this one's")] = "",
    shortest_s: Annotated[
        float, Option("--shortest", min=0, help="seconds that a job must have run for others to see its peak")
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
    csub_jobs = frozenset[str]()
    if not everybody:
        csub_jobs = frozenset(decision.job_id for decision in own_decisions(config)[0])
    past_runs = _merged(_read(sacct_file, (start.timestamp(), end.timestamp()), user, release), user)
    measured = list(measured_runs(store, config.cluster, config)) if store.logs() else []
    past = past_evidence(past_runs.runs, measured, config, config.slurm_release, shortest_s, csub_jobs)
    _keep(store, config, past, everybody=everybody)
    _say(past, past_runs.rows, Counter(past_runs.rejected) + Counter(past.rejected), Counter(past_runs.refused))


def _release() -> str:
    match = re.search(r"\d+\.\d+\.\d+", ask(["sacct", "--version"], _SACCT_TIMEOUT_S).decode(errors="replace"))
    return match[0] if match else ""


def _read(path: str, window_s: tuple[float, float], user: str, release: str) -> Iterator["ReadPast"]:
    """Yield what a text, or sacct for each day, says."""
    from slurm_colloc.feedback.bootstrap import MORE_FIELDS, read_past
    from slurm_colloc.sources import sacct_client

    with temporary_folder() as work:
        if path:
            yield read_past(path, work, now(), release)
            return
        sacct_client.ask_tracked(_SACCT_TIMEOUT_S, os.environ)
        fields = sacct_client.ask_fields(_SACCT_TIMEOUT_S, os.environ, MORE_FIELDS)
        for day_s, next_s in sacct_client.day_windows(*window_s):
            text = os.path.join(work, "sacct.txt")
            with open(text, "wb") as out:
                out.write(sacct_client.ask_rows(day_s, next_s, fields, _SACCT_TIMEOUT_S, os.environ, user, steps=True))
            yield read_past(text, work, now(), release)


def _merged(parts: Iterable["ReadPast"], user: str) -> "ReadPast":
    """Return the runs of a user (empty: everybody's) in several texts, each run once."""
    from slurm_colloc.feedback.bootstrap import ReadPast

    once: dict[tuple[str, float | None], PastRun] = {}
    rejected: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    rows = 0
    for text in parts:
        user_runs = [run for run in text.runs if user in ("", run.user)]
        rejected["it is somebody else's"] += len(text.runs) - len(user_runs)
        rejected["a run of two days, told twice"] += len(user_runs)
        once.update({(run.job_id, run.start_s): run for run in user_runs})
        rejected.update(text.rejected)
        refused.update(text.refused)
        rows += text.rows
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
