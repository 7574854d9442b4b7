"""Inspection of a semaphore from outside, and an operator's ways to change its limit and to end a permit."""

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

from attrs import frozen

from relock._core.effects import Ask, Clock, Effect, Failure
from relock._core.flows.ask import first_of_each
from relock._core.flows.extend import ROUNDS
from relock._core.flows.inspect import MasterReplies, holders_in, look, waiters_in
from relock._core.flows.notify import tell_ended
from relock._core.flows.release import end_call
from relock._core.lock_spec import LockSpec, lease_ms
from relock._core.quorum import VOID, is_status, quorum_of
from relock._keys import SEMAPHORE
from relock._owner import limit_in
from relock._scripts import load


@frozen
class PermitHolder:
    """Holder of permits of a semaphore.

    Attributes:
        owner: ``<client>:<uuid>`` of the holder.
        permits: how many permits it has.
        slot: the number of its slot, if it has one permit; None if it has several.
        ttl: seconds until its lease ends.
    """

    owner: str
    permits: int
    slot: int | None
    ttl: float


@frozen
class SemaphoreInfo:
    """State of one semaphore, by the replies of a quorum of the masters.

    Attributes:
        name: the semaphore's name.
        limit: how many permits it has, also where an operator's `override` says so.
        used: how many of them are taken.
        holders: the holders of these, in the order in which their leases end.
        queue: the waiters, in the order in which they will be served.
        override: the limit that an operator has set, which wins over all others; None if there is none.
        waits: seconds for which each of the `queue` has waited, by its ticket: an approximation.
    """

    name: str
    limit: int
    used: int
    holders: tuple[PermitHolder, ...]
    queue: tuple[str, ...]
    override: int | None = None
    waits: tuple[float, ...] = ()

    @property
    def limits(self) -> tuple[int, ...]:
        """Limits in the code of the holders and waiters, in rising order: one, unless their code differs."""
        owners = (*(holder.owner for holder in self.holders), *self.queue)
        return tuple(sorted({limit for owner in owners if (limit := limit_in(owner)) is not None}))

    @property
    def kind(self) -> str:
        """``"semaphore"``."""
        return SEMAPHORE


def agree(name: str, limit: int, answers: MasterReplies) -> SemaphoreInfo | None:
    """Return the state of the semaphore `name` with this `limit`, as a quorum says; None if too few answer."""
    replies = [answer for answer in answers if isinstance(answer, list)]
    quorum = quorum_of(len(answers))
    if len(replies) < quorum:
        return None
    cap = sorted((reply[2] for reply in replies), reverse=True)[quorum - 1]
    holders = sorted(_holders(replies, quorum), key=lambda holder: holder.ttl)
    queue, waits = waiters_in(replies, len(answers), [holder.owner for holder in holders])
    used = sum(holder.permits for holder in holders)
    return SemaphoreInfo(name, limit if cap < 0 else cap, used, tuple(holders), queue, None if cap < 0 else cap, waits)


def _holders(replies: Sequence[list[Any]], quorum: int) -> Generator[PermitHolder, None, None]:
    """Yield the holders that a quorum of the masters name."""
    listed = [_listed(reply) for reply in replies]
    for (owner, kept), masters in Counter(holder for holders in listed for holder in holders).items():
        if masters >= quorum:
            lefts = sorted((holders[owner, kept] for holders in listed if (owner, kept) in holders), reverse=True)
            slot = kept if kept >= 0 else None
            yield PermitHolder(owner.decode(errors="replace"), max(1, -kept), slot, max(1, lefts[quorum - 1]) / 1000)


def _listed(reply: list[Any]) -> dict[tuple[bytes, int], int]:
    """Return the holders in the `reply` of one master: name and slot, and the ms left."""
    return {(owner, kept): left_ms for owner, kept, left_ms, _ in holders_in(reply[4])}


def override(spec: LockSpec, limit: int, seconds: float, clock: Clock) -> Generator[Effect, Any, MasterReplies]:
    """Have each master judge by `limit` for so many `seconds`, whatever limit a caller names; 0 s: no longer.

    A request that came too late is repeated once, with a new clock sample. If it is late again, that is a failure.
    """
    call = load("permit_override").call(spec.keys, cap=limit, ttl_ms=lease_ms(seconds))
    for _ in range(ROUNDS):
        answers = first_of_each((yield Ask((call,), clock() + spec.node_timeout)))
        if not any(is_status(answer, b"void") for answer in answers):
            break
    pairs = zip(answers, spec.masters, strict=True)
    return [Failure(master, VOID) if is_status(answer, b"void") else answer for answer, master in pairs]


def force_release(spec: LockSpec, owner: str, clock: Clock) -> Generator[Effect, Any, tuple[bool, MasterReplies]]:
    """End the permits of `owner`, and keep the fencing tokens rising, as `force_release` of a lock does.

    Return whether a master ended them, and the answers. Nothing is ended if too few masters answered the look.
    """
    answers = yield from look(spec, clock, limit=1)
    if agree(spec.keys.name, 1, answers) is None:
        return False, answers
    fence = (
        0 if len(answers) == 1 else max(_token_above(answer, owner) for answer in answers if isinstance(answer, list))
    )
    call = end_call(spec.keys, owner.encode(), fence, spec.ttl)
    answers = first_of_each((yield Ask((call,), clock() + spec.node_timeout)))
    released = any(is_status(answer, b"released") for answer in answers)
    if released:
        yield from tell_ended(spec, [owner], clock)
    return released, answers


def _token_above(reply: list[Any], owner: str) -> int:
    """Return a token that is not below that of `owner`: a token lies below the end of its first lease, or is known."""
    lefts = [left_ms for (name, _), left_ms in _listed(reply).items() if name == owner.encode()]
    now_us: int = reply[1]
    token: int = reply[3]
    return max([token, *(now_us + (left_ms + 1) * 1000 for left_ms in lefts)])
