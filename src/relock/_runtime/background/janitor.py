"""Janitor: the thread for requests that must reach the masters, but not delay a caller: undos, heartbeats and more.

The janitor sends an undo at once. It sends the undo again after its not-after time, when the undone request can no
longer arrive. If a master does not answer, the janitor repeats the undo until the lease has run out by itself. When the
client is closed, the janitor finishes what is pending, as `Janitor.stop` says.

Tasks that are due together go out in one round. A round waits for all masters: if each task had its own round, a slow
master would delay each of them, and the heartbeats after them.
"""

import heapq
import itertools
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from relock._core.clocks import ClockStep
from relock._core.effects import Answer, Ask, Failure
from relock._core.flows import release
from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._core.flows.extend import heal
from relock._core.flows.quarantine import is_own_step, is_undecided, quarantine, sample
from relock._core.hold import FOREVER, Hold
from relock._core.quorum import NEVER, is_status
from relock._core.tasks import Accuse, GoOn, Heal, PassOn, PendingCheck, Sample, Settle, Task, UndoTask
from relock._owner import waiter_name
from relock._runtime.background.chase import Chase
from relock._runtime.background.places import Places, beat_pause
from relock._runtime.background.session_view import SessionView
from relock._runtime.service import Service

logger = logging.getLogger("relock.background")

RETRY_SECONDS_MAX = 2.0
HEAL_RETRY_SECONDS_MAX = 0.05
BATCH = 100  # tasks that are carried out together, before the thread looks again which tasks are due
CHECK_SECONDS = 0.1  # between two looks at the late answers of slow masters
CLOSING_CHECK_SECONDS = 0.005  # the same while the client is being closed, because `close` waits
CLOSING_TRIES = 10  # tries of an undo in a node timeout, while the client is being closed and a master is silent
OUTDATED_SECONDS = 0.02  # pause before an outdated count is written anew, while a master is silent
NOT_AFTER_SLACK_SECONDS = 0.001  # an undo is repeated this long after its not-after time
SAME_STEP_SECONDS = 5.0  # steps that several masters show within this time may be one step of our clock
HEARTBEAT_SLACK_SECONDS = 0.05  # to hasten a heartbeat by less than this is not worth waking the thread
_order = itertools.count()


class _Due(NamedTuple):
    at: float
    order: int  # a different number for each, so that tasks are never compared
    task: Task


class Janitor(Service):
    """Thread that carries out tasks in the order in which they are due."""

    name = "relock-janitor"

    def __init__(self, session: SessionView) -> None:
        super().__init__(session.platform)
        self._session = session
        self._incoming: SimpleQueue[Task | None] = session.platform.queue()
        self._due: list[_Due] = []
        self._places = Places(session)
        self.chase = Chase(session, self._chase_at)
        self._beat_at = FOREVER  # when the next heartbeat is due; set by this thread alone
        self._asked_for: deque[float] = deque()  # earlier moments at which callers need the next heartbeat
        self._wakes_at = FOREVER  # until when the thread sleeps
        self._is_closing = self._is_hurried = False
        self._closes_by = NEVER  # while closing: when the time for pending work is over
        self._checks: deque[PendingCheck] = deque()
        self._checks_at = FOREVER  # when the checks are due; set by this thread alone
        self._rechecks: set[Hold] = set()  # the holds for which a `_recheck` is planned
        self._deeds: dict[type[Any], Callable[[Sequence[Any]], None]] = {
            GoOn: self._go_on,
            UndoTask: self._undo,
            PassOn: self._pass_on,
            Settle: self._settle,
            Heal: self._heal,
            Accuse: self._accuse_all,
            Sample: self._sample,
        }

    def hand(self, task: Task) -> None:
        """Take on a task; return at once."""
        self._incoming.put(task)
        self.ensure()

    def look_later(self, check: PendingCheck) -> None:
        """Have the `check` made when all answers should have come; only the first of many wakes the thread."""
        self._checks.append(check)
        if self._checks_at == FOREVER:  # Mark, then look: else checks are planned already, and will include this one
            self._incoming.put(None)
        self.ensure()  # each time: the first check may have failed to start the thread

    def ensure_beating(self, lease_end: float) -> None:
        """Have heartbeats sent from now on for a new waiter; the next one when the holder's lease ends."""
        now = self._session.clock()
        due = now + beat_pause(lease_end - now)
        if due < self._beat_at - HEARTBEAT_SLACK_SECONDS:
            self._asked_for.append(due)
        if min(due, self._beat_at) < self._wakes_at:
            self._incoming.put(None)  # else the thread would sleep too long
        self.ensure()

    def beat_now(self) -> None:
        """Have a heartbeat sent at once, if there are waiters."""
        self._asked_for.append(self._session.clock())
        self._incoming.put(None)
        self.ensure()

    def step(self) -> None:
        """Wait for a task or the next due moment, and carry out the tasks that are due by then."""
        if self._is_closing and self._is_finished():
            super().stop()
            return
        self._wakes_at = FOREVER  # Mark, then look: a caller that wants a heartbeat from here on wakes the thread
        slept_at = self._session.clock()
        self._wakes_at = moment = self._next_moment()
        try:
            task = self._incoming.get(timeout=None if moment == FOREVER else max(0.0, moment - slept_at))
        except Empty:
            task = None
        self._wakes_at = FOREVER
        now = self._session.clock()
        if moment < FOREVER:
            self._places.woke(max(moment, slept_at), now)
        if task is not None:
            self._later(now, task)
        self._take_in(now)
        self._act_on_due(now)

    def _take_in(self, at: float) -> None:
        """Take in the tasks that were handed in; each is due at the moment `at`."""
        while not self._incoming.empty():
            task = self._incoming.get_nowait()
            if task is not None:
                self._later(at, task)

    def _next_moment(self) -> float:
        """Return when something is due; infinity where nothing is."""
        if self._checks and self._checks_at == FOREVER:
            self._checks_at = self._session.clock() + self._check_pause()
        due_at = self._due[0].at if self._due else FOREVER
        return min(self._checks_at, due_at, self._next_heartbeat())

    def _next_heartbeat(self) -> float:
        """Return when the next heartbeat is due; infinity if no hub needs one, or the client is being closed."""
        if self._beat_at < FOREVER and not self._must_beat():
            self._beat_at = FOREVER
            if self._must_beat():  # Mark, then look: a waiter that came in between may rely on the old moment
                self._beat_at = self._session.clock()
        while self._asked_for:
            self._beat_by(self._asked_for.popleft())
        return self._beat_at if self._must_beat() else FOREVER

    def _must_beat(self) -> bool:
        return not self._is_closing and self._session.hubs.are_attended

    def _act_on_due(self, now: float) -> None:
        """Send a heartbeat that is due, then do a single batch of tasks, so that tasks delay no heartbeat for long."""
        if self._next_heartbeat() <= now:
            self._beat()
        due: list[Task] = []
        while self._due and self._due[0].at <= now and len(due) < BATCH:
            due.append(heapq.heappop(self._due).task)
        self._act(*due)
        if self._checks_at <= now:
            self._run_checks()

    def _act(self, *tasks: Task) -> None:
        """Carry out tasks, those of a kind together: a slow master delays a kind once, not each of its tasks.

        If one kind fails, raise its error; the kinds that have not been carried out become due again.
        """
        by_kind: defaultdict[type[Task], list[Any]] = defaultdict(list)
        for task in tasks:
            by_kind[task.__class__].append(task)
        left = deque(by_kind.items())
        try:
            while left:
                kind, some = left.popleft()
                self._deeds[kind](some)
        finally:
            for task in itertools.chain.from_iterable(others for _, others in left):
                self._later(self._session.clock(), task)

    def _go_on(self, tasks: Sequence[GoOn]) -> None:
        for task in tasks:
            task.do()

    def _sample(self, _tasks: Sequence[Sample]) -> None:
        session = self._session
        session.ask_shielded(sample(session.prefix, session.clock() + session.node_timeout))

    def _later(self, at: float, task: Task) -> None:
        heapq.heappush(self._due, _Due(at, next(_order), task))

    def _undo(self, tasks: Sequence[UndoTask]) -> None:
        by_masters: defaultdict[frozenset[int] | None, list[UndoTask]] = defaultdict(list)
        for task in tasks:
            by_masters[task.left].append(task)
        for left, some in by_masters.items():
            self._undo_batch(some, left)

    def _undo_batch(self, tasks: Sequence[UndoTask], left: frozenset[int] | None) -> None:
        session = self._session
        tasks = [self._as_wanted(task) for task in tasks]
        sent_at = session.clock()
        calls = tuple(release.undo_call(task, sent_at) for task in tasks)
        answers = session.ask_shielded(Ask(calls, self._answer_by(sent_at), only=left))
        asked = range(len(answers)) if left is None else left
        now = session.clock()
        for i, task in enumerate(tasks):
            silent = frozenset(master for master in asked if isinstance(answers[master][i], Failure))
            done = not silent
            if task.keeps_place and any(is_status(answer[i], b"released") for answer in answers):
                session.hubs.look_again(waiter_name(task.owner))  # the master has woken only other waiters
            if done and sent_at > task.not_after:  # by the time of sending: until then the undone request may come
                session.counters.undos += 1
                continue
            if now >= task.give_up_at and not done:
                text = "%s could not be undone everywhere; its lease has run out"
                session.platform.log.debug(logger, text, task.owner.decode())
            elif done:
                self._later(task.not_after + NOT_AFTER_SLACK_SECONDS, task)
            else:
                again = task._replace(pause=min(2 * task.pause, RETRY_SECONDS_MAX))
                if sent_at > task.not_after:  # from now on, ask only the masters that were silent
                    again = again._replace(left=silent)
                pause = min(task.pause, session.node_timeout / CLOSING_TRIES) if self._is_closing else task.pause
                self._later(min(now + pause, task.give_up_at), again)
        self._take_out([PassOn(t.keys, waiter_name(t.owner)) for t in tasks if not self._still_waits(t)])

    def _as_wanted(self, task: UndoTask) -> UndoTask:
        """Return the undo for now: it restores no place if the waiter has left or the client is closed."""
        if self._session.closed:
            return task._replace(keeps_place=False, ticket=0)
        return task if self._still_waits(task) else task._replace(ticket=0)

    def _still_waits(self, task: UndoTask) -> bool:
        """Return whether the waiter of an undo that must restore its place still waits."""
        return not task.ticket or self._session.hubs.waiter(waiter_name(task.owner)) is not None

    def _run_checks(self) -> None:
        """Make the pending checks: plan the tasks of those whose answers leave work to do, unless more may come."""
        self._checks_at = FOREVER
        for master in self._session.masters:
            for server in master.servers:
                server.pool.drain()
        now = self._session.clock()
        for _ in range(len(self._checks)):
            check = self._checks.popleft()
            if not check.is_left():
                continue
            if check.is_open(now):
                self._checks.append(check)
            else:
                self._later(now, check.task())
        if self._checks:
            self._checks_at = now + self._check_pause()

    def _take_out(self, gone: Sequence[PassOn]) -> None:
        """Give up the places of waiters that left while a script was on its way that restores such places."""
        self._pass_on(gone)
        for task in gone:
            self._later(self._session.clock() + self._session.node_timeout, task)  # a slow master may run it later

    def _pass_on(self, tasks: Sequence[PassOn]) -> None:
        """Give up places, many in one round, so that a slow master does not delay the next heartbeat for long."""
        session = self._session
        for i in range(0, len(tasks), BATCH):
            calls = tuple([release.leave_call(task.keys, task.owner) for task in tasks[i : i + BATCH]])
            session.ask_shielded(Ask(calls, self._answer_by(session.clock())))
        if self._places.were_given_up([task.owner for task in tasks]):
            self._beat_by(session.clock())  # the heartbeat restores the place of a waiter that can act again

    def _settle(self, tasks: Sequence[Settle]) -> None:
        """Write hold counts to all masters; owners may go on meanwhile, and write other counts."""
        session, now, open_ = self._session, self._session.clock(), []
        for task in tasks:
            if task.hold.count > 0 and task.hold.remaining(now) > 0:
                open_.append((task, task.hold.wanted))
            else:
                task.hold.settling = False
        if open_:
            counts = [(task.hold, count) for task, count in open_]
            answers = session.run_shielded(release.write_counts(counts, session.clock, session.node_timeout))
            for i, (task, count) in enumerate(open_):
                self._look_after(task, count, now, is_left=release.may_be_uncounted(answers, i))

    def _look_after(self, task: Settle, count: int, sent_at: float, *, is_left: bool) -> None:
        """Plan another `Settle` if the `count` is outdated, was not written everywhere, or may yet be overwritten."""
        hold, now = task.hold, self._session.clock()
        if hold.wanted != count:
            self._later(now + (OUTDATED_SECONDS if is_left else 0.0), Settle(hold))
            return
        if is_left:
            if not self._is_closing:
                self._later(now + task.pause, Settle(hold, min(2 * task.pause, RETRY_SECONDS_MAX)))
            return
        hold.settling = False  # Mark, then look: from here on, a caller hands in another `Settle` itself
        if sent_at <= hold.counts_until and hold not in self._rechecks and not self._is_closing:
            self._rechecks.add(hold)
            self._later(hold.counts_until + 0.001, GoOn(partial(self._recheck, hold)))

    def _recheck(self, hold: Hold) -> None:
        """Settle the count once more, when no older count can arrive any more, unless a `Settle` is pending."""
        self._rechecks.discard(hold)
        if not hold.settling:
            hold.settling = True
            self._later(self._session.clock(), Settle(hold))

    def _heal(self, tasks: Sequence[Heal]) -> None:
        """Heal holds; try again in a moment if an attempt of another client was in the way.

        A client that keeps on trying makes and undoes an attempt within milliseconds, so chance decides which of the
        two finds the master free. The pauses are short and random, so that no rhythm always favours the other client.
        """
        session = self._session
        holds = tuple(dict.fromkeys(hold for task in tasks for hold in task.holds))
        until, pause = min(task.until for task in tasks), min(task.pause for task in tasks)
        refused = session.run_shielded(heal(holds, session.holds.has, session.clock, session.node_timeout))
        now = session.clock()
        if refused and now < until and not self._is_closing:
            longer = min(2 * pause, HEAL_RETRY_SECONDS_MAX)
            self._later(now + 2 * pause * session.platform.chance(), Heal(refused, until, longer))

    def _accuse_all(self, tasks: Sequence[Accuse]) -> None:
        for task in tasks:
            self._accuse(task)

    def _accuse(self, task: Accuse) -> None:
        """Quarantine a master whose clock stepped, unless samples of all clocks show that our own clock did."""
        session = self._session
        sampled = session.ask_shielded(sample(session.prefix, session.clock() + session.node_timeout))
        shown, master = task.step, session.masters[task.step.master]
        # Within a time of that step, not of now: a silent master may have delayed the samples by a node timeout.
        steps = [step for step in session.steps.copy() if abs(step.seen_at - shown.seen_at) < SAME_STEP_SECONDS]
        count = len(session.masters)
        if is_own_step(shown, steps, count):
            master.facts.trust(shown.shown_us)
            text = "a quorum of the masters shows the same step: it was this machine's clock"
            session.platform.log.warning(logger, text)
            return
        unheard = self._unheard(sampled, steps, shown.seen_at - SAME_STEP_SECONDS)
        if task.waits and not self._is_closing and is_undecided(unheard, steps, count):
            self._later(session.clock() + session.node_timeout, task._replace(waits=False))
            return
        until = session.clock() + session.node_timeout
        answers = session.ask_shielded(quarantine(session.prefix, session.client_id, master.facts.incarnation, until))
        if not is_status(answers[master.index][0], b"quarantined"):
            text = "%s keeps its vote, though its clock stepped: %s"
            session.platform.log.warning(logger, text, master.address, answers)
            if isinstance(answers[master.index][0], Failure) and task.pause <= RETRY_SECONDS_MAX:
                self._later(session.clock() + task.pause, task._replace(pause=2 * task.pause))

    def _unheard(self, sampled: Sequence[Answer], told: Sequence[ClockStep], since: float) -> set[int]:
        """Return the masters that are silent, or whose step another thread has seen and not reported yet."""
        told_at = {step.master: step.seen_at for step in told}
        return {
            master.index
            for master, answer in zip(self._session.masters, sampled, strict=True)
            if isinstance(answer[0], Failure) or master.facts.offset.stepped_at > told_at.get(master.index, since)
        }

    def _beat(self) -> None:
        """Send a heartbeat for the waiters that can act, and give up the places of the others."""
        now = self._session.clock()
        self._beat_at = now + HEARTBEAT_SECONDS
        for task in self._places.give_up(now):
            self._later(now, task)
        next_at, gone = self._places.keep(now)
        self._beat_by(next_at)
        self._take_out(gone)
        if (chase_at := self.chase.next_at()) <= self._beat_at:
            self._chase_at(chase_at)
        self._session.hubs.tidy()

    def _chase_at(self, moment: float) -> None:
        self._later(moment, GoOn(self.chase.begin))

    def _beat_by(self, moment: float) -> None:
        """Have the next heartbeat sent at `moment`, unless one is due earlier."""
        self._beat_at = min(self._beat_at, moment)

    def _is_finished(self) -> bool:
        """Return True if nothing is pending, or its time is over: a node timeout after the last not-after time.

        A grant to a waiter that has left may still be on its way when all places have been given up. So the janitor
        first waits for the messages that were published before then.
        """
        session = self._session
        self._take_in(NEVER)
        now = session.clock()
        if not self._is_hurried:
            self._hurry(now)
        pending = [check.until for check in self._checks] + [_not_after(due) for due in self._due]
        if pending:
            self._closes_by = max(self._closes_by, max(pending) + session.node_timeout)
        elif now < self._closes_by:
            session.hubs.catch_up(self._answer_by(now))
        return now >= self._closes_by or (not pending and self._incoming.empty())

    def _hurry(self, now: float) -> None:
        """Make all pending tasks due at once, except those that have to wait for a not-after time."""
        self._is_hurried = True
        self._checks_at = now if self._checks else FOREVER
        self._due = [due._replace(at=min(due.at, _not_after(due) + NOT_AFTER_SLACK_SECONDS)) for due in self._due]
        heapq.heapify(self._due)

    def _check_pause(self) -> float:
        return CLOSING_CHECK_SECONDS if self._is_closing else CHECK_SECONDS

    def _answer_by(self, now: float) -> float:
        """Return until when to wait for the masters' answers to a request that is sent now.

        While the client is being closed, that is half of the time left, so that another connection can still be tried.
        """
        until = now + self._session.node_timeout
        return min(until, max(now, (now + self._closes_by) / 2)) if self._is_closing else until

    def wake(self) -> None:
        """Wake the thread, which then looks which tasks are due."""
        self._incoming.put(None)

    def stop(self) -> None:
        """Have the thread end once nothing is pending, or its time is over; without a thread, the caller does this."""
        self._closes_by = self._session.clock() + self._session.node_timeout
        self._is_closing = True
        self._incoming.put(None)
        if not self.running:
            self._run()  # the thread was never needed, can't be started, or has not begun to run yet


def _not_after(due: _Due) -> float:
    """Return the time after which the request that a task undoes can't arrive any more."""
    task = due.task
    if isinstance(task, UndoTask):
        return task.not_after
    return due.at if isinstance(task, PassOn) else NEVER
