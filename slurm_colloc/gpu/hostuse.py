# SPDX-License-Identifier: Apache-2.0
"""What jobs do on the node besides their GPUs, so that an idle GPU can be told from a starved one."""

from collections.abc import Iterable

from slurm_colloc.gpu.proc import ProcessTable
from slurm_colloc.model import HostSample


class HostUse:
    """Counters of jobs since the previous call."""

    def read(self, table: ProcessTable, jobs: Iterable[str]) -> tuple[HostSample, ...]:
        """Return what each of ``jobs`` did on the host since the previous call."""
        return ()
