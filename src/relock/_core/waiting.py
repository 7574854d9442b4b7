"""Wait loop of all waiters.

Every acquire that waits does so here, except for a first sleep in the queue of a lone master, which `judge_queued`
returns. The loop asks for the lock; if the lock is not granted, it sleeps until woken or until another look makes
sense. These moments bound a sleep:

* the end of the caller's timeout;
* the end of the holder's lease, for the head of the queue: nobody publishes when a lease runs out;
* a back-off, while too few masters answer, or while wake-ups can't be received;
* `LOOK_AGAIN_SECONDS_MAX`, against mistakes in all of this. The driver's heartbeat comes much more often: it tells a
  waiter of its turn even if every message was lost.

There are two names. The *waiter* stands in the queue, under one name for the whole wait. The *owner* is the name that
gets the lock. On a lone master they are the same. Among several masters, an attempt may end with a minority of grants.
The wait gives these back at once, and the next attempt asks under a new owner's name. So neither a request nor an undo
of the attempt before can touch what the next one gets, however late it arrives. A hold that a releaser gives has a name
of its own, too, and `relock._core.flows.accept` takes it over.

The place in the queue is agreed by Skeen's algorithm (Birman and Joseph, "Reliable Communication in the Presence of
Failures", 1987). Each master proposes a ticket. The largest that a quorum proposed is the ticket, and is written to all
masters. The waiter has its place only then: so a waiter that queues later finds that ticket on at least one master, and
gets a larger one. Usually one round is enough for both steps. The client proposes the same ticket to all, and each
master writes that ticket at once, or its own if its own is larger. The proposed ticket is agreed if a quorum has
written it, and no master that has answered has another one or has granted the lock.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from attrs import Factory, define, field

from relock._core.call_record import NO_CALL, CallRecord
from relock._core.clocks import propose_ticket
from relock._core.effects import Answer, Clock, Effect, Failure, Handed, Leave, Listen, Park, Undo
from relock._core.flows.accept import accept
from relock._core.flows.attempt import HEARTBEAT_SECONDS, First, attempt, enqueue_call, take_call
from relock._core.flows.release import end_wait, give_back
from relock._core.lock_spec import TICKET_AT_ONCE, TICKET_PROPOSAL, LockSpec
from relock._core.patience import Patience, pause_behind
from relock._core.quorum import NEVER, Grant, NoQuorum, Outcome, Refused, count_status, is_status
from relock._core.slots import free_slots
from relock._core.turns import TICKETS_KEPT
from relock._keys import LockKeys
from relock._owner import attempt_name, waiter_name
from relock._scripts import Call

SHORT_LOOK_PART = 0.9  # a look with less of the node timeout than this shows no master silent
SLOTS_TRIED_MAX = 8  # before the next sleep; each fails only if another caller has just taken that slot


class Wait(NamedTuple):
    """One wait for one lock.

    Attributes:
        waiter: ``<client>:<uuid>`` of the wait, and of its first attempt.
        until: when the caller's timeout ends, on the local clock; if that is over, there is a single look.
        value: what the first attempt has the masters keep for the owner: the hold count, or the slot of a permit.
        jitter: returns a random number from 0 to 1.
        owners: every name under which the lock has been asked for, the waiter's first; filled before anything is sent.
        in_line: the lock is likely to be taken: subscribe first, so that the first look takes a place at once.
        propose: returns a time (us) just above the known clocks of several masters: a fencing token for all of them to
            give, and the base of a ticket; 0 for none.
        is_crowded: returns whether a request would have to wait for other callers' requests.
        missed: returns how many turns a waiter has missed.
        record: the notes of the call, which may get an error that ends the wait.
    """

    spec: LockSpec
    waiter: bytes
    value: int | bytes
    until: float
    clock: Clock
    jitter: Callable[[], float]
    owners: list[bytes]
    in_line: bool = False
    propose: Callable[[], int] = int  # 0: no ticket
    is_crowded: Callable[[], bool] = bool  # False: never crowded
    missed: Callable[[bytes], int] = lambda _waiter: 0
    record: CallRecord = NO_CALL

    def take_call(self, owner: bytes, value: int | bytes) -> Call:
        """Return the call that takes the lock for `owner` if the lock is free and no other waiter's turn has come."""
        return take_call(self.spec, owner, value, self.propose())


def first_value(spec: LockSpec, jitter: Callable[[], float]) -> int | bytes:
    """Return what the first attempt asks for: one level, or any slot; if it must name one, `jitter` chooses."""
    return spec.templates.usual if spec.slots is None else min(int(jitter() * spec.slots), spec.slots - 1)


def judge_queued(keys: LockKeys, waiter: bytes, answers: Sequence[Answer], until: float, now: float) -> Park | None:
    """Return the first sleep of a waiter that a lone master has queued; None if something else must be done first.

    `ask_until_granted` would sleep in the same way, and takes over when the sleep has ended.
    """
    reply: Any = answers[0][0]
    if reply.__class__ is not list or reply[0] != b"queued" or now >= until:
        return None
    left_ms, ahead, holder, ticket = reply[2:6]
    left = left_ms / 1000
    if ahead == 0 and left >= 0 and (not holder or waiter_name(holder) == waiter):
        return None
    look_at = now + pause_behind(ahead, left)
    # `tuple.__new__` takes all fields of a Park, and avoids the class's `__new__`, which is Python code.
    fields = keys, waiter, ticket, _lease_end(left, now), look_at if look_at < until else until
    return tuple.__new__(Park, fields)


def ask_until_granted(
    wait: Wait, first: First | None = None, grants: Sequence[Handed] | None = None
) -> Generator[Effect, Any, Outcome]:
    """Ask for the lock until it is granted, or until the timeout or the patience is over; then leave nothing behind.

    A grant belongs to the last name in the wait's `owners`.

    Args:
        wait: the wait.
        first: the answers to a first look that the caller has made itself.
        grants: what ended the sleep of a caller that has also slept in the queue itself.
    """
    spec, clock = wait.spec, wait.clock
    now = clock()
    limit = max(wait.until, now) + spec.node_timeout
    if wait.in_line and (first is not None or now < wait.until):
        return (yield from _Waiting(wait, limit).begin_in_line(first, grants))
    outcome, answers, _ = yield from attempt(spec, wait.take_call(wait.waiter, wait.value), clock, limit, first)
    if outcome.__class__ is Grant:
        return outcome
    waiting = _Waiting(wait, limit).run(outcome, answers)
    del first, outcome, answers  # thousands of waits may keep this frame while they sleep
    return (yield from waiting)


@define(eq=False, repr=False)
class _Waiting:
    """State of a wait that one look does not end."""

    wait: Wait
    limit: float
    listening: bool = False
    ticket: int | None = None
    # The ticket that was proposed to several masters; 0 if there is none, because their clocks are unknown.
    proposed: int = 0
    undecided: bool = False  # a lone master may have granted an attempt whose answer was lost
    # The answers to recent requests that may put the waiter into a queue, each with the request's not-after time.
    doubts: list[tuple[float, Sequence[Answer]]] = field(factory=list)
    declined: frozenset[bytes] = frozenset()  # names of holds that a releaser gave, and the waiter gave back
    unheard: bytes | None = None  # a hold that the last look showed as given to this waiter, without a message
    refusal: Refused | None = None  # the last refusal by a quorum
    asked_at: float = NEVER  # when the last look sent its last request
    missed: int = 0  # the number of missed turns at the last look
    value: int | bytes = field(default=Factory(lambda self: self.wait.value, takes_self=True))  # of the next attempt
    slots_tried: int = 0  # the number of other slots that were tried since the last sleep

    @property
    def owner(self) -> bytes:
        """Name under which the masters are asked for the lock."""
        return self.wait.owners[-1]

    def begin_in_line(self, first: First | None, grants: Sequence[Handed] | None) -> Generator[Effect, Any, Outcome]:
        """Ask for a place in the queue with the first look, if wake-ups are subscribed to; then go on as `run` does."""
        if first is None:
            yield from self._listen()
        else:
            self.listening = True  # the caller has subscribed before it asked for a place
        outcome, answers, _ = yield from attempt(self.wait.spec, self._next_call(), self.wait.clock, self.limit, first)
        return outcome if isinstance(outcome, Grant) else (yield from self.run(outcome, answers, grants))

    def _listen(self) -> Generator[Effect, Any, None]:
        """Subscribe to wake-ups; from then on the masters may be asked for a place."""
        wait, spec = self.wait, self.wait.spec
        until = min(wait.until, wait.clock() + min(spec.node_timeout, HEARTBEAT_SECONDS))  # then it looks
        self.listening = bool((yield Listen(spec.keys, wait.waiter, until)))
        if len(spec.masters) > 1:
            self.proposed = propose_ticket(wait.propose()) if self.listening else 0
            if self.proposed or self.owner == wait.waiter:
                # The attempt gets a name of its own, with the ticket in it. So an undo of the attempt keeps the place.
                self._rename()

    def _note_missed(self) -> None:
        """Drop the ticket if the waiter has missed another turn, beyond `TICKETS_KEPT`: it queues behind the others."""
        wait = self.wait
        before, self.missed = self.missed, wait.missed(wait.waiter)
        if self.missed > max(before, TICKETS_KEPT) and self.ticket is not None:
            self.ticket = None
            if len(wait.spec.masters) > 1:
                self.proposed = propose_ticket(wait.propose())
                self._rename()  # the name of an attempt contains its ticket

    def run(
        self, outcome: Outcome, answers: Sequence[Answer], grants: Sequence[Handed] | None = None
    ) -> Generator[Effect, Any, Outcome]:
        """Look again until the wait is over, as `ask_until_granted` describes."""
        wait, spec, clock = self.wait, self.wait.spec, self.wait.clock
        patience = Patience(spec.patience, wait.waiter, clock, wait.jitter)
        while not isinstance(outcome, Grant):
            if isinstance(outcome, Refused):
                self.refusal = outcome
            if outcome.undecided:
                yield from self._settle(answers)
            now = clock()
            if spec.slots is not None and self._tries_other_slot(outcome, answers, now):
                pass
            elif grants is None and (now >= wait.until or patience.is_over(outcome, now)):
                yield from self._leave(outcome)
                break
            elif not self.listening and isinstance(outcome, Refused):
                yield from self._listen()
            elif not self._note_ticket(outcome):
                if grants is None:
                    answers = ()  # thousands of waits may keep this frame while they sleep
                    grants = yield self._sleep(outcome, now, patience.pause(outcome, listening=self.listening))
                self._note_missed()
                self.slots_tried = 0
                granted = yield from self._take_over(grants, outcome)
                grants = None
                if granted is not None:
                    outcome = granted
                    break
                if not self._has_time():
                    yield from self._leave(outcome)
                    break
            outcome, answers, self.asked_at = yield from attempt(spec, self._next_call(), clock, self.limit)
        if not isinstance(outcome, Grant):
            return self._judge_end(outcome)
        if self.owner == wait.waiter:
            return outcome._replace(is_repeated=True) if self.undecided else outcome
        yield from self._clear_up()
        return outcome

    def _sleep(self, outcome: Refused | NoQuorum, now: float, pause: float) -> Park:
        """Return a sleep of at most `pause` seconds.

        Raises:
            DeadlockError: the sleep would be part of a deadlock.
        """
        wait = self.wait
        if wait.record.error is not None:
            raise wait.record.error
        lease_end = _lease_end(outcome.lease_left if isinstance(outcome, Refused) else -1.0, now)
        return Park(wait.spec.keys, wait.waiter, self.ticket, lease_end, min(wait.until, now + pause))

    def _tries_other_slot(self, outcome: Refused | NoQuorum, answers: Sequence[Answer], now: float) -> bool:
        """Choose a slot that a quorum has free; return whether to ask for it at once, because only the slot was taken.

        The first slot is a guess. A right guess gets a permit in one round trip; after a wrong one, the refusals say
        which slots are free. If the slot that was asked for is among these, it is another's turn. The number of those
        ahead does not say so, because it counts dead waiters, too.
        """
        if not isinstance(outcome, Refused) or self.slots_tried >= SLOTS_TRIED_MAX:
            return False
        free = free_slots(answers, self.wait.spec.quorum)
        if self.value in free or not free or now >= self.limit:
            return False
        self.value = free[int(self.wait.jitter() * len(free))]
        self.slots_tried += 1
        if not outcome.undecided:
            self._rename()  # a repeated request for the slot before might be granted, and count for this one
        return True

    def _has_time(self) -> bool:
        """Return whether there is time for another look.

        * After the limit there is none: giving back earlier grants took too long.
        * After the caller's timeout there is none while other callers' requests wait for the same connection. Thousands
          of callers may have the same timeout, and a last look of each would make the others late.
        """
        now = self.wait.clock()
        return now < self.wait.until or (now < self.limit and not self.wait.is_crowded())

    def _judge_end(self, outcome: Refused | NoQuorum) -> Refused | NoQuorum:
        """Return the outcome of the wait; the last refusal, if the last look lacked only the time for a quorum.

        In that case nothing is known to be wrong with the masters: this client has too much to do, or its process was
        stopped.
        """
        if self.refusal is None or isinstance(outcome, Refused):
            return outcome
        node_timeout = self.wait.spec.node_timeout
        # No wait for a master goes beyond the limit, so a client that is this late was stopped.
        was_stopped = self.wait.clock() - self.limit > node_timeout
        was_short = self.limit - self.asked_at < SHORT_LOOK_PART * node_timeout
        had_no_time = was_stopped and not outcome.permanent
        return self.refusal if had_no_time or outcome.lacked_time(was_short=was_short) else outcome

    def _clear_up(self) -> Generator[Effect, Any, None]:
        """End what may be left under the waiter's name, if the hold has another name: it would stop other waiters."""
        wait, spec, now = self.wait, self.wait.spec, self.wait.clock()
        for until, answers in self._open_doubts(now):
            yield Undo(spec.keys, wait.waiter, spec.ttl, until, answers)
        if self.undecided:
            yield Undo(spec.keys, wait.waiter, spec.ttl, now + spec.node_timeout)

    def _take_over(self, grants: Sequence[Handed], outcome: Refused | NoQuorum) -> Generator[Effect, Any, Grant | None]:
        """Accept a hold that a releaser has given; give back those of too few masters, or too late, or unannounced."""
        by_name: dict[bytes, list[Handed]] = {}
        for grant in grants:
            if grant.owner not in self.declined:
                by_name.setdefault(grant.owner, []).append(grant)
        for name in sorted(by_name, key=lambda name: len(by_name[name]), reverse=True):
            self.wait.owners.append(name)  # Note, then send
            granted = yield from accept(self.wait.spec, by_name[name], self.wait.clock, self.limit)
            if granted is not None:
                return granted
            self.wait.owners.remove(name)
            yield from self._decline(name)
        yield from self._decline_unheard(outcome)
        return None

    def _decline_unheard(self, outcome: Refused | NoQuorum) -> Generator[Effect, Any, None]:
        """Give back a hold that a releaser gave this waiter, if no message came between two looks that showed it."""
        holder = outcome.holder.encode() if isinstance(outcome, Refused) and outcome.holder else b""
        if not self._is_given(holder):
            self.unheard = None
        elif holder == self.unheard:
            yield from self._decline(holder)
        else:
            self.unheard = holder

    def _is_given(self, holder: bytes) -> bool:
        """Return whether a releaser gave this hold: it is the waiter's, and the wait never asked under its name."""
        return waiter_name(holder) == self.wait.waiter and holder not in self.wait.owners

    def _decline(self, name: bytes) -> Generator[Effect, Any, None]:
        """Give back what a releaser has given under `name`, also a grant of this name that arrives later."""
        spec = self.wait.spec
        self.declined |= {name}
        until = self._soon()
        self._doubt(until, (yield give_back(spec, name, self.ticket, until)))
        yield Undo(spec.keys, name, spec.ttl, until, keeps_place=True, ticket=self.ticket)

    def _doubt(self, until: float, answers: Sequence[Answer]) -> None:
        """Remember the answers to a request that may put the waiter into a queue until `until`."""
        if self.ticket is not None or self.proposed:
            now = self.wait.clock()
            self.doubts = [doubt for doubt in self.doubts if now < doubt[0]]
            self.doubts.append((until, answers))

    def _open_doubts(self, now: float) -> Iterator[tuple[float, Sequence[Answer]]]:
        """Return the remembered requests that a silent master may still act on."""
        return (doubt for doubt in self.doubts if now < doubt[0] and any(_is_silent(answer) for answer in doubt[1]))

    def _note_ticket(self, outcome: Refused | NoQuorum) -> bool:
        """Note the ticket that the answers agree on, if any; return whether to write it before the waiter sleeps.

        It need not be written again if a quorum has written the proposed ticket, and every master that has answered has
        it. Then no master has a smaller ticket, and the heartbeat writes this one to the others.
        """
        if self.ticket is not None or not self.listening or not isinstance(outcome, Refused):
            return False
        self.ticket = outcome.ticket
        if self.ticket is None or len(self.wait.spec.masters) == 1:
            return False
        if self.ticket == self.proposed:
            return not outcome.placed
        self._rename()  # the name of an attempt contains its ticket: the waiter may be back in the queue
        return True

    def _next_call(self) -> Call:
        wait, spec = self.wait, self.wait.spec
        if not self.listening:
            return wait.take_call(self.owner, self.value)
        ticket = self.ticket
        if ticket is None:
            ticket = TICKET_AT_ONCE if len(spec.masters) == 1 else -self.proposed or TICKET_PROPOSAL
        return enqueue_call(spec, self.owner, self.value, ticket)

    def _settle(self, answers: Sequence[Answer]) -> Generator[Effect, Any, None]:
        """Give back what a minority may have granted in an undecided attempt, before the waiter sleeps.

        A known grant is given back at once, and that of a slow master once it is known. A lone master is asked again
        under the same name instead: if it had granted the attempt, that hold is this wait's.
        """
        spec = self.wait.spec
        if len(spec.masters) == 1:
            self.undecided = True
            return
        until = self._soon()
        self._doubt(until, answers)
        undo = Undo(spec.keys, self.owner, spec.ttl, until, answers, keeps_place=True, ticket=self.ticket)
        if count_status(answers, b"granted"):
            left = yield give_back(spec, self.owner, self.ticket, until)
            self._doubt(until, left)
            undo = undo._replace(answers=None)
            if any(_is_silent(answer) for answer in (*answers, *left)) or _is_kept(answers, left):
                yield undo
        else:
            yield undo
        self._rename()

    def _soon(self) -> float:
        """Return the time until which to wait for a request that is sent now; the background undoes the rest."""
        return min(self.wait.clock() + self.wait.spec.node_timeout, self.limit)

    def _rename(self) -> None:
        """Give later attempts a new owner's name: requests still under way for the old one can't touch them."""
        owners = self.wait.owners
        owners.append(attempt_name(self.wait.waiter, len(owners), self.ticket or self.proposed or None))

    def _leave(self, outcome: Refused | NoQuorum) -> Generator[Effect, Any, None]:
        """Give up the place in the queue: at once if all masters answer in time, else in the background.

        If an earlier request may still reach a slow master on another connection, the end is sent there once more.
        """
        if not self.listening and not self.undecided:
            return
        wait, spec = self.wait, self.wait.spec
        yield Leave(wait.waiter)
        now = wait.clock()
        ended_us: list[float] | None = None
        doubts = [*self._open_doubts(now)]
        if not self._has_time():
            # The undo is sent a second time only if an earlier request may still arrive after the first.
            until = now + spec.node_timeout if self.undecided or doubts else now
            yield Undo(spec.keys, wait.waiter, spec.ttl, until)
            return
        if not isinstance(outcome, NoQuorum):
            ended_us = _moments((yield end_wait(spec, wait.waiter, self._soon())))
        if self.undecided or ended_us is None:
            yield Undo(spec.keys, wait.waiter, spec.ttl, now + spec.node_timeout)
            return
        for until, answers in doubts:
            yield Undo(spec.keys, wait.waiter, spec.ttl, until, answers, ended_us=ended_us)


def _is_silent(answer: Answer) -> bool:
    """Return whether a master has not answered, and may have received the request, or may still receive it."""
    return isinstance(answer[0], Failure) and answer[0].sent


def _moments(answers: Sequence[Answer]) -> list[float] | None:
    """Return the time (us) of each master's clock at its answer; None if any master has not answered."""
    replies: list[Any] = [answer[0] for answer in answers]
    return None if any(isinstance(reply, Failure) for reply in replies) else [reply[1] for reply in replies]


def _is_kept(answers: Sequence[Answer], left: Sequence[Answer]) -> bool:
    """Return whether a master that granted an attempt has not confirmed that the grant is given back."""
    pairs = zip(answers, left, strict=True)
    return any(is_status(granted[0], b"granted") and isinstance(heard[0], Failure) for granted, heard in pairs)


def _lease_end(lease_left: float, now: float) -> float:
    """Return the moment at which a lease with `lease_left` seconds left ends; infinity if `lease_left` is below 0."""
    return now + lease_left if lease_left >= 0 else float("inf")
