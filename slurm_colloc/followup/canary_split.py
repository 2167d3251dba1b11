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
from slurm_colloc.model import because
from slurm_colloc.placement.terms import asked_limit_min
from slurm_colloc.slurm.array import parse_array, ranges
from slurm_colloc.slurm.options import Given, value_of
from slurm_colloc.submit.plan import Plan
from slurm_colloc.submit.reasons import reason_of_counting
from slurm_colloc.submit.render import BLOCK_BEGINS
from slurm_colloc.wording import sentence, words

_ARRAY_ID = re.compile(rb"\bSLURM_ARRAY_JOB_ID\b")
_REQUEUES = re.compile(rb"\bscontrol\s+(?:(?!\S*\bscontrol\b)\S+\s+)*?requeue")
_AGAINST = {
    "wait": "--wait waits for one job",
    "test-only": "--test-only submits nothing",
    "hold": "it is held",
    "begin": "it begins at a time of its own (--begin)",
    "quiet": "--quiet says no job id",
    "time-min": "its time limit may be cut (--time-min)",
}
# slurmctld takes 4096 characters, and its refusal is none that leaves no doubt; behind them stands %n.
_LONGEST_ARRAY = 4000
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
        options += [f"--partition={','.join(partitions)}", f"--time={_minutes(config)}"]
        options += [f"--output={PROBE_OUTPUT}", f"--error={PROBE_OUTPUT}"]
    rest_array = ranges(rest) + percent + most if rest else ""
    return Parts(kind, tuple(options), first_array, rest_array, value_of(given, "dependency"))


def reason_against(kind: str, plan: Plan, config: SiteConfig, *, unasked: bool) -> str:
    """Return why nothing is measured first, empty where it can be.

    Args:
        kind: CANARY or PROBE.
        plan: the submission as it would be without.
        config: the site.
        unasked: the site wants it, not the user.
    """
    return next(_reasons(kind, plan, config, unasked), "")


def _reasons(kind: str, plan: Plan, config: SiteConfig, unasked: bool) -> Iterator[str]:
    given, [part, *others] = plan.given, plan.parts
    if plan.switched_off or config.policy == "shadow":
        yield words(plan.switched_off or because("policy-shadow"))
    if others:
        yield "it is a heterogeneous job"
    if "wrap" in given:
        yield "it is a command of --wrap"
    if plan.wants_pack or plan.packed:
        yield "it is to be a pack, whose tasks need a footprint before: run one task alone"
    if not config.recovery.companion:
        yield "the site wants no companion jobs"
    yield from (why for name, why in _AGAINST.items() if name in given)
    if part.request.untouchable:
        yield words(part.request.untouchable[0])
    if part.footprint.gpu_mem_peak_mib is not None or not plan.as_asked:
        yield f"what it needs is known: {sentence(part.footprint.provenance)}"
    if plan.body is None or BLOCK_BEGINS.encode() not in plan.body:
        yield "no sampler can be put into its script"
    yield from _of_dependency(value_of(given, "dependency"))
    yield from _of_array(kind, plan, config, unasked)
    if kind == PROBE:
        yield from _of_probe(plan, config)
    if unasked and ("dependency" in given or "parsable" in given):
        yield "jobs that go by its id may be about to follow"


def _of_dependency(value: str) -> Iterator[str]:
    if "?" in value:
        yield "it waits for any of several jobs (--dependency with '?')"
    if "aftercorr" in value or "expand" in value:
        yield "its dependency is one of task by task, or makes it part of another job"


def _of_array(kind: str, plan: Plan, config: SiteConfig, unasked: bool) -> Iterator[str]:
    given = plan.given
    if kind == CANARY and config.sharing.canary == "off":
        yield "the site wants no canaries (sharing.canary)"
    if kind == CANARY and "array" not in given:
        yield "it is no array; --probe measures a job of its own"
    if "array" not in given:
        return
    try:
        tasks = parse_array(value_of(given, "array").partition("%")[0])
    except InputError as error:
        yield str(error)
        return
    if kind == CANARY and len(tasks) == 1:
        yield "the array has one task only"
    if len(ranges(tasks[1:])) > _LONGEST_ARRAY:
        yield "without its first task the array is too long to be named"
    if why := reason_of_counting(plan.script):
        yield words(why)
    if unasked and _ARRAY_ID.search(plan.script):
        yield "its tasks go by their array's id (SLURM_ARRAY_JOB_ID)"


def _of_probe(plan: Plan, config: SiteConfig) -> Iterator[str]:
    given = plan.given
    if not config.probe.partition:
        yield "site.toml names no partition for probes (probe.partition)"
    if not all(_partitions(given, config)):
        yield "in which partition it would run is not known (default_partition in site.toml)"
    if "signal" in given or _REQUEUES.search(plan.script):
        yield "it is told of its end or requeues itself (--signal, scontrol requeue), so a probe of it might never end"
    limit_min = asked_limit_min(plan.parts[0].request, config)  # where it names none, its partition's
    if limit_min is not None and limit_min <= _minutes(config):
        yield f"its time limit is no longer than a probe's {_minutes(config)} min"


def _partitions(given: Mapping[str, Given], config: SiteConfig) -> list[str]:
    """Return where the job would run."""
    return list(filter(None, value_of(given, "partition").split(","))) or [config.default_partition]


def _minutes(config: SiteConfig) -> int:
    """Return a probe's time limit: Slurm's grain is a minute."""
    return max(1, round(config.probe.minutes))
