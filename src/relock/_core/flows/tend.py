"""The sign of life of one client for its waiters."""

from collections.abc import Generator, Sequence
from typing import NamedTuple

from relock._core.effects import Answer, Ask, Clock, Effect
from relock._core.flows.acquire import ALIVE_SECONDS, QUEUE_SECONDS
from relock._keys import LockKeys
from relock._scripts import Call, load

WAITERS_PER_CALL = 500  # bounds the time for which one script keeps a master busy

Queue = tuple[LockKeys, Sequence[tuple[int, bytes]]]


class Tended(NamedTuple):
    """What the masters said to a sign of life.

    Attributes:
        turns: the owners among ours whose turn it is.
        well: every master answered for every queue.
        lease_left: seconds until the first of the holders' leases ends; infinity when none does.
    """

    turns: set[bytes]
    well: bool
    lease_left: float


def tend(
    client: str, queues: Sequence[Queue], clock: Clock, node_timeout: float
) -> Generator[Effect, Sequence[Answer], Tended]:
    """Gives the sign of life for the waiters (ticket and owner) of each of `queues`, in one batch."""
    calls = tuple(call for keys, waiters in queues for call in _calls(client, keys, waiters))
    answers = yield Ask(calls, clock() + node_timeout)
    replies = [reply for answer in answers for reply in answer]
    tended = [reply for reply in replies if isinstance(reply, list) and reply[0] == b"tended"]
    return Tended(
        turns={reply[3] for reply in tended} - {b""},
        well=len(tended) == len(replies),
        lease_left=min((reply[2] / 1000 for reply in tended if reply[2] > 0), default=float("inf")),
    )


def _calls(client: str, keys: LockKeys, waiters: Sequence[tuple[int, bytes]]) -> list[Call]:
    chunks = (waiters[i : i + WAITERS_PER_CALL] for i in range(0, len(waiters), WAITERS_PER_CALL))
    return [
        load("tend").call(
            keys,
            *(item for waiter in chunk for item in waiter),
            client=client,
            alive_ms=int(ALIVE_SECONDS * 1000),
            queue_ms=int(QUEUE_SECONDS * 1000),
        )
        for chunk in chunks
    ]
