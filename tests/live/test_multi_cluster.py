"""Several locks as one on a Redis Cluster, with names in the slots of different nodes."""

import threading
from collections.abc import Callable

import pytest
from support.cluster import ClusterOfServers, names_in, slot_of
from support.until import until

from relock import Client, LockLostError, MultiLock

Connect = Callable[..., Client]


def name_of_each(cluster: ClusterOfServers, name: str) -> list[str]:
    """Return three names, each in a slot of another node."""
    found: dict[int, str] = {}
    for number in range(30):
        found.setdefault(cluster.owner(f"{name}-{number}").port, f"{name}-{number}")
    assert len(found) == 3
    return sorted(found.values())


def held(cluster: ClusterOfServers, lock: MultiLock) -> list[list[bytes]]:
    """Return the counts of each lock's holders, on the node that has its slot."""
    return [cluster.owner(name).cli("HVALS", f"lock:{{{name}}}") for name in lock.names]


@pytest.mark.every_server
def test_each_lock_is_on_the_node_that_has_its_slot(cluster: ClusterOfServers, connect: Connect, name: str) -> None:
    client, other = connect(cluster.url), connect(cluster.url)
    lock = client.lock_all(name_of_each(cluster, name))
    for _ in range(3):
        with lock:
            assert held(cluster, lock) == [[b"1"]] * 3
            with client.lock_all(lock.names) as nested:
                assert nested.hold_count == 2
                assert held(cluster, lock) == [[b"2"]] * 3
            tokens = lock.ensure()
            assert lock.extend() > 0
            assert not other.lock_all(lock.names[1:]).acquire(blocking=False)
            assert {info.hold_count for info in other.lock_all(lock.names).info().values()} == {1}
        assert held(cluster, lock) == [[]] * 3
        with other.lock_all(lock.names) as others:
            assert all(others.ensure()[one] > tokens[one] for one in lock.names)


def test_a_try_that_one_node_refuses_leaves_nothing_on_the_others(
    cluster: ClusterOfServers, connect: Connect, name: str
) -> None:
    client, other = connect(cluster.url), connect(cluster.url)
    lock = client.lock_all(name_of_each(cluster, name))
    for one in lock.names:
        with other.lock(one):
            assert not lock.acquire(blocking=False)
            assert [len(holders) for holders in held(cluster, lock)] == [int(name == one) for name in lock.names]
    with lock:
        assert held(cluster, lock) == [[b"1"]] * 3


def test_a_caller_waits_at_each_node_in_the_order_of_the_names(
    cluster: ClusterOfServers, connect: Connect, name: str
) -> None:
    client, other = connect(cluster.url), connect(cluster.url)
    lock = client.lock_all(name_of_each(cluster, name), owner="job")
    a, b, c = lock.names
    holds = [other.lock(one, owner="holder") for one in (b, c)]
    for hold in holds:
        hold.acquire()
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    for waits_for, hold in zip((b, c), holds, strict=True):
        until(lambda waits_for=waits_for: other.info(waits_for).queue, within=20, what="it waits")  # type: ignore[misc]
        assert other.info(a).held
        hold.release()
    thread.join()
    assert lock.owned()
    lock.release()
    assert held(cluster, lock) == [[]] * 3


def test_many_names_in_many_slots_are_taken_at_once(cluster: ClusterOfServers, connect: Connect, name: str) -> None:
    client = connect(cluster.url, ttl=6.0)
    names = [f"{name}-{number}" for number in range(63)]
    with client.lock_all(names) as lock:
        assert len({cluster.owner(one).port for one in names}) == 3
        assert held(cluster, lock) == [[b"1"]] * 63
        until(lambda: client.statistics().renewals >= 2 * 63, within=30, what="two renewals of each")
        assert lock.owned()
    assert held(cluster, lock) == [[]] * 63


def test_names_in_one_slot_are_taken_like_others(cluster: ClusterOfServers, connect: Connect, name: str) -> None:
    names = names_in(slot_of(name), name)
    with connect(cluster.url).lock_all([name, next(names), next(names)]) as lock:
        assert held(cluster, lock) == [[b"1"]] * 3


def test_a_hold_that_one_node_has_ended_loses_the_whole(cluster: ClusterOfServers, connect: Connect, name: str) -> None:
    client, operator = connect(cluster.url), connect(cluster.url)
    lock = client.lock_all(name_of_each(cluster, name))
    lock.acquire()
    assert operator.force_release(lock.names[1])
    with pytest.raises(LockLostError) as caught:
        lock.extend()
    assert caught.value.lock == lock.names[1]
    assert not lock.owned()
    with pytest.raises(LockLostError):
        lock.release()
    assert held(cluster, lock) == [[]] * 3
