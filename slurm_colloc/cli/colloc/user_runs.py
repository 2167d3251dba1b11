# SPDX-License-Identifier: Apache-2.0
"""One user's runs, each judged, of a store that somebody keeps up to date, else of Slurm itself."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from slurm_colloc.cli.colloc.output import state_folder
from slurm_colloc.cli.colloc.visible_store import visible_here
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.errors import CollocError, InputError
from slurm_colloc.core.model import Evidence
from slurm_colloc.estimate.lookup import look_up
from slurm_colloc.estimate.records import own_decisions
from slurm_colloc.facts.fits import with_fitted
from slurm_colloc.facts.judgement import Judgement, judge
from slurm_colloc.facts.one_user import UserRuns, user_by_sacct, user_in_store, with_evidence
from slurm_colloc.slurm.job_visibility import Visible, own_name
from slurm_colloc.store.store import Store, open_store
from slurm_colloc.store.window import Window

# sacct of one user and a month.
_SACCT_TIMEOUT_S = 60.0
# Each is a file to read; jobs submitted longer ago than the last so many are left to the store.
_SIGNATURES = 200


class JudgedRuns(NamedTuple):
    """A judgement of each run with a GPU, the number of those that had none, and the source of the runs."""

    said: Sequence[Judgement]
    without_gpu: int
    source: str


def judged_runs(store: str, user: str, window: Window, config: SiteConfig | None) -> JudgedRuns:
    """Return a user's runs from the store in a folder, or where that is empty the site's.

    Raises:
        InputError: neither a store nor Slurm has them.
    """
    user_runs, source = _runs(store or state_folder("store"), user, window, config)
    # csub keeps evidence of one's own runs alone.
    mine = config and user == own_name()
    evidence = kept_evidence(config) if config and mine and any(not run.usage.methods for run in user_runs.runs) else {}
    runs = [with_evidence(run, evidence.get(run.usage.job_id_raw)) for run in user_runs.runs]
    return JudgedRuns(
        [judge(run) for run in (with_fitted(runs, config) if config else runs)], user_runs.without_gpu, source
    )


def _runs(folder: str, user: str, window: Window, config: SiteConfig | None) -> tuple[UserRuns, str]:
    """Return a user's runs and where they are from: a store that somebody keeps up to date, else Slurm itself."""

    mine = user == own_name()

    def stored() -> tuple[UserRuns, str]:
        visible = Visible(False, user) if mine else visible_here(folder, config)
        source = open_store(folder, config, visible=visible)
        part = "" if mine or visible.everybody else f", {visible.whose}"
        return user_in_store(source, user, window, config), f"samples and accounting in the store '{folder}'{part}"

    def by_sacct() -> tuple[UserRuns, str]:
        user_runs = user_by_sacct(Store(folder, config), user, window, config, _SACCT_TIMEOUT_S, os.environ)
        return user_runs, "sacct, and what csub measured in your jobs" if mine else "sacct"

    ways = [stored, by_sacct]
    if folder == os.path.join(user_data_folder(), "store"):
        # One's own store is as old as one's last ingest.
        ways.reverse()
    reasons: list[str] = []
    for way in ways:
        try:
            return way()
        except CollocError as error:
            reasons.append(str(error))
    raise InputError("; and in its place: ".join(reasons))


def kept_evidence(config: SiteConfig) -> dict[str, Evidence]:
    """Return what csub keeps of one's own jobs, by their ids."""
    decisions, _ = own_decisions(config)
    signatures = dict.fromkeys(decision.signature for decision in reversed(decisions) if not decision.is_pack)
    evidence: dict[str, Evidence] = {}
    for signature in list(signatures)[:_SIGNATURES]:
        evidence |= {run.job_id: run for run in look_up(config, signature, None).evidence}
    return evidence
