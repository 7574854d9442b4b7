"""Keys of a lock to which another program has written: no caller waits without end, and no call is long."""

import threading
from collections.abc import Callable

import pytest
import redis
from support.masters import Deployment
from support.servers import Server
from support.until import until

from relock import Client, ConfigurationError, Lock, QuorumError

Connect = Callable[..., Client]
STRANGERS = 200_000
LOOKED_AT = 1_001 + 101  # entries by one call, at most: from the head on, and those that have a deadline
TURN_SECONDS = 60.0  # for a turn that comes at once; a busy machine may take its time


def fill(server: Deployment, queue: str, name: str) -> None:
    """Write `STRANGERS` foreign entries to a lock's queue, each with this name and its number."""
    for one in server.members:
        with redis.Redis.from_url(one.url, socket_timeout=TURN_SECONDS) as stranger:
            for first in range(0, STRANGERS, 20_000):
                stranger.zadd(queue, {name % number: 0 for number in range(first, first + 20_000)})


def calls(one: Server, *commands: str) -> int:
    """Return how often a server has run one of these commands, in scripts as well."""
    with redis.Redis.from_url(one.url) as observer:
        stats = observer.info("commandstats")
    return sum(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"] for command in commands)


def take_a_turn(lock: Lock) -> threading.Thread:
    """Take the lock once and release it, in a thread."""

    def turn() -> None:
        if lock.acquire(timeout=TURN_SECONDS):
            lock.release()

    thread = threading.Thread(target=turn)
    thread.start()
    return thread


@pytest.mark.every_server
@pytest.mark.every_quorum
@pytest.mark.parametrize("stranger", ["stranger %d", "stranger-%d:1"], ids=["no names", "names"])
def test_a_lock_with_a_long_queue_of_strangers_is_taken_and_handed_over(
    server: Deployment, connect: Connect, name: str, stranger: str
) -> None:
    """No single call is long: each removes the entries that it has looked at, up to a limit."""
    queue = f"lock:{{{name}}}:queue"
    fill(server, queue, stranger)
    one, two = connect(server.url).lock(name), connect(server.url).lock(name)
    for member in server.members:
        member.cli("CONFIG", "RESETSTAT")
    assert one.acquire(blocking=False)
    waiter = take_a_turn(two)
    until(lambda: server.client().exists(f"lock:{{{name}}}:waiters"), within=TURN_SECONDS, what="the other one waits")
    one.release()
    waiter.join(TURN_SECONDS)
    assert not waiter.is_alive()
    assert one.acquire(timeout=TURN_SECONDS)
    one.release()
    for member in server.members:
        scripts = calls(member, "eval", "evalsha")
        assert calls(member, "publish") <= LOOKED_AT * scripts
        with redis.Redis.from_url(member.url) as observer:
            assert 0 < STRANGERS - observer.zcard(queue) <= LOOKED_AT * scripts


@pytest.mark.every_server
def test_a_member_without_a_colon_breaks_nothing(server: Server, connect: Connect, name: str) -> None:
    """Names need not be text, either: `info` shows such entries for as long as they are there."""
    one, two = connect(server.url).lock(name), connect(server.url).lock(name)
    with one:
        server.client().zadd(f"lock:{{{name}}}:queue", {b"nobody": 0, b"\xff": 1})
        assert set(one.info().queue) == {"nobody", "\ufffd"}
        waiter = take_a_turn(two)
        until(lambda: len(one.info().queue) == 3, within=TURN_SECONDS, what="the other one waits")
    waiter.join(TURN_SECONDS)
    assert not waiter.is_alive()
    assert one.info().queue == ()


@pytest.mark.every_server
@pytest.mark.parametrize("key", ["queue", "waiters"])
def test_a_queue_that_is_none_is_named_as_the_reason_and_only_waiting_needs_it(
    server: Server, connect: Connect, name: str, key: str
) -> None:
    foreign = f"lock:{{{name}}}:{key}"
    server.client().rpush(foreign, "x")
    one, two = connect(server.url).lock(name), connect(server.url).lock(name)
    for _ in range(2):
        with one:
            assert not two.acquire(blocking=False)
            with pytest.raises(QuorumError, match="another program has written to a key"):
                two.acquire(timeout=TURN_SECONDS)
    assert server.client().lrange(foreign, 0, -1) == [b"x"]
    server.client().delete(foreign)
    with one:
        waiter = take_a_turn(two)
        until(lambda: one.info().queue, within=TURN_SECONDS, what="the other one waits")
    waiter.join(TURN_SECONDS)
    assert not waiter.is_alive()


def test_a_token_that_is_none_is_named_as_the_reason_at_once(server: Server, connect: Connect, name: str) -> None:
    server.client().rpush(f"lock:{{{name}}}:token", "x")
    with pytest.raises(QuorumError, match="another program has written to a key"):
        connect(server.url).lock(name).acquire()  # without end, if patience could help
    server.client().set(f"lock:{{{name}}}:token", "x")
    with connect(server.url).lock(name) as lock:
        assert lock.token is not None
        assert lock.token > 0


def test_a_marker_that_is_damaged_begins_the_guard_anew(own_server: Server, connect: Connect, name: str) -> None:
    with connect(own_server.url, ttl=3.0, restart_guard=3.0).lock(name, ttl=3.0) as lock:
        lock.ensure()
    own_server.cli("HSET", "lock:master", "guard_ms", "x")
    unguarded = connect(own_server.url, restart_guard=0.0, node_timeout=0.5)
    with pytest.raises(ConfigurationError, match=r"lock:master.* delete that key") as caught:
        unguarded.lock(name).acquire()
    unguarded.close()
    assert caught.value.option == "restart_guard"
    guarded = connect(own_server.url, ttl=3.0, restart_guard=3.0)
    with pytest.raises(QuorumError, match="has no vote"):
        guarded.lock(name).acquire(blocking=False)
    assert guarded.lock(name).acquire(timeout=TURN_SECONDS)
