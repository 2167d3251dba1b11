# SPDX-License-Identifier: Apache-2.0
"""What is known of earlier runs of the same job, from the user's own drops and the site's snapshot."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig, user_data_folder
from slurm_colloc.errors import CollocError, StoreError
from slurm_colloc.history.records import drop_evidence, read_evidence, signatures_of_family
from slurm_colloc.history.signature import is_relative, is_same, parts_of
from slurm_colloc.history.snapshot import read_family, read_snapshot, snapshot_path
from slurm_colloc.model import COMPLETED, GPU_OOM, Evidence
from slurm_colloc.slurm.parse import FINAL_STATES

# Of a run whose end Slurm has forgotten; it is asked for no longer than a day.
UNKNOWN = "UNKNOWN"
_ASKED_FOR_S = 86400.0
# Each is a folder to look into.
_RELATIVES_READ = 40
_ENDED = FINAL_STATES | {GPU_OOM}


class Known(NamedTuple):
    """Evidence of earlier runs of a job and, where none of those has completed, of its relatives; and notes on what
    could not be used.
    """

    evidence: tuple[Evidence, ...]
    notes: tuple[str, ...]
    relatives: tuple[Evidence, ...] = ()


def look_up(
    config: SiteConfig, signature: str, job_states: Callable[[Sequence[str]], Mapping[str, str]] | None
) -> Known:
    """Return the evidence for ``signature``; what cannot be read becomes a note, never an error.

    Args:
        config: the site.
        signature: of the job to be submitted.
        job_states: asks Slurm for the states of job ids; called at most once for the job and once for its relatives,
            and only for runs that a sampler left without an end. None: those are left as they are.
    """
    reader = _Reader(config, job_states)
    own = reader.read(read_snapshot, signature, [signature])
    parts = parts_of(signature)
    if parts is None or any(run.state == COMPLETED for run in own):
        return Known(own, tuple(reader.notes))
    names: list[str] = []
    try:
        names = signatures_of_family(user_data_folder(), parts.family)
    except StoreError as error:
        reader.notes.append(str(error))
    wanted = [name for name in names if name != signature and (other := parts_of(name)) and is_relative(parts, other)]
    found = reader.read(read_family, parts.family, wanted[:_RELATIVES_READ])
    others = [(run, other) for run in found if run.signature != signature and (other := parts_of(run.signature))]
    # The same program started from another folder is the same job.
    same = [run for run, other in others if is_same(parts, other)]
    relatives = [run for run, other in others if not is_same(parts, other) and is_relative(parts, other)]
    return Known(_in_order([*own, *same]), tuple(reader.notes), _in_order(relatives))


def _in_order(runs: Iterable[Evidence]) -> tuple[Evidence, ...]:
    return tuple(sorted(runs, key=lambda run: run.ended_s))


class _Reader:
    """Reads what the site's snapshot and the user's own drops hold, and gathers notes of what could not be read."""

    def __init__(self, config: SiteConfig, job_states: Callable[[Sequence[str]], Mapping[str, str]] | None) -> None:
        self._state_folder = config.paths.state
        self._job_states = job_states
        self.notes: list[str] = []

    def read(
        self, of_snapshot: Callable[[str, str], tuple[Evidence, ...]], key: str, signatures: Sequence[str]
    ) -> tuple[Evidence, ...]:
        """Return runs by one query of the snapshot, and the dropped ones of some signatures."""
        evidence: dict[str, Evidence] = {}
        folder = user_data_folder()
        try:
            if self._state_folder:
                runs: Sequence[Evidence] = of_snapshot(snapshot_path(self._state_folder, os.geteuid()), key)
                evidence.update({run.job_id: run for run in runs})
        except StoreError as error:
            self.notes.append(str(error))
        try:
            dropped: list[Evidence] = []
            unreadable = 0
            for signature in signatures:
                found = read_evidence(folder, signature)
                dropped += found.evidence
                unreadable += found.unreadable
            if unreadable:
                self.notes.append(f"{unreadable} evidence files of this job could not be used")
            for run in dropped if self._job_states is None else _settle(folder, dropped, self._job_states):
                # A run whose end nobody could tell does not displace the same run with its end known.
                if run.state in _ENDED or run.job_id not in evidence:
                    evidence[run.job_id] = run
        except CollocError as error:
            self.notes.append(str(error))
        return _in_order(evidence.values())


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
