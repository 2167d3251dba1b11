# SPDX-License-Identifier: Apache-2.0
"""What the accounting lets one user ask for: the limits on TRES of associations and QOS, and whether a job fits them.

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

# What several jobs come to. To these gres/mps and gres/shard are no gres/gpu, so jobs on shares pass them by; a limit
# for each job no share passes by, since it is less than the GPU that was asked for.
_SUMMED = (*TOGETHER, "GrpTRESMins", "GrpTRESRunMins")

# Whose a limit is.
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


def questions(user: str, cluster: str) -> tuple[tuple[str, ...], ...]:
    """Return the three calls of sacctmgr whose answers ``parse_limits`` reads."""
    show = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show")
    columns = ",".join(_OF_ASSOCIATION)
    return (
        (
            *show,
            "user",
            f"name={user}",
            f"cluster={cluster}",
            "withassoc",
            f"format=DefaultAccount,Account,Partition,DefaultQOS,QOS,{columns}",
        ),
        (*show, "association", "user=", f"cluster={cluster}", f"format=Account,ParentName,DefaultQOS,{columns}"),
        (*show, "qos", f"format=Name,{','.join(_OF_QOS)}"),
    )


def parse_limits(answers: Sequence[str], at_s: float) -> Limits:
    """Return what sacctmgr answered to ``questions``.

    Raises:
        InputError: a line of another form, or a user whom the accounting does not know.
    """
    of_user, of_accounts, of_qos = answers
    default_account, own = "", []
    for cells in _rows(of_user, 5 + len(_OF_ASSOCIATION)):
        default_account = cells[0] or default_account
        _, account, partition, default_qos, qos, *limits = cells
        may_use = tuple(name.lstrip("+") for name in qos.split(",") if name)
        own.append(Association(account, account, partition, default_qos, may_use, _limits(_OF_ASSOCIATION, limits)))
    if not own:
        raise InputError("sacctmgr knows no association of this user")
    accounts = {
        cells[0]: Association(cells[0], cells[1], "", cells[2], (), _limits(_OF_ASSOCIATION, cells[3:]))
        for cells in _rows(of_accounts, 3 + len(_OF_ASSOCIATION))
    }
    # Slurm does not tell the names of QOS apart by case.
    qos_limits = {cells[0].lower(): _limits(_OF_QOS, cells[1:]) for cells in _rows(of_qos, 1 + len(_OF_QOS))}
    return Limits(at_s, default_account, tuple(own), accounts, qos_limits)


def caps_questions(cluster: str) -> tuple[tuple[str, ...], ...]:
    """Return the two calls of sacctmgr whose answers ``parse_caps`` reads."""
    of_qos = questions("", cluster)[2]
    columns = ",".join(_OF_ASSOCIATION)
    return of_qos, (*of_qos[:-2], "association", f"cluster={cluster}", f"format=Account,User,Partition,{columns}")


def parse_caps(answers: Sequence[str]) -> tuple[Cap, ...]:
    """Return the limits in what sacctmgr answered to ``caps_questions``.

    With PrivateData in slurmdbd.conf others' associations are left out without a word, root's among them.

    Raises:
        InputError: a line of another form, or none of root.
    """
    of_qos, of_associations = answers
    if not any(line.startswith("root|root|") for line in of_associations.splitlines()):
        raise InputError("sacctmgr shows no association of root, so it may hide others' (PrivateData): ask as root")
    found = []
    for cells in _rows(of_qos, 1 + len(_OF_QOS)):
        found += [Cap(f"QOS '{cells[0]}'", key, tres) for key, tres in _limits(_OF_QOS, cells[1:]).items() if tres]
    for account, user, partition, *cells in _rows(of_associations, 3 + len(_OF_ASSOCIATION)):
        level = (f"user '{user}' in " if user else "") + f"account '{account}'"
        level += f" in partition '{partition}'" if partition else ""
        found += [Cap(level, key, tres) for key, tres in _limits(_OF_ASSOCIATION, cells).items() if tres]
    return tuple(found)


def _rows(text: str, columns: int) -> Iterator[list[str]]:
    for line in filter(None, text.splitlines()):
        cells = line.split("|")
        if len(cells) != columns:
            raise InputError(f"sacctmgr printed '{line}', which has not {columns} columns")
        yield cells


def _limits(names: Sequence[str], cells: Sequence[str]) -> dict[str, Tres]:
    found = {name: parse_tres(cell) for name, cell in zip(names, cells, strict=True) if cell and name != "MaxWall"}
    wall_min = time_limit_min(cells[names.index("MaxWall")] or "UNLIMITED")
    return found if math.isinf(wall_min) else found | {"MaxWall": {MINUTES: int(wall_min)}}


def parse_tres(text: str) -> Tres:
    """Return the countable part of a limit such as ``cpu=4,gres/gpu=2,mem=8G`` (in MiB): other units are left out.

    Raises:
        InputError: an item that is no ``name=value``.
    """
    found = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"limit '{item}' in '{text}' is not of the form name=value")
        most = tres_mib(value) if name == "mem" and value[-1:].isalpha() else whole(value)
        if most is not None:
            found[name] = most
    return found


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
        partition: where it would run.
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
    for what, of, level_limits in _levels(limits, chain, names):
        for key in WITH_TIME:
            if MINUTES in wanted and key in level_limits:
                return because("limit-time", limit=key, what=what, name=of)
        for key in TOGETHER if what == _ACCOUNT else (*PER_JOB, *TOGETHER):
            for name, most in level_limits.get(key, {}).items():
                if wanted.get(name, 0) > most:
                    return because("limit-most", limit=key, what=what, name=of, most=most, tres=name)
        for name, least in level_limits.get(LEAST, {}).items():
            if (name.startswith("gres/") or name in wanted) and wanted.get(name, 0) < least:
                return because("limit-least", limit=LEAST, what=what, name=of, least=least, tres=name)
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
    for what, of, level in _levels(limits, chain, _qos_names(chain, qos, partition_qos) if chain else []):
        if key := passed_by(level, share):
            return because("limit-passed-by", limit=key, what=what, name=of, share=share)
    return None


def default_qos(limits: Limits, account: str, partition: str) -> str | None:
    """Return the QOS of a job that names none; None where that is not known."""
    chain = _chain(limits, account or limits.default_account, partition) or []
    found = next((level.default_qos for level in chain if level.default_qos), "")
    # Of several, which Slurm takes is not said.
    only = chain[0].qos[0] if chain and len(chain[0].qos) == 1 else None
    return found or only


def _qos_names(chain: Sequence[Association], qos: str, partition_qos: str) -> list[str]:
    """Return the QOS whose limits may hold, in lower case."""
    names = [qos] if qos else [next((level.default_qos for level in chain if level.default_qos), "")]
    if names == [""]:
        names = list(chain[0].qos)  # which of them Slurm takes is not said, so the job must fit all
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
    seen: set[str] = set()
    while (above := limits.accounts.get(chain[-1].parent)) is not None and above.account not in seen:
        seen.add(above.account)
        chain.append(above)
    return chain
