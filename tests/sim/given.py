"""Holds that each server has had: by these the referee judges runs in which masters move.

Replication is late, so a server that becomes a master may lack holds that the one before it gave. Then, without a
restart guard, two clients may believe that they have a lock, each by one of two sets of data: relock promises nothing
there. With a guard, that may happen only if two servers behind one address took writes at the same time. But no client
may ever believe in a hold that no quorum gave, nor may two believe in holds that one set of data has had.
"""

from collections import defaultdict

from attrs import define, field

from relock._core.hold import Hold
from sim.replication import ReplicatedServer

NEVER = float("-inf")

Data = tuple[ReplicatedServer, int]
"""A server, and which of its sets of data: `epoch` counts how often they were replaced or lost."""


@define
class Given:
    """The holds that were on the masters after each script.

    Args:
        lock: the key of the holds.
        servers: the servers to which the addresses lead.
        standbys: the other server of each address.
        is_guarded: whether there is a restart guard.
        longest: the longest lease.
    """

    lock: bytes
    servers: list[ReplicatedServer]
    standbys: list[ReplicatedServer]
    is_guarded: bool
    longest: float
    _found: defaultdict[bytes, defaultdict[int, set[Data]]] = field(
        factory=lambda: defaultdict(lambda: defaultdict(set))
    )
    _split_at: defaultdict[int, float] = field(factory=lambda: defaultdict(lambda: NEVER))  # by address

    def __attrs_post_init__(self) -> None:
        for server in [*self.servers, *self.standbys]:
            server.tell = self._look

    def _look(self, server: ReplicatedServer) -> None:
        """Note the holds of this server, on which a script has just run."""
        if server.is_replica:
            return
        behind = self.servers[server.number], self.standbys[server.number]
        if all(one.is_up and not one.is_replica for one in behind):
            self._split_at[server.number] = server.world.now
        for owner in server.master.contents(self.lock) or ():
            self._found[owner][server.number].add((server, server.epoch))

    def places(self, hold: Hold) -> int:
        """Return the number of addresses that have had this hold on one of their masters."""
        return len(self._found[hold.owner])

    def was_split(self, since: float) -> bool:
        """Return whether two servers behind one address took writes at the same time after the true time `since`."""
        return any(at >= since for at in self._split_at.values())

    def may_both_be(self, one: Hold, other: Hold, since: float) -> bool:
        """Return whether relock's promises let two holds be valid at the same time, the earlier one since `since`."""
        return any(self._may_both_be_at(number, one, other, since) for number in range(len(self.servers)))

    def _may_both_be_at(self, number: int, one: Hold, other: Hold, since: float) -> bool:
        mine, theirs = self._found[one.owner][number], self._found[other.owner][number]
        if not mine or not theirs:
            return False
        are_elsewhere = any(a is not b for a, _ in mine for b, _ in theirs)
        if are_elsewhere and self._split_at[number] >= since:
            return True
        return not self.is_guarded and (mine.isdisjoint(theirs) or self._has_lost(theirs, since))

    def _has_lost(self, data: set[Data], since: float) -> bool:
        """Return whether a server became a master without all its master's data, a lease before `since` or later."""
        return any(server.lost_at >= since - self.longest for server, _ in data)
