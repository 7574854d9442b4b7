"""Replication between virtual servers: what a master writes and publishes comes to its replicas, in order, and late.

As Redis does it: whoever is subscribed at a replica hears what was published at the master, also what nobody heard
there. What is under way when a replica becomes a master itself is lost.
"""

from functools import partial
from math import log
from typing import Any, Protocol

from relock.testing._master import Message, Snapshot
from relock.testing._world import World

RETRY_SECONDS = 0.1  # until a replica tries again to reach its master


class Replicated(Protocol):
    """A server, as what goes between it and another one sees it."""

    feeds: "dict[Feed, None]"
    is_stopped: bool
    is_up: bool
    lost_at: float
    master: Any
    world: World

    @property
    def is_replica(self) -> bool:
        """Whether it follows another one."""

    def replicate(self, messages: list[Message]) -> None:
        """Sends its replicas what was written or published."""

    def take_over(self, feed: "Feed") -> None:
        """Takes all that the master holds."""

    def follow(self, master: Any, lag: float, seconds: float) -> None:
        """Becomes a replica of `master`, in so many seconds."""


class Feed:
    """What one replica gets from its master.

    Args:
        source: the master.
        target: the replica.
        lag: for how many seconds it is under way on average.

    Attributes:
        is_synced: all that the master holds has come, and nothing is missing since.
        arrives_at: the true time at which the last of it arrives.
    """

    def __init__(self, source: Replicated, target: Replicated, lag: float) -> None:
        self.source = source
        self.target = target
        self.lag = lag
        self.is_synced = False
        self.arrives_at = 0.0
        self._is_cut = False

    def begin(self) -> None:
        """The replica takes what its master holds; or tries again, as long as that is none or does not answer."""
        source, world = self.source, self.source.world
        if self._is_cut:
            return
        if not source.is_up or source.is_stopped or source.is_replica:
            world.after(RETRY_SECONDS, self.begin)
            return
        self.target.take_over(self)
        self.is_synced = True
        self.arrives_at = world.now
        source.feeds[self] = None
        source.master.replicate = source.replicate

    def begin_again(self) -> None:
        """The connection between the two breaks, and the master may have another history: all is taken anew."""
        if not self._is_cut:
            self.cut()
            self.target.follow(self.source, self.lag, RETRY_SECONDS)

    def stall(self, seconds: float) -> None:
        """For a while nothing arrives; what is sent meanwhile comes afterwards."""
        self.arrives_at = max(self.arrives_at, self.source.world.now + seconds)

    def send(self, messages: list[Message]) -> None:
        """The master has written or published something."""
        world = self.source.world
        self.arrives_at = max(self.arrives_at, world.now - self.lag * log(1.0 - world.chance()))
        world.at(self.arrives_at, partial(self._arrive, self.source.master.snapshot(), messages))

    def _arrive(self, snapshot: Snapshot, messages: list[Message]) -> None:
        if not self._is_cut and self.target.is_up:
            self.target.master.follow(snapshot, messages)

    def cut(self) -> None:
        """It ends; what is under way is lost."""
        self._is_cut = True
        self.is_synced = False
        self.source.feeds.pop(self, None)
        if not self.source.feeds:
            self.source.master.replicate = None
