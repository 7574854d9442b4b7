"""Replication between virtual servers: the writes and messages of a master come to its replicas in order, and late.

As in Redis, a subscriber of a replica hears all that was published at the master, even if the master had no subscriber.
Writes that are under way when a replica becomes a master itself are lost.
"""

from collections.abc import Sequence
from functools import partial
from math import log
from typing import Any

from relock.testing._master import NO_REPLID, Message, Snapshot
from relock.testing._server import SCRIPTED, Peer, Server

RETRY_SECONDS = 0.1  # until a replica tries again to reach its master


class Feed:
    """Feed of one replica from its master.

    Args:
        source: the master.
        target: the replica.
        lag: seconds for which data are under way on average.

    Attributes:
        is_synced: whether all data of the master have come, and none have been missed since.
        arrives_at: the true time at which the last data arrive.
    """

    def __init__(self, source: "ReplicatedServer", target: "ReplicatedServer", lag: float) -> None:
        self.source = source
        self.target = target
        self.lag = lag
        self.is_synced = False
        self.arrives_at = 0.0
        self._is_cut = False

    def begin(self) -> None:
        """Take the data of the master. While that is no master or does not answer, try again."""
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
        """Take all data anew, after the connection broke: the master may have another history."""
        if not self._is_cut:
            self.cut()
            self.target.follow(self.source, self.lag, RETRY_SECONDS)

    def stall(self, seconds: float) -> None:
        """Let nothing arrive for a while; data that are sent meanwhile come afterwards."""
        self.arrives_at = max(self.arrives_at, self.source.world.now + seconds)

    def send(self, messages: list[Message]) -> None:
        """Send writes and messages of the master to the replica."""
        world = self.source.world
        self.arrives_at = max(self.arrives_at, world.now - self.lag * log(1.0 - world.chance()))
        world.at(self.arrives_at, partial(self._arrive, self.source.master.snapshot(), messages))

    def _arrive(self, snapshot: Snapshot, messages: list[Message]) -> None:
        if not self._is_cut and self.target.is_up:
            self.target.master.follow(snapshot, messages)

    def cut(self) -> None:
        """End the feed; data that are under way are lost."""
        self._is_cut = True
        self.is_synced = False
        self.source.feeds.pop(self, None)
        if not self.source.feeds:
            self.source.master.replicate = None


class ReplicatedServer(Server):
    """A virtual server that may follow another one, and be followed. It begins as a master.

    Attributes:
        epoch: how often its data have been replaced, or lost.
        source: the feed from its master; None while it is a master itself.
        feeds: the feeds to its replicas.
        lost_at: the true time at which it last became a master without all the data of its own master.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.epoch = 0
        self.source: Feed | None = None
        self.feeds: dict[Feed, None] = {}
        self.lost_at = float("-inf")
        self._is_write_paused = False
        self._paused: set[Peer] = set()  # connections on which a script waits until writes go on

    def crash(self) -> None:
        """Crash the server, which loses its replicas."""
        self._is_write_paused = False
        self._paused.clear()
        super().crash()

    def restart(self, snapshot: Any = None) -> None:
        """Restart the server as a master, whose data the replicas take."""
        self._follow(None)
        super().restart(snapshot)
        self.epoch += 1
        for feed in list(self.feeds):
            feed.begin_again()

    def _is_held_up(self, raw: Peer, commands: Sequence[Sequence[bytes]]) -> bool:
        """Return whether commands must wait: a pause of the writes holds them up, too."""
        return super()._is_held_up(raw, commands) or (self._is_write_paused and self._waits(raw, commands))

    def _waits(self, raw: Peer, commands: Sequence[Sequence[bytes]]) -> bool:
        """Return whether a pause of the writes holds these commands up: scripts, and commands after a script."""
        if any(command[0].upper() in SCRIPTED for command in commands):
            self._paused.add(raw)
        return raw in self._paused

    @property
    def is_replica(self) -> bool:
        """Return whether the server follows another one."""
        return self.source is not None

    def follow(self, master: "ReplicatedServer", lag: float, sync_seconds: float) -> None:
        """Follow a master, as by REPLICAOF: refuse writes now, and have the master's data later. Connections stay.

        Args:
            master: the server that it follows.
            lag: seconds that the master's writes and messages are under way on average.
            sync_seconds: seconds until the master's data replace its own.
        """
        self._follow(Feed(master, self, lag))
        self.world.after(sync_seconds, partial(self._begin, self.source))

    def _begin(self, feed: Feed | None) -> None:
        if feed is not None:
            feed.begin()

    def promote(self) -> None:
        """Become a master, as by REPLICAOF NO ONE, with the data so far and a replication id of its own."""
        if self.source is not None:
            if self.source.arrives_at > self.world.now:
                self.lost_at = self.world.now
            self._follow(None)
            self.master.have_data_of(self._new_incarnation(), self.master.replid)

    def _follow(self, feed: Feed | None) -> None:
        if self.source is not None:
            self.source.cut()
        self.source = feed
        self.master.is_replica = feed is not None

    def take_over(self, feed: Feed) -> None:
        """Take all data of its master, in place of its own data."""
        self.epoch += 1
        self.lost_at = max(self.lost_at, feed.source.lost_at)  # it lacks the data that its master lacks
        self.master.have_data_of(feed.source.master.replid, NO_REPLID)
        self.master.follow(feed.source.master.snapshot())

    def replicate(self, messages: list[Message]) -> None:
        """Send the newest writes and messages to the replicas."""
        for feed in self.feeds:
            feed.send(messages)

    def pause_writes(self) -> None:
        """Pause writes, as by CLIENT PAUSE WRITE: scripts wait, and so do later commands on their connections."""
        self._is_write_paused = True

    def go_on_writing(self) -> None:
        """Carry out the commands that have waited, even if this server is a replica by now."""
        self._is_write_paused = False
        self._paused.clear()
        if not self.is_stopped:
            self.go_on()
