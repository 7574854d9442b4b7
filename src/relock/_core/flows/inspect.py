"""Inspection of a lock from outside, and an operator's way to end a hold."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from attrs import frozen

from relock._core.clocks import TICKET_AHEAD_US
from relock._core.effects import Ask, Clock, Effect, Failure, Reply
from relock._core.flows.ask import first_of_each
from relock._core.flows.notify import tell_ended
from relock._core.lock_spec import LockSpec
from relock._core.quorum import Outcome, Refused, is_status, quorum_of
from relock._keys import LOCK
from relock._owner import is_rest
from relock._scripts import Call, load

QUEUE_LIMIT = 10_000
HOLDER_FIELDS = 3  # of each of several holders in a reply: its name, what the master keeps for it, its ms left
KNOWS_ITSELF = 0  # the fence for a lone master: it has given every token itself, so there is none to tell it

MasterReplies = Sequence[Reply | Failure]


@frozen
class Holder:
    """Holder of a lock.

    Attributes:
        owner: ``<client>:<uuid>`` of the holder.
        hold_count: how many levels the holder has.
        ttl: seconds until its lease ends.
        note: the text that it has given as ``note=``; None if it gave none.
    """

    owner: str
    hold_count: int
    ttl: float
    note: str | None = None


@frozen
class LockInfo:
    """State of one lock, by the replies of a quorum of the masters.

    Attributes:
        name: the lock's name.
        owner: ``<client>:<uuid>`` of the first of the `holders`; None if the lock is free, or another library's.
        hold_count: how many levels that holder has; 0 if the lock is free, or another library's.
        ttl: seconds until its lease ends; 0.0 if the lock is free, infinity if another library's has no end.
        token: the last fencing token that the masters remember; None if they remember none.
        queue: the waiters, in the order in which they will be served.
        readers: the readers that have the lock, the one whose lease ends last first; empty if there are none.
        held_for: seconds since the hold was granted, by its token, and so by the masters' clocks: an approximation.
            None if the lock is free, or held by readers or another library.
        waits: seconds for which each of the `queue` has waited, by its ticket: an approximation, too.
        resting: True if the lock was released, and stays taken for the rest of its ``at_least``: it has no owner then.
        note: the text that the holder has given as ``note=``; None if it gave none, or if a release has given it the
            lock less than about a second ago.
    """

    name: str
    owner: str | None
    hold_count: int
    ttl: float
    token: int | None
    queue: tuple[str, ...]
    readers: tuple[Holder, ...] = ()
    held_for: float | None = None
    waits: tuple[float, ...] = ()
    resting: bool = False
    note: str | None = None

    @property
    def held(self) -> bool:
        """True if the lock is held, also by another library, or rests."""
        return self.ttl != 0.0

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Holder, as a tuple of one, or the `readers`; empty if the lock is free, or another library's."""
        if self.readers or self.owner is None:
            return self.readers
        return (Holder(self.owner, self.hold_count, self.ttl, self.note),)

    @property
    def kind(self) -> str:
        """``"lock"``."""
        return LOCK


def look(spec: LockSpec, clock: Clock, *, limit: int = QUEUE_LIMIT) -> Generator[Effect, Any, MasterReplies]:
    """Ask all masters for the state of the lock; return the replies, for `agree`."""
    call = load(spec.keys.script_name("inspect")).call(spec.keys, limit=limit)
    return (yield from read(call, clock() + spec.node_timeout, clock))


def read(call: Call, until: float, clock: Clock) -> Generator[Effect, Any, MasterReplies]:
    """Send all masters a `call` that does no harm if it runs twice; return the replies.

    So if too few reply because connections ended, all masters are asked once more, until `until` as well.
    """
    ask = Ask((call,), until)
    replies = first_of_each((yield ask))
    if is_worth_another_look(replies) and clock() < ask.until:
        again = first_of_each((yield ask))
        replies = [old if isinstance(old, list) else new for old, new in zip(replies, again, strict=True)]
    return replies


def is_worth_another_look(replies: MasterReplies) -> bool:
    """Return whether too few masters replied, but enough would with those whose connections ended."""
    replied = sum(isinstance(reply, list) for reply in replies)
    broken = sum(isinstance(reply, Failure) and reply.broken for reply in replies)
    return replied < quorum_of(len(replies)) <= replied + broken


def agree(name: str, answers: MasterReplies) -> LockInfo | None:
    """Return the lock's state: free if a quorum says so, else with the hold of most masters; None if too few answer."""
    replies = [answer for answer in answers if isinstance(answer, list)]
    quorum = quorum_of(len(answers))
    if len(replies) < quorum:
        return None
    held = [reply for reply in replies if reply[0] in (b"held", b"noted")]
    shared = [reply for reply in replies if reply[0] == b"shared"]
    token = max(reply[2] if reply[0] in (b"free", b"shared") else reply[5] for reply in replies) or None
    if len(replies) - len(held) - len(shared) >= quorum:
        queue, waits = waiters_in(replies, len(answers), ())
        return LockInfo(name, None, 0, 0.0, token, queue, waits=waits)
    if len(shared) > len(held):
        readers = _readers(shared, quorum)
        first = readers[0]
        queue, waits = waiters_in(replies, len(answers), [reader.owner for reader in readers])
        return LockInfo(
            name, first.owner, first.hold_count, first.ttl, token, queue, readers, waits=waits, note=first.note
        )
    owners = [reply[3] for reply in held]
    _, now_us, pttl_ms, owner, count, *_ = max(held, key=lambda reply: (owners.count(reply[3]), reply[4]))
    ttl = max(pttl_ms, 1) / 1000 if pttl_ms >= 0 else float("inf")
    holder = owner.decode(errors="replace") or None
    queue, waits = waiters_in(replies, len(answers), [holder or ""])
    if is_rest(holder):
        return LockInfo(name, None, 0, ttl, token, queue, waits=waits, resting=True)
    held_for = _seconds_since(token, now_us) if holder and token else None
    noted = [reply[6] for reply in held if reply[0] == b"noted" and reply[3] == owner]
    note = noted[0].decode(errors="replace") if noted else None
    return LockInfo(name, holder, count, ttl, token, queue, held_for=held_for, waits=waits, note=note)


def with_note(outcome: Outcome, spec: LockSpec, until: float, clock: Clock) -> Generator[Effect, Any, Outcome]:
    """Return the outcome of an acquire in vain, for its error: with the holder's note, if enough masters tell it.

    They are asked only if the caller has a note, too, and has waited; until one node timeout after `until` at most.
    """
    if spec.options.note is None or not isinstance(outcome, Refused) or outcome.ticket is None:
        return outcome
    until += spec.node_timeout
    if outcome.holder is None or clock() >= until:
        return outcome
    call = load(spec.keys.script_name("inspect")).call(spec.keys, limit=1)
    info = agree(spec.keys.name, (yield from read(call, until, clock)))
    notes = [] if info is None else [one.note for one in info.holders if one.owner == outcome.holder]
    return outcome._replace(note=notes[0]) if notes else outcome


def waiters_in(
    replies: Sequence[Any], masters: int, holders: Iterable[str]
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the names of the waiters in the longest queue of the replies, and the seconds since each came.

    A holder may have a place as well, which its release ends: a request for that place, sent before the waiter heard
    that it was given the lock, restores it.
    """
    now_us, flat = max(((reply[1], reply[-1]) for reply in replies), key=lambda said: len(said[1]))
    ahead_us = 0 if masters == 1 else TICKET_AHEAD_US  # several masters write tickets that lie ahead of their clocks
    served = {holder.partition("~")[0] for holder in holders}
    tickets = {waiter.decode(errors="replace"): float(at) for waiter, at in zip(flat[::2], flat[1::2], strict=True)}
    waits = {waiter: _seconds_since(at - ahead_us, now_us) for waiter, at in tickets.items() if waiter not in served}
    return tuple(waits), tuple(waits.values())


def _seconds_since(then_us: float, now_us: int) -> float:
    return max(0.0, now_us - max(0.0, then_us)) / 1e6  # another program may have written a negative ticket


def holders_in(flat: Sequence[Any]) -> Iterator[tuple[bytes, int, int, str | None]]:
    """Yield what a reply says of each of several holders: its name, its count or slot, its ms left, and its note."""
    for i in range(0, len(flat), HOLDER_FIELDS):
        owner, value, left_ms = flat[i : i + HOLDER_FIELDS]
        kept, _, note = value.partition(b" ") if isinstance(value, bytes) else (value, b"", b"")
        yield owner, int(kept), int(left_ms), note.decode(errors="replace") or None


def _readers(replies: Sequence[Any], quorum: int) -> tuple[Holder, ...]:
    """Return the readers that a quorum of the masters name; if there are none, those that most masters name."""
    found: dict[bytes, list[tuple[int, int, str]]] = {}
    for reply in replies:
        for owner, count, left_ms, note in holders_in(reply[3]):
            found.setdefault(owner, []).append((left_ms, count, note or ""))
    enough = min(quorum, max(map(len, found.values())))
    readers = []
    for owner, said in found.items():
        if len(said) >= enough:
            lefts, counts, notes = zip(*said, strict=True)
            left_ms = sorted(lefts, reverse=True)[enough - 1]
            readers.append(Holder(owner.decode(errors="replace"), max(counts), left_ms / 1000, max(notes) or None))
    return tuple(sorted(readers, key=lambda reader: -reader.ttl))


def force_release(spec: LockSpec, clock: Clock) -> Generator[Effect, Any, tuple[bool, MasterReplies]]:
    """End any hold of the lock, and keep the fencing tokens rising.

    First look, to learn the largest token. Each master that ends a hold writes a token at least as large. So the next
    grant gets a larger one, even after a hold that was granted since the look.

    Then tell the holders that the look has found. One that was granted the lock since learns of it when it renews.

    Return whether a master ended a hold, and the answers. Nothing is ended if too few masters answered the look.
    """
    answers = yield from look(spec, clock, limit=1)
    info = agree(spec.keys.name, answers)
    if info is None:
        return False, answers
    fence = KNOWS_ITSELF if len(answers) == 1 else max(info.token or 0, KNOWS_ITSELF + 1)
    call = load(spec.keys.script_name("force_release")).call(spec.keys, fence=fence, lease_ms=spec.templates.lease_ms)
    answers = first_of_each((yield Ask((call,), clock() + spec.node_timeout)))
    released = any(is_status(answer, b"released") for answer in answers)
    if released:
        yield from tell_ended(spec, [holder.owner for holder in info.holders], clock)
    return released, answers
