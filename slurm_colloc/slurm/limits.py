# SPDX-License-Identifier: Apache-2.0
"""The accounting's limits for one user: those on TRES of associations and QOS, and whether a job fits them.

A job that breaks one is refused or waits for ever; which of the two, the QOS's flags say. Read as sacctmgr(1) and
slurm's resource_limits page describe them: a limit for each job is the nearest one up the tree of accounts, a limit
for a group holds at each level, those of a partition's QOS and of the job's hold beside them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Reason, because
from slurm_colloc.core.units import time_limit_min, whole
from slurm_colloc.slurm.gres import tres_mib

Tres = Mapping[str, int]

# The limits that one request alone can break, by sacctmgr's names for its columns.
PER_JOB = ("MaxTRES", "MaxTRESPerNode", "MaxWall")
TOGETHER = ("GrpTRES", "MaxTRESPerUser", "MaxTRESPerAccount")
LEAST = "MinTRES"
# A time limit is kept beside the TRES under this name.
MINUTES = "minutes"

# Limits on TRES times time: a longer time limit may break them, so where one is set no time limit is made longer.
WITH_TIME = ("GrpTRESMins", "GrpTRESRunMins", "MaxTRESMins")

# Limits on sums over jobs. They count gres/mps and gres/shard as no gres/gpu, so jobs on shares pass them by; no share
# passes a limit for each job by, since it is less than the GPU that was asked for.
_SUMMED = (*TOGETHER, "GrpTRESMins", "GrpTRESRunMins")

_ACCOUNT, _QOS = "account", "QOS"
_OF_ASSOCIATION = ("GrpTRES", *PER_JOB, *WITH_TIME)
_OF_QOS = (*_OF_ASSOCIATION, "MaxTRESPerUser", "MaxTRESPerAccount", LEAST)


class Association(NamedTuple):
    """An account's limits, or a user's in an account, perhaps in one partition only."""

    account: str
    parent: str
    partition: str
    default_qos: str
    qos: tuple[str, ...]
    limits: Mapping[str, Tres]


class Cap(NamedTuple):
    """One limit of one level: ``MaxWall`` or a key of sacctmgr's on TRES."""

    level: str
    key: str
    tres: Tres


class Limits(NamedTuple):
    """All that concerns one user; ``at_s`` is when Slurm was asked."""

    at_s: float
    default_account: str
    own: tuple[Association, ...]
    accounts: Mapping[str, Association]
    qos: Mapping[str, Mapping[str, Tres]]


def has_database(settings: Mapping[str, str]) -> bool:
    """Return whether jobs are accounted for by slurmdbd, by the settings of slurm.conf."""
    return settings.get("AccountingStorageType") == "accounting_storage/slurmdbd"


def holds_to_limits(settings: Mapping[str, str]) -> bool:
    """Return whether slurmctld holds jobs to the accounting's limits; slurm.conf(5), AccountingStorageEnforce."""
    enforce = settings.get("AccountingStorageEnforce", "").lower().split(",")
    return not {"limits", "safe", "all"}.isdisjoint(enforce)


def _question(entity: str, columns: str, limits: Sequence[str], *conditions: str) -> tuple[str, ...]:
    show = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show", entity)
    return (*show, *conditions, f"format={','.join((columns, *limits))}")


_QOS_QUESTION = _question("qos", "Name", _OF_QOS)


def limits_questions(user: str, cluster: str) -> tuple[tuple[str, ...], ...]:
    """Return the three calls of sacctmgr whose answers ``parse_limits`` reads."""
    by_user = (f"name={user}", f"cluster={cluster}", "withassoc")
    return (
        _question("user", "DefaultAccount,Account,Partition,DefaultQOS,QOS", _OF_ASSOCIATION, *by_user),
        _question("association", "Account,ParentName,DefaultQOS", _OF_ASSOCIATION, "user=", f"cluster={cluster}"),
        _QOS_QUESTION,
    )


def parse_limits(answers: Sequence[str], at_s: float) -> Limits:
    """Return what sacctmgr answered to ``limits_questions``.

    Raises:
        InputError: a line of another form, or a user whom the accounting does not know.
    """
    of_user, of_accounts, of_qos = answers
    default_account, associations = "", []
    for (user_default, account, partition, default_qos, qos), limits in _rows(of_user, 5, _OF_ASSOCIATION):
        default_account = user_default or default_account
        may_use = tuple(name.lstrip("+") for name in qos.split(",") if name)
        associations.append(Association(account, account, partition, default_qos, may_use, limits))
    if not associations:
        raise InputError("sacctmgr knows no association of this user")
    accounts = {
        account: Association(account, parent, "", default_qos, (), limits)
        for (account, parent, default_qos), limits in _rows(of_accounts, 3, _OF_ASSOCIATION)
    }
    # Slurm does not tell the names of QOS apart by case.
    qos_limits = {name.lower(): limits for (name,), limits in _rows(of_qos, 1, _OF_QOS)}
    return Limits(at_s, default_account, tuple(associations), accounts, qos_limits)


def caps_questions(cluster: str) -> tuple[tuple[str, ...], ...]:
    """Return the two calls of sacctmgr whose answers ``parse_caps`` reads."""
    return _QOS_QUESTION, _question("association", "Account,User,Partition", _OF_ASSOCIATION, f"cluster={cluster}")


def parse_caps(answers: Sequence[str]) -> tuple[Cap, ...]:
    """Return the limits in what sacctmgr answered to ``caps_questions``.

    With PrivateData in slurmdbd.conf others' associations are left out without a word, root's among them.

    Raises:
        InputError: a line of another form, or none of root.
    """
    of_qos, of_associations = answers
    if not any(line.startswith("root|root|") for line in of_associations.splitlines()):
        raise InputError("sacctmgr shows no association of root, so it may hide others' (PrivateData): ask as root")
    levels = [(f"QOS '{name}'", limits) for (name,), limits in _rows(of_qos, 1, _OF_QOS)]
    for (account, user, partition), limits in _rows(of_associations, 3, _OF_ASSOCIATION):
        level = (f"user '{user}' in " if user else "") + f"account '{account}'"
        levels.append((level + (f" in partition '{partition}'" if partition else ""), limits))
    return tuple(Cap(level, key, tres) for level, limits in levels for key, tres in limits.items() if tres)


def _rows(text: str, columns: int, names: Sequence[str]) -> Iterator[tuple[list[str], dict[str, Tres]]]:
    """Yield the first columns of each row, and the limits of these names in the others."""
    for line in filter(None, text.splitlines()):
        cells = line.split("|")
        if len(cells) != columns + len(names):
            raise InputError(f"sacctmgr printed '{line}', which has not {columns + len(names)} columns")
        values = dict(zip(names, cells[columns:], strict=True))
        wall_min = time_limit_min(values.pop("MaxWall") or "UNLIMITED")
        limits = {name: parse_tres(value) for name, value in values.items() if value}
        yield cells[:columns], limits if math.isinf(wall_min) else limits | {"MaxWall": {MINUTES: int(wall_min)}}


def parse_tres(text: str) -> Tres:
    """Return the countable part of a limit such as ``cpu=4,gres/gpu=2,mem=8G`` (in MiB): other units are left out.

    Raises:
        InputError: an item that is no ``name=value``.
    """
    tres = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"limit '{item}' in '{text}' is not of the form name=value")
        most = tres_mib(value) if name == "mem" and value[-1:].isalpha() else whole(value)
        if most is not None:
            tres[name] = most
    return tres


def broken_limit(
    limits: Limits, wanted: Mapping[str, int], account: str, qos: str, partition: str, partition_qos: str
) -> Reason | None:
    """Return the limit that a job asking for ``wanted`` gres would break; None when there is none.

    Args:
        limits: the user's.
        wanted: TRES name -> count, all gres that the job asks for, what is known of cpu, mem (MiB) and node; MINUTES
            where its time limit becomes longer.
        account: as asked; empty: the default one.
        qos: as asked; empty: the default one.
        partition: the one it would run in.
        partition_qos: the QOS of that partition; empty for none.
    """
    chain = _chain(limits, account or limits.default_account, partition)
    if chain is None:
        return because("no-association", account=account or limits.default_account)
    names = _qos_names(chain, qos, partition_qos)
    for name in names:
        if name not in limits.qos:
            return because("qos-unknown", qos=name)
    for key in PER_JOB:
        nearest: dict[str, int] = {}
        for level in reversed(chain):
            nearest |= level.limits.get(key, {})
        for name, most in nearest.items():
            if wanted.get(name, 0) > most:
                return because("limit-most", limit=key, what=_ACCOUNT, name=chain[0].account, most=most, tres=name)
    for kind, level_name, level_limits in _levels(limits, chain, names):
        for key in WITH_TIME:
            if MINUTES in wanted and key in level_limits:
                return because("limit-time", limit=key, what=kind, name=level_name)
        for key in TOGETHER if kind == _ACCOUNT else (*PER_JOB, *TOGETHER):
            for name, most in level_limits.get(key, {}).items():
                if wanted.get(name, 0) > most:
                    return because("limit-most", limit=key, what=kind, name=level_name, most=most, tres=name)
        for name, least in level_limits.get(LEAST, {}).items():
            if (name.startswith("gres/") or name in wanted) and wanted.get(name, 0) < least:
                return because("limit-least", limit=LEAST, what=kind, name=level_name, least=least, tres=name)
    return None


def names_tres(names: Iterable[str], tres: str) -> bool:
    """Return whether ``gres/gpu`` is among names such as ``gres/gpu:h100``."""
    return any(name.partition(":")[0] == tres for name in names)


def passed_by(level: Mapping[str, Tres], share: str) -> str:
    """Return the limit on GPUs that jobs with ``gres/shard`` pass by; empty where the level limits these, too.

    A limit on billing beside it is held to bound both.
    """
    most = [key for key in _SUMMED if key in level]
    if any(names_tres(level[key], share) or "billing" in level[key] for key in most):
        return ""
    return next((key for key in most if names_tres(level[key], "gres/gpu")), "")


def limit_passed_by(
    limits: Limits, share: str, account: str, qos: str, partition: str, partition_qos: str
) -> Reason | None:
    """Return the limit on GPUs that a job on ``gres/shard`` would pass by; None when there is none.

    The arguments are those of ``broken_limit``.
    """
    chain = _chain(limits, account or limits.default_account, partition) or []
    for kind, name, level in _levels(limits, chain, _qos_names(chain, qos, partition_qos) if chain else []):
        if key := passed_by(level, share):
            return because("limit-passed-by", limit=key, what=kind, name=name, share=share)
    return None


def default_qos(limits: Limits, account: str, partition: str) -> str | None:
    """Return the QOS of a job that names none; None where that is not known."""
    chain = _chain(limits, account or limits.default_account, partition)
    names = _default_qos_names(chain) if chain else ()
    return names[0] if len(names) == 1 else None


def _default_qos_names(chain: Sequence[Association]) -> Sequence[str]:
    """Return the default QOS, else all that the user may have: Slurm does not say which of them it takes."""
    return [level.default_qos for level in chain if level.default_qos][:1] or chain[0].qos


def _qos_names(chain: Sequence[Association], qos: str, partition_qos: str) -> list[str]:
    """Return the QOS whose limits may hold, in lower case; the job must fit all of them."""
    names = [qos] if qos else _default_qos_names(chain)
    return [name.lower() for name in (*names, partition_qos) if name]


def _levels(
    limits: Limits, chain: Sequence[Association], names: Sequence[str]
) -> Iterator[tuple[str, str, Mapping[str, Tres]]]:
    yield from ((_ACCOUNT, level.account, level.limits) for level in chain)
    yield from ((_QOS, name, limits.qos[name]) for name in names if name in limits.qos)


def _chain(limits: Limits, account: str, partition: str) -> list[Association] | None:
    """Return the user's association and the accounts above it, nearest first; None when there is none."""
    fits = [item for item in limits.own if item.account == account and item.partition in ("", partition)]
    if not fits:
        return None
    chain = [max(fits, key=lambda item: bool(item.partition))]  # one for the partition comes before the general one
    while (above := limits.accounts.get(chain[-1].parent)) is not None and above not in chain[1:]:
        chain.append(above)
    return chain
