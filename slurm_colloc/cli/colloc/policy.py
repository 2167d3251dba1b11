# SPDX-License-Identifier: Apache-2.0
"""colloc policy: the table of known jobs that job_submit.lua reads."""

import grp
import os
import pwd
from typing import Annotated

from typer import Option, Typer

from slurm_colloc.cli.colloc.options import StoreFolder
from slurm_colloc.cli.colloc.output import say, site
from slurm_colloc.core.clock import now
from slurm_colloc.core.errors import ConfigError, StoreError
from slurm_colloc.core.files import whose, write_atomic
from slurm_colloc.core.wording import words
from slurm_colloc.estimate.policy_table import MOST_RECORDS, PLACE, table_text
from slurm_colloc.estimate.site_margins import site_calibration
from slurm_colloc.estimate.site_stop import why_stopped
from slurm_colloc.feedback.known_jobs import known_jobs
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.store.store import open_store

_MODE = 0o640
app = Typer(no_args_is_help=True, help="Write the list of known jobs that job_submit.lua reads.")


@app.command("table")
def table(
    output: Annotated[str, Option("--output", "-o", help="file to write")] = PLACE,
    group: Annotated[str, Option(help="who may read it; else SlurmUser's group")] = "",
    store: StoreFolder = "",
) -> None:
    """Write the list of known jobs for job_submit.lua. It is for root and SlurmUser's group alone."""
    config = site()
    path = os.path.abspath(output)
    calibration, reason = site_calibration(config.paths.state)
    if reason:
        say(words(reason))
    source = open_store(store or config.store_folder, config)
    stopped = why_stopped(config.paths.state)
    if stopped:
        say(f"no job is known to slurmctld: {stopped}")
    jobs = [] if stopped else list(known_jobs(source, config, calibration))
    if len(jobs) > MOST_RECORDS:
        say(f"{len(jobs)} jobs are known, more than slurmctld reads; the {MOST_RECORDS} with the most runs are kept")
    reader = _group(group) if group else _slurm_group()
    _make_folder(os.path.dirname(path))
    write_atomic(path, table_text(jobs, now()), _MODE, durable=True, group=reader)
    say(f"{min(len(jobs), MOST_RECORDS)} known jobs in '{path}'")


def _group(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"group '{name}' is not known here") from None


def _slurm_group() -> int:
    """Return the group of SlurmUser, as whom slurmctld reads the table."""
    user = CliClient().config().get("SlurmUser", "").partition("(")[0]
    try:
        return pwd.getpwnam(user).pw_gid
    except KeyError:
        raise ConfigError(f"SlurmUser '{user}' is not known here; name its group by --group") from None


def _make_folder(path: str) -> None:
    """Make the folder where it is missing; one that others may write to is no place for what slurmctld reads."""
    try:
        if not os.path.isdir(path):
            os.makedirs(path)
            os.chmod(path, 0o755)  # noqa: S103 - whatever the umask: slurmctld is no root
        status = os.stat(path)
    except OSError as error:
        raise StoreError(f"folder '{path}' cannot be made: {error.strerror}; {whose(path)}") from error
    if status.st_mode & 0o022 or status.st_uid not in (0, os.geteuid()):
        raise StoreError(f"others may write into folder '{path}', and so tell slurmctld what they like; name another")
