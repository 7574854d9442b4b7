"""How an event loop reads the subscriptions of a client while its tasks wait.

`relock._runtime.wakeups.reading` says which of the threads and loops that wait reads for all of them. A loop reads only
while no thread waits, for a thread that waits does nothing else, and a loop may stand still. It is in the line from the
moment at which its first task sleeps until a moment after the last one has woken: tasks that hand a lock to each other
sleep thousands of times in a second.

Whoever finds that the loop stands still takes the reading away from it, without its help (`oust`). That is safe between
two messages. So the loop claims each one before it reads, in one step that no other thread can take as well.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from threading import get_ident

from relock._runtime.net.loop_watch import LoopWatch
from relock._runtime.platform import Platform
from relock._runtime.wakeups.ear import Ear
from relock._runtime.wakeups.reading import VACANT_SECONDS, Reading

_READS = "reads"


class LoopReader:
    """One loop, where tasks of it wait. All but `wake`, `oust` and `forget` is for the loop's thread.

    Args:
        orphaned: called when the loop turns out to be closed.

    Attributes:
        thread: the identifier of the loop's thread while it acts on what it has read; else 0.
    """

    thread: int

    def __init__(
        self, platform: Platform, loop: asyncio.AbstractEventLoop, reading: Reading, orphaned: Callable[[], object]
    ) -> None:
        self.thread = 0
        self._platform = platform
        self._loop = loop
        self._reading = reading
        self._orphaned = orphaned
        self._sleepers = 0
        self._has_slept = False  # some task, since the timer was set
        self._is_in_line = False
        self._timer: asyncio.TimerHandle | None = None
        self._wanted: object = None  # for which of the reading's values the watches are made; None: there are none
        self._watches: list[LoopWatch] = []
        self._claim: dict[str, object] = {}

    # Tasks ----------------------------------------------------------------------------------------------------------

    def sleeps(self) -> None:
        """One task more sleeps."""
        self._sleepers += 1
        self._has_slept = True
        if not self._is_in_line:
            self._is_in_line = True
            self._look()

    def woke(self) -> None:
        """One of them sleeps no more. Where the loop is closed, that is its coroutine's end."""
        self._sleepers -= 1
        if not self._sleepers and self._timer is None and not self._loop.is_closed():
            self._rest_later()

    def _rest_later(self) -> None:
        self._has_slept = False
        self._timer = self._loop.call_later(VACANT_SECONDS, self._rest)

    def _rest(self) -> None:
        self._timer = None
        if self._has_slept and not self._sleepers:
            self._rest_later()
        elif not self._sleepers:
            self._leave()

    def gave_up(self) -> None:
        """A task waits no more, and has not got the lock: what may come for it must not wait for this loop."""
        if self._is_in_line and not self._sleepers:
            self._leave()

    def close(self) -> None:
        """Its tasks wait no more. On the loop's thread, or when the loop is closed."""
        if self._timer is not None and not self._loop.is_closed():
            self._timer.cancel()
        self._leave()

    def _leave(self) -> None:
        self._unwatch()
        self._is_in_line = False
        is_ours = self._claims()  # else whoever has ousted it takes the role away, and nobody else must
        try:
            self._reading.loop_left(self, has_role=is_ours)
        finally:
            if is_ours:
                self._claim.pop(_READS, None)

    # Reading --------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Has the loop look whether it is to read, and what; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # it is closed
            self._orphaned()

    def oust(self) -> bool:
        """Takes the reading away from the loop; False while it is in the midst of it. From any thread, once."""
        thief = object()
        return self._claim.setdefault(_READS, thief) is thief

    def forget(self) -> None:
        """In a forked child: closes the copies of the parent's sockets."""
        for watch in self._watches:
            watch.forget()

    def _look(self) -> None:
        if not self._is_in_line:
            return
        if not self._claims():
            self._unwatch()
            if self._reading.is_led_by(self):
                self._loop.call_later(VACANT_SECONDS, self._look)  # whoever ousts it is about to take the role, too
                return
            self._claim = {_READS: self}
        try:
            self._follow()
        finally:
            self._claim.pop(_READS, None)

    def _follow(self) -> None:
        """Reads what it is to read by now, and nothing else; while nobody can oust it."""
        reading = self._reading
        if not reading.may_read(self):
            self._unwatch()
        elif self._wanted is not reading.wanted:
            self._unwatch()
            self._watch()

    def _claims(self) -> bool:
        """Whether nobody can oust the loop from now on; False where somebody has. In one step."""
        return self._claim.setdefault(_READS, self) is self

    def _watch(self) -> None:
        self._wanted = self._reading.wanted  # first: what is shared from here on makes these watches old ones
        for ear in self._reading.shared_now():
            try:
                watch = self._platform.loop_watch(self._loop, ear.channel.fileno, partial(self._hear, ear))
            except OSError:  # too many files are open, or it was closed at this moment
                self._leave()
                return
            self._watches.append(watch)
            if ear.is_amid:  # whoever read it last was struck
                self._read(ear)

    def _unwatch(self) -> None:
        self._wanted = None
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.close()

    def _hear(self, ear: Ear) -> None:
        claim = self._claim
        if claim.setdefault(_READS, self) is not self:  # as `_claims`, without a call
            self._look()
            return
        try:
            is_ours = self._read(ear)
        finally:
            claim.pop(_READS, None)
        if not is_ours:
            self._look()

    def _read(self, ear: Ear) -> bool:
        """Acts on what has come; False where the loop is to read it no more."""
        self.thread = get_ident()
        try:
            return self._reading.hear_on(self, ear)
        finally:
            self.thread = 0
