# SPDX-License-Identifier: Apache-2.0
"""The folder that rendered files are written to: it has them and nothing else."""

import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress

from slurm_colloc.core.errors import InputError, StoreError
from slurm_colloc.core.files import write_atomic

# By it a folder of ours is known: /etc/slurm has a gres.conf, too.
ORDER = "ORDER.md"


def write_folder(path: str, texts: Mapping[str, str], known: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Write ``texts``, by name, into the folder ``path``, which is made where only it is missing.

    ORDER is among them. Files of the other ``known`` names are removed: an earlier site.toml had them. Returned are the
    names of files that are new or other than before, and of those that were removed.

    Raises:
        InputError: the folder has files, and no ORDER.
        StoreError: it is none, others may write into it, or it cannot be written.
    """
    path = os.path.normpath(path)  # with a '/' at its end a link would be followed
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o755)
        found = os.lstat(path)
        names = set(os.listdir(path))
    except OSError as error:
        raise StoreError(f"folder '{path}' cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StoreError(
            f"'{path}' is a link, or others may write there, and so change what you install: name a folder of your own"
        )
    if names and ORDER not in names:
        raise InputError(f"folder '{path}' has files and no {ORDER}: it is not one of ours; name a new one")
    gone = sorted(names & set(known) - set(texts))
    for name in gone:
        os.unlink(os.path.join(path, name))
    written = [name for name in texts if name not in names or _content(path, name) != texts[name].encode()]
    # ORDER first: a run that is cut short leaves a folder of ours.
    for name in sorted(written, key=lambda name: name != ORDER):
        write_atomic(os.path.join(path, name), texts[name].encode(), 0o644)
    return written, gone


def _content(path: str, name: str) -> bytes:
    with open(os.path.join(path, name), "rb") as stream:
        return stream.read()
