"""Costs of a lost wake-up, in virtual time, where a bound is the same on every machine."""

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from attrs import evolve

from relock._keys import lock_keys
from relock.testing import Lab
from relock.testing._master import VirtualMaster

TTL_SECONDS = 600.0  # so that no waiter gets the lock by the end of a lease
HELD_SECONDS = 20.0
LEASE_SECONDS = 6.0
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
                lab.sleep(HELD_SECONDS + seed / 4)  # at every moment between two heartbeats
            return lab.now

        def wait() -> float:
            lab.sleep(1.0)
            with waiter.lock("a"):
                return lab.now

        released, taken = lab.run(hold, wait)
        lab.close()
    assert 0.0 < taken - released < LOST_MESSAGE_SECONDS_MAX


@pytest.mark.parametrize("masters", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_a_waiter_behind_a_dead_one_has_the_lock_when_the_lease_ends(masters: int, seed: int) -> None:
    """The holder and the first waiter die together; the next waiter does not wait for its heartbeat."""
    with without_warnings():
        lab = Lab(masters=masters, seed=seed)
        holder, head, live = (lab.client(name, ttl=LEASE_SECONDS) for name in ("holder", "head", "live"))
        held = holder.lock("a", owner="whoever")
        lab.run(held.acquire)
        with pytest.raises(TimeoutError):
            lab.run(head.lock("a").acquire, within=0.5)

        def die() -> float:
            lab.sleep(0.5 + seed / 4)  # at every moment between two heartbeats
            end = lab.now + held.remaining()
            for name in ("holder", "head"):
                lab.crash(name)
            return end

        def wait() -> float:
            with live.lock("a"):
                return lab.now

        end, taken = lab.run(die, wait)
        lab.close()
    assert 0.0 < taken - end < 0.1 + LEASE_SECONDS / 50, "the second term is for the drift of the lease"


def test_a_master_does_not_report_a_lease_as_over_in_its_last_millisecond() -> None:
    """Heartbeats at that moment are followed by another as soon as the lease has ended, not only 2.5 s later."""
    clock_ms = itertools.count(1_700_000_000_000)
    master = VirtualMaster(lambda: next(clock_ms) * 1000, "a")
    keys = lock_keys("lock", "a")
    master.read("HSET", keys.lock, b"dead:1", b"1")
    master.read("PEXPIRE", keys.lock, b"3")
    arguments = [b"me", b"7000", b"30000", b"%d" % 2**52, b"1", b"me:1"]
    lefts_ms = [master.run("heartbeat", (keys.lock, keys.queue, keys.waiters), arguments)[2] for _ in range(4)]  # type: ignore[index]
    assert lefts_ms == [2, 1, 1, 0]
