"""Plan of a run: its clients and threads, their actions, the network, and the faults that may strike.

`sim.draws` and `sim.special` draw one for each seed.
"""

from attrs import frozen

from relock._options import Handoff, OnDeadlock
from relock.testing._conditions import Conditions

LOCK = "a"  # the one lock that all threads want
TTL_SECONDS = 1.0
MIDDLE_TTL_SECONDS = 5.0
SETTLING_SECONDS = 6.0  # for guards and leases to end, heartbeats to come, connections to open
CALM_SECONDS = 4.0  # until all masters have votes and all clients have connections, if nothing goes wrong

PROMPT_TIMES = 50  # times the average delay of a message: one in 10**20 takes longer
FAILING_BACK = ("fail back", "fail all back")
MOVING = ("fail over", "promote", "split", "lose master", *FAILING_BACK)
FORGETTING = frozenset({"crash", "restart old", "flush", "flush a quorum", *MOVING})
KINDS = (
    "crash", "restart old", "flush", "flush a quorum", "stop", "kill connections", "partition", "lose a quorum",
    "isolate client", "forget scripts", "fill up", "crash client", "pause client", "force release",
)  # fmt: skip
CLOCKS = ("step", "step several", "run off", "change rate", "stop clock")
CALLS = ("fork", "interrupt")
GET_STUCK, STOP_PROCESS = "get stuck", "stop process"  # a client that waits cannot act for a while
OVERRIDE = "override"  # an operator sets another limit of a semaphore for a while
SLOW_DOWN = "slow down"  # the way to all masters, around the moment at which all waits end
STRANGER = "stranger"  # a client with another list of masters and a longer guard, which harms no other client
CLOSE_LOOP = "close loop"  # with pending tasks, which are kept
LOOP_STUCK = ("block loop", "stop loop")  # ways in which a client with a loop gets stuck
LONG_HANDLER = "long handler"  # the way of other clients
HARMLESS = frozenset(
    {
        "crash client",
        "force release",
        "change rate",
        GET_STUCK,
        STOP_PROCESS,
        STRANGER,
        CLOSE_LOOP,
        SLOW_DOWN,
        OVERRIDE,
        *CALLS,
    }
)  # faults without harm to other clients


@frozen
class Wide:
    """Wider part of a plan, which only some runs draw: clients and locks that differ, and more uses of a hold.

    Attributes:
        ttls: the leases of locks, in seconds; each lock object draws one.
        fair: each lock object draws one of these.
        renew: each lock object for an outermost acquire draws one of these.
        handoffs: each client draws one of these.
        levels: the most that a hold has.
        extends: how likely a holder is to extend its hold, each time it checks that; half as likely it calls `ensure`.
    """

    ttls: tuple[float, ...]
    fair: tuple[bool, ...]
    renew: tuple[bool, ...]
    handoffs: tuple[Handoff, ...]
    levels: int
    extends: float


@frozen
class Moves:
    """Part of a plan that only runs in which masters move draw.

    Attributes:
        lag: seconds that a master's writes take to its replica on average.
        handoffs: each client draws one of these.
        goes_on: seconds for which the threads go on once all is well again; then the referee judges as in a calm run.
    """

    lag: float
    handoffs: tuple[Handoff, ...]
    goes_on: float


@frozen
class Several:
    """Part of a plan in which callers take several locks: by `lock_all`, one inside the other, or both.

    Attributes:
        names: the locks.
        whole: how likely a caller takes all that it wants as one.
        alone: how likely each lock is taken by itself otherwise.
    """

    names: tuple[str, ...]
    whole: float
    alone: float


@frozen
class Orders:
    """Part of a plan in which callers take several locks in any order, and so run into deadlocks.

    Attributes:
        after: seconds of a wait, after which clients look for deadlocks.
        modes: each lock object draws one of these.
        sides: how likely a caller takes a lock as a reader, or as the writer.
        short: how likely a wait is so short that it makes no deadlock, or little longer.
    """

    after: float
    modes: tuple[OnDeadlock, ...]
    sides: float
    short: float


@frozen
class Permits:
    """Part of a plan in which callers take permits of one semaphore.

    Attributes:
        limits: each semaphore object draws one of these: the limits of older and of newer code, if there are two.
        most: the most permits that a call asks for.
        more: how likely a caller that has permits asks for others as well.
        fair: each semaphore object draws one of these.
        handoffs: each client draws one of these.
    """

    limits: tuple[int, ...]
    most: int
    more: float
    fair: tuple[bool, ...]
    handoffs: tuple[Handoff, ...]


@frozen
class Sides:
    """Part of a plan in which callers read and write.

    Attributes:
        reads: how likely a turn begins with reading.
        inside: how likely a holder takes another step: one more level, the other side, a downgrade, a request that must
            fail.
        fair: each lock object draws one of these.
        renew: each lock object draws one of these.
        handoffs: each client draws one of these.
    """

    reads: float
    inside: float
    fair: tuple[bool, ...]
    renew: tuple[bool, ...]
    handoffs: tuple[Handoff, ...]


@frozen
class Plan:
    """One run.

    Attributes:
        begins: seconds until the first turns. Before that, each thread tries once or twice, so that masters see the
            clients and count to their votes.
        turns: how often each thread takes the lock.
        pause: seconds between two turns of a thread, on average.
        faults: seconds of true time in which faults strike.
        fault_pause: seconds between two faults, on average.
        lasting: the seconds that a fault may last; chance chooses one of these.
        kinds: the faults that strike. With none, and a network that loses nothing, all is well from the beginning.
        skew: the most seconds by which the masters' clocks differ from the true time.
        settling: seconds from the end of all faults until all is well.
        stays: the seconds that a holder may stay; chance chooses one of these. Infinity: until it has lost the lock.
        timeouts: the seconds that an acquire may wait, 0 for a single try; chance chooses one of these.
        named: whether the threads of a client name one ``owner=``, and take turns.
        wide: the further choices of a wider run; None in most runs.
        moves: how masters move; None in most runs.
        several: the locks that callers take together; None in most runs, which have one lock.
        orders: how callers run into deadlocks; None in most runs. They have `several` as well.
        permits: how callers use a semaphore in place of the lock; None in most runs.
        sides: how callers use the two sides of a read-write lock; None in most runs.
        names: how many other locks each process uses at most, with caches that are too small for so many.
        at_least: seconds from its grant on for which the lock rests after a release; 0: not at all.
        has_notes: whether each object of a lock has a note of its own.
        loops: the numbers of the clients that are used by tasks of an event loop.
        closes: how likely a client is closed when one of its threads has just released the lock; another one follows.
        ends_at: the moment at which the first waits of all threads end, in true time; 0: each has a timeout of its own.
            Then no client has room for many requests.
        is_guarded: whether the clients have a restart guard.
        slow: seconds that a message to or from one of a minority of the masters takes on average; 0: as the others.
        is_blocked: whether one client's log and warnings are not read, and its callbacks never return.
    """

    masters: int
    clients: int
    threads: int
    turns: int
    faults: float
    fault_pause: float
    conditions: Conditions
    kinds: tuple[str, ...]
    skew: float
    stays: tuple[float, ...]
    timeouts: tuple[float, ...]
    node_timeout: float
    fair: bool
    renew: bool
    ttl: float = TTL_SECONDS
    begins: float = 0.0
    settling: float = SETTLING_SECONDS
    pause: float = 0.2
    named: bool = False
    lasting: tuple[float, ...] = (0.01, 0.2, 0.8, 1.5)
    wide: Wide | None = None
    moves: Moves | None = None
    several: Several | None = None
    orders: Orders | None = None
    permits: Permits | None = None
    sides: Sides | None = None
    names: int = 0
    closes: float = 0.0
    ends_at: float = 0.0
    is_guarded: bool = True
    slow: float = 0.0
    is_blocked: bool = False
    at_least: float = 0.0
    has_notes: bool = False
    loops: frozenset[int] = frozenset()

    @property
    def guard(self) -> float:
        """The restart guard (s)."""
        return self.longest if self.is_guarded else 0.0

    @property
    def longest(self) -> float:
        """The longest lease or rest (s) that a client asks for."""
        return max(self.wide.ttls) if self.wide else max(self.ttl, self.at_least)

    @property
    def is_calm(self) -> bool:
        """Return whether only faults strike that are `HARMLESS`, such as clients that die, or forced releases."""
        return self.is_quiet and HARMLESS.issuperset(self.kinds)

    @property
    def is_prompt(self) -> bool:
        """Return whether practically no answer takes as long as clients wait for one, when all is well."""
        return self.node_timeout >= PROMPT_TIMES * self.conditions.delay

    @property
    def are_all_prompt(self) -> bool:
        """Return whether that is also true of the slower masters."""
        return self.is_prompt and self.node_timeout >= PROMPT_TIMES * self.slow

    @property
    def only_clocks_fail(self) -> bool:
        """Return whether every message arrives soon, and only clocks go wrong."""
        return self.is_quiet and HARMLESS.union(CLOCKS).issuperset(self.kinds)

    @property
    def repeats_between(self) -> bool:
        """Return whether a request may come again after its reply and before it is void: it may grant a lock anew."""
        conditions = self.conditions
        return conditions.repeats > 0 and any(0 < one <= self.node_timeout for one in conditions.repeated_after)

    @property
    def is_quiet(self) -> bool:
        """Return whether each message arrives once and soon; or, if repeated, when it is void."""
        conditions = self.conditions
        is_lossy = conditions.cuts or conditions.drops
        return not (conditions.straggles or conditions.lags or is_lossy or self.repeats_between)
