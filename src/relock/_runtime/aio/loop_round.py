"""Rounds that a task awaits."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from relock._core.effects import Answer, Ask, Exchange, Failure
from relock._runtime.masters.round import Asked, Round
from relock._scripts import Call


class Takes(Protocol):
    """Link, as a round sees it: its answers come over that."""

    def take(self) -> None:
        """Take all that has come by now."""


class LoopRound(Round):
    """Round whose asker is woken as soon as its outcome is certain.

    Args:
        ask: the calls, and when to return.
        spared: how many masters need not have answered for the outcome to be certain.

    Attributes:
        asking: the round is sent by `Connection.request_asking`.
        done: what the asker awaits.
        ends: the round ends something, or makes it sure, as `Ask` says.
        is_abandoned: no task awaits the round any more: what was not sent yet need not be.
        links: the links over which the answers come.
        is_late: the round has got more time than `until`, because the loop came late.
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
        """True while the asker waits: other tasks use the same connection."""
        return not (self.is_abandoned or self.done.done())

    def answered(self, index: int, answer: Answer) -> None:
        """Note the answer of a master; wake the asker if it has what it needs now."""
        self.answers[index] = answer
        missing = self.missing = self.missing - 1
        is_certain = self._is_certain
        if not missing or (missing <= self._spared and is_certain is not None and is_certain(self.answers)):
            self.wake()

    def miss(self, master: Asked, failure: Failure) -> None:
        """Note that `master` does not answer the round any more, if it has not answered."""
        if self.awaits_answer_of(master):
            self.answered(master.index, (failure,) * len(self.calls))

    def spare(self, masters: int) -> int:
        """Let the outcome be certain without the answers of so many masters; return of how many it could be before."""
        before, self._spared = self._spared, masters
        if self.missing <= masters and self._is_certain is not None and self._is_certain(self.answers):
            self.wake()
        return before

    def wake(self) -> None:
        """Wake the asker, which goes on with what has been answered by now."""
        if not self.done.done():
            self.done.set_result(None)


class LoneRound(LoopRound):
    """Round of one prepared call of a lone master: nearly every round of a task.

    The call is packed as it was prepared; `calls` are made only where they are asked for.

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
        """Calls of the round: a single one."""
        return (self._exchange.call(),)

    def pack(self, guarded: bool) -> bytes:
        """Return the call as bytes for the only master, without the arguments of its connection."""
        request, keys, owner, *_ = self._exchange
        return request.pack(keys, owner, b"", guarded)

    def answered(self, index: int, answer: Answer) -> None:
        """Note the only answer, and wake the asker."""
        self.answers[index] = answer
        self.missing = 0
        if not self.done.done():
            self.done.set_result(None)
