# SPDX-License-Identifier: Apache-2.0
"""The ledger as a pack writes it: without one, or once it cannot be written any more, the pack goes on."""

from collections.abc import Callable

from slurm_colloc.errors import StoreError
from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.ledger import Ledger
from slurm_colloc.pack.queue import Start


class Record:
    """Writes down what happens, and says what people should read at once."""

    def __init__(self, ledger: Ledger | None, say: Callable[[str], None]) -> None:
        """Take the ledger, if there is one, and where to say things."""
        self._ledger = ledger
        self._say = say

    def start(self, start: Start) -> None:
        """Write that an attempt begins."""
        self._write(lambda ledger: ledger.start(start))

    def end(self, start: Start, outcome: Outcome, status: int, said: str, step: str) -> None:
        """Write how an attempt ended."""
        self._write(lambda ledger: ledger.end(start, outcome, status, said, step))

    def stop(self, why: str) -> None:
        """Write and say why no more tasks are started."""
        self._write(lambda ledger: ledger.stop(why))
        self._say(why)

    def note(self, text: str) -> None:
        """Write and say something for people."""
        self._write(lambda ledger: ledger.note(text))
        self._say(text)

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def _write(self, what: Callable[[Ledger], None]) -> None:
        if self._ledger is None:
            return
        try:
            what(self._ledger)
        except StoreError as error:
            self.close()
            self._say(f"{error}: what happens from now on is not written down, and a resume will run it again")
