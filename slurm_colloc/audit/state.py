# SPDX-License-Identifier: Apache-2.0
"""The memory of audits: one table of what was told to whom and what was done, and whether it came to that.

One SQLite file on a disk of this host, written ahead and synced at each step, so that it is true after a crash at any
instant. The run that sends holds the lock beside it.
"""

import os
import pwd
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import quote

from slurm_colloc.audit.escalation import ACTION, DOUBTFUL, SENT, Notification, Waiver, key_of, still
from slurm_colloc.core.audit_model import JOB, Finding
from slurm_colloc.core.clock import pause, ticking
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import PRIVATE_FILE, PRIVATE_FOLDER, as_owner, locked, network_file_system, private_folder

SCHEMA = 2
# The columns of ``told`` are the fields of a Notification.
_TABLES = (
    """
    CREATE TABLE told (
        rule TEXT NOT NULL, about TEXT NOT NULL, cluster TEXT NOT NULL, subject TEXT NOT NULL, digest TEXT NOT NULL,
        step INTEGER NOT NULL, last_seen_s REAL NOT NULL, since_s REAL NOT NULL, message TEXT NOT NULL,
        state TEXT NOT NULL, user TEXT NOT NULL, recipient TEXT NOT NULL, topic TEXT NOT NULL, reply TEXT NOT NULL,
        changed_s REAL NOT NULL,
        PRIMARY KEY (rule, about, cluster, subject, digest, step, message)
    ) STRICT
    """,
    "CREATE INDEX told_by_message ON told (message)",
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
# The path is whole, because sudo has a PATH of its own.
_PROGRAM = os.path.join(sys.prefix, "bin", "colloc")
_KEPT_S = 400 * 86_400.0


def audit_folder(folder: str) -> str:
    """Return the folder of the audits' state, made where it is missing.

    Raises:
        StoreError: it cannot be made, is somebody else's, or lies on a network file system.
    """
    with suppress(OSError, KeyError):  # it is made, or whoever makes it says what is wrong
        owner = os.lstat(folder).st_uid
        name = pwd.getpwuid(owner).pw_name
        if owner != os.geteuid():
            raise StoreError(
                f"folder '{folder}' belongs to {name}; call this as that user: sudo -u {name} {_PROGRAM} audit ..."
            )
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

    def notifications(self, state: str = "", after_s: float = -1.0) -> list[Notification]:
        """Return what was told and done and came to be in this state (else any) after then, the oldest first."""
        query = "SELECT * FROM told WHERE ? IN ('', state) AND changed_s > ? ORDER BY changed_s, rowid"
        return [Notification(*row) for row in self._all(query, (state, after_s))]

    def messages(self, state: str = "", after_s: float = -1.0) -> list[Notification]:
        """Return one of each message among these."""
        rows = self.notifications(state, after_s)
        return [*{row.message: row for row in rows if row.step != ACTION}.values()]

    def actions(self, state: str = "", after_s: float = -1.0) -> list[Notification]:
        """Return what was done to jobs among these."""
        return [row for row in self.notifications(state, after_s) if row.step == ACTION]

    def jobs_told(self) -> tuple[str, ...]:
        """Return the jobs of which anybody was told while they ran, or that were acted on."""
        return tuple(job for (job,) in self._all("SELECT DISTINCT subject FROM told WHERE about = ?", (JOB,)))

    def begin_message_once(self, message: Sequence[Notification]) -> bool:
        """Record that a message is about to be handed over, with its steps; False for the same mail twice."""
        with self._together():
            new = not self._all("SELECT 1 FROM told WHERE message = ?", (message[0].message,))
            for row in message if new else ():
                self.put(row)
        return new

    def end_message(self, message: str, now_s: float) -> bool:
        """Record that a message was handed over; False where none of this id is in doubt."""
        change = "UPDATE told SET state = ?, since_s = ?, changed_s = ? WHERE (message, state) = (?, ?)"
        return self._do(change, (SENT, now_s, now_s, message, DOUBTFUL)) > 0

    def forget_message(self, message: str) -> bool:
        """Record that a message was not taken: it told nobody. False where none of this id is in doubt."""
        return self._do("DELETE FROM told WHERE (message, state) = (?, ?)", (message, DOUBTFUL)) > 0

    def doubt(self, message: str, reply: str) -> None:
        """Record why it is not known whether a message was taken."""
        self._do("UPDATE told SET reply = ? WHERE (message, state) = (?, ?)", (reply, message, DOUBTFUL))

    def seen(self, findings: Iterable[Finding], now_s: float, settings: Notices) -> None:
        """Record that these are found still, those that are the same."""
        by_key = {key_of(finding): finding for finding in findings}
        with self._together():
            for row in self.notifications():
                if finding := by_key.get(key_of(row)):
                    self.put(still(row, finding, now_s, settings))

    def put(self, row: Notification) -> None:
        """Record what is about to be done, or what came of it."""
        self._do(
            "INSERT INTO told VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "last_seen_s = excluded.last_seen_s, state = excluded.state, reply = excluded.reply, "
            "changed_s = excluded.changed_s",
            row,
        )

    def waivers(self) -> list[Waiver]:
        """Return who is not told of what."""
        return [
            Waiver(*row)
            for row in self._all("SELECT user, rule, subject, until_s, by, why FROM waivers ORDER BY user, rule")
        ]

    def waive(self, waiver: Waiver, now_s: float) -> None:
        """Record a waiver, in the place of one of the same user, rule and subject."""
        self._do("INSERT OR REPLACE INTO waivers VALUES (?, ?, ?, ?, ?, ?, ?)", (*waiver, now_s))

    def end_waiver(self, user: str, rule: str, subject: str) -> bool:
        """Remove a waiver; return whether there was one."""
        return self._do("DELETE FROM waivers WHERE (user, rule, subject) = (?, ?, ?)", (user, rule, subject)) > 0

    def last_sent(self, topic: str) -> float | None:
        """Return when the last message on this topic was handed over; None where there is none."""
        return self._last("SELECT max(changed_s) FROM told WHERE (topic, state) = (?, ?)", topic, SENT)

    def begin(self, mode: str, rules: str, since_s: float, until_s: float, now_s: float) -> int:
        """Record the begin of a run and return its number; all but doubts is forgotten after 400 days."""
        with self._together():
            self._do("DELETE FROM told WHERE last_seen_s < ? AND state != ?", (now_s - _KEPT_S, DOUBTFUL))
            self._do("DELETE FROM runs WHERE started_s < ?", (now_s - _KEPT_S,))
            insert = "INSERT INTO runs (mode, rules, started_s, since_s, until_s) VALUES (?, ?, ?, ?, ?) RETURNING id"
            return int(self._all(insert, (mode, rules, now_s, since_s, until_s))[0][0])

    def end(self, run: int, status: int, now_s: float) -> None:
        """Record the end of a run and its exit status."""
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
        return self._connection.execute(query, values).fetchall()

    def _do(self, query: str, values: Sequence[object] = ()) -> int:
        return self._connection.execute(query, values).rowcount

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
def opened(folder: str, *, copy: bool = False) -> Iterator[State]:
    """Open the state in ``folder``, made where need be; a ``copy`` is in memory, and nothing is made or changed.

    Raises:
        StoreError: it cannot be read or written, or is of another release.
    """
    path = os.path.join(folder, "state.sqlite")
    errors = (sqlite3.Error, OSError) if copy else (sqlite3.Error,)
    try:
        with closing(sqlite3.connect(":memory:" if copy else path, timeout=30, isolation_level=None)) as connection:
            if copy:
                _copy(folder, path, connection)
            else:
                os.chmod(path, PRIVATE_FILE)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
            _make_tables(connection, path)
            yield State(connection)
    except errors as error:
        raise StoreError(f"state of the audits '{path}' cannot be {'read' if copy else 'used'}: {error}") from error


def _copy(folder: str, path: str, connection: sqlite3.Connection) -> None:
    with as_owner(folder), suppress(FileNotFoundError):
        os.stat(path)
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=rw", timeout=30, uri=True)) as original:
            original.backup(connection)


def _make_tables(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables in the file at ``path`` where it is new.

    Raises:
        StoreError: it is of another release.
    """
    connection.execute("BEGIN IMMEDIATE")  # two first runs at once
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, SCHEMA):
        raise StoreError(
            f"state of the audits '{path}' has schema {version}, and this release reads {SCHEMA}; call the release "
            "that wrote it, or move the file away: notices and opt-outs begin anew"
        )
    for statement in () if version else (*_TABLES, f"PRAGMA user_version = {SCHEMA}"):
        connection.execute(statement)
    connection.execute("COMMIT")
