# SPDX-License-Identifier: Apache-2.0
"""What runs of the same program held that were no larger than the job in any number: a bound, however they ended."""

from slurm_colloc.estimate.exact import is_greedy
from slurm_colloc.estimate.question import Question
from slurm_colloc.history.names import grows, is_inert
from slurm_colloc.history.signature import Parts, parts_of
from slurm_colloc.model import COMPLETED, Evidence


def most_of_smaller(question: Question, model: str, above_mib: float) -> Evidence | None:
    """Return, of the relatives that can need no more than the job and held more than that, the run that held most.

    Only numbers of which more never needs less may differ, and those that size nothing; and not the program, for an
    edit may have made it smaller. An empty model is any.
    """
    own = parts_of(question.signature)
    if own is None or own.values is None:
        return None
    held = [
        run
        for run in question.relatives
        if (run.gpu_mem_peak_mib or 0) > above_mib
        and (not model or run.gpu_model in (model, ""))
        # What a framework takes of any GPU is no need; where it ran out of memory all the same, it is.
        and not (run.state == COMPLETED and is_greedy(run))
        and _is_no_larger(parts_of(run.signature), own, question.numbers)
    ]
    return max(held, key=lambda run: run.gpu_mem_peak_mib or 0, default=None)


def _is_no_larger(other: Parts | None, own: Parts, names: tuple[str, ...]) -> bool:
    if other is None or other.values is None or other.program != own.program:
        return False
    if not len(other.values) == len(own.values or ()) == len(names):
        return False
    pairs = zip(names, other.values, own.values or (), strict=True)
    # 0 and -1 may mean all there is.
    return all(had == has or is_inert(name) or (grows(name) and 0 < had <= has) for name, had, has in pairs)
