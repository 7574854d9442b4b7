"""Rounds: the calls that masters are asked together, and the replies that are owed to them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from relock._core.effects import Answer, Failure
from relock._scripts import Call, Script


class Asked(Protocol):
    """Master that is asked.

    Attributes:
        index: its number, and that of its answer.
        no_reply_yet: its answer to one call until it has answered.
    """

    index: int
    no_reply_yet: Answer


class Round:
    """The calls of one `Ask`, and the answers, which go on arriving after the asker has what it needs.

    Attributes:
        until: our time at which a silent master has failed, and after which a creating script is void.
        sent_at: our time before the first byte was sent.
        answers: one for each master, with a `Failure` for each call until it has answered.
        missing: how many of the masters that were asked have not answered.
        script: that of its first call.
        is_simple: it is a single call, with a fixed number of arguments: nearly every round is.
        packed: the call of such a one as bytes, without a guard and with one, once `pack` has made them.
    """

    __slots__ = ("answers", "calls", "is_simple", "missing", "packed", "script", "sent_at", "until")

    answers: list[Answer]
    calls: Sequence[Call]
    is_simple: bool
    missing: int
    packed: list[bytes | None]
    script: Script
    sent_at: float
    until: float

    def __init__(self, calls: Sequence[Call], until: float, sent_at: float, answers: list[Answer]) -> None:
        self.calls = calls
        self.script = calls[0].script
        self.until = until
        self.sent_at = sent_at
        self.answers = answers
        self.missing = 0
        self.is_simple = len(calls) == 1 and not calls[0].rest_count
        self.packed = [None, None]

    @property
    def is_awaited(self) -> bool:
        """True if the asker waits for the answer, though others have sent requests behind the round.

        False where a connection is one caller's at a time: a caller that sends something behind a round does not wait
        for that round.
        """
        return False

    def answered(self, index: int, answer: Answer) -> None:
        """Note the answer of master number `index`."""
        self.answers[index] = answer
        self.missing -= 1

    def pack(self, guarded: bool) -> bytes:
        """Return a simple round's call as bytes, but for what the connection adds: packed once for all masters."""
        packed = self.packed[guarded] = self.calls[0].pack(b"", guarded)
        return packed

    def awaits(self, master: Asked) -> None:
        """Note that the master is about to be asked: from here on it may have run the calls, whatever failed before."""
        self.answers[master.index] = (*master.no_reply_yet,) * len(self.calls)

    def awaits_answer_of(self, master: Asked) -> bool:
        """Return whether the master has not answered: it owes a reply, or nothing was sent."""
        return any(isinstance(reply, Failure) and reply.awaited for reply in self.answers[master.index])

    def fail(self, master: Asked, failure: Failure) -> None:
        """Note that the master was not asked, or does not answer."""
        self.answers[master.index] = (failure,) * len(self.calls)


class Pending(NamedTuple):
    """A request whose reply was not the usual one.

    Attributes:
        round: what it is owed to.
        replies: what has come by now.
        now: when that was.
    """

    round: Round
    replies: Sequence[Any]
    now: float


class InFlight:
    """Request whose replies are to come: when it was sent, and where each reply that is missing belongs, last first.

    A simple round that is sent for the first time needs no `InFlight`: it stands for itself.
    """

    __slots__ = ("places", "replies", "round", "sent_at")

    def __init__(self, round_: Round, sent_at: float, replies: list[Any], places: list[int]) -> None:
        self.round = round_
        self.sent_at = sent_at
        self.replies = replies
        self.places = places

    @classmethod
    def all_of(cls, round_: Round, sent_at: float) -> "InFlight":
        """Return the request for all calls of a round, sent at `sent_at`."""
        count = len(round_.calls)
        return cls(round_, sent_at, [None] * count, list(range(count))[::-1])
