# SPDX-License-Identifier: Apache-2.0
"""colloc off: a user whose jobs csub is to leave as they are asked for."""

import os
import pwd
from typing import Annotated

from typer import Argument, Option

from slurm_colloc.cli.colloc.output import caller, say, site
from slurm_colloc.core.clock import now
from slurm_colloc.core.errors import ConfigError, InputError
from slurm_colloc.core.files import private_folder, remove, write_atomic
from slurm_colloc.estimate.site_stop import off_path
from slurm_colloc.report.text import local, stamp
from slurm_colloc.slurm.job_visibility import own_name

# Its user reads it: it names nobody else and no job.
_MODE = 0o644


def off(
    user: Annotated[str, Argument(help="whose jobs, for administrators; mine without a name")] = "",
    reason: Annotated[str, Option("--why", help="for whoever asks later")] = "",
    end: Annotated[bool, Option("--end", help="have csub decide again")] = False,
) -> None:
    """Keep csub off all jobs of a user, or mine."""
    mine = user in ("", own_name())
    state = "" if mine else site().paths.state
    if not (mine or state):
        raise ConfigError("'paths.state' is not set, and without it no other user's csub reads what is written here")
    try:
        path = off_path(state, os.geteuid() if mine else pwd.getpwnam(user).pw_uid)
    except KeyError:
        raise InputError(f"user '{user}' is not known here") from None
    if end:
        remove(path)
    elif mine:
        private_folder(os.path.dirname(path))
    else:
        from slurm_colloc.feedback.user_histories import make_history_folder  # with DuckDB, which csub's package lacks

        make_history_folder(state)
    if not end:
        write_atomic(
            path, f"by {caller()}, {stamp(local(now()))}{reason and ': '}{reason}".encode(errors="replace"), _MODE
        )
    whose, call = ("your jobs", "colloc off --end") if mine else (f"the jobs of {user}", f"colloc off {user} --end")
    say(f"csub decides about {whose}" if end else f"csub leaves {whose} as they are asked for; '{call}' ends this")
