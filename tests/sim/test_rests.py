"""Runs in which the lock rests after each release, and the referee's rule for them."""

import pytest

from relock._core.hold import Hold
from sim.liveness import rested
from sim.simulation import Simulation, ViolationError

SEEDS = (1006, 1353, 1596, 2580)  # one master and three, interrupts


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_gets_a_lock_that_rests_and_somebody_gets_it_then(seed: int) -> None:
    assert Simulation(seed, rested(seed)).run().grants > 1


def test_the_referee_sees_a_lock_that_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hold, "ending_at", lambda self, _now: self.ending)
    with pytest.raises(ViolationError, match="got the lock though it rests after client-"):
        Simulation(SEEDS[0], rested(SEEDS[0])).run()
