"""Connections to one master: opened, checked out by one caller at a time, and closed rather than misread.

A `Link` belongs to whoever checked it out. Whatever goes wrong between a request and its reply, in whatever way, the
link is never given back: a reply that is still owed dies with the socket. So a reply is never read by somebody else,
and giving back is the last step of a call.
"""

import logging
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from redis import exceptions as redis_errors

from relock._core.clocks import Offset
from relock._core.effects import Clock, Failure, Reply
from relock._errors import ConfigurationError, RelockWarning
from relock._keys import master_key
from relock._options import ClientOptions
from relock._runtime.failures import failure_of
from relock._runtime.nodes import Node, Wire
from relock._scripts import Call

logger = logging.getLogger(__name__)

FRESH_SECONDS = 1.0  # a link that was used within this time is taken without a look at it
GUARD_NEWS_SECONDS = 0.1  # a guard that ends later than the last one by more than this is another guard
NETWORK_ERRORS = (redis_errors.RedisError, OSError)


class Link:
    """One open connection, with what its socket has shown of the master: incarnation, marker and clock."""

    def __init__(self, master: "Master", connection: Wire) -> None:
        self.master = master
        self.connection = connection
        self.incarnation = b""
        self.guard_ms = master.guard_ms
        self.guarded = master.guard_ms > 0
        self.idle_since = 0.0

    def open(self) -> None:
        """Connects and learns what a script must be told of this socket.

        Raises:
            redis.RedisError, OSError: the master can't be reached, or refuses.
            ConfigurationError: it is a replica, or lacks what the options ask for.
        """
        self.connection.connect()
        marker = master_key(self.master.options.prefix)
        commands = (("INFO", "server"), ("INFO", "replication"), ("INFO", "memory"), ("TIME",))
        sent_at = self.master.clock()
        self._send(*commands, ("HMGET", marker, "guard_ms"))
        replies = [self._read() for _ in range(5)]
        time_reply, marker_reply = replies[3:]
        for reply in (time_reply, marker_reply):
            if isinstance(reply, BaseException):
                raise reply
        self._learn_info(replies[:3])
        self._learn_marker(marker_reply)
        self.sample(int(time_reply[0]) * 1_000_000 + int(time_reply[1]), sent_at, self.master.clock())

    def _send(self, *commands: tuple[str, ...]) -> None:
        packed = self.connection.pack_commands(commands)
        self.connection.send_packed_command(packed, check_health=False)

    def _read(self) -> Any:
        try:
            return self.connection.read_response()
        except redis_errors.ResponseError as error:
            return error

    def _learn_info(self, replies: Sequence[Any]) -> None:
        if any(isinstance(reply, BaseException) for reply in replies):
            self.master.info_refused(next(reply for reply in replies if isinstance(reply, BaseException)))
            return
        info = parse_info(b"\r\n".join(replies))
        self.incarnation = f"{info.get('run_id', '')}:{info.get('master_replid', '')}".encode()
        self.master.see_incarnation(self.incarnation)
        self.master.check_info(info)

    def _learn_marker(self, marker: list[bytes | None]) -> None:
        """Obeys the marker that another client has left, and takes the larger guard."""
        if marker[0] is None:
            return
        self.guarded = True
        found_ms = int(marker[0])
        if found_ms > self.guard_ms:
            self.guard_ms = found_ms
            self.master.larger_guard_found(found_ms)

    def sample(self, master_us: int, sent_at: float, now: float) -> None:
        """Learns from a reply: the master's clock (us) when it answered, our clock at the request and now."""
        seconds = master_us / 1e6
        step = self.master.offset.see(seconds - now, seconds - sent_at, now)
        if step:
            self.master.stepped(step)

    def request(self, calls: Sequence[Call], until: float) -> None:
        """Sends all `calls` in one write; what arrives after `until` is void where that matters."""
        void_us = b"%d" % (self.master.offset.earliest(until) * 1e6)
        packed = [
            call.script.pack(call.keys, self._arguments(call, void_us), guarded=self.guarded and call.script.is_guarded)
            for call in calls
        ]
        self.connection.send_packed_command(packed, check_health=False)

    def _arguments(self, call: Call, void_us: bytes) -> list[bytes]:
        """The call's own arguments, then the connection's in the header's order, then the rest."""
        known = len(call.script.connection_arguments)
        if not known:
            return call.arguments
        if known == 1:
            return [*call.arguments, void_us, *call.rest]
        return [*call.arguments, void_us, self.incarnation, b"%d" % self.guard_ms]

    def replies(self, calls: Sequence[Call], sent_at: float, until: float) -> list[Reply | Failure]:
        """Reads the reply to each of `calls`. Afterwards the link is fit for another request.

        Raises:
            redis.RedisError, OSError: the connection broke, or the master is silent; close the link.
        """
        tight = abs(until - sent_at - self.master.node_timeout) > 0.1 * self.master.node_timeout
        answers = [self._reply(call, sent_at, until if tight else None) for call in calls]
        for i, answer in enumerate(answers):
            if answer is _UNKNOWN_SCRIPT:
                answers[i] = self._send_source(calls[i], until)
        return answers

    def _reply(self, call: Call, sent_at: float, until: float | None) -> Reply | Failure:
        """One reply; `until` bounds the wait where the caller's limit is not the socket's own."""
        if until is not None and not self.connection.can_read(max(until - self.master.clock(), 0.0)):
            raise redis_errors.TimeoutError("Timeout reading from the master")
        try:
            reply: Reply = self.connection.read_response()
        except redis_errors.NoScriptError:
            return _UNKNOWN_SCRIPT
        except redis_errors.ConnectionError:
            raise
        except redis_errors.ResponseError as error:
            return self.master.refused(call, error)
        now = self.master.clock()
        self.sample(reply[1], sent_at, now)
        if reply[0] == b"no_vote":
            self.master.without_vote(reply[1], reply[2], now)
        return reply

    def _send_source(self, call: Call, until: float) -> Reply | Failure:
        """The master did not run the script because it does not know it: this runs and loads it."""
        sent_at = self.master.clock()
        arguments = self._arguments(call, b"%d" % (self.master.offset.earliest(until) * 1e6))
        packed = call.script.pack_source(call.keys, arguments, guarded=self.guarded and call.script.is_guarded)
        self.connection.send_packed_command([packed], check_health=False)
        return self._reply(call, sent_at, until)

    def is_stale(self, now: float) -> bool:
        """Whether the server has closed it while it was idle; only looked at after a while, since it costs a call."""
        if now - self.idle_since < FRESH_SECONDS:
            return False
        try:
            return self.connection.can_read(0)  # nothing is owed, so whatever can be read is the end, or a mistake
        except NETWORK_ERRORS:
            return True

    def close(self) -> None:
        """Closes the socket; may be called again, and from another thread."""
        try:
            self.connection.disconnect()
        except NETWORK_ERRORS:
            logger.debug("closing a connection to %s failed", self.master.address, exc_info=True)


_UNKNOWN_SCRIPT = Failure("", "NOSCRIPT", sent=False)


class Master:
    """One master: its connections, and what is known of its state."""

    def __init__(
        self, index: int, node: Node, options: ClientOptions, clock: Clock, listener: "MasterListener"
    ) -> None:
        self.index = index
        self.node = node
        self.address = node.address
        self.options = options
        self.clock = clock
        self.node_timeout = options.node_timeout_for(options.ttl)
        self.guard_ms = options.guard_ms
        self.version = ""
        self.problems: dict[str, str] = {}
        self.down: str | None = None
        self.vote_at = 0.0  # our time from which it has a vote again, if it has none now
        self._listener = listener
        self._idle: deque[Link] = deque()
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()
        self.offset = Offset(options.drift_factor)
        self._incarnation = b""

    def check_out(self) -> Link:
        """A link for the caller alone: an idle one, else a new one.

        Raises:
            redis.RedisError, OSError: it can't be opened.
        """
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return self._open()
            if not link.is_stale(self.clock()):
                return link
            link.close()

    def _open(self) -> Link:
        link = Link(self, self.connection())
        self._links.add(link)
        try:
            link.open()
        except BaseException:
            link.close()
            raise
        if self.down is not None:
            self.down = None
            self._listener.master_back(self)
        return link

    def command(self, link: Link, *words: str | int | bytes) -> Any:
        """One plain command on `link`, and its reply."""
        link.connection.send_command(*words, check_health=False)
        return link.connection.read_response()

    def probe(self) -> None:
        """Opens a connection, which checks the master, and keeps it.

        Raises:
            redis.RedisError, OSError: it can't be reached.
            ConfigurationError: it can't be used.
        """
        self.give_back(self._open())

    def scan(self, pattern: str, count: int) -> Iterator[str]:
        """The keys that match the glob `pattern`, by SCAN; a key may come twice.

        Raises:
            redis.RedisError, OSError: it can't be reached, or refuses.
        """
        cursor = b"0"
        while True:
            link = self.check_out()
            try:
                cursor, keys = self.command(link, "SCAN", cursor, "MATCH", pattern, "COUNT", count)
            except BaseException:
                link.close()
                raise
            self.give_back(link)
            yield from (key.decode(errors="replace") for key in keys)
            if cursor == b"0":
                return

    def connection(self) -> Wire:
        """A new connection, not open yet, with the node timeout."""
        return self.node.connection(self.node_timeout)

    def give_back(self, link: Link) -> None:
        """The link owes nothing and may be used by the next caller."""
        link.idle_since = self.offset.seen_at
        self._idle.append(link)

    def drop_idle(self) -> None:
        """Closes what is idle: after one connection broke, the others of the same server are suspect."""
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def failed(self, error: BaseException, *, sent: bool) -> Failure:
        """The `Failure` for a connection that broke or was never made."""
        failure = failure_of(self.address, error, sent=sent)
        self.drop_idle()
        if self.down is None:
            self.down = failure.why
            self._listener.master_down(self, failure.why)
        return failure

    def refused(self, call: Call, error: redis_errors.ResponseError) -> Failure:
        """The `Failure` for a script that the master answered with an error."""
        logger.debug("%s refused %s: %s", self.address, call.script.name, error)
        return failure_of(self.address, error, sent=True)

    def close(self) -> None:
        """Closes every connection."""
        self._idle.clear()
        for link in list(self._links):
            link.close()

    def abandon(self) -> None:
        """In a forked child: closes the copies of the parent's sockets, without a word to the server."""
        self._idle.clear()
        for link in list(self._links):
            link.close()  # redis-py closes without shutdown where the process is not the one that connected

    # What connections report ----------------------------------------------------------------------------------------

    def check_info(self, info: dict[str, str]) -> None:
        """Judges what INFO says: a replica is refused, a policy that evicts is warned of."""
        self.version = info.get("valkey_version") or info.get("redis_version", "")
        if info.get("role", "master") != "master":
            raise ConfigurationError(
                f"{self.address} is a replica, and a replica's locks are only copies: name its master", option="nodes"
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            self._warn(
                "eviction",
                f"{self.address} may evict locks: set maxmemory-policy to noeviction (it is {policy})",
            )
        else:
            self.problems.pop("eviction", None)

    def info_refused(self, error: BaseException) -> None:
        """Without INFO nobody knows a restart, a replica or an evicting policy."""
        if self.guard_ms > 0:
            raise ConfigurationError(
                f"{self.address} refuses INFO ({error}), and restart_guard={self.options.restart_guard} needs it: "
                "allow the command, or set restart_guard=0",
                option="restart_guard",
            )
        self._warn("info", f"{self.address} refuses INFO ({error}): whether it is a replica or may evict is not known")

    def larger_guard_found(self, found_ms: int) -> None:
        """Another client protects these locks for longer: that holds for all."""
        self._warn(
            "guard",
            f"{self.address} has a larger restart guard than this client ({found_ms / 1000:.2f} s, not "
            f"{self.guard_ms / 1000:.2f} s): the larger one is used; set the same restart_guard everywhere",
        )

    def _warn(self, kind: str, text: str) -> None:
        if self.problems.get(kind) == text:
            return
        self.problems[kind] = text
        logger.warning(text)
        warnings.warn(text, RelockWarning, stacklevel=2)

    def without_vote(self, now_us: int, until_us: int, now: float) -> None:
        """It refused to vote until `until_us` on its clock, which showed `now_us`."""
        vote_at = now + (until_us - now_us) / 1e6
        if vote_at > self.vote_at + GUARD_NEWS_SECONDS:
            self._listener.master_without_vote(self, vote_at - now)
        self.vote_at = vote_at

    def stepped(self, seconds: float) -> None:
        """Its clock and ours moved apart by `seconds` at once."""
        self._listener.master_stepped(self, seconds)

    def see_incarnation(self, incarnation: bytes) -> None:
        """A socket may lead to another server than the last one, with another clock."""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self.offset = Offset(self.options.drift_factor)


class MasterListener:
    """What a master tells whoever owns it."""

    def master_down(self, master: Master, why: str) -> None:
        """It does not answer."""

    def master_back(self, master: Master) -> None:
        """It answers again."""

    def master_without_vote(self, master: Master, seconds: float) -> None:
        """It may have forgotten leases, and has no vote for `seconds` more."""

    def master_stepped(self, master: Master, seconds: float) -> None:
        """Its clock went ahead by `seconds` (back, if below 0) all at once, or ours stood still for so long."""


def parse_info(text: bytes) -> dict[str, str]:
    """The fields of an INFO reply."""
    fields = (line.split(":", 1) for line in text.decode(errors="replace").splitlines() if ":" in line)
    return dict(fields)
