# SPDX-License-Identifier: Apache-2.0
"""A user's evidence as one immutable SQLite file, replaced whole by the ingest.

csub reads it without a lock, so a network file system's locking cannot hang a submission.
"""

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import PRIVATE_FILE, temporary_path
from slurm_colloc.core.model import Evidence
from slurm_colloc.estimate.records import RUNS_READ, EvidenceFound, is_sound, latest_s, newest_of

SCHEMA = 7
_COLUMNS = ", ".join(Evidence._fields)
_FAMILY = "substr(signature, 1, instr(signature, '.'))"
_IS_BOUND = Evidence._fields.index("sm_is_bound")
# Of one family; a sweep has as many signatures as tasks.
RELATIVES_READ = 400


def snapshot_path(state_folder: str, uid: int) -> str:
    """Return where the snapshot of one user lies."""
    return os.path.join(state_folder, "history", f"{uid}.sqlite")


def write_snapshot(path: str, evidence: Iterable[Evidence], uid: int | None = None) -> None:
    """Write a snapshot and put it in place of the old one; with ``uid``, as that user's file.

    Raises:
        StoreError: the folder cannot be written.
    """
    import sqlite3

    temporary = temporary_path(path)
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE_FILE))
        connection = sqlite3.connect(temporary)
        try:
            with connection:
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
                connection.execute(f"CREATE TABLE evidence ({_COLUMNS})")
                marks = ", ".join("?" * len(Evidence._fields))
                connection.executemany(f"INSERT INTO evidence VALUES ({marks})", evidence)  # noqa: S608
                connection.execute("CREATE INDEX by_signature ON evidence (signature, ended_s)")
                # Relatives have the part before the dot of a signature in common.
                connection.execute(f"CREATE INDEX by_family ON evidence ({_FAMILY}, signature)")
        finally:
            connection.close()
        if uid is not None:
            os.chown(temporary, uid, -1)
        os.replace(temporary, path)
    except (OSError, sqlite3.Error, ValueError, OverflowError) as error:
        with suppress(OSError):  # left behind, it would stop the next process of the same number
            os.unlink(temporary)
        raise StoreError(f"history '{path}' cannot be written: {error}") from error


def read_snapshot(path: str, signature: str) -> EvidenceFound:
    """Return the newest runs of one signature, oldest first; a missing file is no evidence.

    Raises:
        StoreError: corrupt, unreadable, or from another release.
    """
    rows = _rows(path, [signature], RUNS_READ)
    return rows._replace(evidence=newest_of(rows.evidence))


def signatures_kept(path: str, family: str) -> list[str]:
    """Return the signatures of one family, in no order; a missing file has none.

    Raises:
        StoreError: corrupt, unreadable, or from another release.
    """
    query = f"SELECT DISTINCT signature FROM evidence WHERE {_FAMILY} = ?"  # noqa: S608
    return [name for (name,) in _ask(path, query, (f"{family}.",)) if isinstance(name, str)]


def read_relatives(path: str, signatures: Sequence[str]) -> EvidenceFound:
    """Return the newest runs of all these signatures, oldest first; a missing file is no evidence.

    Raises:
        StoreError: corrupt, unreadable, or from another release.
    """
    rows = _rows(path, signatures, RELATIVES_READ)
    return rows._replace(evidence=rows.evidence[::-1])


def _rows(path: str, signatures: Sequence[str], most: int) -> EvidenceFound:
    """Return the newest runs first, and how many rows cannot be true."""
    marks = ", ".join("?" * len(signatures))
    query = f"SELECT {_COLUMNS} FROM evidence WHERE signature IN ({marks}) ORDER BY ended_s DESC LIMIT ?"  # noqa: S608
    rows = _ask(path, query, (*signatures, most))
    until_s = latest_s()
    runs = tuple(Evidence(*row)._replace(sm_is_bound=bool(row[_IS_BOUND])) for row in rows if is_sound(row, until_s))
    return EvidenceFound(runs, len(rows) - len(runs))


def _ask(path: str, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"history '{path}' cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise StoreError(f"history '{path}' is no file of uid {os.geteuid()}, and is not believed; move it away")
    # Here, not above: most users of csub have no snapshot, and it costs 4 ms to import.
    import sqlite3

    try:
        # These characters end a path in a URI; urllib.parse would say the same and cost 2 ms more.
        place = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        connection = sqlite3.connect(f"file:{place}?mode=ro&immutable=1", uri=True)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version != SCHEMA:
                raise StoreError(
                    f"history '{path}' is of another release (schema {version}, this one reads {SCHEMA}): run 'colloc "
                    "ingest' again with this release, or upgrade it here"
                )
            rows: list[tuple[Any, ...]] = connection.execute(query, values).fetchall()
        finally:
            connection.close()
    # sqlite3 cannot say what is wrong with a damaged schema: those bytes are no text.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise StoreError(f"history '{path}' cannot be read: {error}; run 'colloc ingest' again") from error
    return rows
