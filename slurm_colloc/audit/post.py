# SPDX-License-Identifier: Apache-2.0
"""Sends messages at most once: each is marked on the disk before it is handed over."""

from collections import Counter
from collections.abc import Iterable

from slurm_colloc.audit import command
from slurm_colloc.audit.ladder import DOUBTFUL, SENT, Planned
from slurm_colloc.audit.sendmail import NotTakenError, ServiceError, send
from slurm_colloc.audit.state import COMMAND, Message, State
from slurm_colloc.core.clock import now
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.core.errors import ProcessError, UnansweredError
from slurm_colloc.core.units import counted

NOT_TAKEN = "not taken"
_CUT_SHORT = "a run was cut short while it was handed over"


class Post:
    """What hands the messages of one run over, and keeps in mind what went wrong."""

    def __init__(self, state: State, settings: Notices) -> None:
        self._state, self._settings = state, settings
        self._down = False
        self._not_taken: Counter[str] = Counter()
        self._doubtful: Counter[str] = Counter()
        for left in state.messages(DOUBTFUL):
            if not left.reply:
                self._doubt(left, _CUT_SHORT)

    def give(self, message: Message, content: bytes, steps: Iterable[Planned] = ()) -> str:
        """Hand a message over once; return SENT, DOUBTFUL or NOT_TAKEN, empty where the very one was before."""
        mail = message.channel != COMMAND
        if mail and self._down:
            return NOT_TAKEN
        if not self._state.begin_message(message, steps, now()):
            return ""
        try:
            if mail:
                send(content, self._settings.sender)
            else:
                command.give(self._settings.command, content)
        except NotTakenError as error:
            self._state.forget_message(message.id)
            self._down |= isinstance(error, ServiceError)
            self._not_taken[str(error)] += 1
            return NOT_TAKEN
        except ProcessError as error:
            self._down |= mail and isinstance(error, UnansweredError)
            self._doubt(message, str(error))
            return DOUBTFUL
        self._state.end_message(message.id, now())
        return SENT

    def _doubt(self, message: Message, why: str) -> None:
        self._state.doubt(message.id, why)
        self._doubtful[why] += 1

    def errors(self) -> list[str]:
        """Return what went wrong since this was asked last, each reason once."""
        said = [
            f"{counted(count, 'message')} not handed over: {why}; the next run tells of what is still found"
            for why, count in self._not_taken.items()
        ]
        said += [
            f"{counted(count, 'message')} in doubt: {why}; see 'colloc audit mail' and the mail service's log"
            for why, count in self._doubtful.items()
        ]
        self._not_taken.clear()
        self._doubtful.clear()
        return said
