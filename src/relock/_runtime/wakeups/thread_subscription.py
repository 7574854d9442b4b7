"""Subscription with a thread of its own, for the threads that wait."""

import logging
import select
from contextlib import suppress
from queue import Empty, SimpleQueue

from redis import exceptions as redis_errors

from relock._errors import ConfigurationError
from relock._runtime.masters.errors import NETWORK_ERRORS, protocol_errors
from relock._runtime.masters.master import Master
from relock._runtime.net.channel import Channel
from relock._runtime.net.waker import Waker
from relock._runtime.service import Service
from relock._runtime.wakeups.shared_subscriptions import STUCK_SECONDS
from relock._runtime.wakeups.subscribed_connection import SubscribedConnection
from relock._runtime.wakeups.subscription import PING, PING_SECONDS, Receiver, Subscription

logger = logging.getLogger("relock.wakeups")


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
