# SPDX-License-Identifier: Apache-2.0
"""``python -I -m slurm_colloc.rebind.program``: looks at its user's waiting jobs, and again at what it has changed.

It is started by csub and by the sampler within a job, for jobs of the same user, and says nothing: what it does stands
in the user's folder of waiting jobs.
"""

import os
import sys
from time import sleep

from slurm_colloc.core.config import find_site_file, load_site
from slurm_colloc.core.errors import CollocError
from slurm_colloc.rebind.look import look
from slurm_colloc.slurm.client import CliClient

# slurmctld has been round its queue by then (sched_interval 60 s), and a job that cannot start says why.
WATCHED_AFTER_S = 65.0


def main(watched_after_s: float = WATCHED_AFTER_S, *, undo: bool = False) -> int:
    """Look, and return the exit status."""
    try:
        path = find_site_file()
        config = load_site(path) if path else None
        if config is None:
            return 0
        # What was changed before the site switched it off is put back.
        undo = undo or config.sharing.late_binding == "off"
        if look(config, CliClient(), undo=undo).bound and not undo:
            sleep(watched_after_s)
            look(config, CliClient())
    except CollocError as error:
        return error.exit_status
    return 0


if __name__ == "__main__":
    os.nice(10)
    sys.exit(main())
