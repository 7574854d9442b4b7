"""Queue of callers that wait: the first that came has the first turn.

Nothing is handed over. A token wakes a caller, which then looks for itself whether it can go on. So an exception
between any two instructions loses no more than the place of the caller that it strikes. Each step is one operation of a
deque, or of a queue of tokens. `threading.Event` and `threading.Condition` contain a lock of Python's, which such an
exception could leave taken.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from weakref import ref

from attrs import define

from relock._core.effects import Clock
from relock._core.hold import FOREVER
from relock._core.host import TokenQueue
from relock._core.quorum import NEVER
from relock._runtime.platform import Platform

Waiting = Generator[float, None, bool]
"""Wait of one caller: it yields for how long to wait for a token, again and again, and returns what came of it."""


@define(eq=False, repr=False)
class Entry:
    """Entry of one caller.

    Attributes:
        tokens: gets a token for each reason to look.
        caller: the thread or task that waits, if other callers must know it.
        until: our time after which `WaitQueue.first` removes the entry, even if the caller never leaves.
        is_waiting: False once the caller has left.
    """

    tokens: TokenQueue
    caller: object = None
    until: float = FOREVER
    is_waiting: bool = True


class WaitQueue:
    """Queue of callers that wait, each by its `Entry`.

    Attributes:
        waiting: weak references to the entries. `first` removes those of callers that have left. If an exception keeps
            a caller from leaving, its entry dies with the caller's frame.
    """

    def __init__(self) -> None:
        self.waiting: deque[ref[Entry]] = deque()

    def join(self, entry: Entry) -> None:
        """Put an entry at the end of the queue."""
        self.waiting.append(ref(entry))

    def leave(self, *entries: Entry) -> None:
        """Take entries out, and wake the first of the others, in case its token went to one of these."""
        for entry in entries:
            entry.is_waiting = False
        self.wake_first()

    def first(self, now: float = NEVER) -> Entry | None:
        """Return the first entry that still waits at `now`; remove the entries before it, which may be thousands."""
        while True:
            try:
                reference = self.waiting[0]
            except IndexError:
                return None
            entry = reference()
            if entry is not None and entry.is_waiting and entry.until >= now:
                return entry
            with suppress(ValueError):  # another thread has removed it
                self.waiting.remove(reference)

    def wake_first(self) -> None:
        """Have the first caller look."""
        first = self.first()
        if first is not None and first.tokens.empty():
            first.tokens.put(None)

    def wake_all(self) -> None:
        """Have every caller look."""
        for entry in self:
            if entry.tokens.empty():  # else the caller has yet to look
                entry.tokens.put(None)

    def wait_for(self, is_so: Callable[[], bool], until: float, platform: Platform) -> bool:
        """Have the calling thread wait until `is_so()` is true, until `until` at most; return whether it is.

        The code that makes `is_so()` true must call `wake_all` afterwards.
        """
        tokens: SimpleQueue[None] = platform.queue()
        return wait_out(self.looks(is_so, until, platform.clock, tokens), tokens)

    def looks(self, is_so: Callable[[], bool], until: float, clock: Clock, tokens: TokenQueue) -> Waiting:
        """Yield for how long to wait for a token before the next look, as `wait_for`; return whether `is_so()`."""
        entry = Entry(tokens)
        try:
            self.join(entry)  # Mark, then look: a change after the look wakes the caller
            while not is_so():
                left = until - clock()
                if left <= 0:
                    return False
                yield left
            return True
        finally:
            self.leave(entry)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries that wait, the first one first."""
        for reference in self.waiting.copy():
            entry = reference()
            if entry is not None and entry.is_waiting:
                yield entry


def wait_out(waiting: Waiting, tokens: "SimpleQueue[None]") -> bool:
    """Have the calling thread wait as `waiting` says, for tokens that come to `tokens`; return what it returns."""
    try:
        while True:
            seconds = next(waiting)
            with suppress(Empty):
                tokens.get(timeout=seconds)
    except StopIteration as end:
        return bool(end.value)
    finally:
        waiting.close()
