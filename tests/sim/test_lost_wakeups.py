"""What a lost wake-up costs, in virtual time, where a bound is a bound on every machine."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from attrs import evolve

from relock.testing import Lab

TTL_SECONDS = 600.0  # so that no lease's end wakes anybody
HELD_SECONDS = 20.0
LOST_MESSAGE_SECONDS_MAX = 3.0


@contextmanager
def without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("masters", [1, 3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_a_lost_message_costs_less_than_three_seconds(masters: int, seed: int) -> None:
    with without_warnings():
        lab = Lab(masters=masters, seed=seed)
        for server in lab.masters:
            server.conditions = evolve(server.conditions, drops=1.0)
        holder, waiter = (lab.client(name, ttl=TTL_SECONDS) for name in ("holder", "waiter"))

        def hold() -> float:
            with holder.lock("a"):
                lab.sleep(HELD_SECONDS + seed / 4)  # at every moment between two signs of life
            return lab.now

        def wait() -> float:
            lab.sleep(1.0)
            with waiter.lock("a"):
                return lab.now

        released, taken = lab.run(hold, wait)
        lab.close()
    assert 0.0 < taken - released < LOST_MESSAGE_SECONDS_MAX
