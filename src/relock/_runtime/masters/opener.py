"""Opening of sockets to one master: connect, name the connection, and learn which server it leads to."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from redis import exceptions as redis_errors

from relock._core.master_facts import INTRODUCTION, MasterFacts, News
from relock._core.socket_facts import SocketFacts
from relock._options import ClientOptions
from relock._runtime.masters.errors import protocol_errors
from relock._runtime.net.green import check_threads
from relock._runtime.net.node import Node
from relock._runtime.net.raw_connection import RawConnection
from relock._runtime.platform import Platform
from relock._scripts import probe


class MasterListener(Protocol):
    """Listener to the news of masters."""

    @property
    def connection_name(self) -> str:
        """Name of our connections on the server, if the user has given none; may be empty."""

    def hear(self, facts: MasterFacts, news: News) -> None:
        """Act on news of a master."""

    def sweep_by(self, moment: float) -> None:
        """Have a background thread, if one runs, close idle connections by `moment` (our time)."""


class Opener:
    """Opener of sockets to one master.

    Attributes:
        act: acts on news; set by the master.
        introduction: the commands that are sent first on a new socket, to learn which server it leads to.
        credentials: what the node's credential provider has given since.
    """

    act: Callable[[Iterable[News]], None]
    introduction: tuple[tuple[str, ...], ...] = INTRODUCTION

    def __init__(
        self, node: Node, facts: MasterFacts, options: ClientOptions, platform: Platform, listener: MasterListener
    ) -> None:
        self.node = node
        self.facts = facts
        self.options = options
        self.platform = platform
        self.clock = platform.clock
        self.node_timeout = options.node_timeout_for(options.ttl)
        self.listener = listener
        self.credentials = node.credentials

    @property
    def naming(self) -> tuple[tuple[str, ...], ...]:
        """Commands that name a new connection on the server, so that people see whose it is; empty without a name.

        If the server refuses them, the connection works without a name.
        """
        name = self.node.client_name or self.listener.connection_name
        return (("CLIENT", "SETNAME", name),) if name else ()

    def raw_connection(self) -> RawConnection:
        """Return a new connection with the node timeout that is not open yet."""
        check_threads()
        return self.node.raw_connection(self.node_timeout)

    def introduce(self, replies: Sequence[Any]) -> bytes:
        """Return the incarnation of the server that a new socket leads to, as `MasterFacts.introduce` does.

        Raises:
            ConfigurationError: as `MasterFacts.introduce`; or the server is also another master of this client.
        """
        incarnation, news = self.facts.introduce(replies)
        self.act(news)
        self.facts.check_independent()
        return incarnation

    @protocol_errors()
    def open(self, raw: RawConnection, shown: SocketFacts) -> None:
        """Connect, and learn the facts of this socket that scripts must be told: incarnation, guard and clock.

        Raises:
            redis.RedisError, OSError: the master can't be reached, or refuses.
            ConfigurationError: the server is a replica, or lacks something that the options ask for.
        """
        raw.connect()
        facts, naming = self.facts, self.naming
        commands: list[tuple[str | bytes, ...]] = [*naming, *INTRODUCTION, ("TIME",)]
        if facts.marker is not None:
            commands.append(("HMGET", facts.marker, "guard_ms"))
        # The scripts of a Cluster send messages in another way, which `Cluster` tries when it learns its kind.
        probes = [probe(None if facts.marker is None else self.options.prefix)] if facts.refusals is None else []
        commands += probes
        sent_at = self.clock()
        raw.send_packed_command(raw.pack_commands(commands), check_health=False)
        until = sent_at + self.node_timeout
        replies = [self._read(raw, until) for _ in commands][len(naming) :]
        count = len(INTRODUCTION)
        incarnation = self.introduce(replies[:count])
        time, marker = replies[count], [None] if facts.marker is None else replies[count + 1]
        if probes:
            self.act(facts.tried_in_scripts(replies[-1], time))
        self.act(shown.introduced(incarnation, time, marker))
        known, offset = facts.known
        if known == incarnation:  # else another thread has found another server meanwhile, with another clock
            seconds, now = shown.opened_us / 1e6, self.clock()
            step = offset.see(seconds - now, seconds - sent_at, now)
            if step:
                self.act(facts.stepped(step, shown.opened_us))

    def _read(self, raw: RawConnection, until: float) -> Any:
        if getattr(raw, "_sock", self) is None:  # another thread has closed it, and `can_read` would reopen it
            raise redis_errors.ConnectionError("the connection was closed")
        if not raw.can_read(max(0.0, until - self.clock())):
            raise redis_errors.TimeoutError("Timeout reading from socket")
        try:
            return raw.read_response()
        except redis_errors.ResponseError as error:
            return error
