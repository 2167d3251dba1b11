# SPDX-License-Identifier: Apache-2.0
"""csub --join: begin inside a running job of one's own, at once; where that cannot be, the submission goes on as usual.

First a companion job is submitted, which waits for the other job's end and submits this one if it was not run to its
end; then the step is started. So at no time is a job lost. And at no time is it submitted twice: whoever says first in
the record that it is theirs has it.
"""

import os
import select
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import NamedTuple

from slurm_colloc.cli.csub_call import Call, say, tell
from slurm_colloc.cli.csub_record import drop
from slurm_colloc.clock import now, ticking, within
from slurm_colloc.config import SiteConfig, user_data_folder
from slurm_colloc.errors import CollocError, UnsureError
from slurm_colloc.files import locked, private_folder
from slurm_colloc.history.records import note_joined
from slurm_colloc.process import leave_running, run, spawn_into
from slurm_colloc.runtime.again_record import CSUB, UNFINISHED, Record, claim, script_path, write_record
from slurm_colloc.runtime.joined import BEGAN, REFUSED, Task, begin, read_started, write_task
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.options import CommandLine, value_of
from slurm_colloc.slurm.unfiltered import unfiltered
from slurm_colloc.submit.companion import record_of, submit_companion
from slurm_colloc.submit.handover import STDOUT, write_all
from slurm_colloc.submit.join import (
    Guest,
    Host,
    choose_host,
    decisions,
    fit_in_words,
    guest_of,
    reason_against_guest,
    srun_line,
)
from slurm_colloc.submit.own_options import own_option
from slurm_colloc.submit.plan import Plan

# A step begins in some tenths of a second; a node's prolog and a slow file system take longer.
_BEGINS_S = 30.0
_LOOKS_EVERY_S = 0.2
_LIMIT_BYTES = 65536
_DEFAULT_OUTPUT = "slurm-%j.out"
_STOPPED = "csub was told to stop"
_ENDS_CSUB = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Ready(NamedTuple):
    """A job that can be joined, and all that is needed for it."""

    host: Host
    guest: Guest
    interpreter: tuple[str, ...]
    srun: str
    scancel: str


def join(plan: Plan, command_line: CommandLine, call: Call, config: SiteConfig) -> int | None:
    """Begin the job inside a running one and return csub's exit status; None where it is to be submitted as usual."""
    explained = own_option("explain", command_line, None) is not None
    why: tuple[str, ...]
    try:
        with locked(os.path.join(private_folder(user_data_folder()), "join.lock")) as alone:
            if not alone:
                raise UnsureError("another csub of yours is joining a job at this moment")
            allowed_s = 2 * config.timeouts.decide_s
            ready, why = within(allowed_s, "looking for a job", partial(_prepare, plan, command_line, call, config))
            if ready is not None and explained:
                _explain(ready, why)
            if ready is not None and call.dry_run:
                return _show(ready, call)
            if ready is not None:
                found = _start(ready, plan, command_line, call, config)
                if isinstance(found, int):
                    return found
                why = (found,)
    except CollocError as error:
        why = (str(error),)
    tell(call, (f"not joined: {reason}" for reason in why))
    return None


def _prepare(
    plan: Plan, command_line: CommandLine, call: Call, config: SiteConfig
) -> tuple[_Ready | None, tuple[str, ...]]:
    """Return what is needed to join a job, None where there is none, and why not the others."""
    if plan.switched_off or len(plan.parts) != 1 or any(one.name == "wrap" for one in command_line.options):
        return None, (plan.switched_off or "it is a command of --wrap, or has several components",)
    if config.policy == "shadow":
        return None, ("shadow mode",)
    [part] = plan.parts
    if not config.recovery.companion:
        return None, ("the site wants no companion jobs, without which it would be lost if the other job ended first",)
    if why := reason_against_guest(plan.given, part.request, plan.script):
        return None, (why,)
    programs = [shutil.which(name, path=call.environ.get("PATH")) for name in ("srun", "scancel")]
    if None in programs:
        return None, ("there is no srun or no scancel on PATH",)
    guest = guest_of(plan.given, part.request, part.footprint)
    client = CliClient(config.timeouts.ask_slurm_s)
    jobs, steps = client.running()
    host, reasons = choose_host(guest, jobs, steps, plan.join, config, client)
    if host is None:
        return None, reasons
    return _Ready(host, guest, tuple(part.request.interpreter.split(None, 1)), *map(str, programs)), reasons


def _explain(ready: _Ready, reasons: tuple[str, ...]) -> None:
    for reason in reasons:
        say(f"not joined: {reason}")
    say(f"joins job {ready.host.job.job_id}: {fit_in_words(ready.host)}")
    for note in ready.host.notes:
        say(f"  {note}")


def _show(ready: _Ready, call: Call) -> int:
    line = shlex.join(srun_line(ready.srun, ready.host, ready.guest, sys.executable, "FOLDER"))
    say(f"would join job {ready.host.job.job_id}; FOLDER would hold the script")
    write_all(STDOUT, f"{line}\n".encode(errors="surrogateescape"))
    return 0


def _start(ready: _Ready, plan: Plan, command_line: CommandLine, call: Call, config: SiteConfig) -> int | str:
    """Return csub's exit status, or why nothing has begun and nothing will."""
    record = _record(ready, command_line, call, config)
    folder = write_record(record, plan.script)
    write_task(folder, _task(ready, record, folder))
    companion = ""
    with no_end() as stopped:
        # From here on there may be a companion, then a step: to submit the job as usual it has to be claimed.
        try:
            companion, why = _companion(record, call, config)
            step = ""
            if companion:
                step, why = _begun(ready, folder, call, stopped)
            if not step and not claim(folder, CSUB):
                raise UnsureError("its companion has taken it already")
        except Exception as error:  # noqa: BLE001 - whatever it is, the job may be in other hands by now
            say(f"error: whether it has begun inside job {record.job_id} is not known: {error}")
            say(f"if it has not, job {companion or '(its companion)'} submits it when job {record.job_id} has ended")
            return 1
        if not step:
            if companion:
                with suppress(CollocError):  # else it finds the claim, and submits nothing
                    run((ready.scancel, companion), config.timeouts.ask_slurm_s, unfiltered(call.environ))
            return 128 + stopped[0] if stopped else why
    _tell(ready, step, companion, call, config)
    return 0


def _companion(record: Record, call: Call, config: SiteConfig) -> tuple[str, str]:
    """Return the companion's job id, or why there is none; after a time-out there may be one all the same."""
    try:
        return submit_companion(call.sbatch, record, f"afterany:{record.job_id}", call.environ, config), ""
    except CollocError as error:
        return "", f"what submits it if job {record.job_id} ends first could not be submitted: {error}"


def _tell(ready: _Ready, step: str, companion: str, call: Call, config: SiteConfig) -> None:
    """Print which step it is, as sbatch would print a job, and record what was decided."""
    job_id = ready.host.job.job_id
    parsable = "parsable" in ready.guest.given
    write_all(STDOUT, f"{step}\n".encode() if parsable else f"Joined job {job_id} as step {step}\n".encode())
    lines = [
        fit_in_words(ready.host),
        *ready.host.notes,
        f"if job {job_id} ends first, job {companion} submits it anew",
    ]
    try:
        for one in decisions(ready.host, ready.guest, step, config.cluster, now(), call.environ.get("USER", "")):
            elsewhere = within(config.timeouts.decide_s, "writing it", partial(drop, config, one))
            lines += [elsewhere] if elsewhere and elsewhere not in lines else []
    except Exception as error:  # noqa: BLE001 - it has begun: nothing may let it be submitted as well
        lines.append(f"the decision is not recorded: {error}")
    tell(call, (f"step {step}: {line}" for line in lines))


@contextmanager
def no_end() -> Iterator[list[int]]:
    """Only note what would end csub: a step may be about to begin."""
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


def _begun(ready: _Ready, folder: str, call: Call, stopped: list[int]) -> tuple[str, str]:
    """Start the step and return its id once it has begun, else why it has not; then it will not begin any more.

    Raises:
        StoreError: that could not be said to it.
    """
    read_end, write_end = os.pipe()
    argv = srun_line(ready.srun, ready.host, ready.guest, sys.executable, folder)
    try:
        note_joined(user_data_folder(), ready.host.decision.signature, ready.host.job.job_id)
        pid = spawn_into(argv, _environment(call.environ), write_end)
    except CollocError as error:
        os.close(read_end)
        return "", str(error)
    finally:
        os.close(write_end)
    try:
        said = _answer_of(read_end, stopped)
        if said.startswith(REFUSED) or begin(folder, ""):
            return "", said.removeprefix(REFUSED)
        # The step said so first, whether its words have come through or not.
        started = read_started(folder)
        return (started.step if started else ""), said
    finally:
        # srun's end would be the step's. Without it and its helper the step goes on: nobody must stay on this node.
        leave_running(pid)
        os.close(read_end)


def _answer_of(descriptor: int, stopped: list[int]) -> str:
    """Return what the step said of its beginning, or what srun said in its place."""
    said = b""
    ends_s = ticking() + _BEGINS_S
    while (left_s := ends_s - ticking()) > 0:
        if stopped:
            return _STOPPED
        if not select.select([descriptor], [], [], min(left_s, _LOOKS_EVERY_S))[0]:
            continue
        content = os.read(descriptor, _LIMIT_BYTES)
        said = (said + content)[-_LIMIT_BYTES:]
        for line in said.decode(errors="replace").split("\n")[:-1]:
            if line.startswith((BEGAN, REFUSED)):
                return line
        if not content:
            lines = said.decode(errors="replace").strip().splitlines()
            return f"srun: {lines[-1] if lines else 'it ended without a word'}".removeprefix("srun: srun: ")
    return f"the step did not begin within {_BEGINS_S:g} s"


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the step is handed: what Slurm set for a job in which csub is called would be about that one."""
    # What the user set of this is no sign that Slurm gave the step a GPU.
    names = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "CUDA_VISIBLE_DEVICES")
    return {name: value for name, value in environ.items() if not name.startswith(names) or name == "SLURM_CONF"}


def _task(ready: _Ready, record: Record, folder: str) -> Task:
    given = ready.guest.given
    return Task(
        script=script_path(folder, record),
        interpreter=ready.interpreter,
        script_args=record.script_args,
        name=record.job_name,
        user=record.user,
        folder=record.work_folder,
        output=value_of(given, "output") or _DEFAULT_OUTPUT,
        error=value_of(given, "error"),
        input=value_of(given, "input"),
        append=value_of(given, "open-mode").startswith("a"),
    )


def _record(ready: _Ready, command_line: CommandLine, call: Call, config: SiteConfig) -> Record:
    """Return how the job is to be submitted as usual."""
    guest, host = ready.guest, ready.host.job
    name = f"join-{os.urandom(6).hex()}"
    told = record_of(UNFINISHED, name, host.job_id, guest.request, command_line, call.environ, config.cluster)
    # Also against a #CSUB line: once is enough.
    own = (*(word for word in told.own if not word.startswith("--join")), "--join=off")
    return told._replace(own=own, partition=host.partition)
