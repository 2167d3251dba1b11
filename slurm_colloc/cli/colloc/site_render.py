# SPDX-License-Identifier: Apache-2.0
"""colloc site render: the files that an administrator installs."""

import os
import sys
from typing import Annotated

from typer import Option

from slurm_colloc.audit.timing import faults
from slurm_colloc.cli.colloc.output import say, site
from slurm_colloc.core.config_file import SYSTEM_FILE, find_site_file
from slurm_colloc.core.errors import ConfigError
from slurm_colloc.site.render import DEFAULT_SLURM_CONF, FILES, ORDER, Host, Needs, SiteFile, render_site, write_folder


def render(
    output: Annotated[str, Option("--output", "-o", help="folder to write, a new one or one that this wrote before")],
    prefix: Annotated[str, Option(help="where it is installed; else where this command was called")] = "",
    slurm_conf: Annotated[str, Option(help="else $SLURM_CONF or /etc/slurm/slurm.conf")] = "",
) -> None:
    """Write the files that an administrator installs. In which order to apply them stands in ORDER.md."""
    config = site()
    if refused := "; ".join(faults(config)):
        raise ConfigError(f"each audit would end in an error: {refused}")
    _write(output, render_site(config, this_host(prefix, slurm_conf)))


def this_host(prefix: str = "", slurm_conf: str = "") -> Host:
    """Return where things lie here, by what was given and else by how this was called."""
    return Host(
        prefix or _prefix(),
        os.path.abspath(find_site_file() or SYSTEM_FILE),
        slurm_conf or os.environ.get("SLURM_CONF") or DEFAULT_SLURM_CONF,
    )


def _prefix() -> str:
    """Return the link to this installation, where there is one: an upgrade turns that, and files keep it.

    It is what this command was called through, or the name of the folder without the version behind it.
    """
    called = os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0])))
    for link in (called, sys.prefix.rpartition("-")[0]):
        if link and os.path.realpath(link) == os.path.realpath(sys.prefix):
            return link
    return sys.prefix


def _write(output: str, files: tuple[SiteFile, ...]) -> None:
    texts = {file.name: file.text for file in files}
    written, removed = write_folder(output, texts, (file.name for file in FILES))
    needs = {file.name: file.needs for file in files}
    for name in written:
        later = "" if needs[name] == Needs.NOTHING else f"; to apply it: {needs[name]}"
        print(f"wrote {name}{later}")
    for name in removed:
        print(f"removed {name}: this site no longer has it")
    if not written:
        print("unchanged: all files")
    say(f"nothing was installed; read '{os.path.join(output, ORDER)}', which says in which order and why")
