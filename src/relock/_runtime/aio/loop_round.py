"""Rounds that a task awaits."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from relock._core.effects import Answer, Ask, Exchange, Failure
from relock._runtime.masters.known import MasterState
from relock._runtime.masters.round import Round
from relock._scripts import Call


class Takes(Protocol):
    """What answers come over; see `Link`."""

    def take(self) -> None:
        """Takes all that has come by now."""


class LoopRound(Round):
    """A round whose asker is woken as soon as its outcome is certain.

    Args:
        ask: what is asked.
        spared: how many masters need not have answered for the outcome to be certain.

    Attributes:
        asking: see `Connection.request_asking`.
        done: what the asker awaits.
        ends: see `Ask`.
        is_abandoned: nobody awaits it any more: what was not sent yet need not be.
        links: what its answers come over.
        is_late: it has got more time than `until`, for the loop came late.
    """

    __slots__ = (
        "_is_certain",
        "_spared",
        "asking",
        "done",
        "ends",
        "is_abandoned",
        "is_late",
        "links",
    )

    asking: bool
    done: "asyncio.Future[None]"
    ends: bool
    is_abandoned: bool
    is_late: bool
    links: Sequence[Takes]

    def __init__(
        self,
        ask: Ask,
        sent_at: float,
        answers: list[Answer],
        *,
        done: "asyncio.Future[None]",
        links: Sequence[Takes],
        spared: int,
    ) -> None:
        super().__init__(ask.calls, ask.until, sent_at, answers)
        self.done = done
        self.ends = ask.ends
        self.links = links
        self.is_abandoned = self.is_late = self.asking = False
        self._is_certain = ask.is_certain
        self._spared = spared

    @property
    def is_awaited(self) -> bool:
        """See `Round`: other tasks use the same connection."""
        return not (self.is_abandoned or self.done.done())

    def answered(self, index: int, answer: Answer) -> None:
        """See `Round`; with this one, the asker may have what it needs."""
        self.answers[index] = answer
        missing = self.missing = self.missing - 1
        is_certain = self._is_certain
        if not missing or (missing <= self._spared and is_certain is not None and is_certain(self.answers)):
            self.wake()

    def miss(self, master: MasterState, failure: Failure) -> None:
        """`master` does not answer this any more, if it has not."""
        if self.awaits_answer_of(master):
            self.answered(master.index, (failure,) * len(self.calls))

    def spare(self, masters: int) -> int:
        """Let the outcome be certain without the answers of so many masters; return of how many it could be before."""
        before, self._spared = self._spared, masters
        if self.missing <= masters and self._is_certain is not None and self._is_certain(self.answers):
            self.wake()
        return before

    def wake(self) -> None:
        """Wakes the asker: with what has been answered by now, it goes on."""
        if not self.done.done():
            self.done.set_result(None)


class LoneRound(LoopRound):
    """Round of one prepared call of a lone master: nearly every round of a task.

    It is packed as it was prepared; its `calls` are made only where somebody asks for them.

    Args:
        exchange: the call.
        unanswered: the answer until there is one.
    """

    __slots__ = ("_exchange",)

    def __init__(
        self, exchange: Exchange, *, unanswered: Answer, done: "asyncio.Future[None]", links: Sequence[Takes]
    ) -> None:
        self._exchange = exchange
        self._is_certain: Callable[[Sequence[Answer]], bool] | None = None
        self.sent_at = exchange.sent_at
        self.until = exchange.until
        self.answers = [unanswered]
        self.missing = 1
        self.script = exchange.request.script
        self.is_simple = True
        self.packed = [None, None]
        self.done = done
        self.links = links
        self.ends = self.is_abandoned = self.is_late = self.asking = False

    @property
    def calls(self) -> Sequence[Call]:  # type: ignore[override]
        """See `Round`."""
        return (self._exchange.call(),)

    def pack(self, guarded: bool) -> bytes:
        """See `Round`; only one master is sent it."""
        request, keys, owner, *_ = self._exchange
        return request.pack(keys, owner, b"", guarded)

    def answered(self, index: int, answer: Answer) -> None:
        """See `LoopRound`: the only answer is enough."""
        self.answers[index] = answer
        self.missing = 0
        if not self.done.done():
            self.done.set_result(None)
