# SPDX-License-Identifier: Apache-2.0
"""Rows of text with a delimiter, as ``sacct`` prints them, for DuckDB to read.

Nearly all rows of such a text are plain, and DuckDB reads those fast. Others (a name with the delimiter or a newline,
bytes outside UTF-8) are split here, one by one.

A text's header, which sacct writes before any word of a user, says what its delimiter is. Text without
one has ``|`` and newlines, and then a name can imitate rows.

Rows that cannot be used are counted with the most GPU-hours that they may stand for.
"""

import re
import secrets
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain
from math import fsum
from typing import BinaryIO, NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.files import at_once
from slurm_colloc.core.units import whole
from slurm_colloc.core.usage_model import Lost
from slurm_colloc.slurm.gres import parse_tres_gres
from slurm_colloc.sources.sacct_client import FIELDS, check_once
from slurm_colloc.store.equivalents import GRES_ALONE, gpu_equivalent
from slurm_colloc.store.parquet import quoted_path

_CHUNK_BYTES = 8 * 1024 * 1024
LONGEST_ROW_BYTES = 16 * 1024 * 1024
_NAME = re.compile(r"[A-Z][A-Za-z]+")
_LONGEST_DELIMITER = 64
# A name that is read as it stands may have so many delimiters.
_SPARE = 8
# DuckDB takes up to 2 MB.
_LONGEST_PLAIN_BYTES = 1024 * 1024
# Between the columns of the plain rows, where the text's own delimiter is not one letter.
_PLAIN = b"\x1f"
_PRINTABLE = re.compile(rb"[\t\x1f-\x7e]*")
_PRINTABLE_TEXT = re.compile("[\t\x1f-\x7e\xa0-\U0010ffff]*")
_NEWLINE = "a newline within a row"
# Characters of the columns themselves cannot stand between them.
_NO_DELIMITER = re.compile(r"[A-Za-z0-9,=/:.+_ \[\]-]+")
_MOST_NAMED = 5
_DEVICE = re.compile(r"gres/(?:gpu|mps|shard)[:=]")
# Words that may have named one in an AllocTRES outside the grammar; numbers of a site's gres are 1001 and above.
_LIKE_DEVICE = re.compile(r"(?i)gres|gpu|mps|shard|(?:^|,)[1-9]\d{3,}=")
_JOB = re.compile(r"(\d+(?:_\d+|\+\d+)?)(\.\w+)?")
# Epoch seconds have ten digits.
LONGEST_S = 10**9
_HOUR_S = 3600
# A header among the rows has this in place of a reason.
HEADER = "header"


class LostRow(NamedTuple):
    """A row that cannot be used: None GPU-hours are of a row that names a GPU, and of which nobody can tell."""

    gpu_hours: float | None
    job_id: str
    reason: str


class LostRows:
    """Such rows, added up, and the names of the largest."""

    def __init__(self) -> None:
        self.gpu_hours = 0.0
        self.unknown_rows = 0
        self.largest: list[LostRow] = []

    def add(self, row: LostRow) -> None:
        """Add one."""
        self.gpu_hours += row.gpu_hours or 0
        self.unknown_rows += row.gpu_hours is None
        rows = [*self.largest, row]
        self.largest = nlargest(
            _MOST_NAMED, rows, key=lambda row: LONGEST_S if row.gpu_hours is None else row.gpu_hours
        )

    @property
    def named(self) -> tuple[str, ...]:
        """Return which jobs the largest of them are, and why they are rejected."""
        return tuple(f"job {row.job_id}: {row.reason}" for row in self.largest if row.job_id)


class Form(NamedTuple):
    """How a text is written: its columns, what stands between them and what ends a row."""

    fields: tuple[str, ...]
    delimiter: bytes
    terminator: bytes
    header: bytes

    @property
    def open_end(self) -> bool:
        """Return whether a row's rest is the job's name, whatever is in it."""
        return self.fields[-1] == "JobName" and not self.terminator.startswith(self.delimiter)


class Rows(NamedTuple):
    """The rows of a text: ``plain`` is a file of plain rows after its first ``skip``, ``odd`` are the others, split.

    The columns of ``plain`` are ``names``: those of the form, and what else there is for who splits at ``delimiter``.
    ``lost`` is what those may have been that are ``rejected``.
    """

    form: Form
    plain: str
    delimiter: bytes
    names: Sequence[str]
    skip: int
    odd: Sequence[Sequence[str]]
    rows_in: int
    rejected: Mapping[str, int]
    lost: LostRows

    def select(self, columns: Sequence[str]) -> str:
        """Return a query of these columns of all rows, NULL where the text has none; ``$odd`` are the odd rows.

        One column more, ``misfit``, says of a row that it has not as many columns as the text.
        """
        fields = self.form.fields
        spare = [f"spare{number}" for number in range(_SPARE)]
        kinds = ", ".join(f"'{name}': 'VARCHAR'" for name in (*self.names, *spare))
        names = [*(f'"{name}"' for name in fields), *spare]
        count = f"len(list_filter([{', '.join(names)}], lambda one: one IS NOT NULL))"
        expressions = [f'"{name}"' if name in fields else f'NULL::VARCHAR AS "{name}"' for name in columns]
        split = [f'odd[{fields.index(name) + 1}] AS "{name}"' if name in fields else "NULL" for name in columns]
        too_many = "false" if self.form.open_end else "spare0 IS NOT NULL"
        if self.form.open_end and "JobName" in columns:
            expressions[columns.index("JobName")] = f"""concat_ws('|', "JobName", {", ".join(spare)}) AS "JobName\""""
        # An empty column is empty. The word for NULL must be nobody's name.
        return (
            f'SELECT {", ".join(expressions)}, CASE WHEN "{self.names[-1]}" IS NULL OR {too_many} '
            f"THEN {count} || ' columns instead of {len(fields)}' END AS misfit "
            f"FROM read_csv({quoted_path(self.plain)}, hive_partitioning = false, delim = '{self.delimiter.decode()}', "
            f"quote = '', escape = '', comment = '', header = false, skip = {self.skip}, auto_detect = false, "
            f"columns = {{{kinds}}}, null_padding = true, nullstr = '{secrets.token_hex()}') "
            f"UNION ALL SELECT {', '.join(split)}, NULL FROM (SELECT unnest($odd::VARCHAR[][]) AS odd)"
        )


def parse_header(line: bytes) -> Form | None:
    """Return what a header says of its text, None where ``line`` (with its newline) is none.

    Raises:
        InputError: its columns cannot be told apart by what it has between them, or one is there twice.
    """
    end = b"\r\n" if line.endswith(b"\r\n") else b"\n"
    text = line.removesuffix(end).removeprefix(BOM_UTF8).decode(errors="replace")
    match = _NAME.match(text)
    if match is None:
        return None
    for length in range(1, _LONGEST_DELIMITER):
        delimiter = text[match.end() : match.end() + length]
        # The next column's name begins here: a longer match would be no delimiter.
        if delimiter[-1:].isupper():
            break
        names = text.split(delimiter) if len(delimiter) == length else []
        terminated = names[-1:] == [""]
        if terminated:
            names.pop()
        if len(names) > 1 and all(map(_NAME.fullmatch, names)):
            if _NO_DELIMITER.fullmatch(delimiter):
                raise InputError(
                    f"columns with '{delimiter}' between them cannot be told apart, because it is in times, AllocTRES "
                    "or names, too: use | or the delimiter of docs/how-to/accounting.md"
                )
            check_once(names)
            between = delimiter.encode()
            return Form(tuple(names), between, between + end if terminated else end, line)
    return None


def form_of(stream: BinaryIO, fields: Sequence[str]) -> Form:
    """Return the form of the text in ``stream`` by its header, else these fields with ``|`` between them.

    A text without a header must have FIELDS where no ``fields`` are named.

    Raises:
        InputError: nothing says what its columns are.
    """
    line = stream.readline(LONGEST_ROW_BYTES)
    form = parse_header(line)
    if form is None:
        if not fields and line.count(b"|") != len(FIELDS) - 1:
            raise InputError(f"'{stream.name}' has no header; name its columns with --fields")
        lines = chain([line], iter(lambda: stream.readline(LONGEST_ROW_BYTES), b""))
        # A name may end in a carriage return, but not those of all rows.
        end = b"\r\n" if all(line.endswith(b"\r\n") for line in lines) else b"\n"
        form = Form(tuple(fields) or FIELDS, b"|", end, b"")
    return form


def read_rows(path: str, form: Form, work: str, *, each: bool = False) -> Rows:
    """Tell the plain rows of a text from the odd ones; rows that DuckDB cannot read are written to ``work``.

    ``each`` row is looked at where DuckDB refused rows that looked plain from afar.

    Raises:
        InputError: the file cannot be read, is cut short, or is no text of rows.
    """
    try:
        with open(path, "rb", opener=at_once) as stream:
            rows = None if each else _as_it_stands(path, form, stream)
            return rows or _sorted_out(path, form, stream, f"{work}/file.rows")
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from error


def _as_it_stands(path: str, form: Form, stream: BinaryIO) -> Rows | None:
    """Return the text itself, unless it is clear already that there are odd rows in it."""
    names, delimiter = form.fields, form.delimiter
    # DuckDB takes a delimiter of few letters. One of a word between two separators is for it two, and a column.
    if marked := re.fullmatch(b"\x1f[^\x1f]+\x1f", delimiter) is not None:
        names, delimiter = tuple(part for name in names for part in (name, f"after {name}")), _PLAIN
    if form.terminator == form.delimiter + b"\n":
        names = (*names, "after all")
    elif marked or form.terminator != b"\n":
        return None
    if len(delimiter) > 1:
        return None
    stream.seek(len(form.header))
    rows_in = 0
    for chunk in _chunks(path, stream, b"\n"):
        # DuckDB passes over an empty row, and ends one at a lone carriage return.
        if b"\n\n" in chunk or chunk[:1] == b"\n" or b"\r" in chunk:
            return None
        if marked and chunk.count(_PLAIN) != 2 * chunk.count(form.delimiter):
            return None
        lines = chunk.count(b"\n")
        if marked and lines != chunk.count(form.terminator):
            return None
        rows_in += lines
    return Rows(form, path, delimiter, names, 1 if form.header else 0, (), rows_in, {}, LostRows())


def _sorted_out(path: str, form: Form, stream: BinaryIO, target: str) -> Rows:
    """Write the plain rows to ``target``, each looked at, and split the odd ones."""
    odd: list[tuple[str, ...]] = []
    rejected: Counter[str] = Counter()
    lost = LostRows()
    rows_in = 0
    inner = len(form.fields) - 1
    most = inner if form.open_end else -1
    stream.seek(len(form.header))
    with open(target, "wb") as out:
        for row in _rows(_chunks(path, stream, form.terminator), form):
            rows_in += 1
            plain = row.replace(form.delimiter, _PLAIN)
            fits = row.count(form.delimiter) == plain.count(_PLAIN) == inner and len(plain) < _LONGEST_PLAIN_BYTES
            newline = form.terminator == b"\r\n" and b"\n" in row
            if not newline and fits and (_PRINTABLE.fullmatch(plain) or _is_text(plain)):
                out.write(plain + b"\n")
                continue
            # Bytes outside UTF-8 become escapes: a column of text holds nothing else.
            values = tuple(value.decode(errors="backslashreplace") for value in row.split(form.delimiter, most))
            if len(values) == inner + 1 and not newline:
                odd.append(values)
            else:
                reason = _NEWLINE if newline else f"{len(values)} columns instead of {inner + 1}"
                rejected[reason] += 1
                lost.add(row_of_misfit(values, form.fields, reason))
    return Rows(form, target, _PLAIN, form.fields, 0, odd, rows_in, rejected, lost)


def _rows(chunks: Iterator[bytes], form: Form) -> Iterator[bytes]:
    """Yield the rows; a newline at a name's beginning and the delimiter ahead of it are no row's end."""
    inner, begun = len(form.fields) - 1, b""
    for row in chain.from_iterable(chunk.split(form.terminator)[:-1] for chunk in chunks):
        joined_row = begun + form.terminator + row if begun else row
        if begun and joined_row.count(form.delimiter) != inner:
            yield begun
            joined_row = row
        begun = b""
        if form.terminator.startswith(form.delimiter) and 0 < joined_row.count(form.delimiter) < inner:
            begun = joined_row
        else:
            yield joined_row
    if begun:
        yield begun


def _is_text(row: bytes) -> bool:
    try:
        return _PRINTABLE_TEXT.fullmatch(row.decode()) is not None
    except UnicodeDecodeError:
        return False


def _chunks(path: str, stream: BinaryIO, terminator: bytes) -> Iterator[bytes]:
    """Yield the text in pieces of whole rows."""
    rest = b""
    while chunk := stream.read(_CHUNK_BYTES):
        if chunk[:4096].count(b"\0") > 40:  # a name may hold a zero byte
            raise InputError(f"'{path}' is no text but binary; export it by docs/how-to/accounting.md")
        text = rest + chunk
        index = text.find(terminator)
        if (index if index >= 0 else len(text)) > LONGEST_ROW_BYTES:
            raise InputError(
                f"'{path}' has a row of more than {LONGEST_ROW_BYTES >> 20} MiB: it is damaged, or rows end otherwise; "
                "export it again by docs/how-to/accounting.md"
            )
        complete, end, rest = text.rpartition(terminator)
        if end:
            yield complete + end
    if rest:
        raise InputError(f"'{path}' is cut short: its last row has no end; export or copy it again")


def row_of_misfit(values: Sequence[str], fields: Sequence[str], reason: str) -> LostRow:
    """Return what a row may have been that has more or fewer columns than ``fields``.

    Columns before the name that broke it lie where they should, those after it as far from the end.
    """
    shift = len(values) - len(fields)

    def seen(name: str) -> list[str]:
        index = fields.index(name) if name in fields else len(values)
        return [values[place] for place in (index, index + shift) if 0 <= place < len(values)]

    ids = [match for name in ("JobID", "JobIDRaw") for match in map(_JOB.fullmatch, seen(name)) if match]
    job_id = ids[0][1] if ids else ""
    if (ids and ids[0][2]) or not any(map(_DEVICE.search, values)):
        return LostRow(0.0, job_id, reason)
    gpus = [count for text in seen("AllocTRES") if _DEVICE.search(text) and (count := _gpus(text)) is not None]
    lengths_s = [length_s for text in seen("ElapsedRaw") if (length_s := _number(text)) is not None]
    if not lengths_s:
        starts, ends = ([at_s for text in seen(name) if (at_s := _number(text))] for name in ("Start", "End"))
        lengths_s = [end_s - start_s for end_s in ends for start_s in starts if end_s > start_s]
    likely = [length_s for length_s in lengths_s if length_s < LONGEST_S]
    return LostRow(max(gpus) * max(likely) / _HOUR_S if gpus and likely else None, job_id, reason)


def _number(text: str) -> int | None:
    return whole(text) if len(text) <= len(str(LONGEST_S)) else None


def _gpus(text: str) -> float | None:
    """Return the whole GPUs of an AllocTRES, None where that is not known."""
    try:
        return gpu_equivalent(parse_tres_gres(text), "", None).gpus
    except InputError:
        return None if _LIKE_DEVICE.search(text) else 0.0


def add_up_lost(database: DuckDBPyConnection, lost: LostRows, now_s: float) -> Lost:
    """Return what all rejected rows may have been: those ``lost`` already, and those in the table ``taken``.

    Its rows still have the reason why they cannot be used, and ``elapsed_s``; no run is longer than up to ``now_s``.
    """
    rejected = database.execute(
        f"""
        SELECT {GRES_ALONE}, CASE WHEN start_s <= $now THEN least(coalesce(elapsed_s, end_s - start_s), $now - start_s)
                          ELSE elapsed_s END, job_id_raw, reason
        FROM taken WHERE reason IS NOT NULL AND reason != $header
        """,
        {"now": now_s, "header": HEADER},
    )
    while rows := rejected.fetchmany(10_000):
        for gres, length_s, job_id, reason in rows:
            lost.add(LostRow(_gpu_hours(gres, length_s), job_id, reason))
    used = database.execute(
        f"""
        SELECT {GRES_ALONE}, sum(greatest(0, coalesce(end_s, ingested_s) - start_s - suspended_s)), count(*)
        FROM taken WHERE reason IS NULL AND start_s IS NOT NULL AND gres != '' GROUP BY 1
        """
    ).fetchall()
    hours = fsum(_gpu_hours(gres, length_s) or 0 for gres, length_s, _ in used)
    return Lost(lost.gpu_hours, lost.unknown_rows, hours, sum(count for *_, count in used))


def _gpu_hours(gres: str, length_s: float | None) -> float | None:
    gpus = _gpus(gres) if gres else 0.0
    if gpus == 0:
        return 0.0
    return None if gpus is None or length_s is None or length_s < 0 else gpus * length_s / _HOUR_S
