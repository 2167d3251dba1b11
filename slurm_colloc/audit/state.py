# SPDX-License-Identifier: Apache-2.0
"""What audits remember: who was told of what by which message, and what became of each message.

One SQLite file on a disk of this host, written ahead and synced at each step, so that it is true after a crash at any
instant. Whoever sends holds the lock beside it.
"""

import os
import pwd
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

from slurm_colloc.audit.ladder import (
    ACCEPTED,
    ACTION,
    QUEUED,
    STATES,
    TRYING,
    WITHDRAWN,
    Due,
    Told,
    Waiver,
    key_of,
    same_since_s,
    seen_s,
)
from slurm_colloc.audit.state_schema import make_tables
from slurm_colloc.audited import Finding
from slurm_colloc.clock import pause, ticking
from slurm_colloc.config_audit import Notices
from slurm_colloc.errors import StoreError
from slurm_colloc.files import PRIVATE_FILE, PRIVATE_FOLDER, as_owner, locked, network_file_system, private_folder

MAIL, WEBHOOK = "mail", "webhook"
_TOLD = """
    SELECT n.rule, n.cluster, n.subject, n.digest, n.step, n.last_seen_s,
        CASE WHEN m.state = 'accepted' THEN m.changed_s ELSE n.first_seen_s END,
        n.message, coalesce(m.state, n.state)
    FROM notices n LEFT JOIN messages m ON m.id = n.message
"""
# By its whole path, because sudo has a PATH of its own.
_PROGRAM = os.path.join(sys.prefix, "bin", "colloc")
_KEPT_S = 400 * 86_400.0


class Message(NamedTuple):
    """A message in the outbox, without its content.

    ``topic`` is what it is one of several of, ``next_s`` when it may be tried again, ``reply`` the last that came back.
    """

    id: str
    channel: str
    user: str
    recipient: str
    topic: str = ""
    queued_s: float = 0.0
    attempts: int = 0
    next_s: float = 0.0
    state: str = QUEUED
    changed_s: float = 0.0
    reply: str = ""


class Acted(NamedTuple):
    """What was done to a job, ``what`` being "hold" or "cancel": BEGUN, DONE, FAILED or UNABLE, and Slurm's reply."""

    rule: str
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

    def told(self) -> list[Told]:
        """Return every step that was taken, with what became of its message."""
        return [Told(*row) for row in self._all(_TOLD)]

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

    def queue(self, message: Message, content: bytes, steps: Iterable[Due], now_s: float) -> bool:
        """Put a message and the steps that it takes into the outbox, both or neither; False where it was there.

        One that was withdrawn was never sent, and is there no more.
        """
        with self._together():
            return self._queue(message, content, steps, now_s)

    def _queue(self, message: Message, content: bytes, steps: Iterable[Due], now_s: float) -> bool:
        new = self._do(
            "INSERT INTO messages (id, channel, user, recipient, topic, content, queued_s, next_s, state, changed_s) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET content = excluded.content, "
            "queued_s = excluded.queued_s, next_s = excluded.next_s, changed_s = excluded.changed_s, attempts = 0, "
            "state = excluded.state, reply = '' WHERE messages.state = ?",
            (*message[:5], content, now_s, now_s, QUEUED, now_s, WITHDRAWN),
        )
        for due in steps:
            self._note(due.finding, due.step, message.id, now_s)
        return new > 0

    def seen(self, findings: Iterable[Finding], now_s: float, settings: Notices) -> None:
        """Record that these are found still, those that are the same; as ladder.still says of one."""
        with self._together():
            for finding in findings:
                self._do(
                    "UPDATE notices SET last_seen_s = ? "
                    "WHERE (rule, cluster, subject) = (?, ?, ?) AND last_seen_s >= ?",
                    (seen_s(finding, now_s), *key_of(finding), same_since_s(finding, now_s, settings)),
                )

    def act(self, acted: Acted, now_s: float, mail: tuple[Message, bytes] | None = None) -> None:
        """Record that a job is about to be acted on, or what came of it, together with the mail that says so."""
        key = (acted.rule, acted.cluster, acted.subject, acted.digest, ACTION, acted.what)
        with self._together():
            self._do(
                "INSERT INTO notices VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "last_seen_s = excluded.last_seen_s, state = excluded.state, reply = excluded.reply, "
                "changed_s = excluded.changed_s",
                (*key, acted.user, now_s, now_s, acted.state, acted.reply, now_s),
            )
            if mail:
                self._queue(*mail, (), now_s)

    def actions(self, state: str = "", since_s: float = 0.0) -> list[Acted]:
        """Return what was done to jobs and came to be in this state (else any) since then, the oldest first."""
        rows = self._all(
            "SELECT rule, cluster, subject, digest, user, message, state, reply, changed_s FROM notices "
            "WHERE step = ? AND changed_s >= ? AND ? IN ('', state) ORDER BY changed_s, rowid",
            (ACTION, since_s, state),
        )
        return [Acted(*row) for row in rows]

    def _note(self, finding: Finding, step: int, message: str, now_s: float) -> None:
        self._do(
            "INSERT INTO notices VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '', '', 0) "
            "ON CONFLICT DO UPDATE SET last_seen_s = excluded.last_seen_s",
            (*key_of(finding), finding.digest, step, message, finding.user, now_s, seen_s(finding, now_s)),
        )

    def outbox(self, *states: str, since_s: float = 0.0) -> list[Message]:
        """Return the messages in these states (else all) that changed since then, the oldest first."""
        chosen = states or STATES
        rows = self._all(
            f"SELECT {', '.join(Message._fields)} FROM messages "  # noqa: S608
            f"WHERE state IN ({', '.join('?' * len(chosen))}) AND changed_s >= ? ORDER BY queued_s, rowid",
            (*chosen, since_s),
        )
        return [Message(*row) for row in rows]

    def content(self, message: str) -> bytes:
        """Return what a message says; nothing once it was accepted or withdrawn."""
        return bytes(self._all("SELECT content FROM messages WHERE id = ?", (message,))[0][0])

    def counts(self) -> dict[str, int]:
        """Return how many messages are in each state."""
        return dict(self._all("SELECT state, count(*) FROM messages GROUP BY state"))

    def last_accepted(self, topic: str) -> float | None:
        """Return when the last message on this topic was made that was accepted; None where there is none."""
        rows = self._all("SELECT max(queued_s) FROM messages WHERE (topic, state) = (?, ?)", (topic, ACCEPTED))
        return None if rows[0][0] is None else float(rows[0][0])

    def carried(self, message: str) -> list[Told]:
        """Return the steps that a message takes."""
        return [Told(*row) for row in self._all(f"{_TOLD} WHERE n.message = ?", (message,))]

    def mark(self, message: str, state: str, now_s: float, reply: str = "", next_s: float | None = None) -> None:
        """Record what became of a message; an attempt begins with TRYING."""
        with self._together():
            self._do(
                "UPDATE messages SET state = ?, changed_s = ?, reply = ?, next_s = coalesce(?, next_s), "
                "attempts = attempts + ?, content = iif(?, x'', content) WHERE id = ?",
                (state, now_s, reply, next_s, state == TRYING, state == ACCEPTED, message),
            )

    def withdraw(self, message: str, why: str, now_s: float) -> None:
        """Take back a message that waits, as if what it carries had never been told: it was sent to nobody."""
        with self._together():
            gone = self._do(
                "UPDATE messages SET state = ?, content = x'', changed_s = ?, reply = ? WHERE id = ? AND state = ?",
                (WITHDRAWN, now_s, why, message, QUEUED),
            )
            if gone:
                self._do("DELETE FROM notices WHERE message = ?", (message,))

    def put_back(self, now_s: float) -> None:
        """Queue again what was being tried when a run was killed: before the last word of it nothing was sent."""
        with self._together():
            self._do("UPDATE messages SET state = ?, changed_s = ? WHERE state = ?", (QUEUED, now_s, TRYING))

    def settle(self, message: str, state: str, now_s: float) -> bool:
        """Queue a message again, or drop it, by a person's word; False where there is none that is not accepted."""
        with self._together():
            done = self._do(
                "UPDATE messages SET state = ?, changed_s = ?, queued_s = iif(?, ?, queued_s), next_s = ? "
                "WHERE id = ? AND state NOT IN (?, ?, ?)",
                (state, now_s, state == QUEUED, now_s, now_s, message, ACCEPTED, TRYING, WITHDRAWN),
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

    def last_success(self, rules: str) -> float | None:
        """Return when the last run of these rules that ended well did so; None where there is none."""
        value = self._all("SELECT max(ended_s) FROM runs WHERE exit IN (0, 1) AND rules = ?", (rules,))[0][0]
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
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # of a full disk SQLite has done it already
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
        connection = _connected(path)
        try:
            yield State(connection)
        finally:
            connection.close()
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
        with as_owner(folder):
            if _is_there(path):
                with closing(sqlite3.connect(f"file:{quote(path)}?mode=rw", timeout=30, uri=True)) as kept:
                    kept.backup(connection)
        make_tables(connection, path)
        yield State(connection)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"state of the audits '{path}' cannot be read: {error}") from error
    finally:
        connection.close()


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _connected(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        os.chmod(path, PRIVATE_FILE)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        make_tables(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection
