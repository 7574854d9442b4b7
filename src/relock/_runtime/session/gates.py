"""Gates at which callers of one owner queue: one at a time takes or leaves a level of their hold.

A caller is a thread, or a task of an event loop. Several callers of one owner come at once if they name one ``owner=``,
or if a task has other tasks carry out its calls. A thread that is inside may come in once more: otherwise a signal
handler would wait for the thread that it has interrupted. A gate exists while a caller is inside or in line.

Both sides of a read-write lock have one gate for each owner. With two gates, one call could wait inside the gate of
the readers, for a lock that another call of this owner then gets as a writer. The writer's nested read would wait at
that gate, for a call which waits for the writer.

An exception may strike a thread between any two instructions, so no lock of Python's is taken. The caller inside is a
value in a dictionary, set by ``dict.setdefault``. So is the line of waiting callers, a `WaitQueue`, once it is needed.

A task whose event loop stands still can't leave the gate. A caller that waits behind such a task asks the loop for a
sign of life. If the loop has not answered about a second later, the task gives way: its call is undone, like that of a
cancelled task, and begins anew when the loop turns. If the loop turns at that very moment, `CallRecord.claim` decides
whether the task goes on or its call is undone. A task in line that gives way loses its place.
"""

import asyncio
from collections.abc import Callable
from itertools import islice, takewhile
from typing import Any

from relock._core.book import HoldKey
from relock._core.call_record import LOOK_SECONDS, SILENT_SECONDS, CallRecord
from relock._core.host import TokenQueue
from relock._owner import ReadKey, loop_of, owner_key, runs_on
from relock._runtime.platform import Platform
from relock._runtime.wait_queue import Entry, Waiting, WaitQueue, wait_out

AHEAD_MAX = 16  # how many callers ahead are checked at each look: thousands may be in line, and each of them looks
_INSIDE, _LINE = "inside", "line"
_NOBODY = None, None


class _Gate:
    """Gate that lets one caller in at a time, in the order in which they came. Most gates see only one call."""

    __slots__ = ("_state",)

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state  # the caller inside, and the line

    def line(self) -> WaitQueue:
        """Return the line of callers that wait to come in."""
        line: WaitQueue = self._state.get(_LINE) or self._state.setdefault(_LINE, WaitQueue())
        return line

    def may_pass(self, caller: object) -> bool:
        """Return whether `caller` need not wait: the line is empty, or `caller` is inside or the first in line.

        The last two cases occur in a signal handler. The interrupted call continues when the handler returns, so the
        handler must not wait for it.
        """
        first = self.first()
        return first is None or first.caller is caller or self._state.get(_INSIDE, _NOBODY)[0] is caller

    def try_enter(self, record: CallRecord, caller: object) -> bool:
        """Let `caller` in, with the call of `record`, if no other caller is inside; note both in one step.

        A thread may be inside already (see above). A task may not: if its overtaken call is still inside, its next call
        waits until that one is undone.
        """
        inside, call = self._state.setdefault(_INSIDE, (caller, record))
        return call is record or (inside is caller and record.task is None)

    def inside(self) -> tuple[object, CallRecord | None]:
        """Return the caller inside and the record of its call; None for both if the gate is free."""
        inside: tuple[object, CallRecord | None] = self._state.get(_INSIDE, _NOBODY)
        return inside

    def is_left_empty(self, record: CallRecord) -> bool:
        """Return whether the gate is empty once the call of `record` leaves."""
        state = self._state
        return state.get(_INSIDE, _NOBODY)[1] is record and (_LINE not in state or self.first() is None)

    def leave(self, record: CallRecord) -> None:
        """Free the gate if the call of `record` is the one inside, and wake the first in line.

        A call in a signal handler, which came in on top of that call, frees nothing. A second `leave` does no harm, and
        wakes the first in line if an interrupt has kept the first `leave` from doing so.
        """
        state = self._state
        if state.get(_INSIDE, _NOBODY)[1] is record:
            state.pop(_INSIDE, None)
        if _LINE in state:
            state[_LINE].wake_first()

    def is_turn_of(self, entry: Entry) -> bool:
        """Return whether no other caller waits before `entry`."""
        first = self.first()
        return first is entry or (first is not None and first.caller is entry.caller)

    def is_kept_by(self, loop: object) -> bool:
        """Return whether a task of that event loop is inside, or in line."""
        callers = [self._state.get(_INSIDE, _NOBODY)[0], *(entry.caller for entry in self._state.get(_LINE, ()))]
        return any(runs_on(caller, loop) for caller in callers)

    def first(self) -> Entry | None:
        """Return the first in line."""
        line: WaitQueue | None = self._state.get(_LINE)
        return None if line is None else line.first()


#: The gate of a call, its key, the caller, and the caller's entry in the line, if any. To make a class takes longer.
Admission = tuple[_Gate, HoldKey, object, Entry | None]


class Gates:
    """Gates of one client.

    Attributes:
        overtake: has the call of a task undone in the background, so that the call leaves its gate.
    """

    overtake: Callable[[CallRecord], object]

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._gates: dict[HoldKey, _Gate] = {}
        self._asked: dict[asyncio.AbstractEventLoop, float] = {}  # when each loop was asked that has not answered

    def enter(self, record: CallRecord, key: HoldKey, until: float) -> bool:
        """Have the calling thread wait until `until` at most; return whether it is in.

        Raises:
            RuntimeError: the thread would wait for a task of the event loop that runs in this thread, so without end.
        """
        caller = self._platform.current()
        if self.try_enter(record, key, caller):
            return True
        self._check_loop(key)
        tokens: Any = self._platform.queue()
        return wait_out(self.wait(record, key, until, caller, tokens), tokens)

    def _check_loop(self, key: HoldKey) -> None:
        loop, gate = self._platform.loop(), self._gates.get((key[0], owner_key(key[1])))
        if loop is not None and gate is not None and gate.is_kept_by(loop):
            raise RuntimeError(
                f"{key[0]!r}: a task of the event loop that runs in this thread is taking or leaving a level for the "
                "same owner=; that task could not go on while this thread waits for it; use an AsyncClient here as well"
            )

    def try_enter(self, record: CallRecord, key: HoldKey, caller: object) -> bool:
        """Let `caller` in if it need not wait; return whether it is in."""
        if key[1].__class__ is ReadKey:  # the usual call of a plain lock is spared the call of a function
            key = key[0], owner_key(key[1])
        gate = self._gates.get(key)
        if gate is None:
            own = _Gate({_INSIDE: (caller, record)})
            record.gate = own, key, caller, None  # Note, then send: an interrupt must find the gate that is entered
            gate = self._gates.setdefault(key, own)
            if gate is own:
                return True
        record.gate = gate, key, caller, None  # as above
        if gate.may_pass(caller) and gate.try_enter(record, caller):
            if self._gates.get(key) is gate:
                return True
            gate.leave(record)
        record.gate = None
        return False

    def wait(self, record: CallRecord, key: HoldKey, until: float, caller: object, tokens: TokenQueue) -> Waiting:
        """Yield for how long to wait for a token in `tokens`, again and again; return whether `caller` is in."""
        key = key[0], owner_key(key[1])
        while True:
            gate = self._gates.get(key) or self._gates.setdefault(key, _Gate({}))
            line, entry, is_in = gate.line(), Entry(tokens, caller), False
            admission = record.gate = gate, key, caller, entry  # as above
            line.join(entry)
            try:
                while entry.is_waiting and not (gate.is_turn_of(entry) and gate.try_enter(record, caller)):
                    left = until - self._platform.clock()
                    if left <= 0:
                        record.gate = None
                        return False
                    if not self._gives_way(gate, entry):
                        yield min(left, LOOK_SECONDS)
                is_in = entry.is_waiting  # if not, this caller has given way, and joins the line anew
            finally:
                line.leave(entry)
                if not is_in:
                    self._go_by(record, admission)
            if is_in and self._gates.get(key) is gate:
                return True
            gate.leave(record)

    def _gives_way(self, gate: _Gate, entry: Entry) -> bool:
        """Have tasks before `entry` give way if their event loops stand still; return whether one in line did."""
        line = gate.line()
        ahead = islice(takewhile(lambda one: one is not entry, line), AHEAD_MAX)
        stuck = [one for one in ahead if self._is_stuck(one.caller)]
        caller, record = gate.inside()
        if record is not None and self._is_stuck(caller):
            self.overtake(record)  # when the call is undone, it leaves the gate, and that wakes the next caller
        if stuck:
            line.leave(*stuck)
        return bool(stuck)

    def _is_stuck(self, caller: object) -> bool:
        """Return whether `caller` is a task of an event loop that stands still; the loop that runs this does not."""
        loop = loop_of(caller)
        return loop is not None and loop is not self._platform.loop() and self._stands_still(loop)

    def _stands_still(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether a loop is closed, or owes an answer for `SILENT_SECONDS`; ask the loop if it owes none."""
        now = self._platform.clock()
        asked_at = self._asked.setdefault(loop, now)
        if asked_at == now:
            try:
                loop.call_soon_threadsafe(self._asked.pop, loop, None)
            except RuntimeError:  # the loop is closed
                self._asked.pop(loop, None)
                return True
        return now - asked_at >= SILENT_SECONDS

    def leave(self, record: CallRecord) -> None:
        """Take the call of `record` away from its gate, and let the next caller in."""
        if record.gate is not None:
            self._leave(record, *record.gate)
            record.gate = None  # Undo, then forget: an interrupt must find the gate until it is left

    def _go_by(self, record: CallRecord, admission: Admission) -> None:
        """Take away a caller that leaves the line; the last one enters for a moment, so as to remove the gate."""
        gate, _, caller, _ = admission
        if gate.first() is None:
            gate.try_enter(record, caller)
        self._leave(record, *admission)

    def _leave(self, record: CallRecord, gate: _Gate, key: HoldKey, _caller: object, entry: Entry | None) -> None:
        """Leave a gate; first remove the gate if no other caller is there, so that later callers make a new one."""
        if entry is not None:
            entry.is_waiting = False  # a task of a closed loop does not run its own `line.leave`
        if gate.is_left_empty(record) and self._gates.get(key) is gate:
            self._gates.pop(key, None)
        gate.leave(record)
