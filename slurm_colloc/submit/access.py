# SPDX-License-Identifier: Apache-2.0
"""What the user may ask for, kept from one submission to the next so that Slurm is not asked at each."""

import json
import os
from collections.abc import Callable
from contextlib import suppress

from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError, InputError, StoreError
from slurm_colloc.files import private_folder, read_bounded, write_atomic
from slurm_colloc.history.signature import digest
from slurm_colloc.slurm.limits import Limits, from_json, to_json

_LIMIT_BYTES = 16 * 1024 * 1024


def limits_of_user(config: SiteConfig, ask: Callable[[], Limits]) -> Limits | str:
    """Return the user's limits, or why they are not known; ``ask`` is called when those kept are too old."""
    # No ".json": the ingest takes those in this folder for decisions. One home may serve several clusters.
    path = os.path.join(config.decisions_folder, f"limits-{digest(config.cluster.encode())}")
    try:
        kept = from_json(json.loads(read_bounded(path, _LIMIT_BYTES, owners=(os.geteuid(),))))
        if 0 <= now() - kept.at_s <= config.limits.max_age_s:
            return kept
    except (StoreError, InputError, ValueError):
        pass  # none kept, or unreadable: asked for as if there were none
    try:
        asked = ask()
    except CollocError as error:
        return str(error)
    with suppress(StoreError):  # asked for again at the next submission
        private_folder(config.decisions_folder)
        write_atomic(path, json.dumps(to_json(asked)).encode())
    return asked
