# SPDX-License-Identifier: Apache-2.0
"""What audits remember: who was told of what by which message, and what became of each message.

One SQLite file on a disk of this host, written ahead and synced at each step, so that it is true after a crash at any
instant. Whoever sends holds the lock beside it.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from slurm_colloc.audit.ladder import (
    ACCEPTED,
    ACTION,
    DOUBT,
    DROPPED,
    QUEUED,
    REFUSED,
    TRYING,
    Due,
    Told,
    Waiver,
    key_of,
    spell_since_s,
)
from slurm_colloc.audited import Finding
from slurm_colloc.config_audit import Notices
from slurm_colloc.errors import StoreError
from slurm_colloc.files import PRIVATE_FILE, PRIVATE_FOLDER, locked, network_file_system, private_folder

MAIL, WEBHOOK = "mail", "webhook"
_KEPT_S = 400 * 86_400.0
# Each brings the file from the version before to the next; none is ever changed.
_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE messages (
            id TEXT PRIMARY KEY, channel TEXT NOT NULL, user TEXT NOT NULL, recipient TEXT NOT NULL,
            content BLOB NOT NULL, queued_s REAL NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, next_s REAL NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('queued', 'trying', 'accepted', 'refused', 'in doubt', 'dropped')),
            changed_s REAL NOT NULL, reply TEXT NOT NULL DEFAULT ''
        ) STRICT
        """,
        """
        CREATE TABLE notices (
            rule TEXT NOT NULL, cluster TEXT NOT NULL, subject TEXT NOT NULL, digest TEXT NOT NULL,
            step INTEGER NOT NULL, message TEXT NOT NULL, user TEXT NOT NULL,
            first_seen_s REAL NOT NULL, last_seen_s REAL NOT NULL,
            state TEXT NOT NULL DEFAULT '', reply TEXT NOT NULL DEFAULT '',
            PRIMARY KEY (rule, cluster, subject, digest, step, message)
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
    ),
)
SCHEMA = len(_MIGRATIONS)


class Message(NamedTuple):
    """A message in the outbox; ``next_s`` is when it may be tried again, ``reply`` the last that came back."""

    id: str
    channel: str
    user: str
    recipient: str
    content: bytes
    queued_s: float
    attempts: int = 0
    next_s: float = 0.0
    state: str = QUEUED
    changed_s: float = 0.0
    reply: str = ""


def audit_folder(state_folder: str) -> str:
    """Return the folder of the audits' state, made where it is missing.

    Raises:
        StoreError: it cannot be made, is somebody else's, or lies on a network file system.
    """
    folder = private_folder(os.path.join(state_folder, "audit"))
    try:
        os.chmod(folder, PRIVATE_FOLDER)
        network = network_file_system(folder)
    except OSError as error:
        raise StoreError(f"folder '{folder}' cannot be used: {error.strerror}") from error
    if network:
        raise StoreError(
            f"folder '{folder}' is on {network}, where a crash or another host can lose what was sent; "
            "set 'paths.state' to, or mount there, a disk of this host"
        )
    return folder


@contextmanager
def alone(folder: str) -> Iterator[bool]:
    """Hold the lock of whoever sends; False when another run has it.

    Raises:
        StoreError: the lock cannot be taken.
    """
    with locked(os.path.join(folder, "lock")) as held:
        yield held


class State:
    """The state in a folder; see ``opened``."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def told(self) -> list[Told]:
        """Return every step that was taken, with what became of its message."""
        rows = self._all(
            """
            SELECT n.rule, n.cluster, n.subject, n.digest, n.step, n.last_seen_s,
                   CASE WHEN m.state = 'accepted' THEN m.changed_s ELSE n.first_seen_s END,
                   n.message, coalesce(m.state, n.state)
            FROM notices n LEFT JOIN messages m ON m.id = n.message
            """
        )
        return [Told(*row) for row in rows]

    def waivers(self) -> list[Waiver]:
        """Return who is not told of what."""
        return [
            Waiver(*row)
            for row in self._all("SELECT user, rule, subject, until_s, by, why FROM waivers ORDER BY user, rule")
        ]

    def waive(self, waiver: Waiver, now_s: float) -> None:
        """Record a waiver, in the place of one of the same user, rule and subject."""
        with self._together():
            self._do("INSERT OR REPLACE INTO waivers VALUES (?, ?, ?, ?, ?, ?, ?)", (*waiver, now_s))

    def end_waiver(self, user: str, rule: str, subject: str) -> bool:
        """Remove a waiver; return whether there was one."""
        with self._together():
            return self._do("DELETE FROM waivers WHERE (user, rule, subject) = (?, ?, ?)", (user, rule, subject)) > 0

    def queue(self, message: Message, steps: Iterable[Due], now_s: float) -> bool:
        """Put a message and the steps that it takes into the outbox, both or neither; False where it was there."""
        with self._together():
            new = self._do(
                f"INSERT OR IGNORE INTO messages VALUES ({', '.join('?' * len(Message._fields))})",  # noqa: S608
                message._replace(queued_s=now_s, next_s=now_s, changed_s=now_s),
            )
            for due in steps:
                self._note(due.finding, due.step, message.id, now_s)
        return new > 0

    def seen(self, findings: Iterable[Finding], now_s: float, settings: Notices) -> None:
        """Record that these are found still; what was not for too long, is not the same still."""
        with self._together():
            for finding in findings:
                self._do(
                    "UPDATE notices SET last_seen_s = ? "
                    "WHERE (rule, cluster, subject) = (?, ?, ?) AND last_seen_s >= ?",
                    (now_s, *key_of(finding), spell_since_s(finding, now_s, settings)),
                )

    def act(self, finding: Finding, what: str, state: str, reply: str, now_s: float) -> None:
        """Record that a job is about to be acted on, or what came of it."""
        with self._together():
            self._note(finding, ACTION, what, now_s)
            self._do(
                "UPDATE notices SET state = ?, reply = ? "
                "WHERE (rule, cluster, subject) = (?, ?, ?) AND digest = ? AND step = ? AND message = ?",
                (state, reply, *key_of(finding), finding.digest, ACTION, what),
            )

    def _note(self, finding: Finding, step: int, message: str, now_s: float) -> None:
        self._do(
            "INSERT INTO notices VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '', '') "
            "ON CONFLICT DO UPDATE SET last_seen_s = excluded.last_seen_s",
            (*key_of(finding), finding.digest, step, message, finding.user, now_s, now_s),
        )

    def outbox(self, *states: str, since_s: float = 0.0) -> list[Message]:
        """Return the messages in these states (else all) that changed since then, the oldest first."""
        chosen = states or (QUEUED, TRYING, ACCEPTED, REFUSED, DOUBT, DROPPED)
        rows = self._all(
            f"SELECT * FROM messages WHERE state IN ({', '.join('?' * len(chosen))}) AND changed_s >= ? "  # noqa: S608
            "ORDER BY queued_s, rowid",
            (*chosen, since_s),
        )
        return [Message(*row) for row in rows]

    def carried(self, message: str) -> int:
        """Return how many findings a message carries."""
        return int(self._all("SELECT count(*) FROM notices WHERE message = ?", (message,))[0][0])

    def mark(self, message: str, state: str, now_s: float, reply: str = "", next_s: float | None = None) -> None:
        """Record what became of a message; an attempt begins with TRYING."""
        with self._together():
            self._do(
                "UPDATE messages SET state = ?, changed_s = ?, reply = ?, next_s = coalesce(?, next_s), "
                "attempts = attempts + ? WHERE id = ?",
                (state, now_s, reply, next_s, state == TRYING, message),
            )

    def put_back(self, now_s: float) -> None:
        """Queue again what was being tried when a run was killed: before the last word of it nothing was sent."""
        with self._together():
            self._do("UPDATE messages SET state = ?, changed_s = ? WHERE state = ?", (QUEUED, now_s, TRYING))

    def settle(self, message: str, state: str, now_s: float) -> bool:
        """Queue a message again, or drop it, by a person's word; False where there is none that is not accepted."""
        with self._together():
            done = self._do(
                "UPDATE messages SET state = ?, changed_s = ?, next_s = ? WHERE id = ? AND state NOT IN (?, ?)",
                (state, now_s, now_s, message, ACCEPTED, TRYING),
            )
        return done > 0

    def begin(self, mode: str, rules: str, since_s: float, until_s: float, now_s: float) -> int:
        """Record the begin of a run and return its number; what is older than 400 days is forgotten."""
        with self._together():
            self._do("DELETE FROM notices WHERE last_seen_s < ?", (now_s - _KEPT_S,))
            self._do("DELETE FROM runs WHERE started_s < ?", (now_s - _KEPT_S,))
            self._do(
                "DELETE FROM messages WHERE changed_s < ? AND state NOT IN ('queued', 'in doubt') "
                "AND id NOT IN (SELECT message FROM notices)",
                (now_s - _KEPT_S,),
            )
            self._do(
                "INSERT INTO runs (mode, rules, started_s, since_s, until_s) VALUES (?, ?, ?, ?, ?)",
                (mode, rules, now_s, since_s, until_s),
            )
            return int(self._all("SELECT last_insert_rowid()")[0][0])

    def end(self, run: int, status: int, now_s: float) -> None:
        """Record the end of a run and its exit status."""
        with self._together():
            self._do("UPDATE runs SET ended_s = ?, exit = ? WHERE id = ?", (now_s, status, run))

    def last_good(self, mode: str, rules: str) -> float | None:
        """Return until when the last run of these rules saw that ended well; None where there is none."""
        rows = self._all(
            "SELECT max(until_s) FROM runs WHERE exit IN (0, 1) AND mode = ? AND rules = ?",
            (mode, rules),
        )
        return None if rows[0][0] is None else float(rows[0][0])

    def good_runs(self) -> list[float]:
        """Return when runs ended that ended well."""
        return [float(ended_s) for (ended_s,) in self._all("SELECT ended_s FROM runs WHERE exit IN (0, 1)")]

    def last_success(self) -> float | None:
        """Return when the last run that ended well did so; None where there is none."""
        value = self._all("SELECT max(ended_s) FROM runs WHERE exit IN (0, 1)")[0][0]
        return None if value is None else float(value)

    def _all(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, tuple(values)).fetchall()

    def _do(self, query: str, values: Sequence[object] = ()) -> int:
        return self._connection.execute(query, tuple(values)).rowcount

    @contextmanager
    def _together(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


@contextmanager
def opened(folder: str) -> Iterator[State]:
    """Open the state in ``folder``, made or brought up to date where need be.

    Raises:
        StoreError: it cannot be read or written, or is of a newer release.
    """
    path = os.path.join(folder, "state.sqlite")
    try:
        connection = _connected(path)
        try:
            yield State(connection)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StoreError(f"state of the audits '{path}' cannot be used: {error}") from error


def _connected(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        os.chmod(path, PRIVATE_FILE)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("BEGIN IMMEDIATE")  # two first runs at once
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA:
        raise StoreError(f"state of the audits '{path}' has schema {version}, newer than this release's; upgrade")
    for step in _MIGRATIONS[version:]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA}")
    connection.execute("COMMIT")
