"""The sign of life of one client for its waiters."""

from collections.abc import Generator, Sequence

from relock._core.effects import Ask, Clock, Effect
from relock._core.flows.acquire import ALIVE_SECONDS, QUEUE_SECONDS
from relock._keys import LockKeys
from relock._scripts import Call, load

WAITERS_PER_CALL = 500  # bounds the time for which one script keeps a master busy

Queue = tuple[LockKeys, Sequence[tuple[int, bytes]]]


def tend(client: str, queues: Sequence[Queue], clock: Clock, node_timeout: float) -> Generator[Effect, object, object]:
    """Gives the sign of life for the waiters (ticket and owner) of each of `queues`, in one batch.

    Returns a pair: the owners whose turn it is, and whether every master answered.
    """
    calls = tuple(call for keys, waiters in queues for call in _calls(client, keys, waiters))
    answers = yield Ask(calls, clock() + node_timeout)
    turns: set[bytes] = set()
    well = True
    for answer in answers:  # type: ignore[attr-defined]
        for reply in answer:
            if isinstance(reply, list) and reply[0] == b"tended":
                turns.add(reply[3])
            else:
                well = False
    return turns - {b""}, well


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
