"""The plans of most runs: some are calm, in others everything goes wrong, or one thing alone."""

from random import Random

from attrs import evolve

from relock.testing._conditions import Conditions
from sim.plan import CALLS, CALM_SECONDS, CLOCKS, FORGETTING, KINDS, MIDDLE_TTL_SECONDS, TTL_SECONDS, Plan

LONG_TTL_SECONDS = 10.0
DELAYING = ("pause client", "kill connections", "interrupt", "step", "crash client", "isolate client")
IMPATIENT_PART = 0.4  # of the runs with slow requests


def draw(random: Random) -> Plan:
    """Return a plan: calm, with all faults, with hardly any but those of time, or with hand-offs by the dozen."""
    (drawn,) = random.choices(list(_SORTS), list(_SORTS.values()))
    return drawn(random)


def _draw_calm(random: Random) -> Plan:
    """Draw a run in which nothing goes wrong, so relock must keep every promise."""
    kinds = random.choice(
        [(), ("crash client",), ("force release",), ("force release",), ("interrupt",), ("fork", "crash client")]
    )
    return draw_any(random, kinds, is_calm=True)


def _draw_faults(random: Random) -> Plan:
    """Draw a run in which everything goes wrong."""
    share = random.choice([0.15, 0.4])
    kinds = tuple(kind for kind in (*KINDS, *CLOCKS, *CALLS) if random.random() < share)
    return draw_any(random, kinds, is_calm=False)


def _draw_clocks(random: Random) -> Plan:
    """Draw clocks that are set, that run off, that stand still; sometimes some masters are away."""
    kinds = tuple(kind for kind in CLOCKS if random.random() < 0.4) or ("step",)
    return evolve(
        draw_any(random, kinds, is_calm=True),
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
    """Draw a run in which only one of several clocks is set, so that no client can take the step for anything else."""
    return evolve(
        draw_any(random, ("step",), is_calm=True),
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
    """Draw late replies, and holders that stay to the end of their validity, to find mistakes with time."""
    alone = ("isolate client",)
    kinds = random.choice([alone, (*alone, "pause client"), ("pause client",), ("lose a quorum",)])
    return evolve(
        draw_any(random, kinds, is_calm=False),
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
    """Draw holds that lack a master, where another attempt was just made, and that end about when they are renewed."""
    return evolve(
        draw_any(random, (), is_calm=True),
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
    """Draw waits that are longer than a waiter counts as alive without a heartbeat."""
    return evolve(
        draw_any(random, (), is_calm=True),
        masters=random.choice([1, 1, 3]),
        clients=5,
        threads=1,
        stays=(2.5,),
        timeouts=(40.0,),
        turns=2,
        pause=1.5,  # so that some come when others have waited for long
        fair=True,  # a waiter that is taken for dead loses its place, and only then is the order judged
    )


def _draw_slow(random: Random) -> Plan:
    """Draw requests that arrive when no caller waits for them, and leases so long that their leftovers show.

    No other master can outvote a lone one: a grant that an impatient caller leaves there keeps all others out.
    """
    slow = _draw_any_slow(random)
    if random.random() < IMPATIENT_PART:
        return evolve(slow, masters=1, stays=(0.0, 0.01, 0.3), timeouts=(0.05,), turns=12)
    return slow


def _draw_any_slow(random: Random) -> Plan:
    return evolve(
        draw_any(random, (), is_calm=True),
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
    """Draw holders that stay for a moment, and many waiters, to find faults that come once in many hand-offs."""
    is_calm = random.random() < 0.5
    kinds = tuple(kind for kind in CALLS if random.random() < 0.3)
    if not is_calm:
        kinds += tuple(kind for kind in KINDS if random.random() < 0.15)
    return evolve(
        draw_any(random, kinds, is_calm=is_calm),
        masters=random.choice([1, 1, 1, 3]),
        stays=(0.0, 0.001, 0.01),
        timeouts=(3.0, 20.0),
        begins=CALM_SECONDS if is_calm else TTL_SECONDS,
        turns=8,
        pause=random.choice([0.02, 0.1]),
    )


def _draw_restart(random: Random) -> Plan:
    """Draw a lone master that comes back with old data, its marker included."""
    return evolve(
        draw_any(random, ("restart old",), is_calm=True),
        masters=1,
        fault_pause=0.4,
        faults=3.0,
        stays=(0.0, 0.3, 1.6),
        turns=3,
        renew=False,
    )


def _draw_handed(random: Random) -> Plan:
    """Draw messages that come late or never, clients that stand still, and leases longer than a releaser gives."""
    is_calm = random.random() < 0.4
    kinds = tuple(kind for kind in DELAYING if random.random() < 0.3)
    plan = draw_any(random, () if is_calm else kinds, is_calm=is_calm)
    late = random.choice([0.0, 0.05, 0.3])
    conditions = evolve(plan.conditions, straggles=late, straggle=random.choice([0.1, 0.5, 2.0]))
    ttl = random.choice([TTL_SECONDS, MIDDLE_TTL_SECONDS])
    lags = not is_calm and ttl == TTL_SECONDS  # if so, only messages are late, and no client renews
    if is_calm:
        # Longer than a turn takes, so the masters see the turns in different orders.
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


def draw_any(random: Random, kinds: tuple[str, ...], *, is_calm: bool) -> Plan:
    """Draw the common part of all plans: these faults strike, or none if the run `is_calm` and the faults do harm."""
    node_timeout = random.choice([0.05, 0.3])
    conditions = Conditions(
        delay=random.choice([0.0001, 0.0005, 0.003]),
        straggles=0.0 if is_calm else random.choice([0.0, 0.01, 0.1]),
        straggle=random.choice([0.02, 0.1, 0.6]),
        cuts=0.0 if is_calm else random.choice([0.0, 0.0, 0.002]),
        drops=0.0 if is_calm else random.choice([0.0, 0.0, 0.1, 1.0]),
        repeats=random.choice([0.0, 0.0, 0.0, 0.1]),
        # A repeated request changes nothing if it comes at once, or when it is void; between the two it may.
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
        # Tokens rise even over masters that forget, as long as their clocks differ by less than the guard.
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
