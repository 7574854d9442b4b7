"""A host of calls without threads, sockets or servers: the clock stands still, and the test answers each step."""

import itertools
from collections.abc import Sequence
from typing import Any

from relock._core.call_record import CallFlow, CallRecord, Enter, Step, T
from relock._core.calls import Calls
from relock._core.clocks import Offset
from relock._core.effects import Answer, Exchange
from relock._core.hold import Hold
from relock._core.host import Host
from relock._core.interrupts import Interrupted
from relock._core.lock_spec import LockSpec
from relock._core.tasks import GoOn, PendingCheck, Task
from relock._events import Event, Loss
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._owner import named
from relock._runtime.session.gates import Gates
from support.instructions import Interrupt

OPTIONS = ClientOptions()
JOB = named("job")
USUAL: dict[str, list[Any]] = {
    "acquire": [b"granted", 1_000_000, 1],
    "count": [b"counted", 1_000_000],
    "release": [b"released", 1_000_000],
}


class PureHost(Host):
    """Host whose masters all answer, and whose callers name one ``owner=``.

    Attributes:
        caller: the present caller.
        struck: the scripts at which an interrupt strikes, and ``watch``.
        handed: the tasks that the janitor was given.
    """

    def __init__(self, masters: int = 1) -> None:
        super().__init__(0.0, lambda: 100.0)
        self.spec = LockSpec.of(lock_keys("lock", "a"), tuple("abcde"[:masters]), OPTIONS.for_lock(), OPTIONS)
        self.known = [Offset(0.0) for _ in range(masters)]
        self.caller = "one"
        self.struck: Sequence[str] = ()
        self.handed: list[Task] = []
        self.checks: list[PendingCheck] = []
        self.events: list[Event] = []
        self.waiters: dict[bytes, object] = {}
        self.serials = itertools.count(1)
        self.logs_events = lambda: True
        everything: Any = self
        self.janitor = self.hubs = self.watchdog = self.platform = everything
        self.hand, self.look_later = self.handed.append, self.checks.append
        self.gates: Any = Gates(everything)
        self.interrupted = Interrupted(self, may_wait=True)
        self.calls = Calls(self, self.interrupted, everything)

    def current(self) -> str:
        return self.caller

    def loop(self) -> None:
        """No event loop runs."""

    def queue(self) -> None:
        """Return no queue: no thread waits at a gate."""

    def check_open(self) -> None:
        """Do nothing: the host is open."""

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def tell_loss(self, hold: Hold, loss: Loss) -> None:
        """Do nothing: no callback hears of a loss."""

    def offsets(self) -> Sequence[Offset]:
        return self.known

    def is_down(self, master: int) -> bool:  # noqa: ARG002
        return False

    def new_name(self, owner: str) -> bytes:
        return b"me:%b.%d" % (owner.encode(), next(self.serials))

    def forget(self, owner: bytes, *, served: Hold | None = None) -> None:  # noqa: ARG002
        self.waiters.pop(owner, None)

    def watch(self, hold: Hold) -> None:  # noqa: ARG002
        self._strike("watch")

    def _strike(self, what: str) -> None:
        if what in self.struck:
            raise Interrupt

    # What callers do ------------------------------------------------------------------------------------------------

    def answer(self, step: Step) -> list[Answer] | bool:
        """Return the answer of a driver whose masters all answer."""
        if isinstance(step, Enter):
            self._strike("enter")
            return bool(self.gates.enter(*step))
        assert isinstance(step, Exchange)
        self._strike(step.request.script.name)
        return [[USUAL[step.request.script.name]] for _ in self.known]

    def do(self, flow: CallFlow[T], said: Any = None) -> T:
        """Carry out a call; for a flow that has begun, `said` answers its present step."""
        try:
            while True:
                said = self.answer(flow.send(said))
        except StopIteration as end:
            value: T = end.value
            return value

    def acquire(self, record: CallRecord | None = None) -> CallFlow[Any]:
        return self.calls.acquire(record or CallRecord(), self.spec, JOB, 100.0)

    def release(self, record: CallRecord | None = None) -> CallFlow[None]:
        return self.calls.release(record or CallRecord(), self.spec, JOB)

    def take(self, levels: int) -> Hold:
        """Acquire so many levels."""
        for _ in range(levels):
            self.do(self.acquire())
        return self.holds["a", JOB.key]

    def levels(self) -> int:
        """Return the number of the owner's levels."""
        hold = self.holds.get(("a", JOB.key))
        return 0 if hold is None else hold.count

    def go_on(self) -> None:
        """Let the janitor go on with the releases that wait at a gate."""
        for task in [self.handed.pop(0) for _ in self.handed.copy()]:
            if isinstance(task, GoOn):
                task.do()
