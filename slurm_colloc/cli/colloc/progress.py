# SPDX-License-Identifier: Apache-2.0
"""A bar for a person who waits: a terminal shows it for work of more than two seconds, until that is done."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, Timer
from typing import TypeVar

_AFTER_S = 2.0
# Work within other work shows nothing.
_ONE_BAR = Lock()
_Piece = TypeVar("_Piece")


@contextmanager
def progress(label: str, after_s: float = _AFTER_S) -> Iterator[Callable[[int, int], None]]:
    """Show how far work has come, on standard error where that is a terminal; else show nothing.

    Args:
        label: the work, in a word or two.
        after_s: how long it may take without a bar.

    Yields:
        A function of the number of pieces that are done, and of all; work in one piece need not call it.
    """
    if _ONE_BAR.locked() or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    # Many reports are made for no terminal: they do not import this.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    parts = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*parts, TextColumn("{task.fields[left]}"), console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=None, left="")
    # The bar has a clock of its own: the first piece may be the long one.
    timer = Timer(after_s, bar.start)
    timer.daemon = True
    timer.start()
    try:
        with _ONE_BAR:
            yield lambda done, total: bar.update(task, completed=done, total=total, left="left")
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()


def told(pieces: Sequence[_Piece], step: Callable[[int, int], None]) -> Iterator[_Piece]:
    """Yield pieces of work; tell ``step`` how many of them are done."""
    for done, piece in enumerate(pieces):
        step(done, len(pieces))
        yield piece
    step(len(pieces), len(pieces))
