"""Subscription to one master."""

import logging
import select
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from redis import exceptions as redis_errors

from relock._core.clocks import NOT_YET
from relock._core.master_facts import NAMELESS, UNKNOWN, InDoubt
from relock._core.quorum import NEVER
from relock._errors import ConfigurationError
from relock._keys import client_channel
from relock._runtime.masters.errors import NETWORK_ERRORS, protocol_errors
from relock._runtime.masters.master import Master
from relock._runtime.net.channel import Channel
from relock._runtime.net.credentials import Words
from relock._runtime.net.failures import words_of
from relock._runtime.net.raw_connection import RawConnection
from relock._runtime.net.waker import Waker
from relock._runtime.platform import Platform
from relock._runtime.service import Service
from relock._runtime.wakeups.shared_subscriptions import STUCK_SECONDS, SharedSubscriptions
from relock._runtime.wakeups.subscribed_connection import SubscribedConnection
from relock._runtime.wakeups.successor import Subscribed, Successor
from relock._runtime.wakeups.waiter import Waiter

if TYPE_CHECKING:
    from relock._runtime.wakeups.channels import NodeChannels

logger = logging.getLogger(__name__)

PING_SECONDS = 2.5
PING = b"*1\r\n$4\r\nPING\r\n"
RECONNECT_SECONDS_MIN = 0.02
UNHEARD = "no waiter is told of its turn, and each looks by itself"
RECONNECT_SECONDS_MAX = 1.0
BELIEVED_SECONDS = 1.0  # for this long, a new subscription is not given up because of messages from other servers
STRANGERS_MAX = 64  # incarnations of other servers that are remembered


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
        stopping: True once it must not connect any more.
    """

    channels: "NodeChannels | None" = None
    stopping: bool

    def __init__(self, hub: Receiver, master: Master) -> None:
        self.index = master.index
        self.is_confirmed = False
        self._hub = hub
        self._platform = hub.platform
        self._master = master
        self._clock = hub.platform.clock
        self._raw: RawConnection | None = None
        self._connection: SubscribedConnection | None = None  # once it is subscribed
        self._incarnation = UNKNOWN  # of the server that the socket leads to
        self._stands_since = 0.0
        self._is_misled = False  # a message has shown that another server may be the master
        self._strangers: set[bytes] = set()  # other incarnations that messages have named
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
            self.disconnect()
            self._raw = made.raw
        return made

    def _subscribe(self, raw: RawConnection, login: Words | None) -> Subscribed:
        """Subscribe over a connection that has just been opened."""
        # Make the channel first: messages may come right behind the confirmation, and are read together with it.
        channel = self._platform.open_channel(raw, PING_SECONDS)
        opener = self._master.opener
        naming, questions = opener.naming, opener.introduction
        words = "SUBSCRIBE", client_channel(self._hub.prefix, self._hub.client)
        channel.send(b"".join(raw.pack_commands([*naming, *questions, words])))
        replies = self._first_replies(channel, len(naming) + len(questions) + 1)[len(naming) :]
        incarnation = opener.introduce(replies[: len(questions)])
        confirmation, *messages = replies[len(questions) :]
        if isinstance(confirmation, redis_errors.ResponseError):
            if self.channels is None:
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
        act = self._act_on if self.channels is None else partial(self._act_on, channels=self.channels)
        connection = self._connection = SubscribedConnection(made.channel, act, self.call)
        self._stands_since, self._is_misled = self._clock(), False
        self._pings = self._pongs = 0
        self._check_place()  # Mark, then look: a thread that found a new master earlier had nothing to close yet
        self.is_confirmed = True
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
        self.is_confirmed = False
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
        if is_believed or incarnation == NAMELESS or incarnation in self._strangers:
            return
        if len(self._strangers) >= STRANGERS_MAX:
            self._strangers.clear()
        self._strangers.add(incarnation)
        self._is_misled = True
        self.call()


class ThreadSubscription(Service, Subscription):
    """Subscription with a thread of its own, which shares the socket with the threads that wait."""

    name = "relock-hub"

    def __init__(self, hub: Receiver, master: Master) -> None:
        Service.__init__(self, hub.platform)
        Subscription.__init__(self, hub, master)
        self._shared = hub.shared
        self._is_read = False  # the leader has read something between the last two looks
        self._unread_since: float | None = None  # the first look that found messages which the leader does not read
        self._called: SimpleQueue[None] = hub.platform.queue()
        self._waker: Waker | None = None  # of a node's subscription: ends a read that waits

    def step(self) -> None:
        """Read messages, or ping, or connect; or check a connection that the leader reads."""
        try:
            connection = self._connection
            if connection is not None:
                self._tend(connection) if connection.is_led else self._read(connection)
                self._look_at_login(connection)
            elif self.is_confirmed:
                raise redis_errors.ConnectionError("it was closed")
            else:
                with protocol_errors():
                    self._connect()
        except Exception as error:
            self._wait(self._lost(error))
            # redis-py raises others when a connection is closed under it.
            if not (self.stopping or isinstance(error, (*NETWORK_ERRORS, ConfigurationError))):
                text = "the subscription to %s failed unexpectedly"
                self._platform.log.error(logger, text, self._master.address, exc_info=True)

    def _connect(self) -> None:
        login = self._master.opener.credentials.latest
        raw = self._raw = self._master.opener.raw_connection()
        if self.stopping:  # Mark, then look: `stop` closes what is here, or this finds `stop`
            raise redis_errors.ConnectionError("the subscription was stopped while it connected")
        if self.channels is not None and self._waker is None:
            self._waker = self._platform.waker()
        raw.connect()
        if self._raw is not raw:
            raw.disconnect()
            raise redis_errors.ConnectionError("the subscription was closed while it connected")
        self._share(self._stand(self._subscribe(raw, login)))

    def renew(self) -> None:
        """Have the thread look soon if there are new credentials; over TLS, that takes until the next ping at most."""
        self.call()
        self.ask_for_pong()  # the answer ends a read

    def _look_at_login(self, connection: SubscribedConnection) -> None:
        """Open a second connection if there are new credentials, or let it take over."""
        if self._successor.is_wanted:
            try:
                made = self._subscribe_anew()
            except Exception as error:  # the provider may raise any
                self._put_off_successor(error)
            else:
                self._set_successor(connection, made)
        elif (successor := self._take_over()) is not None:
            self._share(self._stand(successor))

    def _read(self, connection: SubscribedConnection) -> None:
        try:
            if self._waker is None or self._has_come(connection.channel, self._waker):
                connection.hear(connection.channel.take)
        except (BlockingIOError, TimeoutError, redis_errors.TimeoutError):
            self._ping(connection.channel)
        self._check_place()
        self._share(connection)

    def _has_come(self, channel: Channel, waker: Waker) -> bool:
        """Wait for bytes as `Channel.take` does, or until `call`; return whether there are bytes."""
        poller = self._platform.poller()
        for fileno in (channel.fileno, waker.fileno):
            poller.register(fileno, select.POLLIN)
        ready = [fileno for fileno, _ in poller.poll(PING_SECONDS * 1000)]
        if not ready:
            raise redis_errors.TimeoutError("nothing has come")
        if waker.fileno in ready:
            waker.clear()
        return channel.fileno in ready

    def _share(self, connection: SubscribedConnection) -> None:
        self._shared.share(connection)
        self._note_heard(connection, self._clock())
        self._unread_since = None

    def _tend(self, connection: SubscribedConnection) -> None:
        """Check a connection that the leader reads; take it back if no thread leads, and act on unread messages."""
        self._shared.nap(connection, self._called, is_read=self._is_read, is_unread=self._unread_since is not None)
        if connection.error is not None:
            raise connection.error
        self._check_place()
        if self._shared.take_back(connection):
            connection.act()
        else:
            self._check_is_read(connection)

    def _check_is_read(self, connection: SubscribedConnection) -> None:
        """Ping if no message comes; depose a leader that does not read the messages that have come."""
        now = self._clock()
        self._is_read = connection.heard != self._heard
        if self._is_read:
            self._note_heard(connection, now)
            self._unread_since = None
        elif not (connection.has_unhandled or connection.channel.wait(0.0)):
            self._unread_since = None
            if now - self._heard_at >= PING_SECONDS:
                self._heard_at = now
                self._ping(connection.channel)
        elif self._unread_since is None:
            self._unread_since = now
        elif now - self._unread_since >= STUCK_SECONDS:
            self._shared.depose(
                connection, redis_errors.TimeoutError("the thread that reads the subscription stands still")
            )

    def ask_for_pong(self) -> bool:
        """Ping, as `Subscription` describes; over TLS, one thread must not write while another one reads."""
        connection = self._connection
        if connection is None or connection.channel.take_now is None:
            return False
        self._pings += 1
        with suppress(*NETWORK_ERRORS):  # the subscription's own thread will notice the error
            connection.channel.send(PING)
        return True

    def _wait(self, seconds: float) -> None:
        """Wait before the next connection, unless the thread must end."""
        until = self._clock() + seconds
        while not self.stopping and (left := until - self._clock()) > 0:
            with suppress(Empty):
                self._called.get(timeout=left)

    def disconnect(self) -> None:
        """Close the socket; from another thread, this ends a read that is under way."""
        self._successor.close()
        raw, self._raw = self._raw, None
        connection, self._connection = self._connection, None
        if connection is not None:
            self._shared.unshare(connection)
        self._close(raw)
        if connection is not None and connection.is_led:
            self.call()

    drop = abandon = disconnect

    def call(self) -> None:
        """Wake the thread, if it naps, or reads a node's messages."""
        self._called.put(None)
        if self._waker is not None:
            self._waker.wake()

    def stop(self) -> None:
        """End the thread, wherever it sleeps."""
        super().stop()
        self.call()
        self.disconnect()
