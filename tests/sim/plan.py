"""What a seed makes of a run: who takes part, what they do, how the network is, and what may go wrong."""

from random import Random

from attrs import evolve, frozen

from relock._options import Handoff
from relock.testing._conditions import Conditions

LOCK = "a"  # the one lock that everybody wants
TTL_SECONDS = 1.0
MIDDLE_TTL_SECONDS = 5.0
LONG_TTL_SECONDS = 10.0
MUCH_LONGER = 20.0  # times a lease: more than the tenths of it after which a renewal that failed is tried again
SETTLING_SECONDS = 6.0  # guards and leases end, heartbeats come, connections are made
CALM_SECONDS = 4.0  # until all is well where nothing goes wrong: all masters have votes, and all clients connections

FAILING_BACK = ("fail back", "fail all back")
MOVING = ("fail over", "promote", "split", "lose master", *FAILING_BACK)
AROUND = ("kill normal", "drop client", "stall replica")  # in runs in which masters move
FORGETTING = frozenset({"crash", "restart old", "flush", "flush a quorum", *MOVING})
KINDS = (
    "crash", "restart old", "flush", "flush a quorum", "stop", "kill connections", "partition", "lose a quorum",
    "isolate client", "forget scripts", "fill up", "crash client", "pause client", "force release",
)  # fmt: skip
CLOCKS = ("step", "step several", "run off", "change rate", "stop clock")
CALLS = ("fork", "interrupt")
DELAYING = ("pause client", "kill connections", "interrupt", "step", "crash client", "isolate client")
HARMLESS = frozenset({"crash client", "force release", "change rate", *CALLS})  # to everybody else


CROSSED_PART = 0.03  # of all runs,
CROWDED_PART = 0.05  # and
BLOCKED_PART = 0.05
OTHER_NAMES = (2, 5)
MOVED_PART = 0.15  # of all runs
WIDE_PART = 0.25  # of the others
LENGTHENED_PART = 0.1  # of these
IMPATIENT_PART = 0.4  # of the runs with slow requests


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


def draw(random: Random) -> Plan:
    """A plan: some are calm; in others everything goes wrong, or little but time, or hand-offs come in dozens."""
    (drawn,) = random.choices(list(_SORTS), list(_SORTS.values()))
    return drawn(random)


def plan_of(seed: int, random: Random) -> Plan:
    """The plan of a seed, most of which `random` draws."""
    plan = widened(seed, draw(random))
    return crowded(seed, moved(seed) or crossed(seed) or plan)


def crossed(seed: int) -> Plan | None:
    """The plan of a seed in which hand-offs cross each other; None in most runs. It has a generator of its own."""
    random = Random(f"crossed {seed}")
    return _draw_crossed(random) if random.random() < CROSSED_PART else None


def _draw_crossed(random: Random) -> Plan:
    """Turns that are shorter than the way to three masters, which so see releases and newcomers in other orders."""
    plan = _draw(random, (), is_calm=True)
    return evolve(
        plan,
        masters=3,
        clients=random.choice([2, 3]),
        threads=2,
        conditions=evolve(plan.conditions, delay=random.choice([0.003, 0.004]), repeats=0.0),
        ttl=MIDDLE_TTL_SECONDS,
        begins=MIDDLE_TTL_SECONDS + CALM_SECONDS,  # with the masters' first votes, and connections
        faults=3 * MIDDLE_TTL_SECONDS,
        settling=3 * MIDDLE_TTL_SECONDS + 2.0,
        stays=(0.0, 0.001),
        timeouts=(0.05, 20.0, 20.0),
        node_timeout=0.05,
        fair=True,
        renew=True,
        named=False,
        turns=16,
        pause=0.02,
    )


def crowded(seed: int, plan: Plan) -> Plan:
    """The plan of a seed; in some runs with other locks in the same processes, or with output that nobody reads."""
    random = Random(f"crowded {seed}")
    if random.random() < CROWDED_PART:
        plan = evolve(plan, names=random.choice(OTHER_NAMES))
    if random.random() < BLOCKED_PART:
        plan = evolve(plan, is_blocked=True)
    return plan


def moved(seed: int) -> Plan | None:
    """The plan of a seed in which masters move; None in most runs.

    That is drawn by a generator of its own, so that all other runs are what they were before there was any of this.
    """
    random = Random(f"moved {seed}")
    if random.random() >= MOVED_PART:
        return None
    (drawn,) = random.choices(list(_MOVED_SORTS), list(_MOVED_SORTS.values()))
    return drawn(random)


def _draw_planned(random: Random) -> Plan:
    """Masters that change their roles in an orderly way, while most of the clients do nothing but wait."""
    return evolve(
        _draw_moved(random),
        kinds=("fail over", "promote", "drop client", "drop client"),
        clients=4,
        threads=1,
        fault_pause=0.7,
        stays=(0.3, 1.0),
        timeouts=(20.0,),
        pause=0.1,
    )


def _draw_failed_back(random: Random) -> Plan:
    """Masters that are failed back while connections stay open, most of them idle; what is newest is lost then."""
    masters, ttl = random.choice([1, 3]), random.choice([TTL_SECONDS, MIDDLE_TTL_SECONDS])
    return evolve(
        _draw_moved(random),
        kinds=FAILING_BACK if masters > 1 else ("fail back",),
        masters=masters,
        clients=3,
        threads=1,
        ttl=ttl,
        begins=CALM_SECONDS / 2 + ttl,  # with the masters' first votes, and connections
        faults=CALM_SECONDS + 6 * ttl + 4.0,
        fault_pause=1.0 + 1.5 * ttl,  # most come when masters have their votes again
        skew=0.3,
        stays=(0.5, 1.0),
        timeouts=(0.0, 0.05, 0.5),
        pause=random.choice([0.5, 1.0]),
        renew=True,
        settling=2 * ttl + SETTLING_SECONDS,
        moves=Moves(lag=random.choice([0.01, 0.1]), is_guarded=True, handoffs=("grant",), goes_on=1.0),
    )


def _draw_moved(random: Random) -> Plan:
    """Masters that move while connections stay open, and little else; then everybody goes on for a while."""
    moving = tuple(kind for kind in MOVING if random.random() < 0.3) or (random.choice(MOVING),)
    around = tuple(kind for kind in AROUND if random.random() < 0.5)
    also = tuple(kind for kind in ("pause client", "kill connections", *CALLS) if random.random() < 0.1)
    masters = random.choice([1, 1, 1, 3])
    ttl = random.choice([TTL_SECONDS, TTL_SECONDS, MIDDLE_TTL_SECONDS])
    is_guarded = masters > 1 or random.random() < 0.6
    return evolve(
        _draw(random, (*moving, *moving, *around, *also), is_calm=True),
        masters=masters,
        clients=random.choice([3, 4]),
        threads=random.choice([1, 1, 2]),
        ttl=ttl,
        begins=CALM_SECONDS / 2 + (ttl if is_guarded else 0.0),  # with the masters' first votes, and connections
        faults=CALM_SECONDS + 2 * ttl + random.choice([2.0, 6.0]),
        fault_pause=random.choice([0.5, 1.5]),
        skew=0.3 if is_guarded else 0.0,
        stays=random.choice([(0.0, 0.01), (0.01, 0.3), (0.01, 0.3, 1.6)]),
        timeouts=random.choice([(3.0, 20.0), (0.0, 0.05, 3.0)]),
        fair=True,
        renew=random.random() < 0.8,
        settling=2 * ttl + SETTLING_SECONDS,
        moves=Moves(
            lag=random.choice([0.0005, 0.01, 0.1, 0.5]),
            is_guarded=is_guarded,
            handoffs=random.choice([("grant",), ("grant",), ("grant", "wake")]),
            goes_on=random.choice([1.0, 3.0]),
        ),
    )


def widened(seed: int, plan: Plan) -> Plan:
    """The plan of a seed; in one run of four with more in it.

    That is drawn by a generator of its own, so that all other runs are what they were before there was any of this.
    """
    random = Random(f"wide {seed}")
    if random.random() >= WIDE_PART:
        return plan
    if random.random() < LENGTHENED_PART:
        return _draw_lengthened(random)
    parts = random.choice([(1.0,), (1.0, 2.0), (0.5, 1.0, 3.0), (1.0, 1.5, 3.0)])
    ttls = tuple(part * plan.ttl for part in parts)
    more = max(ttls) - plan.ttl
    return evolve(
        plan,
        begins=plan.begins + more,  # with the masters' first votes
        faults=plan.faults + more,
        settling=plan.settling + 2 * more,
        wide=Wide(
            ttls=ttls,
            fair=random.choice([(plan.fair,), (True, False)]),
            renew=random.choice([(plan.renew,), (True, False)]),
            handoffs=random.choice([("grant",), ("grant", "wake")]),
            levels=random.randint(1, 4),
            extends=random.choice([0.0, 0.1, 0.4]),
        ),
    )


def _draw_lengthened(random: Random) -> Plan:
    """Holds that are to last much longer from now on, while a quorum is away for a moment."""
    ttl, longest = MIDDLE_TTL_SECONDS, MUCH_LONGER * MIDDLE_TTL_SECONDS
    return evolve(
        _draw(random, ("lose a quorum",), is_calm=True),
        masters=random.choice([1, 3]),
        clients=1,  # which meets all of the faults
        threads=1,
        ttl=ttl,
        begins=longest + CALM_SECONDS,  # with the masters' first votes, and connections
        faults=longest + CALM_SECONDS + 60.0,
        fault_pause=4.0,
        lasting=(0.8,),
        turns=8,
        stays=(1.5 * ttl,),
        timeouts=(20.0,),
        settling=longest,
        wide=Wide(ttls=(ttl, longest), fair=(True,), renew=(True,), handoffs=("grant",), levels=1, extends=0.1),
    )


def _draw_calm(random: Random) -> Plan:
    """Nothing goes wrong, so whatever is promised must be kept."""
    kinds = random.choice(
        [(), ("crash client",), ("force release",), ("force release",), ("interrupt",), ("fork", "crash client")]
    )
    return _draw(random, kinds, is_calm=True)


def _draw_faults(random: Random) -> Plan:
    """Everything goes wrong."""
    share = random.choice([0.15, 0.4])
    kinds = tuple(kind for kind in (*KINDS, *CLOCKS, *CALLS) if random.random() < share)
    return _draw(random, kinds, is_calm=False)


def _draw_clocks(random: Random) -> Plan:
    """Clocks that are set, that run off, that stand still; and sometimes not all masters are there."""
    kinds = tuple(kind for kind in CLOCKS if random.random() < 0.4) or ("step",)
    return evolve(
        _draw(random, kinds, is_calm=True),
        masters=random.choice([1, 3, 3]),
        kinds=random.choice([kinds, (*kinds, "partition"), (*kinds, "lose a quorum")]),
        fault_pause=random.choice([0.3, 1.5]),
        faults=4.0,
        turns=3,
        stays=(0.01, 0.5, 1.6, float("inf")),
        timeouts=(0.5, 3.0, 20.0),
        begins=TTL_SECONDS,  # with the masters' first votes
        renew=random.random() < 0.6,
    )


def _draw_step(random: Random) -> Plan:
    """One clock of several is set, once in most runs, so that nobody can take that for anything else."""
    return evolve(
        _draw(random, ("step",), is_calm=True),
        masters=random.choice([3, 3, 5]),
        fault_pause=2.0,
        faults=2.0,
        turns=2,
        stays=(0.01, 0.5, 1.6, float("inf")),
        timeouts=(0.5, 3.0, 20.0),
        begins=TTL_SECONDS,  # with the masters' first votes
        renew=random.random() < 0.6,
    )


def _draw_late(random: Random) -> Plan:
    """Replies that are late, and holders that stay to the end of their validity: for mistakes with time."""
    alone = ("isolate client",)
    kinds = random.choice([alone, (*alone, "pause client"), ("pause client",), ("lose a quorum",)])
    return evolve(
        _draw(random, kinds, is_calm=False),
        masters=random.choice([1, 1, 3]),
        clients=3,
        threads=1,
        turns=3,
        fault_pause=0.6,
        conditions=Conditions(delay=0.0005, straggles=0.15, straggle=0.3),
        stays=(float("inf"),),
        timeouts=(20.0,),
        node_timeout=0.3,
        faults=4.0,
        lasting=(0.8, 1.5),
        renew=random.random() < 0.7,
        fair=True,
    )


def _draw_healing(random: Random) -> Plan:
    """Holds that lack a master, because somebody just tried there, and are released about when they are renewed."""
    return evolve(
        _draw(random, (), is_calm=True),
        masters=3,
        clients=3,
        threads=1,
        stays=(TTL_SECONDS / 3, 1.01 * TTL_SECONDS / 3, 1.03 * TTL_SECONDS / 3),
        timeouts=(0.0, 0.05, 0.5),
        renew=True,
        begins=CALM_SECONDS,
        turns=4,
    )


def _draw_patient(random: Random) -> Plan:
    """Waits that are longer than a waiter counts as alive without a heartbeat."""
    return evolve(
        _draw(random, (), is_calm=True),
        masters=random.choice([1, 1, 3]),
        clients=5,
        threads=1,
        stays=(2.5,),
        timeouts=(40.0,),
        turns=2,
        pause=1.5,  # so that some come while others have waited for long
        fair=True,  # who is taken for dead loses its place, and only here is it judged who comes first
    )


def _draw_slow(random: Random) -> Plan:
    """Requests that arrive when nobody waits for them any more, and leases so long that what they leave is noticed.

    A lone master is outvoted by nobody: what is left there by those who do not wait for long keeps the others.
    """
    slow = _draw_any_slow(random)
    if random.random() < IMPATIENT_PART:
        return evolve(slow, masters=1, stays=(0.0, 0.01, 0.3), timeouts=(0.05,), turns=12)
    return slow


def _draw_any_slow(random: Random) -> Plan:
    return evolve(
        _draw(random, (), is_calm=True),
        masters=random.choice([1, 3, 3]),
        conditions=Conditions(delay=0.003, straggles=0.05, straggle=0.6),
        stays=(0.0, 0.01, 0.3, 4.0),
        timeouts=random.choice([(0.0, 0.05), (0.0, 0.05, 3.0)]),
        node_timeout=0.05,
        ttl=LONG_TTL_SECONDS,
        begins=LONG_TTL_SECONDS,  # with the masters' first votes
        faults=LONG_TTL_SECONDS + 5.0,
        turns=6,
        settling=4.0,
    )


def _draw_busy(random: Random) -> Plan:
    """Holders that stay for a moment and waiters that wait: for what goes wrong once in thousands of hand-offs."""
    is_calm = random.random() < 0.5
    kinds = tuple(kind for kind in CALLS if random.random() < 0.3)
    if not is_calm:
        kinds += tuple(kind for kind in KINDS if random.random() < 0.15)
    return evolve(
        _draw(random, kinds, is_calm=is_calm),
        masters=random.choice([1, 1, 1, 3]),
        stays=(0.0, 0.001, 0.01),
        timeouts=(3.0, 20.0),
        begins=CALM_SECONDS if is_calm else TTL_SECONDS,
        turns=8,
        pause=random.choice([0.02, 0.1]),
    )


def _draw_restart(random: Random) -> Plan:
    """A lone master that comes back with old data, marker and all."""
    return evolve(
        _draw(random, ("restart old",), is_calm=True),
        masters=1,
        fault_pause=0.4,
        faults=3.0,
        stays=(0.0, 0.3, 1.6),
        turns=3,
        renew=False,
    )


def _draw_handed(random: Random) -> Plan:
    """Messages that come late or not at all, clients that stand still, and leases longer than a releaser gives."""
    is_calm = random.random() < 0.4
    kinds = tuple(kind for kind in DELAYING if random.random() < 0.3)
    plan = _draw(random, () if is_calm else kinds, is_calm=is_calm)
    late = random.choice([0.0, 0.05, 0.3])
    conditions = evolve(plan.conditions, straggles=late, straggle=random.choice([0.1, 0.5, 2.0]))
    ttl = random.choice([TTL_SECONDS, MIDDLE_TTL_SECONDS])
    lags = not is_calm and ttl == TTL_SECONDS  # messages alone are late then, and nobody renews
    if is_calm:
        # Longer than a turn takes: the masters see them in other orders.
        conditions = evolve(conditions, straggles=0.0, delay=0.003)
    elif lags:
        conditions = evolve(conditions, straggles=0.0, straggle=0.5, lags=0.5)
    return evolve(
        plan,
        masters=random.choice([1, 3, 3]),
        ttl=ttl,
        conditions=conditions,
        stays=(0.0, 0.001) if is_calm else (0.0, 0.1, 1.2 * ttl),
        timeouts=(0.05, 20.0, 20.0),
        begins=ttl + CALM_SECONDS,  # with the masters' first votes, and connections
        faults=2 * ttl + (10.0 if lags else 5.0),
        settling=3 * ttl + 2.0,
        clients=random.choice([2, 3, 4]),
        turns=16 if is_calm else 8,
        fair=True,
        renew=random.random() < 0.5 and not lags,
        pause=0.02,
    )


def _draw(random: Random, kinds: tuple[str, ...], *, is_calm: bool) -> Plan:
    node_timeout = random.choice([0.05, 0.3])
    conditions = Conditions(
        delay=random.choice([0.0001, 0.0005, 0.003]),
        straggles=0.0 if is_calm else random.choice([0.0, 0.01, 0.1]),
        straggle=random.choice([0.02, 0.1, 0.6]),
        cuts=0.0 if is_calm else random.choice([0.0, 0.0, 0.002]),
        drops=0.0 if is_calm else random.choice([0.0, 0.0, 0.1, 1.0]),
        repeats=random.choice([0.0, 0.0, 0.0, 0.1]),
        # What comes again at once changes nothing, and nor does what comes when it is void; between the two it may.
        repeated_after=(0.0, 2 * node_timeout) if is_calm else (0.0, node_timeout / 2, 2 * node_timeout),
    )
    return Plan(
        masters=random.choice([1, 1, 3, 3, 3, 3, 3, 5]),
        clients=random.choice([2, 3, 3]),
        threads=random.choice([1, 1, 2]),
        turns=random.randint(1, 4),
        faults=random.choice([2.0, 4.0]),
        fault_pause=random.choice([0.2, 0.6]),
        conditions=conditions,
        kinds=kinds,
        # Tokens rise over masters that forget as long as their clocks differ by less than the guard.
        skew=0.3 if FORGETTING & set(kinds) else 3.0,
        stays=random.choice([(0.0, 0.001, 0.01), (0.0, 0.3, 1.6), (0.01, 1.6, float("inf"))]),
        timeouts=random.choice([(0.0, 0.05, 0.5), (0.5, 3.0, 20.0)]),
        node_timeout=node_timeout,
        fair=random.random() < 0.8,
        renew=random.random() < 0.8,
        named=random.random() < 0.15,
    )


_SORTS = {
    _draw_calm: 0.16,
    _draw_late: 0.28,
    _draw_healing: 0.03,
    _draw_patient: 0.02,
    _draw_slow: 0.08,
    _draw_busy: 0.13,
    _draw_clocks: 0.11,
    _draw_step: 0.05,
    _draw_faults: 0.14,
    _draw_handed: 0.10,
    _draw_restart: 0.03,
}
_MOVED_SORTS = {_draw_moved: 0.45, _draw_planned: 0.25, _draw_failed_back: 0.3}
