# SPDX-License-Identifier: Apache-2.0
"""Where a path leads, link by link, to write there."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import failing

# As many as the kernel follows.
_MOST_LINKS = 40


class Place(NamedTuple):
    """A name in an open folder, and what is there: None where nothing is, or what another planted in an open folder."""

    folder: int
    name: str
    found: os.stat_result | None


@contextmanager
def place(path: str) -> Iterator[Place]:
    """Yield where ``path`` leads, to write there; a link stays one, as with a shell.

    A link in a folder where others may write is followed only if it is the caller's or the folder's owner's, as the
    kernel's protected_symlinks has it for those who do not ask where a path leads before they go there.

    Raises:
        StoreError: a folder is missing, or a link is not followed.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    with failing(f"file '{path}' cannot be written"), ExitStack() as ending:

        def opened(name: str, folder: int | None = None) -> int:
            descriptor = os.open(name, flags, dir_fd=folder)
            ending.callback(os.close, descriptor)
            return descriptor

        folder, parts, links = opened("/" if path.startswith("/") else "."), _parts(path), 0
        while True:
            name, above = parts.pop() if parts else ".", os.fstat(folder)
            try:
                descriptor = opened(name, folder)
            except FileNotFoundError:
                if parts:
                    raise
                yield Place(folder, name, None)
                return
            status = os.fstat(descriptor)
            is_trusted = not above.st_mode & 0o022 or status.st_uid in (os.geteuid(), above.st_uid)
            if not stat.S_ISLNK(status.st_mode):
                if not parts:
                    yield Place(folder, name, status if is_trusted else None)
                    return
                folder = descriptor
                continue
            if not is_trusted:
                raise StoreError(
                    f"'{path}' leads through the link '{name}' of uid {status.st_uid} in a folder where others may "
                    "write, which is not followed; name the file itself"
                )
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = os.readlink("", dir_fd=descriptor)
            parts += _parts(target)
            folder = opened("/") if target.startswith("/") else folder


def _parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
