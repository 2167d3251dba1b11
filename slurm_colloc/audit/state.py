# SPDX-License-Identifier: Apache-2.0
"""The memory of audits: each user told, of which finding, by which message, and whether it was handed over.

One SQLite file on a disk of this host, written ahead and synced at each step, so that it is true after a crash at any
instant. The run that sends holds the lock beside it.
"""

import os
import pwd
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import quote

from slurm_colloc.audit.ladder import (
    ACTION,
    DOUBTFUL,
    SENT,
    Notification,
    Planned,
    Waiver,
    key_of,
    same_since_s,
    seen_s,
)
from slurm_colloc.core.audit_model import Finding
from slurm_colloc.core.clock import pause, ticking
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import PRIVATE_FILE, PRIVATE_FOLDER, as_owner, locked, network_file_system, private_folder

MAIL, COMMAND = "mail", "command"
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
_TOLD = """
    SELECT n.rule, n.about, n.cluster, n.subject, n.digest, n.step, n.last_seen_s,
        CASE WHEN m.state = 'handed over' THEN m.changed_s ELSE n.first_seen_s END,
        n.message, coalesce(m.state, n.state)
    FROM notices n LEFT JOIN messages m ON m.id = n.message
"""
# The path is whole, because sudo has a PATH of its own.
_PROGRAM = os.path.join(sys.prefix, "bin", "colloc")
_KEPT_S = 400 * 86_400.0


class Message(NamedTuple):
    """A message, without its content; ``topic`` is what it is one of several of, ``reply`` what is known of a doubt."""

    id: str
    channel: str
    user: str
    recipient: str
    topic: str = ""
    state: str = DOUBTFUL
    changed_s: float = 0.0
    reply: str = ""


class Action(NamedTuple):
    """An action on a job, ``what`` being "hold" or "cancel", its state (as ladder.py has them) and Slurm's reply."""

    rule: str
    about: str
    cluster: str
    subject: str
    digest: str
    user: str
    what: str
    state: str
    reply: str = ""
    changed_s: float = 0.0


def audit_folder(folder: str) -> str:
    """Return the folder of the audits' state, made where it is missing.

    Raises:
        StoreError: it cannot be made, is somebody else's, or lies on a network file system.
    """
    _of_this_user(folder)
    private_folder(folder)
    try:
        os.chmod(folder, PRIVATE_FOLDER)
        network = network_file_system(folder)
    except OSError as error:
        raise StoreError(f"folder '{folder}' cannot be used: {error.strerror}") from error
    if network:
        raise StoreError(
            f"folder '{folder}' is on {network}, where a crash or another host can lose what was sent; "
            "set 'notices.state' to a folder on a disk of this host"
        )
    return folder


def _of_this_user(folder: str) -> None:
    try:
        owner = os.lstat(folder).st_uid
        name = pwd.getpwuid(owner).pw_name
    except (OSError, KeyError):  # it is made, or whoever makes it says what is wrong
        return
    if owner != os.geteuid():
        raise StoreError(
            f"folder '{folder}' belongs to {name}; call this as that user: sudo -u {name} {_PROGRAM} audit ..."
        )


@contextmanager
def alone(folder: str, wait_s: float = 0.0) -> Iterator[bool]:
    """Hold the lock of whoever sends, once it is free; False when another run has it after ``wait_s`` still.

    Raises:
        StoreError: the lock cannot be taken.
    """
    until = ticking() + wait_s
    while True:
        with locked(os.path.join(folder, "lock")) as held:
            if held or ticking() >= until:
                yield held
                return
        pause(1.0)


class State:
    """The state in a folder; see ``opened``."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def notifications(self) -> list[Notification]:
        """Return every step that was taken, with what became of its message."""
        return [Notification(*row) for row in self._all(_TOLD)]

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

    def begin_message_once(self, message: Message, steps: Iterable[Planned], now_s: float) -> bool:
        """Record that a message is about to be handed over, with its steps; False for the same mail twice."""
        with self._together():
            new = self._do(
                "INSERT OR IGNORE INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, '')", (*message[:5], DOUBTFUL, now_s)
            )
            for finding, step, _ in steps if new else ():
                self._do(
                    "INSERT INTO notices VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', '', 0) "
                    "ON CONFLICT DO UPDATE SET last_seen_s = excluded.last_seen_s",
                    (*key_of(finding), finding.digest, step, message.id, finding.user, now_s, seen_s(finding, now_s)),
                )
        return new > 0

    def end_message(self, message: str, now_s: float) -> bool:
        """Record that a message was handed over; False where none of this id is in doubt."""
        with self._together():
            change = "UPDATE messages SET state = ?, changed_s = ? WHERE (id, state) = (?, ?)"
            return self._do(change, (SENT, now_s, message, DOUBTFUL)) > 0

    def forget_message(self, message: str) -> bool:
        """Record that a message was not taken: it told nobody. False where none of this id is in doubt."""
        with self._together():
            gone = self._do("DELETE FROM messages WHERE (id, state) = (?, ?)", (message, DOUBTFUL)) > 0
            if gone:
                self._do("DELETE FROM notices WHERE message = ?", (message,))
        return gone

    def doubt(self, message: str, reply: str) -> None:
        """Record why it is not known whether a message was taken."""
        with self._together():
            self._do("UPDATE messages SET reply = ? WHERE (id, state) = (?, ?)", (reply, message, DOUBTFUL))

    def seen(self, findings: Iterable[Finding], now_s: float, settings: Notices) -> None:
        """Record that these are found still, those that are the same; as ladder.still says of one."""
        with self._together():
            for finding in findings:
                self._do(
                    "UPDATE notices SET last_seen_s = ? "
                    "WHERE (rule, about, cluster, subject) = (?, ?, ?, ?) AND last_seen_s >= ?",
                    (seen_s(finding, now_s), *key_of(finding), same_since_s(finding, now_s, settings)),
                )

    def act(self, acted: Action, now_s: float) -> None:
        """Record that a job is about to be acted on, or what came of it."""
        with self._together():
            self._do(
                "INSERT INTO notices VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "last_seen_s = excluded.last_seen_s, state = excluded.state, reply = excluded.reply, "
                "changed_s = excluded.changed_s",
                (*acted[:5], ACTION, acted.what, acted.user, now_s, now_s, acted.state, acted.reply, now_s),
            )

    def actions(self, state: str = "", after_s: float = 0.0) -> list[Action]:
        """Return what was done to jobs and came to be in this state (else any) after then, the oldest first."""
        rows = self._all(
            "SELECT rule, about, cluster, subject, digest, user, message, state, reply, changed_s FROM notices "
            "WHERE step = ? AND changed_s > ? AND ? IN ('', state) ORDER BY changed_s, rowid",
            (ACTION, after_s, state),
        )
        return [Action(*row) for row in rows]

    def messages(self, state: str = "", after_s: float = 0.0) -> list[Message]:
        """Return the messages in this state (else any) that came to be in it after then, the oldest first."""
        query = "SELECT * FROM messages WHERE ? IN ('', state) AND changed_s > ? ORDER BY changed_s, rowid"
        return [Message(*row) for row in self._all(query, (state, after_s))]

    def last_sent(self, topic: str) -> float | None:
        """Return when the last message on this topic was handed over; None where there is none."""
        return self._last("SELECT max(changed_s) FROM messages WHERE (topic, state) = (?, ?)", topic, SENT)

    def carried(self, message: str) -> list[Notification]:
        """Return the steps that a message takes."""
        return [Notification(*row) for row in self._all(f"{_TOLD} WHERE n.message = ?", (message,))]

    def begin(self, mode: str, rules: str, since_s: float, until_s: float, now_s: float) -> int:
        """Record the begin of a run and return its number; records older than 400 days are forgotten."""
        with self._together():
            self._do("DELETE FROM notices WHERE last_seen_s < ?", (now_s - _KEPT_S,))
            self._do("DELETE FROM runs WHERE started_s < ?", (now_s - _KEPT_S,))
            self._do(
                "DELETE FROM messages WHERE changed_s < ? AND state = ? AND id NOT IN (SELECT message FROM notices)",
                (now_s - _KEPT_S, SENT),
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
        return self._last("SELECT max(until_s) FROM runs WHERE exit IN (0, 1) AND (mode, rules) = (?, ?)", mode, rules)

    def last_success(self, rules: str) -> float | None:
        """Return when the last run of these rules that ended well did so; None where there is none."""
        return self._last("SELECT max(ended_s) FROM runs WHERE exit IN (0, 1) AND rules = ?", rules)

    def _last(self, query: str, *values: str) -> float | None:
        ((time_s,),) = self._all(query, values)
        return None if time_s is None else float(time_s)

    def _all(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, tuple(values)).fetchall()

    def _do(self, query: str, values: Sequence[object] = ()) -> int:
        return self._connection.execute(query, tuple(values)).rowcount

    @contextmanager
    def _together(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite has done it already when a disk is full
                self._connection.execute("ROLLBACK")
            raise


@contextmanager
def opened(folder: str) -> Iterator[State]:
    """Open the state in ``folder``, made or brought up to date where need be.

    Raises:
        StoreError: it cannot be read or written, or is of a newer release.
    """
    path = os.path.join(folder, "state.sqlite")
    try:
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
            os.chmod(path, PRIVATE_FILE)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            _make_tables(connection, path)
            yield State(connection)
    except sqlite3.Error as error:
        raise StoreError(f"state of the audits '{path}' cannot be used: {error}") from error


@contextmanager
def copied(folder: str) -> Iterator[State]:
    """Give a copy of the state in ``folder``, which is made by nobody and changed by nobody; it is in memory.

    Raises:
        StoreError: it cannot be read, or is of a newer release.
    """
    path = os.path.join(folder, "state.sqlite")
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        with as_owner(folder), suppress(FileNotFoundError):
            os.stat(path)
            with closing(sqlite3.connect(f"file:{quote(path)}?mode=rw", timeout=30, uri=True)) as original:
                original.backup(connection)
        _make_tables(connection, path)
        yield State(connection)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"state of the audits '{path}' cannot be read: {error}") from error
    finally:
        connection.close()


def _make_tables(connection: sqlite3.Connection, path: str) -> None:
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
