"""Foreground of a loop where the only master is a Cluster: each call goes to the node that serves its lock."""

import asyncio
from collections.abc import Iterable
from functools import partial
from itertools import chain

from relock._core.effects import Answer, Ask
from relock._errors import ConfigurationError
from relock._runtime.aio.foreground import Foreground
from relock._runtime.aio.link import IN_FLIGHT_MAX, Link
from relock._runtime.aio.loop_round import LoopRound
from relock._runtime.aio.on_thread import on_thread
from relock._runtime.masters.cluster import Cluster
from relock._runtime.masters.cluster_parts import HOPS_MAX, Part, Routed
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.masters.master import Master
from relock._runtime.session.session import Session


class ClusterForeground(Foreground):
    """Foreground with links to each node of a Cluster, which are made when they are first needed."""

    def __init__(self, session: Session, loop: asyncio.AbstractEventLoop, stall_limit: float, cluster: Cluster) -> None:
        super().__init__(session, loop, stall_limit)
        self._cluster = cluster
        self._links_of: dict[Master, list[Link]] = {}

    def _make_lanes(self) -> list[list[Link]]:
        return []

    def _room(self) -> int:
        """Return the room of the node that has the least: a task that comes may be about to send to any node."""
        rooms = [max([link.room for link in links]) for links in self._links_of.values()]
        return min(rooms, default=IN_FLIGHT_MAX) - self._line.coming

    async def ask(self, ask: Ask) -> list[Answer]:
        """Ask the nodes that serve the locks; calls that a node redirects are sent on, while there is time."""
        if not ask.ends:
            self.check_open()
        cluster = self._cluster
        try:
            if not cluster.knows_slots:
                await on_thread(self.session.platform, self.loop, partial(cluster.look, ask.until))
        except NETWORK_ERRORS as error:
            return [(cluster.failed(error, sent=False),) * len(ask.calls)]
        except ConfigurationError as error:
            if not ask.ends:
                raise
            return [(cluster.misconfigured(error),) * len(ask.calls)]
        routed = Routed(cluster, ask.calls)
        for _ in range(HOPS_MAX):
            links = [self._send_part(part, routed, ask) for part in routed.parts]
            for part in routed.parts:
                await self._answers_to(part.round)  # type: ignore[arg-type]
            if not ask.ends:
                self._raise_mistakes(links)
            if not routed.go_on() or self._clock() >= ask.until:
                break
        return [routed]

    def _send_part(self, part: Part, routed: Routed, ask: Ask) -> Link:
        """Send a part of the calls to its node; return the link over which the answers come."""
        own = ask._replace(calls=tuple(part.calls_of(routed.calls)), is_certain=None, only=None)
        link, done = self._link_for(part.shard), self.loop.create_future()
        round_ = LoopRound(own, self._clock(), part.no_reply_yet, done=done, links=(link,), spared=0)
        part.round = round_
        round_.asking = part.asking
        round_.missing = 1
        link.look(round_.sent_at)
        link.ask(round_)
        return link

    def _link_for(self, shard: Master) -> Link:
        """Return the link to a node that has the least to do."""
        links = self._links_of.get(shard)
        if links is None:
            self._leave_retired()
            links = self._links_of[shard] = [self._link_to(shard) for _ in range(self._lanes_count)]
        return min(links, key=lambda link: link.load)

    def _leave_retired(self) -> None:
        """Close the links to nodes that serve nothing any more, and owe nothing."""
        serving = set(self._cluster.shards.copy().values())
        for shard in [shard for shard in self._links_of if shard not in serving]:
            if not any(link.load for link in self._links_of[shard]):
                for link in self._links_of.pop(shard):
                    link.close()

    def _links(self) -> Iterable[Link]:
        return chain.from_iterable(self._links_of.values())
