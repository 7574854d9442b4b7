"""The plan of a seed, and the special kinds of some runs.

Each kind of special run has a random generator of its own. So a new kind leaves all other runs as they were.
"""

from random import Random

from attrs import evolve

from relock.testing._conditions import Conditions
from sim.doors import limited, orders, reading, several
from sim.draws import draw, draw_any
from sim.liveness import closing, ended, mass, rested, strange, stuck
from sim.plan import (
    CALLS,
    CALM_SECONDS,
    FAILING_BACK,
    MIDDLE_TTL_SECONDS,
    MOVING,
    SETTLING_SECONDS,
    TTL_SECONDS,
    Moves,
    Plan,
    Wide,
)

MUCH_LONGER = 20.0  # times a lease, so that a tenth of it, after which a failed renewal is tried again, exceeds a lease
AROUND = ("kill normal", "drop client", "stall replica")  # in runs in which masters move
MOVED_PART = 0.15  # of all runs
CROSSED_PART = 0.06  # of the runs in which no master moves
TRUSTED_PART = 0.04  # of those that are not crossed either
APART_PART = 0.03  # of those that are not trusted either
APART_SECONDS = 20.0  # by which masters' clocks differ from the true time there, at most
WIDE_PART = 0.25  # of those that are of no other kind
LENGTHENED_PART = 0.3  # of the wide runs
LOOPS_PART = 0.25  # of all clients, in all runs
CROWDED_PART = 0.05  # of all runs, of whatever kind
BLOCKED_PART = 0.05  # of all runs, of whatever kind
NOTED_PART = 0.1  # of all runs, of whatever kind
OTHER_NAMES = (2, 5)


def plan_of(seed: int, random: Random) -> Plan:
    """Return the plan of a seed. `random` draws most of it."""
    plan = widened(seed, draw(random))
    special = next((found for kind in _KINDS if (found := kind(seed)) is not None), plan)
    return looped(seed, noted(seed, crowded(seed, special)))


def looped(seed: int, plan: Plan) -> Plan:
    """Return the plan of a seed; tasks use some of its clients. A single client is used by threads."""
    random = Random(f"looped {seed}")
    if plan.clients == 1 or plan.loops:
        return plan
    return evolve(plan, loops=frozenset(number for number in range(plan.clients) if random.random() < LOOPS_PART))


def crossed(seed: int) -> Plan | None:
    """Return a plan in which hand-offs cross each other, by a generator of its own; None for most seeds."""
    random = Random(f"crossed {seed}")
    return _draw_crossed(random) if random.random() < CROSSED_PART else None


def _draw_crossed(random: Random) -> Plan:
    """Draw turns shorter than the way to three masters, which so see releases and newcomers in different orders."""
    plan = draw_any(random, (), is_calm=True)
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


def trusted(seed: int) -> Plan | None:
    """Return a plan in which holders stay to the end of what they trust in; None for most seeds."""
    random = Random(f"trusted {seed}")
    return random.choice([_draw_shortened, _draw_stalled])(random) if random.random() < TRUSTED_PART else None


def _draw_shortened(random: Random) -> Plan:
    """Draw holds that get a longer lease once, while a request for the shorter one is repeated, without renewals."""
    ttl, longest, node_timeout = 3 * TTL_SECONDS, 9 * TTL_SECONDS, 1.0
    begins = longest + CALM_SECONDS  # with the masters' first votes, and connections
    plan = _draw_trusted(random, ())
    return evolve(
        plan,
        ttl=ttl,
        conditions=evolve(plan.conditions, repeats=0.5, repeated_after=(0.9 * node_timeout,)),
        node_timeout=node_timeout,
        begins=begins,
        faults=begins + 60.0,
        settling=2 * longest + SETTLING_SECONDS,
        wide=Wide(ttls=(ttl, ttl, longest), fair=(True,), renew=(False,), handoffs=("grant",), levels=1, extends=0.15),
    )


def _draw_stalled(random: Random) -> Plan:
    """Draw clients whose machines stand still, with their clocks, while they have the lock."""
    begins = TTL_SECONDS + CALM_SECONDS  # with the masters' first votes, and connections
    return evolve(_draw_trusted(random, ("stop clock",)), begins=begins, faults=begins + 10.0, fault_pause=1.0)


def _draw_trusted(random: Random, kinds: tuple[str, ...]) -> Plan:
    """Draw holders that stay until their holds end, while others wait."""
    return evolve(
        draw_any(random, kinds, is_calm=True),
        masters=random.choice([1, 1, 3]),
        clients=3,
        threads=1,
        turns=6,
        stays=(float("inf"),),
        timeouts=(20.0,),
        fair=True,
        renew=False,
        named=False,
    )


def apart(seed: int) -> Plan | None:
    """Return a plan in which the masters' clocks differ by many leases, and holders die; None for most seeds."""
    random = Random(f"apart {seed}")
    if random.random() >= APART_PART:
        return None
    return evolve(
        draw_any(random, ("isolate client",), is_calm=True),
        masters=3,
        clients=3,
        threads=1,
        turns=5,
        skew=APART_SECONDS,
        conditions=Conditions(delay=0.0005),
        stays=(float("inf"),),  # so that no release tells the others the token
        timeouts=(20.0,),
        node_timeout=0.3,
        fault_pause=0.6,
        faults=6.0,
        lasting=(0.8, 1.5),
        renew=False,
        fair=True,
    )


def crowded(seed: int, plan: Plan) -> Plan:
    """Return the plan, in some runs with other locks in the same processes, or with output that nothing reads."""
    random = Random(f"crowded {seed}")
    if random.random() < CROWDED_PART:
        plan = evolve(plan, names=random.choice(OTHER_NAMES))
    if random.random() < BLOCKED_PART:
        plan = evolve(plan, is_blocked=True)
    return plan


def noted(seed: int, plan: Plan) -> Plan:
    """Return the plan, in some runs with notes; a semaphore has none."""
    is_noted = Random(f"noted {seed}").random() < NOTED_PART and plan.permits is None
    return evolve(plan, has_notes=True) if is_noted else plan


def moved(seed: int) -> Plan | None:
    """Return a plan in which masters move, by a generator of its own; None for most seeds."""
    random = Random(f"moved {seed}")
    if random.random() >= MOVED_PART:
        return None
    (drawn,) = random.choices(list(_MOVED_SORTS), list(_MOVED_SORTS.values()))
    return drawn(random)


def _draw_planned(random: Random) -> Plan:
    """Draw masters that change their roles in an orderly way, while most of the clients do nothing but wait."""
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
    """Draw masters that are failed back while connections stay open, most of them idle; the newest data are lost."""
    masters, ttl = random.choice([1, 1, 3]), random.choice([TTL_SECONDS, MIDDLE_TTL_SECONDS])
    return evolve(
        _draw_moved(random),
        kinds=FAILING_BACK if masters > 1 else ("fail back",),
        masters=masters,
        clients=3,
        threads=1,
        ttl=ttl,
        begins=CALM_SECONDS / 2 + ttl,  # with the masters' first votes, and connections
        faults=CALM_SECONDS + 15 * ttl + 10.0,
        fault_pause=1.0 + 1.5 * ttl,  # so that most strike when masters have their votes again
        skew=0.3,
        stays=(0.5, 1.0),
        timeouts=(0.0, 0.05, 0.5),
        pause=random.choice([0.5, 1.0]),
        renew=True,
        settling=2 * ttl + SETTLING_SECONDS,
        is_guarded=True,
        moves=Moves(lag=random.choice([0.01, 0.1]), handoffs=("grant",), goes_on=1.0),
    )


def _draw_moved(random: Random) -> Plan:
    """Draw masters that move while connections stay open, with few other faults; then threads go on for a while."""
    moving = tuple(kind for kind in MOVING if random.random() < 0.3) or (random.choice(MOVING),)
    around = tuple(kind for kind in AROUND if random.random() < 0.5)
    also = tuple(kind for kind in ("pause client", "kill connections", *CALLS) if random.random() < 0.1)
    masters = random.choice([1, 1, 1, 3])
    ttl = random.choice([TTL_SECONDS, TTL_SECONDS, MIDDLE_TTL_SECONDS])
    is_guarded = masters > 1 or random.random() < 0.6
    return evolve(
        draw_any(random, (*moving, *moving, *around, *also), is_calm=True),
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
        is_guarded=is_guarded,
        moves=Moves(
            lag=random.choice([0.0005, 0.01, 0.1, 0.5]),
            handoffs=random.choice([("grant",), ("grant",), ("grant", "wake")]),
            goes_on=random.choice([1.0, 3.0]),
        ),
    )


def widened(seed: int, plan: Plan) -> Plan:
    """Return the plan, wider in one of four runs that are of no other kind; by a generator of its own."""
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
    """Draw holds that get a much longer lease while a quorum is away for a moment."""
    ttl, longest = MIDDLE_TTL_SECONDS, MUCH_LONGER * MIDDLE_TTL_SECONDS
    return evolve(
        draw_any(random, ("lose a quorum",), is_calm=True),
        masters=random.choice([1, 3]),
        clients=1,  # so that all faults strike this one
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


_MOVED_SORTS = {_draw_moved: 0.4, _draw_planned: 0.2, _draw_failed_back: 0.4}
# The first with a plan decides.
_KINDS = (
    moved,
    crossed,
    trusted,
    apart,
    stuck,
    ended,
    closing,
    strange,
    mass,
    several,
    limited,
    reading,
    orders,
    rested,
)
