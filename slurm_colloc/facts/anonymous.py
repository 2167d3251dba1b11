# SPDX-License-Identifier: Apache-2.0
"""Names kept out of reports: pseudonyms in their place, and groups of few users added up to one.

Both change what the view ``usage`` shows of a database, so no figure or chart made of it can forget them.
"""

import hmac
from base64 import b32encode
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.errors import InputError
from slurm_colloc.facts.usage import GROUPINGS, MONTH
from slurm_colloc.store.queries import kinds_of, make_rows

# Partitions and kinds of GPUs are the cluster's, and squeue shows them to everybody.
_NAMES = ("user", "account", "qos", "signature")
# A group of one user each time, or nearly; and what is added up by itself.
OF_ONE = ("user", "signature", MONTH)
# Known of some runs only: the figure is of their users alone. Runs of whose share nobody knows the size have no
# GPU-hours.
_OF_SIZED = ("allocated", "held", "util_used", "sm_used", "sm_beyond", "coverage_pct", "held_idle_hours")
_FIGURES = (*_OF_SIZED, "peak_mib", "energy_j", "billing_hours")
_SHOWN = kinds_of("kept VARCHAR, shown VARCHAR")


def pseudonym(key: bytes, kind: str, name: str) -> str:
    """Return what stands for ``name`` (of a user, an account ...): always the same, and told by nobody without the key.

    80 bits of HMAC-SHA256: no two of 100,000 names have the same, with all but certainty.
    """
    digest = hmac.digest(key, f"{kind}\0{name}".encode(errors="surrogateescape"), "sha256")
    return f"{kind}-{b32encode(digest[:10]).decode().lower()}"


def give_pseudonyms(database: DuckDBPyConnection, key: bytes) -> None:
    """Let ``usage`` and ``decisions`` of an aggregated database name nobody, and no job by its name."""
    for view in ("usage", "decisions"):
        database.execute(f"CREATE TEMP TABLE named_{view} AS FROM {view}")
        columns = [str(row[0]) for row in database.execute(f"DESCRIBE named_{view}").fetchall()]
        names = {}
        for kind in (name for name in _NAMES if name in columns):
            originals = database.execute(
                f'SELECT DISTINCT "{kind}" FROM named_{view} WHERE "{kind}" != \'\''
            ).fetchall()
            names[kind] = f"{view}_{kind}"
            make_rows(database, names[kind], _SHOWN, [(name, pseudonym(key, kind, name)) for (name,) in originals])
        _replace(database, view, f"named_{view}", names, ["'' AS job_name"] if "job_name" in columns else [])


class AddedUp(NamedTuple):
    """How many groups are shown as one, and how many figures of use are left out."""

    groups: int
    figures: int


def add_up_small(database: DuckDBPyConnection, by: str, least_users: int) -> AddedUp:
    """Let ``usage`` show the groups of fewer than ``least_users`` users as one, and no figure known of fewer.

    Raises:
        InputError: all of them together are fewer.
    """
    column = GROUPINGS[by]
    groups = database.execute(f'SELECT "{column}", list(DISTINCT "user") FROM usage GROUP BY 1').fetchall()
    small = small_groups({name: frozenset(users) for name, users in groups}, least_users)
    together = f"(fewer than {least_users} users)"
    make_rows(database, "small_groups", _SHOWN, [(name, together) for name in small])
    database.execute("CREATE TEMP TABLE all_groups AS FROM usage")
    _replace(database, "usage", "all_groups", {column: "small_groups"})
    return AddedUp(len(small), _leave_out_few(database, column, least_users))


def _leave_out_few(database: DuckDBPyConnection, column: str, least_users: int) -> int:
    """Let ``usage`` not know what is known of fewer users of a group, in the total neither; return how many figures."""
    sized = dict.fromkeys(_OF_SIZED, "allocated IS NOT NULL")
    conditions = {name: f"{name} IS NOT NULL AND {sized.get(name, 'true')}" for name in _FIGURES}
    counts = ", ".join(
        f'count(DISTINCT "user") FILTER ({condition}) AS {name}' for name, condition in conditions.items()
    )
    database.execute("CREATE TEMP TABLE shown_groups AS FROM usage")
    database.execute(f'CREATE TEMP TABLE known_of AS SELECT "{column}" AS name, {counts} FROM shown_groups GROUP BY 1')
    columns = ", ".join(f"if(f.{name} >= {least_users}, u.{name}, NULL) AS {name}" for name in _FIGURES)
    database.execute(
        f"CREATE OR REPLACE TEMP VIEW usage AS SELECT u.* REPLACE ({columns}) "
        f'FROM shown_groups u JOIN known_of f ON f.name IS NOT DISTINCT FROM u."{column}"'
    )
    few = " + ".join(f"count(*) FILTER ({name} BETWEEN 1 AND {least_users - 1})" for name in _FIGURES)
    ((left_out,),) = database.execute(f"SELECT {few} FROM known_of").fetchall()
    return int(left_out)


def small_groups(users: Mapping[str, frozenset[str]], least_users: int) -> frozenset[str]:
    """Return which groups are added up, so that neither one's figures nor the total less the others tell of fewer.

    The next larger group goes with the small ones if these have too few users together.

    Args:
        users: the users whose runs each group has.
        least_users: the least number of users that a figure may be of.

    Raises:
        InputError: all of them together are fewer.
    """
    by_size = sorted(users, key=lambda name: (len(users[name]), name))
    small: list[str] = []
    together: frozenset[str] = frozenset()
    for name in by_size:
        if len(users[name]) >= least_users and (not small or len(together) >= least_users):
            break
        small.append(name)
        together |= users[name]
    if small and len(together) < least_users:
        raise InputError(
            f"fewer than {least_users} users had a GPU in this window, so that no figure of it may be shown; "
            "give a longer one, or a smaller --min-group"
        )
    return frozenset(small)


def _replace(
    database: DuckDBPyConnection, view: str, table: str, names: Mapping[str, str], constants: Sequence[str] = ()
) -> None:
    """Let ``view`` show what is in ``table``, but of some columns what stands for it in the tables ``names``."""
    replacements = [f'coalesce({names[column]}.shown, kept."{column}") AS "{column}"' for column in names]
    joins = [f'LEFT JOIN {name} ON {name}.kept = kept."{column}"' for column, name in names.items()]
    query = f"SELECT kept.* REPLACE ({', '.join((*replacements, *constants))}) FROM {table} kept {' '.join(joins)}"
    database.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {query}")
