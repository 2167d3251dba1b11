# SPDX-License-Identifier: Apache-2.0
"""colloc site render: the files that an administrator installs, and how they compare with what is installed."""

import os
import sys
from typing import Annotated

import typer

from slurm_colloc.audit.validate import faults
from slurm_colloc.cli.colloc.output import say, site
from slurm_colloc.config import SYSTEM_FILE, SiteConfig, find_site_file
from slurm_colloc.errors import ConfigError, InputError, Status
from slurm_colloc.site.installed import Compared, compare, left_over
from slurm_colloc.site.output_folder import ORDER, write_folder
from slurm_colloc.site.render import (
    CRONTAB,
    DEFAULT_SLURM_CONF,
    FILES,
    Host,
    Kind,
    Needs,
    SiteFile,
    is_site,
    render_site,
    unwanted,
)
from slurm_colloc.units import printable


def render(
    output: Annotated[
        str, typer.Option("--output", "-o", help="folder to write, a new one or one that this wrote before")
    ] = "",
    diff: Annotated[
        bool, typer.Option("--diff", help="compare with what is installed; without -o write nothing")
    ] = False,
    prefix: Annotated[
        str, typer.Option("--prefix", help="where it is installed; else where this command was called")
    ] = "",
    slurm_conf: Annotated[str, typer.Option("--slurm-conf", help="else $SLURM_CONF or /etc/slurm/slurm.conf")] = "",
    root: Annotated[str, typer.Option("--root", help="look below this folder for what is installed: an image")] = "/",
) -> None:
    """Write the files that an administrator installs. In which order to apply them stands in ORDER.md.

    With --diff the exit status is 1 where something differs, is missing or cannot be read.
    """
    config = site()
    if refused := "; ".join(faults(config)):
        raise ConfigError(f"each audit would end in an error: {refused}")
    host = this_host(prefix, slurm_conf)
    files = render_site(config, host)
    if not (output or diff):
        raise InputError("-o FOLDER is missing: where to write, or --diff to compare only")
    if output:
        _write(output, files)
    if not diff:
        return
    compared = [*compare(files, root, _owners(config, root)), *left_over(unwanted(config, host), root)]
    done = [_told(item) for item in compared]
    if any(file.name == CRONTAB for file in files):
        say(f"note: {CRONTAB} is not compared: see 'crontab -l'")
    if not all(done):
        raise typer.Exit(Status.FOUND)
    say("nothing to do: all of it is installed on this host")


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


def _owners(config: SiteConfig, root: str) -> tuple[int, ...]:
    """Return who may own what root runs; an image may be whoever's who makes it, and one user installs nothing."""
    if not is_site(config):
        return ()
    return (0,) if os.path.realpath(root) == "/" else (0, os.geteuid())


def _write(output: str, files: tuple[SiteFile, ...]) -> None:
    texts = {file.name: file.text for file in files if file.kind != Kind.BUILT}
    written, removed = write_folder(output, texts, (file.name for file in FILES if file.kind != Kind.BUILT))
    needs = {file.name: file.needs for file in files}
    for name in written:
        later = "" if needs[name] == Needs.NOTHING else f"; to apply it: {needs[name]}"
        print(f"wrote {name}{later}")
    for name in removed:
        print(f"removed {name}: this site no longer has it")
    if not written:
        print("unchanged: all files")
    say(f"nothing was installed; read '{os.path.join(output, ORDER)}', which says in which order and why")


def _told(item: Compared) -> bool:
    """Print how a file compares; return whether nothing is left to do."""
    print(f"{item.name}: {item.state}, {printable(item.path)}")
    for line in item.lines:
        print(f"    {printable(line)}")
    return item.state == "same"
