"""A round that a task awaits."""

import asyncio

from relock._core.effects import Answer, Ask, Failure
from relock._runtime.masters.known import MasterState
from relock._runtime.masters.round import Round


class LoopRound(Round):
    """A round whose asker is woken as soon as its outcome is certain.

    Args:
        done: what the asker awaits.
        is_certain: see `Ask`.
        spared: how many masters need not have answered for that.

    Attributes:
        asking: see `Connection.request_asking`.
        ends: see `Ask`.
        is_abandoned: nobody awaits it any more: what was not sent yet need not be.
    """

    __slots__ = ("_is_certain", "_missing", "_spared", "asking", "done", "ends", "is_abandoned")

    asking: bool
    done: "asyncio.Future[None]"
    ends: bool
    is_abandoned: bool

    def __init__(
        self,
        ask: Ask,
        sent_at: float,
        answers: list[Answer],
        *,
        done: "asyncio.Future[None]",
        spared: int,
    ) -> None:
        self.done = done
        self.is_abandoned = False
        self.asking = False
        self.ends = ask.ends
        self._is_certain = ask.is_certain
        self._spared = spared
        self._missing = 0
        super().__init__(ask.calls, ask.until, sent_at, answers)

    @property
    def is_awaited(self) -> bool:
        """See `Round`: other tasks use the same connection."""
        return not (self.is_abandoned or self.done.done())

    @property
    def missing(self) -> int:
        """How many of the masters that were asked have not answered."""
        return self._missing

    @missing.setter
    def missing(self, count: int) -> None:
        """As it falls, the asker may have what it needs."""
        has_answer, self._missing = count < self._missing, count
        if has_answer and self._is_over():
            self.wake()

    def _is_over(self) -> bool:
        if not self._missing:
            return True
        return self._missing <= self._spared and self._is_certain is not None and self._is_certain(self.answers)

    def miss(self, master: MasterState, failure: Failure) -> None:
        """`master` does not answer this any more, if it has not."""
        if self.awaits_answer_of(master):
            self.fail(master, failure)
            self.missing -= 1

    def wake(self) -> None:
        """Wakes the asker: with what has been answered by now, it goes on."""
        if not self.done.done():
            self.done.set_result(None)
