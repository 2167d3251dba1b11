# SPDX-License-Identifier: Apache-2.0
"""Until when the past of a job does not count, by its user's word: one small file beside the job's evidence."""

import math
import os

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import read_own, write_atomic
from slurm_colloc.estimate.records import evidence_path, make_folders

_NAME = "forgotten"
_LIMIT_BYTES = 64


def forgotten_s(folder: str, signature: str) -> float:
    """Return up to when ended runs of a signature do not count; 0 where nothing was forgotten.

    Raises:
        StoreError: it cannot be read, or is damaged.
    """
    path = _path(folder, signature)
    if not os.path.lexists(path):
        return 0.0
    try:
        found = float(read_own(path, _LIMIT_BYTES))
        if not math.isfinite(found):
            raise ValueError("it is no time")
    except (StoreError, ValueError) as error:
        raise StoreError(
            f"what was forgotten of this job in '{path}' cannot be used: {error}; forget it again"
        ) from error
    return found


def forget(folder: str, signature: str, at_s: float) -> int:
    """Drop a signature's own evidence, and say that what is known elsewhere up to ``at_s`` does not count.

    Returns how many files went.

    Raises:
        StoreError: the folder cannot be written.
    """
    path = _path(folder, signature)
    make_folders(folder, path)
    write_atomic(path, f"{at_s!r}\n".encode())
    runs = os.path.dirname(path)
    try:
        names = [name for name in os.listdir(runs) if name.endswith(".json")]
        for name in names:
            os.unlink(os.path.join(runs, name))
    except OSError as error:
        raise StoreError(f"evidence in '{runs}' cannot be removed: {error.strerror}") from error
    return len(names)


def _path(folder: str, signature: str) -> str:
    return os.path.join(os.path.dirname(evidence_path(folder, signature, "0")), _NAME)
