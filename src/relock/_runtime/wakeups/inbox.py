"""Inboxes of waiters: queues by which they hear that they must look."""

from typing import Protocol


class Inbox(Protocol):
    """Inbox of one waiter: a `queue.SimpleQueue` for a thread, or a queue that a task awaits."""

    def put(self, item: int | None, /) -> None:
        """Add an item; any thread may call this, at any moment."""

    def get(self, *, timeout: float) -> int | None:
        """Wait for the next item, `timeout` seconds at most; ``queue.Empty`` if none comes. Only a thread may wait."""

    def get_nowait(self) -> int | None:
        """Return the next item; ``queue.Empty`` if there is none."""

    def empty(self) -> bool:
        """Return whether there is no item."""
