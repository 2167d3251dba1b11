# SPDX-License-Identifier: Apache-2.0
"""Needs, by past runs, of jobs that slurmctld knows by user, name and working folder alone.

The same name may hide other arguments, so that of all runs under one the highest counts, with the margin that csub
takes for the very same job, and nothing is said before there are some that completed and were sampled throughout.
"""

import math
import os
import pwd
from collections.abc import Iterable, Iterator

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import COMPLETED, Evidence, Reason, SharingMode
from slurm_colloc.estimate.calibration import Calibration
from slurm_colloc.estimate.exact import from_runs
from slurm_colloc.estimate.harm import why_whole
from slurm_colloc.estimate.policy_table import KnownJob
from slurm_colloc.estimate.question import Question
from slurm_colloc.estimate.site_stop import off_path
from slurm_colloc.facts.evidence import measured_runs
from slurm_colloc.feedback.user_histories import as_run_of
from slurm_colloc.slurm.gres import parse_tres_gres
from slurm_colloc.store.store import Store

# The sampler may miss so much of a run at its two ends, beside a part of it.
_MISSED_S, _MISSED_PART = 30.0, 0.1
_MARGIN_TIME = 1.25
# Fewer completed runs do not show a peak that comes now and then.
LEAST_RUNS = 3
_FAILED = ("FAILED", "OUT_OF_MEMORY")
_NAMES = 'SELECT job_id, start_s, "user", job_name, work_dir FROM allocations WHERE cluster = $cluster'
_SHARED = {"mps": SharingMode.MPS, "shard": SharingMode.SHARD}


def known_jobs(store: Store, config: SiteConfig, calibration: Calibration) -> Iterator[KnownJob]:
    """Yield what is known of each job with enough runs, under the site's margins.

    Raises:
        StoreError: the store cannot be read.
    """
    rows = store.rows(_NAMES, {"cluster": config.cluster})
    names = {(job_id, start_s): (name, folder) for job_id, start_s, _, name, folder in rows if name and folder}
    runs: dict[tuple[str, str, str], list[Evidence]] = {}
    for user, shown_id, start_s, gres, run, _ in measured_runs(store, config.cluster, config):
        named = names.get((shown_id, start_s))
        mode = mode_of(run, gres)
        if named is not None and mode:
            runs.setdefault((user, *named), []).append(as_run_of(run, "", mode))
    for (user, name, folder), evidence in runs.items():
        try:
            uid = pwd.getpwnam(user).pw_uid
        except KeyError:  # a user who is gone
            continue
        job = _known(uid, name, folder, evidence, config, calibration)
        if job is not None and not os.path.lexists(off_path(config.paths.state, uid)):
            yield job


def mode_of(run: Evidence, gres: str) -> str:
    """Return how a run had its one GPU or piece of one; empty where it had more, or nobody knows what."""
    try:
        quantities = [(item.name, item.quantity) for item in parse_tres_gres(gres)]
    except InputError:
        return ""
    if quantities == [("gpu", 1)]:
        return run.mode or SharingMode.EXCLUSIVE
    return _SHARED.get(quantities[0][0], "") if len(quantities) == 1 else ""


def _known(
    uid: int, name: str, folder: str, evidence: Iterable[Evidence], config: SiteConfig, calibration: Calibration
) -> KnownJob | None:
    runs = sorted(evidence, key=lambda run: run.ended_s)
    footprint = from_runs(Question(runs=[_as_bound(run, runs) for run in runs], calibration=calibration))
    if isinstance(footprint, Reason) or footprint.gpu_mem_peak_mib is None or footprint.sm_active_pct is None:
        return None
    if footprint.evidence_count < LEAST_RUNS or why_whole(runs, config.sharing.max_slowdown):
        return None
    longest_s = max((run.elapsed_s or 0.0) for run in runs)
    return KnownJob(
        uid,
        name,
        folder,
        math.ceil(footprint.gpu_mem_peak_mib.q99),
        math.ceil(footprint.sm_active_pct.q95),
        math.ceil(longest_s * _MARGIN_TIME / 60),
        footprint.evidence_count,
        footprint.gpu_model,
    )


def _as_bound(run: Evidence, runs: Iterable[Evidence]) -> Evidence:
    """Return a run that shows no peak as one that only bounds the answer from below.

    Whether one that failed on a slice wanted more of it, nobody says: unless a later one completed there, it did.
    """
    if run.state == COMPLETED:
        # Its peak is one if nearly all of its time was sampled.
        elapsed_s = run.elapsed_s or 0.0
        is_whole = elapsed_s - run.sampled_s <= max(_MISSED_S, _MISSED_PART * elapsed_s)
        return run if is_whole else run._replace(state="")
    survived = any(
        later.state == COMPLETED and later.mode == run.mode and later.ended_s > run.ended_s for later in runs
    )
    if run.state in _FAILED and run.mode == SharingMode.MIG and not survived:
        return run._replace(gpu_mem_peak_mib=run.gpu_mem_total_mib or run.gpu_mem_peak_mib)
    return run
