"""Reentrancy: one field with the exact count, whatever the nesting."""

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.masters import Deployment
from support.until import until

from relock import Client, NotOwnedError

pytestmark = pytest.mark.every_quorum


def on_server(server: Deployment, name: str) -> dict[bytes, bytes]:
    found: Any = server.client().hgetall(f"lock:{{{name}}}")
    return dict(found)


@pytest.mark.every_server
def test_one_field_holds_the_exact_count_over_several_objects(client: Client, server: Deployment, name: str) -> None:
    one, two = client.lock(name), client.lock(name)
    one.acquire()
    (owner,) = on_server(server, name)
    two.acquire()
    with one:
        assert on_server(server, name) == {owner: b"3"}
        assert one.hold_count == two.hold_count == 3
    one.release()
    assert on_server(server, name) == {owner: b"1"}
    two.release()
    assert on_server(server, name) == {}
    assert not one.owned()


def test_the_owner_is_the_client_and_a_uuid_of_its_own_for_each_outermost_acquire(
    client: Client, server: Deployment, name: str
) -> None:
    owners: set[bytes] = set()
    for _ in range(3):
        with client.lock(name):
            owners.update(on_server(server, name))
    assert len(owners) == 3
    assert {owner.partition(b":")[0] for owner in owners} == {client._session.client_id.encode()}


def test_the_count_is_right_after_exceptions(client: Client, server: Deployment, name: str) -> None:
    lock = client.lock(name)
    with lock:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012, SIM117  (the failing block is the subject)
            with lock:
                assert list(on_server(server, name).values()) == [b"2"]
                raise ZeroDivisionError
        assert list(on_server(server, name).values()) == [b"1"]
    assert on_server(server, name) == {}


def test_condition_wait_gives_up_all_levels_and_restores_them(client: Client, server: Deployment, name: str) -> None:
    lock = client.lock(name)
    condition = threading.Condition(lock)  # type: ignore[arg-type]
    seen: list[int] = []

    def notify() -> None:
        with condition:
            seen.extend(int(count) for count in on_server(server, name).values())
            condition.notify()

    with condition, lock, lock:
        thread = threading.Thread(target=notify)
        thread.start()
        assert condition.wait(timeout=30)
        assert list(on_server(server, name).values()) == [b"3"]
        assert lock.hold_count == 3
    thread.join()
    assert seen == [1], "the other thread had the lock alone"
    assert on_server(server, name) == {}


def test_thousands_of_random_steps_keep_both_counts_equal(
    client: Client, server: Deployment, name: str, seed: int
) -> None:
    dice = random.Random(seed)
    locks = [client.lock(name) for _ in range(3)]
    redis = server.client()
    count = 0
    for step in range(3_000):
        lock = dice.choice(locks)
        if dice.random() < (0.5 if count < 20 else 0.1):
            assert lock.acquire(blocking=dice.random() < 0.5)
            count += 1
        elif count == 0:
            with pytest.raises(NotOwnedError):
                lock.release()
        else:
            lock.release()
            count -= 1
        assert lock.hold_count == count
        # Of several masters, this one may not be of the quorum that has answered.
        until(partial(has, redis, name, count), within=20, what=f"it has count {count} after step {step}")


def has(redis: Any, name: str, count: int) -> bool:
    """Return whether a master has this count of the lock's only hold, or no hold for 0."""
    return bool(redis.hvals(f"lock:{{{name}}}") == ([b"%d" % count] if count else []))


def test_a_nested_acquire_may_lengthen_the_lease_and_never_shortens_it(
    client: Client, server: Deployment, name: str
) -> None:
    redis = server.client()
    with client.lock(name, ttl=20), client.lock(name, ttl=5) as inner:
        assert redis.pttl(f"lock:{{{name}}}") > 10_000
        with client.lock(name, ttl=60):
            assert redis.pttl(f"lock:{{{name}}}") > 50_000
            assert inner.remaining() > 50


def test_threads_share_an_owner_and_one_releases_what_another_acquired(
    client: Client, server: Deployment, name: str, run: Callable[..., None]
) -> None:
    lock = client.lock(name, owner="job-7")
    run(lock.acquire)
    assert lock.owned()
    (owner,) = on_server(server, name)
    assert b":job-7." in owner, "the owner's name is readable in the uuid"
    assert not client.lock(name).owned()
    assert not client.lock(name, owner="job-8").acquire(blocking=False)
    lock.acquire()
    assert on_server(server, name) == {owner: b"2"}
    run(lock.release)
    run(lock.release)
    assert on_server(server, name) == {}


def test_threads_that_share_an_owner_wait_with_one_place_and_join_its_hold(
    client: Client, server: Deployment, name: str
) -> None:
    from support.until import until

    holder = client.lock(name)
    holder.acquire()
    taken: list[bool] = []

    def take() -> None:
        taken.append(client.lock(name, owner="job").acquire(timeout=30))

    threads = [threading.Thread(target=take) for _ in range(5)]
    for thread in threads:
        thread.start()
    until(lambda: len(client.info(name).queue) == 1, within=30, what="one of them queues")
    assert not client.lock(name, owner="job").acquire(timeout=0.05), "a timeout holds at the gate, too"
    holder.release()
    for thread in threads:
        thread.join()
    assert taken == [True] * 5
    assert client.lock(name, owner="job").hold_count == 5
    # The threads' majorities need not be the same masters, so each master may be behind for a moment.
    until(lambda: list(on_server(server, name).values()) == [b"5"], within=30, what="the masters count five")


@pytest.fixture
def run() -> Callable[..., None]:
    """Run something on a thread of its own, to the end."""

    def run(what: Callable[[], object]) -> None:
        failures: list[BaseException] = []

        def target() -> None:
            try:
                what()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
        assert not failures

    return run


@pytest.mark.parametrize(
    "take",
    [
        lambda client, name: client.lock(name),
        lambda client, name: client.lock_all([name]),
        lambda client, name: client.rwlock(name).read,
        lambda client, name: client.semaphore(name, 2),
    ],
    ids=["lock", "several", "reader", "semaphore"],
)
def test_a_generator_that_is_closed_inside_another_threads_block_leaves_that_hold_alone(
    take: Callable[[Client, str], Any], client: Client, name: str
) -> None:
    """The garbage collector closes a generator, too, in whatever thread it runs."""

    def hold() -> Iterator[None]:
        with take(client, name):
            yield

    generator = hold()
    thread = threading.Thread(target=next, args=(generator,))
    thread.start()
    thread.join()
    with take(client, name) as entered:
        with pytest.raises(NotOwnedError, match="is in no block of"):
            generator.close()  # type: ignore[attr-defined]
        assert entered.owned()
    assert not entered.owned()
