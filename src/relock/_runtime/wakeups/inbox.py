"""Inboxes of waiters: queues of reasons to look again."""

from typing import Protocol


class Inbox(Protocol):
    """Inbox of one waiter: a `queue.SimpleQueue` for a thread, or a queue that a task awaits."""

    def put(self, item: int | None, /) -> None:
        """Add an item; any thread may call this, at any moment."""

    def get(self, *, timeout: float) -> int | None:
        """Wait `timeout` seconds at most for the next item, else raise ``queue.Empty``. Only a thread may wait."""

    def get_nowait(self) -> int | None:
        """Return the next item; raise ``queue.Empty`` if there is none."""

    def empty(self) -> bool:
        """Return whether there is no item."""
