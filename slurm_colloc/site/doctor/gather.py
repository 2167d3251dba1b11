# SPDX-License-Identifier: Apache-2.0
"""Asks a live cluster, and the machine this runs on, for the facts that the checks judge."""

import glob
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from slurm_colloc.core import clock
from slurm_colloc.core.errors import CollocError, StoreError
from slurm_colloc.core.files import read_bounded
from slurm_colloc.gpu.nvidia_smi import devices
from slurm_colloc.site.doctor.facts import Script, Site, Unread
from slurm_colloc.site.doctor.prolog import ON_NODES
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.limits import has_database
from slurm_colloc.slurm.setup import ENVIRONMENT, parse_gres_conf

Value = TypeVar("Value")
_SCRIPT_MOST_BYTES = 1 << 20


def gather(timeout_s: float, this_node: str, environment: Mapping[str, str]) -> Site:
    """Return what can be known of the cluster from here.

    Args:
        timeout_s: for each question.
        this_node: this machine's name in Slurm, if it is a node.
        environment: of Slurm's commands.

    Raises:
        ProcessError: slurmctld does not answer what every user may ask.
        InputError: an answer that is not of the expected form.
    """
    # PATH, SLURM_CONF and the like are the caller's; times are not.
    client = CliClient(timeout_s, {**environment, **ENVIRONMENT})
    settings, cgroup = client.config_parts()
    nodes = client.nodes()
    asked_s = clock.now()
    queue = _tried(client.backlog)
    answered_s = clock.now()
    return Site(
        release=client.release(),
        settings=settings,
        cgroup=cgroup if cgroup is not None else Unread("'scontrol show config' has no part on cgroups"),
        nodes=nodes,
        partitions=client.partitions(),
        gres_conf=_tried(lambda: parse_gres_conf(_gres_conf(settings, environment))),
        scripts=scripts(settings),
        limits=_tried(lambda: client.caps(settings["ClusterName"])) if has_database(settings) else (),
        queue=queue,
        clock_ahead_s=queue
        if isinstance(queue, Unread)
        # slurmctld's time is in whole seconds, of a moment between two of ours.
        else ((asked_s + answered_s) / 2 - (queue.at_s + 0.5), (answered_s - asked_s) / 2 + 0.5),
        this_node=this_node,
        plugstack=plugstack(settings),
        devices=_tried(devices)
        if any(node.name == this_node and (node.gpu_types or node.quantity("gpu")) for node in nodes)
        else Unread("this machine is no GPU node of the cluster: run 'colloc site doctor' on one"),
    )


def _tried(step: Callable[[], Value]) -> Value | Unread:
    try:
        return step()
    except CollocError as error:
        return Unread(str(error))


def scripts(settings: Mapping[str, str]) -> tuple[Script, ...]:
    """Return the programs that slurmd runs around jobs, as far as they can be read on this machine."""
    beside = os.path.dirname(settings.get("SLURM_CONF", ""))
    return tuple(
        _script(setting, path)
        for setting in ON_NODES
        for key, value in settings.items()
        # Several programs of one setting have numbers: Prolog[0].
        if key.partition("[")[0] == setting and value not in ("", "(null)")
        # A path may be relative to the folder of slurm.conf, from 23.02 on.
        for pattern in [os.path.join(beside, value)]
        for path in sorted(glob.glob(pattern)) or [pattern]
    )


def plugstack(settings: Mapping[str, str]) -> tuple[Script, ...]:
    """Return plugstack.conf and what is beside it in plugstack.conf.d, as far as they are on this machine."""
    named = settings.get("PlugStackConfig", "").replace("(null)", "") or "plugstack.conf"
    path = os.path.join(os.path.dirname(settings.get("SLURM_CONF", "")), named)
    paths = [*glob.glob(path), *sorted(glob.glob(f"{path}.d/*"))]
    return tuple(_script("PlugStackConfig", each) for each in paths)


def _script(setting: str, path: str) -> Script:
    text = _tried(lambda: _text(path))
    try:
        file, folder = os.stat(path), os.stat(os.path.dirname(os.path.realpath(path)))
    except PermissionError:
        return Script(setting, path, text)
    except OSError:
        return Script(setting, path, text, None)
    return Script(setting, path, text, file.st_mode, file.st_uid, folder.st_mode)


def _text(path: str) -> str:
    """Return a script's or a configuration file's text.

    Raises:
        StoreError: it cannot be read, or is no text.
    """
    content = read_bounded(os.path.realpath(path), _SCRIPT_MOST_BYTES)
    if b"\0" in content:
        raise StoreError(f"'{path}' is no script")
    return content.decode(errors="replace")


def _gres_conf(settings: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Return the gres.conf of this machine: it lies beside its slurm.conf, or slurmd was sent it.

    Raises:
        StoreError: it cannot be read.
    """
    confs = (environment.get("SLURM_CONF"), settings.get("SLURM_CONF"), "/run/slurm/conf/slurm.conf")
    paths = [os.path.join(os.path.dirname(conf), "gres.conf") for conf in confs if conf]
    return _text(next(filter(os.path.exists, paths), paths[0]))
