# SPDX-License-Identifier: Apache-2.0
"""The table of known jobs that job_submit.lua reads (plugin/colloc_table.lua): one text, nothing of which is parsed.

A header of HEADER_BYTES, then records of RECORD_BYTES, sorted by key:

    colloc-policy-table VERSION MADE_S COUNT CHECKSUM
    KEY MEM_MIB SM_PCT MINUTES RUNS MODEL

A key is the uid in ten digits and two hashes of job name and working folder, in arithmetic that Lua 5.1 has: no step
passes 2**53. They can be forged, but the uid stands in clear: a forger deceives nobody else.
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

VERSION = 1
# It lies on the own disk of slurmctld's host: slurmctld waits for it while it holds its locks.
PLACE = "/var/lib/slurm_colloc/policy.table"
HEADER_BYTES, RECORD_BYTES = 64, 69
# plugin/colloc_table.lua refuses more.
MOST_BYTES = 16 * 1024 * 1024
MOST_RECORDS = (MOST_BYTES - HEADER_BYTES) // RECORD_BYTES
_MOST_NAME_BYTES, _MOST_FOLDER_BYTES, _MOST_UID = 256, 1024, 2**32 - 1
# Primes below 2**44, and factors.
_HASHES = ((2**44 - 17, 257), (2**44 - 117, 263))
_MODEL_DIGITS = 8
_MOST_MIB, _MOST_PCT, _MOST_MIN, _MOST_RUNS = 9_999_999, 9999, 9_999_999, 99_999


class KnownJob(NamedTuple):
    """Bounds on the jobs of one user under one name in one folder, each with its margin."""

    uid: int
    name: str
    folder: str
    mem_mib: int
    sm_pct: int
    run_time_min: int
    runs: int
    gpu_model: str


def text_hash(text: bytes) -> str:
    """Return 22 hexadecimal digits, as ``hash`` of colloc_table.lua does."""
    return "".join(f"{_hash(text, modulus, factor):011x}" for modulus, factor in _HASHES)


def model_hash(gpu_model: str) -> str:
    """Return what a GPU model is called in the table and in colloc.lua."""
    return text_hash(gpu_model.encode(errors="surrogateescape"))[-_MODEL_DIGITS:]


def job_key(uid: int, name: str, folder: str) -> str | None:
    """Return what a job is found by, None of one that is not kept; as ``key`` of colloc_table.lua does."""
    named, placed = (text.encode(errors="surrogateescape") for text in (name, folder))
    if not 0 <= uid <= _MOST_UID or len(named) > _MOST_NAME_BYTES or len(placed) > _MOST_FOLDER_BYTES:
        return None
    # Accounting has a job called 'say "x"' as 'say `x`' (measured); slurmctld has it as it was typed.
    known_by = (named + bytes(1) + placed).replace(b'"', b"`")
    return f"{uid:010d}{text_hash(known_by)}"


def table_text(jobs: Iterable[KnownJob], made_s: float) -> bytes:
    """Return the table of these jobs: the larger of two with one key, and of too many those that ran most often."""
    by_key: dict[str, KnownJob] = {}
    for job in jobs:
        key = job_key(job.uid, job.name, job.folder)
        fits = job.mem_mib <= _MOST_MIB and job.sm_pct <= _MOST_PCT and job.run_time_min <= _MOST_MIN
        if key is not None and fits and (key not in by_key or by_key[key].mem_mib < job.mem_mib):
            by_key[key] = job
    keys = sorted(sorted(by_key, key=lambda key: -by_key[key].runs)[:MOST_RECORDS])
    body = "".join(_record(key, by_key[key]) for key in keys).encode()
    checksum = hashlib.sha256(body).hexdigest()[:16]
    header = f"colloc-policy-table {VERSION} {int(made_s):010d} {len(keys):07d} {checksum}"
    return f"{header:<{HEADER_BYTES - 1}}\n".encode() + body


def _hash(text: bytes, modulus: int, factor: int) -> int:
    value = 1
    for byte in text:
        value = (value * factor + byte) % modulus
    return value


def _record(key: str, job: KnownJob) -> str:
    runs = min(job.runs, _MOST_RUNS)
    numbers = f"{job.mem_mib:07d} {job.sm_pct:04d} {job.run_time_min:07d} {runs:05d}"
    return f"{key} {numbers} {model_hash(job.gpu_model)}\n"
