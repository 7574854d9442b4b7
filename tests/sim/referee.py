"""Referee, which checks the rules that hold in every run.

The referee knows the true time, and may look into every process and every master. It counts as a violation

* two owners that believe at the same moment that they have the lock;
* a token that is not above all before it;
* a hold count that differs from the number of levels, here or, when all is well, on a quorum of the masters;
* a waiter that was queued before another one came, and is served after it (`fair`, when all is well);
* a wait that lasts longer than its timeout; an acquire that fails for want of a quorum, when all is well;
* a lock that stays free while a thread waits for it, and a hold that is lost, when all is well; clients that cannot act
  for a while cost some time each;
* an attempt that is not undone, when all is well; and anything at all that a master still has in the end;
* the hold of a task whose loop is closed, after its lease; anything of a client whose `close` has returned;
* a hold or a waiter that an interrupted call has left, or a hold or a connection that a child has of its parent;
* a vote that a master has lost though its clock was right, or has kept though a client could see its clock step; a vote
  that it has lost for a client that knows other masters, too;
* in wider runs, a lease that is shorter than its owner asked for or counts on, or that was not renewed though there was
  time;
* a master that a slow event loop takes for silent, when all is well;
* an error in any thread that is not one of relock's. `sim.several` has what is different with several locks.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import combinations

from attrs import define, field

from relock._core.hold import Hold
from relock._core.quorum import NEVER, TOO_LATE, quorum_of
from relock._errors import NotOwnedError, QuorumError
from relock._events import MasterDown
from relock._keys import LockKeys
from relock._runtime.session.session import Session
from relock._runtime.wakeups.waiter import Waiter
from relock.lock import Lock
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim import leftovers
from sim.beliefs import Belief, Call, queued, still_waits
from sim.clocks import ACCUSED_SECONDS, LOOKED_SECONDS, Clocks, TrueStep
from sim.ends import Ends
from sim.fork import InheritedConnection
from sim.given import Given
from sim.idle import Idle, Wait
from sim.leases import Leases
from sim.lengths import Lengths
from sim.plan import STRANGER, Plan
from sim.rests import Rests
from sim.stuck import Stuck

COUNT_SECONDS = 0.1  # until all masters have a count that was changed, when all is well
SPLIT_SECONDS = 2.0  # after a split, in which tokens may fall: the clocks behind one address differ by less
LATE_SECONDS = 0.2  # after a node timeout, in which waits may end that end at one moment in great number
OVERSHOOT_SECONDS = 0.7  # after its timeout, in which a wait may end: two node timeouts, and some


@define
class Referee:
    """Judge of the beliefs of all owners.

    Attributes:
        calm_at: the true time from which all is well; infinity while that is not known.
        given: which servers have had which holds, if masters move.
        faults: how many of each kind have struck.
        keys: those of the lock that is judged.
        family: the referees of all locks of the run, by name; they share what is no lock's own.
    """

    world: World
    servers: Sequence[Server]
    plan: Plan
    calm_at: float = float("inf")
    given: Given | None = None
    beliefs: list[Belief] = field(factory=list)
    grants: int = 0
    violations: list[str] = field(factory=list)
    faults: Counter[str] = field(factory=Counter)
    operators: int = 0  # that are about to end holds by force: owners believe in these until their next renewal
    _forced_at: float = NEVER  # the moment at which the last of them ended
    _highest: int = 0  # the highest token so far
    _leader: Process | None = None  # the process that got that token
    clocks: Clocks = field(init=False)
    leases: Leases = field(init=False)
    lengths: Lengths = field(init=False)
    ends: Ends = field(init=False)
    idle: Idle = field(init=False)
    rests: Rests = field(init=False)
    _judges_votes: bool = field(init=False)  # by the plan at the beginning, because the network changes
    _must_succeed: bool = field(init=False)
    stuck: Stuck = field(init=False)
    _sessions: list[tuple[Process, Session]] = field(factory=list)
    keys: LockKeys = leftovers.LOCK_KEYS
    family: dict[str, "Referee"] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.clocks = Clocks(self.world, self.servers, self.plan.guard)
        self.leases = Leases(self.world, self.servers, self.plan)
        self.lengths = Lengths(self)
        self.stuck = Stuck(self.world)
        self.idle = self._make_idle()
        self.rests = Rests(self.world, self.idle, self.violate)
        ends = self.world, self.servers, self.idle, self.stuck, self._sessions, self.violate
        self.ends = Ends(*ends, keys=self.keys)
        self.family[self.keys.name] = self
        self._judges_votes = self.plan.only_clocks_fail
        # A stranger's larger guard refuses each client once.
        self._must_succeed = self.plan.is_prompt and STRANGER not in self.plan.kinds

    def _make_idle(self) -> Idle:
        return Idle(self.world, self.servers, self.plan, self.stuck, self._sessions, keys=self.keys)

    def meet(self, process: Process, session: Session) -> None:
        """Add a client to those that are judged."""
        self._sessions.append((process, session))
        self.clocks.meet(process, session)

    @property
    def is_calm(self) -> bool:
        """Return whether all is well."""
        return self.world.now >= self.calm_at

    # The events -----------------------------------------------------------------------------------------------------

    def struck(self, whom: str, kind: str, seconds: float) -> None:
        """Note that a fault strikes."""
        self.faults[kind] += 1
        self.leases.hindered(seconds)
        self.world.note(whom, f"{kind} {seconds}")

    def told(self, process: Process, event: object) -> None:
        """Judge an event of a client of tasks, whose loop may have been slow, but must not blame the masters."""
        if isinstance(event, MasterDown) and self.is_calm and self.plan.are_all_prompt:
            self.violate(f"{process.name} took {event.master} for silent though all is well: {event.why}")

    def called(self, process: Process, timeout: float, *, fair: bool = True) -> Call:
        """Note that a thread asks for the lock; the waiters that are queued by now are ahead of it."""
        ahead = self._queued()
        call = Call(process, self.world.now, process.local(), timeout, ahead, self._highest, fair)
        if timeout:
            self.idle.waiting[call] = None
        return call

    def _queued(self) -> tuple[tuple[Process, Waiter], ...]:
        """Return the waiters that are queued by now."""
        return queued(self._sessions, self.keys)

    def over(self, call: Call) -> None:
        """Note that a call has ended, in whatever way."""
        self.idle.waiting.pop(call, None)

    def refused(self, call: Call) -> None:
        """Judge that a thread was refused the lock."""
        self.check_timeout(call)
        if call.timeout:
            self._check_idle(call)

    def failed(self, call: Call, error: QuorumError) -> None:
        """Judge that a thread was told that no quorum has answered."""
        self.check_timeout(call)
        is_its_fault = TOO_LATE in str(error) and self.stuck.was(call.process, call.called_at)
        if call.called_at >= self.calm_at and self._must_succeed and not is_its_fault:
            self.violate(f"{call.process.name} got an error though all is well: {error}")

    def granted(self, lock: Lock, hold: Hold, call: Call) -> Belief:
        """Judge the grant to a thread; return the belief that begins."""
        self.grants += 1
        process = call.process
        self.check_timeout(call)
        waits = self._check_idle(*{call: None, **self.idle.waiting})
        for wait in waits[:1]:
            self.stuck.pay(*wait)
        self._check_order(call)
        self.rests.granted(process)
        was_ended = self._was_ended(process, hold)
        belief = Belief(
            process,
            lock,
            hold,
            call.called_at,
            is_over=was_ended,
            counted_at=self.world.now,
            may_be_ended=was_ended or self.operators > 0,
        )
        if self.given is not None and self.given.places(hold) < quorum_of(len(self.servers)):
            self.violate(f"{process.name} has what no quorum has given: {hold.owner.decode()}")
        if belief.is_believed():  # else its process stood still until the hold was over, and others may have had it
            self._check_grant(belief, call)
        self.beliefs = [one for one in self.beliefs if not one.has_left and not one.process.is_dead]
        self.beliefs.append(belief)
        self.ends.granted(belief)
        self.world.note(process.name, f"has it as {hold.owner.decode()}, token {hold.token}")
        return belief

    def interrupted(self, call: Call, waiting: int, *, owns: bool) -> None:
        """Judge the end of an outermost acquire by an exception.

        `waiting` others of this client are under way. The caller `owns` the lock, by what its client says.
        """
        process = call.process
        self.world.note(process.name, "is interrupted")
        self.idle.freed(process)  # a hold that it may have had is undone from now on
        if owns:
            self.violate(f"{process.name} has it by an acquire that was interrupted")
        if any(len(session.hubs.waiters()) > waiting for other, session in self._sessions if other is process):
            self.violate(f"{process.name} waits for a call that was interrupted")

    def forked(self, process: Process, lock: Lock) -> None:
        """Judge a child that was just forked; its parent had used this lock."""
        if lock.owned() or lock.hold_count:
            self.violate(f"{process.name} has what its parent has")
        with suppress(NotOwnedError):
            lock.release()
            self.violate(f"{process.name} has released what its parent has")
        if any(isinstance(raw, InheritedConnection) for raw in process.connections):
            self.violate(f"{process.name} keeps connections of its parent")

    def stepped(self, number: int, seconds: float) -> None:
        """Note that the clock of a master is set."""
        step = self.clocks.step(number, seconds)
        if self._judges_votes:
            self.world.after(LOOKED_SECONDS, lambda: self._expect_accusation(step))

    def look(self, belief: Belief, levels: int) -> None:
        """Judge a hold that its holder checks."""
        self.check_exclusion()
        counted = belief.lock.hold_count  # reads the clock, after which a thread may pause
        if not belief.is_believed():
            self._check_loss(belief)
            return
        if belief.was_lost:
            self.violate(f"{belief.process.name} has what it had lost")
        if counted != levels:
            self.violate(f"{belief.process.name} counts {counted}, not {levels}")
        is_counted = self.is_calm and not self.operators and belief.kept_until == NEVER
        if is_counted and self.world.now - belief.counted_at > COUNT_SECONDS:
            self._violate_all(leftovers.miscounted(self.servers, belief, levels))

    def counted(self, belief: Belief) -> None:
        """Note that a holder took or left a level."""
        belief.counted_at = self.world.now

    def leaves(self, belief: Belief) -> None:
        """Note that a holder is about to release the last level."""
        belief.is_over = belief.has_left = True
        self.idle.freed(belief.process)
        self.world.note(belief.process.name, "releases it")
        self.rests.released(belief)
        if self.is_calm:
            self.ends.released(belief)

    def died(self, process: Process) -> None:
        """Note that a process has crashed: its holds end with their leases, and so do those of its waiters."""
        self.idle.died(process, [one.hold.ttl for one in self.beliefs if one.process is process and not one.is_over])

    def is_undisturbed(self, belief: Belief) -> bool:
        """Return whether nothing could end a lease before its time, or make this client shorten one for its clock."""
        is_forced, clocks = self.operators or self._forced_at != NEVER, self.clocks
        return not (is_forced or clocks.steps or clocks.has_forgotten or belief.process.stood_still(0.0))

    # The rules ------------------------------------------------------------------------------------------------------

    def check_exclusion(self) -> None:
        """Check that no two owners believe at this moment that they have the lock."""
        believers = self._believers()
        if len(believers) > 1 and self._are_rivals(believers):
            self.violate(f"two believe that they have it: {', '.join(one.process.name for one in believers)}")
        if self.plan.wide:
            self._check_leases(believers)

    def _check_leases(self, believers: list[Belief]) -> None:
        """Check that a quorum keeps each hold for as long as its owner counts on it."""
        for one in believers:
            self.leases.see(one.process, one.hold)
            if self.is_undisturbed(one) and self.leases.is_overshot(one.process, one.hold):
                self.violate(f"{one.process.name} counts on its hold for longer than a quorum keeps it")

    def check_timeout(self, call: Call) -> None:
        """Check that an acquire has ended in time, unless its process was paused."""
        late = self.idle.lateness(call)
        if late > (self.plan.node_timeout + LATE_SECONDS if self.plan.ends_at else OVERSHOOT_SECONDS):
            self.violate(f"{call.process.name} waited {late:.3f} s longer than it wanted to")

    def check_votes(self) -> None:
        """Check that no master lost its vote for a clock that was right, or because of a stranger."""
        if STRANGER in self.plan.kinds and self.world.now > self.plan.begins and not self.violations:
            self._violate_all(leftovers.voteless(self.servers))
        if self._judges_votes:
            for number, server in enumerate(self.servers):
                if self.clocks.is_accused_wrongly(number):
                    server.accused_at = float("-inf")
                    self.violate(f"{server.name} lost its vote for a clock that was never set")

    def forced(self) -> list[Belief]:
        """Note that an operator is about to end any hold; return the renewed holds that owners believe in."""
        self.check_exclusion()
        found = [one for one in self.beliefs if one.is_believed()]
        for one in found:
            one.may_be_ended = True
        return [one for one in found if one.hold.renew]

    def operator_done(self) -> None:
        """Note that one of the operators has ended, and that no request of it is under way."""
        self.check_exclusion()
        self.operators -= 1
        self._forced_at = self.world.now

    def _was_ended(self, process: Process, hold: Hold) -> bool:
        """Return whether an operator ended a hold by force after its grant, and before its owner heard of the grant.

        As always after an end by force, the owner learns of it from its next renewal.
        """
        if process.true(hold.granted_at) > self._forced_at:
            return False
        kept = sum(hold.owner in leftovers.holds_on(server, self.keys) for server in self.servers)
        return kept < quorum_of(len(self.servers))

    def check_forced(self, found: list[Belief]) -> None:
        """Check that the owners whose holds were ended by force know it by now."""
        for one in found:
            if not one.process.is_dead and one.hold.count and one.hold.remaining(one.process.local()) > 0:
                self.violate(f"{one.process.name} still believes in a hold that was ended by force")

    def _check_grant(self, belief: Belief, call: Call) -> None:
        process, token = belief.process, belief.hold.token
        for other in self._believers():
            if self._are_rivals([other, belief]):
                self.violate(f"two holders: {other.process.name} and {process.name}")
        highest = self._highest_before(belief, call)
        if token <= highest and not self._may_tokens_fall():
            self.violate(f"{process.name} got token {token}, which is not above {highest}")
        if token > self._highest:
            self._highest, self._leader = token, process

    def _may_tokens_fall(self) -> bool:
        """Return whether a token may fall: for clocks, or for two servers behind one address that both took writes."""
        is_split = self.given is not None and self.given.was_split(self.world.now - SPLIT_SECONDS)
        return is_split or self.clocks.may_tokens_fall()

    def _highest_before(self, belief: Belief, call: Call) -> int:
        """Return the largest token that was certainly granted before this one.

        That is the largest so far, except in two cases, in which others may have got the lock and returned after this
        grant. In the first, its client believes in it only because of what it can't know of clocks; in the second, it
        has yet to learn that an operator ended it by force. Then it is the largest when the acquire was called.
        """
        leader = self._leader
        is_late = leader is not None and self.clocks.is_deceived(belief.process, belief.hold, belief.since, leader)
        return call.highest if is_late or belief.may_be_ended else self._highest

    def _are_rivals(self, believers: list[Belief]) -> bool:
        """Return whether two holds are believed in against relock's promises: no clock and no move excuses either."""
        return any(
            not self._may_share(one, other)
            and not self._is_deceived(one, other)
            and not self._is_deceived(other, one)
            and not self._are_apart(one, other)
            for one, other in combinations(believers, 2)
        )

    def _may_share(self, one: Belief, other: Belief) -> bool:  # noqa: ARG002
        """Return whether two owners may have the lock at the same time."""
        return False

    def _are_apart(self, one: Belief, other: Belief) -> bool:
        """Return whether both owners may have the lock, because one hold was lost when a master moved."""
        since = min(one.since, other.since)
        return self.given is not None and self.given.may_both_be(one.hold, other.hold, since)

    def _is_deceived(self, one: Belief, other: Belief) -> bool:
        return self.clocks.is_deceived(one.process, one.hold, one.since, other.process)

    def _expect_accusation(self, step: TrueStep) -> None:
        """Expect that a client which looks at a set clock takes that master's vote, if the step can't be its own."""
        witnesses = self.clocks.witnesses(step)

        def check() -> None:
            steady = [one for one in witnesses if not one.is_dead and not one.was_paused_since(step.at)]
            server = self.servers[step.server]
            if steady and self.clocks.is_evident(step) and server.accused_at < step.at:
                self.violate(f"{server.name} keeps its vote, though {steady[0].name} could see its clock step")

        self.world.after(ACCUSED_SECONDS, check)

    def _check_idle(self, *calls: Call) -> list[Wait]:
        """Check that these calls have not waited too long for a free lock; return the long waits."""
        waits = self.idle.waits(calls, self.beliefs, self.calm_at)
        if self.world.now > self.clocks.leases_last_until(self.plan.longest):
            for call, since, seconds in waits:
                if seconds > self.stuck.cost(call, since):
                    self.violate(f"{call.process.name} waited for {self.world.now - since:.3f} s though nobody had it")
        return waits

    def _check_order(self, call: Call) -> None:
        if not call.fair or call.called_at < self.calm_at:
            return
        for process, waiter in call.ahead:
            session = next(session for other, session in self._sessions if other is process)
            if self.stuck.was(process, call.called_at) or process in {*self.idle.are_leaving(), *self.ends.closing}:
                continue  # the waiter may have lost its place, and have come back to another one; or it leaves
            if process.is_dead or self._is_served(waiter):
                continue
            if still_waits(session, waiter, masters_move=self.plan.moves is not None):
                self._passes(call, session, waiter)

    def _passes(self, call: Call, session: Session, waiter: Waiter) -> None:  # noqa: ARG002
        """Judge that a call got the lock while a waiter still waits that was queued before the call came."""
        self.violate(f"{call.process.name} passed {waiter.owner.decode()}, which was queued before it came")

    def _is_served(self, waiter: Waiter) -> bool:  # noqa: ARG002
        """Return whether the masters have served a waiter, though others may be served after it and sooner."""
        return False

    def _check_loss(self, belief: Belief) -> None:
        if not belief.hold.renew or belief.may_be_ended or belief.is_over or belief.kept_until != NEVER:
            return  # in the last case its client is closed, and renews nothing
        if self.is_calm and not belief.process.was_paused_since(belief.since):
            self.violate(f"{belief.process.name} lost it though all is well: {belief.hold.loss}")
        elif self.plan.wide and self.is_undisturbed(belief) and self.leases.was_left_alone(belief.process, belief.hold):
            self.violate(f"{belief.process.name} lost it though it could have been renewed: {belief.hold.loss}")

    def believers(self) -> list[Belief]:
        """Return the beliefs of the owners that believe at this moment that they have the lock."""
        return [one for one in self.beliefs if one.is_believed()]

    def _believers(self) -> list[Belief]:
        believers = self.believers()
        if not self.operators:
            return believers
        for one in believers:
            one.is_over = True
        return []

    def violate(self, what: str) -> None:
        """Note a violation."""
        self.world.note("referee", f"VIOLATION: {what}")
        self.violations.append(what)

    def _violate_all(self, problems: Iterable[str]) -> None:
        for problem in problems:
            self.violate(problem)
