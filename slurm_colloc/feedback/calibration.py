# SPDX-License-Identifier: Apache-2.0
"""Works out a site's margins: measured need over csub's estimate, of its own jobs.

Decisions are files that users wrote, so that one user's say over everybody's margins is bounded, as the margins are.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slurm_colloc.core.files import write_atomic
from slurm_colloc.core.model import COMPLETED, GPU_OOM, Answered
from slurm_colloc.estimate.bounds import lower_bound
from slurm_colloc.estimate.calibration import LARGEST, SHIPPED, Calibration, Margin, conformal
from slurm_colloc.estimate.site_margins import calibration_path
from slurm_colloc.feedback.user_histories import make_history_folder

# Everybody who submits reads the file; it names no user and no job.
_MODE = 0o644
# The newest answers count, of one user so many. The newest hundred say that jobs change before all of them do.
_NEWEST, _OF_ONE_USER, _LATELY = 1000, 200, 100


class _Ratio(NamedTuple):
    at_s: float
    user: str
    ratio: float
    held: bool


def site_margins(answers: Iterable[Answered]) -> Calibration:
    """Return the margins of which there are answers enough; the others stay as shipped.

    The largest of an array counts, whose tasks have one answer. A job that ran out of GPU memory counts as infinite,
    and one that did not complete only if it had used more than was expected, as that much.
    """
    of_jobs: dict[tuple[str, str, str, float], _Ratio] = {}
    for answer in answers:
        ratio = _ratio(answer)
        key = (answer.margin, answer.user, answer.job_id, answer.at_s)
        if ratio is not None and (key not in of_jobs or of_jobs[key].ratio < ratio.ratio):
            of_jobs[key] = ratio
    by_name: dict[str, list[_Ratio]] = defaultdict(list)
    for (name, *_), job_ratio in of_jobs.items():
        by_name[name].append(job_ratio)
    margins = {name: margin for name in SHIPPED.margins if (margin := _margin(by_name[name])) is not None}
    return Calibration(margins)


def _ratio(answer: Answered) -> _Ratio | None:
    if not (answer.expected_mib > 0 and answer.q99_mib > 0 and math.isfinite(answer.expected_mib)):
        return None
    if answer.state == GPU_OOM:
        return _Ratio(answer.at_s, answer.user, math.inf, False)
    if answer.measured_mib is None or answer.measured_mib <= 0:
        return None
    ratio = answer.measured_mib / answer.expected_mib
    if answer.measured_mib <= answer.expected_mib + SHIPPED.floor_mib(answer.margin):
        ratio = min(ratio, 1.0)
    if answer.state != COMPLETED and ratio <= 1:
        return None
    return _Ratio(answer.at_s, answer.user, ratio, answer.measured_mib <= answer.q99_mib)


def _margin(ratios: Sequence[_Ratio]) -> Margin | None:
    """Return the larger of the margins that all answers and the newest of them ask for."""
    newest: list[_Ratio] = []
    of_user: dict[str, int] = defaultdict(int)
    for ratio in sorted(ratios, key=lambda ratio: ratio.at_s, reverse=True):
        of_user[ratio.user] += 1
        if of_user[ratio.user] <= _OF_ONE_USER and len(newest) < _NEWEST:
            newest.append(ratio)
    all_of_them = conformal([ratio.ratio for ratio in newest])
    lately = conformal([ratio.ratio for ratio in newest[:_LATELY]])
    if all_of_them is None or lately is None:
        return None
    factor = min(max(all_of_them.factor, lately.factor, 1.0), LARGEST)
    return Margin(factor, len(newest), lower_bound(sum(ratio.held for ratio in newest), len(newest)))


def write_margins(answers: Iterable[Answered], state_folder: str, now_s: float) -> Calibration:
    """Write a site's margins to where csub reads them, and return them.

    Raises:
        StoreError: the file cannot be written.
    """
    margins = site_margins(answers)._replace(at_s=now_s)
    make_history_folder(state_folder)
    write_atomic(calibration_path(state_folder), json.dumps(margins).encode(), _MODE)
    return margins
