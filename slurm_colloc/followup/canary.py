# SPDX-License-Identifier: Apache-2.0
"""csub --canary and --probe: submit what is measured first, its companion, and the rest as it was asked for.

Loaded only where a job is to be measured first. Until the first job is submitted, whatever is in the way lets the
submission go on as usual; from then on nothing is submitted a second time.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import NamedTuple

from slurm_colloc.clock import within
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError
from slurm_colloc.followup.canary_split import Parts, divide, reason_against
from slurm_colloc.followup.record import (
    CSUB,
    PROBE,
    REST,
    Record,
    claim,
    measured_name,
    name_also,
    write_record,
    write_step,
)
from slurm_colloc.followup.submission import Submitted, record_of, submit_companion, submit_plan
from slurm_colloc.model import Reason, because
from slurm_colloc.process import Finished
from slurm_colloc.slurm.client import ASK_S, CliClient
from slurm_colloc.slurm.options import CommandLine, without
from slurm_colloc.submit.call import Call, handed_on, say, tell
from slurm_colloc.submit.decision import record as record_decision
from slurm_colloc.submit.handover import STDERR, STDOUT, write_all
from slurm_colloc.submit.own_options import option_table
from slurm_colloc.submit.plan import Plan, make_plan
from slurm_colloc.wording import words

_ENDS_CSUB = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# sbatch itself gives up long before where the controller does not answer.
_SUBMIT_S = 600.0


class _Ready(NamedTuple):
    """All that is needed to begin: the division, and the plans of what is measured and of the rest."""

    parts: Parts
    first: Plan
    rest: Plan


def measure_first(plan: Plan, kind: str, command_line: CommandLine, call: Call, config: SiteConfig) -> int | None:
    """Submit it in two parts and return csub's exit status; None where it is to be submitted as usual.

    Args:
        plan: the submission as it would be without.
        kind: "canary" or "probe".
        command_line: its arguments.
        call: csub's.
        config: the site.
    """
    ready: _Ready | Reason
    try:
        step = partial(_prepare, plan, kind, command_line, call, config)
        ready = within(config.timeouts.decide_s, "preparing it", step)
    except CollocError as error:
        ready = because("not-understood", error=str(error))
    if isinstance(ready, Reason):
        tell(call, [f"not measured first: {words(ready)}"])
        return None
    if call.dry_run:
        say(f"{ready.parts.words} would be measured first; the rest would be sized when that has ended")
        return None
    with _no_end():
        return _submit(ready, command_line, call, config)


def _prepare(plan: Plan, kind: str, command_line: CommandLine, call: Call, config: SiteConfig) -> _Ready | Reason:
    first = plan
    if config.observe.agent:
        # What samplers on the nodes saw is known only after the site's next ingest.
        inside = config._replace(observe=config.observe._replace(agent=False))
        client = CliClient()
        stdin = plan.script if command_line.script is None else None
        first = make_plan(command_line, call.environ, stdin, inside, client)
    why = reason_against(kind, first, config)
    return why or _Ready(divide(kind, first.given, config), first, plan)


def _submit(ready: _Ready, command_line: CommandLine, call: Call, config: SiteConfig) -> int | None:
    parts = ready.parts
    environ = {**call.environ, "CSUB_PROBE": "1"} if parts.kind == PROBE else call.environ
    first = _sbatch(ready.first, parts.first, call, config, environ)
    if not first.job_id:
        if first.refused:
            tell(call, [f"not measured first: its first job was refused: {first.done.last_words}"])
            return None
        write_all(STDERR, first.done.stderr)
        say(f"error: csub cannot tell whether a job of {parts.words} exists: see squeue; no other job was submitted")
        return _status(first.done)
    try:
        return _follow(ready, first.job_id, command_line, call, config)
    except Exception as error:  # noqa: BLE001 - a job is submitted: whoever caught it would submit all of it as well
        say(f"internal error, please report it: {error!r}")
        say(
            f"error: job {first.job_id} is {parts.words}; csub cannot tell whether a job of the rest exists: see squeue"
        )
        return 1


def _follow(ready: _Ready, first: str, command_line: CommandLine, call: Call, config: SiteConfig) -> int | None:
    """Submit what comes behind the first job."""
    parts = ready.parts
    folder, companion, why = "", "", ""
    try:
        record = _record(ready, first, command_line, call, config)
        keep = partial(write_record, record, ready.rest.script)
        folder = within(config.timeouts.decide_s, "keeping the script", keep)
        companion = submit_companion(call.sbatch, record, f"afterany:{first}", call.environ, config)
    except Exception as error:  # noqa: BLE001 - a job is submitted: the rest must follow, whatever it is
        why = str(error)
        _disown(folder)  # after a time-out there may be a companion all the same
    rest = _sbatch(ready.rest, _after(parts, companion or first), call, config, call.environ)
    if not rest.job_id and rest.refused and companion:
        why = f"the rest was refused behind it: {rest.done.last_words}"
        _disown(folder)
        if kept := _cancel(call, config, companion):
            say(kept)
        companion = ""
        rest = _sbatch(ready.rest, _after(parts, first), call, config, call.environ)
    if not rest.job_id:
        return _without_rest(rest, first, companion, folder, parts, call, config)
    return _done(ready, (first, companion, rest), folder, why, call, config)


def _after(parts: Parts, job_id: str) -> tuple[str, ...]:
    waits = ",".join(filter(None, (parts.dependency, f"afterany:{job_id}")))
    return (*parts.rest, f"--dependency={waits}")


def _sbatch(
    plan: Plan, options: Sequence[str], call: Call, config: SiteConfig, environ: Mapping[str, str]
) -> Submitted:
    return submit_plan(call.sbatch, plan, options, handed_on(environ, plan, config), _SUBMIT_S, config)


def _status(done: Finished) -> int:
    """Return csub's exit status for an sbatch that made no job for certain; a shell's, where a signal ended it."""
    return (done.status if done.status >= 0 else 128 - done.status) or 1


def _record(ready: _Ready, first: str, command_line: CommandLine, call: Call, config: SiteConfig) -> Record:
    """Return how the rest is to be submitted once it is sized."""
    parts = ready.parts
    known = record_of(parts.kind, measured_name(first), first, ready.rest, command_line, call.environ, config)
    options = without(known.options, option_table(config.slurm_release, config), {"array"})
    return known._replace(options=(*options, *parts.rest), array=parts.first_array)


def _done(
    ready: _Ready, jobs: tuple[str, str, Submitted], folder: str, why: str, call: Call, config: SiteConfig
) -> int:
    """Print the job's id as sbatch does, and tell the companion and the user."""
    first, companion, rest = jobs
    cluster = rest.cluster or config.cluster
    parsable = "parsable" in ready.rest.given
    write_all(STDERR, rest.done.stderr)
    write_all(STDOUT, rest.done.stdout if parsable else f"Submitted batch job {rest.job_id}\n".encode())
    try:
        if companion:
            for job_id in (rest.job_id, companion):
                name_also(folder, measured_name(job_id))
            write_step(folder, REST, rest.job_id)
    except Exception as error:  # noqa: BLE001 - all are submitted
        why, companion = str(error), ""
        _disown(folder)  # it may have been told all the same
    what = ready.parts.words
    if companion:
        said = (
            f"job {first} measures {what} first; then job {companion} submits this one again under a new id, on the "
            "piece of a GPU that fits, or lets it run as asked"
        )
    else:
        said = f"job {first} is {what}; this job begins as asked when that has ended, without being sized: {why}"
    tell(call, [f"job {rest.job_id}: {said}"])
    try:
        record_decision(ready.first, first, cluster, config, say)
        record_decision(_because(ready.rest, said), rest.job_id, cluster, config, say)
    except Exception as error:  # noqa: BLE001 - both are submitted
        say(f"the decisions are not recorded: {error}")
    return 0


def _because(plan: Plan, why: str) -> Plan:
    """Return a plan whose decisions say first why it is submitted as it is."""
    first = because("followup", why=why)
    placement = plan.part.placement
    placement = placement._replace(reasons=(first, *placement.reasons))
    return plan._replace(part=plan.part._replace(placement=placement))


def _without_rest(
    rest: Submitted, first: str, companion: str, folder: str, parts: Parts, call: Call, config: SiteConfig
) -> int | None:
    """Say what there is, where the rest was refused or is not known to be there, and return csub's exit status.

    None where the job is to be submitted as usual: a probe is one job more than that, perhaps one too many.
    """
    _disown(folder)
    if rest.refused:
        why = _cancel(call, config, first)
        if parts.kind == PROBE and not why:
            tell(call, [f"not measured first: behind job {first}, which is cancelled, {rest.done.last_words}"])
            return None
        write_all(STDERR, rest.done.stderr)
        became = why or f"job {first} ({parts.words}) was told to end"
        say(f"error: the rest was refused, and {became}")
    else:
        write_all(STDERR, rest.done.stderr)
        if companion and (why := _cancel(call, config, companion)):
            say(why)
        say(f"error: job {first} is {parts.words}; csub cannot tell whether a job of the rest exists: see squeue")
    return _status(rest.done)


def _disown(folder: str) -> None:
    """Keep a companion from submitting anything."""
    if folder:
        try:
            claim(folder, CSUB)
        except Exception as error:  # noqa: BLE001 - a job is submitted, and others are to follow
            say(f"its record could not be closed: {error}")


def _cancel(call: Call, config: SiteConfig, job_id: str) -> str:
    """Cancel a job; return in words why it is still there, empty where it is not."""
    try:
        CliClient(ASK_S, call.environ).cancel(job_id)
    except Exception as error:  # noqa: BLE001 - another job is submitted
        return f"job {job_id} could not be cancelled: {error}"
    return ""


@contextmanager
def _no_end() -> Iterator[list[int]]:
    """Only note what would end csub: a job may be about to be submitted."""
    told: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        told.append(number)

    # What csub was started to ignore (nohup) does not end it.
    numbers = [number for number in _ENDS_CSUB if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, note) for number in numbers}
    try:
        yield told
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
