"""`at_least`: a lock that is released stays taken, without an owner, until so long after its grant."""

from contextlib import suppress
from functools import partial
from itertools import count

import pytest

from contract.rigs.calls import take
from contract.rigs.rig import BRIEF, SOON, Interrupted, Rig, all_done, calls, key_of
from contract.rigs.watch import At
from relock import AcquireTimeoutError, Client, ConfigurationError, Lock, LockLostError

LONG = 50.0  # seconds: no rest ends by itself in a test
LEASE = 20.0
SHORT = 0.2


def interrupt() -> None:
    raise Interrupted


def has_rest(rig: Rig, name: str) -> bool:
    """Return whether the lock rests on a quorum, and no master has a hold."""
    holders = rig.holders(name)
    resting = sum(len(found) == 1 and found[0].startswith(b"~") for found in holders)
    return resting >= rig.quorum and resting + holders.count([]) == rig.masters


def take_and_release(lock: Lock) -> None:
    take(lock, 1)
    lock.release()


def test_a_released_lock_rests_and_nobody_gets_it_until_an_operator_ends_the_rest(rig: Rig, name: str) -> None:
    client, other = rig.client(), rig.client()
    rig.warm_up(client)
    lock = client.lock(name, ttl=LEASE, at_least=LONG)
    with lock:
        token = lock.token or 0
        assert not lock.info().resting
    assert not lock.owned()
    rig.until(lambda: has_rest(rig, name), "also the masters beyond the quorum have the release")
    info = other.info(name)
    assert (info.held, info.resting, info.owner, info.hold_count, info.holders) == (True, True, None, 0, ())
    assert LEASE < info.ttl <= LONG * 1.02, "longer than the lease"
    assert not lock.acquire(timeout=0), "not the last owner either"
    with pytest.raises(AcquireTimeoutError, match="it rested after its release") as error, other.lock(name, timeout=0):
        pytest.fail("the block was entered")
    assert error.value.holder is None
    assert other.force_release(name)
    assert other.lock(name).acquire(timeout=SOON)
    assert other.lock(name).token > token  # type: ignore[operator]  # it has one
    other.lock(name).release()
    rig.until_free(name, "the other's hold")


def test_a_waiter_gets_the_lock_when_the_rest_is_over_and_not_with_the_lease(rig: Rig, name: str) -> None:
    client, other = rig.client(), rig.client()
    lock = client.lock(name, at_least=5 * SHORT)
    begin = rig.clock()
    take(lock, 1)
    waiting = rig.start(lambda: other.lock(name).acquire(timeout=SOON) and rig.clock())
    rig.until(lambda: rig.is_queued(name) or rig.clock() > begin + 4 * SHORT, "the other waits")
    lock.release()
    assert waiting.result() >= begin + 5 * SHORT


def test_the_rest_is_counted_from_the_grant_so_a_long_hold_leaves_none(rig: Rig, name: str) -> None:
    client = rig.client()
    lock = client.lock(name, at_least=SHORT)
    take(lock, 1)
    over = rig.clock() + 1.1 * SHORT
    rig.until(lambda: rig.clock() > over, "the time is over")
    lock.release()
    rig.until_free(name, "a long hold")


def test_only_the_last_level_rests_and_for_the_longest_that_took_part(rig: Rig, name: str) -> None:
    client = rig.client()
    outer, inner = client.lock(name), client.lock(name, at_least=LONG)
    with outer:
        with inner:
            pass
        assert outer.owned()
        assert not client.info(name).resting
    assert client.info(name).resting
    client.force_release(name)
    rig.until_free(name, "the rest")


def test_an_interrupted_release_rests_and_an_interrupted_acquire_leaves_nothing(rig: Rig, name: str) -> None:
    client = rig.client()
    rig.warm_up(client)
    for number in count(1):
        lock = client.lock(f"{name}-{number}", at_least=LONG)
        begun = At(number, interrupt)
        with rig.watch.each(begun), suppress(Interrupted):
            lock.acquire()
        if begun.where:
            assert not lock.owned()
            rig.until_free(lock.name, f"an acquire that was interrupted {begun.where}")
            take(lock, 1)
        strike = At(number, interrupt)
        with rig.watch.each(strike):
            try:
                lock.release()
            except Interrupted:
                assert not lock.owned()
        rig.until(partial(has_rest, rig, lock.name), f"the rest after an interrupt {strike.where}")
        if not (begun.where or strike.where):
            break
    assert number > 5, "the watch sees the steps"


def test_a_release_that_does_not_reach_the_masters_is_repeated_with_its_rest(rig: Rig, name: str) -> None:
    client = rig.client(node_timeout=BRIEF)
    rig.warm_up(client)
    lock = client.lock(name, at_least=LONG)

    def take_afresh() -> None:
        client.force_release(name)
        rig.take_everywhere(client.lock(name), 1)  # without a rest
        lock.acquire()

    def leave() -> None:
        lock.release()
        lock.release()

    faults = rig.until_asked(lambda line: line.lose_request(calls(name, "rest")), leave, before=take_afresh)
    rig.until(lambda: all_done(faults), "the requests are lost")
    rig.until(lambda: has_rest(rig, name), "the rest")


def test_a_lost_hold_leaves_no_rest_where_a_minority_has_it(rig: Rig, name: str) -> None:
    client = rig.client()
    rig.warm_up(client)
    lock = client.lock(name, at_least=LONG)
    rig.take_everywhere(client.lock(name), 1)
    take(lock, 2)
    lock.release()
    for master in range(rig.quorum):
        rig.ask(master, "DEL", key_of(name))
    for _ in range(2):
        with pytest.raises(LockLostError):
            lock.release()
    rig.until_free(name, "a lost hold")


@pytest.mark.several
def test_a_release_that_finds_the_hold_lost_leaves_no_rest_on_a_minority(rig: Rig, name: str) -> None:
    client = rig.client()
    rig.warm_up(client)
    lock = client.lock(name, at_least=LONG)
    rig.take_everywhere(client.lock(name), 1)
    take_and_release(lock)
    for master in range(rig.quorum):
        rig.ask(master, "DEL", key_of(name))
    with pytest.raises(LockLostError):
        lock.release()
    rig.until_free(name, "a hold that its release has found lost")


def test_a_client_that_closes_leaves_the_rest_of_a_release(rig: Rig, name: str) -> None:
    client = rig.client()
    rig.warm_up(client)
    take_and_release(client.lock(name, at_least=LONG))
    client.close()
    assert has_rest(rig, name)


def test_a_caller_that_reads_as_well_can_have_no_rest(rig: Rig, name: str) -> None:
    client: Client = rig.client()
    sides = client.rwlock(name)
    with client.lock(name, at_least=LONG):
        for step in (sides.read.acquire, sides.write.downgrade):
            with pytest.raises(ConfigurationError, match="at_least") as error:
                step()
            assert error.value.option == "at_least"
            assert (sides.write.hold_count, sides.read.hold_count) == (1, 0)
    assert client.force_release(name)
    with client.lock(name), sides.read:
        with pytest.raises(ConfigurationError, match="at_least"):
            client.lock(name, at_least=LONG).acquire()
        assert (sides.write.hold_count, sides.read.hold_count) == (1, 1)
    rig.until_free(name, "both sides")


@pytest.mark.several
def test_masters_that_forgot_the_hold_get_no_rest_and_a_quorum_has_one(rig: Rig, name: str) -> None:
    client = rig.client()
    rig.warm_up(client)
    lock = client.lock(name, at_least=LONG)
    rig.take_everywhere(client.lock(name), 1)
    lock.acquire()
    rig.ask(0, "DEL", key_of(name))
    lock.release()
    lock.release()
    rig.until(lambda: has_rest(rig, name), "the rest")
    assert not rig.client().lock(name).acquire(timeout=0)
