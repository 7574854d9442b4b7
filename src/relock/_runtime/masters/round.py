"""Requests on one connection, and the replies that are owed to them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from relock._core.asking import Round


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
    def all_of(cls, round_: Round) -> "InFlight":
        """Return the first request of a round, for all of its calls."""
        count = round_.count
        return cls(round_, round_.sent_at, [None] * count, list(range(count))[::-1])
