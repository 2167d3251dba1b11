# SPDX-License-Identifier: Apache-2.0
"""Reports that keep names out: --pseudonyms and --min-group."""

import os

from duckdb import DuckDBPyConnection

from slurm_colloc.core.config import user_data_folder
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.files import as_owner, own_secret, private_folder
from slurm_colloc.facts.anonymous import OF_ONE, add_up_small, give_pseudonyms
from slurm_colloc.report.usage import UsageReport
from slurm_colloc.store.store import Store

_KEY, _KEY_BYTES = "pseudonyms.key", 32


def check_names(by: str, pseudonyms: bool, min_group: int, *, kind: str, runs: bool, charts: bool) -> None:
    """Raise an InputError for options on names that contradict the others, or do nothing."""
    if kind and (pseudonyms or min_group):
        reason = "is about single users" if kind == "several" else "names nobody"
        raise InputError(f"--{kind} {reason}; leave --pseudonyms and --min-group out")
    if min_group == 1:
        raise InputError("--min-group 1 does nothing: each group has one user at least")
    if min_group and by in OF_ONE:
        raise InputError(f"--min-group is for groups of several users, which --by {by} has not; try --by account")
    if min_group and charts:
        raise InputError("--charts shows single hours, whose users may be fewer than --min-group; leave one out")
    if min_group and runs:
        raise InputError("--runs writes each run of each user, whatever --min-group says; leave one of them out")


def keep_names_out(
    database: DuckDBPyConnection, store: Store, by: str, pseudonyms: bool, min_group: int
) -> tuple[str, ...]:
    """Change what an aggregated database shows of names, and return what is to be said of it.

    Raises:
        InputError: too few users in all.
        StoreError: the key of the pseudonyms cannot be had.
    """
    notes = []
    if pseudonyms:
        give_pseudonyms(database, _key(store.samples.folder))
        notes.append("names of users, accounts and QOS are pseudonyms; who has the key can tell whose they are")
    if min_group:
        groups, figures = add_up_small(database, by, min_group)
        if groups:
            notes.append(
                f"in '(fewer than {min_group} users)' are {groups} groups: those, and the next larger where they would "
                "still be too few"
            )
        if figures:
            notes.append(
                f"{figures} figures are left out, of their group and of the total: they are known of fewer than "
                f"{min_group} users"
            )
    return tuple(notes)


def _key(folder: str) -> bytes:
    """Return the store's key to whoever keeps the store, else one of the user's own."""
    with as_owner(folder):
        if os.path.isdir(folder) and os.stat(folder).st_uid == os.geteuid():
            return own_secret(os.path.join(folder, _KEY), _KEY_BYTES)
    return own_secret(os.path.join(private_folder(user_data_folder()), _KEY), _KEY_BYTES)


def without_jobs(report: UsageReport) -> UsageReport:
    """Return the report without the ids and names of single jobs, which pseudonyms would not cover."""
    to_do = (todo._replace(command="") if todo.command.startswith("colloc job ") else todo for todo in report.to_do)
    report = report._replace(to_do=tuple(to_do))
    if report.charts is None:
        return report
    details = tuple(detail._replace(idlest=()) for detail in report.charts.details)
    return report._replace(charts=report.charts._replace(details=details))
