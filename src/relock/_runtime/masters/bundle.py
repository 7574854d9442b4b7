"""Connections of one round to several masters, and the poller that shows which of them can be read."""

import select
from collections.abc import Sequence

from relock._runtime.masters.connections import Connection
from relock._runtime.platform import Platform


class Bundle:
    """Poller that keeps the connections of the last round registered: mostly, the next round has the same ones.

    One caller at a time uses a bundle. Between rounds, a connection in it may have been closed.

    Attributes:
        poll: the method `poll` of the poller, as of `select.poll`.
        by_fileno: the connections that are polled.
    """

    __slots__ = ("_poller", "by_fileno", "poll")

    by_fileno: dict[int, Connection]

    def __init__(self, platform: Platform) -> None:
        self._poller = platform.poller()
        self.poll = self._poller.poll
        self.by_fileno = {}

    def take(self, connections: Sequence[Connection]) -> None:
        """Poll these connections from here on, and no others."""
        before = self.by_fileno
        if [*before.values()] == connections:
            return
        self.by_fileno = wanted = {connection.channel.fileno: connection for connection in connections}
        for fileno in before.keys() - wanted.keys():
            self._poller.unregister(fileno)
        for fileno in wanted:
            self._poller.register(fileno, select.POLLIN)

    def drop(self, fileno: int) -> None:
        """Stop polling a connection that broke."""
        del self.by_fileno[fileno]
        self._poller.unregister(fileno)
