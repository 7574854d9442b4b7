"""A Redis Cluster as one master: each call goes to the node that serves the slot of its lock.

All keys of a lock are in one slot, so one node decides on the lock, and the whole Cluster counts as one master. This
module knows the nodes, and which node serves which slot. `relock._core.routing` sends each call to its node.

From Redis 7.0 on, waiters listen on *sharded channels*, which are in the slots of their locks: see
`relock._runtime.wakeups.channels`. On an older Cluster they listen at any node: ``PUBLISH`` reaches subscribers on
every node, but returns the count of one node. So there, the scripts do not skip waiters that seem not to listen.
"""

import itertools
import logging
import re
import socket
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions as redis_errors
from redis.crc import key_slot

from relock._core.asking import Panel
from relock._core.effects import Answer, Ask, Exchange, Failure
from relock._core.master_facts import UNKNOWN, Back, Down, MasterFacts, Moved, News, Problem, RoundTrip, Seen, Stepped
from relock._core.routing import Routed
from relock._errors import ConfigurationError
from relock._keys import LockKeys, name_channel
from relock._options import ClientOptions
from relock._runtime.masters.errors import NETWORK_ERRORS, protocol_errors
from relock._runtime.masters.master import Master
from relock._runtime.masters.opener import MasterListener, Opener
from relock._runtime.net.failures import failure_of
from relock._runtime.net.green import check_threads
from relock._runtime.net.node import Node, Place, Seeds
from relock._runtime.net.raw_connection import RawConnection
from relock._runtime.net.slots import SLOTS, Range, knows_shard_channels, ranges_of, redirection, slot_of
from relock._runtime.platform import Platform
from relock._scripts import Call, Prepared

logger = logging.getLogger("relock.masters")

REFRESH_SECONDS_MIN = 0.1  # between two questions which node serves which slot
_MAY_HAVE_CHANGED = re.compile("MOVED|CLUSTERDOWN|MASTERDOWN|READONLY|TRYAGAIN:")


class OpenerToAny(Opener):
    """Opener of subscriptions to any node of a cluster: a message on one node reaches subscribers on all.

    Attributes:
        listeners: the connections of subscriptions, each with the address of its node.
    """

    introduction = ()

    def __init__(
        self, node: Node, options: ClientOptions, platform: Platform, cluster: "Cluster", listener: MasterListener
    ) -> None:
        super().__init__(node, MasterFacts(0, node.address, options), options, platform, listener)
        self._cluster = cluster
        self._turns = itertools.count()
        self.listeners: dict[weakref.ref[RawConnection], str] = {}

    def raw_connection(self) -> RawConnection:
        """Return a new connection to a node that is up, if any is: each time to another one."""
        check_threads()
        nodes = self._cluster.nodes()
        node = nodes[next(self._turns) % len(nodes)]
        raw = node.raw_connection(self.node_timeout)
        listeners = self.listeners
        listeners[weakref.ref(raw, lambda gone: listeners.pop(gone, None))] = node.address
        return raw

    def introduce(self, replies: Sequence[Any]) -> bytes:  # noqa: ARG002
        """Return `UNKNOWN`: a cluster has no incarnation."""
        return UNKNOWN


class Cluster(Master, Panel[Master]):
    """A cluster, as one master, and the panel of that master alone: each call goes to the node that serves its lock.

    Attributes:
        shards: the nodes, by the host and port that the cluster names.
        is_sharded: True if waiters listen on sharded channels, as all nodes know these; None before that is known.
    """

    is_cluster = True
    opener: OpenerToAny

    def __init__(
        self, node: Node, seeds: Seeds, options: ClientOptions, platform: Platform, listener: MasterListener
    ) -> None:
        if options.guard_ms:
            raise ConfigurationError(
                f"restart_guard={options.restart_guard} can't be had with a Cluster: the marker of a restart would be "
                "in another slot than the locks; leave it out, and see the documentation's page on clusters",
                option="restart_guard",
            )
        Master.__init__(self, OpenerToAny(node, options, platform, self, listener))
        Panel.__init__(self, (self,))
        self.exchange = self._exchange
        self.shards: dict[Place, Master] = {}
        self.is_sharded: bool | None = None
        self._seeds = seeds
        self._sources = list(seeds.nodes)  # the nodes to ask, in this order, which node serves which slot
        self._slots: list[Master | None] = []  # the node of each slot; empty until they are known
        self._stale = True
        self._looked_at = float("-inf")

    @property
    def servers(self) -> Sequence[Master]:
        """Nodes that serve slots, or did when a node last named them."""
        return list(self.shards.copy().values())

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that are not known to be down; if there are none, all nodes that may be asked."""
        return [shard.opener.node for shard in self.servers if shard.facts.down is None] or self._sources

    # Which node serves what -----------------------------------------------------------------------------------------

    def shard_of(self, call: Call) -> Master | Failure:
        """Return the node that serves the call's lock, or the `Failure` if no node is known to serve it."""
        slot = slot_of(call.keys)
        shard = self._slots[slot]
        if shard is None:
            self._stale = True
            return Failure(self.address, f"CLUSTERDOWN: no node serves slot {slot}", sent=False)
        return shard

    def node_of(self, keys: LockKeys) -> Master | None:
        """Return the node that serves a lock, as far as that is known."""
        return self._slots[slot_of(keys)] if self._slots else None

    def server_of(self, key: str) -> Master:
        """Return the node that has the key; ask the nodes again, as they may have moved it since the last call.

        Raises:
            redis.RedisError, OSError: no node could be asked.
            ConfigurationError: the server is no cluster.
        """
        self._stale = True
        self.look(self.clock() + self.node_timeout)
        server = self._slots[key_slot(key.encode())]
        if server is None:
            raise redis_errors.ClusterDownError(f"CLUSTERDOWN: no node serves the slot of {key!r}")
        return server

    def shard_at(self, host: str, port: int) -> Master:
        """Return the node that the cluster names by this host and port."""
        place = host, port
        shard = self.shards.get(place)
        if shard is None:
            node, options = self._seeds.node_at(host, port), self.opener.options
            facts = MasterFacts(0, node.address, options, is_node=True)
            facts.sample_at = self.facts.sample_at
            shard = Master(Opener(node, facts, options, self.platform, self))
        return self.shards.setdefault(place, shard)  # another thread may have been faster

    def sent_on(self, shard: Master, failure: Failure) -> tuple[Master, bool] | None:
        """Note what the failure of a node shows of the slots.

        Return the node to which it sends the call on, and if that holds for this call only; None where it sends the
        call nowhere.
        """
        if shard.facts.down is not None or _MAY_HAVE_CHANGED.match(failure.why):  # a replica may have the slots
            self._stale = True
        found = redirection(failure.why)
        if found is None:
            return None
        target = self.shard_at(found.host or shard.opener.node.kwargs["host"], found.port)
        if not found.asking:
            self._slots[found.slot] = target
        return target, found.asking

    def _exchange(
        self, request: Prepared, keys: LockKeys, owner: bytes, sent_at: float, until: float
    ) -> Sequence[Answer] | None:
        """Ask the node that serves the lock, as `Pool.exchange` does: the usual case.

        Return None also where that node must be looked for, or sends the call on, and so has not run it.
        """
        shard = self._slots[slot_of(keys)] if self.knows_way else None
        if shard is None:
            return None
        request = request._replace(script=request.script.on_cluster)
        answers = shard.pool.exchange(request, keys, owner, sent_at, until)
        failure = answers and answers[0][0]
        return None if isinstance(failure, Failure) and self.sent_on(shard, failure) else answers

    @property
    def knows_way(self) -> bool:  # type: ignore[override]
        """True if `look` would ask no node: there is no sign of a change, or the last look was just now."""
        is_fresh = not self._stale or self.clock() < self._looked_at + REFRESH_SECONDS_MIN
        return bool(self._slots) and is_fresh

    def look(self, until: float) -> None:
        """Learn which node serves which slot, if that is not known or may have changed.

        Args:
            until: our time after which no further node is asked, if one was.

        Raises:
            redis.RedisError, OSError: no node could be asked, and the slots are not known from before.
            ConfigurationError: the server is no cluster.
        """
        if self.knows_way:
            return
        now = self.clock()
        self._stale, self._looked_at = False, now
        try:
            self._learn(until)
        except NETWORK_ERRORS as error:
            self._stale = True
            if not self._slots:
                raise
            self.platform.log.debug(logger, "no node of %s could be asked for the slots: %s", self.address, error)

    def route(self, asked: Ask | Exchange, *, strict: bool) -> Routed[Master]:
        """Look as `look` does, and return the way of the calls: each goes to the node that serves its lock.

        Raises:
            ConfigurationError: the server is no cluster, and the calls are `strict`.
        """
        failure = None
        try:
            self.look(asked.until)
        except NETWORK_ERRORS as error:
            failure = self.failed(error, sent=False)
        except ConfigurationError as error:
            if strict:
                raise
            failure = self.misconfigured(error)
        return Routed(asked, lambda call: failure or self.shard_of(call), self.sent_on)

    def _learn(self, until: float) -> None:
        """Ask the sources in turn until one answers; an asked source goes to the end, as its answer may be outdated."""
        failure: BaseException | None = None
        for node in sorted(self._sources, key=self._doubts):
            if failure is not None and self.clock() >= until:
                break
            self._sources = [*(one for one in self._sources if one is not node), node]
            try:
                with protocol_errors():
                    ranges = ranges_of(node, self.node_timeout)
            except NETWORK_ERRORS as error:
                failure = error
            else:
                self._take(ranges, node, until)
                self.opener.listener.hear(self.facts, Moved())  # subscriptions follow
                return
        if failure is not None:
            raise failure

    def _find_kind(self, until: float) -> None:
        """Find, once, whether waiters listen on sharded channels: every node that answers must know these."""
        channel = name_channel(self.opener.options.prefix, "relock", "relock")
        is_sharded: bool | None = None
        for node in [shard.opener.node for shard in self.servers]:
            with suppress(*NETWORK_ERRORS):
                is_sharded = knows_shard_channels(node, channel, self.node_timeout)
            if is_sharded is False or self.clock() >= until:
                break
        self.is_sharded = is_sharded
        self.opener.listener.hear(self.facts, Seen())  # the names of waiters to come say where they listen

    def _doubts(self, source: Node) -> int:
        """Return the rank of a source: first nodes that are up, then unknown ones of the user, then those down."""
        downs = [shard.facts.down for shard in self.servers if shard.address == source.address]
        return 1 if not downs else 0 if downs[0] is None else 2

    def _take(self, ranges: Sequence[Range], source: Node, until: float) -> None:
        slots: list[Master | None] = [None] * SLOTS
        for first, last, host, port in ranges:
            slots[first : last + 1] = [self.shard_at(host or source.kwargs["host"], port)] * (last + 1 - first)
        if self.is_sharded is None:
            self._find_kind(until)
        self._slots = slots  # last: from here on, calls go straight, and waiters have names
        serving = {shard.address for shard in slots if shard is not None}
        self.opener.node = source
        nodes = [shard.opener.node for shard in self.servers if shard.address in serving]
        seeds = [seed for seed in self._seeds.nodes if seed.address not in serving]
        others = [node for node in (*nodes, *seeds) if node.address != source.address]
        self._sources = [*others, source]
        for place, shard in self.shards.copy().items():
            if shard.address not in serving:
                self._retire(place, shard)

    def _retire(self, place: Place, shard: Master) -> None:
        """Drop a node that serves no slot; it may have left the cluster, and then no message reaches it either."""
        self.shards.pop(place, None)
        shard.pool.drop_idle()
        for listener, address in self.opener.listeners.copy().items():
            sock: socket.socket | None = getattr(listener(), "_sock", None)
            if address == shard.address and sock is not None:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)  # the subscription's reader sees the end, and connects elsewhere
        self._sum_up()

    # What a session asks of a master --------------------------------------------------------------------------------

    def probe(self) -> None:
        """Learn which node serves which slot, and connect to each; note a node that can't be reached as a problem.

        Raises:
            redis.RedisError, OSError: no node can be reached.
            ConfigurationError: the server is no cluster.
        """
        self._stale, self._looked_at = True, float("-inf")
        self.look(self.clock() + self.node_timeout)
        failures = []
        shards = self.servers
        for shard in shards:
            try:
                shard.ask_again(shard.probe)
            except NETWORK_ERRORS as error:
                shard.failed(error, sent=False)
                failures.append(error)
        self._sum_up()
        if failures and len(failures) == len(shards):
            raise failures[0]

    def scan(self, pattern: str, count: int) -> Iterator[str]:
        """Yield the keys that match, on all nodes, as `Master.scan` does."""
        self.look(self.clock() + self.node_timeout)
        for shard in self.servers:
            yield from shard.scan(pattern, count)

    def failed(self, error: BaseException, *, sent: bool) -> Failure:
        """Return the `Failure` for an error of the whole cluster; the nodes themselves note which of them is down."""
        return failure_of(self.address, error, sent=sent)

    # What the nodes report, as `MasterListener` ---------------------------------------------------------------------

    @property
    def connection_name(self) -> str:
        """Name of the client's connections on the server, as its listener gives it."""
        return self.opener.listener.connection_name

    def hear(self, facts: MasterFacts, news: News) -> None:
        """Pass on news of a node. Most are the cluster's: any hold, and any subscription, may be on that node."""
        if isinstance(news, Down | Back):
            self._sum_up()
        if isinstance(news, Stepped):
            self.facts.trusted_from = max(self.facts.trusted_from, facts.trusted_from)
        if isinstance(news, Stepped | Seen | Moved):
            self.opener.listener.hear(self.facts, news)
        elif isinstance(news, Down | Back | Problem | RoundTrip):
            self.opener.listener.hear(facts, news)

    def sweep_by(self, moment: float) -> None:
        """Pass `moment` on to the listener of the cluster."""
        self.opener.listener.sweep_by(moment)

    def _sum_up(self) -> None:
        """Derive the facts of the cluster from those of its nodes."""
        every = [shard.facts for shard in self.servers]
        silent = {f"down {one.address}": f"{one.address}: {one.down}" for one in every if one.down is not None}
        facts = self.facts
        facts.version = max((one.version for one in every), default="")
        facts.down = next(iter(silent.values()), None)
        own = {kind: text for kind, text in facts.problems.items() if kind in ("commands", "waking")}
        found = {f"{kind} {one.address}": text for one in every for kind, text in one.problems.items()}
        facts.problems = own | found | silent
