# SPDX-License-Identifier: Apache-2.0
"""One file for each decision and for each run's evidence, dropped by whoever made it.

No lock and no shared file: safe on NFS and Lustre, and what one writer leaves behind never harms another's.
"""

import json
import os
from typing import Any, NamedTuple, get_origin

from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.files import private_folder, read_bounded, write_atomic
from slurm_colloc.model import Decision, Evidence

_LIMIT_BYTES = 256 * 1024
# What a SQLite INTEGER holds; a longer number breaks whoever stores it.
_LARGEST = 2**63
# More runs than this say nothing new about the next one.
_RUNS_KEPT = 20


class EvidenceFound(NamedTuple):
    """Evidence read back; ``unreadable`` counts files that were there and could not be used."""

    evidence: tuple[Evidence, ...]
    unreadable: int


def evidence_path(folder: str, signature: str, job_id: str) -> str:
    """Return where the evidence of one run lies."""
    return os.path.join(folder, "evidence", signature, f"{job_id}.json")


def drop_evidence(folder: str, evidence: Evidence) -> None:
    """Write or replace the evidence of one run.

    Raises:
        StoreError: the folder cannot be written.
    """
    path = evidence_path(folder, evidence.signature, evidence.job_id)
    for parent in (folder, os.path.join(folder, "evidence"), os.path.dirname(path)):
        private_folder(parent)
    write_atomic(path, json.dumps(evidence._asdict()).encode())


def read_evidence(folder: str, signature: str) -> EvidenceFound:
    """Return the newest runs of one signature, oldest first; a missing folder is no evidence."""
    runs = os.path.join(folder, "evidence", signature)
    try:
        with os.scandir(runs) as entries:
            # Not followed: one dangling link must not look like "no folder", which is "no evidence".
            newest = sorted(
                (entry.stat(follow_symlinks=False).st_mtime, entry.path)
                for entry in entries
                if entry.name.endswith(".json")
            )
    except FileNotFoundError:
        return EvidenceFound((), 0)
    except OSError as error:
        raise StoreError(f"evidence in '{runs}' cannot be read: {error.strerror}") from error
    found, unreadable = [], 0
    for _, path in newest[-_RUNS_KEPT:]:
        try:
            found.append(parse_evidence(read_bounded(path, _LIMIT_BYTES)))
        except (StoreError, InputError):
            unreadable += 1
    return EvidenceFound(tuple(found), unreadable)


def parse_evidence(content: bytes) -> Evidence:
    """Return the Evidence in a dropped file.

    Raises:
        InputError: not JSON, a field is missing, or of the wrong kind.
    """
    try:
        return Evidence(**_checked(json.loads(content), Evidence))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"evidence file is not of the expected form: {error}") from error


def drop_decision(folder: str, decision: Decision) -> str:
    """Write one decision and return its path.

    Raises:
        StoreError: the folder cannot be written.
    """
    private_folder(folder)
    path = os.path.join(folder, f"{decision.at_s:.6f}-{os.getpid()}.json")
    write_atomic(path, json.dumps(decision._asdict()).encode())
    return path


def read_decisions(folder: str) -> tuple[list[Decision], int]:
    """Return one user's decisions, oldest first, and how many files could not be used; no folder is no decisions.

    Raises:
        StoreError: the folder cannot be read.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise StoreError(f"decisions in '{folder}' cannot be read: {error.strerror}") from error
    found, unreadable = [], 0
    for name in names:
        try:
            found.append(parse_decision(read_bounded(os.path.join(folder, name), _LIMIT_BYTES)))
        except (StoreError, InputError):
            unreadable += 1
    return found, unreadable


def parse_decision(content: bytes) -> Decision:
    """Return the Decision in a dropped file.

    Raises:
        InputError: not JSON, a field is missing, or of the wrong kind.
    """
    try:
        values = _checked(json.loads(content), Decision)
        if not all(_fits(reason, str) for reason in values["reasons"]):
            raise ValueError("a reason is not a text")
        return Decision(**{**values, "reasons": tuple(values["reasons"])})
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"decision file is not of the expected form: {error}") from error


def _checked(values: object, kind: type[Evidence] | type[Decision]) -> dict[str, Any]:
    """Return ``values`` if they are just the fields of ``kind``, each a scalar of its kind and no NaN."""
    if not isinstance(values, dict) or set(values) != set(kind._fields):
        raise ValueError("the fields differ from this release's")
    for name, annotation in kind.__annotations__.items():
        if not _fits(values[name], annotation):
            raise ValueError(f"field '{name}' holds '{values[name]}'")
    return values


def _fits(value: object, annotation: Any) -> bool:
    if get_origin(annotation) is tuple:
        return isinstance(value, list)
    if isinstance(value, bool):
        return annotation is bool
    if isinstance(value, str):
        # A lone surrogate is text to Python and to nobody it is handed on to: SQLite, Parquet, a terminal.
        return isinstance(value, annotation) and not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, int) and 0 <= value < _LARGEST:
        return isinstance(value, annotation) or isinstance(float(value), annotation)
    if isinstance(value, float):
        return isinstance(value, annotation) and 0 <= value < float("inf")
    return isinstance(value, annotation) and not isinstance(value, int)
