"""Judgement of runs in which callers take locks in any order, one inside the other, and so run into deadlocks.

A `DeadlockError` names the waits and the holds of its ring. The judge notes when each of these began, and ends them by
what the callers do: a wait ends when its call returns, a hold when its release is called. So the judge knows whether
there was a moment at which all of the ring stood.

A ring that stands for long, when all is well, must be found. Here the judge looks for the rings that relock promises to
end: each wait in them may raise, and nobody but the waiting caller could release the holds.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from attrs import define, field

from relock import DeadlockError
from relock._core.call_record import CallRecord
from relock._core.hold import Hold
from relock._events import Deadlocked
from relock._owner import Owner, OwnerKey, is_reader, owner_key
from relock._runtime.session.session import Session
from relock.testing._process import Process
from sim.beliefs import Belief, Call
from sim.plan import Orders
from sim.read_write import ReadWriteReferee
from sim.referee import Referee
from sim.several import Progress, SeveralReferee

AT_ONCE_SECONDS = 1.0  # in which a caller has ended its call that found a deadlock within its client
FOUND_SECONDS = 10.0  # more than `deadlock_after`: a second round, a heartbeat, and some
Caller = tuple[Process, OwnerKey]
Noted = tuple[Owner, float, float]
Cycle = tuple[tuple[str, str, str], ...]


@define(eq=False)
class Span:
    """Time of a wait, or of a hold while its caller waits.

    Attributes:
        may_raise: the wait is long, and its lock says that a deadlock raises an error.
        is_sure: nobody but the waiting caller could release what its owner has.
        counts: the wait is long, and its lock does not say that deadlocks are ignored.
        hold: the hold, unless this is a wait.
    """

    name: str
    lock: str
    caller: Caller
    begin: float
    end: float = float("inf")
    may_raise: bool = False
    is_sure: bool = False
    counts: bool = False
    hold: Hold | None = None


class _Waits(dict[CallRecord, Noted]):
    """Waits of a client, which tell the judge as soon as they are noted."""

    def __init__(self, told: Any) -> None:
        super().__init__()
        self._told = told

    def __setitem__(self, record: CallRecord, wait: Noted) -> None:
        super().__setitem__(record, wait)
        self._told(record, wait)


@define
class Rings(Progress):
    """Waits and holds of all callers, the deadlocks that were told, and those that stand.

    Attributes:
        waits: all waits by their names.
        holds: all holds of callers that waited, by their names.
        told: the rings for which an error was raised.
    """

    waits: dict[str, Span] = field(factory=dict)
    holds: dict[str, Span] = field(factory=dict)
    _open: dict[Span, None] = field(factory=dict)  # those that have not ended
    told: set[frozenset[tuple[str, str, str]]] = field(factory=set)

    @property
    def _orders(self) -> Orders:
        assert self.first.plan.orders is not None
        return self.first.plan.orders

    # What callers do ------------------------------------------------------------------------------------------------

    def meet(self, process: Process, session: Session) -> None:
        """Have each wait of a client told."""
        session.waits = _Waits(partial(self._noted, process, session))

    def _noted(self, process: Process, session: Session, record: CallRecord, noted: Noted) -> None:
        """Note a wait, and the holds that its caller has meanwhile. A caller waits for one lock at a time."""
        who, since, until = noted
        spec, name, caller = record.spec, record.owners[0].decode(), (process, owner_key(who.key))
        if spec is None or name in self.waits:
            return
        self._end([span for span in self._open if span.caller == caller and span.hold is None])
        counts = until - since > self._orders.after and spec.options.deadlock != "ignore"
        self.waits[name] = wait = Span(
            name,
            spec.keys.name,
            caller,
            self.world.now,
            may_raise=counts and spec.options.deadlock == "raise",
            is_sure=who.name is None
            and (record.task is None or (who.liveness is not None and who.liveness() is record.task)),
            counts=counts,
        )
        self._open[wait] = None
        for hold in session.holds.copy().values():
            held = hold.owner.decode()
            if owner_key(hold.key) == caller[1] and held not in self.holds:
                self.holds[held] = Span(held, hold.keys.name, caller, self.world.now, hold=hold)
                self._open[self.holds[held]] = None

    def returned(self, caller: Caller, beliefs: Iterable[Belief]) -> None:
        """Note that a call has returned: its waits are over, and its caller has these holds and no others."""
        kept = [belief.hold for belief in beliefs]
        self._end([span for span in self._open if span.caller == caller and span.hold not in kept])

    def left(self, hold: Hold) -> None:
        """Note that the release of a hold is called."""
        self._end([span for span in self._open if span.hold is hold])

    def _end(self, spans: list[Span]) -> None:
        for span in spans:
            del self._open[span]
            span.end = self.world.now

    # What relock says -----------------------------------------------------------------------------------------------

    def raised(self, call: Call, caller: Caller, error: DeadlockError) -> None:
        """Judge an error that has just ended a call."""
        self.world.note(call.process.name, f"is the victim of {error.cycle}")
        self.first.faults["deadlock"] += 1
        self._check_stood(call.process, error.cycle)
        waits = [self.waits[waiter] for _, waiter, _ in error.cycle if waiter in self.waits]
        own = [wait for wait in waits if wait.caller == caller and wait.lock == error.lock]
        if not own or not own[0].may_raise:
            self.first.violate(f"{call.process.name} is a victim, but its wait may not raise: {error.cycle}")
        if not all(wait.counts and wait.is_sure for wait in waits):
            self.first.violate(f"{call.process.name} is a victim where another call may end the ring: {error.cycle}")
        ring = frozenset(error.cycle)
        if ring in self.told:
            self.first.violate(f"{call.process.name} is the second victim of {error.cycle}")
        self.told.add(ring)

    def reported(self, process: Process, event: Deadlocked) -> None:
        """Judge a deadlock that a client reports."""
        self._check_stood(process, event.cycle)

    def _check_stood(self, process: Process, cycle: Cycle) -> None:
        """Check that there was a moment at which each caller of a ring waited, and was inside its hold."""
        waits = [self.waits.get(waiter) for _, waiter, _ in cycle]
        holds = [self.holds.get(holder) for _, _, holder in cycle]
        following = [*waits[1:], waits[0]]
        found = [
            (wait, hold)
            for (lock, *names), wait, hold, other in zip(cycle, waits, holds, following, strict=True)
            if wait and hold and other and hold.caller == other.caller
            if wait.lock == hold.lock == lock and not _are_readers(*names)
        ]
        spans = [span for pair in found for span in pair]
        stood = len(found) == len(cycle) and max(span.begin for span in spans) <= min(span.end for span in spans)
        if not stood:
            self.first.violate(f"{process.name} found a deadlock that was none: {cycle}")

    # What stands ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that no ring stands for long, when all is well; one of a single client's callers is found at once."""
        latest = self.world.now - self._orders.after - FOUND_SECONDS
        if self.first.calm_at <= latest:
            self._check_ring(self._sure(latest))
        if self.first.calm_at <= self.world.now - AT_ONCE_SECONDS:
            waits = self._sure(self.world.now - AT_ONCE_SECONDS)
            for process in dict.fromkeys(wait.caller[0] for wait in waits):
                self._check_ring([wait for wait in waits if wait.caller[0] is process])

    def _sure(self, latest: float) -> list[Span]:
        """Return the waits that began by then, and that relock promises to end if they are part of a ring."""
        waits = [wait for wait in self._open if wait.hold is None and wait.begin <= latest]
        return [wait for wait in waits if wait.may_raise and wait.is_sure and not wait.caller[0].is_dead]

    def _check_ring(self, waits: list[Span]) -> None:
        """Check that none of these waits is part of a ring of them."""
        following = {wait: set(self._next(wait, waits)) for wait in waits}
        while ends := [wait for wait, others in following.items() if not others & following.keys()]:
            for wait in ends:
                del following[wait]
        if following:
            names = sorted(wait.name for wait in following)
            self.first.violate(f"these wait for each other, and nobody has found it: {names}")
            self._end(list(following))

    def _next(self, wait: Span, waits: list[Span]) -> Iterator[Span]:
        """Yield those of these `waits` whose callers have what `wait` waits for."""
        for span in self._open:
            left = span.hold.remaining(span.caller[0].local()) if span.hold is not None else 0.0
            if left > 0 and span.lock == wait.lock and not _are_readers(wait.name, span.name):
                yield from [other for other in waits if other.caller == span.caller]


def _are_readers(*names: str) -> bool:
    return all(is_reader(name.encode()) for name in names)


@define
class OrdersReferee(SeveralReferee, ReadWriteReferee):
    """Referee of one of several locks that callers take in any order, also as readers."""

    rings: Rings = field(init=False)

    def __attrs_post_init__(self) -> None:
        Referee.__attrs_post_init__(self)  # Each master tells one referee only of its holds, and here are several

    def meet(self, process: Process, session: Session) -> None:
        """Add a client to those that are judged."""
        super().meet(process, session)
        self.rings.meet(process, session)

    def told(self, process: Process, event: object) -> None:
        """Judge an event of a client."""
        super().told(process, event)
        if isinstance(event, Deadlocked):
            self.rings.reported(process, event)

    def _check_loss(self, belief: Belief) -> None:
        """Judge a hold that its owner does not believe in; one that waits for long learns late of an early loss."""
        hold = belief.hold
        if hold.loss is None or belief.process.true(hold.granted_at) + hold.loss.held_for >= self.calm_at:
            super()._check_loss(belief)

    def leaves(self, belief: Belief) -> None:
        """Note that a holder is about to release its last level."""
        super().leaves(belief)
        self.rings.left(belief.hold)
