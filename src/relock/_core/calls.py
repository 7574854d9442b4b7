"""Calls of users: to acquire, to nest and to release.

No acquire or release takes a lock of Python's. An interrupt may strike between any two instructions, also between
taking such a lock and the ``try`` that would let it go. Before a call sends its first byte, it notes in its
`CallRecord` what it may leave; `relock._core.interrupts` undoes an interrupted call from these notes.

Each call is a flow (see `relock._core.effects`): it decides, and a driver carries out its effects. The usual effect is
an `Exchange`. A thread with a lone master, or with the nodes of a Cluster, carries that out in the call itself, if
nothing is in the way: the detour over the driver would add 1.7 % to the time of an acquire and its release.
"""

from collections.abc import Callable, Sequence
from functools import partial

from relock._core.book import HoldKey, lost_error
from relock._core.call_record import GIVE_WAY_SECONDS, CallFlow, CallRecord, Enter
from relock._core.deadlocks import check_ring
from relock._core.effects import Answer, Ask, Exchange, Failure, Handed, Listen
from relock._core.flows import inspect as inspect_flows
from relock._core.flows import release as release_flows
from relock._core.flows.attempt import First
from relock._core.flows.extend import extend as extend_flow
from relock._core.hold import FOREVER, Hold
from relock._core.host import Host, WaiterRegister
from relock._core.interrupts import Interrupted
from relock._core.lock_spec import LockSpec
from relock._core.loops import let_in
from relock._core.own import ALONE, beside_own, check_rest
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
from relock._core.tasks import PassOn, PendingCheck, Settle
from relock._core.waiting import Wait, ask_until_granted, first_value, judge_queued
from relock._errors import LockLostError, QuorumError
from relock._events import Granted, NotGranted, Released, ReleaseUnconfirmed
from relock._keys import LockKeys
from relock._options import LockOptions
from relock._owner import Owner, nested_task_of, rest_name
from relock._scripts import Prepared

IN_LINE_SECONDS = 1.0  # an acquire within this time after another caller began to wait is likely to wait as well

AtOnce = Callable[[Prepared, LockKeys, bytes, float, float], Sequence[Answer] | None]


class Calls:
    """Calls of one client, as flows. Each flow notes what it does in the book of holds.

    Args:
        host: what the client's calls share.
        interrupted: undoes what an interrupted call has left.
        hub: makes the names of holds to come, and knows the callers that wait.
        at_once: carries out an `Exchange` with these fields inside the call and returns the answers, or None if the
            driver must carry it out. Without this function, the driver carries out every exchange.
        is_crowded: returns True if a request would have to wait for other callers' requests on a shared connection;
            None if each request has a connection of its own.
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

    def hear_ends(self) -> None:
        """Have the client hear soon of holds that other clients end by force; later renewals find that anyway."""
        self._hub.hear_ends()

    # Acquire --------------------------------------------------------------------------------------------------------

    def acquire(
        self, record: CallRecord, spec: LockSpec, who: Owner, until: float, *, count: int = 1
    ) -> CallFlow[Outcome | None]:
        """Take one more level for the caller: a nested one on its hold, or an outermost one with `count` levels.

        Return None if the caller has the lock now, else the outcome of the last look.

        Raises:
            LockLostError: the caller's hold was lost and it has not left every level yet.
            RuntimeError: another task of the caller's event loop uses the thread's hold.
            UpgradeError: the caller asks as a writer, and has the lock as a reader.
        """
        host, key = self._host, (spec.keys.name, who.key)
        if who.takes_turns and not host.gates.try_enter(record, key, record.task or host.platform.current()):
            came_at = host.clock()
            if not (yield from self._enter_gate(record, spec, key, until)):
                return (yield from self._turned_away(spec, came_at))
        hold = host.holds.get(key)
        if hold is not None and hold.count > 0:
            yield from self._nest(record, hold, spec.options, count)
            outcome: Outcome | None = None
        else:
            if self._hub.awaits_kind:
                yield Ask((), host.clock() + spec.node_timeout)  # looks which nodes there are, and what they know
            beside, outcome = ALONE
            if spec.is_shared or host.holds.had_readers:
                beside, outcome = yield from beside_own(host, spec, who)
            if outcome is None:
                outcome = yield from self._take(record, spec, who, until, count=count, beside=beside)
        if outcome is None and (spec.options.on_lost is not None or host.tells_losses):
            self._hub.hear_ends()
        if record.gate is not None:
            record.completed = (host.holds.get(key) if outcome is None else None), count
            host.gates.leave(record)
        return outcome

    def _enter_gate(self, record: CallRecord, spec: LockSpec, key: HoldKey, until: float) -> CallFlow[bool]:
        """Wait at the owner's gate until `until`; return whether the caller is in.

        If the owner already has the lock, on either side, wait long enough for the call inside to end or to give way: a
        nested acquire must not fail for lack of time.
        """
        host = self._host
        if host.holds.has_either(key):
            until = max(until, host.clock() + spec.node_timeout + GIVE_WAY_SECONDS)
        return bool((yield Enter(record, key, until)))

    def _turned_away(self, spec: LockSpec, came_at: float) -> CallFlow[Outcome]:
        """Return the outcome for a caller whose time ended at the gate; ask the masters which owner has the lock."""
        host = self._host
        answers = yield from inspect_flows.look(spec, host.clock)
        info = inspect_flows.agree(spec.keys.name, answers)
        if info is None:
            failures = tuple(answer for answer in answers if isinstance(answer, Failure))
            outcome: Outcome = NoQuorum(failures, len(answers) - len(failures), None)
        else:
            outcome = Refused(info.owner, len(info.queue), info.ttl, None, undecided=False)
        self._tell_no_grant(spec, came_at, None, outcome)
        return outcome

    def _take(
        self, record: CallRecord, spec: LockSpec, who: Owner, until: float, *, count: int, beside: bytes
    ) -> CallFlow[Outcome | None]:
        """Take a lock that the owner does not have yet: ask once, wait if the lock is taken, and book the hold.

        Return None if the owner has the lock now; else the outcome that refused it.
        """
        host, started_at = self._host, self._host.clock()
        waiter = next(self._hub.names) if who.name is None else self._hub.new_name(who.name)
        # A release gives a waiter one level: only a waiter that wants one is marked as one that may be given the lock.
        waiter += (spec.templates.grant_mark if count == 1 and host.may_be_handed else spec.templates.mark) + beside
        owners = [waiter]
        record.owners, record.spec = owners, spec  # Note, then send: from here on an interrupt undoes the attempt
        in_line = started_at < until and started_at - host.waited_at < IN_LINE_SECONDS
        if host.closed:
            host.check_open()
        first, grants, is_lone = None, None, spec.quorum == 1
        outcome: Outcome | None = None
        if in_line and is_lone and count == 1:
            outcome, first, grants = yield from self._queue(record, spec, who, started_at, until)
        elif not in_line and count == 1 and spec.slots is None:
            end = started_at + spec.node_timeout
            request = spec.templates.acquire if is_lone else spec.templates.acquire_with(host.propose())
            answers: Sequence[Answer] = (
                self._at_once and self._at_once(request, spec.keys, waiter, started_at, end)
            ) or (yield Exchange(request, spec.keys, waiter, started_at, end, is_attempt_certain))
            first = started_at, answers
            outcome = judge_first(spec, first, host.clock(), until)
            del answers  # this frame lives as long as the wait, and thousands of calls may wait
        if outcome is None:
            self._note_wait(record, who, first, started_at, until)
            waiting = ask_until_granted(self._wait_of(record, spec, until, count, in_line=in_line), first, grants)
            first = None  # as above
            outcome = yield from waiting
        if host.is_closing:
            host.check_open()  # raise now: until `close` is done, the undo can still give the grant back
        host.waits.pop(record, None)
        if outcome.__class__ is not Grant:
            return self._go_without(record, spec, started_at, outcome)
        hold = host.holds[spec.keys.name, who.key] = Hold(spec, owners[-1], who, outcome, count)
        if not who.takes_turns and host.platform.loop() is not None:
            hold.entered_by = nested_task_of(host.platform.task(), 0)
        if host.steps:  # Mark, then look: a step that is seen from here on finds the hold in the book
            self._count_steps(hold)
        how = None
        if waiter in self._hub.waiters:
            how = host.counters.count_wait(is_given=outcome.begins is not None, is_woken=self._hub.was_woken(waiter))
            self._hub.forget(waiter, served=hold)
        if spec.slots is not None and count_status(outcome.answers, b"queued"):
            host.janitor.hand(PassOn(spec.keys, waiter))  # else that master wakes this waiter in place of the next one
        host.watchdog.watch(hold)
        host.counters.grants += 1
        if host.logs_events():
            host.emit(Granted(waited=host.clock() - started_at, how=how, **hold.told))
        return None

    def _wait_of(self, record: CallRecord, spec: LockSpec, until: float, count: int, *, in_line: bool) -> Wait:
        host, owners = self._host, record.owners
        jitter, propose = host.platform.chance, host.propose
        missed, crowd = self._hub.turns_missed, self._is_crowded or bool
        value = spec.value_of(count) if count > 1 else first_value(spec, jitter)
        return Wait(spec, owners[0], value, until, host.clock, jitter, owners, in_line, propose, crowd, missed, record)

    def _note_wait(self, record: CallRecord, who: Owner, first: First | None, started_at: float, until: float) -> None:
        """Note that a call is about to wait.

        For a second, other calls of an event loop then ask for a place in the queue with their first request.
        `Session.begin_park` notes this too, but may never be reached: if the holder's release comes first, the request
        for a place is granted.

        Raises:
            DeadlockError: the wait would be part of a deadlock among this client's callers.
        """
        host = self._host
        if self._is_crowded is not None and first is not None:
            host.waited_at = max(host.waited_at, first[0])
        if started_at < until:
            host.waits[record] = who, started_at, until  # Mark, then look: the last to note its wait sees the others
            if len(host.holds) > 1:
                check_ring(host, record)

    def _go_without(self, record: CallRecord, spec: LockSpec, came_at: float, outcome: Outcome) -> Outcome:
        """Forget the waiter of a call that began at `came_at` and has given up; return the `outcome`."""
        self._hub.forget(record.owners[0])
        record.spec = None  # the wait has cleaned up: an error that follows must undo nothing
        self._tell_no_grant(spec, came_at, record.owners[0], outcome)
        return outcome

    def _queue(
        self, record: CallRecord, spec: LockSpec, who: Owner, started_at: float, until: float
    ) -> CallFlow[tuple[Grant | None, First | None, Sequence[Handed] | None]]:
        """Ask a lone master for a place in its queue, and sleep once: usually until a releaser gives the lock.

        Return the grant, the answers to the request, and the grants that ended the sleep. Each is None if the call did
        not get so far.
        """
        host, owners = self._host, record.owners
        waiter = owners[0]
        host.waits[record] = who, started_at, until  # as `_note_wait` does
        if len(host.holds) > 1:
            check_ring(host, record)
        if not (yield Listen(spec.keys, waiter, NEVER)):  # a message may come before the reply
            return None, None, None
        request, end = spec.templates.enqueue, started_at + spec.node_timeout
        answers: Sequence[Answer] = (self._at_once and self._at_once(request, spec.keys, waiter, started_at, end)) or (
            yield Exchange(request, spec.keys, waiter, started_at, end, is_attempt_certain)
        )
        first, now = (started_at, answers), host.clock()
        park = judge_queued(spec.keys, waiter, answers, until, now)
        if park is None or record.error is not None:
            granted = judge_first(spec, first, now, FOREVER)  # after a refusal, the wait must give the place up
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

    def _tell_no_grant(self, spec: LockSpec, came_at: float, owner: bytes | None, outcome: Outcome) -> None:
        """Report that a call which began at `came_at` has given up, because of the `outcome` of its last look.

        `owner` is the name by which it asked the masters; None if they were only asked which owner has the lock.
        """
        host, is_refusal = self._host, isinstance(outcome, Refused)
        host.counters.refusals += is_refusal
        if host.logs_events():
            name, error = None if owner is None else owner.decode(), None if is_refusal else QuorumError.__name__
            waited = host.clock() - came_at
            host.emit(NotGranted(spec.keys.name, waited, kind=spec.keys.kind, owner=name, error=error))

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
        if options.at_least > hold.at_least and host.holds.had_readers:
            check_rest(host, hold)
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
        hold.at_least = max(hold.at_least, options.at_least)
        if options.on_lost is not None and options.on_lost not in hold.callbacks:
            hold.callbacks.append(options.on_lost)

    def _write_count(self, hold: Hold, count: int) -> CallFlow[bool]:
        """Write the count to the masters; return False if the janitor must write it again.

        If a quorum has written the count and another master is silent, a pending check looks at the late answer: the
        request is void if it reaches that master too late.
        """
        host = self._host
        hold.wanted = count  # Note, then send: if the janitor is writing an older count now, it writes this one too
        longest = min(host.node_timeout, hold.spec.node_timeout)
        sent_at, request = host.clock(), release_flows.count_request(hold, count)
        first: Sequence[Answer] = (
            self._at_once and self._at_once(request, hold.keys, hold.owner, sent_at, sent_at + longest)
        ) or (yield Exchange(request, hold.keys, hold.owner, sent_at, sent_at + longest, is_count_certain, ends=True))
        reply = first[0][0]
        if len(first) == 1 and isinstance(reply, list) and reply[0] == b"counted":
            return True
        answers = yield from release_flows.write_count(hold, count, host.clock, longest, first)
        counting = release_flows.judge_count(answers)
        if counting.is_awaited:
            is_left, until = partial(release_flows.may_be_uncounted, answers), host.clock() + host.node_timeout
            host.janitor.look_later(PendingCheck(is_left, answers, until, partial(Settle, hold)))
        # A late acquire or healing may still give the hold, with an older count, to a master that lacks the hold.
        return counting.is_written and not (NEVER in hold.lease_ends and host.clock() < hold.late_until)

    # Release --------------------------------------------------------------------------------------------------------

    def release(self, record: CallRecord, spec: LockSpec, who: Owner, *, levels: int = 1) -> CallFlow[None]:
        """Leave `levels` levels (0: all) of the caller's hold.

        Raises:
            NotOwnedError: the caller holds nothing.
            LockLostError: the hold was lost before.
        """
        host, name = self._host, spec.keys.name
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
        record.count, record.hold, hold.is_used = left, hold, True  # Note, then send
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
                self._interrupted.leave_lost(hold)
            raise

    def _end(self, hold: Hold) -> CallFlow[None]:
        """End a hold whose last level is left: first in the book, then on the masters."""
        host, keys = self._host, hold.keys
        if host.holds.pop((keys.name, hold.key), None) is None:  # another thread has just released this permit
            raise host.holds.not_owned(keys.name, hold)
        if host.closed:
            hold.count = 0
            host.hand_undo(host.undo_hold(hold))  # works only during `close`
            return
        sent_at = host.clock()
        until = sent_at + host.node_timeout
        ending = hold.ending_at(sent_at) if hold.at_least else hold.ending
        answers: Sequence[Answer] = (self._at_once and self._at_once(ending, keys, hold.owner, sent_at, until)) or (
            yield Exchange(ending, keys, hold.owner, sent_at, until, is_release_certain, ends=True)
        )
        reply = answers[0][0]
        is_usual = len(answers) == 1 and isinstance(reply, list) and reply[0] == b"released"
        if hold.healing_pending or not (is_usual or count_status(answers, b"released") == len(answers)):
            self._end_elsewhere(hold, answers)
            return
        hold.count = 0
        if host.logs_events():
            host.emit(Released(held_for=host.clock() - hold.granted_at, **hold.told))

    def _end_elsewhere(self, hold: Hold, answers: Sequence[Answer]) -> None:
        """Finish a release that not every master has confirmed.

        Raises:
            LockLostError: the hold was lost before.
        """
        host = self._host
        ending = release_flows.judge_end(hold, answers)
        if ending.is_lost:
            host.holds[hold.keys.name, hold.key] = hold  # `lose` needs it there; `Lock.lost` reads it later
            host.lose(hold, hold.reason_if_absent)
            hold.count = 0
            self._interrupted.leave_lost(hold)
            if hold.at_least:  # a minority may have written the rest, or will do so late
                host.undo(hold.keys, rest_name(hold.owner), 0, hold.ttl, host.clock() + host.node_timeout)
            raise lost_error(hold)
        hold.count = 0
        if ending.is_awaited:
            is_left, undo = partial(hold.may_be_left, answers), partial(host.undo_hold, hold)
            host.janitor.look_later(PendingCheck(is_left, answers, hold.late_until, undo))
        elif ending.is_left:
            host.janitor.hand(host.undo_hold(hold))
        if not ending.is_confirmed:
            host.emit(ReleaseUnconfirmed(seconds_left=hold.remaining(host.clock()), **hold.told))
        elif host.logs_events():
            host.emit(Released(held_for=host.clock() - hold.granted_at, **hold.told))


def judge_first(spec: LockSpec, first: First, now: float, until: float) -> Outcome | None:
    """Return the outcome of a first look if nothing is left to do: the lock is granted, or the caller has no time.

    Return None for every other outcome, also for a refusal before `until`: the wait goes on from there.
    """
    sent_at, answers = first
    end = sent_at + spec.validity
    if len(answers) == 1:
        reply = answers[0][0]
        if isinstance(reply, list) and reply[0] == b"granted" and now < end:
            # `tuple.__new__` takes all fields of a Grant, and avoids the class's `__new__`, which is Python code.
            return tuple.__new__(Grant, (reply[2], end, [end], True, answers, None, False, False))
    outcome = judge(answers, spec.masters, end, now)
    if isinstance(outcome, Grant):
        return outcome if is_token_safe(outcome, int(spec.templates.lease_ms)) else None
    return outcome if now >= until and isinstance(outcome, Refused) and not outcome.undecided else None
