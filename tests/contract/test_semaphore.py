"""Permits of a semaphore, on every driver: never more than the limit, in turn, each with a slot and a lease."""

import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from operator import add, gt
from typing import Any

import pytest

from contract.rigs.calls import leave, make, take
from contract.rigs.rig import (
    BRIEF,
    Rig,
    all_done,
    all_struck,
    calls,
    permits_key_of,
    release_all,
    until_in_time,
)
from contract.rigs.watch import At
from relock import (
    AcquireTimeoutError,
    Client,
    ClientClosedError,
    LockLostError,
    NotOwnedError,
    Permit,
    QuorumError,
    RelockError,
    Semaphore,
)
from relock._events import Granted, NotGranted, Released
from relock._runtime.session import closing

PATIENT = 10.0  # seconds: a node timeout that is longer than any wait here
OVERRIDE_SECONDS = 3.0  # a raised limit serves waiters within this time
SHORT_TTL = 2.0  # seconds, for a lease that a test sees end
RENEWED = {"ttl": 4.5, "node_timeout": 1.5}  # for a lease that is renewed, also by a machine that is busy for seconds


each_handoff = pytest.mark.parametrize("handoff", ["grant", "wake"])


def got(semaphore: Semaphore, permits: int = 1, **options: Any) -> Permit:
    """Return a permit, which must be free by and by."""
    permit = semaphore.acquire(permits, **{"timeout": 20, **options})
    assert permit is not None
    return permit


def fill(semaphore: Semaphore, permits: int) -> list[Permit]:
    """Take so many permits, one after the other."""
    return [got(semaphore) for _ in range(permits)]


def warm(rig: Rig, **options: Any) -> Client:
    """Return a client with open connections, and whose scripts are loaded."""
    client = rig.client(**options)
    rig.warm_up(client, "permits")
    return client


def slot_of(permit: Permit) -> int:
    """Return the slot of one permit that its owner has."""
    assert permit.slot is not None
    return permit.slot


def refused(semaphore: Semaphore) -> bool:
    """Return whether there is no permit for a caller that does not wait."""
    return semaphore.acquire(timeout=0) is None and semaphore.acquire(blocking=False) is None


def is_entered(semaphore: Any) -> bool:
    """Return whether a caller is inside a block, as far as the semaphore knows."""
    return bool(getattr(semaphore, "_semaphore", semaphore)._entered)


class Queue:
    """Callers that wait for permits one behind the other, each in a thread of its own.

    Attributes:
        served: the callers that got their permits.
        permits: what each of them got.
    """

    def __init__(self, rig: Rig, name: str) -> None:
        self._rig, self._name = rig, name
        self.served: list[str] = []
        self.permits: dict[str, Permit] = {}
        self._running: list[Any] = []

    def join(self, caller: str, semaphore: Semaphore, permits: int = 1, **options: Any) -> None:
        """Start a thread that waits, and return once every master knows it.

        A master that has given one permit less than the others gives it a slot, and has it in no queue.
        """
        before = self._known()

        def wait() -> None:
            self.permits[caller] = got(semaphore, permits, **options)
            self.served.append(caller)

        self._running.append(self._rig.start(wait))
        self._rig.until(lambda: all(map(gt, self._known(), before)), f"{caller} is queued")

    def _known(self) -> list[int]:
        return list(map(add, self._rig.queued(self._name), self._rig.counts(self._name)))

    def until_served(self, *callers: str) -> None:
        """Wait until these callers, and no others, have been served; threads may say so in another order."""
        self._rig.until(lambda: len(self.served) >= len(callers), f"{callers} are served")
        assert {*self.served} == {*callers}

    def end(self) -> None:
        """Wait for the end of each thread."""
        for running in self._running:
            running.result()


# The limit ------------------------------------------------------------------------------------------------------------


def test_there_are_never_more_permits_than_the_limit(rig: Rig, name: str) -> None:
    clients = [warm(rig, node_timeout=PATIENT), warm(rig, node_timeout=PATIENT)]
    limit, inside, most = 2, set[Any](), list[int]()

    def work(client: Client) -> None:
        semaphore = client.semaphore(name, limit, timeout=20)
        for _ in range(5):
            with semaphore as permit:
                slot = permit.slot
                assert slot not in inside, "each slot is had once"
                inside.add(slot)
                most.append(len(inside))
                permit.extend()  # so that others run meanwhile
                permit.ensure()
                inside.remove(slot)

    running = [rig.start(partial(work, clients[number % 2])) for number in range(6)]
    for one in running:
        one.result()
    assert 1 <= max(most) <= limit
    assert len(most) == 30
    rig.until_free(name, "all")
    assert [client.statistics().held for client in clients] == [0, 0]


def test_each_permit_has_a_slot_of_its_own_below_the_limit(rig: Rig, name: str) -> None:
    limit = 5
    semaphores = [warm(rig).semaphore(name, limit) for _ in range(2)]
    permits = [got(semaphores[number % 2]) for number in range(limit)]
    assert sorted(map(slot_of, permits)) == [*range(limit)]
    if rig.masters == 1:
        assert [permit.slot for permit in permits] == [*range(limit)], "a lone master gives the lowest free one"
    assert {permit.permits for permit in permits} == {1}
    assert refused(semaphores[0])
    slot = permits[3].slot
    permits.pop(3).release()
    permits.append(got(semaphores[1]))
    assert permits[-1].slot == slot, "the only free one"
    for permit in permits:
        permit.release()
    rig.until_free(name, "all")


def test_a_try_finds_the_only_free_slot(rig: Rig, name: str) -> None:
    """Several masters are asked for one slot by chance; their refusals say which one is free."""
    client = warm(rig)
    semaphore = client.semaphore(name, 8)
    permits = fill(semaphore, 8)
    for permit in permits:
        slot = permit.slot
        permit.release()
        again = semaphore.acquire(timeout=0)
        assert again is not None
        assert again.slot == slot
    assert refused(semaphore)


@pytest.mark.several
def test_a_slot_that_only_a_minority_has_given_is_free(rig: Rig, name: str) -> None:
    client = warm(rig)
    key = permits_key_of(name)
    for master, slot in ((0, 0), (1, 1)):  # another owner at each
        rig.ask(master, "HSET", key, f"somebody:else{master}#1/2", slot)
        rig.ask(master, "ZADD", f"{key}:leases", 9_999_999_999_999, f"somebody:else{master}#1/2")
    permits = fill(client.semaphore(name, 2), 2)
    assert {permit.slot for permit in permits} == {0, 1}
    assert refused(client.semaphore(name, 2))
    for permit in permits:
        permit.release()


def test_two_acquires_of_one_thread_are_two_permits(rig: Rig, name: str) -> None:
    semaphore = warm(rig).semaphore(name, 2)
    first, second = got(semaphore), got(semaphore)
    assert first.slot != second.slot
    assert {first.hold_count, second.hold_count} == {1}
    assert refused(semaphore), "an acquire never nests"
    first.release()
    assert (first.owned(), second.owned()) == (False, True)
    second.release()
    rig.until_free(name, "both")


def test_blocks_of_one_thread_are_nested_permits_and_each_leaves_its_own(rig: Rig, name: str) -> None:
    semaphore = warm(rig).semaphore(name, 2)
    with semaphore as first:
        with semaphore as second:
            assert semaphore.info().used == 2
        assert (first.owned(), second.owned()) == (True, False)
    assert not first.owned()
    rig.until_free(name, "both blocks")


def test_callers_with_two_limits_each_judge_by_their_own(rig: Rig, name: str) -> None:
    """A service's limit is raised from 1 to 3: the old version lets up to 1 in meanwhile, and the new one up to 3."""
    old, new = warm(rig).semaphore(name, 1), warm(rig).semaphore(name, 3)
    permits = [got(old)]
    assert refused(old)
    permits += fill(new, 2)
    assert refused(new)
    assert sorted(map(slot_of, permits)) == [0, 1, 2]
    permits.pop(0).release()
    assert refused(old), "two have a permit"
    permits.append(got(new))
    assert old.info().limit == 1
    assert new.info().used == 3
    for permit in permits:
        permit.release()
    got(old).release()
    rig.until_free(name, "all")


def test_a_semaphore_works_at_once_without_being_set_up(rig: Rig, name: str) -> None:
    """Redisson never ends an acquire before `trySetPermits`; nothing here has to be set, and nothing is left."""
    semaphore = rig.client().semaphore(name, 1)
    got(semaphore).release()
    rig.until_free(name, "the release")
    got(semaphore).release()


def test_a_permit_whose_lease_has_ended_counts_for_nothing_and_is_removed(rig: Rig, name: str) -> None:
    """The client of that permit has died, so no request of its own ends it."""
    client, key = warm(rig), permits_key_of(name)
    for master in range(rig.masters):
        rig.ask(master, "HSET", key, "somebody:dead#1/1", 0)
        rig.ask(master, "ZADD", f"{key}:leases", 1, "somebody:dead#1/1")
    semaphore = client.semaphore(name, 1)
    assert (semaphore.info().used, semaphore.info().holders) == (0, ())
    permit = got(semaphore)
    assert permit.slot == 0
    permit.release()
    rig.until_free(name, "the release")


# A full semaphore -----------------------------------------------------------------------------------------------------


def test_a_full_semaphore_is_none_at_once_or_after_the_timeout(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    permits = fill(others.semaphore(name, 2), 2)
    begin = rig.clock()
    assert refused(client.semaphore(name, 2))
    assert client.semaphore(name, 2, timeout=0).acquire() is None
    assert client.statistics().waits == 0
    assert rig.queued(name) == [0] * rig.masters
    assert rig.clock() - begin < rig.slack
    begin = rig.clock()
    assert client.semaphore(name, 2).acquire(timeout=3 * BRIEF) is None
    assert client.semaphore(name, 2, timeout=3 * BRIEF).acquire() is None
    assert 6 * BRIEF <= rig.clock() - begin < 6 * BRIEF + 4.0 + rig.slack
    rig.until(lambda: rig.queued(name) == [0] * rig.masters, "no place is left")
    statistics = client.statistics()
    assert (statistics.held, statistics.waiting, statistics.refusals) == (0, 0, 5)
    for permit in permits:
        permit.release()
    rig.until_free(name, "the release")


def test_a_block_that_gets_no_permit_raises_and_does_not_run(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    permits = fill(others.semaphore(name, 2, owner="holder"), 2)
    semaphore = client.semaphore(name, 2, timeout=3 * BRIEF)
    with pytest.raises(AcquireTimeoutError) as caught, semaphore:
        raise AssertionError("the body does not run")
    error = caught.value
    assert (error.lock, error.timeout, error.ahead) == (name, 3 * BRIEF, 0)
    assert ":holder." in (error.holder or "")
    assert "whose limit is 2, had no free permit" in str(error)
    for permit in permits:
        permit.release()
    with semaphore as permit:
        assert permit.owned()
    rig.until_free(name, "the block")


def test_no_quorum_is_an_error_and_leaves_no_permit(rig: Rig, name: str) -> None:
    client = warm(rig, node_timeout=BRIEF)
    semaphore = client.semaphore(name, 2, timeout=0)
    faults = rig.until_asked(lambda line: line.hold_reply(calls(name, "permit_acquire")), lambda: tried(semaphore))
    release_all(faults)
    rig.until(lambda: all_done(faults), "the late replies have come")
    rig.until_free(name, "the acquire")
    assert client.statistics().held == 0


def tried(semaphore: Semaphore) -> None:
    """Try to take a permit, which must fail for lack of a quorum, or be released."""
    try:
        permit = semaphore.acquire()
    except QuorumError:
        return
    assert permit is not None
    permit.release()


# Waiting --------------------------------------------------------------------------------------------------------------


@each_handoff
def test_waiters_are_served_in_their_order_and_one_by_one(handoff: str, rig: Rig, name: str) -> None:
    """Every release wakes one waiter: the others go on sleeping, and so send nothing."""
    others, client = (warm(rig, node_timeout=PATIENT, handoff=handoff) for _ in range(2))
    held, semaphore, queue = fill(others.semaphore(name, 2), 2), client.semaphore(name, 2), Queue(rig, name)
    for caller in "abcd":
        queue.join(caller, semaphore)
    rig.until(lambda: all(waiter.parks for waiter in client._session.hubs.waiters()), "all sleep")
    for number, permit in enumerate(held, 1):
        before = {id(waiter): waiter.parks for waiter in client._session.hubs.waiters()}
        permit.release()
        queue.until_served(*"abcd"[:number])
        rig.until(lambda number=number: len(client._session.hubs.waiters()) == 4 - number, "it waits no more")  # type: ignore[misc]
        after = {id(waiter): waiter.parks for waiter in client._session.hubs.waiters()}
        assert all(before[waiter] == parks for waiter, parks in after.items()), "no other waiter has looked"
    for caller, following in (("a", "abc"), ("b", "abcd")):
        queue.permits[caller].release()
        queue.until_served(*following)
    queue.end()
    for caller in "cd":
        queue.permits[caller].release()
    rig.until_free(name, "all")


def test_a_release_of_one_thread_serves_another_and_gives_its_very_slot(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    permits, queue = fill(others.semaphore(name, 3), 3), Queue(rig, name)
    queue.join("a", client.semaphore(name, 3))
    slot = permits[1].slot
    rig.start(permits[1].release).result()
    queue.until_served("a")
    assert queue.permits["a"].slot == slot
    assert not permits[1].owned()
    for permit in (permits[0], permits[2], queue.permits["a"]):
        permit.release()
    queue.end()
    rig.until_free(name, "all")


def test_fair_newcomers_queue_and_others_pass(rig: Rig, name: str) -> None:
    """A waiter for three permits is first in the queue, while one is free; see also `a_large_request`."""
    if rig.masters > 1:
        pytest.skip("several permits at once are for one master")
    client, others = warm(rig), warm(rig)
    held, queue = fill(others.semaphore(name, 3), 2), Queue(rig, name)
    queue.join("large", client.semaphore(name, 3), 3)
    assert refused(client.semaphore(name, 3)), "one is free, and the waiter comes first"
    passing = client.semaphore(name, 3, fair=False).acquire(timeout=0)
    assert passing is not None
    for permit in (*held, passing):
        permit.release()
    queue.until_served("large")
    queue.permits["large"].release()
    rig.until_free(name, "all")


def test_a_waiter_gets_the_slot_of_a_permit_that_ends_by_itself(rig: Rig, name: str) -> None:
    """No message tells of the end of a lease."""
    client, others = warm(rig, node_timeout=PATIENT), warm(rig)
    for line in rig.lines:
        line.hold_request(calls(name, "permit_heartbeat"))
    dead = got(others.semaphore(name, 1, ttl=SHORT_TTL, renew=False))
    begin = rig.clock()
    permit = got(client.semaphore(name, 1))
    assert rig.clock() - begin < SHORT_TTL + 0.2 + rig.slack, "the waiter looks when the lease has ended"
    assert permit.slot == 0
    rig.until(lambda: dead.lost, "the other one is lost")
    permit.release()


@each_handoff
@pytest.mark.parametrize("permits", [1, 3])
def test_every_request_that_fits_is_served_by_one_release(permits: int, handoff: str, rig: Rig, name: str) -> None:
    """Redisson wakes one waiter for n permits (#6664, #6687), and the others hang (#5762).

    No heartbeat reaches a master, so each waiter must be served by the release, or by the one served before it.
    """
    if rig.masters > 1 and permits > 1:
        pytest.skip("several permits at once are for one master")
    client, others = (warm(rig, node_timeout=PATIENT, handoff=handoff) for _ in range(2))
    held = [got(others.semaphore(name, 3), permits) for _ in range(3 // permits)]
    for line in rig.lines:
        line.hold_request(calls(name, "permit_heartbeat"))
    queue = Queue(rig, name)
    for caller in "abcd":
        queue.join(caller, client.semaphore(name, 3))
    begin = rig.clock()
    for permit in held:
        permit.release()
    queue.until_served(*"abc")
    assert rig.clock() - begin < 7.0 + rig.slack, "no waiter has looked by itself"
    queue.permits["a"].release()
    queue.until_served(*"abcd")
    for caller in "bcd":
        queue.permits[caller].release()
    queue.end()


# Several at once ------------------------------------------------------------------------------------------------------


def one_master_only(rig: Rig) -> None:
    if rig.masters > 1:
        pytest.skip("several permits at once are for one master")


def test_several_permits_at_once_are_one_hold(rig: Rig, name: str) -> None:
    one_master_only(rig)
    client = warm(rig)
    semaphore = client.semaphore(name, 5)
    three, two = got(semaphore, 3), got(semaphore, 2)
    assert (three.permits, three.slot, three.hold_count) == (3, None, 1)
    assert semaphore.info().used == 5
    assert refused(semaphore)
    assert three.extend() > 0
    assert three.ensure() < two.ensure()
    three.release()
    with pytest.raises(NotOwnedError):
        three.release()
    assert semaphore.info().used == 2
    singles = fill(semaphore, 3)
    assert sorted(map(slot_of, singles)) == [0, 1, 2]
    assert semaphore.acquire(2, timeout=0) is None
    for permit in (two, *singles):
        permit.release()
    rig.until_free(name, "all")


def test_a_large_request_at_the_head_is_not_passed_by_small_ones(rig: Rig, name: str) -> None:
    one_master_only(rig)
    client, others = warm(rig), warm(rig)
    held, queue = fill(others.semaphore(name, 3), 2), Queue(rig, name)
    queue.join("large", client.semaphore(name, 3), 3)
    queue.join("small", client.semaphore(name, 3))
    held[0].release()
    assert rig.queues_are(name, 2), "two are free, and both wait"
    assert refused(client.semaphore(name, 3))
    held[1].release()
    queue.until_served("large")
    queue.permits["large"].release()
    queue.until_served("large", "small")
    queue.permits["small"].release()
    queue.end()
    rig.until_free(name, "all")


def test_a_large_request_that_gives_up_lets_the_small_ones_in(rig: Rig, name: str) -> None:
    one_master_only(rig)
    client, others = warm(rig, node_timeout=PATIENT), warm(rig, node_timeout=PATIENT)
    held = got(others.semaphore(name, 3))
    rig.lines[0].hold_request(calls(name, "permit_heartbeat"))

    def give_up(timeout: float) -> bool:
        large = rig.start(lambda: client.semaphore(name, 3).acquire(3, timeout=timeout))
        rig.until(lambda: rig.queues_are(name, 1) or large.is_over, "the large one waits")
        small = rig.start(lambda: got(client.semaphore(name, 3)))
        rig.until(lambda: rig.queues_are(name, 2) or large.is_over, "the small one waits behind it")
        in_time = not large.is_over
        assert large.result() is None
        begin = rig.clock()
        small.result().release()
        assert rig.clock() - begin < 5.0 + rig.slack, "it was woken"
        return in_time

    until_in_time(give_up)
    held.release()
    rig.until_free(name, "all")


# What a permit is -----------------------------------------------------------------------------------------------------


def test_a_permit_is_checked_and_renewed_and_its_token_rises(rig: Rig, name: str) -> None:
    client = warm(rig)
    semaphore = client.semaphore(name, 3)
    tokens = list[int]()
    for _ in range(4):
        permit = got(semaphore)
        assert permit.ensure() == permit.ensure(1.0) == permit.token
        assert 0 < permit.remaining() <= 60.0
        assert permit.extend(90.0) > 80.0
        assert permit.remaining() > 80.0
        assert not permit.lost
        tokens.append(permit.ensure())
        permit.release()
        assert [permit.token, permit.slot, permit.remaining(), permit.lost] == [None, None, 0.0, False]
    assert tokens == sorted(set(tokens))
    rig.until_free(name, "all")


def test_a_lease_is_its_permit_s_own(rig: Rig, name: str) -> None:
    """Renewals of one permit do not keep another one (Redisson's permits without an end were lost: #2045, #4462)."""
    client, others = warm(rig), warm(rig)
    dead = got(others.semaphore(name, 2, ttl=SHORT_TTL, renew=False))
    living = got(client.semaphore(name, 2))
    assert refused(client.semaphore(name, 2)) or not dead.remaining()

    def extend_and_look() -> bool:
        living.extend()
        return client.semaphore(name, 2).info().used == 1

    rig.until(extend_and_look, "the permit that is not renewed comes back")
    with pytest.raises(LockLostError, match="renew=False"):
        dead.release()
    again = got(client.semaphore(name, 2))
    assert refused(client.semaphore(name, 2))
    for permit in (living, again):
        permit.release()
    rig.until_free(name, "all")


def test_a_permit_is_renewed_while_its_thread_lives_and_no_longer(rig: Rig, name: str, driver: str) -> None:
    """Permits without an owner would never come back (Redisson: #2213)."""
    if driver != "threads":
        pytest.skip("the caller outlives its thread; live/aio/test_async_semaphore.py has this for tasks")
    told: list[Any] = []
    client = warm(rig, **RENEWED)
    semaphore, released = client.semaphore(name, 2, on_lost=told.append), list[bool]()

    def hold() -> None:
        permits = fill(semaphore, 2)
        rig.until(lambda: client.statistics().renewals >= 4, "two renewals of each")
        assert all(permit.owned() for permit in permits)
        permits[0].release()
        released.append(True)

    rig.start(hold).result()
    assert released
    rig.until(lambda: semaphore.info().used == 0, "the permit of the thread that has ended comes back")
    rig.until(lambda: told, "the loss is told")
    assert [loss.reason for loss in told] == ["its owner ended without releasing it"]
    rig.until(lambda: client.statistics().held == 0, "the client forgets it")


def test_a_permit_with_an_owner_is_kept_until_it_is_released(rig: Rig, name: str) -> None:
    if rig.shares_connections:
        pytest.skip("the task of a thread outlives it here; see live/aio")
    client = warm(rig, **RENEWED)
    semaphore = client.semaphore(name, 2, owner="job")
    permit = rig.start(lambda: got(semaphore)).result()
    renewals = client.statistics().renewals
    rig.until(lambda: client.statistics().renewals >= renewals + 2, "renewals long after the thread has ended")
    assert permit.owned()
    assert ":job." in semaphore.info().holders[0].owner
    permit.release()
    rig.until_free(name, "the release")


def test_permits_of_one_owner_are_different_permits(rig: Rig, name: str) -> None:
    client = warm(rig)
    semaphore = client.semaphore(name, 2, owner="job")
    first = got(semaphore)
    second = rig.start(lambda: got(semaphore)).result()
    assert first.slot != second.slot
    assert refused(semaphore)
    rig.start(first.release).result()
    assert second.owned()
    second.release()
    rig.until_free(name, "both")


def test_max_hold_ends_a_permit(rig: Rig, name: str) -> None:
    client = warm(rig, ttl=SHORT_TTL, node_timeout=SHORT_TTL / 3)
    permit = got(client.semaphore(name, 1, max_hold=SHORT_TTL / 2))
    rig.until(lambda: permit.lost, "it is lost")
    with pytest.raises(LockLostError, match="max_hold is over"):
        permit.release()
    got(client.semaphore(name, 1)).release()


# Ends -----------------------------------------------------------------------------------------------------------------


def test_a_permit_is_released_once(rig: Rig, name: str) -> None:
    """Redisson's release may exceed the limit: there a second release makes one permit too many."""
    client = warm(rig)
    semaphore = client.semaphore(name, 1)
    permit = got(semaphore)
    permit.release()
    for use in (permit.release, permit.extend, permit.ensure):
        with pytest.raises(NotOwnedError, match=r"this permit of .* was released already") as caught:
            use()
        assert caught.value.lock == name
    other = got(semaphore)
    with pytest.raises(NotOwnedError):
        permit.release()
    assert other.owned()
    assert refused(semaphore)
    other.release()
    rig.until_free(name, "the release")


def test_a_permit_is_released_once_though_two_threads_release_it_at_once(rig: Rig, name: str) -> None:
    """The other thread comes between any two steps of the release."""
    client = warm(rig)
    for number in count(1):
        permit = got(client.semaphore(f"{name}-{number}", 1))
        ends: list[RelockError | None] = []

        def release(permit: Permit = permit, ends: list[RelockError | None] = ends) -> None:
            try:
                permit.release()
            except RelockError as error:
                ends.append(error)
            else:
                ends.append(None)

        strike = At(number, lambda release=release: rig.start(release).result())  # type: ignore[misc]
        with rig.watch.each(strike):
            release()
        rig.until_free(f"{name}-{number}", f"two releases, one {strike.where}")
        if not strike.where:
            break
        assert sorted(type(end).__name__ for end in ends) == ["NoneType", "NotOwnedError"], strike.where
    assert number > 5, "the watch sees the steps"
    statistics = client.statistics()
    assert (statistics.held, statistics.losses) == (0, 0)


def test_a_release_in_the_middle_of_a_renewal_is_no_loss(rig: Rig, name: str) -> None:
    told: list[Any] = []
    client = warm(rig)
    for number in count(1):
        permit = got(client.semaphore(f"{name}-{number}", 1, on_lost=told.append))
        strike = At(number, lambda permit=permit: rig.start(permit.release).result())  # type: ignore[misc]
        with rig.watch.each(strike):
            try:
                permit.extend()
            except (NotOwnedError, LockLostError):
                assert strike.where
        if not strike.where:
            permit.release()
        rig.until_free(f"{name}-{number}", f"a release {strike.where} of a renewal")
        if not strike.where:
            break
    assert number > 5, "the watch sees the steps"
    assert (client.statistics().losses, told) == (0, [])


def test_a_permit_that_an_operator_ends_is_lost_and_told_once(rig: Rig, name: str) -> None:
    told: list[Any] = []
    client, operator = warm(rig), warm(rig)
    semaphore = client.semaphore(name, 2, on_lost=told.append)
    lost, other = fill(semaphore, 2)
    token = lost.ensure()
    (owner,) = [one.owner for one in operator.semaphore(name, 2).info().holders if one.slot == lost.slot]
    assert operator.semaphore(name, 2).force_release(owner) is True
    rig.until(lambda: max(rig.counts(name)) == 1, "only the other permit is left")
    assert operator.semaphore(name, 2).force_release(owner) is False
    next_one = got(operator.semaphore(name, 2))
    assert next_one.slot == lost.slot if other.owned() else None
    assert next_one.ensure() > token
    for use in (lost.extend, lost.ensure):
        with pytest.raises(LockLostError) as caught:
            use()
        assert (caught.value.lock, caught.value.token) == (name, token)
    assert (lost.lost, lost.owned(), lost.token, lost.remaining()) == (True, False, None, 0.0)
    with pytest.raises(LockLostError):
        lost.release()
    with pytest.raises(NotOwnedError):
        lost.release()
    assert lost.lost, "for good"
    rig.until(lambda: told, "the loss is told")
    client._session.losses.hand(lambda _: told.append("end"), None)  # told after all losses
    rig.until(lambda: told[-1] == "end", "all is told")
    assert [getattr(loss, "lock", loss) for loss in told] == [name, "end"]
    assert (other.owned(), client.statistics().losses) == (True, 1)
    for permit in (other, next_one):
        permit.release()
    rig.until_free(name, "all")


def test_a_force_release_serves_the_next_waiter(rig: Rig, name: str) -> None:
    client, operator = warm(rig, node_timeout=PATIENT), warm(rig)
    held, queue = got(operator.semaphore(name, 1)), Queue(rig, name)
    for line in rig.lines:
        line.hold_request(calls(name, "permit_heartbeat"))
    queue.join("a", client.semaphore(name, 1))
    begin = rig.clock()
    assert operator.semaphore(name, 1).force_release(operator.semaphore(name, 1).info().holders[0].owner)
    queue.until_served("a")
    assert rig.clock() - begin < 7.0 + rig.slack
    with pytest.raises(LockLostError):
        held.release()
    queue.permits["a"].release()
    rig.until_free(name, "all")


def test_leaving_a_block_raises_a_loss_or_notes_it_beside_the_body_s_error(rig: Rig, name: str) -> None:
    semaphore = warm(rig).semaphore(name, 1)

    def lose_and(error: Exception | None) -> None:
        with semaphore as permit:
            assert semaphore.force_release(semaphore.info().holders[0].owner)
            with pytest.raises(LockLostError):
                permit.extend()
            if error is not None:
                raise error

    with pytest.raises(LockLostError):
        lose_and(None)
    with pytest.raises(KeyError) as caught:
        lose_and(KeyError())
    (note,) = caught.value.__notes__
    assert "LockLostError" in note
    assert not is_entered(semaphore)
    with semaphore:
        pass
    rig.until_free(name, "the blocks")


def test_a_block_whose_body_has_released_the_permit_says_so(rig: Rig, name: str) -> None:
    semaphore = warm(rig).semaphore(name, 2)
    with pytest.raises(NotOwnedError, match="this permit of"), semaphore as permit:
        permit.release()
    with semaphore:
        assert semaphore.info().used == 1
    rig.until_free(name, "the blocks")


def test_a_thread_that_leaves_the_block_of_another_one_is_told(rig: Rig, name: str) -> None:
    semaphore = warm(rig).semaphore(name, 1)
    permit = semaphore.__enter__()
    with pytest.raises(NotOwnedError, match="is in no block of"):
        rig.start(lambda: semaphore.__exit__(None, None, None)).result()
    assert permit.owned()
    semaphore.__exit__(None, None, None)
    with pytest.raises(NotOwnedError, match="is in no block of"):
        semaphore.__exit__(None, None, None)
    rig.until_free(name, "the block")


# Operators ------------------------------------------------------------------------------------------------------------


def test_info_names_the_holders_and_the_waiters(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    semaphore, queue = others.semaphore(name, 2), Queue(rig, name)
    empty = semaphore.info()
    assert (empty.name, empty.limit, empty.used, empty.holders, empty.queue) == (name, 2, 0, (), ())
    permits = fill(semaphore, 2)
    for caller in "ab":
        queue.join(caller, client.semaphore(name, 2, owner=caller))
    info = semaphore.info()
    assert (info.limit, info.used) == (2, 2)
    assert {holder.slot for holder in info.holders} == {0, 1}
    assert all(0 < holder.ttl <= 60.0 and holder.permits == 1 for holder in info.holders)
    assert [":a." in info.queue[0], ":b." in info.queue[1]] == [True, True]
    for permit, served in zip(permits, ("a", "ab"), strict=True):
        permit.release()
        queue.until_served(*served)
    for permit in queue.permits.values():
        permit.release()
    queue.end()


def test_a_raised_limit_serves_waiters_soon(rig: Rig, name: str) -> None:
    client, operator = warm(rig), warm(rig)
    permits, queue = fill(operator.semaphore(name, 1), 1), Queue(rig, name)
    for caller in "abc":
        queue.join(caller, client.semaphore(name, 1))
    begin = rig.clock()
    operator.semaphore(name, 1).override(3, 60.0)
    queue.until_served(*"ab")
    assert rig.clock() - begin < OVERRIDE_SECONDS + rig.slack
    info = client.semaphore(name, 1).info()
    assert (info.limit, info.used) == (3, 3)
    assert refused(client.semaphore(name, 5)), "it wins over every caller's limit"
    operator.semaphore(name, 1).override(1, 0.0)
    assert client.semaphore(name, 1).info().limit == 1
    permits[0].release()
    queue.permits["a"].release()
    assert sorted(queue.served) == ["a", "b"]
    assert refused(client.semaphore(name, 1))
    queue.permits["b"].release()
    queue.until_served(*"abc")
    queue.permits["c"].release()
    queue.end()
    rig.until(lambda: rig.is_free(name), "all")


def test_a_lowered_limit_ends_no_permit_and_lets_nobody_in_before_enough_are_back(rig: Rig, name: str) -> None:
    """Redisson's number of free permits goes below 0 then."""
    client, operator = warm(rig), warm(rig)
    semaphore = client.semaphore(name, 3)
    permits = fill(semaphore, 3)
    operator.semaphore(name, 3).override(1, 60.0)
    info = semaphore.info()
    assert (info.limit, info.used) == (1, 3)
    assert all(permit.extend() > 0 for permit in permits)
    for permit in sorted(permits, key=slot_of, reverse=True):
        assert refused(semaphore)
        permit.release()
    assert got(semaphore).slot == 0
    assert refused(semaphore)


def test_a_limit_of_0_lets_nobody_in_until_it_ends(rig: Rig, name: str) -> None:
    client, operator = warm(rig), warm(rig)
    semaphore = client.semaphore(name, 2)
    operator.semaphore(name, 2).override(0, 60.0)
    assert semaphore.info().limit == 0
    queue = Queue(rig, name)
    queue.join("a", semaphore)
    assert queue.served == []
    begin = rig.clock()
    operator.semaphore(name, 2).override(0, SHORT_TTL)
    queue.until_served("a")
    assert rig.clock() - begin < SHORT_TTL + OVERRIDE_SECONDS + 2.0 + rig.slack
    assert semaphore.info().limit == 2
    queue.permits["a"].release()
    rig.until_free(name, "all")


# Beside a lock of the same name ---------------------------------------------------------------------------------------


def test_a_lock_of_the_same_name_is_another_thing(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    lock, semaphore = client.lock(name), client.semaphore(name, 1)
    permit = got(semaphore)
    assert (lock.locked(), lock.owned(), lock.hold_count) == (False, False, 0)
    assert not client.info(name).held
    with pytest.raises(NotOwnedError, match="does not hold") as caught:
        lock.release()
    assert "permit" not in str(caught.value)
    assert "is held by" not in str(caught.value), "nobody has the lock"
    assert client.force_release(name) is False
    take(others.lock(name), 1)
    assert lock.locked()
    assert refused(semaphore)
    assert others.force_release(name)
    assert permit.extend() > 0
    take(lock, 1)
    permit.release()
    assert lock.owned()
    got(semaphore).release()
    leave(lock)
    with pytest.raises(LockLostError):  # a master that was slow may have it still, until its owner has left
        others.lock(name).release()
    rig.until_free(name, "both")


def test_waiters_for_a_lock_and_for_a_permit_of_the_same_name_are_two_queues(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    lock, permit = others.lock(name, owner="holder"), got(others.semaphore(name, 1))
    take(lock, 1)
    done: list[str] = []

    def wait_for_lock() -> None:
        take(client.lock(name, owner="waiter"), 1)
        done.append("lock")

    waiting = rig.start(wait_for_lock)
    rig.until(lambda: rig.queues_are(name, 1), "one waits for the lock")
    queue = Queue(rig, name)
    queue.join("a", client.semaphore(name, 1))
    permit.release()
    queue.until_served("a")
    assert done == []
    lock.release()
    waiting.result()
    assert queue.permits["a"].owned()
    queue.permits["a"].release()
    leave(client.lock(name, owner="waiter"))
    rig.until_free(name, "both")


def test_permits_are_told_and_counted_as_holds(rig: Rig, name: str) -> None:
    events: list[Any] = []
    client = warm(rig, on_event=events.append)
    before, semaphore = client.statistics(), client.semaphore(name, 1)
    with semaphore:
        assert refused(semaphore)
        after = client.statistics()
        assert (after.grants - before.grants, after.refusals - before.refusals, after.held) == (1, 2, 1)

    def told() -> list[type]:
        return [type(event) for event in events if event.lock == name]

    rig.until(lambda: Released in told(), "the release is told")
    assert told() == [Granted, NotGranted, NotGranted, Released]
    assert client.statistics().held == 0


# Closing --------------------------------------------------------------------------------------------------------------


def test_a_close_ends_a_wait_for_a_permit(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    permit = got(others.semaphore(name, 1))
    waiting = rig.start(client.semaphore(name, 1).acquire)
    rig.until(lambda: rig.is_queued(name), "the caller waits")
    closing.close(client._session)
    with pytest.raises(ClientClosedError):
        waiting.result()
    rig.until(lambda: not any(rig.queued(name)), "no waiter is queued")
    permit.release()
    rig.until_free(name, "the release")


def test_an_acquire_that_was_interrupted_is_undone_before_a_close_has_ended(rig: Rig, name: str) -> None:
    client = warm(rig, node_timeout=rig.close_seconds)
    semaphore, _ = make(client, name, "permits")
    faults = [line.hold_request(calls(name, "permit_acquire")) for line in rig.lines]
    rig.interrupt(semaphore.acquire, lambda: all_struck(faults))
    going_on = rig.start(lambda: release_all(faults))
    closing.close(client._session)
    going_on.result()
    assert rig.is_free(name)


def test_a_permit_is_released_here_after_a_close(rig: Rig, name: str) -> None:
    client = warm(rig)
    semaphore = client.semaphore(name, 2)
    permits = fill(semaphore, 2)
    closing.close(client._session)
    for permit in permits:
        permit.release()
        assert not permit.owned()
        with pytest.raises(NotOwnedError):
            permit.release()
    with pytest.raises(ClientClosedError):
        semaphore.acquire()


# The way of a master's replies ----------------------------------------------------------------------------------------


def test_what_a_release_of_a_permit_leaves_on_silent_masters_is_ended(rig: Rig, name: str) -> None:
    client = warm(rig, node_timeout=BRIEF)
    semaphore, _ = make(client, name, "permits")

    def do() -> None:
        leave(semaphore)

    faults: list[Any] = rig.until_asked(
        lambda line: line.lose_request(calls(name, "permit_release")), do, before=lambda: take(semaphore, 1)
    )
    rig.until(lambda: all_done(faults), "the requests are lost")
    rig.until_free(name, "releases that were lost")
    assert client.statistics().held == 0


@pytest.mark.several
def test_renewals_give_a_permit_to_a_master_that_forgot_it(rig: Rig, name: str) -> None:
    client = warm(rig)
    semaphore, _ = make(client, name, "permits")
    rig.take_everywhere(semaphore, 2)
    before = rig.permits(name)[0]
    rig.ask(0, "DEL", permits_key_of(name), f"{permits_key_of(name)}:leases")

    def is_given_again() -> bool:
        """Renew the permits; a quorum may have answered before the master that lacks them, which is then not asked."""
        for permit in semaphore._kept:
            permit.extend()
        return rig.permits(name)[0] == before

    rig.until(is_given_again, "the same owners and slots everywhere")
    leave(semaphore)
    rig.until_free(name, "the release")


def test_a_permit_that_every_master_forgot_is_lost(rig: Rig, name: str) -> None:
    client = warm(rig)
    permit = got(client.semaphore(name, 1))
    for master in range(rig.masters):
        rig.ask(master, "DEL", permits_key_of(name), f"{permits_key_of(name)}:leases")
    with pytest.raises(LockLostError):
        permit.extend()
    with pytest.raises(LockLostError):
        permit.release()
    got(client.semaphore(name, 1)).release()


def test_threads_that_come_and_go_leave_nothing_in_the_semaphore(rig: Rig, name: str) -> None:
    """A semaphore knows of a thread only while it is inside a block."""
    client = warm(rig)
    semaphore = client.semaphore(name, 2, timeout=20)

    def use(do: Callable[[], object]) -> None:
        with semaphore:
            do()

    def fail() -> None:
        raise KeyError

    rig.start(lambda: use(threading.get_ident)).result()
    with pytest.raises(KeyError):
        rig.start(lambda: use(fail)).result()
    assert not is_entered(semaphore)
