"""Reader of a client's subscriptions on an event loop, while tasks of the loop wait.

`relock._runtime.wakeups.reading` says which of the threads and loops that wait reads for all of them. A loop reads only
while no thread waits, because a thread that waits does nothing else, and a loop may stand still. A loop is known there
from the moment at which its first task sleeps until a moment after the last one has woken: tasks that hand a lock to
each other sleep thousands of times in a second. If tasks of another loop wait, the loop leaves when its last one wakes.

A reader that finds that the loop stands still ends the loop's term without its help. That is safe between two messages.
So the loop claims its term before it reads one, in one step that no other thread can take as well.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from threading import get_ident

from relock._runtime.net.loop_watch import LoopWatch
from relock._runtime.platform import Platform
from relock._runtime.wakeups.ear import Ear
from relock._runtime.wakeups.reading import VACANT_SECONDS, Reading
from relock._runtime.wakeups.term import Term


class LoopReader:
    """Reader on one loop. `wake`, `forget`, `is_idle` and `thread` are for any thread.

    All else is for the loop's thread, or for a thread that finds the loop closed.

    Args:
        orphaned: called when the loop turns out to be closed.

    Attributes:
        sleepers: how many tasks of the loop sleep until something comes for them.
        thread: the identifier of the loop's thread while that acts on what it has read; else 0.
    """

    sleepers: int
    thread: int

    def __init__(
        self, platform: Platform, loop: asyncio.AbstractEventLoop, reading: Reading, orphaned: Callable[[], object]
    ) -> None:
        self.thread = 0
        self._platform = platform
        self._loop = loop
        self._reading = reading
        self._orphaned = orphaned
        self.sleepers = 0
        self._has_slept = False  # some task, since the timer was set
        self._is_known = False
        self._timer: asyncio.TimerHandle | None = None
        self._wanted: object = None  # for which of the reading's values the watches are made; None: there are none
        self._watches: list[LoopWatch] = []
        self._ears: tuple[Ear, ...] = ()  # what these watch
        self._term: Term | None = None  # and for which term
        self._is_called = False  # it is about to look

    # Tasks ----------------------------------------------------------------------------------------------------------

    def sleeps(self) -> None:
        """Note that one more task sleeps."""
        self.sleepers += 1
        self._has_slept = True
        if not self._is_known:
            self._is_known = True
            self._look()

    def woke(self) -> None:
        """Note that one task sleeps no more. On a closed loop, that is the end of its coroutine."""
        self.sleepers -= 1
        if self.sleepers or self._loop.is_closed():
            return
        if self._reading.has_other_loops(self):
            self._leave()  # this one may compute now, or end
        elif self._timer is None:
            self._rest_later()

    def _rest_later(self) -> None:
        self._has_slept = False
        self._timer = self._loop.call_later(VACANT_SECONDS, self._rest)

    def _rest(self) -> None:
        self._timer = None
        if self._has_slept and not self.sleepers:
            self._rest_later()
        elif not self.sleepers:
            self._leave()

    def gave_up(self) -> None:
        """Leave if no task sleeps: one waits no more, without the lock, and a message for it must not wait here."""
        if self._is_known and not self.sleepers:
            self._leave()

    def close(self) -> None:
        """Read no more. Called on the loop's thread, or when the loop is closed."""
        if self._timer is not None and not self._loop.is_closed():
            self._timer.cancel()
        self._leave()

    def _leave(self) -> None:
        self._unwatch()
        self._is_known = False
        self._reading.loop_left(self)

    # Reading --------------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """True if no task of the loop sleeps, or the loop is closed."""
        return not self.sleepers or self._loop.is_closed()

    def wake(self) -> None:
        """Have the loop look whether it is to read, and what; from any thread, and once, however often it is called."""
        if self._is_called and not self._loop.is_closed():
            return
        try:
            self._is_called = True  # Mark, then look: `_look` takes it back first
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # it is closed
            self._orphaned()
        except BaseException:
            self._is_called = False
            raise

    def forget(self) -> None:
        """Close the copies of the parent's sockets in a forked child."""
        for watch in self._watches:
            watch.forget()

    def _look(self) -> None:
        self._is_called = False
        if not self._is_known:
            return
        reading = self._reading
        term = reading.try_to_lead(self)
        if term is self._term and self._wanted is reading.wanted:
            return
        self._unwatch()
        if term is not None and term.try_claim(self):
            self._term = term
            try:
                self._watch(term)
            finally:
                term.free(self)
        elif term is not None:
            self._loop.call_later(VACANT_SECONDS, self.wake)  # somebody is ending it, or was struck as it did

    def _watch(self, term: Term) -> None:
        self._wanted = self._reading.wanted  # first: what is shared from here on makes these watches old ones
        self._ears = tuple(self._reading.shared_now())
        for ear in self._ears:
            hear = partial(self._hear, term, ear)
            try:
                self._watches.append(self._platform.loop_watch(self._loop, ear.channel.fileno, hear))
            except OSError:  # too many files are open, or it was closed at this moment
                self._leave()
                return
            if ear.is_amid:  # whoever read it last was struck
                self._read(term, ear)

    def _unwatch(self) -> None:
        self._wanted, self._term, self._ears = None, None, ()
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.close()

    def hear_first(self) -> None:
        """Act on the messages that have come by now, before the loop turns to anything else."""
        term = self._term
        if term is not None:
            for ear in self._ears:
                self._hear(term, ear)

    def _hear(self, term: Term, ear: Ear) -> None:
        if not term.try_claim(self):
            self._unwatch()
            self._look()
            return
        try:
            is_ours = self._read(term, ear)
        finally:
            term.free(self)
        if not is_ours:
            self._unwatch()
            self._look()

    def _read(self, term: Term, ear: Ear) -> bool:
        """Act on what has come; return False if the loop is to read it no more."""
        self.thread = get_ident()
        try:
            return self._reading.hear_on(term, ear)
        finally:
            self.thread = 0
