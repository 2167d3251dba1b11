# SPDX-License-Identifier: Apache-2.0
"""Tasks that are added to a pack while it runs: csub puts them into the pack's inbox, from which the pack takes them.

The inbox is a folder beside the ledger, there as long as the pack takes tasks. Each file in it is one call of csub,
named by its first task. Whoever moves a file out of the inbox first has decided: the pack, to the folder of what was
added, that its tasks run; csub, that they do not. An empty folder alone can be removed: the pack closes its inbox, or
sees what came at the last moment.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress

from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.files import private_folder, read_own, sync_folder, write_atomic
from slurm_colloc.pack.spec import Task
from slurm_colloc.value_types import read_as

_LIMIT_BYTES = 64 * 1024 * 1024


def inbox_of(ledger: str) -> str:
    """Return the folder of what is to be added to the pack with this ledger."""
    return f"{ledger.removesuffix('.jsonl')}.inbox"


def _added_of(ledger: str) -> str:
    return f"{ledger.removesuffix('.jsonl')}.added"


def added_tasks(ledger: str) -> tuple[Task, ...]:
    """Return the tasks that the pack with this ledger took while it ran, in their order.

    Raises:
        StoreError: they cannot be read.
        InputError: a file is not of the expected form.
    """
    folder = _added_of(ledger)
    return tuple(task for name in _listed(folder) for task in _read(os.path.join(folder, name)))


def put(ledger: str, tasks: Sequence[Task]) -> str:
    """Put tasks into the inbox of a pack and return their file.

    Raises:
        InputError: the pack takes none any more.
        StoreError: it cannot be written.
    """
    inbox = inbox_of(ledger)
    first = str(tasks[0].number)
    # Outside of the inbox until it is whole, that the pack never sees a part.
    temporary = f"{inbox}-{first}"
    write_atomic(temporary, json.dumps(tasks).encode(), durable=True)
    path = os.path.join(inbox, first)
    try:
        os.rename(temporary, path)
        with suppress(OSError):  # the pack may have taken it, and ended
            sync_folder(inbox)
    except OSError as error:
        os.unlink(temporary)
        if error.errno in (errno.ENOENT, errno.ESTALE):
            raise InputError("it takes no more tasks, as it has ended, or is about to") from error
        raise StoreError(f"file '{path}' cannot be written: {error.strerror}") from error
    return path


class Inbox:
    """The inbox of a running pack, which alone takes from it."""

    def __init__(self, ledger: str, say: Callable[[str], None]) -> None:
        """Open the inbox of the pack with this ledger, "" for one that has none, and takes nothing.

        Args:
            ledger: its path.
            say: told why nothing can be added.
        """
        self._folder, self._added = (inbox_of(ledger), _added_of(ledger)) if ledger else ("", "")
        # What csub took back in the meantime, or will: it cannot be used.
        self._left: set[str] = set()
        if ledger:
            try:
                private_folder(self._added)
                private_folder(self._folder)
            except StoreError as error:
                self._folder = ""
                say(f"{error}: no tasks can be added to this pack")

    def take(self) -> list[Task]:
        """Return the tasks that came; from now on they are the pack's."""
        tasks: list[Task] = []
        if not self._folder:
            return tasks
        with suppress(StoreError):
            for name in _listed(self._folder):
                path = os.path.join(self._folder, name)
                try:
                    found = _read(path)
                    os.rename(path, os.path.join(self._added, name))
                except (InputError, StoreError, OSError):
                    self._left.add(name)
                    continue
                tasks += found
                with suppress(OSError):
                    sync_folder(self._added)
        return tasks

    def close(self) -> bool:
        """Take no more; False where something is there to take."""
        with suppress(OSError, StoreError):
            try:
                os.rmdir(self._folder)
            except OSError as error:
                if error.errno == errno.ENOTEMPTY and set(_listed(self._folder)) - self._left:
                    return False
        self._folder = ""
        return True


def forget_added(ledger: str) -> None:
    """Remove what was added to an earlier job of the same id."""
    for folder in (inbox_of(ledger), _added_of(ledger)):
        shutil.rmtree(folder, ignore_errors=True)


def _listed(folder: str) -> list[str]:
    try:
        return sorted((name for name in os.listdir(folder) if name.isdigit()), key=int)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"folder '{folder}' cannot be read: {error.strerror}") from error


def _read(path: str) -> tuple[Task, ...]:
    content = read_own(path, _LIMIT_BYTES)
    try:
        tasks: tuple[Task, ...] = read_as(tuple[Task, ...], json.loads(content))
    except (ValueError, RecursionError) as error:
        raise InputError(f"file '{path}' is not of the expected form: {error}") from error
    return tasks
