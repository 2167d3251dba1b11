# SPDX-License-Identifier: Apache-2.0
"""What is known of earlier runs of the same job, from the user's own drops and the site's snapshot."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig, user_data_folder
from slurm_colloc.errors import CollocError, StoreError
from slurm_colloc.history.records import drop_evidence, read_evidence
from slurm_colloc.history.snapshot import read_snapshot, snapshot_path
from slurm_colloc.model import GPU_OOM, Evidence
from slurm_colloc.slurm.parse import FINAL_STATES

# Of a run whose end Slurm has forgotten; it is asked for no longer than a day.
UNKNOWN = "UNKNOWN"
_ASKED_FOR_S = 86400.0
_ENDED = FINAL_STATES | {GPU_OOM}


class Known(NamedTuple):
    """Evidence of earlier runs, and notes on what could not be used."""

    evidence: tuple[Evidence, ...]
    notes: tuple[str, ...]


def look_up(
    config: SiteConfig, signature: str, job_states: Callable[[Sequence[str]], Mapping[str, str]] | None
) -> Known:
    """Return the evidence for ``signature``; what cannot be read becomes a note, never an error.

    Args:
        config: the site.
        signature: of the job to be submitted.
        job_states: asks Slurm for the states of job ids; called at most once, and only for runs that a sampler left
            without an end. None: those are left as they are.
    """
    notes: list[str] = []
    evidence: dict[str, Evidence] = {}
    folder = user_data_folder()
    try:
        if config.paths.state:
            snapshot = read_snapshot(snapshot_path(config.paths.state, os.geteuid()), signature)
            evidence.update({item.job_id: item for item in snapshot})
    except StoreError as error:
        notes.append(str(error))
    try:
        dropped = read_evidence(folder, signature)
        if dropped.unreadable:
            notes.append(f"{dropped.unreadable} evidence files of this job could not be used")
        runs = dropped.evidence if job_states is None else _settle(folder, dropped.evidence, job_states)
        for item in runs:
            # A run whose end nobody could tell does not displace the same run with its end known.
            if item.state in _ENDED or item.job_id not in evidence:
                evidence[item.job_id] = item
    except CollocError as error:
        notes.append(str(error))
    return Known(tuple(sorted(evidence.values(), key=lambda item: item.ended_s)), tuple(notes))


def _settle(
    folder: str, evidence: Sequence[Evidence], job_states: Callable[[Sequence[str]], Mapping[str, str]]
) -> list[Evidence]:
    """Give runs that a sampler left open the end state Slurm knows, and keep it so that it is asked for no more."""
    open_runs = [item.job_id for item in evidence if item.state not in _ENDED and item.state != UNKNOWN]
    states = job_states(open_runs) if open_runs else {}
    settled = []
    for item in evidence:
        forgotten = item.job_id in open_runs and now() - item.ended_s > _ASKED_FOR_S
        state = states.get(item.job_id, UNKNOWN if forgotten else item.state)
        if state != item.state and (state in _ENDED or state == UNKNOWN):
            item = item._replace(state=state)
            # On a full disk the answer is used all the same, and asked for again next time.
            with suppress(StoreError):
                drop_evidence(folder, item)
        settled.append(item)
    return settled
