"""Waiters of one client, and sockets that are shared among them, without the threads of its subscriptions."""

import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from redis import exceptions as redis_errors

from relock._keys import lock_keys
from relock._runtime.machine import THREADS
from relock._runtime.net.channel import Channel
from relock._runtime.wakeups.shared_subscriptions import SharedSubscriptions
from relock._runtime.wakeups.subscribed_connection import SubscribedConnection
from relock._runtime.wakeups.waiter import Waiter

LONG = 20.0  # seconds that nothing here may take
POLL_SECONDS = 0.0002  # short, because thousands of scenes are played


def until(predicate: Callable[[], object], *, within: float = LONG, what: str) -> None:
    """Wait as `support.until` does, but look more often."""
    end = time.monotonic() + within
    while not predicate():
        assert time.monotonic() < end, f"not within {within} s: {what}"
        time.sleep(POLL_SECONDS)


class Line(Channel):
    """One socket on which each of the masters' messages is a line: the name of its waiter."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.fileno = self.ours.fileno()
        self.take = partial(self.ours.recv, 1024)
        self.take_now = partial(self.ours.recv, 1024, socket.MSG_DONTWAIT)

    def parse(self, taken: bytes) -> list[bytes]:
        if not taken:
            raise redis_errors.ConnectionError("it was closed")
        return taken.split()

    def say(self, *names: str) -> None:
        self.theirs.sendall(" ".join(names).encode() + b"\n")

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class Scene:
    """Waiters of one client, and a socket that is shared among them."""

    def __init__(self) -> None:
        self.shared = SharedSubscriptions(THREADS)
        self.lines: list[Line] = []
        self.line = self.another_line()
        self.waiters: dict[bytes, Waiter] = {}
        self.threads: list[threading.Thread] = []
        self.heard: list[str] = []
        self.connection = self.listen(self.line)

    def another_line(self) -> Line:
        """Return a further socket, which is open until the scene ends."""
        self.lines.append(Line())
        return self.lines[-1]

    def listen(self, line: Line) -> SubscribedConnection:
        """Return the connection of one master, whose thread only opens it."""
        return SubscribedConnection(line, self.act_on, lambda: None)

    def act_on(self, name: bytes) -> None:
        waiter = self.waiters.get(name)
        if waiter is not None:
            waiter.wake(0)

    def waiter(self, name: str) -> Waiter:
        waiter = Waiter(name.encode(), lock_keys("lock", "any"), SimpleQueue(), self.shared)
        self.waiters[name.encode()] = waiter
        return waiter

    def sleep(self, waiter: Waiter, seconds: float = LONG) -> None:
        """Sleep as a waiting call does."""
        waiter.park(self.shared.clock() + seconds, 1, lambda: 0.0)

    def sleeps(self, name: str) -> Waiter:
        """Return the waiter of a new thread, which sleeps until it is woken, and leads if it is asked to."""
        waiter = self.waiter(name)

        def run() -> None:
            begin = self.shared.clock()
            self.sleep(waiter)
            if self.shared.clock() - begin < LONG:
                self.heard.append(name)

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()
        until(lambda: waiter in self.shared._parked, what="the waiter sleeps")
        return waiter

    def share(self) -> None:
        self.shared.share(self.connection)
        assert self.connection in self.shared._shared

    def leads(self, waiter: Waiter) -> bool:
        return waiter in self.shared._role.values()

    def has_heard(self, name: str, within: float = LONG) -> bool:
        """Return whether `name` has its message, or must look again, because the connection was given up."""
        try:
            until(lambda: name in self.heard or self.connection.error is not None, within=within, what="a message")
        except AssertionError:
            return False
        return True

    def end(self) -> None:
        for waiter in self.waiters.values():
            waiter.wake()
        for thread in self.threads:
            thread.join(LONG)
        for line in self.lines:
            line.close()
