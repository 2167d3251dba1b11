# SPDX-License-Identifier: Apache-2.0
"""How long jobs waited for each kind of GPU last week, from the store to where csub looks it up.

When a job became eligible the store does not know: the wait is from submission, so that dependencies, --begin and an
array's own limit count as waiting. Therefore the median, and how many runs it is of.
"""

import json

from slurm_colloc.core.files import write_atomic
from slurm_colloc.feedback.user_histories import make_history_folder
from slurm_colloc.placement.waits import LEAST_RUNS, SPAN_S, Wait, Waits, to_json, waits_path
from slurm_colloc.store.queries import query
from slurm_colloc.store.store import Store

# Whoever submits reads it; it names no user and no job.
_MODE = 0o644


def measured_waits(store: Store, cluster: str, now_s: float) -> Waits:
    """Return the waits of runs that began in the week before ``now_s``.

    Raises:
        StoreError: the store cannot be read.
    """
    parameters = {"cluster": cluster, "since": now_s - SPAN_S, "until": now_s, "least": LEAST_RUNS}
    rows = store.rows(query("waits"), parameters)
    return Waits(now_s, {(partition, kind): Wait(*figures) for partition, kind, *figures in rows})


def write_waits(store: Store, cluster: str, state_folder: str, now_s: float) -> Waits:
    """Write the waits of the last week to where csub reads them, and return them.

    Raises:
        StoreError: the store cannot be read, or the file not be written.
    """
    waits = measured_waits(store, cluster, now_s)
    make_history_folder(state_folder)
    write_atomic(waits_path(state_folder), json.dumps(to_json(waits)).encode(), _MODE)
    return waits
