"""The plans of runs without faults, except that clients cannot act, are closed, or come from elsewhere.

Each kind of run has a random generator of its own, and can be switched off by its part.
"""

from random import Random

from attrs import evolve

from relock.testing._conditions import Conditions
from sim.draws import draw_any
from sim.plan import (
    CALM_SECONDS,
    CLOSE_LOOP,
    GET_STUCK,
    MIDDLE_TTL_SECONDS,
    SLOW_DOWN,
    STOP_PROCESS,
    STRANGER,
    TTL_SECONDS,
    Plan,
)

STUCK_PART = 0.04  # of the runs that are not apart
ENDED_PART = 0.03  # of those that are not stuck either
CLOSING_PART = 0.04  # of those that are not ended either
MASS_PART = 0.02  # of those that are not strange either
STRANGE_PART = 0.03  # of those that are not closing either
RESTED_PART = 0.03  # of those that are of no other kind
STUCK_SECONDS = (5.0, 15.0, 30.0)
STUCK_LOOPS_PART = 0.6  # of the clients in runs in which some get stuck
CLOSING_LOOPS_PART = 0.6  # of the clients in runs in which some are closed


def stuck(seed: int, part: float = STUCK_PART) -> Plan | None:
    """Return a plan in which waiting clients cannot act for longer than any lease; None for most seeds."""
    random = Random(f"stuck {seed}")
    if random.random() >= part:
        return None
    clients, threads = random.choice([3, 4]), random.choice([1, 1, 3])
    loops_part = STUCK_LOOPS_PART if threads == 1 else 1.0  # of several threads, only one can be in a handler
    return evolve(
        draw_any(random, (GET_STUCK, GET_STUCK, STOP_PROCESS), is_calm=True),
        masters=random.choice([1, 1, 3]),
        clients=clients,
        threads=threads,
        turns=4,
        begins=CALM_SECONDS,
        faults=60.0,
        fault_pause=random.choice([1.0, 3.0]),
        lasting=STUCK_SECONDS,
        stays=(0.3, 1.0),
        timeouts=random.choice([(60.0,), (1.0, 60.0)]),
        renew=True,
        named=False,
        loops=frozenset(number for number in range(clients) if random.random() < loops_part),
    )


def ended(seed: int, part: float = ENDED_PART) -> Plan | None:
    """Return a plan in which loops are closed whose tasks have the lock; None for most seeds."""
    random = Random(f"ended {seed}")
    if random.random() >= part:
        return None
    return evolve(
        draw_any(random, (CLOSE_LOOP,), is_calm=True),
        masters=random.choice([1, 1, 3]),
        clients=3,
        ttl=random.choice([TTL_SECONDS, MIDDLE_TTL_SECONDS]),
        turns=6,
        begins=CALM_SECONDS + MIDDLE_TTL_SECONDS,  # with the masters' first votes, and connections
        faults=CALM_SECONDS + MIDDLE_TTL_SECONDS + 20.0,
        fault_pause=1.0,
        stays=(0.0, 0.3, 1.6),
        timeouts=(0.5, 20.0),
        renew=True,
        named=False,
        loops=frozenset(range(random.choice([2, 3]))),
    )


def closing(seed: int, part: float = CLOSING_PART) -> Plan | None:
    """Return a plan in which clients are closed after releases, and some masters are slow; None for most seeds."""
    random = Random(f"closing {seed}")
    if random.random() >= part:
        return None
    plan = draw_any(random, (), is_calm=True)
    node_timeout = 0.3
    return evolve(
        plan,
        masters=random.choice([1, 3, 5, 5]),
        clients=3,
        threads=random.choice([1, 1, 2]),
        turns=6,
        conditions=evolve(plan.conditions, delay=random.choice([0.0001, 0.0005]), repeats=0.0),
        slow=random.choice([0.0, node_timeout / 60, node_timeout / 20]),
        closes=0.3,
        ttl=MIDDLE_TTL_SECONDS,
        begins=CALM_SECONDS + MIDDLE_TTL_SECONDS,  # with the masters' first votes, and connections
        stays=(0.0, 0.01, 0.3),
        timeouts=random.choice([(0.05, 20.0), (0.0, 0.05, 20.0)]),
        node_timeout=node_timeout,
        pause=random.choice([0.02, 0.2]),
        renew=True,
        named=False,
        loops=frozenset(number for number in range(3) if random.random() < CLOSING_LOOPS_PART),
    )


def strange(seed: int, part: float = STRANGE_PART) -> Plan | None:
    """Return a plan with clients that know other masters, and have a longer guard; None for most seeds."""
    random = Random(f"strange {seed}")
    if random.random() >= part:
        return None
    masters, ttl = random.choice([1, 1, 3]), random.choice([TTL_SECONDS, MIDDLE_TTL_SECONDS])
    return evolve(
        draw_any(random, (STRANGER,), is_calm=True),
        masters=masters,
        ttl=ttl,
        turns=6,
        begins=CALM_SECONDS + ttl,  # with the masters' first votes, and connections
        faults=CALM_SECONDS + ttl + 10.0,
        fault_pause=2.0,
        stays=(0.0, 0.3, 1.6),
        timeouts=(0.5, 20.0),
        pause=0.5,
        renew=True,
        is_guarded=masters > 1 or random.random() < 0.5,
    )


def mass(seed: int, part: float = MASS_PART) -> Plan | None:
    """Return a plan in which many waits end at one moment, with room for few requests; None for most seeds."""
    random = Random(f"mass {seed}")
    if random.random() >= part:
        return None
    begins = CALM_SECONDS + MIDDLE_TTL_SECONDS  # with the masters' first votes, and connections
    return evolve(
        draw_any(random, (SLOW_DOWN,), is_calm=True),
        masters=random.choice([1, 1, 3]),
        clients=2,
        threads=random.choice([60, 90]),
        turns=1,
        ttl=MIDDLE_TTL_SECONDS,
        conditions=Conditions(delay=0.0005),
        begins=begins,
        ends_at=begins + random.choice([4.0, 10.0]),
        faults=begins + 10.0,
        stays=(3 * MIDDLE_TTL_SECONDS,),  # longer than the others wait
        node_timeout=1.0,
        pause=0.2,
        renew=True,
        named=False,
        loops=frozenset(random.choice([(0,), (1,), (0, 1)])),
    )


def rested(seed: int, part: float = RESTED_PART) -> Plan | None:
    """Return a plan in which the lock rests after each release, longer than its lease or not; None for most seeds."""
    random = Random(f"rested {seed}")
    if random.random() >= part:
        return None
    at_least = random.choice([TTL_SECONDS / 2, 3 * TTL_SECONDS])
    begins = at_least + CALM_SECONDS  # with the masters' first votes, and connections
    return evolve(
        draw_any(random, random.choice([(), ("interrupt",), ("crash client",)]), is_calm=True),
        masters=random.choice([1, 3]),
        begins=begins,
        faults=begins + 6 * at_least,
        fault_pause=random.choice([0.05, 0.3]),
        turns=4,
        stays=(0.0, 0.01, TTL_SECONDS),
        timeouts=(0.0, 20.0),
        at_least=at_least,
    )
