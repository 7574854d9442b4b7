"""Calls of users: to acquire, to nest, to release, and to take again after a condition's wait.

Nothing on the way of an acquire or a release takes a lock of Python's: an interrupt may strike between any two
instructions, also between taking a lock and the ``try`` that would let it go. What an interrupted call may have left
is known to its `CallRecord`, from before the first byte is sent; see `relock._core.interrupts`.

Each call is a flow (see `relock._core.effects`): it decides, and what waits is an effect that a driver carries out. The
usual step is an `Exchange`. A thread that has a lone master, or the nodes of a Cluster, asks in the call itself, if
nothing is in the way. The detour over the driver would add 1.7 % to the time of an acquire and its release.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from attrs import evolve

from relock._core.book import HoldKey, lost_error, stand_in
from relock._core.call_record import GIVE_WAY_SECONDS, CallFlow, CallRecord, Enter
from relock._core.effects import Answer, Exchange, Failure, Handed, Listen
from relock._core.flows import inspect as inspect_flows
from relock._core.flows import release as release_flows
from relock._core.flows.acquire import First
from relock._core.flows.extend import extend as extend_flow
from relock._core.hold import FOREVER, FORGOTTEN, Hold
from relock._core.host import Host, WaiterRegister
from relock._core.interrupts import Interrupted
from relock._core.lock_spec import LockSpec
from relock._core.loops import let_in
from relock._core.quorum import (
    NEVER,
    Grant,
    NoQuorum,
    Outcome,
    Refused,
    count_status,
    is_attempt_certain,
    is_count_certain,
    is_release_certain,
    is_token_safe,
    judge,
    judge_handed,
)
from relock._core.tasks import PendingCheck, Settle
from relock._core.waiting import Wait, acquire, judge_queued
from relock._errors import LockLostError
from relock._events import Granted, NotGranted, Released, ReleaseUnconfirmed
from relock._keys import LockKeys
from relock._options import LockOptions
from relock._owner import Owner, nested_task_of
from relock._scripts import Prepared

IN_LINE_SECONDS = 1.0  # for so long after a wait has begun, the next acquire is likely to wait as well


AtOnce = Callable[[Prepared, LockKeys, bytes, float, float], Sequence[Answer] | None]


class Calls:
    """Calls of one client, as flows. Each flow notes what it does in the book of holds.

    Args:
        host: what the client's calls share.
        interrupted: undoes what an interrupted call has left.
        hub: has the callers' names, and those of them that wait.
        at_once: carries out an `Exchange` with these fields in the call, where nothing is in the way, and returns None
            elsewhere; None leaves every exchange to the driver.
        is_crowded: returns True if a request would have to wait for those of others, where the callers share their
            connections; None where each request has one of its own, and delays nobody.
    """

    def __init__(
        self,
        host: Host,
        interrupted: Interrupted,
        hub: WaiterRegister,
        at_once: AtOnce | None = None,
        is_crowded: Callable[[], bool] | None = None,
    ) -> None:
        self._host = host
        self._interrupted = interrupted
        self._hub = hub
        self._at_once = at_once
        self._is_crowded = is_crowded

    # Acquire --------------------------------------------------------------------------------------------------------

    def acquire(
        self, record: CallRecord, spec: LockSpec, who: Owner, until: float, *, count: int = 1
    ) -> CallFlow[Outcome | None]:
        """Take one more level for the caller: a nested one on its hold, or an outermost one with `count` levels.

        Return None when the caller has the lock now, else what the last look found.

        Raises:
            LockLostError: the caller's hold was lost and it has not left every level yet.
            RuntimeError: another task of the caller's event loop is inside.
        """
        host = self._host
        key = (spec.keys.name, who.key)
        if who.takes_turns and not host.gates.try_enter(record, key, record.task or host.platform.current()):
            came_at = host.clock()
            if not (yield from self._enter_gate(record, spec, key, until)):
                return (yield from self._turned_away(spec, came_at))
        hold = host.holds.get(key)
        if hold is not None and hold.count > 0:
            yield from self._nest(record, hold, spec.options, count)
            outcome = None
        else:
            outcome = yield from self._take(record, spec, who, until, count)
        if record.gate is not None:
            record.completed = (host.holds.get(key) if outcome is None else None), count
            host.gates.leave(record)
        return outcome

    def _enter_gate(self, record: CallRecord, spec: LockSpec, key: HoldKey, until: float) -> CallFlow[bool]:
        """Wait at the owner's gate, a moment at least if that owner has the lock; return whether the caller is in."""
        host = self._host
        hold = host.holds.get(key)
        if hold is not None and hold.count > 0:
            until = max(until, host.clock() + spec.node_timeout + GIVE_WAY_SECONDS)
        return bool((yield Enter(record, key, until)))

    def _turned_away(self, spec: LockSpec, came_at: float) -> CallFlow[Outcome]:
        """Return the outcome for a caller that another call of its own owner has kept out for too long."""
        host = self._host
        answers = yield from inspect_flows.look(spec, host.clock)
        info = inspect_flows.agree(spec.keys.name, answers)
        if info is None:
            failures = tuple(answer for answer in answers if isinstance(answer, Failure))
            return NoQuorum(failures, len(answers) - len(failures), None)
        self._tell_refusal(spec, came_at)
        return Refused(info.owner, len(info.queue), info.ttl, None, undecided=False)

    def _take(
        self, record: CallRecord, spec: LockSpec, who: Owner, until: float, count: int
    ) -> CallFlow[Outcome | None]:
        host = self._host
        started_at = host.clock()
        waiter = next(self._hub.names) if who.name is None else self._hub.new_name(who.name)
        if count == 1 and host.may_be_handed:
            waiter += spec.templates.grant_suffix  # a releaser gives one level
        owners = [waiter]
        record.owners, record.spec = owners, spec  # Note, then send
        in_line = started_at < until and started_at - host.waited_at < IN_LINE_SECONDS
        if host.closed:
            host.check_open()
        first, grants, is_lone = None, None, spec.quorum == 1
        outcome: Outcome | None = None
        if in_line and is_lone and count == 1:
            outcome, first, grants = yield from self._queue(spec, owners, started_at, until)
        elif not in_line and count == 1:
            end = started_at + spec.node_timeout
            request = spec.templates.acquire if is_lone else spec.templates.acquire_with(host.propose())
            answers: Sequence[Answer] = (
                self._at_once and self._at_once(request, spec.keys, waiter, started_at, end)
            ) or (yield Exchange(request, spec.keys, waiter, started_at, end, is_attempt_certain))
            first = started_at, answers
            outcome = judge_first(spec, first, host.clock(), until)
            del answers  # this frame stays while thousands may sleep in the next ones
        if outcome is None:
            self._note_wait(first)
            jitter, propose = host.platform.chance, host.propose
            missed, crowd = self._hub.turns_missed, self._is_crowded or bool
            wait = Wait(spec, waiter, count, until, host.clock, jitter, owners, in_line, propose, crowd, missed)
            waiting = acquire(wait, first, grants)
            first = None  # as above
            outcome = yield from waiting
        if host.is_closing:
            host.check_open()  # the grant can still be given back here; after `close` nothing could do it
        if outcome.__class__ is not Grant:
            return self._go_without(record, spec, started_at, outcome)
        hold = host.holds[spec.keys.name, who.key] = Hold(spec, owners[-1], who, outcome, count)
        if not who.takes_turns and host.platform.loop() is not None:
            hold.entered_by = nested_task_of(host.platform.task(), 0)
        if host.steps:  # Mark, then look: a step that is seen from here on finds the hold in the book
            self._count_steps(hold)
        if waiter in self._hub.waiters:
            self._hub.forget(waiter, served=hold)
        host.watchdog.watch(hold)
        host.counters.grants += 1
        if host.logs_events():
            host.emit(Granted(spec.keys.name, host.clock() - started_at, outcome.token))
        return None

    def _note_wait(self, first: First | None) -> None:
        """Note that a call is about to wait, as a first look was refused: for a second, other calls queue at once.

        Perhaps none of them ever sleeps. One connection carries all requests, so the holder's release may come between
        a first look and the place in the queue, which then is a grant.
        """
        if self._is_crowded is not None and first is not None:
            self._host.waited_at = max(self._host.waited_at, first[0])

    def _go_without(self, record: CallRecord, spec: LockSpec, came_at: float, outcome: Outcome) -> Outcome:
        """Forget the wait of the caller that came at `came_at` and has given up; return the `outcome`."""
        self._hub.forget(record.owners[0])
        record.spec = None  # the flow has left nothing; the error that may follow is no interrupt
        if isinstance(outcome, Refused):
            self._tell_refusal(spec, came_at)
        return outcome

    def _queue(
        self, spec: LockSpec, owners: list[bytes], started_at: float, until: float
    ) -> CallFlow[tuple[Grant | None, First | None, Sequence[Handed] | None]]:
        """Ask a lone master for a place in its queue, and sleep there once: usually, until a releaser gives the lock.

        Return the grant, what the first look has found, and what woke the caller; None for what it has not come to.
        """
        host, waiter = self._host, owners[0]
        if not (yield Listen(spec.keys, waiter, NEVER)):  # a message may come before the reply
            return None, None, None
        end = started_at + spec.node_timeout
        request = spec.templates.enqueue
        answers: Sequence[Answer] = (self._at_once and self._at_once(request, spec.keys, waiter, started_at, end)) or (
            yield Exchange(request, spec.keys, waiter, started_at, end, is_attempt_certain)
        )
        first, now = (started_at, answers), host.clock()
        park = judge_queued(spec.keys, waiter, answers, until, now)
        if park is None:
            granted = judge_first(spec, first, now, FOREVER)  # no refusal ends here: the place must be given up
            return granted, first, None  # type: ignore[return-value]
        grants = yield park
        if len(grants) != 1:
            return None, first, grants
        granted = judge_handed(
            grants, spec.masters, spec.quorum, host.clock(), ttl=spec.ttl, drift_factor=spec.drift_factor
        )
        if granted is not None:
            owners.append(grants[0].owner)
        return granted, first, grants

    def _tell_refusal(self, spec: LockSpec, came_at: float) -> None:
        """Tell that the caller which came at `came_at` has given up, because somebody else has the lock."""
        host = self._host
        host.counters.refusals += 1
        if host.logs_events():
            host.emit(NotGranted(spec.keys.name, host.clock() - came_at))

    def _count_steps(self, hold: Hold) -> None:
        """Shorten the leases of a new hold by the steps of masters' clocks that were seen before it was in the book."""
        for step in self._host.steps.copy():
            if step.seconds > 0 and step.seen_at > hold.granted_at:
                hold.shift(step)

    def _nest(self, record: CallRecord, hold: Hold, options: LockOptions, levels: int) -> CallFlow[None]:
        host = self._host
        if hold.loss is not None or host.clock() >= hold.deadline:
            host.check_valid(hold)
        if not hold.takes_turns and (hold.entered_by is not None or host.platform.loop() is not None):
            let_in(hold, host.platform.task())
        record.count, record.hold = hold.count, hold  # Note, then send
        if options.ttl > hold.ttl:
            hold.ask_for(options.ttl)
            yield from extend_flow((hold,), host.clock, host.node_timeout)
        count = hold.count + levels
        written = host.closed or (yield from self._write_count(hold, count))
        if hold.loss is not None or host.clock() >= hold.deadline:
            host.check_valid(hold)
        hold.count = count
        if not written:
            host.settle(hold)
        if options.on_lost is not None and options.on_lost not in hold.callbacks:
            hold.callbacks.append(options.on_lost)

    def _write_count(self, hold: Hold, count: int) -> CallFlow[bool]:
        """Write the count to the masters; return whether all of them have it, or are just about to say so.

        What comes later is looked at then: a request to a master that had been silent for long may have been void.
        """
        host = self._host
        hold.wanted = count  # Note, then send: a janitor that is writing another count just now writes again
        longest = min(host.node_timeout, hold.spec.node_timeout)
        sent_at, request = host.clock(), release_flows.count_request(count)
        until = sent_at + longest
        first: Sequence[Answer] = (self._at_once and self._at_once(request, hold.keys, hold.owner, sent_at, until)) or (
            yield Exchange(request, hold.keys, hold.owner, sent_at, until, is_count_certain, ends=True)
        )
        reply = first[0][0]
        if len(first) == 1 and isinstance(reply, list) and reply[0] == b"counted":
            return True
        answers = yield from release_flows.write_count(hold, count, host.clock, longest, first)
        counting = release_flows.judge_count(answers)
        if counting.is_awaited:
            is_left, until = partial(release_flows.may_be_uncounted, answers), host.clock() + host.node_timeout
            host.janitor.look_later(PendingCheck(is_left, answers, until, partial(Settle, hold)))
        # A request that gives the hold to a master which lacks it may come later, and has another count.
        return counting.is_written and not (NEVER in hold.lease_ends and host.clock() < hold.late_until)

    # Release --------------------------------------------------------------------------------------------------------

    def release(self, record: CallRecord, name: str, who: Owner, *, levels: int = 1) -> CallFlow[None]:
        """Leave `levels` levels (0: all) of the caller's hold.

        Raises:
            NotOwnedError: the caller holds nothing.
            LockLostError: the hold was lost before.
        """
        host = self._host
        hold = host.holds.get((name, who.key))
        if hold is None or hold.count == 0:
            raise host.holds.not_owned(name, who)
        if who.takes_turns:
            key = (name, who.key)
            if not host.gates.try_enter(record, key, record.task or host.platform.current()):
                yield Enter(record, key, FOREVER)
            if hold.count == 0:  # another call of this owner was faster
                raise host.holds.not_owned(name, who)
        left = hold.count - levels if levels else 0
        record.count, record.hold = left, hold  # Note, then send
        if hold.loss is not None or host.clock() >= hold.deadline:
            self._check_before_release(hold, left)
        if left:
            written = host.closed or (yield from self._write_count(hold, left))
            if hold.loss is not None or host.clock() >= hold.deadline:
                self._check_before_release(hold, left)
            hold.count = left
            if not written:
                host.settle(hold)
        else:
            yield from self._end(hold)
        if record.gate is not None:
            record.completed = None, 0
            host.gates.leave(record)

    def _check_before_release(self, hold: Hold, left: int) -> None:
        try:
            self._host.check_valid(hold)
        except LockLostError:
            hold.count = left
            if not left:
                self._interrupted.end_stand_in(hold)
            raise

    def _end(self, hold: Hold) -> CallFlow[None]:
        """End a hold whose last level is left: here and now, and then on the masters."""
        host, keys = self._host, hold.keys
        host.holds.pop((keys.name, hold.key), None)
        if host.closed:
            hold.count = 0
            host.undo(hold.keys, hold.owner, hold.token, hold.ttl, hold.undo_after)  # where it is just being closed
            return
        sent_at = host.clock()
        until = sent_at + host.node_timeout
        answers: Sequence[Answer] = (
            self._at_once and self._at_once(hold.ending, keys, hold.owner, sent_at, until)
        ) or (yield Exchange(hold.ending, keys, hold.owner, sent_at, until, is_release_certain, ends=True))
        reply = answers[0][0]
        is_usual = len(answers) == 1 and isinstance(reply, list) and reply[0] == b"released"
        if hold.healing_pending or not (is_usual or count_status(answers, b"released") == len(answers)):
            self._end_elsewhere(hold, answers)
            return
        hold.count = 0
        if host.logs_events():
            host.emit(Released(hold.keys.name, host.clock() - hold.granted_at))

    def _end_elsewhere(self, hold: Hold, answers: Sequence[Answer]) -> None:
        """Do the rest of a release that not every master has confirmed.

        Raises:
            LockLostError: the hold was lost before.
        """
        host = self._host
        ending = release_flows.judge_end(hold, answers)
        if ending.is_lost:
            host.holds[hold.keys.name, hold.key] = hold  # a lost hold stays in the book until its owner knows
            host.lose(hold, FORGOTTEN)
            hold.count = 0
            raise lost_error(hold)
        hold.count = 0
        if ending.is_awaited:
            is_left = partial(hold.may_be_left, answers)
            undo = partial(host.undo_hold, hold)
            host.janitor.look_later(PendingCheck(is_left, answers, hold.late_until, undo))
        elif ending.is_left:
            host.janitor.hand(host.undo_hold(hold))
        if not ending.is_confirmed:
            host.emit(ReleaseUnconfirmed(hold.keys.name, hold.remaining(host.clock())))
        elif host.logs_events():
            host.emit(Released(hold.keys.name, host.clock() - hold.granted_at))

    # A condition's wait ---------------------------------------------------------------------------------------------

    def take_again(self, record: CallRecord, who: Owner, hold: Hold, count: int) -> CallFlow[Outcome | None]:
        """Take `count` levels for the owner of `hold`, which a wait has given up; wait until the masters are back.

        The new hold has the options of the outermost level of `hold`, and what the other levels have asked for.
        If `hold` was found lost, it is in the book again afterwards, with its levels, for its owner to be told.
        Another hold stands in for it until these are left: what runs after the wait runs with the lock.
        """
        spec = evolve(hold.spec, patience=FOREVER)
        if hold.loss is None:
            outcome = yield from self.acquire(record, spec, who, FOREVER, count=count)
            if outcome is None:
                yield from self._restore(self._host.holds[spec.keys.name, who.key], hold)
            return outcome
        outcome = yield from self.acquire(record, spec, who._replace(key=stand_in(hold)), FOREVER)
        if outcome is None:
            self._book_waited(hold, count)
        return outcome

    def _restore(self, hold: Hold, before: Hold) -> CallFlow[None]:
        """Give `hold` what nested levels, or `extend`, had added to the hold before: callbacks, and a longer ttl."""
        host = self._host
        hold.callbacks[:] = before.callbacks
        if before.ttl > hold.ttl:
            hold.ask_for(before.ttl)
            yield from extend_flow((hold,), host.clock, host.node_timeout)
            host.watchdog.watch(hold)

    def lose_waited(self, hold: Hold, count: int, error: BaseException) -> None:
        """Report as lost the `count` levels of `hold` that a wait gave up and did not take again."""
        hold.renew_at = FOREVER  # the masters have it no more
        self._book_waited(hold, count)
        self._host.lose(hold, f"a condition's wait gave it up, and did not take it again: {error!r}")

    def _book_waited(self, hold: Hold, count: int) -> None:
        """Put a hold that has ended into the book again, with `count` levels for its owner to leave."""
        hold.count = count
        self._host.holds[hold.keys.name, hold.key] = hold


def judge_first(spec: LockSpec, first: First, now: float, until: float) -> Outcome | None:
    """Return the outcome of a first look by `now`, if nothing is left to do: the lock is granted, or nobody may wait.

    Return None for every other outcome, and where the caller has until `until`: the wait goes on from there.
    """
    sent_at, answers = first
    end = sent_at + spec.validity
    if len(answers) == 1:
        reply: Any = answers[0][0]
        if reply.__class__ is list and reply[0] == b"granted" and now < end:
            # `tuple.__new__` takes all fields of a Grant, and avoids the class's `__new__`, which is Python code.
            return tuple.__new__(Grant, (reply[2], end, [end], True, answers, None, False, False))
    outcome = judge(answers, spec.masters, end, now)
    if isinstance(outcome, Grant):
        return outcome if is_token_safe(outcome, int(spec.templates.lease_ms)) else None
    return outcome if now >= until and isinstance(outcome, Refused) and not outcome.undecided else None
