"""Heartbeat of one client for its waiters."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relock._core.effects import Answer, Ask
from relock._core.flows.ask import nth_of_each
from relock._core.lock_spec import ALIVE_MS, QUEUE_MS
from relock._core.quorum import quorum_of
from relock._keys import LockKeys
from relock._scripts import Call, load

WAITERS_PER_CALL = 500  # one script must not keep a master busy for long

Queue = tuple[tuple[bytes, LockKeys], Sequence[tuple[int, bytes]]]


class HeartbeatReply(NamedTuple):
    """Outcome of the masters' answers to a heartbeat.

    Attributes:
        turns: the waiters of this client whose turn it is on a quorum, in the order of the queues.
        well: a quorum answered for every queue.
        lease_left: seconds until the first of the holders' leases has ended on a quorum; infinity when none does.
    """

    turns: list[bytes]
    well: bool
    lease_left: float


def heartbeat(queues: Iterable[Queue], until: float) -> Ask:
    """Return all heartbeats in one batch; each queue is a client name and a lock, with its waiters (ticket, owner)."""
    return Ask(tuple(call for (client, keys), waiters in queues for call in _calls(client, keys, waiters)), until)


def judge_heartbeat(answers: Sequence[Answer], votes: Sequence[bool]) -> HeartbeatReply:
    """Return the outcome of `answers` to a heartbeat.

    `votes` says which masters have a vote. Those without one name no turns, because they may have forgotten a hold.
    """
    quorum = quorum_of(len(answers))
    turns: Counter[bytes] = Counter()
    lefts_ms: list[int] = []
    well = True
    for i in range(len(answers[0])):
        replied = []
        for vote, reply in zip(votes, nth_of_each(answers, i), strict=True):
            if isinstance(reply, list) and reply[0] == b"tended":
                replied.append(reply)
                if vote and reply[3]:
                    turns[reply[3]] += 1
        well = well and len(replied) >= quorum
        lefts_ms += sorted(reply[2] for reply in replied)[quorum - 1 : quorum]
    return HeartbeatReply(
        turns=[owner for owner, masters in turns.items() if masters >= quorum],
        well=well,
        lease_left=min((left for left in lefts_ms if left > 0), default=float("inf")) / 1000,
    )


def _calls(client: bytes, keys: LockKeys, waiters: Sequence[tuple[int, bytes]]) -> list[Call]:
    chunks = (waiters[i : i + WAITERS_PER_CALL] for i in range(0, len(waiters), WAITERS_PER_CALL))
    return [
        load(keys.script_name("heartbeat")).call(
            keys,
            *(item for waiter in chunk for item in waiter),
            client=client,
            alive_ms=ALIVE_MS,
            queue_ms=QUEUE_MS,
        )
        for chunk in chunks
    ]
