"""Several masters that a test uses as one server: most of the methods of `Server` and `Proxy`, on all of them.

A test reads the answer of a majority of the masters: replies of slow ones may still be under way, and a minority may
lag.
"""

import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import redis

from support.proxy import Fault, Match, Proxy
from support.servers import Server
from support.urls import Urls

AGREE_SECONDS = 30.0  # a master without a hold has it again with the next renewal
POLL_SECONDS = 0.003
MEDIANS = ("pttl", "ttl", "zscore")  # whose replies may differ from master to master
READS = (*MEDIANS, "exists", "get", "hget", "hgetall", "hkeys", "hlen", "hvals", "type", "zcard", "zrange")
EMPTY = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  if key ~= 'lock:master' or redis.call('TYPE', key).ok ~= 'hash' then redis.call('DEL', key) end
end
"""


def masters_counts() -> list[int]:
    """Return the numbers of masters for tests that work with any number, by ``RELOCK_TEST_MASTERS``."""
    return [int(count) for count in os.environ.get("RELOCK_TEST_MASTERS", "1 3 5").split()]


class NoMajorityError(AssertionError):
    """Error of masters whose answers have no majority."""


def quorum_of(masters: int) -> int:
    """Return the number of masters that are a majority."""
    return masters // 2 + 1


def majority(replies: Sequence[Any]) -> Any:
    """Return the answer of a majority of the masters. Raise an error that is the answer, else `NoMajorityError`."""
    for reply in replies:
        if sum(is_same(reply, other) for other in replies) >= quorum_of(len(replies)):
            if isinstance(reply, Exception):
                raise reply
            return reply
    raise NoMajorityError(f"the masters disagree: {replies!r}")


def is_same(one: Any, other: Any) -> bool:
    """Return whether two masters say the same. Errors are compared only by kind, because they name ports."""
    if isinstance(one, Exception) or isinstance(other, Exception):
        return type(one) is type(other)
    return bool(one == other)


def median(replies: Sequence[Any]) -> Any:
    """Return the median of the masters' answers; None is less than any number. Errors are raised as by `majority`."""
    if sum(isinstance(reply, Exception) for reply in replies) >= quorum_of(len(replies)):
        return majority(replies)
    lowest = float("-inf")
    middle = statistics.median_low([lowest if reply is None else reply for reply in replies if not is_error(reply)])
    return None if middle == lowest else middle


def is_error(reply: Any) -> bool:
    """Return whether a master answered with an error, or not at all."""
    return isinstance(reply, Exception)


def attempt(call: Callable[[], Any]) -> Any:
    """Return the result of the call, or redis-py's error."""
    try:
        return call()
    except redis.RedisError as error:
        return error


def agreed(command: str, calls: Sequence[Callable[[], Any]]) -> Any:
    """Make each call, and return the answer of a majority. Reads are repeated until there is a majority."""
    deadline = time.monotonic() + AGREE_SECONDS
    while True:
        replies = [attempt(call) for call in calls]
        if command.lower() in MEDIANS:
            return median(replies)
        try:
            return majority(replies)
        except NoMajorityError:
            if command.lower() not in READS or time.monotonic() > deadline:
                raise
        time.sleep(POLL_SECONDS)


class Majority:
    """Client with redis-py's methods: each runs on every master, and returns the answer of a majority."""

    def __init__(self, clients: Sequence[redis.Redis]) -> None:
        self._clients = clients

    def __getattr__(self, command: str) -> Callable[..., Any]:
        methods = [getattr(client, command) for client in self._clients]

        def call(*words: Any, **options: Any) -> Any:
            return agreed(command, [lambda one=one: one(*words, **options) for one in methods])  # type: ignore[misc]

        return call

    def __enter__(self) -> "Majority":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()


class Masters:
    """Independent servers that are started, killed and asked together.

    With a `guard` (s), the servers have votes as after long use by relock, also after each start. Without one, relock
    has never seen them.
    """

    def __init__(self, members: Sequence[Server], *, guard: float | None = None) -> None:
        self.members = tuple(members)
        self.guard = guard

    @property
    def quorum(self) -> int:
        """Return the number of masters that are a majority."""
        return quorum_of(len(self.members))

    @property
    def url(self) -> Urls:
        """Return the URLs of the masters."""
        return Urls([server.url for server in self.members], self.guard)

    def start(self) -> "Masters":
        """Start each server, and wait until all answer."""
        for server in self.members:
            server.start()
        return self.let_vote()

    def let_vote(self) -> "Masters":
        """Write the marker of the restart guard as if a client had looked long ago, and the guard were over."""
        for server in self.members if self.guard is not None else ():
            with server.client(decode_responses=True) as client:
                info: dict[str, Any] = client.info()
                incarnation = f"{info['run_id']}:{info['master_replid']}"
                guard_ms = round((self.guard or 0.0) * 1.02 * 1000)
                marker = {"incarnation": incarnation, "no_vote_until_us": 1, "guard_ms": guard_ms}
                client.hset("lock:master", mapping=marker)
        return self

    def empty(self) -> None:
        """Delete all keys; masters that have a vote keep it, if their marker is one."""
        for server in self.members:
            server.cli("EVAL", EMPTY, 0)
        self.let_vote()

    def client(self, **options: Any) -> Majority:
        """Return a client to look behind relock's back: it asks each master, and returns the answer of a majority."""
        return Majority([server.client(**options) for server in self.members])

    def cli(self, *words: Any) -> Any:
        """Send one command once to each master; return the answer of a majority."""
        return agreed(words[0], [lambda one=one: one.cli(*words) for one in self.members])  # type: ignore[misc]

    def calls(self) -> dict[str, int]:
        """Return how often clients called each command since the servers started, on the server with most calls."""
        largest: dict[str, int] = {}
        for calls in [server.calls() for server in self.members]:
            largest = {name: max(largest.get(name, 0), calls.get(name, 0)) for name in {*largest, *calls}}
        return largest

    def client_commands(self) -> int:
        """Return how many of these commands clients have sent, on the server that got most."""
        return max(server.client_commands() for server in self.members)

    def commands(self) -> int:
        """Return how often any command was called, by clients and by scripts, on the server with most calls."""
        return max(server.commands() for server in self.members)

    def stop(self) -> None:
        """Freeze the servers (SIGSTOP)."""
        for server in self.members:
            server.stop()

    def cont(self) -> None:
        """Let the servers go on (SIGCONT)."""
        for server in self.members:
            server.cont()

    def kill(self) -> None:
        """End the servers with SIGKILL."""
        for server in self.members:
            server.kill()

    def terminate(self) -> None:
        """End the servers with SIGTERM."""
        for server in self.members:
            server.terminate()

    def restart(self, *, empty: bool = False) -> None:
        """Kill all servers and start them again, each on its port: with their saved data, or `empty`."""
        self.kill()
        for server in self.members:
            server.restart(empty=empty)
        self.let_vote()

    def close(self) -> None:
        """Kill the servers and remove their folders."""
        for server in self.members:
            server.close()


class All:
    """Several events as one, which is set when all of them are."""

    def __init__(self, events: Sequence[threading.Event]) -> None:
        self._events = events

    def is_set(self) -> bool:
        """Return whether all are set."""
        return all(event.is_set() for event in self._events)

    def wait(self, timeout: float) -> bool:
        """Wait until all are set, for so many seconds at most; return whether they are."""
        deadline = time.monotonic() + timeout
        return all(event.wait(max(0.0, deadline - time.monotonic())) for event in self._events)


class Faults:
    """The same fault, armed before several masters, which strikes once before each of them."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = faults
        self.struck = All([fault.struck for fault in faults])
        self.done = All([fault.done for fault in faults])

    @property
    def has_begun(self) -> bool:
        """Return whether the fault has struck before at least one of the masters."""
        return any(fault.struck.is_set() for fault in self._faults)

    def release(self) -> None:
        """Let the held requests go on to their servers."""
        for fault in self._faults:
            fault.release()


class Proxies:
    """A proxy before each master. It arms faults on all of them; `some` gives the proxies before a few."""

    def __init__(self, members: Sequence[Proxy], guard: float | None) -> None:
        self.members = tuple(members)
        self.guard = guard

    @property
    def url(self) -> Urls:
        """Return the URLs of the proxies."""
        return Urls([proxy.url for proxy in self.members], self.guard)

    def some(self, count: int, dice: random.Random) -> "Proxies":
        """Return so many of the proxies, at random."""
        return Proxies(dice.sample(self.members, count), self.guard)

    def swallow_reply(self, match: Match, *, close: bool = False) -> Faults:
        """Lose a reply, as `Proxy.swallow_reply`. Later replies are lost, too: clients go on sending meanwhile."""
        return Faults([proxy.swallow_reply(match, close=close, mute=not close) for proxy in self.members])

    def lose_request(self, match: Match) -> Faults:
        """Lose a request before each master, and break the connection."""
        return Faults([proxy.lose_request(match) for proxy in self.members])

    def hold_request(self, match: Match) -> Faults:
        """Hold a request before each master until `release`."""
        return Faults([proxy.hold_request(match) for proxy in self.members])

    def swallow_message(self, match: Match) -> Faults:
        """Lose one message of Pub/Sub of each master."""
        return Faults([proxy.swallow_message(match) for proxy in self.members])

    def pause(self) -> None:
        """Let nothing through, without closing a connection."""
        for proxy in self.members:
            proxy.pause()

    def resume(self) -> None:
        """Let everything through again."""
        for proxy in self.members:
            proxy.resume()

    def break_all(self) -> None:
        """Close every connection."""
        for proxy in self.members:
            proxy.break_all()

    def close(self) -> None:
        """Close the proxies."""
        for proxy in self.members:
            proxy.close()


Deployment = Server | Masters  # connections of a test's clients lead to it
ProxyBefore = Proxy | Proxies


@contextmanager
def silenced(servers: Sequence[Server]) -> Iterator[None]:
    """Freeze these servers for the time of the block."""
    for server in servers:
        server.stop()
    yield
    for server in servers:
        server.cont()


def disable(server: Server, how: str) -> None:
    """End a server, which is then ``down``, or freeze it, which is then ``hung``."""
    if how == "down":
        server.kill()
    else:
        server.stop()


def forget(servers: Sequence[Server], how: str) -> None:
    """Let these servers forget all that they have: they are ``restarted``, or ``flushed``."""
    for server in servers:
        if how == "restarted":
            server.restart(empty=True)
        else:
            server.cli("FLUSHALL")
