# SPDX-License-Identifier: Apache-2.0
"""Settings of one run of a pack, and signals to the processes of its tasks."""

import os
import secrets
import shutil
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.errors import ProcessError
from slurm_colloc.pack.attempt import Attempt, TaskFiles
from slurm_colloc.pack.ledger import LedgerWriter
from slurm_colloc.pack.processes import Process, families_of, signal_processes
from slurm_colloc.pack.shared_gpu import SharedGpu
from slurm_colloc.pack.spec import Spec
from slurm_colloc.pack.srun import Job, srun_environment
from slurm_colloc.process import spawn_into


class Run(NamedTuple):
    """One run of a pack in its job.

    By ``name`` its processes are told from those of other runs, of packs that a task submits above all. ``environ`` is
    that of the batch script, ``srun_environ`` what srun gets of it.
    """

    spec: Spec
    job: Job
    gpu: SharedGpu
    ledger: LedgerWriter
    environ: Mapping[str, str]
    files: TaskFiles
    name: str
    srun: str
    srun_environ: Mapping[str, str]

    def spawn(self, argv: Sequence[str], srun_output: int) -> int:
        """Start srun, whose words go to ``srun_output``, and return its pid.

        Raises:
            ProcessError: it cannot be started; the file is closed.
        """
        try:
            return spawn_into(argv, self.srun_environ, srun_output)
        except ProcessError:
            os.close(srun_output)
            raise

    def families(self, attempts: Collection[Attempt]) -> dict[int, dict[int, Process]]:
        """Return the processes of attempts by their tasks' numbers and their own pids."""
        if not attempts:
            return {}
        roots = {one.number: root for one in attempts if (root := one.root)}
        return families_of(self.name, [one.number for one in attempts], roots)

    def processes(self, attempts: Collection[Attempt]) -> set[int]:
        """Return the pids of all processes of attempts."""
        return {pid for family in self.families(attempts).values() for pid in family}

    def signal(self, attempts: Collection[Attempt], number: signal.Signals) -> set[int]:
        """Send a signal to all processes of attempts, and return the numbers of the tasks that have any."""
        families = self.families(attempts)
        signal_processes([one for family in families.values() for one in family.values()], number)
        return {number for number, family in families.items() if family}

    def kill(self, attempts: Collection[Attempt]) -> None:
        """Kill all processes of attempts; a kill in the middle of a kernel could end the neighbours."""
        if left := self.processes(attempts):
            self.gpu.terminate(left)
            self.signal(attempts, signal.SIGKILL)  # of whoever is there by now


def new_run(spec: Spec, job: Job, gpu: SharedGpu, ledger: LedgerWriter, environ: Mapping[str, str], script: str) -> Run:
    """Return a run of a pack.

    Args:
        spec: of the pack.
        job: that it runs in.
        gpu: that its tasks share.
        ledger: told what happens.
        environ: of the batch script.
        script: the file with the user's script, in a folder of this pack's own.

    Raises:
        ProcessError: there is no srun.
        StoreError: the script cannot be read.
    """
    files = TaskFiles(spec, job, script)
    srun = shutil.which("srun", path=environ.get("PATH"))
    if srun is None:
        raise ProcessError("there is no 'srun' on PATH; is Slurm's client installed on this node?")
    name = f"{job.job_id}-{secrets.token_hex(8)}"
    return Run(spec, job, gpu, ledger, environ, files, name, os.path.abspath(srun), srun_environment(environ))
