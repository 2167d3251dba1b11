# SPDX-License-Identifier: Apache-2.0
"""Sampling as the settings say, for the agent on a node and the sampler inside a job.

The agent becomes this program once its arguments are read: their parser would stay in memory for months.
"""

import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from typing import NamedTuple, NoReturn

from slurm_colloc.cli.colloc.output import run as run_and_exit
from slurm_colloc.cli.colloc.output import say
from slurm_colloc.core.errors import ConfigError, DeadlineError, ProcessError, StoreError
from slurm_colloc.core.model import Evidence
from slurm_colloc.core.process import ask, replace
from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.estimate.records import drop_evidence
from slurm_colloc.gpu.reader import open_reader
from slurm_colloc.observe.evidence import EvidenceBuilder
from slurm_colloc.observe.journal import append, claim
from slurm_colloc.observe.loop import Pace, Sink, follow
from slurm_colloc.observe.notify import notify
from slurm_colloc.observe.sampler import Sampler, Told
from slurm_colloc.rebind.waiting import GAP_S, start_look
from slurm_colloc.slurm.clean_environment import unfiltered
from slurm_colloc.slurm.jobs import HeldHere, held_question, parse_held

# A service that is started anew sees device files that came after it did.
_PATIENCE_S = 300.0
_ANSWER_S = 2.0
# Between two looks at the user's waiting jobs.
_LEAST_APART_S, _MOST_APART_S, _AGAIN_S = 30.0, 300.0, 5.0


class Settings(NamedTuple):
    """All that decides how and what is sampled; the options of ``colloc agent`` and ``colloc sample`` explain them."""

    node: str
    cluster: str
    period_s: float
    reader: str
    dcgm: str = ""
    journal: str = ""
    evidence: str = ""
    job: str = ""
    signature: str = ""
    mode: str = ""
    watch_pid: int = 0
    samples: int = 0
    prometheus: str = ""
    agent: bool = False
    late: str = ""
    settle_s: float = 0.0


def become(settings: Settings) -> NoReturn:
    """Go on as a process that has nothing in memory but what sampling needs.

    Raises:
        ProcessError: Python cannot be started again.
    """
    # -P keeps "-m" from looking for our package in the current folder first.
    replace([sys.executable, "-P", "-m", "slurm_colloc.cli.sampling", json.dumps(settings._asdict())], os.environ)


def sample(settings: Settings) -> None:
    """Sample until told to stop.

    Raises:
        StoreError: no sample could be taken or kept, or another sampler writes this journal.
        GpuError: the driver does not answer, and this is not the agent, which waits for it.
        InputError: a setting that means nothing.
    """
    if settings.journal:
        claim(settings.journal, settings.node)
        say(f"sampling node {settings.node} every {settings.period_s:g} s into '{settings.journal}'")
    reader = open_reader(
        settings.reader,
        node=settings.node,
        cluster=settings.cluster,
        dcgm=settings.dcgm,
        patient=settings.agent,
    )
    holdings = Told(lambda job: _ask_held(job, settings.node))
    sampler = Sampler(reader, settings.node, settings.period_s, settings.job, told=holdings)
    pace = Pace(
        settings.period_s,
        watch_pid=settings.watch_pid,
        count=settings.samples,
        dense=not settings.agent,
        alive=partial(_alive, cache(say)) if settings.agent else lambda: None,
    )
    pace.stop_on_signals()
    with ExitStack() as ending:
        ending.callback(reader.close)
        sinks = _sinks(settings, sampler, ending)
        try:
            rounds = follow(sampler, pace, sinks, say, patience_s=_PATIENCE_S if settings.agent else math.inf)
        except DeadlineError as error:
            # A thread that is stuck in the driver would hold up every other way out.
            say(f"error: {error}; ending, so that a new process can try")
            os._exit(error.exit_status)
    if not rounds and not settings.agent:
        raise StoreError(
            "not one sample could be taken or kept, for the reasons above; 'colloc site gpus' shows whether the driver "
            "answers, --journal names another folder"
        )


def _ask_held(job_id: str, node: str) -> HeldHere | None:
    """Ask slurmctld what a job has here; None where it does not show us the job.

    Raises:
        ProcessError: it does not answer.
    """
    try:
        answer = ask(held_question(job_id), _ANSWER_S, unfiltered(os.environ))
    except ProcessError as error:
        if "Invalid job id" in str(error):
            return None
        raise
    return parse_held(answer.decode(errors="replace"), job_id, node)


def _sinks(settings: Settings, sampler: Sampler, ending: ExitStack) -> list[Sink]:
    sinks: list[Sink] = []
    if settings.journal:
        sinks.append(lambda node_sample: append(settings.journal, node_sample))
    if settings.evidence:
        sinks.append(_keeper(settings))
    if settings.prometheus:
        sinks += _prometheus(settings, ending)
    if settings.agent:
        sinks.append(_doubter(settings, sampler))
    return sinks


def _prometheus(settings: Settings, ending: ExitStack) -> list[Sink]:
    from slurm_colloc.core.config_schema import parse_address
    from slurm_colloc.observe.prometheus import Endpoint

    try:
        endpoint = Endpoint(*(parse_address(settings.prometheus) or ("", 0)), settings.period_s)
    except ConfigError as error:
        # A port that is taken does not end the measuring.
        say(f"{error}; sampling goes on without")
        return []
    ending.callback(endpoint.close)
    return [endpoint.show]


def _keeper(settings: Settings) -> Sink:
    """Return what keeps the job's use, and at its first sample puts together what is known of its earlier runs."""
    builder = EvidenceBuilder(settings.job, settings.signature, settings.mode)
    fold_once = cache(partial(_fold, settings))
    looks = _Looks(settings.late, settings.settle_s)

    def keep(node_sample: NodeSample) -> None:
        evidence = builder.add(node_sample)
        drop_evidence(settings.evidence, evidence)
        fold_once()
        if settings.late:
            looks.after(evidence)

    return keep


class _Looks:
    """Has the user's waiting jobs looked at: as the job begins, when one before it may have ended, then ever less
    often; and as soon as this job counts for those like it."""

    def __init__(self, cluster: str, settle_s: float) -> None:
        self._cluster, self._settle_s = cluster, settle_s
        self._next_s, self._gap_s = 0.0, GAP_S
        self._pids: list[int] = []

    def after(self, run: Evidence) -> None:
        """Take note of what the job has shown, and start a look where one is due."""
        from slurm_colloc.estimate.interrupted import has_settled  # the agent looks for nobody

        self._pids = [pid for pid in self._pids if not os.waitpid(pid, os.WNOHANG)[0]]
        elapsed_s = run.elapsed_s or 0.0
        if self._settle_s and has_settled(run, self._settle_s):
            self._settle_s, self._next_s, self._gap_s = 0.0, elapsed_s, _AGAIN_S
        if elapsed_s < self._next_s:
            return
        # This look is still due if another one was just before.
        self._next_s = elapsed_s + _AGAIN_S
        try:
            pid = start_look(self._cluster, os.environ, self._gap_s)
        except ProcessError as error:
            say(f"{error}; jobs that wait stay as they are")
            return
        if pid:
            self._pids.append(pid)
            self._next_s, self._gap_s = elapsed_s + min(_MOST_APART_S, max(_LEAST_APART_S, elapsed_s)), GAP_S


def _fold(settings: Settings) -> None:
    from slurm_colloc.estimate.fold import fold_drops

    try:
        fold_drops(settings.evidence, settings.signature)
    except StoreError as error:
        say(f"{error}; earlier runs stay as they are")


def _alive(say_once: Callable[[str], None]) -> None:
    """Tell the service manager; its watchdog has the last word where it does not listen."""
    try:
        notify("READY=1\nWATCHDOG=1")
    except ProcessError as error:
        say_once(str(error))


def _doubter(settings: Settings, sampler: Sampler) -> Sink:
    """Return what says why GPUs look unheld."""
    say_once = cache(say)

    def doubt(_: NodeSample) -> None:
        if sampler.unknown_jobs:
            say_once(
                f"which GPUs of node '{settings.node}' some jobs here hold 'scontrol show job -d' does not tell uid "
                f"{os.geteuid()}: GPUs that they hold idle are not seen; where PrivateData hides jobs, make that "
                "user an operator of Slurm; where Slurm calls this node otherwise, say so by --node"
            )

    return doubt


if __name__ == "__main__":
    run_and_exit(lambda: sample(Settings(**json.loads(sys.argv[1]))))
