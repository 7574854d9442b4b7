"""The fan-out over a Cluster: each call goes to the node that serves its lock, and on to where that one sends it."""

from collections import defaultdict
from collections.abc import Sequence

from relock._core.effects import Answer, Ask
from relock._errors import ConfigurationError
from relock._runtime.masters.cluster import Cluster
from relock._runtime.masters.cluster_parts import HOPS_MAX, Part, Routed
from relock._runtime.masters.connections import Connection
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.masters.fan_out import FanOut
from relock._runtime.masters.round import Round
from relock._runtime.platform import Platform
from relock._scripts import Call

Connections = defaultdict[Part, list[Connection]]  # the one that a part goes over, while that is sound


class ClusterFanOut(FanOut):
    """Fan-out where the only master is a cluster."""

    def __init__(self, cluster: Cluster, platform: Platform) -> None:
        super().__init__((cluster,), platform)
        self._cluster = cluster

    def ask(self, ask: Ask, *, strict: bool, is_call: bool = True) -> list[Answer]:
        """Ask as `FanOut.ask` does; calls that a node sends on are sent on, while there is time.

        A request that is no call may go to several nodes at once. A call is about one lock, which is on one node: so no
        call has connections to one node while it waits in the line for another.
        """
        try:
            self._cluster.look(ask.until)
        except NETWORK_ERRORS as error:
            return [(self._cluster.failed(error, sent=False),) * len(ask.calls)]
        except ConfigurationError as error:
            if strict:
                raise
            return [(self._cluster.misconfigured(error),) * len(ask.calls)]
        routed = Routed(self._cluster, ask.calls)
        for _ in range(HOPS_MAX):
            connections: Connections = defaultdict(list)
            try:
                self._exchange(routed.parts, routed.calls, connections, ask.until, is_call=is_call)
            except BaseException:  # an interrupt; see `FanOut.ask`
                for connection in [one for some in connections.values() for one in some]:
                    connection.close()
                raise
            if not routed.go_on() or self._clock() >= ask.until:
                break
        return [routed]

    def _exchange(
        self,
        parts: Sequence[Part],
        calls: Sequence[Call],
        connections: Connections,
        until: float,
        *,
        is_call: bool,
    ) -> None:
        """Write to all that are connected, connect to the others and write to them, and only then read."""
        now = self._clock()
        unconnected = []
        for part in parts:
            part.round = Round(part.calls_of(calls), until, now, part.no_reply_yet)
            shard = part.shard
            connection = None
            if not shard.pool.line.waiting or not is_call:
                connection = shard.pool.check_out(now) if is_call else shard.pool.check_out_own(now)
            if connection is None:
                unconnected.append(part)
            else:
                connections[part].append(connection)
                _send(part, connections[part])
        for i, part in enumerate(unconnected):
            if i and self._clock() >= until:  # those before took all the time that there was
                part.round.fail(part.shard, part.shard.unconnected())
            else:
                self._get((part.shard,), part.round, connections[part], strict=False, is_call=is_call)
                _send(part, connections[part])
        for part in parts:
            if connections[part]:
                self._read_one(part.round, connections[part])
        for part in parts:
            self._give_back(part.round, connections[part])


def _send(part: Part, connections: list[Connection]) -> None:
    """Send the calls of a part, if there is a connection."""
    round_ = part.round
    for connection in connections.copy():
        round_.missing = 1
        try:
            if part.asking:
                connection.request_asking(round_)
            else:
                connection.request(round_)
        except NETWORK_ERRORS as error:
            connections.remove(connection)
            round_.missing = 0
            round_.fail(part.shard, part.shard.pool.broke(connection, error))
