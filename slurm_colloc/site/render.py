# SPDX-License-Identifier: Apache-2.0
"""The files that an administrator copies to where they belong, made from site.toml.

files.toml has a table for each of them. Only characters that mean nothing to any of the programs that read these files
pass from site.toml into them: values that a template prints go through ``_plain``. The folder has these files and no
others.
"""

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from importlib.resources import files
from typing import Any, NamedTuple

from slurm_colloc.core.config import TIERS, SiteConfig
from slurm_colloc.core.config_file import SYSTEM_FILE
from slurm_colloc.core.errors import ConfigError, InputError, StoreError
from slurm_colloc.core.files import write_atomic
from slurm_colloc.core.shipped import plugin, template_folders
from slurm_colloc.estimate.policy_table import PLACE
from slurm_colloc.site.fragments import (
    Alike,
    alike,
    billing_weights,
    devices,
    gres_conf_lines,
    gres_types,
    node_gres,
    partition_words,
    tres,
    uneven_shares,
)
from slurm_colloc.site.policy import has_policy, policies
from slurm_colloc.slurm.hostlist import expand

DEFAULT_SLURM_CONF = "/etc/slurm/slurm.conf"
NODE_JOURNAL = "/var/lib/slurm_colloc/journal"
LOG_FOLDER = "/var/log/slurm_colloc"
# Root runs what lies there, on the node's own disk: whoever may change --prefix may not change it.
LIBEXEC = "/usr/libexec/slurm_colloc"
# This file marks a folder of ours: /etc/slurm has a gres.conf, too.
ORDER = "ORDER.md"


class Needs(StrEnum):
    """The step that a file takes where it is installed."""

    NOTHING = "nothing"
    RECONFIGURE = "scontrol reconfigure"
    DRAIN = "drain first"


class Kind(StrEnum):
    """The origin of a file's text, and its use."""

    WHOLE = "whole"
    # Merged by hand into the installed file.
    PART = "part"
    # No template: it lies in slurm_colloc/plugin as it is installed.
    VERBATIM = "verbatim"


class SiteFile(NamedTuple):
    """One file; ``installed`` is the path on its hosts, empty where it is not installed as a file."""

    name: str
    installed: str
    hosts: str
    needs: Needs
    wanted: Callable[[SiteConfig], bool]
    kind: Kind = Kind.WHOLE
    text: str = ""


class Host(NamedTuple):
    """The places of this installation, the site file and slurm.conf, which site.toml does not say."""

    prefix: str
    site_file: str = SYSTEM_FILE
    slurm_conf: str = DEFAULT_SLURM_CONF


def is_site(config: SiteConfig) -> bool:
    """Return whether an administrator keeps this site; else one user does, who changes nothing of Slurm's."""
    return bool(config.paths.state)


def has_agent(config: SiteConfig) -> bool:
    """Return whether the services run on the nodes of this site."""
    return is_site(config) and config.observe.agent


def _has_csub(config: SiteConfig) -> bool:
    return config.tier != "report"


def _mps_by_prolog(config: SiteConfig) -> bool:
    return is_site(config) and config.sharing.mps_daemon == "prolog"


_LUA = "{slurm_folder}/colloc"
_WANTED: dict[str, Callable[[SiteConfig], bool]] = {
    "site": is_site,
    "agent": has_agent,
    "user": lambda config: not is_site(config),
    "csub": _has_csub,
    "pieces": lambda config: is_site(config) and bool(config.pool) and config.tier == "place",
    "mps_by_prolog": _mps_by_prolog,
    "policy": has_policy,
    "calls": lambda config: _mps_by_prolog(config) or has_policy(config),
}


def _site_file(wanted: str, needs: str = Needs.NOTHING, kind: str = Kind.WHOLE, **texts: str) -> SiteFile:
    return SiteFile(**texts, needs=Needs(needs), wanted=_WANTED[wanted], kind=Kind(kind))


_TABLE = tomllib.loads(files(__package__).joinpath("files.toml").read_text())
FILES = tuple(_site_file(**row) for row in _TABLE["file"])


def render_site(config: SiteConfig, host: Host) -> tuple[SiteFile, ...]:
    """Return the files of this site in the order in which they are applied, and ORDER.md as the last.

    Raises:
        ConfigError: a word of site.toml that may not stand in one of them, or a template that does not render.
    """
    _check(config, host)
    folders = [os.path.join(folder, "site") for folder in template_folders(config.paths.templates)]
    variables = _variables(config, host)
    rendered = []
    for file in FILES:
        if file.wanted(config):
            text = plugin(file.name) if file.kind == Kind.VERBATIM else _text(folders, file.name, variables)
            rendered.append(file._replace(installed=_place(file.installed, host), text=text))
    by_needs = {needs.name.lower(): [file for file in rendered if file.needs == needs] for needs in Needs}
    order = _text(folders, ORDER, {**variables, "files": rendered, "needs": by_needs})
    return (*rendered, SiteFile(ORDER, "", "", Needs.NOTHING, is_site, text=order))


def _place(installed: str, host: Host) -> str:
    folder = os.path.dirname(host.slurm_conf)
    return installed.format(slurm=host.slurm_conf, slurm_folder=folder, site_folder=os.path.dirname(host.site_file))


def _variables(config: SiteConfig, host: Host) -> dict[str, Any]:
    return {
        "config": config,
        "prefix": host.prefix,
        "site_file": "" if host.site_file == SYSTEM_FILE else host.site_file,
        "slurm_conf": "" if host.slurm_conf == DEFAULT_SLURM_CONF else host.slurm_conf,
        "state": config.paths.state,
        "journal": config.journal_folder if is_site(config) else "",
        "node_journal": NODE_JOURNAL,
        "logs": LOG_FOLDER,
        "libexec": LIBEXEC,
        "slurm_folder": os.path.dirname(host.slurm_conf),
        "site_folder": os.path.dirname(host.site_file),
        "mps_users": _mps_users(config),
        "mps_by_prolog": _mps_by_prolog(config),
        "agent": has_agent(config),
        "audit": config.audit_folder,
        "site": is_site(config),
        "csub": _has_csub(config),
        "tier": TIERS[config.tier],
        "gres_types": gres_types(config),
        "tres": tres(config),
        "alike": alike(config.pool),
        "node_gres": node_gres,
        "uneven_shares": uneven_shares,
        "gres_conf_lines": gres_conf_lines,
        "partition_words": partition_words,
        "billing_weights": billing_weights,
        "policies": policies(config),
        "policy_table": PLACE,
        "lua_folder": _place(_LUA, host),
        "slices": any(pool.slice for pool in config.pool),
    }


def _mps_users(config: SiteConfig) -> dict[str, list[str]]:
    """Return the partitions with gres/mps by whom the MPS of a GPU serves there."""
    shared = {name for pool in config.pool if pool.mps_per_gpu for name in pool.partitions}
    names: dict[str, list[str]] = {"": [], "one": [], "each": [], "all": []}
    for partition in config.partition:
        if partition.name in shared:
            names[partition.mps_users].append(partition.name)
    return names


# No blank, quote, backslash, percent sign (cron's newline, systemd's specifiers), # or $: nothing that separates,
# escapes or begins a comment in slurm.conf, systemd, cron, Lua or sh.
_PLAIN = re.compile(r"[A-Za-z0-9._/+:,=@\[\]-]*[A-Za-z0-9._/+\]-]")
# A word of Gres=name:type:count.
_TYPE = re.compile(r"[A-Za-z0-9._+-]+")
_REMARK = re.compile(r"[^A-Za-z0-9 ._/+:,=@()\[\]-]")


class _Checked(str):
    """A text that may pass as it is."""

    __slots__ = ()


def _plain(value: object) -> object:
    """Return ``value`` where it may stand in a configuration file.

    Raises:
        ConfigError: it may not.
    """
    # str() of what a template does not define says so.
    if isinstance(value, int | float | _Checked) or _PLAIN.fullmatch(str(value)):
        return value
    raise ConfigError(
        f"{value!r} cannot be written into a configuration file: only ASCII letters, digits and . _ / + : , = @ [ ] - "
        "may stand in it; change it in site.toml"
    )


def _remark(value: object) -> _Checked:
    """Return ``value`` fit for a comment: one line, and no backslash at its end that would join the next to it."""
    return _Checked(_REMARK.sub("?", str(value)))


def _text(folders: list[str], name: str, variables: Mapping[str, Any]) -> str:
    import jinja2

    environment = jinja2.Environment(  # noqa: S701 - no HTML
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_plain,
    )
    environment.filters["remark"] = _remark
    try:
        return environment.get_template(f"{name}.j2").render(variables)
    except ConfigError as error:
        raise ConfigError(f"'{name}': {error}") from error
    except jinja2.TemplateError as error:
        raise ConfigError(f"template '{name}.j2' from {' or '.join(folders)} does not render: {error}") from error


def _check(config: SiteConfig, host: Host) -> None:
    for key, path in _paths(config, host):
        if path and (not os.path.isabs(path) or os.path.normpath(path) != path or path == "/"):
            raise ConfigError(
                f"{key} is '{path}': it must begin with '/', and have no '..', no '//' and no '/' at its end"
            )
    for pool in config.pool:
        try:
            names = expand(pool.nodes)
        except InputError as error:
            raise ConfigError(f"pool '{pool.name}': nodes '{pool.nodes}' cannot be read: {error}") from error
        if not names:
            raise ConfigError(f"pool '{pool.name}' has no nodes")
        _no_keyword("node", names, ("DEFAULT", "ALL"))
    for group in alike(config.pool):
        _check_node(group)
    _no_keyword("partition", (partition.name for partition in config.partition), ("DEFAULT",))


def _check_node(group: Alike) -> None:
    whose = f"{'pool' if len(group.pools) == 1 else 'pools'} {', '.join(repr(pool.name) for pool in group.pools)}"
    if any(pool.mps_per_gpu for pool in group.pools) and any(pool.shards_per_gpu for pool in group.pools):
        raise ConfigError(
            f"{whose} of nodes '{group.nodes}': mps_per_gpu and shards_per_gpu are both set, with which Slurm 22.05 "
            "gives one GPU to a whole-GPU job and to an mps job at once; keep one of them"
        )
    types = [gres.type for pool in group.pools for gres in devices(pool)]
    for kind in types:
        if kind and not _TYPE.fullmatch(kind):
            raise ConfigError(
                f"{whose}: GPU type '{kind}' is more than one word of Gres=; only A-Z a-z 0-9 . _ + - may stand in it"
            )
        if types.count(kind) > 1:
            what = f"gpu:{kind}" if kind else "GPUs without a type"
            raise ConfigError(f"{whose} of nodes '{group.nodes}' have {what} more than once; keep them in one place")


def _paths(config: SiteConfig, host: Host) -> Iterable[tuple[str, str]]:
    yield from ((f"paths.{key}", getattr(config.paths, key)) for key in ("state", "journal", "decisions"))
    yield from ((f"notices.{key}", getattr(config.notices, key)) for key in ("state", "textfile"))
    yield from (("--prefix", host.prefix), ("the site file", host.site_file), ("--slurm-conf", host.slurm_conf))


def _no_keyword(what: str, names: Iterable[str], keywords: tuple[str, ...]) -> None:
    """Refuse the words that mean more than themselves to slurm.conf(5)."""
    for name in names:
        if name.upper() in keywords:
            raise ConfigError(f"{what} '{name}': Slurm takes that word for more than a name")


def write_folder(path: str, texts: Mapping[str, str], known: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Write ``texts``, by name, into the folder ``path``, which is made where only it is missing.

    ORDER is among them. Files of the other ``known`` names are removed: an earlier site.toml had them. Returned are the
    names of files that are new or other than before, and of those that were removed.

    Raises:
        InputError: the folder has files, and no ORDER.
        StoreError: it is none, others may write into it, or it cannot be written.
    """
    path = os.path.normpath(path)  # with a '/' at its end a link would be followed
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o755)
        found = os.lstat(path)
        names = set(os.listdir(path))
    except OSError as error:
        raise StoreError(f"folder '{path}' cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StoreError(
            f"'{path}' is a link, or others may write there, and so change what you install: name a folder of your own"
        )
    if names and ORDER not in names:
        raise InputError(f"folder '{path}' has files and no {ORDER}: it is not one of ours; name a new one")
    gone = sorted(names & set(known) - set(texts))
    for name in gone:
        os.unlink(os.path.join(path, name))
    written = [name for name in texts if name not in names or _content(path, name) != texts[name].encode()]
    # ORDER first: a run that is cut short leaves a folder of ours.
    for name in sorted(written, key=lambda name: name != ORDER):
        write_atomic(os.path.join(path, name), texts[name].encode(), 0o644)
    return written, gone


def _content(path: str, name: str) -> bytes:
    with open(os.path.join(path, name), "rb") as stream:
        return stream.read()
