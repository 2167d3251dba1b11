# SPDX-License-Identifier: Apache-2.0
"""The folder that rendered files are written to: nothing outside it, and nothing in it that is not ours.

What is ours is known by ``MANIFEST``, the SHA-256 of each file as it was written, in the form of sha256sum: a file that
was changed since, or that was never ours, is left alone.
"""

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.files import write_atomic

MANIFEST = "MANIFEST"
_FOLDER, _FILE = 0o755, 0o644
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LINE = re.compile(rf"([0-9a-f]{{64}})  ({_NAME.pattern})")
_LIMIT_BYTES = 1024 * 1024


class Written(NamedTuple):
    """The names of files that were written, that were there already, and that are no longer rendered and removed."""

    written: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]


def write_folder(path: str, texts: Mapping[str, str], *, force: bool = False, dry_run: bool = False) -> Written:
    """Write ``texts``, by name, into the folder ``path``, which is made where only it is missing.

    All is looked at before anything is written. With ``dry_run`` nothing is.

    Raises:
        InputError: a link, a folder or a file that is not ours lies where one is to be written; the last one goes
            with ``force``.
        StoreError: the folder is a link, belongs to somebody else, or cannot be written.
    """
    path = os.path.normpath(path)  # with a '/' at its end the kernel would follow a link
    contents = {name: text.encode() for name, text in texts.items()}
    assert all(_NAME.fullmatch(name) and name != MANIFEST for name in contents)
    if dry_run and not os.path.lexists(path):
        return Written(tuple(contents), (), ())
    folder = _open(path)
    try:
        return _write(path, folder, contents, force=force, dry_run=dry_run)
    finally:
        os.close(folder)


def _open(path: str) -> int:
    """Return a descriptor of the folder; the one that is open is the one that is checked and written to."""
    try:
        with suppress(FileExistsError):
            os.mkdir(path, _FOLDER)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        link = os.path.islink(path)
        why = "it is a link, which is not followed" if link else error.strerror
        raise StoreError(f"folder '{path}' cannot be used: {why}") from error
    found = os.fstat(folder)
    others = "everybody" if found.st_mode & stat.S_IWOTH else "its group" if found.st_mode & stat.S_IWGRP else ""
    if found.st_uid == os.geteuid() and not others:
        return folder
    os.close(folder)
    if found.st_uid != os.geteuid():
        raise StoreError(
            f"folder '{path}' belongs to uid {found.st_uid}, not to uid {os.geteuid()}; name one of your own"
        )
    raise StoreError(
        f"{others} may write into folder '{path}', and so change what you install: chmod go-w it, or name another"
    )


def _write(path: str, folder: int, contents: Mapping[str, bytes], *, force: bool, dry_run: bool) -> Written:
    ours = _ours(path, folder)
    there = {name: _content(path, folder, name) for name in {*contents, *ours}}
    foreign = [name for name in contents if _is_foreign(there[name], contents[name], ours.get(name))]
    if foreign and not force:
        raise InputError(
            f"'{os.path.join(path, foreign[0])}' is not as it was rendered; move it away, name another "
            "folder, or replace it by --force"
        )
    new = [name for name in contents if there[name] != contents[name]]
    old = [name for name in ours if name not in contents and there[name] is not None]
    gone = [name for name in old if _digest(there[name]) == ours[name]]
    if not dry_run:
        for name in gone:
            os.unlink(name, dir_fd=folder)
        for name in new:
            write_atomic(name, contents[name], _FILE, folder)
        lines = [f"{_digest(content)}  {name}\n" for name, content in contents.items()]
        write_atomic(MANIFEST, "".join(lines).encode(), _FILE, folder)
    return Written(tuple(new), tuple(name for name in contents if name not in new), tuple(gone))


def _is_foreign(there: bytes | None, wanted: bytes, ours: str | None) -> bool:
    return there is not None and there != wanted and _digest(there) != ours


def _digest(content: bytes | None) -> str:
    return hashlib.sha256(content or b"").hexdigest()


def _ours(path: str, folder: int) -> dict[str, str]:
    """Return name -> SHA-256 of what was written here before."""
    text = (_content(path, folder, MANIFEST) or b"").decode(errors="replace")
    matches = [_LINE.fullmatch(line) for line in text.splitlines()]
    return {match[2]: match[1] for match in matches if match}


def _content(path: str, folder: int, name: str) -> bytes | None:
    """Return what lies there; None where nothing does.

    Raises:
        InputError: it is no regular file.
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"'{os.path.join(path, name)}' cannot be replaced: a link, or {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"'{os.path.join(path, name)}' is no regular file; move it away")
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(_LIMIT_BYTES)
