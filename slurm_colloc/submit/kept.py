# SPDX-License-Identifier: Apache-2.0
"""Answers of Slurm's that are kept from one submission to the next: a file for each kind, in the user's own folder."""

import json
import os
from contextlib import suppress

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.files import private_folder, read_own, write_atomic
from slurm_colloc.history.digest import digest

_LIMIT_BYTES = 16 * 1024 * 1024


def read_kept(config: SiteConfig, kind: str) -> object:
    """Return what was kept of a kind.

    Raises:
        StoreError: nothing was, or it cannot be read.
        InputError: it is damaged.
    """
    try:
        return json.loads(read_own(_path(config, kind), _LIMIT_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"what was kept of '{kind}' is not of the expected form: {error}") from error


def keep(config: SiteConfig, kind: str, answer: object) -> None:
    """Keep an answer; where that fails it is asked for again at the next submission."""
    with suppress(StoreError):
        private_folder(config.decisions_folder)
        write_atomic(_path(config, kind), json.dumps(answer).encode())


def _path(config: SiteConfig, kind: str) -> str:
    # No ".json": the ingest takes those in this folder for decisions. One home may serve several clusters.
    return os.path.join(config.decisions_folder, f"{kind}-{digest(config.cluster.encode())}")
