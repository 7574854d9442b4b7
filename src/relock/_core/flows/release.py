"""The end of a hold, of one level of it, or of a place in the queue."""

from collections.abc import Generator, Sequence

from relock._core.effects import Ask, Clock, Effect, Failure, Reply
from relock._core.flows.ask import first_of_each
from relock._core.hold import Hold
from relock._core.quorum import is_status
from relock._core.terms import lease_ms
from relock._keys import LockKeys
from relock._scripts import load

Answers = Generator[Effect, object, Sequence[Reply | Failure]]


def end(keys: LockKeys, owner: bytes, token: int, ttl: float, until: float) -> Answers:
    """Ends the hold of `owner` and its place in the queue, everywhere."""
    call = load("release").call(keys, owner=owner, fence=token, lease_ms=lease_ms(ttl))
    return first_of_each((yield Ask((call,), until)))


def leave(keys: LockKeys, owner: bytes, until: float) -> Answers:
    """Gives up a place in the queue that nobody waits for any more."""
    return first_of_each((yield Ask((load("leave").call(keys, owner=owner),), until)))


def write_count(hold: Hold, count: int, lease: float, clock: Clock, node_timeout: float) -> Answers:
    """Writes the hold count; `lease` (s) above 0 lengthens the lease to that as well.

    The hold is valid until its deadline whatever the masters answer; only *absent* from so many that no quorum is
    left ends it.
    """
    call = load("count").call(hold.keys, owner=hold.owner, count=count, lease_ms=lease_ms(lease))
    for _ in range(2):  # a second time, with a new clock sample, where the first came too late
        answers = first_of_each((yield Ask((call,), clock() + node_timeout)))
        if not any(is_status(answer, b"void") for answer in answers):
            break
    hold.drop_absent(answers)
    return answers
