# SPDX-License-Identifier: Apache-2.0
"""Evidence of earlier runs of the same job, from the user's own drops and the site's snapshot."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.errors import CollocError, StoreError
from slurm_colloc.core.model import COMPLETED, GPU_OOM, Evidence, Reason, because
from slurm_colloc.estimate.records import (
    UNKNOWN,
    EvidenceFound,
    drop_evidence,
    forgotten_s,
    in_order,
    is_folded,
    latest_s,
    peak_mib,
    read_evidence,
    signatures_of_family,
    tells_all,
)
from slurm_colloc.estimate.signature import Parts, is_relative, is_same, parts_of
from slurm_colloc.estimate.snapshot import read_relatives, read_snapshot, signatures_kept, snapshot_path
from slurm_colloc.slurm.parse import FINAL_STATES

# How a run ended, by Slurm or by what its sampler saw.
ENDED = FINAL_STATES | {GPU_OOM}
# Slurm is asked for so long how a run ended.
_ASKED_FOR_S = 86400.0
# Each is a folder to look into, and those of the nearest size tell most.
_RELATIVES_READ = 40
_Read = TypeVar("_Read")
_Key = TypeVar("_Key")


class Known(NamedTuple):
    """Evidence of earlier runs of a job and, where none of those tells all of it, of its relatives; and notes on what
    could not be used. ``by_command`` has past jobs of the same command, looked for if neither has completed;
    ``running`` is the evidence of those runs that Slurm says are not over.
    """

    evidence: tuple[Evidence, ...]
    notes: tuple[Reason, ...]
    relatives: tuple[Evidence, ...] = ()
    by_command: tuple[Evidence, ...] = ()
    running: tuple[Evidence, ...] = ()


def look_up(
    config: SiteConfig,
    signature: str,
    job_states: Callable[[Sequence[str]], Mapping[str, str]] | None,
    command: str = "",
) -> Known:
    """Return the evidence for ``signature``; a file that cannot be read becomes a note, never an error.

    Args:
        config: the site.
        signature: the job to be submitted.
        job_states: asks Slurm for the states of job ids; called at most once for the job and once for its relatives,
            and only for runs that a sampler left without an end. None: those are left as they are.
        command: the key of past jobs whose script is not known; empty: they are not looked for.
    """
    reader = _Reader(config, job_states)
    parts = parts_of(signature)
    # One look tells of most jobs that nothing of theirs is kept here.
    names = reader.names(parts.family) if parts else [signature]
    dropped = [signature] if signature in names else []
    if dropped:
        reader.look_from(signature)
    own = reader.read(read_snapshot, signature, dropped)
    relatives: tuple[Evidence, ...] = ()
    if parts is not None and not parts.is_certain:
        # Nobody knows whether files that were not looked at are still the same.
        own, relatives = (), in_order([*own, *_of_family(reader, signature, parts, (), names)[1]])
    elif parts is not None and not any(map(tells_all, own)):
        own, relatives = _of_family(reader, signature, parts, own, names)
    by_command: tuple[Evidence, ...] = ()
    if command and not any(run.state == COMPLETED for run in (*own, *relatives)):
        by_command = reader.read(read_snapshot, command, [command])
    running = tuple(run for run in own if run in reader.running)
    return Known(own, tuple(reader.notes), relatives, by_command, running)


def _of_family(
    reader: "_Reader", signature: str, parts: Parts, own: Sequence[Evidence], names: Sequence[str]
) -> tuple[tuple[Evidence, ...], tuple[Evidence, ...]]:
    """Return the job's runs, those of the same job started elsewhere among them, and those of its relatives."""
    all_names = {*names, *reader.kept(parts.family)} - {signature}
    by_distance = sorted(
        (_distance(parts, other), name) for name in all_names if (other := parts_of(name)) and is_relative(parts, other)
    )
    nearest = [name for _, name in by_distance[:_RELATIVES_READ]]
    runs_read = reader.read(read_relatives, nearest, [name for name in nearest if name in names])
    relatives = {run: other for run in runs_read if (other := parts_of(run.signature)) and is_relative(parts, other)}
    # The same program started from another folder is the same job.
    same = [run for run, other in relatives.items() if is_same(parts, other)]
    return in_order([*own, *same]), in_order(run for run in relatives if run not in same)


def _distance(one: Parts, other: Parts) -> tuple[int, float]:
    """Return how many numbers of two relatives differ, and by how much: the closest of many are read."""
    pairs = [pair for pair in zip(one.values or (), other.values or (), strict=False) if pair[0] != pair[1]]
    return len(pairs), sum(abs(a - b) / max(abs(a), abs(b)) for a, b in pairs)


class _Reader:
    """Reads what the site's snapshot and the user's own drops hold, and gathers notes of what could not be read."""

    def __init__(self, config: SiteConfig, job_states: Callable[[Sequence[str]], Mapping[str, str]] | None) -> None:
        self._snapshot = snapshot_path(config.paths.state, os.geteuid()) if config.paths.state else ""
        self._job_states = job_states
        self.notes: list[Reason] = []
        self.running: set[Evidence] = set()
        self._forgotten_s: dict[str, float] = {}

    def _note(self, note: Reason) -> None:
        """Keep a note, once: one snapshot is asked several times."""
        if note not in self.notes:
            self.notes.append(note)

    def _or_note(self, read: Callable[[], _Read], otherwise: _Read) -> _Read:
        """Return what is read, or else make a note of why it cannot be and go on without it."""
        try:
            return read()
        except CollocError as error:
            self._note(because("history-error", error=str(error)))
            return otherwise

    def names(self, family: str) -> list[str]:
        """Return the signatures of a family of which the user's own folder keeps anything."""
        return self._or_note(partial(signatures_of_family, user_data_folder(), family), [])

    def kept(self, family: str) -> list[str]:
        """Return the signatures of a family that the site's snapshot has."""
        return self._or_note(partial(signatures_kept, self._snapshot, family), []) if self._snapshot else []

    def look_from(self, signature: str) -> None:
        """Keep from when on the runs of a signature count."""
        from_s = self._or_note(partial(forgotten_s, user_data_folder(), signature), 0.0)
        self._forgotten_s[signature] = from_s
        if from_s > latest_s():  # a clock was wrong; counting what is to be forgotten would be worse
            self._note(because("forgotten-ahead", signature=signature))

    def read(
        self, of_snapshot: Callable[[str, _Key], EvidenceFound], key: _Key, signatures: Sequence[str]
    ) -> tuple[Evidence, ...]:
        """Return runs by one query of the snapshot, and the dropped ones of some signatures."""
        evidence: dict[str, Evidence] = {}
        if self._snapshot:
            snapshot = self._or_note(partial(of_snapshot, self._snapshot, key), EvidenceFound((), 0))
            evidence.update({run.job_id: run for run in snapshot.evidence})
            if snapshot.unreadable:
                self._note(because("runs-impossible", runs=snapshot.unreadable, path=self._snapshot))
        none: Sequence[Evidence] = ()
        for run in self._or_note(partial(self._dropped, signatures), none):
            # A run whose end nobody could tell does not displace the same run with its end known; the larger
            # counts of two records that stand for old runs.
            earlier = evidence.get(run.job_id)
            is_less = earlier is not None and is_folded(run) and peak_mib(run) < peak_mib(earlier)
            if earlier is None or (run.state in ENDED and not is_less):
                evidence[run.job_id] = run
        # Only of a job of which something is known may the user have forgotten something.
        for signature in set(signatures) & {run.signature for run in evidence.values()} - set(self._forgotten_s):
            self.look_from(signature)
        return in_order(run for run in evidence.values() if run.ended_s > self._forgotten_s.get(run.signature, 0.0))

    def _dropped(self, signatures: Sequence[str]) -> Sequence[Evidence]:
        reads = [read_evidence(user_data_folder(), signature) for signature in signatures]
        if unreadable := sum(one.unreadable for one in reads):
            self._note(because("evidence-unreadable", files=unreadable))
        dropped = [run for one in reads for run in one.evidence]
        return dropped if self._job_states is None else _settle(dropped, self._job_states, self.running)


def _settle(
    evidence: Sequence[Evidence], job_states: Callable[[Sequence[str]], Mapping[str, str]], running: set[Evidence]
) -> list[Evidence]:
    """Give runs that a sampler left open the end state Slurm knows, and keep it so that it is asked for no more.

    Those that Slurm says still run are added to ``running``.
    """
    open_runs = [item.job_id for item in evidence if item.state not in ENDED and item.state != UNKNOWN]
    states = job_states(open_runs) if open_runs else {}
    settled = []
    for item in evidence:
        forgotten = item.job_id in open_runs and now() - item.ended_s > _ASKED_FOR_S
        state = states.get(item.job_id, UNKNOWN if forgotten else item.state)
        if state != item.state and (state in ENDED or state == UNKNOWN):
            item = item._replace(state=state)
            # A full disk leaves the answer in use all the same, and it is asked for again next time.
            with suppress(StoreError):
                drop_evidence(user_data_folder(), item)
        settled.append(item)
        if states.get(item.job_id) == "RUNNING":
            running.add(item)
    return settled
