# SPDX-License-Identifier: Apache-2.0
"""What is measured first and what waits for it: pure functions of one plan. Loaded only where a job is to be measured.

F, a first job, is measured; R, the rest, is submitted at once as it was asked for and waits for a companion of F. The
companion submits R's work once more, sized by what F showed, and cancels R; until then, and whatever is lost, R runs.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError
from slurm_colloc.followup.record import CANARY, PROBE
from slurm_colloc.model import Reason, because
from slurm_colloc.placement.terms import asked_limit_min
from slurm_colloc.slurm.array import parse_array, ranges
from slurm_colloc.slurm.options import Given, value_of
from slurm_colloc.submit.plan import Plan
from slurm_colloc.submit.reasons import reason_of_counting
from slurm_colloc.submit.render import BLOCK_BEGINS
from slurm_colloc.wording import sentence

_REQUEUES = re.compile(rb"\bscontrol\s+(?:(?!\S*\bscontrol\b)\S+\s+)*?requeue")
_AGAINST = ("wait", "test-only", "hold", "begin", "quiet", "time-min")
# slurmctld takes 4096 characters, and its refusal is none that leaves no doubt; behind them stands %n.
_LONGEST_ARRAY = 4000
# A probe's time limit: a program has to start and to fill its memory. Slurm's grain is a minute.
PROBE_MIN = 3
PROBE_OUTPUT = "csub-probe-%j.out"


class Parts(NamedTuple):
    """How a submission is divided.

    ``first`` are sbatch's options of F beyond the user's, ``first_array`` is its --array (empty: no array),
    ``rest_array`` that of R. ``dependency`` is the user's own, which R has too.
    """

    kind: str
    first: tuple[str, ...]
    first_array: str
    rest_array: str
    dependency: str

    @property
    def rest(self) -> tuple[str, ...]:
        """Return sbatch's options of R, and of what is submitted in its place, beyond the user's."""
        return (f"--array={self.rest_array}",) if self.rest_array else ()

    @property
    def words(self) -> str:
        """Return in words what is measured."""
        task = f"task {self.first_array}" if self.first_array else "the job"
        return f"{task}, for some minutes" if self.kind == PROBE else task


def divide(kind: str, given: Mapping[str, Given], config: SiteConfig) -> Parts:
    """Return how the submission is divided.

    Raises:
        InputError: --array is outside its grammar.
    """
    tasks, percent, most = value_of(given, "array").partition("%")
    numbers = parse_array(tasks) if tasks else ()
    first_array = str(numbers[0]) if numbers else ""
    rest = numbers if kind == PROBE else numbers[1:]
    options = [f"--array={first_array}"] if numbers else []
    if kind == PROBE:
        # Also where the job itself would start: no dependency and no --deadline (22.05) ends the wait for a partition
        # that takes no jobs, and the rest waits behind it.
        partitions = dict.fromkeys([config.probe.partition, *_partitions(given, config)])
        options += [f"--partition={','.join(partitions)}", f"--time={PROBE_MIN}"]
        options += [f"--output={PROBE_OUTPUT}", f"--error={PROBE_OUTPUT}"]
    rest_array = ranges(rest) + percent + most if rest else ""
    return Parts(kind, tuple(options), first_array, rest_array, value_of(given, "dependency"))


def reason_against(kind: str, plan: Plan, config: SiteConfig) -> Reason | None:
    """Return why nothing is measured first; None where something can be.

    Args:
        kind: CANARY or PROBE.
        plan: the submission as it would be without.
        config: the site.
    """
    return next(_reasons(kind, plan, config), None)


def _reasons(kind: str, plan: Plan, config: SiteConfig) -> Iterator[Reason]:
    given, part = plan.given, plan.part
    if plan.switched_off or config.policy == "shadow":
        yield plan.switched_off or because("policy-shadow")
    if "wrap" in given:
        yield because("command-of-wrap")
    if plan.wants_pack or plan.packed:
        yield because("is-a-pack")
    if not config.recovery.companion:
        yield because("no-companions")
    yield from (because("option", option=name) for name in _AGAINST if name in given)
    if part.request.untouchable:
        yield part.request.untouchable[0]
    if part.footprint.gpu_mem_peak_mib is not None or not plan.as_asked:
        yield because("known-already", why=sentence(part.footprint.provenance))
    if plan.body is None or BLOCK_BEGINS.encode() not in plan.body:
        yield because("no-sampler")
    yield from _of_dependency(value_of(given, "dependency"))
    yield from _of_array(kind, plan)
    if kind == PROBE:
        yield from _of_probe(plan, config)


def _of_dependency(value: str) -> Iterator[Reason]:
    if "?" in value:
        yield because("waits-for-any")
    if "aftercorr" in value or "expand" in value:
        yield because("waits-task-by-task")


def _of_array(kind: str, plan: Plan) -> Iterator[Reason]:
    given = plan.given
    if kind == CANARY and "array" not in given:
        yield because("canary-needs-array")
    if "array" not in given:
        return
    try:
        tasks = parse_array(value_of(given, "array").partition("%")[0])
    except InputError as error:
        yield because("not-understood", error=str(error))
        return
    if kind == CANARY and len(tasks) == 1:
        yield because("one-task")
    if len(ranges(tasks[1:])) > _LONGEST_ARRAY:
        yield because("array-too-long")
    if why := reason_of_counting(plan.script):
        yield why


def _of_probe(plan: Plan, config: SiteConfig) -> Iterator[Reason]:
    given = plan.given
    if not config.probe.partition:
        yield because("no-probe-partition")
    if not all(_partitions(given, config)):
        yield because("partition-unknown")
    if "signal" in given or _REQUEUES.search(plan.script):
        yield because("requeues-itself")
    limit_min = asked_limit_min(plan.part.request, config)  # where it names none, its partition's
    if limit_min is not None and limit_min <= PROBE_MIN:
        yield because("shorter-than-probe", probe_min=PROBE_MIN)


def _partitions(given: Mapping[str, Given], config: SiteConfig) -> list[str]:
    """Return where the job would run."""
    return list(filter(None, value_of(given, "partition").split(","))) or [config.default_partition]
