# SPDX-License-Identifier: Apache-2.0
"""``python -I -m slurm_colloc.rebind.program``: looks at its user's waiting jobs, and again at what it has changed.

It is started by csub and by the sampler within a job, for jobs of the same user, and says nothing: the user's folder of
waiting jobs has its results.
"""

import os
import sys
from time import sleep

from slurm_colloc.core.config_file import find_site_file, load_site
from slurm_colloc.core.errors import CollocError
from slurm_colloc.estimate.site_stop import off_for_me, why_stopped
from slurm_colloc.rebind.look import look
from slurm_colloc.slurm.client import CliClient

# slurmctld has been round its queue by then (sched_interval 60 s), and a job that cannot start says why.
WATCHED_AFTER_S = 65.0


def main(watched_after_s: float = WATCHED_AFTER_S, *, undo: bool = False) -> int:
    """Look, and return the exit status."""
    # The folder is of this site's cluster, whichever others the user submits to.
    os.environ.pop("SLURM_CLUSTERS", None)
    try:
        for wait_s in (0.0, watched_after_s):
            sleep(wait_s)
            if not (path := find_site_file()):
                break
            config = load_site(path)
            # Changes from before somebody switched it off are put back.
            off = not config.binds_late or "auto" not in config.policies
            state = config.paths.state
            undo = undo or off or bool(why_stopped(state, late=True) or off_for_me(state))
            if not look(config, CliClient(), undo=undo).bound:
                break
    except CollocError as error:
        return error.exit_status
    return 0


if __name__ == "__main__":
    os.nice(10)
    sys.exit(main())
