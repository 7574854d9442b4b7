"""The driver for threads: one session of a client in one process.

A session carries out what flows ask for, and keeps the book of holds. Nothing on the way of an acquire or a release
takes a lock of Python's: an interrupt may strike between any two instructions, also between taking a lock and the
``try`` that would let it go. The book is a dict, whose single operations are atomic; a link is taken out of a deque
and put back as the last step. What an interrupted call may have left is known to its `Claim`, from before the first
byte is sent, and is undone in the background.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

from attrs import define, evolve

from relock._core.clocks import Step
from relock._core.effects import Answer, Ask, Failure, Reply, Undo
from relock._core.flows import inspect as inspect_flows
from relock._core.flows import release as release_flows
from relock._core.flows.extend import extend as extend_flow
from relock._core.flows.extend import needs_healing
from relock._core.hold import FORGOTTEN, Hold
from relock._core.quorum import (
    NEVER,
    Granted,
    NoQuorum,
    Outcome,
    Refused,
    count_status,
    is_status,
    may_be_granted,
    may_keep_anything,
)
from relock._core.terms import Terms
from relock._core.waiting import Wait, acquire
from relock._errors import (
    ClientClosedError,
    ConfigurationError,
    LockLostError,
    NotOwnedError,
    RelockError,
)
from relock._events import (
    Event,
    Lost,
    MasterBack,
    MasterDown,
    MasterWithoutVote,
    NotGranted,
    Released,
    ReleaseUnconfirmed,
)
from relock._events import Granted as GrantedEvent
from relock._keys import LockKeys
from relock._options import ClientOptions, LockOptions, default_client_name
from relock._owner import OwnerKey, Who, may_nest, new_uuid, readable, still_inside, taker_of
from relock._runtime.background import janitor as tasks
from relock._runtime.background.janitor import Janitor
from relock._runtime.background.telling import Teller, warn_at_once, warn_caller
from relock._runtime.background.watchdog import Watchdog
from relock._runtime.machine import THREADS
from relock._runtime.masters.cluster import make_masters
from relock._runtime.masters.links import NAMELESS
from relock._runtime.masters.master import Master, MasterListener, Opener
from relock._runtime.net.node import Node
from relock._runtime.platform import Platform
from relock._runtime.service import Service
from relock._runtime.session.claims import Claim, Gates, HoldKey
from relock._runtime.session.driver import Driver
from relock._runtime.session.loops import inside_already, text_of_wait
from relock._runtime.wakeups.hub import Hub, Waiter

logger = logging.getLogger(__name__)
event_logger = logging.getLogger("relock.events")

FOREVER = float("inf")
JOIN_SECONDS = 2.0
HEIRS_SECONDS = 0.5  # for so long, a client that is closed waits for those who were given a lock at that moment
HEIRS_LOOK_SECONDS = 0.001  # between two looks whether they have given it back
IN_LINE_SECONDS = 1.0  # for so long after a wait, the next acquire is likely to wait as well
CONNECTING_SECONDS_MIN = 0.005  # before a master is asked again that was being connected; then twice as long
UNSAID_MAX = 100  # warnings that wait for a caller
SETTLE_SECONDS = 0.5  # for so long, a client that is closed waits for the log
TOLD_MAX = 1000  # lost holds that are kept after their owners have left them, for `Lock.lost`


@define(eq=False, repr=False)
class Counters:
    """Counts of a session. Each is changed by single statements that CPython does not interrupt."""

    grants: int = 0
    refusals: int = 0
    waits: int = 0
    renewals: int = 0
    losses: int = 0


class Session(Driver, MasterListener):
    """All that a client has in one process: connections, threads, holds. A forked child makes a new one."""

    client_id: str
    closed: bool
    connection_name: str
    counters: Counters
    events: Teller
    hub: Hub
    janitor: Janitor
    losses: Teller
    node_timeout: float
    prefix: str
    unsaid: deque[str]
    watchdog: Watchdog

    def __init__(self, nodes: Sequence[Node], options: ClientOptions, platform: Platform = THREADS) -> None:
        super().__init__(make_masters(nodes, options, platform, self), platform)
        self.options = options
        self.prefix = options.prefix
        self.client_id = f"{readable(options.client_name or default_client_name())}-{platform.token(8)}"
        self.connection_name = f"relock:{self.client_id}"
        self._owner_head = f"{self.client_id}:".encode()
        if len(self.masters) > 1:
            for master in self.masters:
                master.opener = Opener(master)
        self.node_timeout = options.node_timeout_for(options.ttl)
        self.holds: dict[HoldKey, Hold] = {}
        self.counters = Counters()
        self.hub = Hub(self.client_id, options.prefix, self.masters, platform, self)
        self.janitor = Janitor(self)
        self.watchdog = Watchdog(self)
        self.losses = Teller(platform, "relock-losses")
        self.events = Teller(platform, "relock-events")
        self.unsaid = deque(maxlen=UNSAID_MAX)  # what callers are to be warned of
        self.steps: deque[Step] = deque(maxlen=64)
        self._may_be_handed = True
        self.closed = False
        self._closing = False  # closed, but what is handed to the janitor now is still done
        self._is_half_closed = False  # an interrupt came before its end
        self._waited_at = NEVER
        self._has_warned_of_loops = False
        self._gates = Gates(platform)

    # What the driver leaves to the session ------------------------------------------------------------------------

    def waits(self, keys: LockKeys) -> None:
        """A flow begins to wait for the lock of `keys`."""
        self.counters.waits += 1
        self._waited_at = self.clock()
        self._warn_if_a_loop_waits(keys.name)

    def _warn_if_a_loop_waits(self, name: str) -> None:
        """Says once that a wait for the lock `name`, which is about to begin, blocks the caller's event loop."""
        if not self._has_warned_of_loops and self.platform.task() is not None:
            self._has_warned_of_loops = True
            text = text_of_wait(name)
            self.platform.log.warning(logger, text)
            warn_at_once(text)

    def queued(self, lease_end: float) -> None:
        """A waiter has a ticket, so signs of life are due; the next one at `lease_end`, unless it comes before."""
        self.janitor.ensure_tending(lease_end)

    def renewed(self) -> None:
        """A renewal was confirmed by a quorum."""
        self.counters.renewals += 1

    def undo(self, keys: LockKeys, owner: bytes, token: int, ttl: float, void_at: float) -> None:
        """Has the janitor end whatever `owner` may have on any master."""
        if not self.closed or self._closing:
            self.janitor.hand(self._undo_task(keys, owner, token, ttl, void_at))

    def _undo_task(self, keys: LockKeys, owner: bytes, token: int, ttl: float, void_at: float) -> tasks.Undo:
        return tasks.Undo(keys, owner, token, ttl, void_at, max(void_at, self.clock()) + ttl)

    def undo_attempt(self, undo: Undo) -> None:
        """Has the janitor carry out what a flow asks to be undone."""
        if not self.closed or self._closing:
            answers = undo.answers
            task = self._undo_task(undo.keys, undo.owner, 0, undo.ttl, undo.until)
            task = task._replace(stays=undo.stays, ticket=undo.ticket or 0)
            if answers is None:
                self.janitor.hand(task)
            else:
                is_left = partial(may_be_granted, answers)
                if not undo.stays:
                    is_left = partial(may_keep_anything, answers, self._masters_clocks())
                self.janitor.look_later(tasks.Doubt(is_left, answers, undo.until, lambda: task))

    def _masters_clocks(self) -> list[float]:
        """What the masters' clocks show now (us), on the early side."""
        now = self.clock()
        return [master.offset.earliest(now) * 1e6 for master in self.masters]

    def check_open(self) -> None:
        """Raises `ClientClosedError` once the client was closed."""
        if self.closed:
            raise ClientClosedError("the client is closed: make a new one")

    def sweep(self, now: float) -> float:
        """Closes connections that nobody has needed for long; returns when there may be more."""
        return min(master.sweep(now) for master in self.masters)

    def sweep_by(self, moment: float) -> None:
        """See `relock._runtime.masters.master.MasterListener`."""
        self.watchdog.look_by(moment)

    # The book of holds ----------------------------------------------------------------------------------------------

    def hold_of(self, name: str, key: OwnerKey) -> Hold | None:
        """The caller's hold, or its latest one if that was lost; None without either."""
        return self.holds.get((name, key))

    def local_holds(self, name: str) -> list[Hold]:
        """The holds of `name` that callers of this client have, whoever they are."""
        return [hold for (held, _), hold in self.holds.copy().items() if held == name and hold.loss is None]

    def all_holds(self) -> list[Hold]:
        """Every hold of this client, and the lost ones whose owners have not noticed yet."""
        told = []
        for key, hold in self.holds.copy().items():
            if hold.loss is not None and hold.thread is not None and hold.thread() is None:
                self.holds.pop(key, None)  # nobody is left to be told
            elif hold.loss is not None and hold.count == 0:
                told.append((key, hold))
        for key, hold in told[:-TOLD_MAX]:
            if self.holds.get(key) is hold:  # else its owner has another one by now
                self.holds.pop(key, None)
        return list(self.holds.copy().values())

    def is_current(self, hold: Hold) -> bool:
        """Whether `hold` is held still: neither released nor lost."""
        return hold.loss is None and self.holds.get((hold.keys.name, hold.key)) is hold

    def check_valid(self, hold: Hold) -> None:
        """Raises `LockLostError` if `hold` is lost, saying so where nobody has yet."""
        now = self.clock()
        if hold.loss is None:
            reason = hold.reason_for_loss(now)
            if reason is None:
                return
            self.lose(hold, reason)
        raise lost_error(hold)

    def lose(self, hold: Hold, reason: str) -> None:
        """The hold is over. The first to find it says so: to its locks' callbacks, the client's, and the log."""
        if not self.is_current(hold):
            return
        now = self.clock()
        loss = hold.lose(reason, now)
        if loss is None:
            return
        self.counters.losses += 1
        # Also where the masters have forgotten it: a minority may have it still, or get it yet.
        self.undo(hold.keys, hold.owner, hold.token, hold.ttl, max(now, hold.late_until))
        for callback in hold.callbacks:
            self.losses.hand(callback, loss)
        if self.options.on_lost is not None:
            self.losses.hand(self.options.on_lost, loss)
        self.emit(Lost(loss.lock, reason))
        text = "lock %r was lost after %.3f s: %s"
        self.platform.log.warning(logger, text, loss.lock, loss.held_for, reason)

    def emit(self, event: Event) -> None:
        """Tells an event to the logger ``relock.events`` and to the client's callback."""
        is_ordinary = isinstance(event, _ORDINARY_EVENTS)
        if self.options.on_event is not None:
            self.events.hand(self.options.on_event, event, is_ordinary=is_ordinary)
        self.platform.log.write(event_logger, logging.DEBUG if is_ordinary else logging.WARNING, "%s", event)

    def warn(self, text: str) -> None:
        """See `relock._runtime.masters.master.MasterListener`; the call that found it raises it, when it has done."""
        if any(service.is_caller() for service in self._services()):
            self.platform.log.warn(text)
        else:
            self.unsaid.append(text)

    def _services(self) -> Iterator[Service]:
        """What has threads that work, and must not be kept from it."""
        yield from (self.watchdog, self.janitor, *self.hub.subscriptions)
        yield from (master.opener for master in self.masters if master.opener is not None)

    def say_warnings(self, stacklevel: int = 3, *, beside: BaseException | None = None) -> None:
        """Warns a caller, whose call has done its work, of what it has found; see `telling.warn_caller`.

        Args:
            stacklevel: as for `warnings.warn`, where this is the second.
            beside: the error that the call ends with.
        """
        if beside is None or isinstance(beside, RelockError):  # an interrupt is in a hurry
            warn_caller(self.unsaid, stacklevel + 1, beside)

    # Acquire --------------------------------------------------------------------------------------------------------

    def acquire(self, claim: Claim, terms: Terms, who: Who, until: float, *, count: int = 1) -> Outcome | None:
        """One more level for the caller: a nested one on its hold, or an outermost one with `count` levels.

        Returns None when the caller has it now, else what the last look found.

        Raises:
            LockLostError: the caller's hold was lost and it has not left every level yet.
            RuntimeError: another task of the caller's event loop is inside.
        """
        key = (terms.keys.name, who.key)
        if who.name is not None:
            came_at = self.clock()
            if not self._enter_gate(claim, terms, key, until):
                return self._turned_away(terms, came_at)
        hold = self.holds.get(key)
        if hold is not None and hold.count > 0:
            self._nest(claim, hold, terms.options, count)
            outcome = None
        else:
            outcome = self._take(claim, terms, who, until, count)
        if claim.gate is not None:
            claim.over = (self.holds.get(key) if outcome is None else None), count
            self.leave_gate(claim)
        return outcome

    def _enter_gate(self, claim: Claim, terms: Terms, key: HoldKey, until: float) -> bool:
        """Lets one thread of an ``owner=`` in at a time; where that owner has the lock, it takes but a moment."""
        hold = self.holds.get(key)
        if hold is not None and hold.count > 0:
            until = max(until, self.clock() + terms.node_timeout)
        elif not self._has_warned_of_loops and until > self.clock() and self.platform.task() is not None:
            if self._gates.enter(claim, key, NEVER):
                return True
            self._warn_if_a_loop_waits(terms.keys.name)
        return self._gates.enter(claim, key, until)

    def _turned_away(self, terms: Terms, came_at: float) -> Outcome:
        """What a caller finds that was kept waiting by another thread of its own owner: the lock is not to be had."""
        answers = self.run(inspect_flows.look(terms, self.clock))
        info = inspect_flows.agree(terms.keys.name, answers)
        if info is None:
            failures = tuple(answer for answer in answers if isinstance(answer, Failure))
            return NoQuorum(failures, len(answers) - len(failures), None)
        self._tell_refusal(terms, came_at)
        return Refused(info.owner, len(info.queue), info.ttl, None, undecided=False)

    def _take(self, claim: Claim, terms: Terms, who: Who, until: float, count: int) -> Outcome | None:
        started_at = self.clock()
        waiter = self._owner_head + new_uuid(self.platform.token(16), who.name).encode()
        if count == 1 and self._may_be_handed:
            waiter += terms.wording.mark  # a releaser gives one level
        owners = [waiter]
        claim.owners, claim.terms = owners, terms
        in_line = started_at - self._waited_at < IN_LINE_SECONDS
        wait = Wait(terms, waiter, count, until, self.clock, self.platform.chance, owners, in_line)
        outcome = self.run(acquire(wait))
        if self._closing:
            self.check_open()  # what it was granted is given back still, and nobody could do so later
        if outcome.__class__ is Granted:
            hold = self.holds[terms.keys.name, who.key] = Hold(terms, owners[-1], who, outcome, count)
            running = self.platform.task() if who.name is None else None
            if running is not None:
                hold.taker = taker_of(running, 0)
            if self.steps:
                self._count_steps(hold)
            self.hub.forget(waiter, served=hold)
            self.watchdog.watch(hold)
            self.counters.grants += 1
            if self.is_observed:
                self.emit(GrantedEvent(terms.keys.name, self.clock() - started_at, outcome.token))
            return None
        self.hub.forget(waiter)
        claim.terms = None  # the flow has left nothing; the error that may follow is no interrupt
        if isinstance(outcome, Refused):
            self._tell_refusal(terms, started_at)
        return outcome  # type: ignore[no-any-return]

    def _tell_refusal(self, terms: Terms, came_at: float) -> None:
        """Somebody else has the lock, and who came at `came_at` has given up."""
        self.counters.refusals += 1
        if self.is_observed:
            self.emit(NotGranted(terms.keys.name, self.clock() - came_at))

    def _count_steps(self, hold: Hold) -> None:
        """Shortens the leases of a new hold by what was seen of the masters' clocks before it was in the book."""
        for step in self.steps.copy():
            if step.seconds > 0 and step.seen_at > hold.granted_at:
                hold.shift(step)

    def _note_task(self, hold: Hold, running: object | None) -> None:
        """Lets what the caller's event loop runs in on a level of the thread's hold, unless another task is inside.

        Raises:
            RuntimeError: another one is.
        """
        taker = still_inside(hold.taker, hold.count)
        if not may_nest(taker, running):
            raise inside_already(hold.keys.name, taker, running)
        hold.taker = taker or taker_of(running, hold.count)

    def _nest(self, claim: Claim, hold: Hold, options: LockOptions, levels: int) -> None:
        self.check_valid(hold)
        if hold.thread is not None:  # else it is an owner's: tasks that name the same one share its hold
            running = self.platform.task()
            if running is not None or hold.taker is not None:
                self._note_task(hold, running)
        claim.count, claim.hold = hold.count, hold
        if options.ttl > hold.ttl:
            hold.ask_for(options.ttl)
            self.run(extend_flow((hold,), self.clock, self.node_timeout))
        count = hold.count + levels
        written = self.closed or self._write_count(hold, count)
        self.check_valid(hold)
        hold.count = count
        if not written:
            self.settle(hold)
        if options.on_lost is not None and options.on_lost not in hold.callbacks:
            hold.callbacks.append(options.on_lost)

    def _write_count(self, hold: Hold, count: int) -> bool:
        """Writes the count to the masters; returns whether all of them have it, or are just about to say so.

        What these say is looked at later: a request to one that had not been heard of for long may have been void.
        """
        hold.wanted = count  # before it is sent: if the janitor is writing another one just now, it writes again
        longest = min(self.node_timeout, hold.terms.node_timeout)
        answers = self.run_unclosed(release_flows.write_count(hold, count, self.clock, longest))
        if any(isinstance(answer[0], Failure) and answer[0].awaited for answer in answers):
            is_left = partial(release_flows.may_be_uncounted, answers)
            until = self.clock() + self.node_timeout
            self.janitor.look_later(tasks.Doubt(is_left, answers, until, partial(tasks.Settle, hold)))
        said = [answer for answer in answers if not (isinstance(answer[0], Failure) and answer[0].awaited)]
        return not release_flows.may_be_uncounted(said)

    def settle(self, hold: Hold) -> None:
        """Has the janitor write the count until every master has it, and no other count can arrive late any more."""
        hold.counts_until = self.clock() + self.node_timeout
        if not hold.settling:
            hold.settling = True
            self.janitor.hand(tasks.Settle(hold))

    # Release --------------------------------------------------------------------------------------------------------

    def release(self, claim: Claim, name: str, who: Who, *, levels: int = 1) -> None:
        """Leaves `levels` levels (0: all) of the caller's hold.

        Raises:
            NotOwnedError: the caller holds nothing.
            LockLostError: the hold was lost before.
        """
        hold = self.holds.get((name, who.key))
        if hold is None or hold.count == 0:
            raise not_owned(name)
        if who.name is not None:
            self._gates.enter(claim, (name, who.key), FOREVER)
            if hold.count == 0:  # another thread of this owner was faster
                raise not_owned(name)
        left = hold.count - levels if levels else 0
        claim.count, claim.hold = left, hold
        if hold.loss is not None or self.clock() >= hold.deadline:
            self._check_before_release(hold, left)
        if left:
            written = self.closed or self._write_count(hold, left)
            self._check_before_release(hold, left)
            hold.count = left
            if not written:
                self.settle(hold)
        else:
            self._end(hold)
        if claim.gate is not None:
            claim.over = None, 0
            self.leave_gate(claim)

    def _check_before_release(self, hold: Hold, left: int) -> None:
        try:
            self.check_valid(hold)
        except LockLostError:
            hold.count = left
            if not left:
                self._end_stand_in(hold)
            raise

    def _end(self, hold: Hold) -> None:
        """The last level: the hold ends here and now, and then on the masters."""
        self.holds.pop((hold.keys.name, hold.key), None)
        if self.closed:
            hold.count = 0
            return
        answers = self.run_unclosed(release_flows.end(hold, self.clock() + self.node_timeout))
        released = count_status(answers, b"released")
        if released == len(answers) and not hold.healed:
            hold.count = 0
            if self.is_observed:
                self.emit(Released(hold.keys.name, self.clock() - hold.granted_at))
            return
        self._end_elsewhere(hold, answers, released)

    def _end_elsewhere(self, hold: Hold, answers: Sequence[Answer], released: int) -> None:
        """What is left to do where not every master has confirmed a release."""
        if released < self.quorum and count_status(answers, b"absent") >= self.quorum:
            self.holds[hold.keys.name, hold.key] = hold  # a lost hold stays in the book until its owner knows
            self.lose(hold, FORGOTTEN)
            hold.count = 0
            raise lost_error(hold)
        hold.count = 0
        slow = sum(isinstance(answer[0], Failure) and answer[0].awaited for answer in answers)
        if slow and released + slow == len(answers) and not hold.healed:
            undo = partial(self._undo_task, hold.keys, hold.owner, hold.token, hold.ttl, hold.late_until)
            is_left = partial(hold.may_be_left, answers)
            self.janitor.look_later(tasks.Doubt(is_left, answers, hold.late_until, undo))
        elif hold.may_be_left(answers):
            self.undo(hold.keys, hold.owner, hold.token, hold.ttl, max(hold.late_until, self.clock()))
        if released < self.quorum:
            self.emit(ReleaseUnconfirmed(hold.keys.name, hold.remaining(self.clock())))
        elif self.is_observed:
            self.emit(Released(hold.keys.name, self.clock() - hold.granted_at))

    @property
    def is_observed(self) -> bool:
        """Whether anybody wants to hear of ordinary events."""
        return self.options.on_event is not None or event_logger.isEnabledFor(logging.DEBUG)

    def abandon(self, claim: Claim) -> None:
        """An interrupt has left a call that made `claim`: what it may have left is ended in the background.

        It comes after an error of the call's own, too, and then finds nothing to do. Other threads of its ``owner=``
        are let in only then: what they do with the hold is to stay.
        """
        try:
            if claim.over is not None:
                claim.terms = claim.hold = None
                self._claim_back(claim, *claim.over)
            self._take_back(claim)
        finally:
            if claim.terms is not None or claim.hold is not None:
                self.leave_gate(claim)
            self._gates.leave(claim)  # it may not even have come in

    def _take_back(self, claim: Claim) -> None:
        hold, terms = claim.hold, claim.terms
        if terms is not None:
            owners = claim.owners[:1] + claim.owners[1:][-2:]  # of those between, nothing is left
            self.hub.forget(owners[0])
            self._forget_owner(terms.keys.name, owners)
            for owner in owners:
                self.undo(terms.keys, owner, 0, terms.ttl, self.clock() + terms.node_timeout)
        elif hold is not None:
            hold.count = hold.wanted = claim.count
            if claim.count:
                hold.settling = False  # the interrupt may have kept the janitor from hearing of it; twice does no harm
                self.settle(hold)
            elif hold.loss is None:
                self.holds.pop((hold.keys.name, hold.key), None)
                self.undo(hold.keys, hold.owner, hold.token, hold.ttl, max(hold.late_until, self.clock()))
            else:
                self._end_stand_in(hold)

    def _claim_back(self, claim: Claim, hold: Hold | None, levels: int) -> None:
        """`claim` is to give back `levels` of `hold` (0: all), as they are by now: its owner's other threads are kept
        out meanwhile, for they may have changed them.
        """
        if hold is None:
            return
        key = hold.keys.name, hold.key
        if hold.thread is None:
            self._gates.leave(claim)  # the interrupt may have struck when it was in
            self._gates.enter(claim, key, self.clock() + self.node_timeout)
        if self.holds.get(key) is hold and hold.count > 0:
            claim.hold, claim.count = hold, max(0, hold.count - levels) if levels else 0

    def give_up(self, claim: Claim, name: str, who: Who, levels: int) -> None:
        """An interrupt has left a release: what it was to give back is given back, in the background.

        Whoever leaves a ``with`` block by an interrupt in its last step does not hold the lock any more.
        """
        try:
            if claim.hold is None and claim.over is None:
                self._claim_back(claim, self.holds.get((name, who.key)), levels)
        finally:
            self.abandon(claim)

    def _forget_owner(self, name: str, owners: Sequence[bytes]) -> None:
        """Nobody has what was granted to `owners`."""
        for key, hold in self.holds.copy().items():
            if key[0] == name and hold.owner in owners:
                self.holds.pop(key, None)

    def leave_gate(self, claim: Claim) -> None:
        """Lets the next thread of an ``owner=`` in, if this one is in. The gate goes with the owner's hold.

        Not before: the last release of a hold may yet put it back into the book, as one that was lost.
        """
        if claim.gate is None:
            return
        if claim.gate_key is not None:
            hold = self.holds.get(claim.gate_key)
            if hold is None or hold.count == 0:
                self._gates.remove(claim.gate_key)
        self._gates.leave(claim)

    # A condition's wait ---------------------------------------------------------------------------------------------

    def take_again(self, claim: Claim, terms: Terms, who: Who, hold: Hold, count: int) -> Outcome | None:
        """Takes `count` levels for the owner of `hold`, which a wait has given up; waits until the masters are back.

        If that hold was found lost, it is in the book again afterwards, with its levels, for its owner to be told.
        Another one stands in for it until they are left: what runs after the wait runs with the lock.
        """
        terms = evolve(terms, patience=FOREVER)
        if hold.loss is None:
            return self.acquire(claim, terms, who, FOREVER, count=count)
        outcome = self.acquire(claim, terms, who._replace(key=_stand_in(hold)), FOREVER)
        if outcome is None:
            self._book_waited(hold, count)
        return outcome

    def lose_waited(self, hold: Hold, count: int, error: BaseException) -> None:
        """The `count` levels of `hold` that a wait gave up are not to be had again: its owner has lost them."""
        hold.renew_at = FOREVER  # the masters have it no more
        self._book_waited(hold, count)
        self.lose(hold, f"a condition's wait gave it up, and did not take it again: {error!r}")

    def _book_waited(self, hold: Hold, count: int) -> None:
        """A hold that has ended has `count` levels again, for its owner to leave."""
        hold.count = count
        self.holds[hold.keys.name, hold.key] = hold

    def _end_stand_in(self, hold: Hold) -> None:
        """The levels of a lost hold are left: what a wait has taken in its place ends, in the background."""
        other = self.holds.pop((hold.keys.name, _stand_in(hold)), None)
        if other is not None and other.loss is None:
            self.undo(other.keys, other.owner, other.token, other.ttl, max(other.late_until, self.clock()))

    # Extend ---------------------------------------------------------------------------------------------------------

    def extend(self, hold: Hold, ttl: float | None) -> list[Failure] | None:
        """Renews `hold` now. Returns the failures where no quorum confirmed it, None when one did.

        Raises:
            LockLostError: it was lost, before or by now.
        """
        self.check_valid(hold)
        hold.ask_for(ttl or 0.0)
        answers = self._renew(hold)
        if needs_healing(hold, answers):
            self.heal((hold,))
        self.check_valid(hold)
        self.watchdog.watch(hold)
        if sum(is_status(answer, b"extended") for answer in answers) >= self.quorum:
            return None
        return [answer for answer in answers if isinstance(answer, Failure)]

    def _renew(self, hold: Hold) -> Sequence[Reply | Failure]:
        """What the masters say to a renewal of `hold`.

        They are asked again for a node timeout where a quorum lacks one that is well, and to which no connection was
        free: nobody waits for such a one as long as the others may be enough.
        """
        until, pause = self.clock() + self.node_timeout, CONNECTING_SECONDS_MIN
        while True:
            answers: Sequence[Reply | Failure] = self.run(extend_flow((hold,), self.clock, self.node_timeout))[0]
            confirmed = sum(is_status(answer, b"extended") for answer in answers)
            if confirmed >= self.quorum or not self._is_connecting(answers) or self.clock() + pause > until:
                return answers
            self.platform.sleep(pause)
            pause *= 2

    def _is_connecting(self, answers: Sequence[Reply | Failure]) -> bool:
        """Whether one of the masters could not be asked, though it is not known to be down."""
        unasked = [isinstance(answer, Failure) and not answer.sent for answer in answers]
        return any(master.down is None for master, missed in zip(self.masters, unasked, strict=True) if missed)

    def confirm(self, hold: Hold) -> float:
        """Has the masters confirm the full lease of a hold that a releaser gave; returns what then remains (s).

        A client that was closed asks nobody any more.

        Raises:
            LockLostError: it was lost by now.
        """
        if not self.closed:
            self.run_unclosed(extend_flow((hold,), self.clock, self.node_timeout))
        self.check_valid(hold)
        return hold.remaining(self.clock())

    def heal(self, holds: tuple[Hold, ...]) -> None:
        """Gives holds that a quorum has just confirmed to the masters that do not have them, in the background."""
        if holds:
            self.janitor.hand(tasks.Heal(holds, self.clock() + tasks.HEAL_SECONDS))

    # What others report ---------------------------------------------------------------------------------------------

    def pass_turn_on(self, keys: LockKeys, owner: bytes) -> None:
        """See `relock._runtime.wakeups.hub.HubListener`."""
        self.janitor.hand(tasks.PassOn(keys, owner))

    def unclaimed(self, keys: LockKeys, owner: bytes) -> None:
        """See `relock._runtime.wakeups.hub.HubListener`."""
        if not any(hold.owner == owner and hold.loss is None for hold in self.holds.copy().values()):
            self.undo(keys, owner, 0, self.options.ttl, self.clock())

    def clock_in_doubt(self, master: Master) -> None:  # noqa: ARG002
        """See `relock._runtime.masters.master.MasterListener`."""
        self.janitor.hand(tasks.Sample())

    def subscribed(self) -> None:
        """See `relock._runtime.wakeups.hub.HubListener`."""
        if self.hub.waiters:
            self.janitor.tend_now()

    def master_down(self, master: Master, why: str) -> None:
        """See `relock._runtime.masters.links.MasterListener`; what breaks while we close was closed by us."""
        if not self.closed:
            self.emit(MasterDown(None, master.address, why))

    def master_back(self, master: Master) -> None:
        """See `relock._runtime.masters.links.MasterListener`."""
        self.emit(MasterBack(None, master.address))

    def master_without_vote(self, master: Master, seconds: float) -> None:
        """See `relock._runtime.masters.links.MasterListener`."""
        why = "it restarted, failed over, was flushed or is new, or its clock stepped: it may have forgotten leases"
        self.emit(MasterWithoutVote(None, master.address, seconds, why))

    def master_moved(self, master: Master) -> None:
        """See `relock._runtime.masters.master.MasterListener`. Nobody is given a lock where a server has no name."""
        self._may_be_handed = all(one.incarnation != NAMELESS for one in self.masters)
        self.hub.subscriptions[master.index].look()

    def check_independent(self, master: Master) -> None:
        """See `relock._runtime.masters.master.MasterListener`."""
        server, is_named, _ = master.incarnation.partition(b":")
        if server == NAMELESS:
            self.hub.subscriptions[master.index].doubt()
        for other in self.masters:
            if is_named and other is not master and other.incarnation.partition(b":")[0] == server:
                raise ConfigurationError(
                    f"{master.address} and {other.address} are the same server: name each master once", option="nodes"
                )

    def larger_guard(self, found_ms: int) -> None:
        """See `relock._runtime.masters.master.MasterListener`."""
        for master in self.masters:
            master.guard_ms = max(master.guard_ms, found_ms)

    def master_stepped(self, master: Master, seconds: float, shown_us: int) -> None:
        """See `relock._runtime.masters.master.MasterListener`. Leases end by the master's clock, so earlier on ours."""
        step = Step(self.clock(), master.index, seconds, shown_us, master.offset.stepped_after)
        self.steps.append(step)  # before the look at the book: what enters it now looks here
        if seconds > 0:
            for hold in self.holds.copy().values():
                hold.shift(step)
            self.watchdog.poke()
        if len(self.masters) > 1:
            self.janitor.hand(tasks.Accuse(master, step))
        text = "the clock of %s and ours moved apart by %+.3f s at once"
        self.platform.log.warning(logger, text, master.address, seconds)

    # The end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends threads, waits and connections; leaves the holds to their leases."""
        if self.closed and not self._is_half_closed:
            return
        self._is_half_closed = False  # another thread that closes meanwhile has nothing to do
        try:
            self._close()
        except BaseException:  # an interrupt: whoever closes again begins again
            self._is_half_closed = True
            raise

    def _close(self) -> None:
        self._closing = self.closed = True
        services = (self.watchdog, self.hub, self.janitor)
        self._see_heirs_off(self._leave_queues())
        self._see_calls_off()
        self._closing = False
        for service in services:
            service.stop()
        self.hub.wake_all()
        for service in services:
            service.join(JOIN_SECONDS)
        for master in self.masters:
            if master.opener is not None:
                master.opener.stop()  # not before: the janitor may lack the connections for what it has yet to undo
            master.close()
        self.losses.stop()
        self.events.stop()
        self.platform.log.settle(SETTLE_SECONDS)

    def _leave_queues(self) -> list[Waiter]:
        """Gives up the places of all who wait here, and returns those who had none any more on some master.

        Where that fails, nobody listens for them, so nobody waits.
        """
        waiters = list(self.hub.waiters.copy().values())  # with a ticket or not: the reply may be under way
        calls = tuple(release_flows.leave_call(waiter.keys, waiter.owner) for waiter in waiters)
        answers = self.ask_shielded(Ask(calls, self.clock() + self.node_timeout)) if calls else []
        return [w for i, w in enumerate(waiters) if any(is_status(answer[i], b"absent") for answer in answers)]

    def _see_heirs_off(self, heirs: list[Waiter]) -> None:
        """Who has lost its place was given the lock, as a rule: it hears of that, finds the client closed, and gives
        it back. This waits for the message and for that, as nobody reads the one or does the other afterwards.
        """
        until = self.clock() + HEIRS_SECONDS
        while self.clock() < until and any(waiter.owner in self.hub.waiters for waiter in heirs):
            self.platform.sleep(HEIRS_LOOK_SECONDS)

    def _see_calls_off(self) -> None:
        """Waits for the answers that are under way: who is cut off from one may have the lock, and not know it."""
        until = self.clock() + self.node_timeout
        while self.clock() < until and any(master.is_in_use for master in self.masters):
            self.platform.sleep(HEIRS_LOOK_SECONDS)

    def abandon_in_child(self) -> None:
        """In a forked child: closes the copies of the parent's sockets, without a word to any server."""
        self.closed = True
        self.hub.abandon()
        for master in self.masters:
            master.abandon()


_ORDINARY_EVENTS = (GrantedEvent, NotGranted, Released, MasterBack)


def _stand_in(hold: Hold) -> OwnerKey:
    """Under which key the hold is kept that stands in for a lost one."""
    return "stand-in", hold.key


def not_owned(name: str) -> NotOwnedError:
    """The error for a caller that holds nothing."""
    return NotOwnedError(f"the caller does not hold {name!r}: only the thread (or owner=) that has it can", lock=name)


def lost_error(hold: Hold) -> LockLostError:
    """The error for a hold that was lost."""
    loss = hold.loss
    if loss is None:
        raise AssertionError("only a lost hold has a loss")
    return LockLostError(
        f"the hold of {loss.lock!r} with token {loss.token} was lost: {loss.reason}; stop what it protected",
        lock=loss.lock,
        token=loss.token,
        reason=loss.reason,
    )
