# SPDX-License-Identifier: Apache-2.0
"""Whether a site places nothing for now, or nothing late, because too many jobs were harmed, or nothing of a user's.

The ingest writes the file, csub reads it; "colloc off" writes a user's.
"""

import json
import os
from typing import NamedTuple

from slurm_colloc.core.config import user_data_folder
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import read_bounded, write_atomic
from slurm_colloc.core.units import printable
from slurm_colloc.core.value_types import read_as

# Everybody who submits reads it; it names no user and no job.
_MODE = 0o644
_LIMIT_BYTES = 64 * 1024


class Stop(NamedTuple):
    """Why nothing is placed, empty where it is; and when a person last said to go on: harm of before counts no more.

    ``late`` is why no job is given a piece while it waits.
    """

    why: str
    resumed_s: float
    late: str = ""


def stop_path(state_folder: str) -> str:
    """Return where a site keeps it."""
    return os.path.join(state_folder, "history", "stopped.json")


def read_stop(state_folder: str) -> Stop:
    """Return whether a site is stopped; a site that never was has no file.

    Raises:
        StoreError: the file cannot be read, or is not of the expected form.
    """
    path = stop_path(state_folder)
    if not state_folder or not os.path.lexists(path):
        return Stop("", 0.0)
    try:
        stop: Stop = read_as(Stop, json.loads(read_bounded(path, _LIMIT_BYTES)))
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"'{path}' is not of the expected form; write it anew by 'colloc site resume'") from error
    return stop


def why_stopped(state_folder: str, *, late: bool = False) -> str:
    """Return why nothing is placed, or nothing ``late``; a file that cannot be read is a reason too."""
    try:
        stop = read_stop(state_folder)
        return stop.why or (stop.late if late else "")
    except StoreError as error:
        return f"whether this site places jobs is not known: {error}"


def write_stop(state_folder: str, stop: Stop) -> None:
    """Write it.

    Raises:
        StoreError: the file cannot be written.
    """
    write_atomic(stop_path(state_folder), json.dumps(stop._asdict()).encode(), _MODE)


def off_path(state_folder: str, uid: int) -> str:
    """Return the file that switches csub off for a user: the site's, or without its folder one's own."""
    folder = os.path.dirname(stop_path(state_folder)) if state_folder else user_data_folder()
    return os.path.join(folder, f"{uid}.off")


def off_for_me(state_folder: str) -> str:
    """Return who has switched csub off for this user, and why; empty where nobody has."""
    for path in {off_path(folder, os.geteuid()) for folder in ("", state_folder)}:
        if os.path.lexists(path):
            try:
                return printable(read_bounded(path, _LIMIT_BYTES).decode(errors="replace"))
            except StoreError as error:
                return str(error)
    return ""
