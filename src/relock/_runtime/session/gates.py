"""The gates at which callers of one owner queue: one at a time takes or leaves a level of their hold.

A caller is a thread, or a task of an event loop; several come at once where they name one ``owner=``, and where a task
has others carry out calls for it. A thread that is inside may come in once more: in a signal handler, which would else
wait for the thread that it has interrupted. A gate is there while somebody is at it.

An exception may strike a thread between any two instructions, so no lock of Python's is taken. Whoever is inside is a
value in a dictionary, set by ``dict.setdefault``; so is the line, once there is one. A place in the line is known by a
weak reference, so that it dies with a caller that was struck before it could leave.

A task whose event loop stands still can't leave. Who waits behind it asks the loop, and a second later, where that has
not answered, makes the task give way: its call is undone, as that of a cancelled task, and begins anew when the loop
turns. `CallRecord.claim` decides which of the two goes on where the loop turns at that moment. A task in line loses its
place.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import islice
from queue import Empty
from typing import Any
from weakref import ref

from relock._core.book import HoldKey
from relock._core.call_record import CallRecord
from relock._owner import loop_of, runs_on
from relock._runtime.platform import Platform
from relock._runtime.wakeups.bell import Rung

LOOK_SECONDS = 1.0  # whoever was to wake the next in line may have been struck before, twice in a row
SILENT_SECONDS = 0.75  # without an answer, after which an event loop counts as one that stands still
GIVE_WAY_SECONDS = SILENT_SECONDS + LOOK_SECONDS  # after which who waits has had callers that can't go on give way
AHEAD_MAX = 16  # places in line whose event loops are asked at once: thousands may be in line, and each looks
_INSIDE, _LINE = "inside", "line"
_NOBODY = None, None


class _Place:
    """One caller's place in a line; `wakes` gets a token for each reason to look, while it is waiting."""

    __slots__ = ("__weakref__", "is_waiting", "wakes", "who")

    def __init__(self, wakes: Rung, who: object) -> None:
        self.wakes = wakes
        self.who = who
        self.is_waiting = True


class _Gate:
    """Lets one caller in at a time, the first that came first. Most are made by a call that stays alone."""

    __slots__ = ("_state",)

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state  # who is inside; and the line, with some that wait no more: see `first`

    def line_up(self, place: _Place) -> None:
        """Puts a place at the end of the line."""
        line: deque[ref[_Place]] = self._state.get(_LINE) or self._state.setdefault(_LINE, deque())
        line.append(ref(place))

    def may_pass(self, who: object) -> bool:
        """Whether `who` need not stand in line: nobody does, or it is inside, or the first of it: all wait for it.

        The second and the third it is where a signal handler calls: what that has interrupted goes on after it.
        """
        first = self.first()
        return first is None or first.who is who or self._state.get(_INSIDE, _NOBODY)[0] is who

    def try_enter(self, record: CallRecord, who: object) -> bool:
        """Lets `who` in, with the call that has that record, if nobody else is inside; in one step, both are noted.

        A task has one call at a time. One that was overtaken may be inside still: it is undone before the next one is.
        """
        caller, call = self._state.setdefault(_INSIDE, (who, record))
        return call is record or (caller is who and record.task is None)

    def inside(self) -> tuple[object, CallRecord | None]:
        """Return who is inside, with its call."""
        inside: tuple[object, CallRecord | None] = self._state.get(_INSIDE, _NOBODY)
        return inside

    def is_left_empty(self, record: CallRecord) -> bool:
        """Whether nobody is at the gate any more once that call leaves."""
        state = self._state
        return state.get(_INSIDE, _NOBODY)[1] is record and (_LINE not in state or self.first() is None)

    def leave(self, record: CallRecord) -> None:
        """The gate is free once the call that has come in first leaves: one of a signal handler has left before.

        Again, it does no harm, and does what an interrupt has kept.
        """
        state = self._state
        if state.get(_INSIDE, _NOBODY)[1] is record:
            state.pop(_INSIDE, None)
        if _LINE in state:
            self.wake()

    def is_turn_of(self, place: _Place) -> bool:
        """Whether no place of another caller before it still waits."""
        first = self.first()
        return first is place or (first is not None and first.who is place.who)

    def wake(self) -> None:
        """Whoever is first in line looks."""
        first = self.first()
        if first is not None and first.wakes.empty():
            first.wakes.put(None)

    def is_kept_by(self, loop: object) -> bool:
        """Whether a task of that event loop is inside, or in line."""
        places = [reference() for reference in self._state.get(_LINE, deque()).copy()]
        callers = [self._state.get(_INSIDE, _NOBODY)[0], *(place.who for place in places if place is not None)]
        return any(runs_on(who, loop) for who in callers)

    def ahead_of(self, place: _Place) -> list[_Place]:
        """Return the first places that wait, of those before that one."""
        line: deque[ref[_Place]] = self._state.get(_LINE, deque())
        places = [reference() for reference in islice(line.copy(), AHEAD_MAX)]
        waiting = [one for one in places if one is not None and one.is_waiting]
        return waiting[: waiting.index(place)] if place in waiting else waiting

    def first(self) -> _Place | None:
        """The first place that waits; those before it are removed, because thousands may leave at once."""
        line: deque[ref[_Place]] | None = self._state.get(_LINE)
        while line:
            try:
                reference = line[0]
            except IndexError:  # another thread has just taken out the last one
                return None
            place = reference()
            if place is not None and place.is_waiting:
                return place
            with suppress(ValueError):  # another thread has taken it out
                line.remove(reference)
        return None


#: Where a call is: the gate, its key, who calls, and the place in line, if it has one. No class: that costs a call.
Admission = tuple[_Gate, HoldKey, object, _Place | None]


class Gates:
    """The gates of one client.

    Attributes:
        overtake: has a task's call undone in the background, so that it leaves its gate.
    """

    overtake: Callable[[CallRecord], object]

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._gates: dict[HoldKey, _Gate] = {}
        self._asked: dict[asyncio.AbstractEventLoop, float] = {}  # when; until the loop answers

    def enter(self, record: CallRecord, key: HoldKey, until: float) -> bool:
        """Has the calling thread wait until `until` at most; returns whether it is in.

        Raises:
            RuntimeError: the thread would wait for a task of the event loop that it runs, and so that for itself.
        """
        who = self._platform.current()
        if self.try_enter(record, key, who):
            return True
        self._check_loop(key)
        wakes: Any = self._platform.queue()
        waiting = self.wait(record, key, until, who, wakes)
        try:
            while True:
                seconds = next(waiting)
                with suppress(Empty):
                    wakes.get(timeout=seconds)
        except StopIteration as end:
            return bool(end.value)
        finally:
            waiting.close()

    def _check_loop(self, key: HoldKey) -> None:
        loop, gate = self._platform.loop(), self._gates.get(key)
        if loop is not None and gate is not None and gate.is_kept_by(loop):
            raise RuntimeError(
                f"{key[0]!r}: a task of the event loop that runs in this thread is taking or leaving a level for the "
                "same owner=, and could not go on while this thread waits for it; use an AsyncClient here as well"
            )

    def try_enter(self, record: CallRecord, key: HoldKey, who: object) -> bool:
        """Lets `who` in if it need not wait."""
        gate = self._gates.get(key)
        if gate is None:
            own = _Gate({_INSIDE: (who, record)})
            record.gate = own, key, who, None  # Note, then send: an interrupt must find the gate that is entered
            gate = self._gates.setdefault(key, own)
            if gate is own:
                return True
        record.gate = gate, key, who, None  # as above
        if gate.may_pass(who) and gate.try_enter(record, who):
            if self._gates.get(key) is gate:
                return True
            gate.leave(record)
        record.gate = None
        return False

    def wait(
        self, record: CallRecord, key: HoldKey, until: float, who: object, wakes: Rung
    ) -> Generator[float, None, bool]:
        """Yields for how long to wait for something in `wakes`, again and again; returns whether `who` is in."""
        while True:
            gate = self._gates.get(key) or self._gates.setdefault(key, _Gate({}))
            place, is_in = _Place(wakes, who), False
            admission = record.gate = gate, key, who, place  # as above
            gate.line_up(place)
            try:
                while place.is_waiting and not (gate.is_turn_of(place) and gate.try_enter(record, who)):
                    left = until - self._platform.clock()
                    if left <= 0:
                        record.gate = None
                        return False
                    if not self._gives_way(gate, place):
                        yield min(left, LOOK_SECONDS)
                is_in = place.is_waiting  # else others have passed by, and it lines up anew
            finally:
                place.is_waiting = False
                if is_in:
                    gate.wake()  # it may have been woken, and is first no more
                else:
                    self._go_by(record, admission)
            if is_in and self._gates.get(key) is gate:
                return True
            gate.leave(record)

    def _gives_way(self, gate: _Gate, place: _Place) -> bool:
        """Have tasks ahead of `place` give way whose event loops stand still; return whether one in line has by now."""
        stuck = [one for one in gate.ahead_of(place) if self._is_stuck(one.who)]
        for one in stuck:
            one.is_waiting = False
        who, record = gate.inside()
        if record is not None and self._is_stuck(who):
            self.overtake(record)  # who is next is woken when that is done
        if stuck:
            gate.wake()
        return bool(stuck)

    def _is_stuck(self, who: object) -> bool:
        """Return whether a caller is a task of an event loop that stands still; the loop that looks does not."""
        loop = loop_of(who)
        return loop is not None and loop is not self._platform.loop() and self._stands_still(loop)

    def _stands_still(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether a loop is closed, or has not answered for long; ask it, unless it owes an answer."""
        now = self._platform.clock()
        asked_at = self._asked.setdefault(loop, now)
        if asked_at == now:
            try:
                loop.call_soon_threadsafe(self._asked.pop, loop, None)
            except RuntimeError:  # it is closed
                self._asked.pop(loop, None)
                return True
        return now - asked_at >= SILENT_SECONDS

    def leave(self, record: CallRecord) -> None:
        """Lets the next caller in, if this one is in."""
        if record.gate is not None:
            self._leave(record, *record.gate)
            record.gate = None  # Undo, then forget: an interrupt must find the gate until it is left

    def _go_by(self, record: CallRecord, admission: Admission) -> None:
        """A caller leaves the line. If it was the last one, it comes in for a moment: nobody else removes the gate."""
        gate, _, who, _ = admission
        if gate.first() is None:
            gate.try_enter(record, who)
        self._leave(record, *admission)

    def _leave(self, record: CallRecord, gate: _Gate, key: HoldKey, _who: object, place: _Place | None) -> None:
        """Removes a gate that is left empty before it is left: whoever comes in after that goes to the next one."""
        if place is not None:
            place.is_waiting = False  # the task that stood there may go on no more: its loop is closed
        if gate.is_left_empty(record) and self._gates.get(key) is gate:
            self._gates.pop(key, None)
        gate.leave(record)
