"""Grants and renewals count with min_replicas only once so many replicas have them."""

import asyncio
import time
from collections.abc import Callable

import pytest
from support.clock import Clock
from support.servers import Server
from support.until import until

from relock import AsyncClient, Client, LockLostError, QuorumError

Start = Callable[..., Server]


@pytest.mark.every_server
def test_a_grant_is_on_the_replica_when_acquire_returns(
    pair: tuple[Server, Server], connect: Callable[..., Client], name: str
) -> None:
    master, replica = pair
    with connect(master.url, min_replicas=1).lock(name):
        assert replica.cli("EXISTS", f"lock:{{{name}}}") == 1


@pytest.mark.parametrize("is_connected", [False, True])
def test_without_enough_replicas_nothing_is_granted_and_nothing_is_left(
    pair: tuple[Server, Server], connect: Callable[..., Client], name: str, is_connected: bool
) -> None:
    """A client that is connected would otherwise go the straight way, which waits for no replica."""
    master, replica = pair
    lock = connect(master.url, min_replicas=1, replica_timeout=0.2, ttl=60.0).lock(name)
    if is_connected:
        with lock:
            pass
    replica.stop()
    with pytest.raises(QuorumError, match="0 of 1 replicas"):
        lock.acquire(timeout=0.5)
    until(lambda: not master.cli("EXISTS", f"lock:{{{name}}}"), within=30, what="nothing is left before the lease ends")
    replica.cont()
    assert lock.acquire(timeout=20)


def test_more_replicas_than_there_are_is_an_error_that_counts_them(
    pair: tuple[Server, Server], connect: Callable[..., Client], name: str
) -> None:
    lock = connect(pair[0].url, min_replicas=2, replica_timeout=4.0, patience=0).lock(name)
    with pytest.raises(QuorumError, match="1 of 2 replicas"):
        lock.acquire()


def test_a_user_without_the_right_to_wait_is_told_so_at_once(
    pair: tuple[Server, Server], connect: Callable[..., Client], name: str
) -> None:
    """The replicas are there, so the error must not blame them."""
    master, _ = pair
    master.cli("ACL", "SETUSER", "relock", "on", ">hush", "~*", "&*", "+@all", "-wait")
    lock = connect(f"redis://relock:hush@127.0.0.1:{master.port}/0", min_replicas=1, ttl=60.0).lock(name)
    begin = time.monotonic()
    with pytest.raises(QuorumError, match=r"NOPERM.*ACL page"):
        lock.acquire()
    assert time.monotonic() - begin < 20, "no patience delays the error"
    until(lambda: not master.cli("EXISTS", f"lock:{{{name}}}"), within=30, what="nothing is left before the lease ends")


def test_a_renewal_that_no_replica_has_does_not_count(
    pair: tuple[Server, Server], connect: Callable[..., Client], name: str
) -> None:
    master, replica = pair
    lock = connect(master.url, min_replicas=1, replica_timeout=0.1, ttl=4.5).lock(name)
    lock.acquire()
    replica.stop()
    until(lambda: lock.lost, within=20, what="the hold is lost with the last lease that a replica had")
    replica.cont()
    with pytest.raises(LockLostError):
        lock.release()


async def test_a_task_that_waits_for_replicas_keeps_no_other_one_waiting(
    pair: tuple[Server, Server], name: str
) -> None:
    """Connections of such a task are busy; the other tasks have others."""
    master, replica = pair
    client = AsyncClient(master.url, min_replicas=1, replica_timeout=30.0, ttl=90.0, node_timeout=30.0)
    async with client.lock(name):
        assert replica.cli("EXISTS", f"lock:{{{name}}}") == 1
    replica.stop()

    async def take(number: int) -> None:
        async with client.lock(f"{name}-{number}"):
            pass

    waiting = [asyncio.create_task(take(number)) for number in range(3)]
    await asyncio.sleep(0)
    for number in range(3):
        while not (await client.info(f"{name}-{number}")).held:
            await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting)
    replica.cont()
    await asyncio.wait_for(asyncio.gather(*waiting), 20)
    await client.close()


# Tokens after a failover ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [True, False], ids=["the last token is known", "the last token is not known"])
def test_tokens_rise_on_a_replica_whose_clock_is_behind_if_it_knows_the_last_one(
    pair: tuple[Server, Server], connect: Callable[..., Client], name: str, is_known: bool
) -> None:
    """The page of guarantees names the exception: such a replica that does not know the last token."""
    master, replica = pair
    try:
        clock = Clock(replica.folder)
    except LookupError as error:
        pytest.skip(str(error))
    clock.set(-3600.0)
    replica.environment = clock.environment
    replica.restart()
    key = f"lock:{{{name}}}:token"
    with connect(master.url).lock(name) as lock:
        last = lock.token
    assert last is not None
    until(lambda: replica.cli("GET", key) == b"%d" % last, within=20, what="the replica has the token")
    master.kill()
    replica.cli("REPLICAOF", "NO", "ONE")
    if not is_known:
        replica.cli("DEL", key)  # as if the token had not been copied in time
    with connect(replica.url).lock(name, timeout=20) as lock:
        assert lock.token is not None
        assert (lock.token > last) is is_known
