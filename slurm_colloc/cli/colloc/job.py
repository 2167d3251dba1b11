# SPDX-License-Identifier: Apache-2.0
"""colloc job: one job's story."""

import os
import re
from collections.abc import Sequence
from typing import Annotated

from typer import Option

from slurm_colloc.cli.colloc.job_mlflow import PIECES, send
from slurm_colloc.cli.colloc.job_next import advise
from slurm_colloc.cli.colloc.options import Form, JobId, LookBack, StoreFolder
from slurm_colloc.cli.colloc.output import one_of, say, site_or_none, state_folder, window, write
from slurm_colloc.cli.colloc.terminal import show, terminal
from slurm_colloc.cli.colloc.visible_store import visible_here
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError, InputError
from slurm_colloc.core.model import Decision
from slurm_colloc.estimate.lookup import Known, look_up
from slurm_colloc.estimate.records import own_decisions
from slurm_colloc.facts.judgement import RunFound
from slurm_colloc.facts.one_job import find_job
from slurm_colloc.feedback.user_histories import collect_decisions
from slurm_colloc.pack.report import Pack, pack_record, pack_text, read_pack
from slurm_colloc.rebind.recover import told
from slurm_colloc.report.job import FORMATS, Advice, JobStory, RunStory
from slurm_colloc.report.text import stamp
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.job_visibility import Visible, own_name
from slurm_colloc.slurm.jobs import JOB_ID, Accounted
from slurm_colloc.store.store import open_store
from slurm_colloc.store.window import Window

# A heterogeneous job ("4711+0") is never one.
_PACKS = re.compile(r"\d+(?:_\d+)?", re.ASCII)
# The last runs of a long array are shown.
_SHOWN = 20
_GO_ON = ("RUNNING", "SUSPENDED", "PENDING")
_FEWEST_PIECES, _MOST_PIECES = 20, 60


def job(
    job_id: JobId,
    since: LookBack = "365d",
    form: Form = "text",
    store: StoreFolder = "",
    to: Annotated[str, Option(help="mlflow: write the job there instead")] = "",
    uri: Annotated[str, Option(help="of MLflow; else MLFLOW_TRACKING_URI")] = "",
) -> None:
    """Say what one job got and used, and how to submit it next time."""
    if to:
        one_of("--to", to, ("mlflow",))
        write("".join(f"{line}\n" for line in send(story_of(job_id, since, store, PIECES), uri)), "")
        return
    if uri:
        raise InputError("--uri is for --to mlflow")
    show(story_of(job_id, since, store), FORMATS, form)


def story_of(job_id: str, since: str, store: str, pieces: int = 0) -> JobStory:
    """Return all that is known here of a job, its time in so many pieces; 0: as many as the terminal has room for.

    Raises:
        InputError: nothing is.
    """
    start, _ = window(since, "now")
    config = site_or_none()
    if not JOB_ID.fullmatch(job_id):
        raise InputError(
            f"'{job_id}' is no id of a job: ask for 4711, 4711_2 (a task of an array) or 4711+1 (a component)"
        )
    folder = store or state_folder("store")
    visible = visible_here(folder, config)
    columns = terminal().columns
    pieces = pieces or (min(_MOST_PIECES, max(_FEWEST_PIECES, columns - 35)) if columns else _MOST_PIECES)
    runs, trouble = _in_store(folder, job_id, start.timestamp(), config, visible, pieces)
    rows, unseen = _by_slurm(job_id, visible)
    shown_id = _shown_id(job_id, runs, rows)
    # A pack's job writes down its tasks at once, before any ingest.
    pack = _pack(config, shown_id) if config else None
    recovery = told(config.cluster, shown_id) if config else ""
    scope = visible.whose and f", {visible.whose}"
    trouble = trouble or (
        f"store '{folder}' has no measurements of job '{job_id}' since {stamp(start)}{scope}; if it had a GPU, they "
        "come with 'colloc ingest'"
    )
    if not runs and not rows and pack is None and not recovery:
        raise InputError(f"{unseen}, and {trouble}")
    stories, decision = _stories(config, shown_id, runs, rows)
    if not runs and (not rows or any(story.slurm and story.slurm.given and not story.evidence for story in stories)):
        say(f"what the job used of its GPU is not known: {trouble}")
    # csub says at the resume whether one has ended of which nobody knows it.
    goes_on = any(row.end_s is None for row in rows) if rows else any(run.usage.state in _GO_ON for run in runs)
    packed = (pack_text(pack, goes_on=goes_on), pack_record(pack)) if pack else None
    earlier = max(0, len(stories) - _SHOWN)
    return JobStory(stories[earlier:], decision, start.timestamp(), earlier, packed, recovery)


def _in_store(
    folder: str, job_id: str, since_s: float, config: SiteConfig | None, visible: Visible, pieces: int
) -> tuple[list[RunFound], str]:
    """Return the runs in the store, and why there can be none."""
    try:
        present_s = now()
        span = Window(since_s, present_s, present_s)
        return find_job(open_store(folder, config, visible=visible), job_id, span, config, pieces), ""
    except CollocError as error:
        return [], str(error)


def _by_slurm(job_id: str, visible: Visible) -> tuple[tuple[Accounted, ...], str]:
    """Return what Slurm says of the job, as far as it may be shown, and why that can be nothing."""
    try:
        rows = CliClient().accounted(job_id)
    except CollocError:  # the store may know it all the same, on a host without Slurm
        return (), f"Slurm does not answer ('sacct -j {job_id}' says why)"
    return tuple(row for row in rows if visible.shows(row.user, row.account)), "Slurm shows you no such job"


def _shown_id(job_id: str, runs: Sequence[RunFound], rows: Sequence[Accounted]) -> str:
    """Return the id that Slurm prints for a job; all but Slurm's tables know a task of an array by that alone."""
    named = [(run.usage.job_id_raw, run.usage.job_id) for run in runs]
    named += [(row.raw_id, row.job_id) for row in rows]
    # The id of an array is the raw one of a task as well.
    return next((name for raw_id, name in named if raw_id == job_id != _of_all(name)), job_id)


def _of_all(job_id: str) -> str:
    """Return the id of the array or heterogeneous job that this is one of, else its own."""
    return re.split("[_+]", job_id)[0]


def _stories(
    config: SiteConfig | None, job_id: str, runs: Sequence[RunFound], rows: Sequence[Accounted]
) -> tuple[list[RunStory], Decision | None]:
    """Return each run's story, in the order in which they started, and what csub had decided."""
    user = rows[-1].user if rows else own_name()
    if runs:
        user = runs[-1].usage.user
    # csub saw the id of an array, not those of its tasks; the sampler saw the task's own.
    decision = _decision(config, user, _of_all(job_id)) if config else None
    past: Known | None = None
    # Evidence of one's own jobs says nothing of anybody else's.
    if config and decision and user == own_name():
        past = look_up(config, decision.signature, CliClient().job_states)
    own_evidence = {item.job_id: item for item in past.evidence} if past else {}
    of_slurm = {(row.raw_id, row.start_s): row for row in rows}
    stories = []
    for run in runs:
        usage = run.usage
        row = of_slurm.pop((usage.job_id_raw, int(usage.start_s)), None)
        evidence = run.evidence if usage.methods else own_evidence.get(usage.job_id_raw)
        judged = run if usage.methods else run._replace(evidence=evidence, fitted=None)
        advice = advise(judged, row, decision, past, config) if config else Advice()
        stories.append(RunStory(usage, row, run.timeline, own_evidence.get(usage.job_id_raw) or evidence, advice))
    for row in of_slurm.values():
        evidence = own_evidence.get(row.raw_id) if row.end_s is not None else None
        advice = advise(row, row, decision, past, config, evidence) if config and row.end_s is not None else Advice()
        stories.append(RunStory(None, row, None, evidence, advice))
    return sorted(stories, key=_began), decision


def _began(story: RunStory) -> float:
    if story.usage:
        return story.usage.start_s
    return float("inf") if story.slurm is None or story.slurm.start_s is None else float(story.slurm.start_s)


def _pack(config: SiteConfig, job_id: str) -> Pack | None:
    """Return what one's own pack wrote down, and say why it cannot be used."""
    if not _PACKS.fullmatch(job_id):
        return None
    try:
        return read_pack(config.cluster, job_id)
    except CollocError as error:
        say(f"what the tasks of a pack did is not known: {error}")
        return None


def _decision(config: SiteConfig, user: str, job_id: str) -> Decision | None:
    """Return csub's decision from one's own decisions, or from the site's where they are open to us."""
    decisions, _ = own_decisions(config)
    if user == own_name():
        decision = next((item for item in reversed(decisions) if item.job_id == job_id), None)
        if decision:
            return decision
    # Anybody may write a decision about any job id; the job's own user's is the one that was acted upon.
    spool = config.paths.decisions
    owned = collect_decisions(spool).decisions.get((user, job_id)) if spool and os.access(spool, os.R_OK) else None
    return owned[1] if owned else None
