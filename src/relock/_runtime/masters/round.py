"""Requests that were sent on one connection and have no reply yet."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from relock._core.asking import Round


class Pending(NamedTuple):
    """Request whose reply was not the usual one, or is not complete yet.

    Attributes:
        round: the round to which the reply belongs.
        replies: the replies that have come by now.
        now: our time at which they came.
    """

    round: Round
    replies: Sequence[Any]
    now: float


class Login(NamedTuple):
    """``AUTH`` with new credentials, sent at `sent_at` between two requests."""

    sent_at: float


class InFlight:
    """Request of several calls whose replies are to come.

    A simple round needs no `InFlight` when it is first sent: the queue of requests has the round itself.

    Attributes:
        places: the indexes of the calls whose replies are missing, the last one first.
        sent_at: our time when it was sent.
    """

    __slots__ = ("places", "replies", "round", "sent_at")

    def __init__(self, round_: Round, sent_at: float, replies: list[Any], places: list[int]) -> None:
        self.round = round_
        self.sent_at = sent_at
        self.replies = replies
        self.places = places

    @classmethod
    def all_of(cls, round_: Round) -> "InFlight":
        """Return the first request of a round, for all of its calls."""
        count = round_.count
        return cls(round_, round_.sent_at, [None] * count, list(range(count))[::-1])
