# SPDX-License-Identifier: Apache-2.0
"""Checks the folders and programs that site.toml names on this host: existence, owner, mode.

Each host has its own of them, and may see another file system under the same path: every word here is about one host.
"""

import os
import pwd
import shlex
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import nullcontext
from typing import NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.files import as_user, network_file_system
from slurm_colloc.site.doctor.facts import Blank, Seen
from slurm_colloc.site.render import is_site
from slurm_colloc.slurm.hostlist import expand, fold


class _Mode(NamedTuple):
    """The mode that a folder is made with, and what must be so of it: ``bits`` among those of ``mask``."""

    made: str
    mask: int
    bits: int
    mend: str
    why: str


_PASSED = _Mode("0755", 0o002, 0o000, "o-w", "so that others do not write there")
_CLOSED = _Mode("0700", 0o027, 0o000, "o-rwx,g-w", "so that others neither look nor write there")
_SPOOL = _Mode("1777", 0o1777, 0o1777, "1777", "so that csub records what it decides for each user")


class Keepers(NamedTuple):
    """Who keeps a site: the user of its services, empty without an agent, and those who may own what others trust."""

    service: str
    owners: frozenset[int]


def keepers(service: str, site_file: str) -> Keepers:
    """Return who keeps a site: root, who owns the site file, and ``service``, which the rendered units name."""
    owners = {0, os.stat(site_file).st_uid} | ({user.pw_uid} if (user := user_called(service)) else set())
    return Keepers(service, frozenset(owners))


def look(config: SiteConfig, keep: Keepers, host: str) -> Iterator[Seen | Blank]:
    """Yield what is wrong with the paths of a site on this ``host``, and what cannot be said from here."""
    yield from _programs(config)
    if not is_site(config):
        return
    node = any(host in _names(pool.nodes) for pool in config.pool)
    state = config.paths.state
    yield from _folder("paths.state", state, keep.owners, _PASSED)
    if os.path.isdir(state):
        if not os.stat(state).st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            what = f"users cannot pass, so that csub reads nothing of their jobs: chmod 0755 {shlex.quote(state)}"
            yield Seen(f"paths.state '{state}'", what)
        yield from _own("the store (paths.state)", config.store_folder, keep)
        yield from _flushed_by(config)
    if config.observe.agent and (node if config.paths.journal else os.path.isdir(state)):
        key = "paths.journal" if config.paths.journal else "the journal (paths.state)"
        yield from _own(key, config.journal_folder, keep)
    if config.paths.decisions:
        yield from _folder("paths.decisions", config.paths.decisions, keep.owners, _SPOOL)
    yield from _audit(config, keep)


def user_called(name: str) -> pwd.struct_passwd | None:
    """Return a user of this host; None where there is none of that name."""
    try:
        return pwd.getpwnam(name) if name else None
    except KeyError:
        return None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _names(nodes: str) -> Collection[str]:
    try:
        return expand(nodes)
    except InputError:  # of which check says what is wrong
        return ()


def _programs(config: SiteConfig) -> Iterator[Seen]:
    templates, sbatch = config.paths.templates, config.paths.sbatch
    if templates and not os.path.isdir(templates):
        text = "it is no folder here: the shipped templates are taken instead"
        yield Seen(f"paths.templates '{templates}'", text)
    if sbatch and not (os.path.isfile(sbatch) and os.access(sbatch, os.X_OK)):
        yield Seen(f"paths.sbatch '{sbatch}'", "it is no program here: csub cannot submit; name the real sbatch")


def _folder(
    key: str, path: str, owners: Collection[int] | None, mode: _Mode, service: str = ""
) -> Iterator[Seen | Blank]:
    """Yield what is wrong with a folder that must be there, with this mode, and one of ``owners``' if given."""
    subject, quoted = f"{key} '{path}'", shlex.quote(path)
    try:
        found = os.stat(path)
    except PermissionError:
        yield Blank(subject, f"not open to uid {os.geteuid()}; look as root")
        return
    except OSError as error:
        make = f"install -d -m {mode.made}{f' -o {service}' if service else ''} {quoted}"
        text = f"{error.strerror}: is its file system mounted, and the path right? The first time, as root: {make}"
        yield Seen(subject, text)
        return
    if not stat.S_ISDIR(found.st_mode):
        yield Seen(subject, "it is no folder: move it away")
        return
    if owners is not None and found.st_uid not in owners:
        right = _name(min(owners)) if len(owners) == 1 else "root"
        yield Seen(subject, f"it belongs to {_name(found.st_uid)}, not to {right}: chown {right} {quoted}")
    if found.st_mode & mode.mask != mode.bits:
        its = f"its mode is {stat.S_IMODE(found.st_mode):04o}"
        yield Seen(subject, f"{its}: chmod {mode.mend} {quoted}, {mode.why}")


def _own(key: str, path: str, keep: Keepers) -> Iterator[Seen | Blank]:
    """Yield what is wrong with a folder that the site's services, or without them root, must own and write to."""
    user, subject = user_called(keep.service), f"{key} '{path}'"
    if keep.service and user is None:
        why = f"it must belong to the user '{keep.service}', which this host does not have; ORDER.md makes it"
        yield Blank(subject, why)
    owners = None if keep.service else keep.owners
    if user:
        owners = frozenset((user.pw_uid,))
    faults = list(_folder(key, path, owners, _CLOSED, keep.service))
    yield from faults
    if faults:
        return
    owned = os.stat(path)
    acting = os.geteuid() == 0 and owned.st_uid != 0
    if acting or owned.st_uid == os.geteuid():
        with as_user(owned.st_uid, owned.st_gid) if acting else nullcontext():
            if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
                text = f"{_name(owned.st_uid)} cannot write there: is a folder above it closed, or mounted read-only?"
                yield Seen(subject, text)


def _flushed_by(config: SiteConfig) -> Iterator[Blank]:
    """Yield which nodes are in the store of this host by nothing: what they call by its name may be another folder."""
    folder = os.path.join(config.store_folder, "samples", config.cluster)
    try:
        days = sorted(os.listdir(folder))[-2:]
        flushed = {name for day in days for name in os.listdir(os.path.join(folder, day))}
    except OSError:
        return
    nodes = {name for pool in config.pool for name in _names(pool.nodes)}
    if config.observe.agent and (missing := sorted(nodes - flushed)) and flushed & nodes:
        why = f"nothing of {fold(missing)} is in it since {days[0]}: is it the same folder there?"
        yield Blank(f"the store (paths.state) '{config.store_folder}'", why)


def _audit(config: SiteConfig, keep: Keepers) -> Iterable[Seen | Blank]:
    """Yield what is wrong with the folder of what audits remember, which one host has."""
    path, key = config.audit_folder, "notices.state" if config.notices.state else "the audits' folder (paths.state)"
    here = os.path.lexists(path)
    outlet = config.notices.textfile
    if outlet and not os.path.isdir(os.path.dirname(outlet)):
        text = "its folder is not there, so that each audit ends in an error"
        yield (Seen if here else Blank)(f"notices.textfile '{outlet}'", text)
    if config.notices.mode == "off":
        return
    if not here:
        yield Blank(f"{key} '{path}'", "it is not on this host; on the one that audits it must be")
        return
    yield from _own(key, path, keep)
    try:
        network = network_file_system(path)
    except OSError:
        return
    if network:
        text = f"it is on {network}, where each audit is refused: set notices.state to a folder on a disk of that host"
        yield Seen(f"{key} '{path}'", text)
