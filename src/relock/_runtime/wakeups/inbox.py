"""Where one waiter hears that it must look."""

from typing import Protocol

from relock._core.pulse import Pulse


class Inbox(Protocol):
    """Where a waiter hears what it is to look for: a thread's `queue.SimpleQueue`, or what a task awaits."""

    def put(self, item: int | None, /) -> None:
        """Adds one more; any thread may, at any moment."""

    def get(self, *, timeout: float) -> int | None:
        """Waits for the next one, so many seconds at most; ``queue.Empty`` where none comes. Only a thread may."""

    def get_nowait(self) -> int | None:
        """The next one; ``queue.Empty`` where there is none."""

    def empty(self) -> bool:
        """Whether there is none."""


class TaskInbox(Inbox, Protocol):
    """The inbox of a task.

    Attributes:
        pulse: of its event loop.
    """

    @property
    def pulse(self) -> Pulse:
        """Answers whether that loop turns."""
