"""Holds that an operator ends by force, and events between the operator's look at them and their end."""

import warnings

import pytest

from relock._core.flows.inspect import force_release
from relock._core.lock_spec import LockSpec
from relock._keys import lock_keys
from relock.lock import Lock
from relock.testing import Lab
from relock.testing._conditions import Conditions
from sim.plan import TTL_SECONDS, Plan
from sim.simulation import Simulation

SEEDS = (9, 32, 34, 35)  # that find a violation if the end of a hold does not pass on the token of another master
AHEAD_SECONDS = 10.0  # of the other masters' clocks, and less than a lease


@pytest.mark.parametrize("look", ["free", "held"])
def test_tokens_rise_though_the_hold_was_granted_after_the_operator_had_looked(look: str) -> None:
    """Masters whose clocks are not ahead do not know the hold's token, and the next holder asks only these."""
    lab = Lab(masters=3)
    first, _, last = lab.masters
    first.step(AHEAD_SECONDS)  # before any client looks
    before, holder, grantee, operator = (lab.client(name, restart_guard=30.0) for name in ("x", "b", "c", "operator"))
    last.unreachable.add("b")
    first.unreachable.update(("x", "c"))
    tokens: list[int] = []
    looks = 0

    def take(lock: Lock) -> None:
        lock.acquire()
        assert lock.token is not None
        tokens.append(lock.token)

    def clock() -> float:
        """Count the looks: at the second one, the operator is about to end the hold that the first answer has shown."""
        nonlocal looks
        looks += 1
        if looks == 2:
            if look == "held":
                before.lock("a", ttl=0.5).release()
            take(holder.lock("a"))
        return operator._session.clock()

    def work() -> None:
        for client in (before, holder, grantee, operator):
            client.lock("warm-up").acquire(timeout=5.0)
            client.lock("warm-up").release()
            lab.sleep(1.0)
        if look == "held":
            take(before.lock("a", ttl=0.5))
        options = operator._session.options
        spec = LockSpec.of(lock_keys("lock", "a"), ("0", "1", "2"), options.for_lock(), options)
        released, _ = operator._session.run(force_release(spec, clock))
        assert released
        take(grantee.lock("a"))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lab.run(work)
    lab.close()
    assert tokens == sorted(set(tokens))


MANY = Plan(
    masters=3,
    clients=3,
    threads=2,
    turns=10,
    pause=0.02,
    begins=2 * TTL_SECONDS,  # with the masters' first votes
    faults=6.0,
    fault_pause=0.1,
    kinds=("force release", "partition"),
    lasting=(0.2, 0.8, 1.5),
    conditions=Conditions(delay=0.003, straggles=0.1, straggle=0.03),
    skew=0.4 * TTL_SECONDS,  # less than a lease apart, so tokens need not be written to a quorum
    stays=(0.0, 0.05, 0.2),
    timeouts=(0.5, 3.0),
    node_timeout=0.05,
    fair=False,
    renew=True,
)


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_rise_while_operators_end_one_hold_after_the_other(seed: int) -> None:
    """Half of the times, a master that can't be reached for a while is the one that gave the largest token."""
    run = Simulation(seed, MANY).run()
    assert run.faults["force release"] > 0
