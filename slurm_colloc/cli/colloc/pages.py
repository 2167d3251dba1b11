# SPDX-License-Identifier: Apache-2.0
"""colloc pages: a page for each user, which nobody else may read, for a portal such as Open OnDemand."""

import os
import pwd
from datetime import datetime
from typing import Annotated

from typer import Argument, Exit

from slurm_colloc.cli.colloc.options import Since, StoreFolder
from slurm_colloc.cli.colloc.output import say, site_or_none, state_folder, window
from slurm_colloc.cli.colloc.visible_store import added_up
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import Status, StoreError
from slurm_colloc.core.files import PRIVATE_FILE, passable_folder, write_atomic
from slurm_colloc.core.units import counted
from slurm_colloc.core.usage_model import JobUsage
from slurm_colloc.facts.aggregate import last_usages
from slurm_colloc.facts.counts import count_runs
from slurm_colloc.facts.fits import fits_of
from slurm_colloc.facts.usage import used_hours_by
from slurm_colloc.report.text import local
from slurm_colloc.report.usage import fits_by_group
from slurm_colloc.report.user_page import UserPage, page_maker
from slurm_colloc.slurm.job_visibility import EVERYBODY, Visible, own_name
from slurm_colloc.store.equivalents import SLICES
from slurm_colloc.store.store import open_store

# A page of so many of a user's runs; more are what 'colloc report' is for.
_RUNS = 20
_FILE = "index.html"


def pages(
    folder: Annotated[str, Argument(help="has USER/index.html afterwards")],
    since: Since = "30d",
    store: StoreFolder = "",
) -> None:
    """Write a private page for each user who had a GPU. Who is not root writes only the own one.

    Exit status 1: some pages were not written.
    """
    start, end = window(since, "now")
    config = site_or_none()
    user_pages = _pages(config, store or state_folder("store"), start, end)
    make = page_maker(config.paths.templates if config else "")
    written, unknown, failed = 0, 0, 0
    top = passable_folder(folder)
    try:
        for name, page in user_pages.items():
            uid = _uid(name)
            if uid is None:
                unknown += 1
                continue
            try:
                _give(top, name, make(page), uid)
                written += 1
            except StoreError as error:
                say(f"error: {error}")
                failed += 1
    finally:
        os.close(top)
    gone = f", {counted(unknown, 'user')} without an account here" if unknown else ""
    say(f"{counted(written, 'page')} written in '{folder}'{gone}{f', {failed} not' if failed else ''}")
    if failed:
        raise Exit(Status.FOUND)


def _pages(config: SiteConfig | None, folder: str, start: datetime, end: datetime) -> dict[str, UserPage]:
    visible = EVERYBODY if is_root() else Visible(False, own_name())
    source = open_store(folder, config, visible=visible)
    with added_up(source, (start, end)) as (database, _):
        *groups, _ = used_hours_by(database, "user")
        runs: dict[str, list[JobUsage]] = {}
        for run in last_usages(database, _RUNS):
            runs.setdefault(run.user, []).append(run)
        cluster = ", ".join(count_runs(database).clusters)
        fits = fits_by_group(fits_of(database, "user", config, SLICES)) if config else {}
    present = local(now())
    return {
        group.name: UserPage(cluster, start, end, present, group, runs.get(group.name, ()), fits.get(group.name))
        for group in groups
    }


def is_root() -> bool:
    """Return whether this can give files away."""
    return os.geteuid() == 0


def _uid(name: str) -> int | None:
    """Return whose name it is, None for nobody's and for what is no name of a folder."""
    if not name or "/" in name or "\0" in name or name.startswith("."):
        return None
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, UnicodeEncodeError):
        return None


def _give(top: int, name: str, text: str, uid: int) -> None:
    """Write one page: the folder stays ours, so that nothing can be planted in it; the file is the user's alone.

    A group's right to read would be everybody's in it, and many sites have one for all users.
    """
    folder = passable_folder(name, top)
    try:
        owner = uid if uid != os.geteuid() else None
        write_atomic(_FILE, text.encode(errors="backslashreplace"), PRIVATE_FILE, folder, owner=owner)
    finally:
        os.close(folder)
