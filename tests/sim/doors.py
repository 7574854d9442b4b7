"""The plans of runs in which callers take several locks, permits of a semaphore, or the sides of a read-write lock.

Each kind of run has a random generator of its own. It is otherwise as most plans are.
"""

from random import Random

from attrs import evolve

from sim.draws import draw, draw_any
from sim.liveness import closing, ended
from sim.plan import CALM_SECONDS, FORGETTING, LOCK, OVERRIDE, TTL_SECONDS, Orders, Permits, Plan, Several, Sides

SEVERAL_PART = 0.06  # of the runs that are of no other kind
LOCKS = (LOCK, "b", "c", "d")  # in runs in which callers take several
LIMITED_PART = 0.1  # of the runs that are of no other kind, also not of that
OVERRIDDEN_PART = 0.25  # of the runs with a semaphore
ORDERS_PART = 0.12  # of the runs that are of no other kind
ORDERED = (*LOCKS, "e", "f")
READING_PART = 0.11  # of the runs that have no semaphore either


def several(seed: int, part: float = SEVERAL_PART) -> Plan | None:
    """Return a plan in which callers take several locks; None for most seeds. It is otherwise as most plans are."""
    random = Random(f"overlapping {seed}")
    if random.random() >= part:
        return None
    names = LOCKS[: random.randint(2, len(LOCKS))]
    chances = {"whole": random.choice([0.3, 0.6, 0.9]), "alone": random.choice([0.3, 0.7])}
    (drawn,) = random.choices(list(_SEVERAL_SORTS), list(_SEVERAL_SORTS.values()))
    return evolve(drawn(random), several=Several(names, **chances))


def _draw_closing(random: Random) -> Plan:
    """Draw clients that are closed."""
    plan = closing(random.getrandbits(32), 1.0)
    assert plan is not None
    return plan


def _draw_ended(random: Random) -> Plan:
    """Draw loops that are closed."""
    plan = ended(random.getrandbits(32), 1.0)
    assert plan is not None
    return plan


def _draw_cut_off(random: Random) -> Plan:
    """Draw calls that are interrupted, or cancelled, at every turn."""
    return evolve(
        draw_any(random, ("interrupt",), is_calm=True),
        masters=random.choice([1, 1, 3]),
        clients=3,
        turns=8,
        stays=(0.0, 0.01, 0.3),
        timeouts=random.choice([(0.0, 0.05, 0.5), (0.05, 20.0)]),
        faults=6.0,
        fault_pause=0.03,
        renew=random.random() < 0.8,
    )


def limited(seed: int, part: float = LIMITED_PART) -> Plan | None:
    """Return a plan in which callers take permits of a semaphore; None for most seeds."""
    random = Random(f"limited {seed}")
    if random.random() >= part:
        return None
    (drawn,) = random.choices(list(_LIMITED_SORTS), list(_LIMITED_SORTS.values()))
    plan = drawn(random)
    if random.random() < OVERRIDDEN_PART:
        plan = evolve(plan, kinds=(*plan.kinds, OVERRIDE))
    limit = random.randint(1, min(5, max(1, plan.clients * plan.threads - 1)))
    limits = (limit,) if random.random() < 0.75 else (limit, random.randint(1, 5))
    return evolve(
        plan,
        permits=Permits(
            limits,
            most=random.choice([1, 1, 2, 3, 5]),
            more=random.choice([0.0, 0.0, 0.3]),
            fair=(True, False) if random.random() < 0.1 else (plan.fair,),
            handoffs=random.choice([("grant",), ("grant",), ("grant", "wake")]),
        ),
    )


def reading(seed: int, part: float = READING_PART) -> Plan | None:
    """Return a plan in which callers read and write; None for most seeds."""
    random = Random(f"reading {seed}")
    if random.random() >= part:
        return None
    (drawn,) = random.choices(list(_READING_SORTS), list(_READING_SORTS.values()))
    plan = drawn(random)
    return evolve(
        plan,
        sides=Sides(
            reads=random.choice([0.3, 0.6, 0.6, 0.9]),
            inside=random.choice([0.0, 0.3, 0.6]),
            fair=(True, False) if random.random() < 0.1 else (plan.fair,),
            renew=(True, False) if random.random() < 0.3 else (plan.renew,),
            handoffs=random.choice([("grant",), ("grant",), ("grant", "wake")]),
        ),
    )


def _draw_giving_up(random: Random) -> Plan:
    """Draw holders that stay for long, and waiters of which some give up before the others."""
    return evolve(
        draw_any(random, (), is_calm=True),
        masters=random.choice([1, 1, 3]),
        clients=random.choice([3, 4]),
        threads=random.choice([1, 2]),
        turns=6,
        begins=CALM_SECONDS,
        stays=(0.1, 1.6, 2.6),
        timeouts=(0.3, 0.5, 20.0),
        pause=random.choice([0.1, 0.5]),
        renew=True,
    )


def _draw_crowd(random: Random) -> Plan:
    """Draw many callers, so that several wait for a permit or a lock, with hardly any faults."""
    kinds = random.choice([(), (), ("crash client",), ("interrupt",), ("force release",)])
    return evolve(
        draw_any(random, kinds, is_calm=True),
        masters=random.choice([1, 1, 3, 3, 5]),
        clients=random.choice([3, 4]),
        threads=random.choice([2, 3]),
        turns=6,
        begins=CALM_SECONDS,
        faults=CALM_SECONDS + 6.0,
        stays=random.choice([(0.0, 0.001, 0.01), (0.01, 0.3), (0.3, 1.6)]),
        timeouts=random.choice([(3.0, 20.0), (0.05, 20.0)]),
        pause=random.choice([0.02, 0.2]),
    )


def _draw_lacking(random: Random) -> Plan:
    """Draw holds that one master lacks, and that are renewed while others try to get one."""
    kinds = random.choice([("partition",), ("flush",), ("crash", "restart old"), ("partition", "flush")])
    return evolve(
        draw_any(random, kinds, is_calm=True),
        masters=3,
        clients=random.choice([3, 4]),
        threads=random.choice([1, 2]),
        turns=6,
        begins=TTL_SECONDS,
        faults=6.0,
        fault_pause=0.4,
        lasting=(0.2, 0.8),
        stays=(0.3, 1.01 * TTL_SECONDS / 3, 1.6),
        timeouts=(0.0, 0.05, 0.5),
        renew=True,
        pause=0.1,
    )


def _draw_dying(random: Random) -> Plan:
    """Draw holders that die while others wait, so that only the ends of their leases end their holds."""
    return evolve(
        draw_any(random, ("crash client", "crash client", "change rate"), is_calm=True),
        masters=random.choice([1, 1, 3]),
        clients=5,
        threads=random.choice([1, 2]),
        turns=5,
        begins=CALM_SECONDS,
        faults=CALM_SECONDS + 4.0,
        fault_pause=2.0,
        stays=(0.3, 1.6),
        timeouts=(3.0, 20.0),
        renew=random.random() < 0.7,
    )


def orders(seed: int, part: float = ORDERS_PART) -> Plan | None:
    """Return a plan in which callers take several locks in any order; None for most seeds."""
    random = Random(f"nested {seed}")
    if random.random() >= part:
        return None
    (drawn,) = random.choices(list(_ORDERS_SORTS), list(_ORDERS_SORTS.values()))
    names = ORDERED[: random.randint(3, len(ORDERED))]
    after = random.choice([0.5, 0.5, 2.5])
    return evolve(
        drawn(random),
        several=Several(names, whole=random.choice([0.0, 0.3]), alone=1.0),
        orders=Orders(
            after,
            modes=random.choice([("raise",), ("raise",), ("raise", "raise", "report", "ignore")]),
            sides=random.choice([0.0, 0.0, 0.3]),
            short=random.choice([0.0, 0.4, 0.4]),
        ),
    )


def _draw_rings(random: Random) -> Plan:
    """Draw callers that have locks for a while, and hardly any faults."""
    kinds = random.choice([(), (), (), ("crash client",), ("interrupt",), ("pause client",)])
    return evolve(
        draw_any(random, kinds, is_calm=True),
        masters=random.choice([1, 1, 3, 5]),
        clients=random.choice([2, 3, 4]),
        threads=random.choice([1, 2, 2]),
        turns=5,
        begins=CALM_SECONDS,
        faults=CALM_SECONDS + 10.0,
        fault_pause=2.0,
        stays=random.choice([(0.0, 0.01), (0.1, 0.3), (0.3, 1.6)]),
        timeouts=(3.0, 20.0),
        renew=random.random() < 0.9,
    )


def _draw_late_answers(random: Random) -> Plan:
    """Draw messages between clients that come late or never, while short waits end, and holders die or stand still."""
    kinds = tuple(kind for kind in ("crash client", "pause client", "partition", "crash") if random.random() < 0.25)
    plan = _draw_rings(random)
    lags, drops = random.choice([(0.5, 0.0), (0.5, 0.0), (0.5, 0.1), (0.0, 0.3)])
    conditions = evolve(plan.conditions, lags=lags, drops=drops, straggle=random.choice([0.5, 2.0]))
    skew = 0.3 if FORGETTING & set(kinds) else plan.skew
    return evolve(
        plan, kinds=kinds, conditions=conditions, skew=skew, clients=random.choice([3, 4]), threads=2, turns=8
    )


_ORDERS_SORTS = {_draw_rings: 0.3, _draw_late_answers: 0.5, draw: 0.1, _draw_cut_off: 0.1}
_SEVERAL_SORTS = {draw: 0.6, _draw_cut_off: 0.25, _draw_ended: 0.05, _draw_closing: 0.1}
_LIMITED_SORTS = {
    draw: 0.35,
    _draw_crowd: 0.25,
    _draw_lacking: 0.1,
    _draw_dying: 0.1,
    _draw_cut_off: 0.1,
    _draw_ended: 0.05,
    _draw_closing: 0.05,
}
_READING_SORTS = {**_LIMITED_SORTS, draw: 0.2, _draw_cut_off: 0.2, _draw_giving_up: 0.05}
