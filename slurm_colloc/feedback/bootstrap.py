# SPDX-License-Identifier: Apache-2.0
"""Evidence from a site's existing accounting, so that csub knows past jobs on its first day.

A past job's command is known, and not its script: the job is kept under a signature of the command.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.config import Pool, SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.files import at_once
from slurm_colloc.core.model import COMPLETED, LEAST_SAMPLES, Evidence, SharingMode
from slurm_colloc.estimate.bounds import share_at_most_pct
from slurm_colloc.estimate.signature import apart_by, command_signature
from slurm_colloc.facts.day_facts import OWN_INTERVAL_S
from slurm_colloc.facts.evidence import Measured, device_mib
from slurm_colloc.feedback.user_histories import as_run_of
from slurm_colloc.gpu.mig import tells_sm_activity
from slurm_colloc.slurm.gres import parse_tres_gres
from slurm_colloc.slurm.submit_line import parse_submit_line
from slurm_colloc.sources import jobstats, tres_usage
from slurm_colloc.store.decisions import asked_id
from slurm_colloc.store.equivalents import GpuEquivalent, gpu_equivalent, node_names, pool_nodes
from slurm_colloc.store.ingest import take_text
from slurm_colloc.store.parquet import connection
from slurm_colloc.store.queries import query
from slurm_colloc.store.sacct_rows import steps_of_runs
from slurm_colloc.store.text_rows import form_of, read_rows

# Fields that sacct is asked for beyond those of an ingest.
MORE_FIELDS = ("AdminComment", "SubmitLine", "WorkDir", tres_usage.FIELD)
_SOURCES = {jobstats.METHOD: "jobstats", tres_usage.METHOD: "Slurm"}


class PastRun(NamedTuple):
    """One run of sacct, and what it says of the use of its GPU."""

    job_id: str
    shown_id: str
    cluster: str
    user: str
    state: str
    start_s: float | None
    end_s: float | None
    gres: str
    node_list: str
    job_name: str
    util_pct: float | None
    mem_mib: int | None
    method: str
    submit_line: str
    work_dir: str
    util_high_pct: float | None = None


class ReadPast(NamedTuple):
    """The runs in a text; ``rows`` = runs + rejected. ``refused`` counts figures of GPU use that are not believed."""

    runs: Sequence[PastRun]
    rows: int
    rejected: Mapping[str, int]
    refused: Mapping[str, int]


class Past(NamedTuple):
    """The evidence that a bootstrap found, by user; ``read`` = used + rejected.

    Runs used are counted in ``by_source`` by who measured them.
    """

    evidence: Sequence[tuple[str, Evidence]]
    read: int
    rejected: Mapping[str, int]
    by_source: Mapping[str, int]


def read_past(path: str, work: str, now_s: float, release: str) -> ReadPast:
    """Return the runs in a sacct text with MORE_FIELDS.

    Args:
        path: the text, its times in epoch seconds (SLURM_TIME_FORMAT=%s).
        work: a folder for temporaries.
        now_s: the present.
        release: the release of the Slurm that ran the jobs, with its third number.

    Raises:
        InputError: it is no such text.
        StoreError: the rows cannot be added up.
    """
    with connection(work) as database:
        ingested = take_text(database, path, (), None, now_s, work, os.path.basename(path), release=release, live=True)
        with open(path, "rb", opener=at_once) as stream:
            form = form_of(stream, ())
        if "SubmitLine" not in form.fields or "WorkDir" not in form.fields:
            raise InputError(f"'{path}' lacks SubmitLine or WorkDir, which sacct has since Slurm 21.08")
        rows = read_rows(path, form, work, each=True)
        highs = {row: tres_usage.highest_util_pct(steps) for row, _, steps in steps_of_runs(database, rows, Counter())}
        lines = rows.select(("JobIDRaw", "SubmitLine", "WorkDir"))
        runs = list(_runs(database, lines, rows.odd, highs))
    return ReadPast(runs, ingested.rows_in - ingested.steps, ingested.rejected, ingested.refused)


def _runs(
    database: DuckDBPyConnection, lines: str, odd: Sequence[Sequence[str]], highs: Mapping[int, float | None]
) -> Iterator[PastRun]:
    # A job that ran several times was submitted once.
    for row, *values in database.execute(query("feedback/sql/submitted_runs", lines=lines), {"odd": odd}).fetchall():
        run = PastRun(*values)
        yield run._replace(util_high_pct=highs.get(row) if run.method == tres_usage.METHOD else None)


def past_evidence(
    runs: Iterable[PastRun],
    measured: Iterable[Measured],
    config: SiteConfig,
    release: str,
    shortest_s: float,
    csub_jobs: frozenset[str] = frozenset(),
) -> Past:
    """Return the evidence in past runs, and why there is none in the others.

    Args:
        runs: from sacct.
        measured: figures sampled of runs, ours or a Prometheus server's.
        config: the site.
        release: the release of the command lines.
        shortest_s: a shorter run that others measured shows no peak: they look once in half a minute.
        csub_jobs: ids of the jobs that csub submitted: it knows more of them.
    """
    sampled: dict[tuple[str, float | None], Measured] = {(use.run.job_id, use.start_s): use for use in measured}
    rejected: Counter[str] = Counter()
    evidence: list[tuple[str, Evidence]] = []
    sources: Counter[str] = Counter()
    read = 0
    for run in runs:
        read += 1
        try:
            run_evidence = _evidence(run, sampled.get((run.job_id, run.start_s)), config, shortest_s, csub_jobs)
            evidence.append((run.user, run_evidence._replace(signature=_signature(run, release, config.cluster))))
            sources[run_evidence.source or "samples"] += 1
        except InputError as error:
            rejected[str(error)] += 1
    return Past(evidence, read, rejected, sources)


def _evidence(
    run: PastRun, sampled: Measured | None, config: SiteConfig, shortest_s: float, csub_jobs: frozenset[str]
) -> Evidence:
    """Return what was measured of one run, without a signature.

    Raises:
        InputError: why it shows no peak.
    """
    if run.cluster not in ("", config.cluster):
        raise InputError("it ran on another cluster")
    gres = tuple(tres for tres in parse_tres_gres(run.gres) if tres.name in ("gpu", "mps", "shard")) if run.gres else ()
    if not gres:
        raise InputError("it had no GPU")
    if asked_id(run.shown_id, run.job_id) in csub_jobs:
        raise InputError("csub submitted it, and knows it already")
    if run.state != COMPLETED or run.start_s is None or run.end_s is None:
        raise InputError("it did not complete")
    held = gpu_equivalent(gres, run.node_list, config)
    if held.devices != 1:
        raise InputError("it had several GPUs")
    shares = {tres.name for tres in gres if tres.name != "gpu"}
    if sampled and sampled.run.sample_count >= LEAST_SAMPLES and sampled.run.gpu_mem_peak_mib is not None:
        mode = sampled.run.mode or (SharingMode(shares.pop()) if shares else SharingMode.EXCLUSIVE)
        return as_run_of(sampled.run, "", mode)
    return _by_others(run, run.start_s, run.end_s, held, config, shortest_s)


def _by_others(
    run: PastRun, start_s: float, end_s: float, held: GpuEquivalent, config: SiteConfig, shortest_s: float
) -> Evidence:
    """Return what somebody else's program measured of one run that completed, without a signature.

    Raises:
        InputError: why it shows no peak.
    """
    if not run.method or run.mem_mib is None:
        raise InputError("nobody measured its peak of GPU memory")
    if not held.whole:
        raise InputError("what others measured is of a whole GPU, and it had a piece of one")
    pool = _pool(run.node_list, config)
    if pool is None or not pool.gpu_model:
        raise InputError("site.toml does not say which GPU it had")
    if end_s - start_s < shortest_s:
        raise InputError(f"it ran for less than {shortest_s:g} s, too short for others to see its peak")
    # GPU_UTIL is above SM activity, whose mean over the whole run is what decides; Slurm tells only a peak.
    most = run.util_high_pct
    if most is None and run.util_pct is not None:
        most = share_at_most_pct(run.util_pct, (end_s - start_s) / OWN_INTERVAL_S)
    if not tells_sm_activity(pool.gpu_model):
        most = None
    return Evidence(
        job_id=run.job_id,
        signature="",
        state=COMPLETED,
        mode=SharingMode.EXCLUSIVE,
        gpu_model=pool.gpu_model,
        gpu_mem_peak_mib=run.mem_mib,
        sm_active_mean_pct=most,
        sm_active_q95_pct=most,
        sm_is_bound=most is not None,
        sample_count=0,
        sampled_s=0.0,
        ended_s=end_s,
        elapsed_s=end_s - start_s,
        gpu_mem_total_mib=device_mib(pool.gpu_model, "", next(iter(node_names(run.node_list))), config),
        source=_SOURCES.get(run.method, run.method),
    )


def _pool(node_list: str, config: SiteConfig) -> Pool | None:
    """Return the pool that all nodes are in; None where they have pools of several cards, of which any may be meant."""
    nodes = node_names(node_list)
    pools = [pool for pool in config.pool if nodes and nodes <= pool_nodes(pool)]
    return pools[0] if len({pool.gpu_model for pool in pools}) == 1 else None


def _signature(run: PastRun, release: str, cluster: str) -> str:
    """Return what a run is known by: its command.

    Raises:
        InputError: its command line does not say.
    """
    script, arguments = parse_submit_line(run.submit_line, run.job_name, release)
    return command_signature(script, arguments, 1, apart_by(cluster), run.work_dir)
