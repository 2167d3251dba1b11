# SPDX-License-Identifier: Apache-2.0
"""What the tasks of a pack read their batches from: one producer, started before them and ended after them.

It is a step like a task, with ports of its own. Its consumers wait for ever for one that has gone, so its end is the
end of the tasks that read from it, and they are run again beside a new one.
"""

import os
import signal
from contextlib import suppress

from slurm_colloc import clock
from slurm_colloc.errors import InputError, ProcessError, StoreError
from slurm_colloc.runtime.files import last_words, open_output
from slurm_colloc.runtime.run import Run
from slurm_colloc.runtime.spec import Loader
from slurm_colloc.runtime.step import JUDGED_AFTER_S, MOST_REFUSALS, Backoff, Step
from slurm_colloc.runtime.steps import RUN_VARIABLE, TASK_VARIABLE, Files, step_line

# The number by which its processes are known; no task has it.
LOADER = -1
# As many as a TensorProducer takes: its batches', its acknowledgements' and two for its heartbeats.
_PORTS = 4
FOR_TASKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "for_tasks")
# One that has come to its end has sent all it had; what its tasks still do with that takes its time.
_AFTER_ITS_END_S = 300.0
_GENTLE_S, _FORCED_S, _PAUSE_S = 2.0, 4.0, 0.05
_WORDS_BYTES = 4096
_LISTENS = "0A"


class SharedLoader:
    """The loader of one job; of a pack without one it is always ready."""

    def __init__(self, run: Run, at_once: int) -> None:
        """Make ready to start it beside ``at_once`` tasks at most."""
        spec, job = run.spec, run.job
        self._run, self._loader = run, spec.loader
        self._cores = job.cores[at_once * spec.cpus_per_task :] or job.cores
        output = os.path.join(job.folder, spec.loader.output.replace("%j", job.job_id)) if spec.loader else os.devnull
        step = os.path.join(os.path.dirname(run.files.script), "step-loader")
        self._files = Files(step, output, output, os.devnull)
        self._ports: tuple[int, ...] = ()
        self._step: Step | None = None
        self._output_at = 0
        self._serves = self._used = False
        self._deaths, self._refusals = Backoff(), Backoff()
        self.gave_up = ""

    @property
    def starting(self) -> bool:
        """Return whether it is waited for."""
        return self._step is not None and not self._serves

    def ready(self, *, idle: bool) -> bool:
        """Return whether a task may begin, and start a loader where there is none; ``idle``: no task runs."""
        if self._loader is None:
            return True
        if self._step is None and idle and not self.gave_up and self._deaths.over and self._refusals.over:
            self._begin(self._loader)
        return self._serves and self._step is not None and self._step.ended_s is None

    def environment(self) -> dict[str, str]:
        """Return what a task needs to find it; from then on it counts as used."""
        self._used = True
        return self._places() if self._loader is not None else {}

    def got_through(self) -> None:
        """Take that a task was done: what died before was no lasting trouble."""
        self._deaths.worked()

    def look(self) -> str:
        """Look how it does, and return why the tasks that read from it are lost, once; "" while they are not."""
        step = self._step
        if self._loader is None or step is None:
            return ""
        now_s = clock.ticking()
        step.reap(now_s)
        if step.ended_s is None:
            if not self._serves:
                self._wait_for_it(self._loader, step, now_s)
            return ""
        ended_for_s = now_s - step.ended_s
        return self._take_end(step, ended_for_s) if ended_for_s >= JUDGED_AFTER_S else ""

    def all_read(self) -> None:
        """Take that no task runs any more: one that has come to its end may be followed by the next."""
        step = self._step
        if step is not None and step.ended_s is not None and step.status == 0 and self._used:
            self._clear(step)

    def quit(self) -> None:
        """End it, by force if need be; the next task that is to begin starts a new one."""
        step = self._step
        if step is None:
            return
        waited_from_s = clock.ticking()
        if step.ended_s is None:
            if not self._run.signal([step], signal.SIGTERM):
                step.signal_srun(signal.SIGTERM)
            # Its srun may be gone before what it started.
            while self._works(step) and clock.ticking() - waited_from_s < _GENTLE_S:
                clock.pause(_PAUSE_S)
                step.reap(clock.ticking())
        self._run.kill([step])
        step.signal_srun(signal.SIGTERM)
        while step.ended_s is None and clock.ticking() - waited_from_s < _FORCED_S:
            clock.pause(_PAUSE_S)
            step.reap(clock.ticking())
        self._forget(step)

    # --- beginning ---

    def _begin(self, loader: Loader) -> None:
        run = self._run
        self._serves = self._used = False
        try:
            self._output_at = open_output(self._files.output, append=True)
            self._ports = free_ports(_PORTS)
            srun_output = run.files.make_private(self._files)
            variables = self._variables(loader)
            command = ["/bin/sh", "-c", loader.command]
            argv = step_line([run.srun, "-J", "loader"], run.job, self._files, self._cores, variables, command)
            pid = run.spawn(argv, srun_output)
        except (InputError, StoreError, ProcessError, OSError) as error:
            self.gave_up = f"the shared loader cannot be started: {error}"
            return
        self._step = Step(number=LOADER, files=self._files, pid=pid, srun_output=srun_output, began_s=clock.ticking())

    def _variables(self, loader: Loader) -> dict[str, str]:
        run, cpus = self._run, str(loader.cpus)
        return {
            "SLURM_CPUS_PER_TASK": cpus,
            **({} if "OMP_NUM_THREADS" in run.environ else {"OMP_NUM_THREADS": cpus}),
            "SLURM_OVERLAP": "1",
            TASK_VARIABLE: str(LOADER),
            RUN_VARIABLE: run.name,
            **run.gpu.environment(run.spec.load),
            **self._places(),
        }

    def _places(self) -> dict[str, str]:
        """Return where it serves, for itself and for the tasks, and where Python finds csub_loader."""
        paths = [FOR_TASKS, *filter(None, [self._run.environ.get("PYTHONPATH", "")])]
        return {
            "CSUB_LOADER_ADDRESS": "localhost",
            "CSUB_LOADER_PORT": str(self._ports[0]),
            "CSUB_LOADER_PORTS": ",".join(map(str, self._ports)),
            "PYTHONPATH": ":".join(paths),
        }

    def _wait_for_it(self, loader: Loader, step: Step, now_s: float) -> None:
        if os.geteuid() in listeners(self._ports[0]):
            self._serves = True
            self._refusals.worked()
            self._run.record.note(f"the shared loader serves, after {now_s - step.began_s:.1f} s")
        elif now_s - step.began_s > loader.wait_s:
            why = f"the shared loader did not listen on its port within {loader.wait_s} s: {self._last_line(step)}"
            self.quit()
            self.gave_up = f"{why}; see '{self._files.output}', or give it longer by --loader-wait"

    # --- its end ---

    def _take_end(self, step: Step, ended_for_s: float) -> str:
        """Take that it ended so long ago, and return why the tasks that read from it are lost."""
        if step.status == 0 and self._used:
            if ended_for_s < _AFTER_ITS_END_S:
                return ""
            self._forget(step)
            return f"the shared loader ended, and the task did not within {_AFTER_ITS_END_S:.0f} s"
        served, refused, last = self._serves, step.refused, self._last_line(step)
        self._clear(step)
        if refused:
            self._refusals.failed()
            if self._refusals.failures >= MOST_REFUSALS:
                self.gave_up = f"Slurm refused the shared loader {MOST_REFUSALS} times in a row: {last}"
            return ""
        self._deaths.failed()
        when = "" if served else " before it served"
        why = f"the shared loader ended with status {step.status}{when}"
        if self._deaths.failures > self._run.spec.retries:
            self.gave_up = f"{why}, {self._deaths.failures} times without a task done in between: {last}"
        else:
            self._run.record.note(f"{why}, and is started anew: {last}; see '{self._files.output}'")
        return "the shared loader ended" if served else ""

    def _last_line(self, step: Step) -> str:
        said = last_words(self._files.output, self._output_at, _WORDS_BYTES) + step.srun_said()
        lines = said.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        return lines[-1]

    def _works(self, step: Step) -> bool:
        return step.ended_s is None or bool(self._run.processes([step]))

    def _clear(self, step: Step) -> None:
        """Kill what it left behind."""
        self._run.kill([step])
        self._forget(step)

    def _forget(self, step: Step) -> None:
        step.close(self._run.job.job_id)
        self._step, self._serves = None, False


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
