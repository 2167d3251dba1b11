# SPDX-License-Identifier: Apache-2.0
"""Atomic writes and modes: a file that another process may read is always whole, never half-written."""

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import BinaryIO

from slurm_colloc.core.errors import StoreError

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
PASSABLE_FOLDER = 0o711
# Of temporaries. Between its making and its lock a folder is nobody's.
_TEMPORARY, _LEFT_AFTER_S = r"colloc-[a-z0-9_]{8}|.+\.[0-9a-f]{12}\.new", 600.0


@contextmanager
def failing(message: str) -> Iterator[None]:
    """Say what the system cannot do as a StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{message}: {error.strerror}") from error


def private_folder(path: str) -> str:
    """Create ``path``, and what is missing above it, for its user alone (0700), and return it.

    Raises:
        StoreError: it cannot be made, is not a folder, or belongs to somebody else (a planted folder or link).
    """
    with failing(f"folder '{path}' cannot be created"):
        try:
            status = os.lstat(path)  # nearly always it is there
        except (FileNotFoundError, NotADirectoryError):
            above = os.path.dirname(path)
            if above and not os.path.isdir(above):
                private_folder(above)
            with suppress(FileExistsError):  # another process was first
                os.mkdir(path, PRIVATE_FOLDER)  # not makedirs: its mode is for the last folder only
            status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise StoreError(f"folder '{path}' is a link, which is not followed; put a folder there")
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(f"'{path}' is no folder; move it away")
    if status.st_uid != os.geteuid():
        raise StoreError(
            f"folder '{path}' belongs to uid {status.st_uid}, not to uid {os.geteuid()}; call this as its owner, or "
            "give the folder away by chown"
        )
    return path


def passable_folder(path: str, folder: int | None = None) -> int:
    """Return a descriptor of the folder ``path``, which others may pass through and neither list nor write (0711).

    It is made where it is missing; with ``folder``, an open descriptor, ``path`` is a name in it.

    Raises:
        StoreError: it cannot be made, is a link or no folder, belongs to somebody else, or others may write there.
    """
    # With a slash behind it a link would be followed.
    path = path.rstrip("/") or "/"
    is_new = False
    with failing(f"folder '{path}' cannot be made or opened"):
        with suppress(FileExistsError):
            os.mkdir(path, PRIVATE_FOLDER, dir_fd=folder)
            is_new = True
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        os.close(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        raise StoreError(
            f"folder '{path}' belongs to uid {status.st_uid}, mode {mode:04o}; it must be uid {os.geteuid()}'s, and "
            "nobody else may write there"
        )
    if is_new:
        os.fchmod(descriptor, PASSABLE_FOLDER)  # the umask may have left less of it
    return descriptor


def closed_folder(path: str) -> None:
    """Create ``path`` closed to others (0700) and the folders above it as the umask says; leave one that is there.

    Raises:
        OSError: it cannot be made.
    """
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, PRIVATE_FOLDER)


@contextmanager
def as_owner(folder: str) -> Iterator[None]:
    """Act as the owner of ``folder`` where root runs this, so that what is made in it is that user's.

    Raises:
        StoreError: the process cannot become that user.
    """
    uid = gid = 0
    with suppress(OSError):  # not there yet: its maker will own it
        status = os.stat(folder)
        uid, gid = status.st_uid, status.st_gid
    with as_user(uid, gid) if uid and os.geteuid() == 0 else nullcontext():
        yield


@contextmanager
def as_user(uid: int, gid: int) -> Iterator[None]:
    """Act as another user, for root.

    Raises:
        StoreError: the process cannot become that user.
    """
    group = os.getegid()
    with failing(f"root cannot act as uid {uid}"):
        os.setegid(gid)
        os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


def is_not_own_folder(path: str) -> bool:
    """Return whether something is there that is no folder of this user's own."""
    with suppress(OSError):
        status = os.lstat(path)
        return not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid()
    return False


def whose(path: str) -> str:
    """Return in words what stands in the way at ``path``: the nearest that is there, its owner, and who asks."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    try:
        status = os.lstat(path)
    except OSError as error:
        return f"'{path}': {error.strerror}"
    mode = stat.S_IMODE(status.st_mode)
    return f"'{path}' belongs to uid {status.st_uid}, mode {mode:04o}; this is uid {os.geteuid()}"


def file_mode(folder: str) -> int:
    """Return the mode of files in ``folder``: its group may read them where it may enter the folder."""
    return PRIVATE_FILE | (0o040 if os.stat(folder).st_mode & 0o050 == 0o050 else 0)


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield a folder for temporaries, locked as long as it is used; remove those that killed runs have left."""
    from tempfile import TemporaryDirectory, gettempdir  # csub has none of them

    remove_left(gettempdir())
    with TemporaryDirectory(prefix="colloc-") as folder, ExitStack() as stack:
        # A file system without locks lets nobody else remove it, either.
        with suppress(StoreError):
            stack.enter_context(locked(os.path.join(folder, "lock")))
        yield folder


def remove_left(folder: str) -> None:
    """Remove the temporaries in ``folder`` that runs of this user left as they were killed: none that is written to."""
    with suppress(OSError, StoreError), os.scandir(folder) as entries:
        for entry in filter(_is_left, entries):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            from shutil import rmtree

            with locked(os.path.join(entry.path, "lock")) as held:
                if held:
                    rmtree(entry.path, ignore_errors=True)


def _is_left(entry: "os.DirEntry[str]") -> bool:
    if not re.fullmatch(_TEMPORARY, entry.name):
        return False
    status = entry.stat(follow_symlinks=False)
    return status.st_uid == os.geteuid() and time.time() - status.st_mtime > _LEFT_AFTER_S


def temporary_path(path: str) -> str:
    """Return a name beside ``path`` that no writer before us, killed half-way, can have left there."""
    return f"{path}.{os.urandom(6).hex()}.new"


def write_atomic(
    path: str,
    content: bytes,
    mode: int | None = PRIVATE_FILE,
    folder: int | None = None,
    *,
    durable: bool = False,
    group: int | None = None,
    owner: int | None = None,
) -> None:
    """Write ``content`` to ``path`` so that readers see the old file or the new one, whole.

    The umask says its mode where there is no ``mode``. With ``folder``, an open descriptor, ``path`` is a name in it. A
    ``durable`` file survives a loss of power, and takes the time of the disk. With ``group`` and ``owner`` it belongs
    to those before anybody sees it.

    Raises:
        StoreError: the folder is missing or full; nothing of ours is left in it.
    """
    temporary = temporary_path(path)
    with failing(f"file '{path}' cannot be written"):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                if group is not None or owner is not None:
                    os.fchown(descriptor, -1 if owner is None else owner, -1 if group is None else group)
                if mode is not None:
                    os.fchmod(descriptor, mode)  # the umask may have left less of it
                stream.write(content)
                if durable:
                    stream.flush()
                    os.fsync(descriptor)
            os.replace(temporary, path, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(temporary, dir_fd=folder)
            raise


# f_type of statfs(2), from linux/magic.h and these file systems' own sources.
_NETWORK = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
}


def network_file_system(path: str) -> str:
    """Return the name of the network file system on which ``path`` lies; empty on any other.

    Raises:
        OSError: nothing is there.
    """
    import ctypes  # csub keeps nothing that another host must not share

    # struct statfs begins with f_type, a long; it has 120 bytes on 64-bit Linux.
    answer = (ctypes.c_long * 64)()
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), ctypes.byref(answer)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return _NETWORK.get(answer[0] & 0xFFFFFFFF, "")


@contextmanager
def locked(path: str) -> Iterator[bool]:
    """Hold the lock file ``path`` for this process, until it ends at the latest; False when another one has it.

    Raises:
        StoreError: the folder is missing, or its file system knows no locks.
    """
    import fcntl  # csub locks nothing

    with failing(f"lock '{path}' cannot be opened"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            held = False
        except OSError as error:
            raise StoreError(f"lock '{path}' cannot be taken: {error.strerror}; mount with flock") from error
        yield held
    finally:
        os.close(descriptor)


def remove(path: str) -> None:
    """Remove a file where there is one.

    Raises:
        StoreError: it may be there still.
    """
    with failing(f"file '{path}' cannot be removed"), suppress(FileNotFoundError):
        os.unlink(path)


def sync_folder(path: str) -> None:
    """Make what was renamed into the folder ``path`` outlive a crash of its file server.

    Raises:
        OSError: it cannot be opened or synced.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def own_secret(path: str, length_bytes: int) -> bytes:
    """Return the secret in the file ``path``, which is for this very user; it is made where there is none.

    Raises:
        StoreError: as ``read_own``, or others may read it, or it is of another length.
    """
    if not os.path.lexists(path):
        temporary = temporary_path(path)
        write_atomic(temporary, os.urandom(length_bytes), durable=True)
        try:
            # Another one that makes it at the same time may be first.
            with failing(f"file '{path}' cannot be made"), suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            os.unlink(temporary)
    secret = read_own(path, length_bytes)
    if len(secret) != length_bytes or os.lstat(path).st_mode & 0o077:
        raise StoreError(f"file '{path}' is no secret of {length_bytes} bytes of mode 0600; move it away, or mend it")
    return secret


def at_once(path: str, flags: int) -> int:
    """Open for ``open``, without waiting for the other end of a FIFO: a planted one must not hang the reader."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


@contextmanager
def open_regular(path: str, flags: int = 0) -> Iterator[BinaryIO]:
    """Open the regular file ``path`` to read it.

    Raises:
        OSError: it cannot be opened.
        StoreError: it is no regular file.
    """
    with open(path, "rb", opener=lambda path, own: at_once(path, own | flags)) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise StoreError(f"file '{path}' is not a regular file, and is not read; put one there")
        yield stream


def read_own(path: str, limit_bytes: int) -> bytes:
    """Return the content of the regular file ``path`` of this very user; see ``read_bounded``.

    A file in a user's folder is believed, and a parent of that folder may be open to others.

    Raises:
        StoreError: as ``read_bounded``.
    """
    return read_bounded(path, limit_bytes, owners=(os.geteuid(),))


def read_bounded(path: str, limit_bytes: int, owners: tuple[int, ...] = ()) -> bytes:
    """Return the content of the regular file ``path``, without following a link.

    With ``owners`` the file must belong to one of these uids. The open file is asked, not the path: a path can change
    hands between two looks at it.

    Raises:
        StoreError: missing, not a regular file, unreadable, somebody else's, or larger than ``limit_bytes``.
    """
    with failing(f"file '{path}' cannot be read"), open_regular(path, os.O_NOFOLLOW) as stream:
        owner = os.fstat(stream.fileno()).st_uid
        if owners and owner not in owners:
            uids = " or ".join(map(str, owners))
            raise StoreError(
                f"file '{path}' belongs to uid {owner}, not to uid {uids}, and is not read; move it away, "
                "or give it to that uid by chown"
            )
        content = stream.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise StoreError(
            f"file '{path}' is larger than {limit_bytes} bytes, more than is read of such a file; shorten it, or move "
            "it away"
        )
    return content
