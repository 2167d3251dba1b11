# SPDX-License-Identifier: Apache-2.0
"""Checks a whole site.toml: values that some command would refuse later, and paths on this host."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import nullcontext

from slurm_colloc.audit.validate import faults, file_faults
from slurm_colloc.cli.colloc.output import node_name
from slurm_colloc.cli.colloc.site_render import this_host
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import ConfigError
from slurm_colloc.core.files import as_user
from slurm_colloc.site.doctor.facts import Blank, Seen
from slurm_colloc.site.named_folders import Keepers, keepers, look, user_called
from slurm_colloc.site.render import SiteFile, render_site
from slurm_colloc.slurm.options import join_options

_SERVICE_USER = re.compile(r"^User=(\S+)$", re.MULTILINE)


def rendered(config: SiteConfig) -> tuple[tuple[SiteFile, ...], list[str]]:
    """Return a site's files, and why some command would refuse its site.toml, whatever cluster and host are like."""
    files: tuple[SiteFile, ...] = ()
    refused = [*faults(config)]
    try:
        join_options((), config.sbatch_options)
    except ConfigError as error:
        refused.append(str(error))
    try:
        files = render_site(config, this_host())
    except ConfigError as error:
        refused.append(str(error))
    return files, list(dict.fromkeys(refused))


def paths(config: SiteConfig, files: Iterable[SiteFile], site_file: str) -> list[Seen | Blank]:
    """Return what is wrong with the paths of a site on this host, and what cannot be said of them from here."""
    service = next((found[1] for file in files if (found := _SERVICE_USER.search(file.text))), "")
    keep = keepers(service, site_file)
    return [*look(config, keep, node_name()), *_files(config, keep)]


def _files(config: SiteConfig, keep: Keepers) -> Iterator[Seen | Blank]:
    """Yield what is wrong with the command that [notices] names, as the user who audits finds it; one host has them."""
    user = user_called(keep.service)
    if not config.notices.command and config.notices.mode == "off":
        return
    if os.geteuid() != (user.pw_uid if user else 0) and os.geteuid() != 0:
        yield Blank("notices", "the command that it names is for who audits: look as root")
        return
    here = os.path.isdir(config.audit_folder)
    with as_user(user.pw_uid, user.pw_gid) if user and os.geteuid() == 0 else nullcontext():
        found = list(file_faults(config))
    for key, path, why in found:
        there = here or os.path.lexists(path)
        yield (Seen if there else Blank)(f"{key} '{path}'", why)
