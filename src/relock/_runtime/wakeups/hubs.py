"""Hubs of one client: one for its threads, and one for each event loop that uses the client."""

import itertools
from collections import deque
from contextlib import suppress

from relock._core.hold import Hold
from relock._owner import client_name
from relock._runtime.wakeups.hub import AnyHub
from relock._runtime.wakeups.waiter import Waiter


class Hubs:
    """All hubs of one client in this process.

    Attributes:
        numbers: numbers for the names of loops' hubs.
        spare: hubs of closed loops, which a new loop may take over until `stop_spare` stops them.
    """

    def __init__(self) -> None:
        self._hubs: dict[bytes, AnyHub] = {}
        self.numbers = itertools.count(1)
        self.spare: deque[AnyHub] = deque()

    def add(self, hub: AnyHub) -> None:
        """Add a hub, until it is stopped."""
        self._hubs[hub.client.encode()] = hub

    def all(self) -> list[AnyHub]:
        """Return all hubs."""
        return list(self._hubs.values())

    def waiter(self, owner: bytes) -> Waiter | None:
        """Return the waiter `owner`, if it waits here."""
        hub = self._hubs.get(client_name(owner))
        return None if hub is None else hub.waiters.get(owner)

    def waiters(self) -> list[Waiter]:
        """Return all waiters."""
        return [waiter for hub in self.all() for waiter in list(hub.waiters.values())]

    @property
    def are_attended(self) -> bool:
        """True while heartbeats are needed for one of the hubs."""
        return any(hub.is_attended for hub in self.all())

    def look_again(self, owner: bytes) -> None:
        """Make the waiter `owner` look again, if it waits here."""
        waiter = self.waiter(owner)
        if waiter is not None:
            waiter.wake()

    def forget(self, owner: bytes, *, served: Hold | None = None) -> None:
        """Note that the waiter `owner` no longer waits, as `Hub.forget` does."""
        hub = self._hubs.get(client_name(owner))
        if hub is not None:
            hub.forget(owner, served=served)

    def wake_all(self) -> None:
        """Make every waiter look again."""
        for waiter in self.waiters():
            waiter.wake()

    def tidy(self) -> None:
        """Have the channels on a Cluster follow their slots, and unused ones given up; with each heartbeat."""
        for hub in self.all():
            if hub.channels is not None:
                hub.channels.tidy()

    def catch_up(self, until: float) -> None:
        """Wait, until `until` at most, for all messages to waiters that the masters have published by now."""
        for hub in self.all():
            hub.catch_up(until)

    def stop_spare(self) -> None:
        """Stop the hubs of closed loops: masters would count their unread subscriptions as listening."""
        with suppress(IndexError):
            while True:
                self.stop(self.spare.popleft())

    def stop(self, hub: AnyHub) -> None:
        """Stop the hub of an event loop."""
        hub.stop()
        self._hubs.pop(hub.client.encode(), None)
