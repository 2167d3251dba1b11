# SPDX-License-Identifier: Apache-2.0
"""What a user has said of a job that csub knows: that its past does not count, or what it needs.

One small file beside the job's evidence, replaced whole.
"""

import json
import os
from typing import NamedTuple

from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.files import read_own, write_atomic
from slurm_colloc.history.records import evidence_path, make_folders
from slurm_colloc.kinds import fits

_NAME = "said"
_LIMIT_BYTES = 4096


class Said(NamedTuple):
    """Runs that ended up to ``forgotten_s`` do not count; ``hint`` is in the words of --gpu-footprint, said at
    ``at_s``.
    """

    forgotten_s: float = 0.0
    hint: str = ""
    at_s: float = 0.0


def read_said(folder: str, signature: str) -> Said:
    """Return what the user has said of the jobs of one signature; nothing where there is no file.

    Raises:
        StoreError: it cannot be read, or is damaged.
    """
    path = _path(folder, signature)
    if not os.path.lexists(path):
        return Said()
    try:
        values = json.loads(read_own(path, _LIMIT_BYTES))
        kinds = Said.__annotations__
        if not isinstance(values, dict) or set(values) != set(kinds):
            raise ValueError("the fields differ from this release's")
        if not all(fits(value, kinds[name]) for name, value in values.items()):
            raise ValueError("a value is of another kind")
        return Said(**values)
    except (StoreError, InputError, ValueError, RecursionError) as error:
        raise StoreError(f"what was said of this job in '{path}' cannot be used: {error}; say it again") from error


def write_said(folder: str, signature: str, said: Said) -> None:
    """Keep what the user has said.

    Raises:
        StoreError: the folder cannot be written.
    """
    path = _path(folder, signature)
    make_folders(folder, path)
    write_atomic(path, json.dumps(said._asdict()).encode())


def forget(folder: str, signature: str, at_s: float) -> int:
    """Drop a signature's own evidence, and say that what is known elsewhere up to ``at_s`` does not count.

    Returns how many files went.

    Raises:
        StoreError: the folder cannot be written.
    """
    write_said(folder, signature, Said(forgotten_s=at_s))
    runs = os.path.dirname(_path(folder, signature))
    try:
        names = [name for name in os.listdir(runs) if name.endswith(".json")]
        for name in names:
            os.unlink(os.path.join(runs, name))
    except OSError as error:
        raise StoreError(f"evidence in '{runs}' cannot be removed: {error.strerror}") from error
    return len(names)


def _path(folder: str, signature: str) -> str:
    return os.path.join(os.path.dirname(evidence_path(folder, signature, "0")), _NAME)
