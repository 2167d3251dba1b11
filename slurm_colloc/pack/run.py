# SPDX-License-Identifier: Apache-2.0
"""Settings of one run of a pack, and signals to the processes of its tasks."""

import os
import secrets
import shutil
import signal
from collections.abc import Collection, Mapping, Sequence

from slurm_colloc.core.errors import ProcessError
from slurm_colloc.core.process import spawn_into
from slurm_colloc.pack.attempt import Attempt, TaskFiles
from slurm_colloc.pack.ledger import LedgerWriter
from slurm_colloc.pack.processes import Process, families_of, signal_processes
from slurm_colloc.pack.shared_gpu import SharedGpu
from slurm_colloc.pack.spec import Spec
from slurm_colloc.pack.srun import RUN_VARIABLE, Files, Job, command_line, into_steps, srun_environment, task_variables
from slurm_colloc.pack.starts_and_retries import Start
from slurm_colloc.submit.inherited import MARK, mark


class Run:
    """One run of a pack in its job.

    Its ``name`` tells its processes from those of other runs, of packs that a task submits above all.
    """

    def __init__(
        self, spec: Spec, job: Job, gpu: SharedGpu, ledger: LedgerWriter, environ: Mapping[str, str], files: TaskFiles
    ) -> None:
        """Begin a run in the environment of its batch script.

        Raises:
            ProcessError: there is no srun.
        """
        self.spec, self.job, self.gpu, self.ledger = spec, job, gpu, ledger
        self._environ, self._srun_environ = environ, srun_environment(environ)
        self.files = files
        self.name = f"{job.job_id}-{secrets.token_hex(8)}"
        srun = shutil.which("srun", path=environ.get("PATH"))
        if srun is None:
            raise ProcessError("there is no 'srun' on PATH; is Slurm's client installed on this node?")
        self._srun = os.path.abspath(srun)

    def spawn(self, start: Start, files: Files, cores: Sequence[int], srun_output: int) -> int:
        """Start srun for an attempt at a task, with its words to ``srun_output``, and return its pid.

        Raises:
            ProcessError: it cannot be started; the file is closed.
        """
        environ = self._environ
        variables = task_variables(self.spec, self.job, start.task, start.attempt, environ)
        ours = self.gpu.environment(start.load)
        if not self.gpu.is_first:
            ours["SLURM_TASK_PROLOG"] = environ.get("SLURM_TASK_PROLOG", self.files.prolog)
        variables |= {RUN_VARIABLE: self.name, MARK: mark(self.job.job_id, ours, environ)} | ours
        argv = command_line(
            self._srun,
            self.spec,
            self.job,
            start.task,
            script=self.files.script,
            files=files,
            cores=cores,
            variables=variables | into_steps(variables, environ),
        )
        try:
            return spawn_into(argv, self._srun_environ, srun_output)
        except ProcessError:
            os.close(srun_output)
            raise

    def families(self, attempts: Collection[Attempt]) -> dict[int, dict[int, Process]]:
        """Return the processes of attempts by their tasks' numbers and their own pids."""
        if not attempts:
            return {}
        roots = {attempt.number: root for attempt in attempts if (root := attempt.root)}
        return families_of(self.name, [attempt.number for attempt in attempts], roots)

    def processes(self, attempts: Collection[Attempt]) -> set[int]:
        """Return the pids of all processes of attempts."""
        return {pid for family in self.families(attempts).values() for pid in family}

    def signal(self, attempts: Collection[Attempt], number: signal.Signals) -> set[int]:
        """Send a signal to all processes of attempts, and return the numbers of the tasks that have any."""
        families = self.families(attempts)
        signal_processes([process for family in families.values() for process in family.values()], number)
        return {number for number, family in families.items() if family}

    def kill(self, attempts: Collection[Attempt]) -> None:
        """Kill all processes of attempts; a kill in the middle of a kernel could end the neighbours."""
        if pids := self.processes(attempts):
            self.gpu.terminate(pids)
            self.signal(attempts, signal.SIGKILL)  # all that are there by now
