# SPDX-License-Identifier: Apache-2.0
"""Reads a file of sacct text that the command line names."""

import hashlib
import os
from collections.abc import Collection
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from duckdb import DuckDBPyConnection

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.files import at_once
from slurm_colloc.sources import tres_usage
from slurm_colloc.store.ingest import take_text
from slurm_colloc.store.sacct_rows import ALLOCATION_COLUMNS, COLUMNS, MEANS, Counted

_NEEDED = (
    *("cluster", "job_id_raw", "submit_s", "start_s", "end_s", "suspended_s", "node_list", "gres"),
    "limit_min",
    *MEANS,
    "ingested_s",
)
# As sacct writes those that are read.
_NAMES = {name.lower(): name for name in (*COLUMNS, "AdminComment", tres_usage.FIELD)}


class Text(NamedTuple):
    """A text as the command line describes it: its path, its columns by comma, and the zone of times without one."""

    path: str
    fields: str
    timezone: str

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of a text without a header, none where they are not named.

        sacct takes their names in any case, and a width after a %.
        """
        named = [field.strip().partition("%")[0] for field in self.fields.split(",")] if self.fields else []
        return tuple(_NAMES.get(name.lower(), name) for name in named)

    @property
    def zone(self) -> ZoneInfo | None:
        """Return the zone of times without one, None where none is named.

        Raises:
            InputError: there is no such zone.
        """
        try:
            return ZoneInfo(self.timezone) if self.timezone else None
        except (ZoneInfoNotFoundError, ValueError):
            raise InputError(f"--timezone '{self.timezone}' is not a zone such as Europe/Berlin or UTC") from None

    @property
    def written_s(self) -> float:
        """Return when it was written: it knows of unfinished runs up to that time.

        Raises:
            InputError: there is no such file.
        """
        try:
            return os.stat(self.path).st_mtime
        except OSError as error:
            raise InputError(f"'{self.path}' cannot be read: {error.strerror}") from error


def take(database: DuckDBPyConnection, text: Text, work: str, by: Collection[str]) -> Counted:
    """Make the table ``taken`` of the text, with what a report by the columns ``by`` needs; see ``keep_text``."""
    columns = [name for name in ALLOCATION_COLUMNS if name in (*_NEEDED, *by)]
    source = os.path.basename(text.path)
    return take_text(database, text.path, text.columns, text.zone, text.written_s, work, source, columns)


def source_name(path: str) -> str:
    """Return a name for an exported file: its own, and what tells it from others of that name."""
    place = hashlib.sha256(os.path.abspath(path).encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{os.path.basename(path)}-{place}"


def content_name(path: str) -> str:
    """Return a name for what is in a file: the same again replaces itself, another under that file's name adds.

    Raises:
        InputError: it cannot be read, or is no file that can be read twice.
    """
    try:
        with open(path, "rb", opener=at_once) as stream:
            if not stream.seekable():
                raise InputError(f"'{path}' is a pipe; write it to a file first")
            digest = hashlib.file_digest(stream, "sha256")
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from error
    return f"{os.path.basename(path)}-{digest.hexdigest()[:8]}"
