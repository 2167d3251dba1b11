# SPDX-License-Identifier: Apache-2.0
"""colloc me: my last 30 days."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import fsum
from typing import Annotated

import typer

from slurm_colloc.accounting.equivalents import worth
from slurm_colloc.accounting.one_job import RunFound
from slurm_colloc.accounting.one_user import UserRuns, user_by_sacct, user_in_store
from slurm_colloc.accounting.store import Store, open_store
from slurm_colloc.accounting.sweep import Window
from slurm_colloc.charted import Fit
from slurm_colloc.cli.colloc.job_next import advise
from slurm_colloc.cli.colloc.output import site_or_none, state_folder, window, write
from slurm_colloc.cli.colloc.seen import own_name
from slurm_colloc.cli.colloc.terminal import terminal
from slurm_colloc.clock import now
from slurm_colloc.config import Audit, SiteConfig, user_data_folder
from slurm_colloc.errors import CollocError, InputError
from slurm_colloc.history.lookup import look_up
from slurm_colloc.history.records import read_decisions
from slurm_colloc.model import Evidence, Gres, Placement
from slurm_colloc.placement.fitted import not_judged, past_request, would_have_fitted
from slurm_colloc.report.me import Hint, MyReport, as_json, as_text, idle_hints
from slurm_colloc.slurm.accounted import Accounted
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.visible import Visible
from slurm_colloc.units import counted, significant

# sacct of one user and a month.
_SACCT_TIMEOUT_S = 60.0
# Each is a file to read; what one submitted longer ago than that many jobs is left to the store.
_SIGNATURES = 200
_KEPT = "evidence kept for csub"
_OF_SHAPES = 3


def me(
    since: Annotated[str, typer.Option("--since", help="look back so far")] = "30d",
    form: Annotated[str, typer.Option("--format", help="text or json")] = "text",
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
) -> None:
    """Say what my jobs had and used of their GPUs, and what would have done."""
    start, end = window(since, "now")
    if form not in ("text", "json"):
        raise InputError(f"--format '{form}' is not one of text, json")
    config = site_or_none()
    user = own_name() or str(os.geteuid())
    present_s = now()
    asked = Window(start.timestamp(), present_s, present_s)
    found, source = _runs(store or state_folder("store"), user, asked, config)
    runs = [_with_evidence(run) for run in _with_kept(found.runs, config)]
    fitting = list(_fitting(runs, config)) if config else []
    usages = [run.usage for run in runs]
    audit = config.audit if config else Audit()
    hints = [*idle_hints(usages, audit.min_coverage_pct), *(_fit_hints(fitting, config) if config else [])]
    report = MyReport(
        user,
        config.cluster if config else "",
        start,
        end,
        source,
        usages,
        found.without_gpu,
        _fit_of(user, fitting),
        hints,
    )
    write(as_json(report) if form == "json" else as_text(report, terminal()), "")


def _runs(folder: str, user: str, asked: Window, config: SiteConfig | None) -> tuple[UserRuns, str]:
    """Return one's runs and where they are from: a store that somebody keeps up to date, else Slurm itself."""

    def stored() -> tuple[UserRuns, str]:
        source = open_store(folder, config, visible=Visible(False, user))
        return user_in_store(source, user, asked, config), f"the store '{folder}'"

    def by_sacct() -> tuple[UserRuns, str]:
        found = user_by_sacct(Store(folder, config), user, asked, config, _SACCT_TIMEOUT_S, os.environ)
        return found, "sacct, and what is kept of one's own jobs for csub"

    ways = [stored, by_sacct]
    if folder == os.path.join(user_data_folder(), "store"):
        # One's own store is as old as one's last ingest.
        ways.reverse()
    try:
        return ways[0]()
    except CollocError as error:
        try:
            return ways[1]()
        except CollocError as also:
            raise InputError(f"{error}; and in its place: {also}") from also


def _with_kept(runs: Sequence[RunFound], config: SiteConfig | None) -> Iterator[RunFound]:
    """Yield the runs, those without samples with the evidence that csub's sampler, or the site, kept of them."""
    kept = _kept(config) if config and any(not run.usage.methods for run in runs) else {}
    for run in runs:
        yield run if run.usage.methods else run._replace(evidence=kept.get(run.usage.job_id_raw))


def _kept(config: SiteConfig) -> dict[str, Evidence]:
    decisions, _ = read_decisions(config.decisions_folder)
    signatures = dict.fromkeys(one.signature for one in reversed(decisions) if not one.is_pack)
    found: dict[str, Evidence] = {}
    for signature in list(signatures)[:_SIGNATURES]:
        found |= {run.job_id: run for run in look_up(config, signature, None).evidence}
    return found


def _with_evidence(run: RunFound) -> RunFound:
    """Return a run without samples with the figures that its evidence has, of the time that it covers."""
    usage, kept = run.usage, run.evidence
    span_s = usage.end_s - usage.start_s
    if usage.methods or kept is None or span_s <= 0:
        return run
    part = min(1.0, kept.sampled_s / span_s)
    measured = None if usage.allocated_gpu_hours is None else usage.allocated_gpu_hours * part
    # GPU_UTIL in place of SM activity is a bound, and no measurement.
    active = None if kept.sm_is_bound else kept.sm_active_mean_pct
    used = None if measured is None or active is None else kept.sampled_s / 3600 * active / 100
    return run._replace(
        usage=usage._replace(
            sm_measured_gpu_hours=measured if measured is not None and used is not None else 0.0,
            sm_used_gpu_hours=used,
            gpu_mem_peak_mib=kept.gpu_mem_peak_mib,
            coverage_pct=100 * part,
            methods=(_KEPT,),
        )
    )


# A run, the piece that it would have fitted, and the GPU-hours that this would have left.
_Fitting = tuple[RunFound, Placement | None, float]


def _fitting(runs: Sequence[RunFound], config: SiteConfig) -> Iterator[_Fitting]:
    """Yield the runs of a whole GPU of which enough is known, each with the piece that it would have fitted."""
    for run in runs:
        usage, kept = run.usage, run.evidence
        if kept is None or usage.allocated_gpu_hours is None:
            continue
        whole = kept._replace(mode="") if kept.mode == "exclusive" else kept
        if not_judged(whole, usage.gres, config.audit.min_coverage_pct):
            continue
        placement = would_have_fitted(
            whole, past_request(usage.gres, usage.partition, usage.account, usage.qos), config
        )
        part = _worth(placement.gres, usage.partition, config) if placement.gres else None
        if part is None:
            yield run, None, 0.0
        else:
            yield run, placement, usage.allocated_gpu_hours * max(0.0, 1.0 - part)


def _worth(gres: Gres, partition: str, config: SiteConfig) -> float | None:
    """Return what a piece is worth in whole GPUs, by slices; None where the partition's pools do not say the same."""
    found = {worth([gres], pool.nodes, config).gpus for pool in config.pool if _offers(pool.slice, gres)}
    pools = [pool for pool in config.pool if partition in pool.partitions]
    if gres.name != "gpu":
        found = {worth([gres], pool.nodes, config).gpus for pool in pools}
    found.discard(None)
    return found.pop() if len(found) == 1 else None


def _offers(slices: Sequence[object], gres: Gres) -> bool:
    return any(getattr(part, "type", "") == gres.type for part in slices)


def _fit_of(user: str, fitting: Sequence[_Fitting]) -> Fit | None:
    if not fitting:
        return None
    by_unit: dict[str, float] = defaultdict(float)
    for run, placement, _ in fitting:
        if placement:
            by_unit[placement.given] += run.usage.allocated_gpu_hours or 0.0
    return Fit(
        user,
        fsum(run.usage.allocated_gpu_hours or 0.0 for run, _, _ in fitting),
        fsum(by_unit.values()),
        fsum(freed for _, _, freed in fitting),
        max(by_unit, key=lambda unit: by_unit[unit], default=""),
    )


def _fit_hints(fitting: Sequence[_Fitting], config: SiteConfig) -> Iterator[Hint]:
    """Yield, for the names of jobs that held most too much, the line to submit the last of them by."""
    by_name: dict[str, list[_Fitting]] = defaultdict(list)
    for one in fitting:
        if one[1]:
            by_name[one[0].usage.job_name].append(one)
    worst = sorted(by_name.values(), key=lambda group: -fsum(freed for *_, freed in group))[:_OF_SHAPES]
    for group in worst:
        last, placement, _ = group[-1]
        freed = fsum(one[2] for one in group)
        peak = max((run.evidence.gpu_mem_peak_mib or 0 for run, _, _ in group if run.evidence), default=0)
        given = placement.given if placement else ""
        runs = f"{counted(len(group), 'run')} of '{last.usage.job_name}'"
        yield Hint(
            f"submit '{last.usage.job_name}' by csub: {given} holds it",
            f"{runs} had a whole GPU and at most {peak} MiB of it; {significant(freed)} GPU-h would have been left",
            _line_for(last, config) or f"colloc job {last.usage.job_id}",
            freed,
        )


def _line_for(run: RunFound, config: SiteConfig) -> str:
    """Return the line for the next submission, by a question to Slurm."""
    rows: Sequence[Accounted] = ()
    with suppress(CollocError):
        rows = CliClient(config.timeouts.ask_slurm_s).accounted(run.usage.job_id)
    own = next((row for row in rows if row.user == run.usage.user), None)
    return advise(run.usage, run.evidence, own, None, None, config).command if own else ""
