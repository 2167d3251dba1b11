# SPDX-License-Identifier: Apache-2.0
"""The MPS daemon on a pack's GPU: started again when it dies, given up when that fails.

The tasks run one at a time if there is no daemon: several on one GPU that know nothing of each other are what a pack is
there to avoid. Whether a task truly is a client is asked, for one that is not says nothing and takes the whole GPU.
"""

from collections.abc import Callable, Iterable, Mapping

from slurm_colloc.core.errors import InputError, ProcessError
from slurm_colloc.core.model import Load
from slurm_colloc.pack.mps_daemon import Mps, short_folder
from slurm_colloc.pack.srun import into_containers

_MOST_DEATHS = 3


def only_device(environ: Mapping[str, str]) -> str:
    """Return the one GPU that Slurm gave to the job.

    Raises:
        InputError: there is none, or several.
    """
    devices = [
        device for device in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device and device != "NoDevFiles"
    ]
    if len(devices) != 1:
        value = environ.get("CUDA_VISIBLE_DEVICES")
        raise InputError(
            f"the tasks of a pack share one GPU, and Slurm gave {len(devices)} to this job"
            f" (CUDA_VISIBLE_DEVICES={'is not set' if value is None else repr(value)}); ask for --gres=gpu:1"
        )
    return devices[0]


class SharedGpu:
    """The daemon of one job, if it has one."""

    def __init__(self, job_id: str, at_once: int, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        """Start a daemon where more than one task is to run at a time.

        Args:
            job_id: of the pack.
            at_once: how many tasks run at a time.
            environ: the environment of the batch script.
            say: told what goes wrong.

        Raises:
            InputError: there is no one GPU to share.
        """
        self._job_id, self._environ, self._say = job_id, environ, say
        self._wanted = at_once
        self._deaths = 0
        self._mps: Mps | None = None
        if at_once > 1:
            self._device = only_device(environ)
            self._begin()

    @property
    def at_once(self) -> int:
        """Return how many tasks may run at a time now: more than one under a daemon alone."""
        return self._wanted if self._mps is not None else 1

    @property
    def is_first(self) -> bool:
        """Return whether Slurm, too, calls the GPU number 0, as its daemon does."""
        return self._mps is None or not self._device.isdigit() or self._device == "0"

    @property
    def dead(self) -> bool:
        """Return whether the daemon died; ``renew`` puts an end to that."""
        return self._mps is not None and not self._mps.alive()

    def environment(self, load: Load) -> dict[str, str]:
        """Return what a task needs in its environment; nothing where there is no daemon."""
        if self._mps is None:
            return {}
        ours = self._mps.environment(load, self._environ)
        return ours | into_containers(ours, (self._mps.pipe, self._mps.log), self._environ)

    def renew(self) -> None:
        """Start the daemon anew after it died, once no task of the dead one runs; after some times give it up."""
        self.quit()
        self._deaths += 1
        if self._deaths > _MOST_DEATHS:
            self._say(f"the MPS daemon died {self._deaths} times: the tasks run one at a time from now on")
        else:
            self._begin()

    def clients(self) -> set[int] | None:
        """Return the pids of the daemon's clients, None where it does not answer."""
        return None if self._mps is None else self._mps.clients()

    def terminate(self, pids: Iterable[int]) -> None:
        """Take these off the GPU before they are killed, as far as the daemon answers."""
        if self._mps is not None:
            self._mps.terminate(pids)

    def quit(self) -> None:
        """End the daemon."""
        if self._mps is not None:
            self._mps.quit()
            self._mps = None

    def _begin(self) -> None:
        try:
            self._mps = Mps.start(short_folder(self._job_id, self._environ), self._device, self._environ)
        except ProcessError as error:
            self._say(f"{error}: the tasks run one at a time")
