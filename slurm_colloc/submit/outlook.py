# SPDX-License-Identifier: Apache-2.0
"""Waits and free GPUs as a submission finds them: a file of the ingest, and one question that is kept for a minute."""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError, InputError, StoreError
from slurm_colloc.files import read_bounded
from slurm_colloc.model import Reason, because
from slurm_colloc.placement.waits import MOST_AGE_S, Outlook, Waits, from_json, waits_path
from slurm_colloc.slurm import free as known
from slurm_colloc.slurm.free import Free
from slurm_colloc.submit.kept import keep, read_kept

_LIMIT_BYTES = 4 * 1024 * 1024
_KIND, _KEPT_S = "free", 60.0
_NOTHING = Waits(0.0, {})


def outlook(config: SiteConfig, ask: Callable[[], Free], *, wanted: bool) -> Outlook | None:
    """Return where a choice may look up waits; None where the site weighs none.

    Args:
        config: the site.
        ask: asks Slurm what is free now.
        wanted: somebody wants to see what is free, whether or not it can change the choice.
    """
    if not config.sharing.weigh_waits:
        return None
    return Outlook(partial(_waits, config), partial(_free, config, ask), wanted)


def _waits(config: SiteConfig) -> Waits:
    """Return last week's waits; a missing, broken or old file is none, and only a site's ingest writes one."""
    if not config.paths.state:
        return _NOTHING
    try:
        found = from_json(json.loads(read_bounded(waits_path(config.paths.state), _LIMIT_BYTES)))
    except (StoreError, InputError, ValueError, RecursionError):
        return _NOTHING
    return found if 0 <= now() - found.at_s <= MOST_AGE_S else _NOTHING


def _free(config: SiteConfig, ask: Callable[[], Free]) -> Free | Reason:
    """Return what is free now, or why that is not known; both are kept, lest each submission wait for a time-out."""
    with suppress(StoreError, InputError):  # none kept, or unreadable
        kept = read_kept(config, _KIND)
        found = known.from_json(kept)
        if isinstance(kept, dict) and 0 <= now() - found.at_s <= _KEPT_S:
            return because("free-unknown", error=str(kept["failed"])) if kept.get("failed") else found
    answer: Free | Reason
    try:
        answer = ask()
        content = known.to_json(answer)
    except CollocError as error:
        answer = because("free-unknown", error=str(error))
        content = {**known.to_json(Free(now(), {})), "failed": str(error)}
    keep(config, _KIND, content)
    return answer
