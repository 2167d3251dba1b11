# SPDX-License-Identifier: Apache-2.0
"""Old runs of a job folded into few records, so that a history does not grow without bound.

The completed run with the largest peak on one GPU model stays, standing for all of them; so does one of the others,
whose peak is a bound. The newest runs stay whole.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from slurm_colloc.core.clock import now
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import PRIVATE_FILE
from slurm_colloc.core.model import COMPLETED, GPU_OOM, Evidence
from slurm_colloc.estimate.records import (
    OLDER,
    RUNS_KEPT,
    RUNS_READ,
    UNKNOWN,
    drop_evidence,
    files_in,
    has_samples,
    in_order,
    is_folded,
    parse_evidence,
    peak_mib,
    runs_folder,
)
from slurm_colloc.slurm.parse import FINAL_STATES

_ENDED = FINAL_STATES | {GPU_OOM, UNKNOWN}

# Runs whose end is not known yet stay whole, as many as csub reads: it may still learn that they completed.
_OPEN_KEPT = RUNS_READ
# A record has the largest value of each among the runs that it stands for.
_LARGEST = (
    *("sm_active_mean_pct", "sm_active_q95_pct", "dram_active_q95_pct", "elapsed_s", "cpu_cores_q95"),
    *("host_mem_peak_mib", "busy_mean_pct"),
)
# Each process that folds a folder's files marks it so; after so long it was left behind.
_MARK, _STALE_S = "folding", 3600.0


def fold(runs: Iterable[Evidence]) -> list[Evidence]:
    """Return the runs of one signature, oldest first, the newest of them whole and the others folded.

    Folding what was folded before with runs that it holds already counts those once.
    """
    ordered = in_order(runs)
    before = list(filter(is_folded, ordered))
    single = [run for run in ordered if not is_folded(run)]
    old, newest = single[:-RUNS_KEPT], single[-RUNS_KEPT:]
    groups: dict[str, list[Evidence]] = {}
    for run in [*before, *old]:
        groups.setdefault(_group(run), []).append(run)
    return list(in_order([*(_one(name, group) for name, group in groups.items()), *newest]))


def _group(run: Evidence) -> str:
    if is_folded(run):
        return run.job_id
    is_peak = run.state == COMPLETED and run.gpu_mem_peak_mib is not None
    state = run.state if not is_peak or has_samples(run) else "bound"
    model = "".join(letter if letter.isalnum() else "-" for letter in run.gpu_model)
    return f"{OLDER}{state}-{run.mode}-{model}"[:120]


def _one(name: str, runs: Sequence[Evidence]) -> Evidence:
    if len(runs) == 1:
        return runs[0]
    folded = next(filter(is_folded, runs), None)
    # The files that an interrupted fold has left behind are in the folded record already.
    new = [run for run in runs if run is not folded and (folded is None or run.ended_s > folded.ended_s)]
    largest = max(runs, key=peak_mib)
    counted = ([folded] if folded else []) + new

    def most(name: str) -> Any:
        return max((value for run in runs if (value := getattr(run, name)) is not None), default=None)

    return largest._replace(
        job_id=name,
        run_count=sum(run.run_count for run in counted),
        ended_s=most("ended_s"),
        sm_is_bound=any(run.sm_is_bound for run in runs),
        sampled_s=sum(run.sampled_s for run in counted),
        **{field: most(field) for field in _LARGEST},
    )


def _but_open(runs: Iterable[Evidence]) -> list[Evidence]:
    ordered = in_order(runs)
    waiting = [run for run in ordered if run.state not in _ENDED]
    lost = [run._replace(state=UNKNOWN) for run in waiting[:-_OPEN_KEPT]]
    return [*fold([*(run for run in ordered if run.state in _ENDED), *lost]), *waiting[-_OPEN_KEPT:]]


def bounded(evidence: Iterable[Evidence], most: int) -> list[Evidence]:
    """Return one user's runs, folded, and of the signatures those that ran last, so that there are at most ``most``."""
    by_signature: dict[str, list[Evidence]] = {}
    for run in evidence:
        by_signature.setdefault(run.signature, []).append(run)
    folded = sorted(map(fold, by_signature.values()), key=lambda runs: runs[-1].ended_s, reverse=True)
    runs_kept: list[Evidence] = []
    for runs in folded:
        if len(runs_kept) + len(runs) > most:
            break
        runs_kept += runs
    return runs_kept


def fold_drops(folder: str, signature: str) -> int:
    """Fold what a user's samplers have dropped for one signature; return how many files went.

    Nothing is done if another folds them already; interrupted, it loses nothing: the folded record is written before
    files go.

    Raises:
        StoreError: the folder cannot be read or written.
    """
    runs = runs_folder(folder, signature)
    try:
        # A third more than are kept, lest each run of the job does this.
        if sum(name.endswith(".json") for name in os.listdir(runs)) <= RUNS_KEPT * 4 // 3:
            return 0
        with _alone(runs) as alone:
            return _fold_folder(folder, runs) if alone else 0
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreError(f"evidence in '{runs}' cannot be folded: {error.strerror}") from error


@contextmanager
def _alone(runs: str) -> Iterator[bool]:
    """Say whether nobody else folds here; no lock of the file system's, which may hang, and nobody waits."""
    mark = os.path.join(runs, _MARK)
    with suppress(FileNotFoundError):
        # A process that was killed has left it behind; a clock may have gone back since.
        if abs(now() - os.lstat(mark).st_mtime) > _STALE_S:
            os.unlink(mark)
    try:
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))
    except FileExistsError:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(FileNotFoundError):
            os.unlink(mark)


def _fold_folder(folder: str, runs: str) -> int:
    names = [name for name in os.listdir(runs) if name.endswith(".json")]
    # read_evidence counts what cannot be used.
    by_file = {name: run for name, run in files_in(runs, names, parse_evidence) if run}
    runs_kept = _but_open(by_file.values())
    for run in filter(is_folded, runs_kept):
        drop_evidence(folder, run)
    ids = {run.job_id for run in runs_kept}
    gone = [name for name, run in by_file.items() if run.job_id not in ids]
    for name in gone:
        os.unlink(os.path.join(runs, name))
    return len(gone)
