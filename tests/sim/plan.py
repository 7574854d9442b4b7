"""What a run is: who takes part, what they do, how the network is, and what may go wrong.

`sim.draws` and `sim.special` draw one for each seed.
"""

from attrs import frozen

from relock._options import Handoff
from relock.testing._conditions import Conditions

LOCK = "a"  # the one lock that everybody wants
TTL_SECONDS = 1.0
MIDDLE_TTL_SECONDS = 5.0
SETTLING_SECONDS = 6.0  # guards and leases end, heartbeats come, connections are made
CALM_SECONDS = 4.0  # until all is well where nothing goes wrong: all masters have votes, and all clients connections

FAILING_BACK = ("fail back", "fail all back")
MOVING = ("fail over", "promote", "split", "lose master", *FAILING_BACK)
FORGETTING = frozenset({"crash", "restart old", "flush", "flush a quorum", *MOVING})
KINDS = (
    "crash", "restart old", "flush", "flush a quorum", "stop", "kill connections", "partition", "lose a quorum",
    "isolate client", "forget scripts", "fill up", "crash client", "pause client", "force release",
)  # fmt: skip
CLOCKS = ("step", "step several", "run off", "change rate", "stop clock")
CALLS = ("fork", "interrupt")
HARMLESS = frozenset({"crash client", "force release", "change rate", *CALLS})  # to everybody else


@frozen
class Wide:
    """What only some runs draw: clients and locks that differ from each other, and more that is done with a hold.

    Attributes:
        ttls: the leases of locks, in seconds; each lock object draws one.
        fair: of each lock object.
        renew: of each lock object that is taken first.
        handoffs: of each client.
        levels: how many a hold has at most.
        extends: how likely a holder is to extend its hold, each time it looks after it; half as likely it makes sure
            of it.
    """

    ttls: tuple[float, ...]
    fair: tuple[bool, ...]
    renew: tuple[bool, ...]
    handoffs: tuple[Handoff, ...]
    levels: int
    extends: float


@frozen
class Moves:
    """What only those runs draw in which masters move.

    Attributes:
        lag: for how many seconds what a master writes is under way to its replica on average.
        is_guarded: there is a restart guard; without one a lone master may forget holds when it moves.
        handoffs: of each client.
        goes_on: for how many seconds everybody goes on when all is well again, and is judged as where nothing is wrong.
    """

    lag: float
    is_guarded: bool
    handoffs: tuple[Handoff, ...]
    goes_on: float


@frozen
class Plan:
    """One run.

    Attributes:
        begins: seconds until the first turns; a look of everybody before makes the masters count to their votes.
        turns: how often each thread takes the lock.
        pause: seconds between two of its turns, on average.
        faults: seconds of true time in which faults strike.
        fault_pause: seconds between two of them, on average.
        lasting: for how many seconds one strikes; it is drawn from these.
        kinds: which faults; none, with a network that loses nothing: all is well from the beginning.
        skew: by how many seconds the masters' clocks differ from the true time at most.
        settling: seconds from the end of all faults until all is well.
        stays: for how many seconds a holder stays; it is drawn from these. Infinity: until it has lost the lock.
        timeouts: for how many seconds an acquire waits, 0 for a single look.
        named: the threads of a client name one ``owner=``, and take turns.
        wide: what is drawn beside; None in most runs.
        moves: how masters move; None in most runs.
        names: how many other locks each process uses, with caches that are too small for so many.
        is_blocked: nobody reads the log of one client, nor what it warns of, and its callbacks never return.
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
    names: int = 0
    is_blocked: bool = False

    @property
    def guard(self) -> float:
        """The restart guard (s)."""
        return self.longest if self.moves is None or self.moves.is_guarded else 0.0

    @property
    def longest(self) -> float:
        """The longest lease (s) that anybody asks for."""
        return max(self.wide.ttls) if self.wide else self.ttl

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong in it, but for some that die, or are ended by force."""
        return self.is_quiet and HARMLESS.issuperset(self.kinds)

    @property
    def only_clocks_fail(self) -> bool:
        """Whether every message arrives soon, and nothing goes wrong but clocks."""
        return self.is_quiet and HARMLESS.union(CLOCKS).issuperset(self.kinds)

    @property
    def is_quiet(self) -> bool:
        """Whether each message arrives once and soon, or the second time when it is void."""
        conditions = self.conditions
        comes_between = conditions.repeats and any(
            0 < seconds <= self.node_timeout for seconds in conditions.repeated_after
        )
        is_lossy = conditions.cuts or conditions.drops
        return not (conditions.straggles or conditions.lags or is_lossy or comes_between)
