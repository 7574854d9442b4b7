"""Subscription to one master."""

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from redis import exceptions as redis_errors

from relock._core.clocks import NOT_YET
from relock._core.master_facts import NAMELESS, UNKNOWN, InDoubt
from relock._core.quorum import NEVER
from relock._keys import client_channel
from relock._runtime.masters.errors import NETWORK_ERRORS, protocol_errors
from relock._runtime.masters.master import Master
from relock._runtime.net.channel import Channel
from relock._runtime.net.credentials import Words
from relock._runtime.net.failures import words_of
from relock._runtime.net.raw_connection import RawConnection
from relock._runtime.platform import Platform
from relock._runtime.wakeups.shared_subscriptions import SharedSubscriptions
from relock._runtime.wakeups.subscribed_connection import SubscribedConnection
from relock._runtime.wakeups.successor import Subscribed, Successor
from relock._runtime.wakeups.waiter import Waiter

if TYPE_CHECKING:
    from relock._runtime.wakeups.channels import NodeChannels

logger = logging.getLogger("relock.wakeups")

PING_SECONDS = 2.5
PING = b"*1\r\n$4\r\nPING\r\n"
RECONNECT_SECONDS_MIN = 0.02
UNHEARD = "no waiter is told of its turn, and each looks by itself"
RECONNECT_SECONDS_MAX = 1.0
BELIEVED_SECONDS = 1.0  # for this long, a new subscription is not given up because of messages from other servers
OTHERS_MAX = 64  # incarnations of other servers that are remembered


class Receiver(Protocol):
    """Receiver of the subscriptions' messages: the hub."""

    client: str
    platform: Platform
    prefix: str
    shared: SharedSubscriptions
    waiters: dict[bytes, Waiter]

    def message(self, subscription: Any, payload: bytes) -> None:
        """Act on a message that a `subscription` has brought."""

    def subscribed(self) -> None:
        """Note that a subscription is confirmed (again)."""

    def wake_all(self) -> None:
        """Make every waiter look again: the masters, or the way to them, have changed."""


class Subscription(ABC):
    """Subscription to one master: connected while it is used, and again after every failure.

    The socket leads to one incarnation of the master, and stays there when another server becomes the master. A demoted
    master keeps its subscribers, answers their pings, and passes on the messages of the new master, which does not
    count these subscribers as listening. So a grant from a message counts only if it names the incarnation that this
    socket leads to. As soon as any other socket finds the master elsewhere, the subscription connects anew.

    Attributes:
        index: the number of the master.
        channels: the sharded channels on this connection to a node of a Cluster; None for any other subscription.
        is_confirmed: True while the master has confirmed the subscription, and its connection works.
        is_subscribing: True while the master may publish already over a connection that nobody reads yet.
        stopping: True once it must not connect any more.
    """

    channels: "NodeChannels | None" = None
    stopping: bool

    def __init__(self, hub: Receiver, master: Master) -> None:
        self.index = master.index
        self.is_confirmed = self.is_subscribing = False
        self._hub = hub
        self._platform = hub.platform
        self._master = master
        self._clock = hub.platform.clock
        self._raw: RawConnection | None = None
        self._connection: SubscribedConnection | None = None  # once it is subscribed
        self._incarnation = UNKNOWN  # of the server that the socket leads to
        self._stands_since = 0.0
        self._is_misled = False  # a message has shown that another server may be the master
        self._others: set[bytes] = set()  # other incarnations that messages have named
        self._pings = self._pongs = 0  # on this connection
        self._heard = 0  # `SubscribedConnection.heard` at the last look
        self._heard_at = 0.0  # when that look was
        self._failures = 0
        self._successor = Successor(master.opener.credentials, self._clock)

    @abstractmethod
    def ensure(self) -> object:
        """Begin to connect, unless the subscription is connected."""

    @abstractmethod
    def call(self) -> None:
        """Have the subscription check its connection soon; any thread may call this."""

    @abstractmethod
    def drop(self) -> None:
        """Give up the connection, because it leads to another server; any thread may call this."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connection."""

    @abstractmethod
    def stop(self) -> None:
        """End the subscription."""

    @abstractmethod
    def abandon(self) -> None:
        """Close the copy of the parent's socket, in a forked child."""

    def renew(self) -> None:
        """Have the subscription look soon if there are new credentials; any thread may call this."""
        self.call()

    def _subscribe_anew(self) -> Subscribed:
        """Open a connection and subscribe."""
        with protocol_errors():
            login, raw = self._master.opener.credentials.latest, self._master.opener.raw_connection()
            try:
                raw.connect()
                return self._subscribe(raw, login)
            except BaseException:
                self.is_subscribing = False
                self._close(raw)
                raise

    def _set_successor(self, connection: SubscribedConnection, made: Subscribed) -> None:
        """Have `made` take over from `connection`, behind the messages that are on their way."""
        self._pings += 1
        self._successor.set(made, self._pings)
        self._check_place()  # Mark, then look: `stop` closes the successor, or this finds `stop`
        connection.channel.send(PING)

    def _put_off_successor(self, error: BaseException) -> None:
        self._successor.put_off()
        text = "no second subscription to %s: %s"
        self._platform.log.debug(logger, text, self._master.address, error)

    def _take_over(self) -> Subscribed | None:
        """Return the connection that takes over now, if any; the one before it is closed."""
        made = self._successor.take(self._pongs)
        if made is not None:
            if self.channels is not None:
                self.channels = self.channels.anew()
            self.disconnect()
            self._raw = made.raw
        return made

    def _subscribe(self, raw: RawConnection, login: Words | None) -> Subscribed:
        """Subscribe over a connection that has just been opened."""
        # Make the channel first: messages may come right behind the confirmation, and are read together with it.
        channel = self._platform.open_channel(raw, PING_SECONDS)
        self.is_subscribing = True
        opener = self._master.opener
        naming, questions = opener.naming, opener.introduction
        words = "SUBSCRIBE", client_channel(self._hub.prefix, self._hub.client)
        channel.send(b"".join(raw.pack_commands([*naming, *questions, words])))
        replies = self._first_replies(channel, len(naming) + len(questions) + 1)[len(naming) :]
        incarnation = opener.introduce(replies[: len(questions)])
        confirmation, *messages = replies[len(questions) :]
        if isinstance(confirmation, redis_errors.ResponseError):
            if self.channels is None or not self.channels.is_all:
                opener.act(opener.facts.without_messages(f"it refuses SUBSCRIBE ({words_of(confirmation)}): {UNHEARD}"))
                raise confirmation
        elif confirmation[0] != b"subscribe":
            raise redis_errors.ConnectionError(f"unexpected reply to SUBSCRIBE: {confirmation!r:.100}")
        return Subscribed(raw, channel, incarnation, messages, login)

    def _first_replies(self, channel: Channel, count: int) -> list[Any]:
        """Return at least `count` replies; ``redis.TimeoutError`` if they do not come within the node timeout."""
        until = self._clock() + self._master.node_timeout
        replies: list[Any] = []
        while len(replies) < count:
            if not channel.wait(until - self._clock()):
                raise redis_errors.TimeoutError("no answer to SUBSCRIBE")
            replies += channel.receive()
        return replies

    def _stand(self, made: Subscribed) -> SubscribedConnection:
        """Begin to use a new connection, note that it is confirmed, and act on the messages that it has brought."""
        self._incarnation, self._successor.login = made.incarnation, made.login
        act = self._act_on if self.channels is None else self.channels.actor(self._act_on)
        connection = self._connection = SubscribedConnection(made.channel, act, self.call)
        self._stands_since, self._is_misled = self._clock(), False
        self._pings = self._pongs = 0
        self._check_place()  # Mark, then look: a thread that found a new master earlier had nothing to close yet
        self.is_confirmed = True
        self.is_subscribing = False
        self._hub.subscribed()
        connection.act_on(made.messages)
        return connection

    def _note_heard(self, connection: SubscribedConnection, now: float) -> None:
        self._heard, self._heard_at = connection.heard, now

    def _check_place(self) -> None:
        if self.stopping:
            raise redis_errors.ConnectionError("the subscription was stopped")
        if self._has_moved():
            raise redis_errors.ConnectionError("another server has taken the place of the master")
        if self.channels is not None and self._connection is not None:
            self.channels.settle(self._connection.channel.send)

    def _has_moved(self) -> bool:
        """Return whether another server is the master by now, as other sockets have shown or messages suggest."""
        return self._is_misled or self._incarnation != self._master.facts.incarnation

    def look(self) -> None:
        """Have the subscription connect anew at once if another server is the master; any thread may call this."""
        if self._connection is not None and self._has_moved():
            self.drop()

    def doubt(self) -> None:
        """Close the connection unless it is new: a server that refuses INFO was found, which may be another one."""
        if self._connection is not None and self._clock() - self._stands_since > BELIEVED_SECONDS:
            self._is_misled = True
            self.drop()

    def _act_on(self, reply: Any, channels: "NodeChannels | None" = None) -> None:
        """Act on a message or pong; raise `redis.InvalidResponse` for anything else: replies are out of step."""
        match reply:
            case [b"message" | b"smessage", _, bytes(payload)]:
                self._hub.message(self, payload)
            case [b"pong", _]:
                self._pongs += 1
                if self._successor.stands_by:
                    self.call()
            case _ if channels is None or not channels.hear(reply):
                raise redis_errors.InvalidResponse(f"no message: {reply!r:.100}")

    def _ping(self, channel: Channel) -> None:
        """Ping the master if there are waiters; raise ``redis.TimeoutError`` if the last ping was not answered."""
        if self._pings > self._pongs:
            raise redis_errors.TimeoutError("no answer to a ping")
        if self._hub.waiters:
            self._pings += 1
            channel.send(PING)

    @property
    def is_pong_due(self) -> bool:
        """True if the master owes the answer to a ping: messages from before the ping may still be on their way."""
        return self.is_confirmed and self._pings > self._pongs

    @abstractmethod
    def ask_for_pong(self) -> bool:
        """Ping, from any thread: the answer comes behind all messages that were published before.

        Return False if no ping can be sent.
        """

    def _lost(self, error: BaseException) -> float:
        """Close the connection; return the seconds before the next one, doubled after each failure in a row."""
        has_stood = self.is_confirmed
        if has_stood and self._clock() - self._stands_since > BELIEVED_SECONDS:
            self._failures = 0  # a short-lived connection counts as a failure: each may lead to another server
        self.is_confirmed = self.is_subscribing = False
        if self.channels is not None:
            self.channels = self.channels.anew()
        self.disconnect()
        if self.stopping:
            return 0.0
        self._platform.log.debug(logger, "the subscription to %s broke: %s", self._master.address, error)
        if self._failures and not has_stood:
            # Connecting failed again: wake the waiters, whose own requests show what is wrong.
            self._hub.wake_all()
        self._failures += 1
        return min(RECONNECT_SECONDS_MIN * 2.0 ** min(self._failures - 1, 10), RECONNECT_SECONDS_MAX)

    def _close(self, raw: RawConnection | None) -> None:
        if raw is not None:
            try:
                raw.disconnect()
            except NETWORK_ERRORS:
                text = "closing the subscription to %s failed"
                self._platform.log.debug(logger, text, self._master.address, exc_info=True)

    def has_vote(self, now: float) -> bool:
        """Return whether the master has a vote; without one, its wake-ups don't count: it may have forgotten holds."""
        return self._master.facts.vote_at <= now

    def granted_at(self, granted_us: int, incarnation: bytes, arrived_at: float) -> float:
        """Return a grant's time, as `MasterFacts` does; `NEVER` from another server, or one without a vote."""
        if incarnation != self._incarnation:
            self._heard_of(incarnation, arrived_at)
            return NEVER
        if not self.has_vote(arrived_at):
            return NEVER
        moment = self._master.facts.granted_at(granted_us, incarnation, arrived_at)
        if moment == NOT_YET:
            self._master.act([InDoubt()])  # have the clock sampled at once, for the holds that it may cut short
            return NEVER
        return moment

    def _heard_of(self, incarnation: bytes, now: float) -> None:
        """Have the subscription connect anew after a grant of another incarnation; once for each incarnation.

        Either this socket leads to a replica, which passes on the grants of the new master. Or the releaser uses an
        old socket, and goes on naming the old incarnation: then connecting anew again and again would not help.
        """
        is_believed = now - self._stands_since <= BELIEVED_SECONDS
        if is_believed or incarnation == NAMELESS or incarnation in self._others:
            return
        if len(self._others) >= OTHERS_MAX:
            self._others.clear()
        self._others.add(incarnation)
        self._is_misled = True
        self.call()
