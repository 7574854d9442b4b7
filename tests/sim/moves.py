"""Moves of masters: behind each address there are two servers, and one follows the other until an operator acts.

A move leaves connections open, as with real servers, unless it is one that ends connections. New connections reach the
server to which the address leads by then; the address may move a little before or after the roles change.

* ``fail over``: the master's writes wait until its replica has all of them, and the two change their roles (FAILOVER).
* ``promote``: an operator makes the replica a master (REPLICAOF NO ONE), and a moment later the master its replica.
  Writes that were under way are lost.
* ``split``: the same, but for some time the old master is not demoted, and goes on taking writes.
* ``fail back``: the replica becomes a master, the old master takes its data, and then becomes the master again. Writes
  that the replica had not received are lost, and the rest comes back as it was. The address stays.
* ``fail all back``: the same at each address.
* ``lose master``: the master crashes, its replica becomes a master, and the old one comes back as the replica of that.
* ``kill normal``: a master ends all connections that have no subscription, as old Sentinels made it do.
* ``drop client``: a master ends the connections of one client.
* ``stall replica``: for a while nothing comes to the replica.
"""

from collections.abc import Callable
from functools import partial

from relock.testing._world import World
from sim.plan import FAILING_BACK, Moves
from sim.replication import ReplicatedServer

GAP_SECONDS = (0.001, 0.05)  # between two commands of the operator
SYNC_SECONDS = (0.1, 0.2)  # of a full sync: ten times a second a server checks whether its writing child has ended
SPLIT_SECONDS = (0.3, 2.0)  # until an operator demotes the old master
AWAY_SECONDS = (0.005, 0.2)  # after the sync, until the old master becomes the master again
ADDRESS_SECONDS = (-0.05, 0.3)  # from the change of the roles until the address moves
BEHIND_SECONDS = (0.0, 1.0)  # for which nothing has come to a replica when its master is failed back
DOWN_SECONDS = (0.1, 0.8)  # from a crash to its failover, and from that until the old master is back
PATIENCE_SECONDS = 1.0  # for which a FAILOVER waits for a replica
AFTERWARDS_SECONDS = 0.2  # after its demotion, in which an old master may lose connections, or go deaf
DEAF_PART = 0.3  # of the old masters, which hear nothing of the new one, and still answer clients


class Mover:
    """Mover of masters.

    Args:
        servers: the servers to which the addresses lead, in their order. A move changes this list.
        standbys: the other server of each address. A move changes this list, too.
        moves: the part of this run's plan that is about moves.
    """

    def __init__(
        self, world: World, servers: list[ReplicatedServer], standbys: list[ReplicatedServer], moves: Moves
    ) -> None:
        self._world = world
        self._servers = servers
        self._standbys = standbys
        self._moves = moves
        self._moving: set[int] = set()  # the addresses in a move
        self._is_over = False
        self._kinds: dict[str, Callable[[int], None]] = {
            "fail over": self._fail_over,
            "promote": partial(self._promote, seconds=GAP_SECONDS),
            "split": partial(self._promote, seconds=SPLIT_SECONDS),
            **dict.fromkeys(FAILING_BACK, self._fall_behind),
            "lose master": self._lose_master,
        }
        for server, standby in zip(servers, standbys, strict=True):
            standby.follow(server, moves.lag, 0.0)

    def strike(self, kind: str, number: int) -> bool:
        """Begin the move `kind` with the servers of an address; return whether it is possible."""
        old, new = self._servers[number], self._standbys[number]
        source = new.source
        is_ready = source is not None and source.is_synced and source.source is old
        if number in self._moving or not is_ready or not old.is_up or old.is_stopped or new.is_stopped:
            return False
        self._moving.add(number)
        self._kinds[kind](number)
        return True

    def stall(self, number: int, seconds: float) -> bool:
        """Let nothing come to a replica for a while; return whether there is one."""
        feeds = [*self._servers[number].feeds]
        for feed in feeds:
            feed.stall(seconds)
        return bool(feeds)

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        """Do `action` in so many seconds, unless all is healed by then."""
        self._world.after(max(0.0, seconds), lambda: None if self._is_over else action())

    def _draw(self, bounds: tuple[float, float]) -> float:
        return self._world.random.uniform(*bounds)

    # The moves ------------------------------------------------------------------------------------------------------

    def _fail_over(self, number: int) -> None:
        old, new = self._servers[number], self._standbys[number]
        old.pause_writes()
        feed = new.source
        lacks = feed.arrives_at - self._world.now if feed is not None else 0.0
        if lacks > PATIENCE_SECONDS:
            self._later(PATIENCE_SECONDS, partial(self._give_up, number))
            return
        seconds = max(0.0, lacks) + self._draw(GAP_SECONDS)
        self._later(seconds, partial(self._change_roles, old, new))
        self._lead_to(number, new, seconds)

    def _give_up(self, number: int) -> None:
        self._servers[number].go_on_writing()
        self._moving.discard(number)

    def _change_roles(self, old: ReplicatedServer, new: ReplicatedServer) -> None:
        if old.is_up and not old.is_stopped:
            new.promote()
        self._demote(old, new)
        old.go_on_writing()

    def _promote(self, number: int, seconds: tuple[float, float]) -> None:
        old, new = self._servers[number], self._standbys[number]
        new.promote()
        left = self._draw(seconds)
        self._later(left, partial(self._demote, old, new))
        self._lead_to(number, new, min(left, max(GAP_SECONDS)))

    def _fall_behind(self, number: int) -> None:
        """Let the replica fall behind for a while, and then fail back."""
        seconds = self._draw(BEHIND_SECONDS)
        self.stall(number, 2 * seconds)
        self._later(seconds, partial(self._fail_back, number))

    def _fail_back(self, number: int) -> None:
        old, new = self._servers[number], self._standbys[number]
        new.promote()
        gap, sync, away = self._draw(GAP_SECONDS), self._draw(SYNC_SECONDS), self._draw(AWAY_SECONDS)
        self._later(gap, partial(old.follow, new, self._moves.lag, sync))
        self._later(gap + sync + away, partial(self._take_back, number))

    def _take_back(self, number: int) -> None:
        old, new = self._servers[number], self._standbys[number]
        old.promote()
        new.follow(old, self._moves.lag, self._draw(SYNC_SECONDS))
        self._moving.discard(number)

    def _lose_master(self, number: int) -> None:
        old, new = self._servers[number], self._standbys[number]
        old.crash()
        seconds = self._draw(DOWN_SECONDS)
        self._later(seconds, new.promote)
        self._lead_to(number, new, seconds)
        self._later(seconds + max(ADDRESS_SECONDS) + self._draw(DOWN_SECONDS), partial(self._bring_back, old, new))

    def _bring_back(self, old: ReplicatedServer, new: ReplicatedServer) -> None:
        if not old.is_up:
            old.restart()
        old.follow(new, self._moves.lag, self._draw(SYNC_SECONDS))

    def _lead_to(self, number: int, new: ReplicatedServer, seconds: float) -> None:
        """Let the address lead to another server, in about so many seconds."""
        self._later(max(0.0, seconds + self._draw(ADDRESS_SECONDS)), partial(self._arrive_at, number, new))

    def _arrive_at(self, number: int, new: ReplicatedServer) -> None:
        old = self._servers[number]
        self._servers[number], self._standbys[number] = new, old
        self._moving.discard(number)

    def _demote(self, old: ReplicatedServer, new: ReplicatedServer) -> None:
        """Make the old master follow the new one. Then it may end connections, or hear nothing from the new one."""
        if not old.is_up or new.is_replica:
            return
        old.follow(new, self._moves.lag, self._draw(SYNC_SECONDS))
        action = self._world.random.choice([None, None, old.kill_normal, old.kill_connections])
        if action is not None:
            self._later(self._world.chance() * AFTERWARDS_SECONDS, action)
        if self._world.chance() < DEAF_PART:
            feed = old.source
            self._later(AFTERWARDS_SECONDS, lambda: feed.stall(float("inf")) if feed is not None else None)

    # The end --------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Make each address lead to a master, which the other server there follows. Connections stay."""
        self._is_over = True
        for server, standby in zip(self._servers, self._standbys, strict=True):
            server.promote()
            if standby.source is None or standby.source.source is not server:
                standby.follow(server, self._moves.lag, 0.0)
            server.go_on_writing()
            standby.go_on_writing()
