# SPDX-License-Identifier: Apache-2.0
"""The tables in which audits remember."""

import sqlite3

from slurm_colloc.errors import StoreError

SCHEMA = 1
_TABLES = (
    """
    CREATE TABLE messages (
        id TEXT PRIMARY KEY, channel TEXT NOT NULL, user TEXT NOT NULL, recipient TEXT NOT NULL,
        topic TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('handing over', 'handed over')),
        changed_s REAL NOT NULL, reply TEXT NOT NULL DEFAULT ''
    ) STRICT
    """,
    """
    CREATE TABLE notices (
        rule TEXT NOT NULL, about TEXT NOT NULL, cluster TEXT NOT NULL, subject TEXT NOT NULL, digest TEXT NOT NULL,
        step INTEGER NOT NULL, message TEXT NOT NULL, user TEXT NOT NULL,
        first_seen_s REAL NOT NULL, last_seen_s REAL NOT NULL,
        state TEXT NOT NULL DEFAULT '', reply TEXT NOT NULL DEFAULT '', changed_s REAL NOT NULL DEFAULT 0,
        PRIMARY KEY (rule, about, cluster, subject, digest, step, message)
    ) STRICT
    """,
    "CREATE INDEX notices_by_message ON notices (message)",
    """
    CREATE TABLE waivers (
        user TEXT NOT NULL, rule TEXT NOT NULL, subject TEXT NOT NULL, until_s REAL, by TEXT NOT NULL,
        why TEXT NOT NULL, made_s REAL NOT NULL, PRIMARY KEY (user, rule, subject)
    ) STRICT
    """,
    """
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY, mode TEXT NOT NULL, rules TEXT NOT NULL, started_s REAL NOT NULL,
        since_s REAL NOT NULL, until_s REAL NOT NULL, ended_s REAL, exit INTEGER
    ) STRICT
    """,
)


def make_tables(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables in the file at ``path`` where it is new.

    Raises:
        StoreError: it is of a newer release.
    """
    connection.execute("BEGIN IMMEDIATE")  # two first runs at once
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA:
        raise StoreError(f"state of the audits '{path}' has schema {version}, newer than this release's; upgrade")
    if version < SCHEMA:
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
    connection.execute("COMMIT")
