# SPDX-License-Identifier: Apache-2.0
"""All paths that an installation uses, for its removal."""

import os
from collections.abc import Iterable
from typing import NamedTuple

from slurm_colloc.config import SiteConfig
from slurm_colloc.site.render import (
    LOG_FOLDER,
    Host,
    Rendered,
    built,
    is_site,
    journal_folder,
    runs_mps,
    unwanted,
)

# Below paths.state; the folder itself may hold other things of the site's.
STATE_FOLDERS = ("store", "history", "rendered")


class Place(NamedTuple):
    """A path, the hosts that have it, and what it is."""

    path: str
    hosts: str
    what: str


def places(config: SiteConfig, host: Host, files: Iterable[Rendered]) -> tuple[Place, ...]:
    """Return each place, those to be emptied first standing first."""
    own = (*_built(config), *_earlier(config, host), *_of_site(config)) if is_site(config) else ()
    return (*_installed(files), *own, *_of_users(), *_program(host))


def _installed(files: Iterable[Rendered]) -> Iterable[Place]:
    for file in files:
        if file.installed:
            what = f"the lines of {file.name} in it" if file.part else "installed from the rendered folder"
            yield Place(file.installed, file.hosts, what)


def _built(config: SiteConfig) -> Iterable[Place]:
    for file in built(config):
        yield Place(file.installed, file.hosts, "built by 'colloc site build-plugin'")


def _earlier(config: SiteConfig, host: Host) -> Iterable[Place]:
    for file in unwanted(config, host):
        yield Place(file.installed, file.hosts, "where an earlier site.toml asked for it")


def _of_site(config: SiteConfig) -> Iterable[Place]:
    for name in STATE_FOLDERS:
        yield Place(os.path.join(config.paths.state, name), "shared", "paths.state: what was measured and decided")
    yield Place(config.audit_folder, "the one host that ingests", "what audits remember")
    notices = config.notices
    for outlet in (notices.textfile, notices.textfile_of_jobs):
        if outlet:
            yield Place(outlet, "the one host that ingests", "what 'colloc audit run --notify' writes")
    yield Place(journal_folder(config), "GPU nodes", "the nodes' journals")
    if config.paths.decisions:
        yield Place(config.paths.decisions, "shared", "paths.decisions: a folder of each user's")
    if runs_mps(config):
        yield Place("/run/colloc", "GPU nodes", "the shared MPS daemons' folders; gone at the next boot")
        yield Place("/var/log/colloc-mps.log", "GPU nodes", "what colloc-mps said where there is no syslog")
    yield Place(config.known_jobs.table, "the host of slurmctld", "what 'colloc policy table' wrote")
    yield Place(LOG_FOLDER, "the one host that ingests", "logs of the cron lines")


def _of_users() -> Iterable[Place]:
    config, data = "${XDG_CONFIG_HOME:-~/.config}", "${XDG_DATA_HOME:-~/.local/share}"
    yield Place(f"{config}/slurm_colloc", "each user's home", "a site.toml of the user's own")
    yield Place(f"{data}/slurm_colloc", "each user's home", "decisions, evidence, packs, records of reruns")
    yield Place("${TMPDIR:-/tmp}/csub-*", "login nodes", "a script on its way to sbatch; gone when csub ends")
    yield Place("${TMPDIR:-/tmp}/csub-mps-*", "GPU nodes", "a pack's MPS daemon; gone when its job ends")


def _program(host: Host) -> Iterable[Place]:
    yield Place(host.site_file, "every host", "the site file")
    for name in ("commands", "modulefiles", "shim"):
        yield Place(os.path.join(os.path.dirname(host.site_file), name), "login nodes", "what users have on PATH")
    if os.path.islink(host.prefix):
        yield Place(host.prefix, "every host", "the link to the release in use")
        yield Place(os.path.realpath(host.prefix), "every host", "the program; earlier releases lie where you put them")
    else:
        yield Place(host.prefix, "every host", "the program")
