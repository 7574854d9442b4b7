"""The driver for threads on the simulator's platform: virtual threads, virtual time, virtual masters."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from attrs import define, field
from greenlet import GreenletExit, getcurrent
from support.proxy import ON_REQUESTS, Fault, Line
from support.urls import GUARD_SECONDS

from contract.rigs.rig import SOON, TTL, VIRTUAL_NODE_TIMEOUT, Interrupted, Rig
from contract.rigs.threads import WatchedClient
from contract.rigs.watch import Watch, WatchedPlatform
from relock import Client
from relock._keys import master_key
from relock._runtime.net.node import Node
from relock.testing._conditions import Conditions
from relock.testing._network import VirtualConnection
from relock.testing._platform import VirtualPlatform
from relock.testing._process import Process, Task, current_task
from relock.testing._server import Server
from relock.testing._world import World

EPOCH_SECONDS = 1_700_000_000.0
POLL_SECONDS = 0.004
HOUR_SECONDS = 3600.0
SLACK = 0.05  # seconds, of virtual time


class VirtualRig(Rig):
    """Rig of virtual threads over virtual masters."""

    slack = SLACK

    def __init__(self, masters: int, seed: int) -> None:
        super().__init__(masters)
        self.watch = Watch(getcurrent)
        self._world = World(seed)
        self._process = Process(self._world, "contract")
        self._platform = VirtualPlatform(self._process)
        conditions = Conditions(delay=0.0002)
        self._servers = [
            Server(self._world, number, conditions, rate=1.0, offset=EPOCH_SECONDS) for number in range(masters)
        ]
        self.lines: list[VirtualLine] = [VirtualLine() for _ in self._servers]

    def play(self, test: Callable[[], object]) -> None:
        """Run a test in a task, which must not wait without a timer."""
        task = Running(self._process, test)
        self._world.run(HOUR_SECONDS, is_over=lambda: task.is_over)
        task.result()
        assert not self._world.errors, "no thread has died"

    def client(self, *, ttl: float = TTL, node_timeout: float = VIRTUAL_NODE_TIMEOUT, **options: Any) -> Client:
        """Return a client behind the lines."""
        options = {"ttl": ttl, "node_timeout": node_timeout, **options}
        if self.masters > 1:
            options = {"restart_guard": GUARD_SECONDS, **options}
        nodes = [self._node(server, line) for server, line in zip(self._servers, self.lines, strict=True)]
        client = WatchedClient(WatchedPlatform(self._platform, self.watch), nodes, **options)
        for server in self._servers:
            self._let_vote(server, client._session.options.guard_ms)
        return client

    def _node(self, server: Server, line: "VirtualLine") -> Node:
        return Node(server.name, partial(LineConnection, line, self._process, server), {}, frozenset({server.name}))

    def _let_vote(self, server: Server, guard_ms: int) -> None:
        """Give the master a vote, as after long use."""
        incarnation = f"{server.master.incarnation}:{server.master.incarnation}".encode()
        if guard_ms:
            marker = (b"incarnation", incarnation, b"no_vote_until_us", b"0", b"guard_ms", b"%d" % guard_ms)
            server.master.read("HSET", master_key("lock").encode(), *marker)

    def clock(self) -> float:
        """Return the virtual time (s)."""
        return self._world.now

    def start(self, function: Callable[[], Any]) -> "Running":
        """Start a function in a task beside the test."""
        return Running(self._process, function)

    def until(self, predicate: Callable[[], object], what: str) -> None:
        """Wait until `predicate` is true."""
        deadline = self._world.now + SOON
        while not predicate():
            assert self._world.now < deadline, f"not within {SOON} s: {what}"
            self._process.sleep(POLL_SECONDS)

    def interrupt(self, call: Callable[[], object], when: Callable[[], object]) -> bool:
        """Interrupt the call by an exception that is thrown into the waiting task."""
        bell = Bell(current_task())

        def ring() -> None:
            self.until(lambda: bell.is_silent or when(), "the moment to interrupt")
            self._process.later(0.0, bell.ring)

        running = self.start(ring)
        try:
            call()
        except Interrupted:
            return True
        finally:
            bell.is_silent = True
            running.result()
        return False

    def ask(self, master: int, *words: str | int) -> Any:
        """Send one command to one master, past every line."""
        command, *rest = words
        return self._servers[master].master.read(str(command), *(str(word).encode() for word in rest))

    def go_silent(self) -> None:
        """Let nothing through any line from now on."""
        for line in self.lines:
            line.flows = False

    def close(self) -> None:
        """End the virtual world."""
        self._process.end()


class Running:
    """Task that runs a function beside the test."""

    def __init__(self, process: Process, function: Callable[[], Any]) -> None:
        self._process = process
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self._task = process.start(self._run, "test", waits_without_timer=False)

    @property
    def is_over(self) -> bool:
        """Return whether the function has ended."""
        return self._task.is_over

    def _run(self) -> None:
        try:
            self._result = self._function()
        except GreenletExit:
            raise
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        """Wait for the end; return or raise the outcome of the function."""
        if self._process.world.in_task():
            self._task.join(SOON)
        assert self.is_over, f"{self._function} has not ended"
        if self._error is not None:
            raise self._error
        return self._result


@define
class Bell:
    """An interrupt of a task, which happens once."""

    task: Task
    is_silent: bool = False

    def ring(self) -> None:
        """Raise the interrupt now, wherever the task waits."""
        if not self.is_silent:
            self.is_silent = True
            self.task.interrupt(Interrupted())


class VirtualLine(Line):
    """The way to one virtual master, with the faults of `support.proxy.Proxy`."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[LineConnection] = []
        self.flows = True

    def _arm(self, fault: Fault) -> Fault:
        return super()._arm(VirtualFault(fault.match, fault.kind, fault.close, fault.mute, line=self))


@define(eq=False)
class VirtualFault(Fault):
    """A fault on a virtual line, where no thread waits: releasing the fault also moves on what it held."""

    line: VirtualLine = field(kw_only=True)

    def release(self) -> None:
        """Release the request or reply that the fault holds."""
        super().release()
        for raw in self.line.connections:
            raw.flow()


class LineConnection(VirtualConnection):
    """A virtual connection on a line."""

    def __init__(self, line: VirtualLine, process: Process, server: Server, **options: Any) -> None:
        super().__init__(process, server, **options)
        self._line = line
        self._requests: deque[tuple[Sequence[bytes], Fault | None]] = deque()  # waiting, the first one for its fault
        self._replies: deque[tuple[Any, Fault | None]] = deque()
        self._fault: Fault | None = None  # that of the request which the server carries out
        self._is_mute = False
        self._has_ended = False
        self._is_flowing = False
        line.connections.append(self)

    def flow(self) -> None:
        """Let all pass that no fault holds back."""
        if self._is_flowing:
            return
        self._is_flowing = True
        while self._requests and self._line.flows and not _holds("hold", self._requests[0][1]):
            self._carry(*self._requests.popleft())
        while self._replies and self._line.flows and not _holds("late", self._replies[0][1]):
            self._carry_back(*self._replies.popleft())
        if self._has_ended and not self._requests:
            super()._server_sees_the_end()
        self._is_flowing = False

    def _arrive(self, commands: Sequence[Sequence[bytes]]) -> None:
        for command in commands:
            fault = self._line.strike(list(command), ON_REQUESTS)
            if fault is not None and fault.kind != "late":
                fault.struck.set()
            if fault is not None and fault.kind == "lose":
                fault.done.set()
                self.end()
                return
            self._requests.append((command, fault))
        self.flow()

    def _carry(self, command: Sequence[bytes], fault: Fault | None) -> None:
        self._fault = fault
        super()._arrive([command])
        self._fault = None
        if fault is not None and fault.kind != "late":
            fault.done.set()

    def send_back(self, reply: Any) -> None:
        """Send a reply back, unless a fault takes it."""
        fault = self._fault
        if self._is_mute:
            return
        if fault is not None and fault.kind == "swallow":
            self._is_mute = fault.mute
            if fault.close:
                self.end()
            return
        if fault is not None and fault.kind == "late":
            fault.struck.set()
        else:
            fault = None
        self._replies.append((reply, fault))
        self.flow()

    def _carry_back(self, reply: Any, fault: Fault | None) -> None:
        super().send_back(reply)
        if fault is not None:
            fault.done.set()

    def _server_sees_the_end(self) -> None:
        self._has_ended = True
        self.flow()


def _holds(kind: str, fault: Fault | None) -> bool:
    return fault is not None and fault.kind == kind and not fault.go_on.is_set()
