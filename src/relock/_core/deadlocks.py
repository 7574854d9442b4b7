"""Deadlocks: rings of owners, each of which holds a lock that the one before it in the ring waits for. No I/O.

An `Edge` says that the owner of a hold waits for another lock. Only the owner's client knows both ends: the servers
know clients, and not that one thread has this hold and makes that call. So each client makes the edges of its own
callers, and other clients' edges are asked for: see `relock._runtime.background.chase`.

A ring is a deadlock only if all of its edges stand at the same moment. Within a client that is so by the order of the
steps. Each caller notes its wait, and then looks for a ring. The last of them to note its wait sees all other edges,
and none of them can end: the hold that each waits for belongs to a caller which waits itself.

One caller of a ring, the *victim*, gets a `DeadlockError`: the one that came last. There is an event and no error if
another caller of one of the owners could still release the hold: if ``owner=`` names that owner, or if a task waits
through another task.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from relock._core.book import Book
from relock._core.call_record import CallRecord
from relock._core.effects import Clock
from relock._core.hold import FOREVER
from relock._core.host import AllWaiters, Counters
from relock._core.quorum import NEVER
from relock._errors import DeadlockError
from relock._events import Deadlocked, Event
from relock._keys import LOCK, READ, SEMAPHORE
from relock._options import DEADLOCK_OFF, DEADLOCK_RAISES
from relock._owner import Owner, OwnerKey, is_reader, owner_key, task_of

RING_MAX = 32  # holds in a ring; longer ones are not found


class WaitingClient(Protocol):
    """Part of a `Host` that is looked at for deadlocks."""

    clock: Clock
    counters: Counters
    deadlock_after: float
    holds: Book
    rings: set[frozenset[bytes]]
    waits: dict[CallRecord, tuple[Owner, float, float]]

    @property
    def hubs(self) -> AllWaiters:
        """Hubs of the client."""

    def emit(self, event: Event) -> None:
        """Report an event."""


class Edge(NamedTuple):
    """Wait of an owner that has a hold.

    Attributes:
        hold: the name of the hold.
        waiter: the name of the wait, which no other call has.
        lock: the name of the lock for which the owner waits.
        order: a number that is larger for a wait that began later: the ticket, or a count of the client's waits.
        is_sure: nobody but the waiting caller could release the hold.
        may_raise: the wait may end with a `DeadlockError`.
        since: our time at which the wait began, if it is one of this client.
        until: our time at which its caller's timeout ends, likewise.
    """

    hold: bytes
    waiter: bytes
    lock: str
    order: int
    is_sure: bool
    may_raise: bool
    since: float = NEVER
    until: float = FOREVER


Ring = tuple[Edge, ...]
"""Edges, each of which waits for the lock that the hold of the next one has; the last waits for that of the first."""


def find_ring(edges: Mapping[bytes, Edge], holders: Mapping[str, Sequence[bytes]], waiter: bytes) -> Ring | None:
    """Return a ring through the wait named `waiter`; None if there is none.

    Args:
        edges: the edges that are known, by the names of their holds.
        holders: the names of the holds of each lock.
        waiter: the name of the wait.
    """
    own = [edge for edge in edges.values() if edge.waiter == waiter]
    ends, seen = {edge.hold for edge in own}, set[bytes]()

    def follow(edge: Edge, length: int) -> Ring | None:
        """Return the ring that a chain of `length` edges closes behind `edge`, without the edges up to it."""
        for hold in holders.get(edge.lock, ()):
            # Readers wait for writers only: a reader that waits for its turn among readers waits for no hold.
            if hold in seen or (is_reader(edge.waiter) and is_reader(hold)):
                continue
            seen.add(hold)
            if hold in ends:
                return (edges[hold],)
            following = edges.get(hold) if length < RING_MAX else None
            ring = None if following is None else follow(following, length + 1)
            if following is not None and ring is not None:
                return (following, *ring)
        return None

    ring = follow(own[0], 1) if own else None
    return None if ring is None else (ring[-1], *ring[:-1])


def victim_of(ring: Ring) -> Edge | None:
    """Return the edge of a ring whose wait ends with an error; None if the ring is only reported."""
    if not all(edge.is_sure for edge in ring):
        return None
    return max((edge for edge in ring if edge.may_raise), key=lambda edge: (edge.order, edge.waiter), default=None)


def own_edges(host: WaitingClient) -> dict[bytes, Edge]:
    """Return the edges of the client's callers that wait now, by the names of their holds.

    A wait with a short timeout makes no edge: it ends by itself, and with it every ring that it is in.
    """
    holds = host.holds.copy()
    if not holds:
        return {}
    held_by = {owner_key(key) for _, key in holds}
    waits: dict[OwnerKey, Edge] = {}
    for order, (record, (who, since, until)) in enumerate(host.waits.copy().items()):
        spec, key = record.spec, owner_key(who.key)
        is_short = until - since <= host.deadlock_after
        if key not in held_by or spec is None or is_short or record.error is not None:
            continue
        is_sure, may_raise = _is_alone(record, who), spec.options.deadlock == DEADLOCK_RAISES
        if spec.options.deadlock != DEADLOCK_OFF and (is_sure or key not in waits):
            waits[key] = Edge(b"", record.owners[0], spec.keys.name, order, is_sure, may_raise, since, until)
    if not waits:
        return {}
    edges: dict[bytes, Edge] = {}
    now = host.clock()
    for hold in holds.values():
        wait = waits.get(owner_key(hold.key))
        if wait is None or wait.lock == hold.keys.name:
            continue
        if hold.loss is None and now < hold.deadline and now < wait.until:
            edges[hold.owner] = wait._replace(hold=hold.owner)
    return edges


def _is_alone(record: CallRecord, who: Owner) -> bool:
    """Return whether the owner can do nothing else while it waits: a thread, or a task that awaits its own call."""
    return not who.takes_turns or (record.task is not None and task_of(who.liveness) is record.task)


def check_ring(host: WaitingClient, record: CallRecord) -> None:
    """Look whether the wait of `record`, which is in the client's book of waits, closes a ring among its callers.

    Raises:
        DeadlockError: it does, and this wait is the victim.
    """
    if record.spec is None or record.spec.options.deadlock == DEADLOCK_OFF:
        return
    name, holds = record.spec.keys.name, host.holds.copy()
    owners = {owner_key(key) for held, key in holds if held == name}
    # Thousands of callers may wait, and hardly ever for a caller of this client that waits itself.
    if not owners or not any(owner_key(who.key) in owners for who, _, _ in host.waits.copy().values()):
        return
    edges = own_edges(host)
    holders: dict[str, list[bytes]] = {}
    for hold in holds.values():
        if hold.keys.kind != SEMAPHORE:
            holders.setdefault(hold.keys.name, []).append(hold.owner)
    while (ring := find_ring(edges, holders, record.owners[0])) is not None:
        victim = end_ring(host, ring, record)
        if victim is None:
            return
        edges = {hold: edge for hold, edge in edges.items() if edge.waiter != victim.waiter}


def end_ring(host: WaitingClient, ring: Ring, caller: CallRecord | None = None) -> Edge | None:
    """Report a ring, once, and end the wait of its victim if that is the `caller`, or sleeps in this client.

    Return the victim, if any.

    Raises:
        DeadlockError: the caller is the victim.
    """
    victim = victim_of(ring)
    key = frozenset(edge.waiter for edge in ring)
    cycle = cycle_of(ring)
    if key not in host.rings:
        waiting = {record.owners[0] for record in host.waits.copy() if record.owners}
        host.rings = {one for one in host.rings if one & waiting} | {key}
        host.counters.deadlocks += 1
        kind = READ if is_reader(ring[0].waiter) else LOCK
        name = None if victim is None else victim.waiter.decode(errors="replace")
        host.emit(Deadlocked(ring[0].lock, cycle, name, kind=kind))
    if victim is None:
        return None
    error = deadlock_error(victim, cycle)
    if caller is not None and victim.waiter == caller.owners[0]:
        raise error
    for record in host.waits.copy():
        if record.owners[0] == victim.waiter:
            record.error = error  # Mark, then look: the waiter looks at this before it sleeps, or is woken below
    host.hubs.look_again(victim.waiter)
    return victim


Cycle = tuple[tuple[str, str, str], ...]


def cycle_of(ring: Ring) -> Cycle:
    """Return a ring as users see it: for each wait the lock, the waiting owner, and the holder."""
    following = (*ring[1:], ring[0])
    return tuple(
        (edge.lock, edge.waiter.decode(errors="replace"), holder.hold.decode(errors="replace"))
        for edge, holder in zip(ring, following, strict=True)
    )


def texts_of(cycle: Cycle) -> list[str]:
    """Return a ring in words, one text for each wait."""
    return [f"{waiter} waits for {lock!r}, which {holder} has" for lock, waiter, holder in cycle]


def deadlock_error(victim: Edge, cycle: Cycle) -> DeadlockError:
    """Return the error for the wait of the `victim`."""
    waits = "; ".join(texts_of(cycle))
    return DeadlockError(
        f"waiting for {victim.lock!r} would never end: {waits}; take these locks together by lock_all, or always in "
        "the same order",
        lock=victim.lock,
        cycle=cycle,
    )
