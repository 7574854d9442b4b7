"""A host of calls without threads, sockets or servers: the clock stands still, and the test answers each step."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from relock._core import multi
from relock._core.call_record import CallFlow, CallRecord, Enter, Step, T
from relock._core.calls import Calls
from relock._core.clocks import Offset
from relock._core.effects import Ask, Exchange, Listen, Park
from relock._core.hold import Hold
from relock._core.host import Host
from relock._core.interrupts import Interrupted
from relock._core.lock_spec import LockSpec, MultiSpec
from relock._core.tasks import GoOn, PendingCheck, Settle, Task, UndoTask
from relock._events import Event, Loss
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._owner import Owner, named
from relock._runtime.session.gates import Gates
from relock._scripts import Call
from support.instructions import Interrupt

OPTIONS = ClientOptions()
JOB = named("job")
THREAD = Owner(1, None, None)
USUAL: dict[str, list[Any]] = {
    "acquire": [b"granted", 1_000_000, 1],
    "count": [b"counted", 1_000_000],
    "inspect": [b"held", 1_000_000, 5_000, b"you:1", 1, 7, []],
    "release": [b"released", 1_000_000],
}


class PureHost(Host):
    """Host whose masters all answer, and whose callers name one ``owner=``.

    Attributes:
        caller: the present caller.
        struck: the scripts at which an interrupt strikes, and ``watch``.
        handed: the tasks that the janitor was given.
        now: the time that the clock shows.
        sent: what the masters were sent, one item for each request: the names of its locks by its scripts.
        taken: the locks that another owner has.
        forced: the locks whose holds an operator has ended.
        parked: the locks for which the caller has slept, each with the locks that the masters had given it then.
        given: the owner of each lock on the masters, and a reader beside it.
    """

    def __init__(self, masters: int = 1, names: str = "a", **options: Any) -> None:
        super().__init__(0.0, lambda: self.now)
        self.now = 100.0
        addresses, asked = tuple("abcde"[:masters]), OPTIONS.for_lock(**options)
        self.whole = MultiSpec(tuple(LockSpec.of(lock_keys("lock", name), addresses, asked, OPTIONS) for name in names))
        self.spec = self.whole.members[0]
        self.sent: list[str] = []
        self.taken: set[str] = set()
        self.forced: set[str] = set()
        self.parked: list[tuple[str, str]] = []
        self.given: dict[str, bytes] = {}
        self.known = [Offset(0.0) for _ in range(masters)]
        self.caller = "one"
        self.struck: Sequence[str] = ()
        self.handed: list[Task] = []
        self.checks: list[PendingCheck] = []
        self.events: list[Event] = []
        self.waiters: dict[bytes, object] = {}
        self.serials = itertools.count(1)
        self.awaits_kind = False
        self.heard_ends = 0
        self.names: Iterator[bytes] = (b"me:%d" % serial for serial in self.serials)
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

    def hear_ends(self) -> None:
        self.heard_ends += 1

    def new_name(self, owner: str) -> bytes:
        return b"me:%b.%d" % (owner.encode(), next(self.serials))

    def forget(self, owner: bytes, *, served: Hold | None = None) -> None:  # noqa: ARG002
        self.waiters.pop(owner, None)

    def watch(self, hold: Hold) -> None:  # noqa: ARG002
        self._strike("watch")

    def _strike(self, what: str) -> None:
        if what in self.struck:
            raise Interrupt

    def chance(self) -> float:
        return 0.5

    def was_woken(self, owner: bytes) -> bool | None:  # noqa: ARG002
        return None

    def turns_missed(self, owner: bytes) -> int:  # noqa: ARG002
        return 0

    # What callers do ------------------------------------------------------------------------------------------------

    def answer(self, step: Step) -> Any:
        """Return the answer of a driver whose masters all answer; a sleep lasts until the lock is free."""
        if isinstance(step, Enter):
            self._strike("enter")
            return bool(self.gates.enter(*step))
        if isinstance(step, Ask | Exchange):
            for call in step.calls:
                self._strike(call.script.name)
            by_script = itertools.groupby(step.calls, lambda call: call.script.name)
            self.sent.append(
                " ".join(f"{script}:{''.join(one.keys.name for one in some)}" for script, some in by_script)
            )
            replies = [self._reply(call) for call in step.calls]
            return [replies.copy() for _ in self.known]
        if isinstance(step, Park):
            self.parked.append((step.keys.name, "".join(self.given)))
            self.taken.discard(step.keys.name)
            return []
        return isinstance(step, Listen) or None

    def _reply(self, call: Call) -> list[Any]:
        """Carry out a call on all masters, and return the reply of each."""
        name, script, owner = call.keys.name, call.script.name, call.own.split(b"\r\n")[1]
        of_permits: list[Any] = [b""] if script.startswith("permit_") else []
        given = f"{name} as a reader" if b"&" in owner else name
        script = script.removeprefix("permit_").removeprefix("read_")
        if script in ("acquire", "enqueue"):
            if name in self.taken:
                refusal = [b"refused", 1_000_000, 5_000, 0, b"you:1"]
                said = refusal if script == "acquire" else [b"queued", *refusal[1:], 1]
                return [*said, *of_permits]
            self.given[given] = owner
            return [b"granted", 1_000_000, 1, *([0] if of_permits else [])]
        if script == "release" and (name in self.forced or self.given.get(given) != owner):
            return [b"absent", 1_000_000]
        if script == "release":
            del self.given[given]
        return USUAL[script]

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

    # Several locks --------------------------------------------------------------------------------------------------

    def acquire_all(
        self, record: CallRecord | None = None, who: Owner = JOB, until: float = 100.0, names: str = ""
    ) -> CallFlow[Any]:
        return multi.acquire_all(self.calls, record or CallRecord(), self.only(names), who, until)

    def release_all(self, record: CallRecord | None = None, who: Owner = JOB, names: str = "") -> CallFlow[None]:
        return multi.release_all(self.calls, record or CallRecord(), self.only(names), who)

    def only(self, names: str) -> MultiSpec:
        """Return the spec of these locks; of all if `names` is empty."""
        return MultiSpec(tuple(one for one in self.whole.members if not names or one.keys.name in names))

    def acquire_one(self, name: str, who: Owner = JOB) -> CallFlow[Any]:
        (spec,) = self.only(name).members
        return self.calls.acquire(CallRecord(), spec, who, 100.0)

    def counts(self, who: Owner = JOB) -> dict[str, int]:
        """Return the caller's levels of each lock that it has."""
        return {name: hold.count for (name, key), hold in self.holds.copy().items() if key == who.key and hold.count}

    def finish(self) -> None:
        """Let the janitor do all that it was given."""
        while self.handed:
            task = self.handed.pop(0)
            if isinstance(task, GoOn):
                task.do()
            elif isinstance(task, UndoTask) and self.given.get(task.keys.name) == task.owner:
                del self.given[task.keys.name]
            elif isinstance(task, Settle):
                task.hold.settling = False
