# SPDX-License-Identifier: Apache-2.0
"""The used hours of a user, an account, a partition and the like: runs added up."""

from duckdb import DuckDBPyConnection

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.usage_model import GroupUsage
from slurm_colloc.store.decisions import with_decisions
from slurm_colloc.store.queries import named, query

MONTH = "month"
# Groupings of reports -> the column of a run. A month has a part of a run: facts/months.py.
GROUPINGS = {
    **{name: name for name in ("user", "account", "partition", "qos")},
    "gpu": "kind",
    "node": "on_node",
    **{name: name for name in ("state", "cluster", "signature", MONTH)},
}


def used_hours_by(database: DuckDBPyConnection, by: str) -> list[GroupUsage]:
    """Return the used hours of each user, account or other value of ``by``: those with most idle first, then all.

    They are of the runs of ``usage``.

    Raises:
        InputError: GROUPINGS has no ``by``.
    """
    return _added_up(database, *source(by), "NULL")[0]


def whole_usage(database: DuckDBPyConnection) -> GroupUsage:
    """Return what all runs of ``usage`` come to, as the last of ``used_hours_by`` does."""
    return _added_up(database, "''", "usage", "NULL")[0][-1]


def used_hours_by_kind(database: DuckDBPyConnection, by: str) -> tuple[list[GroupUsage], dict[str, list[GroupUsage]]]:
    """Return what ``used_hours_by`` does, and by group one GroupUsage for each kind of GPU, those with most idle first.

    Raises:
        InputError: GROUPINGS has no ``by``.
    """
    return _added_up(database, *source(by), "kind")


def _added_up(
    database: DuckDBPyConnection, key: str, runs: str, kind: str
) -> tuple[list[GroupUsage], dict[str, list[GroupUsage]]]:
    groups: list[GroupUsage] = []
    kinds: dict[str, list[GroupUsage]] = {}
    for row in named(database, query("facts/sql/groups", key=key, kind=kind, runs=runs), {"total": "total"}):
        all_kinds, group_name = row.pop("all_kinds"), row.pop("group_name")
        group_rows = groups if all_kinds else kinds.setdefault(group_name, [])
        group_rows.append(GroupUsage(**{**row, "methods": tuple(row["methods"])}))
    return groups, kinds


def source(by: str) -> tuple[str, str]:
    """Return SQL for the name of a run's group, and for the runs that have it; a month's name is NULL.

    Raises:
        InputError: GROUPINGS has no ``by``.
    """
    if by not in GROUPINGS:
        raise InputError(f"'--by {by}' is not one of {', '.join(GROUPINGS)}")
    runs = f"({with_decisions()})" if by == "signature" else "usage"
    if by == MONTH:
        return "NULL", runs
    column = f'"{GROUPINGS[by]}"'
    return f"CASE WHEN {column} = '' THEN '(not known)' ELSE coalesce({column}, '(not by csub)') END", runs
