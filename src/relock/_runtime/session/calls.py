"""Calls of users: to acquire, to nest, to release, and to take again after a condition's wait.

Nothing on the way of an acquire or a release takes a lock of Python's: an interrupt may strike between any two
instructions, also between taking a lock and the ``try`` that would let it go. What an interrupted call may have left
is known to its `CallRecord`, from before the first byte is sent; see `relock._runtime.session.interrupts`.

Each call is a flow (see `relock._core.effects`): it decides, and what waits is an effect that a driver carries out. The
usual step is an `Exchange`. A thread that has a lone master asks it in the call itself, if nothing is in the way. The
detour over the driver would add 1.7 % to the time of an acquire and its release.
"""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from attrs import evolve

from relock._core import tasks
from relock._core.book import HoldKey, lost_error, stand_in
from relock._core.call_record import CallRecord, Enter, Step
from relock._core.effects import Answer, Exchange, Failure, Handed, Listen
from relock._core.flows import inspect as inspect_flows
from relock._core.flows import release as release_flows
from relock._core.flows.acquire import First, judge_first
from relock._core.flows.extend import extend as extend_flow
from relock._core.hold import FOREVER, FORGOTTEN, Hold
from relock._core.lock_spec import LockSpec
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
    judge_handed,
)
from relock._core.waiting import Wait, acquire, judge_queued
from relock._errors import LockLostError
from relock._events import Granted, NotGranted, Released, ReleaseUnconfirmed
from relock._keys import LockKeys
from relock._options import LockOptions
from relock._owner import Who, may_nest, still_inside, taker_of
from relock._runtime.session.gates import GIVE_WAY_SECONDS
from relock._runtime.session.interrupts import Interrupted
from relock._runtime.session.keeper import Keeper
from relock._runtime.session.loops import inside_already
from relock._scripts import Prepared

IN_LINE_SECONDS = 1.0  # for so long after a wait has begun, the next acquire is likely to wait as well


AtOnce = Callable[[Prepared, LockKeys, bytes, float, float], Sequence[Answer] | None]


class Calls:
    """Calls of one session, as flows. Each flow notes what it does in the book of holds.

    Args:
        at_once: carries out an `Exchange` with these fields in the call, where nothing is in the way, and returns None
            elsewhere; None leaves every exchange to the driver.
        is_crowded: returns True if a request would have to wait for those of others.
        by_tasks: the callers are tasks. Each task of an event loop is an owner of its own.
    """

    def __init__(
        self,
        session: Keeper,
        interrupted: Interrupted,
        at_once: AtOnce | None = None,
        is_crowded: Callable[[], bool] = bool,  # a thread waits for its own connection, and delays nobody by that
        *,
        by_tasks: bool = False,
    ) -> None:
        self._session = session
        self._interrupted = interrupted
        self._at_once = at_once
        self._is_crowded = is_crowded
        self._by_tasks = by_tasks

    # Acquire --------------------------------------------------------------------------------------------------------

    def acquire(
        self, record: CallRecord, spec: LockSpec, who: Who, until: float, *, count: int = 1
    ) -> Generator[Step, Any, Outcome | None]:
        """Take one more level for the caller: a nested one on its hold, or an outermost one with `count` levels.

        Return None when the caller has the lock now, else what the last look found.

        Raises:
            LockLostError: the caller's hold was lost and it has not left every level yet.
            RuntimeError: another task of the caller's event loop is inside.
        """
        session = self._session
        key = (spec.keys.name, who.key)
        is_one_of_several = who.name is not None or self._by_tasks
        if is_one_of_several and not session.gates.try_enter(record, key, record.task or session.platform.current()):
            came_at = session.clock()
            if not (yield from self._enter_gate(record, spec, key, until)):
                return (yield from self._turned_away(spec, came_at))
        hold = session.holds.get(key)
        if hold is not None and hold.count > 0:
            yield from self._nest(record, hold, spec.options, count)
            outcome = None
        else:
            outcome = yield from self._take(record, spec, who, until, count)
        if record.gate is not None:
            record.over = (session.holds.get(key) if outcome is None else None), count
            session.gates.leave(record)
        return outcome

    def _enter_gate(self, record: CallRecord, spec: LockSpec, key: HoldKey, until: float) -> Generator[Step, Any, bool]:
        """Wait at the owner's gate, a moment at least if that owner has the lock; return whether the caller is in."""
        session = self._session
        hold = session.holds.get(key)
        if hold is not None and hold.count > 0:
            until = max(until, session.clock() + spec.node_timeout + GIVE_WAY_SECONDS)
        elif not self._by_tasks and until > session.clock() and self._may_block_a_loop():
            if (yield Enter(record, key, NEVER)):
                return True
            session.warn_if_a_loop_waits(spec.keys.name)
        return bool((yield Enter(record, key, until)))

    def _may_block_a_loop(self) -> bool:
        """Return whether the calling thread runs an event loop, and has not been warned of waiting."""
        return not self._session.has_warned_of_loops and self._session.platform.task() is not None

    def _turned_away(self, spec: LockSpec, came_at: float) -> Generator[Step, Any, Outcome]:
        """Return the outcome for a caller that another call of its own owner has kept out for too long."""
        session = self._session
        answers = yield from inspect_flows.look(spec, session.clock)
        info = inspect_flows.agree(spec.keys.name, answers)
        if info is None:
            failures = tuple(answer for answer in answers if isinstance(answer, Failure))
            return NoQuorum(failures, len(answers) - len(failures), None)
        self._tell_refusal(spec, came_at)
        return Refused(info.owner, len(info.queue), info.ttl, None, undecided=False)

    def _take(
        self, record: CallRecord, spec: LockSpec, who: Who, until: float, count: int
    ) -> Generator[Step, Any, Outcome | None]:
        session = self._session
        started_at = session.clock()
        waiter = next(session.names) if who.name is None else session.new_name(who.name)
        if count == 1 and session.may_be_handed:
            waiter += spec.wording.mark  # a releaser gives one level
        owners = [waiter]
        record.owners, record.spec = owners, spec  # Note, then send
        in_line = started_at < until and started_at - session.waited_at < IN_LINE_SECONDS
        if session.closed:
            session.check_open()
        first, grants, is_lone = None, None, spec.quorum == 1
        outcome: Outcome | None = None
        if in_line and is_lone and count == 1:
            outcome, first, grants = yield from self._queue(spec, owners, started_at, until)
        elif not in_line and count == 1:
            end = started_at + spec.node_timeout
            request = spec.wording.acquire if is_lone else spec.wording.acquire_with(session.propose())
            answers = (self._at_once and self._at_once(request, spec.keys, waiter, started_at, end)) or (
                yield Exchange(request, spec.keys, waiter, started_at, end, is_attempt_certain)
            )
            first = started_at, answers
            outcome = judge_first(spec, first, session.clock(), until)
            del answers  # this frame stays while thousands may sleep in the next ones
        if outcome is None:
            self._note_wait(first)
            jitter, propose = session.platform.chance, session.propose
            missed, crowd = session.hub.turns_missed, self._is_crowded
            wait = Wait(spec, waiter, count, until, session.clock, jitter, owners, in_line, propose, crowd, missed)
            waiting = acquire(wait, first, grants)
            first = None  # as above
            outcome = yield from waiting
        if session.is_closing:
            session.check_open()  # the grant can still be given back here; after `close` nothing could do it
        if outcome.__class__ is not Grant:
            return self._go_without(record, spec, started_at, outcome)
        hold = session.holds[spec.keys.name, who.key] = Hold(spec, owners[-1], who, outcome, count)
        if who.name is None and not self._by_tasks and session.platform.loop() is not None:
            hold.taker = taker_of(session.platform.task(), 0)
        if session.steps:  # Mark, then look: a step that is seen from here on finds the hold in the book
            self._count_steps(hold)
        if waiter in session.hub.waiters:
            session.hub.forget(waiter, served=hold)
        session.watchdog.watch(hold)
        session.counters.grants += 1
        if session.logs_events():
            session.emit(Granted(spec.keys.name, session.clock() - started_at, outcome.token))
        return None

    def _note_wait(self, first: First | None) -> None:
        """Note that a call is about to wait, as a first look was refused: for a second, other calls queue at once.

        Perhaps none of them ever sleeps. One connection carries all requests, so the holder's release may come between
        a first look and the place in the queue, which then is a grant.
        """
        if self._by_tasks and first is not None:
            self._session.waited_at = max(self._session.waited_at, first[0])

    def _go_without(self, record: CallRecord, spec: LockSpec, came_at: float, outcome: Outcome) -> Outcome:
        """Forget the wait of the caller that came at `came_at` and has given up; return the `outcome`."""
        self._session.hub.forget(record.owners[0])
        record.spec = None  # the flow has left nothing; the error that may follow is no interrupt
        if isinstance(outcome, Refused):
            self._tell_refusal(spec, came_at)
        return outcome

    def _queue(
        self, spec: LockSpec, owners: list[bytes], started_at: float, until: float
    ) -> Generator[Step, Any, tuple[Grant | None, First | None, Sequence[Handed] | None]]:
        """Ask a lone master for a place in its queue, and sleep there once: usually, until a releaser gives the lock.

        Return the grant, what the first look has found, and what woke the caller; None for what it has not come to.
        """
        session, waiter = self._session, owners[0]
        if not (yield Listen(spec.keys, waiter, NEVER)):  # a message may come before the reply
            return None, None, None
        end = started_at + spec.node_timeout
        request = spec.wording.enqueue
        answers = (self._at_once and self._at_once(request, spec.keys, waiter, started_at, end)) or (
            yield Exchange(request, spec.keys, waiter, started_at, end, is_attempt_certain)
        )
        first, now = (started_at, answers), session.clock()
        park = judge_queued(spec.keys, waiter, answers, until, now)
        if park is None:
            granted = judge_first(spec, first, now, FOREVER)  # no refusal ends here: the place must be given up
            return granted, first, None  # type: ignore[return-value]
        grants = yield park
        if len(grants) != 1:
            return None, first, grants
        granted = judge_handed(
            grants, spec.masters, spec.quorum, session.clock(), ttl=spec.ttl, drift_factor=spec.drift_factor
        )
        if granted is not None:
            owners.append(grants[0].owner)
        return granted, first, grants

    def _tell_refusal(self, spec: LockSpec, came_at: float) -> None:
        """Tell that the caller which came at `came_at` has given up, because somebody else has the lock."""
        session = self._session
        session.counters.refusals += 1
        if session.logs_events():
            session.emit(NotGranted(spec.keys.name, session.clock() - came_at))

    def _count_steps(self, hold: Hold) -> None:
        """Shorten the leases of a new hold by the steps of masters' clocks that were seen before it was in the book."""
        for step in self._session.steps.copy():
            if step.seconds > 0 and step.seen_at > hold.granted_at:
                hold.shift(step)

    def _note_task(self, hold: Hold, running: object | None) -> None:
        """Let the running task or callback in on a level of the thread's hold, unless another task is inside.

        Raises:
            RuntimeError: another task is inside.
        """
        taker = still_inside(hold.taker, hold.count)
        if not may_nest(taker, running):
            raise inside_already(hold.keys.name, taker, running)
        hold.taker = taker or taker_of(running, hold.count)

    def _nest(self, record: CallRecord, hold: Hold, options: LockOptions, levels: int) -> Generator[Step, Any, None]:
        session = self._session
        if hold.loss is not None or session.clock() >= hold.deadline:
            session.check_valid(hold)
        # An owner's has no thread: tasks that name the same one share its hold.
        is_threads = hold.thread is not None and not self._by_tasks
        if is_threads and (hold.taker is not None or session.platform.loop() is not None):
            self._note_task(hold, session.platform.task())
        record.count, record.hold = hold.count, hold  # Note, then send
        if options.ttl > hold.ttl:
            hold.ask_for(options.ttl)
            yield from extend_flow((hold,), session.clock, session.node_timeout)
        count = hold.count + levels
        written = session.closed or (yield from self._write_count(hold, count))
        if hold.loss is not None or session.clock() >= hold.deadline:
            session.check_valid(hold)
        hold.count = count
        if not written:
            session.settle(hold)
        if options.on_lost is not None and options.on_lost not in hold.callbacks:
            hold.callbacks.append(options.on_lost)

    def _write_count(self, hold: Hold, count: int) -> Generator[Step, Any, bool]:
        """Write the count to the masters; return whether all of them have it, or are just about to say so.

        What comes later is looked at then: a request to a master that had been silent for long may have been void.
        """
        session = self._session
        hold.wanted = count  # Note, then send: a janitor that is writing another count just now writes again
        longest = min(session.node_timeout, hold.spec.node_timeout)
        sent_at, request = session.clock(), release_flows.count_request(count)
        until = sent_at + longest
        first = (self._at_once and self._at_once(request, hold.keys, hold.owner, sent_at, until)) or (
            yield Exchange(request, hold.keys, hold.owner, sent_at, until, is_count_certain, ends=True)
        )
        reply: Any = first[0][0]
        if len(first) == 1 and reply.__class__ is list and reply[0] == b"counted":
            return True
        answers = yield from release_flows.write_count(hold, count, session.clock, longest, first)
        counting = release_flows.judge_count(answers)
        if counting.is_awaited:
            is_left, until = partial(release_flows.may_be_uncounted, answers), session.clock() + session.node_timeout
            session.janitor.look_later(tasks.PendingCheck(is_left, answers, until, partial(tasks.Settle, hold)))
        # A request that gives the hold to a master which lacks it may come later, and has another count.
        return counting.is_written and not (NEVER in hold.ends and session.clock() < hold.late_until)

    # Release --------------------------------------------------------------------------------------------------------

    def release(self, record: CallRecord, name: str, who: Who, *, levels: int = 1) -> Generator[Step, Any, None]:
        """Leave `levels` levels (0: all) of the caller's hold.

        Raises:
            NotOwnedError: the caller holds nothing.
            LockLostError: the hold was lost before.
        """
        session = self._session
        hold = session.holds.get((name, who.key))
        if hold is None or hold.count == 0:
            raise session.holds.not_owned(name, who)
        if who.name is not None or self._by_tasks:
            key = (name, who.key)
            if not session.gates.try_enter(record, key, record.task or session.platform.current()):
                yield Enter(record, key, FOREVER)
            if hold.count == 0:  # another call of this owner was faster
                raise session.holds.not_owned(name, who)
        left = hold.count - levels if levels else 0
        record.count, record.hold = left, hold  # Note, then send
        if hold.loss is not None or session.clock() >= hold.deadline:
            self._check_before_release(hold, left)
        if left:
            written = session.closed or (yield from self._write_count(hold, left))
            if hold.loss is not None or session.clock() >= hold.deadline:
                self._check_before_release(hold, left)
            hold.count = left
            if not written:
                session.settle(hold)
        else:
            yield from self._end(hold)
        if record.gate is not None:
            record.over = None, 0
            session.gates.leave(record)

    def _check_before_release(self, hold: Hold, left: int) -> None:
        try:
            self._session.check_valid(hold)
        except LockLostError:
            hold.count = left
            if not left:
                self._interrupted.end_stand_in(hold)
            raise

    def _end(self, hold: Hold) -> Generator[Step, Any, None]:
        """End a hold whose last level is left: here and now, and then on the masters."""
        session, keys = self._session, hold.keys
        session.holds.pop((keys.name, hold.key), None)
        if session.closed:
            hold.count = 0
            session.undo(hold.keys, hold.owner, hold.token, hold.ttl, hold.undo_after)  # where it is just being closed
            return
        sent_at = session.clock()
        until = sent_at + session.node_timeout
        answers = (self._at_once and self._at_once(hold.ending, keys, hold.owner, sent_at, until)) or (
            yield Exchange(hold.ending, keys, hold.owner, sent_at, until, is_release_certain, ends=True)
        )
        reply: Any = answers[0][0]
        is_usual = len(answers) == 1 and reply.__class__ is list and reply[0] == b"released"
        if hold.healed or not (is_usual or count_status(answers, b"released") == len(answers)):
            self._end_elsewhere(hold, answers)
            return
        hold.count = 0
        if session.logs_events():
            session.emit(Released(hold.keys.name, session.clock() - hold.granted_at))

    def _end_elsewhere(self, hold: Hold, answers: Sequence[Answer]) -> None:
        """Do the rest of a release that not every master has confirmed.

        Raises:
            LockLostError: the hold was lost before.
        """
        session = self._session
        ending = release_flows.judge_end(hold, answers, session.quorum)
        if ending.is_lost:
            session.holds[hold.keys.name, hold.key] = hold  # a lost hold stays in the book until its owner knows
            session.lose(hold, FORGOTTEN)
            hold.count = 0
            raise lost_error(hold)
        hold.count = 0
        if ending.is_awaited:
            is_left = partial(hold.may_be_left, answers)
            undo = partial(session.undo_hold, hold)
            session.janitor.look_later(tasks.PendingCheck(is_left, answers, hold.late_until, undo))
        elif ending.is_left:
            session.janitor.hand(session.undo_hold(hold))
        if not ending.is_confirmed:
            session.emit(ReleaseUnconfirmed(hold.keys.name, hold.remaining(session.clock())))
        elif session.logs_events():
            session.emit(Released(hold.keys.name, session.clock() - hold.granted_at))

    # A condition's wait ---------------------------------------------------------------------------------------------

    def take_again(self, record: CallRecord, who: Who, hold: Hold, count: int) -> Generator[Step, Any, Outcome | None]:
        """Take `count` levels for the owner of `hold`, which a wait has given up; wait until the masters are back.

        The new hold has the options of the outermost level of `hold`, and what the other levels have asked for.
        If `hold` was found lost, it is in the book again afterwards, with its levels, for its owner to be told.
        Another hold stands in for it until these are left: what runs after the wait runs with the lock.
        """
        spec = evolve(hold.spec, patience=FOREVER)
        if hold.loss is None:
            outcome = yield from self.acquire(record, spec, who, FOREVER, count=count)
            if outcome is None:
                yield from self._restore(self._session.holds[spec.keys.name, who.key], hold)
            return outcome
        outcome = yield from self.acquire(record, spec, who._replace(key=stand_in(hold)), FOREVER)
        if outcome is None:
            self._book_waited(hold, count)
        return outcome

    def _restore(self, hold: Hold, before: Hold) -> Generator[Step, Any, None]:
        """Give `hold` what nested levels, or `extend`, had added to the hold before: callbacks, and a longer ttl."""
        session = self._session
        hold.callbacks[:] = before.callbacks
        if before.ttl > hold.ttl:
            hold.ask_for(before.ttl)
            yield from extend_flow((hold,), session.clock, session.node_timeout)
            session.watchdog.watch(hold)

    def lose_waited(self, hold: Hold, count: int, error: BaseException) -> None:
        """Report as lost the `count` levels of `hold` that a wait gave up and did not take again."""
        hold.renew_at = FOREVER  # the masters have it no more
        self._book_waited(hold, count)
        self._session.lose(hold, f"a condition's wait gave it up, and did not take it again: {error!r}")

    def _book_waited(self, hold: Hold, count: int) -> None:
        """Put a hold that has ended into the book again, with `count` levels for its owner to leave."""
        hold.count = count
        self._session.holds[hold.keys.name, hold.key] = hold
