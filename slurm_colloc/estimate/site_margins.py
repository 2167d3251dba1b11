# SPDX-License-Identifier: Apache-2.0
"""The margins of one site, taken by its ingest from what all users' answers came to, and read by each submission.

One small file beside the users' histories; it names no user and no job.
"""

import json
import os

from slurm_colloc.core.clock import now
from slurm_colloc.core.errors import InputError, StoreError
from slurm_colloc.core.files import read_bounded
from slurm_colloc.core.model import Reason, because
from slurm_colloc.core.value_types import read_as
from slurm_colloc.estimate.calibration import LARGEST, SHIPPED, Calibration

# An ingest that has not come round for so long says nothing of today's jobs.
MOST_AGE_S = 30 * 86400.0
_LIMIT_BYTES = 256 * 1024


def calibration_path(state_folder: str) -> str:
    """Return where a site's margins lie."""
    return os.path.join(state_folder, "history", "calibration.json")


def site_calibration(state_folder: str) -> tuple[Calibration, Reason | None]:
    """Return the margins in force, and why they are not the site's own; None where none were ever taken."""
    path = calibration_path(state_folder)
    if not state_folder or not os.path.lexists(path):
        return SHIPPED, None
    try:
        calibration = from_json(json.loads(read_bounded(path, _LIMIT_BYTES)))
    except (StoreError, InputError, ValueError, RecursionError) as error:
        return SHIPPED, because("margins-unreadable", error=str(error))
    if not 0 <= now() - calibration.at_s <= MOST_AGE_S:
        return SHIPPED, because("margins-old", days=MOST_AGE_S / 86400)
    return calibration, None


def from_json(kept: object) -> Calibration:
    """Return a site's margins as its ingest wrote them.

    Raises:
        InputError: another form, another release, or a margin out of bounds.
    """
    try:
        calibration: Calibration = read_as(Calibration, kept)
    except (TypeError, ValueError) as error:
        raise InputError("it is not of the expected form; run 'colloc ingest' again") from error
    if not all(1.0 <= margin.factor <= LARGEST for margin in calibration.margins.values()):
        raise InputError("it has a margin out of bounds; run 'colloc ingest' again")
    return calibration
