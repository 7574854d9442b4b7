"""The driver for threads, over real servers on loopback with a proxy before each."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import redis
from support.ends import leave_to_leases
from support.masters import Deployment
from support.proxy import Proxy
from support.until import until
from support.urls import Urls, options_for

from contract.rigs.rig import NODE_TIMEOUT, SOON, TTL, Interrupted, Rig
from contract.rigs.watch import Watch, WatchedPlatform
from relock import Client
from relock._runtime.machine import THREADS
from relock._runtime.platform import Platform

SLACK = 20.0  # seconds


class WatchedClient(Client):
    """A client on a platform that the test watches."""

    def __init__(self, platform: Platform, nodes: Any, **options: Any) -> None:
        self._platform = platform
        super().__init__(nodes, **options)


class ThreadRig(Rig):
    """Rig of threads over real servers."""

    slack = SLACK

    def __init__(self, server: Deployment) -> None:
        super().__init__(len(server.members))
        self.watch = Watch(threading.get_ident)
        self.lines: list[Proxy] = [Proxy(one.port) for one in server.members]
        self._guard = getattr(server, "guard", None)
        self._asked = [one.client() for one in server.members]
        self._clients: list[Client] = []
        self._interruptible = False

    def play(self, test: Callable[[], object]) -> None:
        """Run a test in pytest's own thread, the only one that can take a signal."""
        before = signal.signal(signal.SIGUSR1, self._ring)
        try:
            test()
        finally:
            signal.signal(signal.SIGUSR1, before)

    def client(self, *, ttl: float = TTL, node_timeout: float = NODE_TIMEOUT, **options: Any) -> Client:
        """Return a client behind the lines."""
        urls = self.lines[0].url if self.masters == 1 else Urls([line.url for line in self.lines], self._guard)
        options = options_for(urls, {"ttl": ttl, "node_timeout": node_timeout, **options})
        client = WatchedClient(WatchedPlatform(THREADS, self.watch), urls, **options)
        self._clients.append(client)
        return client

    def clock(self) -> float:
        """Return the time of this machine's clock (s)."""
        return THREADS.clock()

    def start(self, function: Callable[[], Any]) -> "Thread":
        """Start a function on a thread beside the test."""
        return Thread(function)

    def until(self, predicate: Callable[[], object], what: str) -> None:
        """Wait until `predicate` is true."""
        until(predicate, within=SOON, what=what)

    def interrupt(self, call: Callable[[], object], when: Callable[[], object]) -> bool:
        """Interrupt the call by a signal."""
        over = threading.Event()

        def ring() -> None:
            until(lambda: over.is_set() or when(), within=SOON, what="the moment to interrupt")
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGUSR1)

        bell = Thread(ring)
        try:
            try:
                self._interruptible = True
                call()
            finally:
                self._interruptible = False
        except Interrupted:
            return True
        finally:
            over.set()
            bell.result()
        return False

    def _ring(self, _number: int, _frame: object) -> None:
        if self._interruptible:
            self._interruptible = False
            raise Interrupted

    def ask(self, master: int, *words: str | int) -> Any:
        """Send one command to one master, past every line."""
        client: redis.Redis = self._asked[master]
        return client.execute_command(*words)  # type: ignore[no-untyped-call]

    def go_silent(self) -> None:
        """Let nothing through any line from now on."""
        for line in self.lines:
            line.pause()

    def close(self) -> None:
        """End the clients, the servers and the proxies."""
        for line in self.lines:
            line.let_go()  # so that clients that must undo something need not wait in vain
        for client in self._clients:
            leave_to_leases(client._session)
            client.close()
        for line in self.lines:
            line.close()
        for asked in self._asked:
            asked.close()


class Thread:
    """Thread that runs a function beside the test."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error

    @property
    def is_over(self) -> bool:
        """Return whether the function has ended."""
        return not self._thread.is_alive()

    def result(self) -> Any:
        """Wait for the end; return or raise the outcome of the function."""
        self._thread.join(SOON)
        assert not self._thread.is_alive(), f"{self._function} has not ended"
        if self._error is not None:
            raise self._error
        return self._result
