"""Judgement of runs in which callers read and write.

Nobody else believes to have the lock while a writer does. An owner that has the lock as a writer may have it as a
reader as well. From the call of a downgrade on, a writer counts as a reader.

Tokens rise from writer to writer. A reader's is above those of earlier writers, and a writer's above those of earlier
readers.

Waiters are served in their order, but for readers among each other. So a writer that waits keeps out readers that
come after it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from attrs import define, evolve, field

from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._core.hold import Hold
from relock._core.quorum import NEVER, quorum_of
from relock._keys import READ, ReadKeys
from relock._owner import owner_key, waiter_name
from relock._runtime.session.session import Session
from relock._runtime.wakeups.waiter import Waiter
from relock.lock import Lock
from relock.testing._process import Process
from relock.testing._server import Server
from sim import leftovers
from sim.beliefs import Belief, Call, queued, still_waits
from sim.idle import HAND_OFF_SECONDS, Idle, Wait
from sim.referee import Referee

AT_ONCE_SECONDS = 0.2  # of two that come within this time, either may be the first in the queue
INTERRUPTED_SECONDS = 0.01  # within which an interrupted call has ended that has given up its place
READ_KEYS = ReadKeys(*leftovers.LOCK_KEYS)


def reads(hold: Hold) -> bool:
    """Return whether a hold is a reader's."""
    return hold.keys.kind == READ


def are_of_one_owner(one: Belief, other: Belief) -> bool:
    """Return whether one owner has both holds."""
    keys = [owner_key(key) for key in (one.hold.key, other.hold.key)]
    return one.process is other.process and keys[0] == keys[1]


@define
class ReadWriteIdle(Idle):
    """The moments since which readers, or a writer, could have got the lock, and the calls that wait."""

    _empty_at: float = 0.0  # since when a writer may get in, as far as readers have left
    _passed_at: float = 0.0  # when the last reader got in, which then lets the next one in

    def left_by(self, belief: Belief) -> None:
        """Note that an owner is about to end its hold: from now on, or from when its client acts."""
        if reads(belief.hold):
            self._empty_at = max(self._empty_at, self.world.now, self.stuck.until(belief.process))
        else:
            self.freed(belief.process)

    def passed(self) -> None:
        """Note that a reader got in, or gave up its place."""
        self._passed_at = max(self._passed_at, self.world.now)

    def died(self, process: Process, leases: list[float]) -> None:
        """Note that a process has crashed. Readers behind a writer of that process learn of it with a heartbeat."""
        super().died(process, leases)
        self._passed_at = self.world.now + HEARTBEAT_SECONDS

    def waits(self, calls: Iterable[Call], beliefs: Sequence[Belief], calm_at: float) -> list[Wait]:
        """Return those of these calls that wait though they could have the lock, and nobody ahead of them must wait."""
        calls = [call for call in calls if not call.process.is_dead]
        since = {call: self._free_since(call, beliefs) for call in calls}
        found = []
        for call in calls:
            # Before all is well, connections are not open yet: those that come then may queue in any order.
            latest = max(call.called_at + AT_ONCE_SECONDS, calm_at)
            ahead = [since[one] for one in calls if one.called_at <= latest]
            begin = max(*ahead, calm_at, call.called_at, self.stuck.until(call.process))
            if (seconds := self.world.now - begin - HAND_OFF_SECONDS) > 0:
                found.append(Wait(call, begin, seconds))
        return sorted(found, key=lambda one: -one.seconds)

    def _free_since(self, call: Call, beliefs: Sequence[Belief]) -> float:
        """Return the moment since which a call could get the lock; infinity if it can't now."""
        since = self._free_at
        if sum(process.is_dead for process, _ in self._sessions) > 1:
            since += HEARTBEAT_SECONDS  # no message tells the end of a lease
        since = max(since, self._passed_at if call.reads else self._empty_at)
        for belief in beliefs:
            if not belief.has_left and not (call.reads and reads(belief.hold)) and belief.hold.deadline != NEVER:
                since = max(since, self._end(belief))
        return since if since <= self.world.now else float("inf")

    def _end(self, belief: Belief) -> float:
        """Return the true time from which on others may know that a hold has run out on all masters.

        A writer knows the latest lease of the readers. If that reader leaves, and the lease of another one ends sooner,
        the writer learns of it with its next heartbeat.
        """
        ends_at = belief.process.true(belief.hold.deadline) + self._expiry(belief.hold)
        return ends_at + (HEARTBEAT_SECONDS if reads(belief.hold) else 0.0)


@define
class ReadWriteReferee(Referee):
    """Referee of a read-write lock."""

    _written: int = 0  # the highest token of a writer so far
    _writer: Process | None = None  # the process that got that token
    _served: defaultdict[bytes, set[int]] = field(factory=lambda: defaultdict(set))  # the masters that served a waiter

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for server in self.servers:
            server.tell = self._look_at

    def _look_at(self, server: Server) -> None:
        """Judge the holds of a master on which a script has run: a writer has it alone, but for its own reading."""
        owners = list(leftovers.holds_on(server, self.keys))
        for number, owner in enumerate(owners):
            self._served[waiter_name(owner)].add(server.number)
            for other in owners[:number]:
                if not leftovers.may_be_beside(owner, other):
                    self.violate(f"{server.name} has given the lock to {owner.decode()} and {other.decode()}")

    def _make_idle(self) -> Idle:
        return ReadWriteIdle(self.world, self.servers, self.plan, self.stuck, self._sessions, keys=self.keys)

    def _idle(self) -> ReadWriteIdle:
        assert isinstance(self.idle, ReadWriteIdle)
        return self.idle

    # The events -----------------------------------------------------------------------------------------------------

    def asked(self, process: Process, timeout: float, *, fair: bool, reads: bool, beside: Belief | None = None) -> Call:
        """Note that a caller asks for one side; `beside` is its belief as the writer, beside which it reads at once."""
        call = super().called(process, timeout, fair=fair and beside is None)
        self.idle.waiting.pop(call, None)
        highest = self._written if reads else self._highest
        ahead = tuple(one for one in call.ahead if not reads or one[1].keys == self.keys)  # readers may pass readers
        call = evolve(call, ahead=ahead, highest=highest, reads=reads, beside=beside)
        if timeout and beside is None:
            self.idle.waiting[call] = None
        return call

    def _queued(self) -> tuple[tuple[Process, Waiter], ...]:
        return queued(self._sessions, self.keys) + queued(self._sessions, READ_KEYS)

    def over(self, call: Call) -> None:
        """Note that a call has ended: those behind it may be served only from now on."""
        super().over(call)
        if call.reads:
            self._idle().passed()
        elif self.idle.waiting:
            self.idle.freed(call.process)

    def refused(self, call: Call) -> None:
        """Judge that a caller was refused the lock, which one that is the writer must not be."""
        super().refused(call)
        writer = call.beside
        is_sure = self._must_succeed and call.called_at >= self.calm_at
        if writer and is_sure and writer.is_believed() and not writer.may_be_ended:
            self.violate(f"{call.process.name} may not read though it is the writer")

    def granted(self, lock: Lock, hold: Hold, call: Call) -> Belief:
        """Judge the grant to a caller; return the belief that begins."""
        belief = super().granted(lock, hold, call)
        belief.shares = call.reads
        if reads(hold) != call.reads:
            self.violate(f"{call.process.name} got the other side: {hold.owner.decode()}")
        return belief

    def leaves(self, belief: Belief) -> None:
        """Note that a holder is about to release its last level of one side."""
        free_at = self.idle._free_at
        super().leaves(belief)
        self.idle._free_at = free_at
        self._idle().left_by(belief)

    def forked(self, process: Process, lock: Lock) -> None:
        """Judge a child that was just forked; `lock` is of the child's client."""
        rw = lock._client.rwlock(lock.name, owner=lock._named_owner and lock._named_owner.name)  # type: ignore[attr-defined]
        super().forked(process, rw.read)
        super().forked(process, rw.write)

    # The rules ------------------------------------------------------------------------------------------------------

    def check_exclusion(self) -> None:
        """Check that a writer believes alone, and that nobody waits for a lock that it could have."""
        super().check_exclusion()
        for call, since, seconds in self._check_idle(*self.idle.waiting):
            is_over = self.world.now > self.clocks.leases_last_until(self.plan.longest)
            if is_over and seconds > self.stuck.cost(call, since):
                self.idle.waiting.pop(call)
                what = "read" if call.reads else "write"
                self.violate(f"{call.process.name} waited for {self.world.now - since:.3f} s though it could {what}")

    def _may_share(self, one: Belief, other: Belief) -> bool:
        return (one.shares and other.shares) or are_of_one_owner(one, other)

    def _check_grant(self, belief: Belief, call: Call) -> None:
        belief.shares = call.reads
        highest = self._highest
        super()._check_grant(belief, call)
        self._highest = max(highest, belief.hold.token)
        if not call.reads and belief.hold.token > self._written:
            self._written, self._writer = belief.hold.token, belief.process

    def _highest_before(self, belief: Belief, call: Call) -> int:
        """Return the largest token, of those that this one must be above, that was certainly granted before it."""
        if not call.reads:
            return super()._highest_before(belief, call)
        writer = self._writer
        is_late = writer is not None and self.clocks.is_deceived(belief.process, belief.hold, belief.since, writer)
        return call.highest if is_late or belief.may_be_ended else self._written

    def _check_idle(self, *calls: Call) -> list[Wait]:
        """Return the calls that have waited for long; `check_exclusion` judges all that wait."""
        return self.idle.waits(calls, self.beliefs, self.calm_at)

    def _passes(self, call: Call, session: Session, waiter: Waiter) -> None:
        """Wait a moment: a waiter whose call is being interrupted has left the queue, and readers get in at once."""

        def check() -> None:
            waits = still_waits(session, waiter, masters_move=False)
            if waits or self._is_served(waiter):
                super(ReadWriteReferee, self)._passes(call, session, waiter)

        self.world.after(INTERRUPTED_SECONDS, check)

    def _is_served(self, waiter: Waiter) -> bool:
        """Return whether a quorum has let this waiter in, which may not have heard of that: readers get in together."""
        return len(self._served[waiter.owner]) >= quorum_of(len(self.servers))
