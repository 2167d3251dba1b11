# SPDX-License-Identifier: Apache-2.0
"""Questions to Slurm: few, bounded in time, one call for many ids."""

import os
import pwd
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from slurm_colloc.core.clock import now
from slurm_colloc.core.errors import ProcessError
from slurm_colloc.core.model import Gres
from slurm_colloc.core.process import ask, ask_all, run
from slurm_colloc.slurm.clean_environment import unfiltered
from slurm_colloc.slurm.free_gpus import Free
from slurm_colloc.slurm.limits import (
    Cap,
    Limits,
    caps_questions,
    has_database,
    limits_questions,
    parse_caps,
    parse_limits,
)
from slurm_colloc.slurm.options import listed_options, unloaded_plugins
from slurm_colloc.slurm.parse import (
    Node,
    Partition,
    parse_config,
    parse_nodes,
    parse_partitions,
    parse_release,
    parse_states,
)

if TYPE_CHECKING:
    from slurm_colloc.slurm.job_visibility import Rights
    from slurm_colloc.slurm.jobs import Accounted, Held, QueuedJob
    from slurm_colloc.slurm.setup import Queue

# As long as Slurm's own commands wait for slurmctld, MessageTimeout, where slurm.conf says no other.
ASK_S = 10.0


class CliClient:
    """Questions to a live cluster, by Slurm's own commands."""

    def __init__(self, timeout_s: float = ASK_S, environment: Mapping[str, str] | None = None) -> None:
        self._timeout_s = timeout_s
        # A job that is not shown would not be there.
        self._environment = unfiltered(os.environ if environment is None else environment)

    def _ask(self, *argv: str, **variables: str) -> str:
        return ask(argv, self._timeout_s, {**self._environment, **variables}).decode(errors="surrogateescape")

    def _ask_all(self, questions: Sequence[Sequence[str]]) -> list[str]:
        answers = ask_all(questions, self._timeout_s, self._environment)
        return [answer.decode(errors="surrogateescape") for answer in answers]

    def release(self) -> str:
        """Return Slurm's release, ``22.05``."""
        return parse_release(self._ask("scontrol", "--version"))

    def config(self) -> Mapping[str, str]:
        """Return slurm.conf as slurmctld has it."""
        return parse_config(self._ask("scontrol", "show", "config"))

    def config_parts(self) -> tuple[Mapping[str, str], Mapping[str, str] | None]:
        """Return slurm.conf and cgroup.conf as slurmctld has them, None for the latter where it does not say."""
        from slurm_colloc.slurm.setup import CONFIG, parse_config_parts

        return parse_config_parts(self._ask(*CONFIG))

    def nodes(self) -> tuple[Node, ...]:
        """Return all nodes, with those of partitions that are hidden from the user or closed to him."""
        return parse_nodes(self._ask("scontrol", "-a", "show", "node", "-o"))

    def partitions(self) -> tuple[Partition, ...]:
        """Return all partitions, these too."""
        return parse_partitions(self._ask("scontrol", "-a", "show", "partition", "-o"))

    def further_options(self, names: Collection[str]) -> Mapping[str, str]:
        """Return sbatch's long options beyond these: "required", "optional" or "none" as to their value.

        Nothing is submitted by asking: getopt lists all names that could be meant by the empty one, and complains of a
        value that is missing or not wanted, before sbatch reads a script.
        """
        options = dict.fromkeys(sorted(set(listed_options(self._said("sbatch", "--="))) - set(names)), "optional")
        for name in options:
            if "requires an argument" in self._said("sbatch", f"--{name}"):
                options[name] = "required"
            elif "doesn't allow an argument" in self._said("sbatch", f"--{name}=1"):
                options[name] = "none"
        return options

    def plugin_options(self) -> frozenset[str]:
        """Return the long options that sbatch's help names as those of SPANK plugins."""
        text = run(("sbatch", "--help"), self._timeout_s, self._environment).stdout.decode(errors="surrogateescape")
        return frozenset(re.findall(r"--([\w-]+)", text.partition("provided by plugins")[2]))

    def unloaded_plugins(self) -> tuple[str, ...]:
        """Return what sbatch says of SPANK plugins that it cannot load."""
        return unloaded_plugins(self._said("sbatch", "--="))

    def _said(self, *argv: str) -> str:
        return run(argv, self._timeout_s, self._environment).stderr.decode(errors="surrogateescape")

    def control(self, lines: Sequence[str]) -> str:
        """Return what scontrol prints for these lines, whatever came of each."""
        from slurm_colloc.slurm.pending import CONTROL

        allowed_s = self._timeout_s + len(lines) * 0.1
        text = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
        # An array's tasks in full: a list that is cut short after 64 letters names none.
        environ = {**self._environment, "SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "standard"}
        return run(CONTROL, allowed_s, environ, text).stdout.decode(errors="surrogateescape")

    def submit(self, arguments: Sequence[str]) -> str:
        """Have sbatch submit a job, and return its id."""
        return self._ask("sbatch", "--parsable", *arguments).partition(";")[0].strip()

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs, whatever their state."""
        if job_ids:
            self._said("scancel", "--quiet", *job_ids)

    def requeue(self, job_id: str) -> str:
        """Have a job of this user, or a task of an array, begin again; return why it does not, empty where it does."""
        done = run(("scontrol", "requeue", job_id), self._timeout_s, self._environment)
        return done.last_words or f"status {done.status}" if done.status else ""

    def jobs_text(self) -> str:
        """Return what slurmctld remembers of all jobs, as ``scontrol show job -d -o`` prints it."""
        return self._ask("scontrol", "show", "job", "-d", "-o")

    def held(self) -> "tuple[Held, ...]":
        """Return what each job has of the GPUs of which node, as far as the user who asks may see.

        Raises:
            ProcessError: Slurm does not answer.
        """
        from slurm_colloc.slurm.jobs import ALL_HELD, parse_all_held

        return parse_all_held(self._ask(*ALL_HELD, SLURM_TIME_FORMAT="%s"), self.job_ids())

    def job_ids(self) -> frozenset[str]:
        """Return the raw ids of the jobs that slurmctld has, those that ended within MinJobAge included."""
        return frozenset(self._ask("squeue", "-h", "-a", "-t", "all", "-o", "%A").split())

    def queue(self, *filters: str) -> "tuple[QueuedJob, ...]":
        """Return the jobs that wait or run, as far as the user who asks may see them, and as squeue's options say.

        Raises:
            ProcessError: Slurm does not answer, or not in the form that it is asked for.
        """
        from slurm_colloc.slurm.jobs import QUEUE, parse_queue

        jobs, rejected = parse_queue(self._ask(*QUEUE, *filters, SLURM_TIME_FORMAT="%s"))
        if rejected:
            raise ProcessError(f"'squeue' printed {rejected} lines of another form than it was asked for")
        return jobs

    def own_queue(self, *filters: str) -> "tuple[QueuedJob, ...]":
        """Return the same of the user who runs this."""
        return self.queue("-u", str(os.geteuid()), *filters)

    def limits(self, cluster: str) -> Limits:
        """Return what the user who runs this may ask for."""
        return parse_limits(self._ask_all(limits_questions(pwd.getpwuid(os.geteuid()).pw_name, cluster)), now())

    def caps(self, cluster: str) -> tuple[Cap, ...]:
        """Return the limits of all QOS and associations that the user who asks is shown."""
        return parse_caps(self._ask_all(caps_questions(cluster)))

    def backlog(self) -> "Queue":
        """Return what sdiag says of the controller and its backfill."""
        from slurm_colloc.slurm.setup import QUEUE, parse_queue

        return parse_queue(self._ask(*QUEUE))

    def shares(self) -> Mapping[str, tuple[tuple[Gres, tuple[int, ...]], ...]]:
        """Return, by node, each kind of share and how many of it each device has, where Slurm says so."""
        from slurm_colloc.slurm.sinfo import QUESTION, parse_shares

        return parse_shares(self._ask(*QUESTION))

    def rights(self, name: str) -> "Rights":
        """Return what Slurm says of privacy and of the user ``name``."""
        from slurm_colloc.slurm.job_visibility import parse_rights, rights_questions

        config = self.config()
        answers = self._ask_all(rights_questions(name)) if has_database(config) else ("", "")
        return parse_rights(config, *answers)

    def shown(self, raw_ids: Sequence[str]) -> frozenset[str]:
        """Return which of these jobs accounting shows to the user who runs this."""
        from slurm_colloc.slurm.job_visibility import shown_question

        return frozenset(self._ask(*shown_question(raw_ids)).split()).intersection(raw_ids)

    def free(self, *, single: bool = False) -> Free:
        """Return what is free now, or what is on nodes with a single GPU of its kind.

        It is asked for within half the time of other questions: a submission goes on without it.
        """
        from slurm_colloc.slurm.sinfo import QUESTION, parse_free  # 2 ms, and few submissions ask

        text = CliClient(self._timeout_s / 2, self._environment)._ask(*QUESTION)
        return Free(now(), parse_free(text, single=single))

    def accounted(self, job_id: str) -> tuple["Accounted", ...]:
        """Return the runs of a job, a task or a component, by accounting, else by slurmctld; none where neither knows.

        Raises:
            InputError: ``job_id`` is none.
            ProcessError: neither answers.
        """
        from slurm_colloc.slurm.jobs import accounted_question, parse_accounted, parse_controller, with_controllers

        argv, delimiter = accounted_question(job_id)
        times = {"TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
        rows: tuple[Accounted, ...] = ()
        failed: ProcessError | None = None
        try:
            rows = parse_accounted(self._ask(*argv, **times), delimiter)
        except ProcessError as error:  # no accounting on this cluster
            failed = error
        if rows and all(row.end_s is not None for row in rows):
            return rows
        # Accounting does not have a job of this moment yet, or half of it.
        done = run(("scontrol", "show", "job", "-o", job_id), self._timeout_s, {**self._environment, **times})
        if done.status and failed and b"Invalid job id" not in done.stderr:
            raise failed
        return with_controllers(rows, () if done.status else parse_controller(done.stdout.decode(errors="replace")))

    def job_states(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the states of those jobs that Slurm has: accounting, else slurmctld's memory."""
        names = ",".join(job_ids)
        # slurmctld remembers jobs for MinJobAge. Purged ids make squeue fail: their end is then simply not known.
        with suppress(ProcessError):
            return parse_states(self._ask("sacct", "-X", "-n", "-P", "-j", names, "-o", "JobIDRaw,State"))
        with suppress(ProcessError):
            return parse_states(self._ask("squeue", "-h", "-t", "all", "-o", "%A|%T", "-j", names))
        return {}
