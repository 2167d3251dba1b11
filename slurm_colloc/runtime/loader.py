# SPDX-License-Identifier: Apache-2.0
"""What the tasks of a pack read their batches from: one producer, started before them and ended after them.

It is a step like a task, with ports of its own. Its consumers wait for ever for one that has gone, so its end is the
end of the tasks that read from it, and they are run again beside a new one.
"""

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress

from slurm_colloc import clock
from slurm_colloc.errors import InputError, ProcessError, StoreError
from slurm_colloc.process import spawn_into
from slurm_colloc.runtime.files import last_words, open_output
from slurm_colloc.runtime.processes import processes_of, signal_tasks
from slurm_colloc.runtime.record import Record
from slurm_colloc.runtime.shared_gpu import SharedGpu
from slurm_colloc.runtime.spec import Loader, Spec
from slurm_colloc.runtime.steps import RUN_VARIABLE, TASK_VARIABLE, Files, Job, srun_environment, step_line

# The number by which its processes are known; no task has it.
LOADER = -1
# As many as a TensorProducer takes: its batches', its acknowledgements' and two for its heartbeats.
_PORTS = 4
FOR_TASKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "for_tasks")
# Slurm, which stops a job, signals its steps before its batch script.
_JUDGED_AFTER_S = 1.0
# One that has come to its end has sent all it had; what its tasks still do with that takes its time.
_AFTER_ITS_END_S = 300.0
_GENTLE_S, _FORCED_S = 2.0, 4.0
_LONGEST_WAIT_S = 60.0
_MOST_REFUSALS = 10
_WORDS_BYTES = 4096
_LISTENS = "0A"


class SharedLoader:
    """The loader of one job; of a pack without one it is always ready."""

    def __init__(
        self,
        spec: Spec,
        job: Job,
        gpu: SharedGpu,
        record: Record,
        environ: Mapping[str, str],
        *,
        at_once: int,
        run: str,
        srun: str,
        folder: str,
        prepare: Callable[[Files], int],
    ) -> None:
        """Make ready to start it.

        Args:
            spec: of the pack.
            job: that it runs in.
            gpu: that it shares with the tasks.
            record: told what happens.
            environ: of the batch script.
            at_once: how many tasks run beside it at most.
            run: by which this pack's processes are known.
            srun: the program.
            folder: the pack's private one.
            prepare: makes a step's private files and returns the one for srun's own words.
        """
        self._spec, self._job, self._gpu, self._record, self._environ = spec, job, gpu, record, environ
        self._loader: Loader | None = spec.loader
        self._run, self._srun, self._prepare = run, srun, prepare
        self._cores = job.cores[at_once * spec.cpus_per_task :] or job.cores
        output = os.path.join(job.folder, spec.loader.output.replace("%j", job.job_id)) if spec.loader else os.devnull
        self._files = Files(os.path.join(folder, "step-loader"), output, output, os.devnull)
        self._ports: tuple[int, ...] = ()
        self._pid: int | None = None
        self._said = -1
        self._began_s = self._not_before_s = 0.0
        self._output_at = 0
        self._ended_s: float | None = None
        self._status = 0
        self._serves = self._used = False
        self._deaths = self._refusals = 0
        self.gave_up = ""

    @property
    def starting(self) -> bool:
        """Return whether it is waited for."""
        return self._pid is not None and not self._serves

    def ready(self, *, idle: bool) -> bool:
        """Return whether a task may begin, and start a loader where there is none; ``idle``: no task runs."""
        if self._loader is None:
            return True
        if self._pid is None and idle and not self.gave_up and clock.ticking() >= self._not_before_s:
            self._begin(self._loader)
        return self._serves and self._ended_s is None

    def environment(self) -> dict[str, str]:
        """Return what a task needs to find it; from then on it counts as used."""
        self._used = True
        return self._places() if self._loader is not None else {}

    def got_through(self) -> None:
        """Take that a task was done: what died before was no lasting trouble."""
        self._deaths = 0

    def look(self) -> str:
        """Look how it does, and return why the tasks that read from it are lost, once; "" while they are not."""
        if self._loader is None or self._pid is None:
            return ""
        now_s = clock.ticking()
        if self._ended_s is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if not pid:
                if not self._serves:
                    self._wait_for_it(self._loader, now_s)
                return ""
            self._status, self._ended_s = os.waitstatus_to_exitcode(status), now_s
        if now_s - self._ended_s < _JUDGED_AFTER_S:
            return ""
        return self._take_end(now_s)

    def drop(self) -> None:
        """End it because its MPS daemon died; a new one is started when the next task is to begin."""
        self.quit()
        self._forget()

    def quit(self) -> None:
        """End it, by force if need be."""
        if self._pid is None:
            return
        waited_from_s = clock.ticking()
        if self._ended_s is None:
            self._tell(signal.SIGTERM)
            # Its srun may be gone before what it started.
            while self._works() and clock.ticking() - waited_from_s < _GENTLE_S:
                self._reap()
        self._kill()
        while self._ended_s is None and clock.ticking() - waited_from_s < _FORCED_S:
            self._reap()

    # --- beginning ---

    def _begin(self, loader: Loader) -> None:
        try:
            self._output_at = open_output(self._files.output, append=True)
            self._said = self._prepare(self._files)
            self._ports = free_ports(_PORTS)
        except (InputError, StoreError, OSError) as error:
            self._give_up(f"the shared loader cannot be started: {error}")
            return
        cpus = str(loader.cpus)
        variables = {
            "SLURM_CPUS_PER_TASK": cpus,
            **({} if "OMP_NUM_THREADS" in self._environ else {"OMP_NUM_THREADS": cpus}),
            "SLURM_OVERLAP": "1",
            TASK_VARIABLE: str(LOADER),
            RUN_VARIABLE: self._run,
            **self._gpu.environment(self._spec.load, alone=False),
            **self._places(),
        }
        command = ["/bin/sh", "-c", loader.command]
        argv = step_line([self._srun, "-J", "loader"], self._job, self._files, self._cores, variables, command)
        self._serves = self._used = False
        self._ended_s, self._began_s = None, clock.ticking()
        try:
            self._pid = spawn_into(argv, srun_environment(self._environ), self._said)
        except ProcessError as error:
            os.close(self._said)
            self._give_up(f"the shared loader cannot be started: {error}")

    def _places(self) -> dict[str, str]:
        """Return where it serves, for itself and for the tasks, and where Python finds csub_loader."""
        paths = [FOR_TASKS, *filter(None, [self._environ.get("PYTHONPATH", "")])]
        return {
            "CSUB_LOADER_ADDRESS": "localhost",
            "CSUB_LOADER_PORT": str(self._ports[0]),
            "CSUB_LOADER_PORTS": ",".join(map(str, self._ports)),
            "PYTHONPATH": ":".join(paths),
        }

    def _wait_for_it(self, loader: Loader, now_s: float) -> None:
        if os.geteuid() in listeners(self._ports[0]):
            self._serves = True
            self._refusals = 0
            self._record.note(f"the shared loader serves, after {now_s - self._began_s:.1f} s")
        elif now_s - self._began_s > loader.wait_s:
            why = f"the shared loader did not listen on its port within {loader.wait_s} s: {self._last_line()}"
            self.quit()
            self._forget()
            self._give_up(f"{why}; see '{self._files.output}', or give it longer by --loader-wait")

    # --- its end ---

    def _take_end(self, now_s: float) -> str:
        """Take that it ended, and return why the tasks that read from it are lost."""
        assert self._ended_s is not None
        if self._status == 0 and self._used:
            if now_s - self._ended_s < _AFTER_ITS_END_S:
                return ""
            self._forget()
            return f"the shared loader ended, and the task did not within {_AFTER_ITS_END_S:.0f} s"
        served = self._serves
        last = self._last_line()
        refused = self._status != 0 and os.path.exists(self._files.step)
        self._kill()
        self._forget()
        if refused:
            self._refusals += 1
            self._wait_before_the_next(self._refusals - 1)
            if self._refusals >= _MOST_REFUSALS:
                self._give_up(f"Slurm refused the shared loader {self._refusals} times in a row: {last}")
            return ""
        self._deaths += 1
        self._wait_before_the_next(self._deaths - 1)
        when = "" if served else " before it served"
        why = f"the shared loader ended with status {self._status}{when}"
        if self._deaths > self._spec.retries:
            self._give_up(f"{why}, {self._deaths} times without a task done in between: {last}")
        else:
            self._record.note(f"{why}, and is started anew: {last}; see '{self._files.output}'")
        return "the shared loader ended" if served else ""

    def all_read(self) -> None:
        """Take that no task runs any more: one that has come to its end may be followed by the next."""
        if self._pid is not None and self._ended_s is not None and self._status == 0 and self._used:
            self._kill()
            self._forget()

    def _wait_before_the_next(self, power: int) -> None:
        self._not_before_s = clock.ticking() + min(2.0 ** min(power, 10), _LONGEST_WAIT_S)

    def _give_up(self, why: str) -> None:
        self.gave_up = why

    def _last_line(self) -> str:
        said = last_words(self._files.output, self._output_at, _WORDS_BYTES) + os.pread(self._said, _WORDS_BYTES, 0)
        lines = said.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        return lines[-1]

    def _forget(self) -> None:
        if self._pid is not None:
            os.close(self._said)
            folder, name = os.path.split(self._files.step)
            with suppress(OSError):  # a task may have emptied the folder
                for found in os.listdir(folder):
                    if found.startswith(f"{name}."):
                        os.unlink(os.path.join(folder, found))
        self._pid, self._serves = None, False

    def _tell(self, number: signal.Signals) -> None:
        """Signal its processes, or its srun where it has none yet."""
        if processes_of(self._run, (LOADER,)):
            signal_tasks(self._run, (LOADER,), number)
        elif self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _kill(self) -> None:
        left = processes_of(self._run, (LOADER,))
        if left:
            self._gpu.terminate(left)
            signal_tasks(self._run, (LOADER,), signal.SIGKILL)
        if self._ended_s is None and self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def _works(self) -> bool:
        return self._ended_s is None or bool(processes_of(self._run, (LOADER,)))

    def _reap(self) -> None:
        assert self._pid is not None
        if self._ended_s is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._status, self._ended_s = os.waitstatus_to_exitcode(status), clock.ticking()
                return
        clock.pause(0.05)


def free_ports(count: int) -> tuple[int, ...]:
    """Return so many ports that nobody on this node listens on now."""
    import socket

    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("", 0))
        return tuple(one.getsockname()[1] for one in sockets)
    finally:
        for one in sockets:
            one.close()


def listeners(port: int) -> set[int]:
    """Return the users who listen on a port of this node: what another one sends must not be taken for batches."""
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/self/net/{name}", encoding="ascii") as stream:
            for line in stream.readlines()[1:]:
                _, local, _, state, _, _, _, user, *_ = line.split()
                if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                    found.add(int(user))
    return found
