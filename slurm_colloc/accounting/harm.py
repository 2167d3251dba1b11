# SPDX-License-Identifier: Apache-2.0
"""How many jobs pieces of GPUs have harmed; where these are too many, a site places none until a person says so.

What was decided of a job are files that users wrote, so that the harm of one user's jobs alone stops nobody else's.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.accounting.feedback import make_history_folder
from slurm_colloc.estimate.bounds import lower_bound
from slurm_colloc.estimate.harm import COUNTED, Harm, judge
from slurm_colloc.estimate.site_stop import read_stop, write_stop
from slurm_colloc.model import GPU_OOM, Evidence

# Of fewer runs nobody can say it; and more than this part, with 95 % certainty, is too many.
_LEAST_RUNS, _MOST, _SPAN_S = 50, 0.01, 86400.0


class Placed(NamedTuple):
    """A run on a piece of a GPU: whose by uid, when it ended, and what came of it; None is not known."""

    user: int
    ended_s: float
    harm: Harm | None


def placed_runs(
    evidence: Mapping[int, Sequence[Evidence]], ran_out: Collection[tuple[int, str]], max_slowdown: float
) -> list[Placed]:
    """Return what came of each run on a piece.

    Args:
        evidence: each user's runs, by uid.
        ran_out: uids and jobs of which a decision says that their GPU memory did not suffice.
        max_slowdown: the site's bound.
    """
    found = []
    for user, runs in evidence.items():
        of_job: dict[str, list[Evidence]] = {}
        for run in runs:
            ended = run._replace(state=GPU_OOM) if (user, run.job_id) in ran_out else run
            of_job.setdefault(run.signature, []).append(ended)
        for same in of_job.values():
            found += [Placed(user, one.run.ended_s, one.harm) for one in judge(same, max_slowdown)]
    return found


def too_many(placed: Iterable[Placed], since_s: float) -> str:
    """Return in words that too many of the runs that ended after ``since_s`` were harmed; empty where that is not so.

    Of at least 50 runs of which it is known, harmed are more than 1 % with a certainty of 95 %, of two users or more.
    """
    judged = [one for one in placed if one.ended_s > since_s and one.harm not in (None, Harm.FAILED)]
    harmed = [one for one in judged if one.harm in COUNTED]
    if len(judged) < _LEAST_RUNS or len({one.user for one in harmed}) < 2:
        return ""
    if lower_bound(len(harmed), len(judged)) <= _MOST:
        return ""
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(str(one.harm) for one in harmed).most_common())
    return f"{len(harmed)} of {len(judged)} runs on pieces of GPUs were harmed within a day ({kinds})"


def stop_where_too_many(placed: Iterable[Placed], state_folder: str, now_s: float) -> str:
    """Stop a site whose jobs were harmed too often, and return why; empty where it was not, or is stopped already.

    Raises:
        StoreError: what is kept of it cannot be read or written.
    """
    kept = read_stop(state_folder)
    why = too_many(placed, max(now_s - _SPAN_S, kept.resumed_s))
    if kept.why or not why:
        return ""
    make_history_folder(state_folder)
    write_stop(state_folder, kept._replace(why=f"{why}; 'colloc site resume' goes on"))
    return why
