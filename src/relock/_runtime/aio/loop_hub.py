"""Hub of the tasks of one event loop, which alone reads what the masters publish for them.

A loop is a waiting client of its own, with a name and a channel. The loop itself reads the messages for its tasks, so
no thread has to wake the loop. A loop that stands still reads late, and so delays only its own tasks.

A thread opens each connection. When a loop is closed, the next one takes over its hub, with the open subscriptions: so
a program that runs one loop after another does not subscribe anew in each.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import get_ident

from relock._errors import ConfigurationError
from relock._keys import LockKeys
from relock._runtime.aio.loop_inbox import Inboxes, LoopInbox
from relock._runtime.aio.on_thread import on_thread
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.masters.master import Master
from relock._runtime.net.channel import Channel
from relock._runtime.net.loop_channel import LoopChannel
from relock._runtime.session.session import Session
from relock._runtime.wakeups.hub import Hub
from relock._runtime.wakeups.subscribed_connection import SubscribedConnection
from relock._runtime.wakeups.subscription import PING, Subscription
from relock._runtime.wakeups.successor import Subscribed
from relock._runtime.wakeups.waiter import Waiter

QUIET_SECONDS = 2.0  # after so long without a message, the loop pings the master when it is asked for a sign of life


class LoopSubscription(Subscription):
    """Subscription whose socket an event loop reads. `call`, `drop`, `look`, `doubt` and `abandon` are for any thread.

    Only the loop's thread may call the rest, or a thread that has taken the hub of a closed loop.
    """

    _hub: "LoopHub"

    def __init__(self, hub: "LoopHub", master: Master) -> None:
        super().__init__(hub, master)
        self.stopping = False
        self._opening: asyncio.Future[Subscribed] | None = None
        self._left: deque[Subscribed] = deque()  # opened for a loop that was closed meanwhile, and not used yet
        self._retry: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """True while there is a connection, or one is being opened."""
        return self._connection is not None or self._opening is not None

    # Connecting -----------------------------------------------------------------------------------------------------

    def ensure(self) -> None:
        """Have a thread open a connection, unless there is one, or one is planned."""
        if not (self.is_open or self._retry):
            self._open()

    def _open(self) -> None:
        self._retry = None
        if not self.stopping:
            loop, open_, leave = self._hub.loop, self._subscribe_anew, self._leave
            self._opening = on_thread(self._platform, loop, open_, name="relock-opener", unheard=leave)
            self._opening.add_done_callback(self._opened)

    def _leave(self, opened: Subscribed) -> None:
        """Leave a connection whose loop was closed to the hub's next reader: it may have brought a grant."""
        self._left.append(opened)  # Mark, then look: `stop` finds it, or this finds `stop`
        if self.stopping:
            self.hear()
        self._hub.soon(self.hear)

    def _opened(self, opening: "asyncio.Future[Subscribed]") -> None:
        self._opening = None
        error, connection = opening.exception(), self._connection
        if error is not None:
            self._give_up(error) if connection is None else self._put_off_successor(error)
            if not isinstance(error, (*NETWORK_ERRORS, ConfigurationError)):
                raise error  # unexpected: let the loop log it
        else:
            self._use(opening.result())

    def _use(self, opened: Subscribed) -> None:
        """Begin to use a connection, or have it take over from the one that stands; close it after `stop`."""
        connection = self._connection
        if self.stopping:
            self._close(opened.raw)
        elif connection is not None:
            self._try(partial(self._set_successor, connection, opened))
        else:
            self._try(partial(self._begin, opened))

    def _begin(self, opened: Subscribed) -> None:
        self._raw = opened.raw
        self._stand(opened._replace(channel=self._watched(opened.channel)))

    def _watched(self, opened: Channel) -> LoopChannel:
        """Have the loop watch the connection, whose channel was `opened`, unless the loop is closed."""
        loop = self._hub.loop
        channel = self._platform.loop_channel(opened, self._raw, loop, self._give_up)
        if not loop.is_closed():
            channel.watch(self.hear)
        return channel

    def watch_again(self) -> None:
        """Have the hub's new loop read, because the last one was closed."""
        self._opening = self._retry = None
        if self._connection is not None:
            self._connection.channel = self._watched(self._connection.channel)
        self.tend()  # the master may have moved while no loop read, or a connection have been opened for nobody

    # Reading --------------------------------------------------------------------------------------------------------

    def hear(self) -> bool:
        """Read some of the bytes that have come, and act on the messages; return whether there were any."""
        with suppress(IndexError):
            while self._left:
                self._use(self._left.popleft())
        connection, inboxes = self._connection, self._hub.inboxes
        if connection is None:
            return False
        heard = connection.heard
        inboxes.thread = get_ident()
        try:
            self._try(connection.hear_now)
        finally:
            inboxes.thread = 0
        return connection.heard != heard

    def tend(self) -> None:
        """Read the messages that have come, then check the connection, or open one if tasks wait."""
        self.hear()
        connection = self._connection
        if connection is not None:
            self._try(partial(self._check, connection))
        elif self._hub.waiters and (self.channels is not None or not self._hub.has_channels):
            self.ensure()

    def _check(self, connection: SubscribedConnection) -> None:
        """Ping if nothing has come for long; raise an error if the connection must be given up."""
        self._check_place()
        now = self._clock()
        if connection.heard != self._heard:
            self._note_heard(connection, now)
        elif now - self._heard_at >= QUIET_SECONDS:
            self._heard_at = now
            self._ping(connection.channel)
        if self._successor.is_wanted and self._opening is None:
            self._open()
        elif (made := self._take_over()) is not None:
            self._begin(made)

    def ask_for_pong(self) -> bool:
        """Have the loop ping, as `Subscription` describes; ping here if the loop is closed."""
        self._pings += 1
        if self._hub.loop.is_closed():
            self._try(self._send_ping)
        else:
            self._hub.soon(partial(self._try, self._send_ping))
        return True

    def _send_ping(self) -> None:
        if self._connection is not None:
            self._connection.channel.send(PING)

    # The end of a connection ----------------------------------------------------------------------------------------

    def _try(self, do: Callable[[], object]) -> None:
        try:
            do()
        except (*NETWORK_ERRORS, ConfigurationError) as error:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Close the connection, and open another one after a moment."""
        pause, loop = self._lost(error), self._hub.loop
        if not (self.stopping or loop.is_closed()):
            self._retry = loop.call_later(pause, self._open)

    def call(self) -> None:
        """Have the loop check the connection in its next turn."""
        self._hub.soon(self.tend)

    drop = call

    def disconnect(self) -> None:
        """Close the socket."""
        self._successor.close()
        raw, self._raw = self._raw, None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.channel.unwatch()
        self._close(raw)

    def stop(self) -> None:
        """Read all messages that have come, for the last time, and close the socket."""
        self.hear()  # what was left is used; from here on it would be closed unread
        self.stopping = True
        while self.hear():
            pass
        self.is_confirmed = False
        self.disconnect()

    def abandon(self) -> None:
        """Close the copy of the parent's socket in a forked child; do not unwatch, as the parent shares the poll."""
        self._successor.close()
        for left in self._left:
            self._close(left.raw)
        self._close(self._raw)


class LoopHub(Hub[LoopSubscription]):
    """Hub of the tasks of one event loop, with the `inboxes` of these tasks."""

    def __init__(self, session: Session, inboxes: Inboxes) -> None:
        self.inboxes, self.loop = inboxes, inboxes.loop
        client = f"{session.client_id}.{next(session.hubs.numbers)}"
        super().__init__(client, session.prefix, session.masters, session.platform, session.reports)

    def subscription_to(self, master: Master) -> LoopSubscription:
        """Return a new subscription, which the loop reads."""
        return LoopSubscription(self, master)

    def soon(self, do: Callable[[], object]) -> None:
        """Call `do` on the loop, in one of its next turns, unless it is closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(do)

    def new_waiter(self, owner: bytes, keys: LockKeys) -> Waiter:
        """Return a new waiter, with a task's inbox."""
        return Waiter(owner, keys, LoopInbox(self.inboxes), self.shared, self.inboxes.pulse)

    def register(self, owner: bytes, keys: LockKeys) -> Waiter:
        """Return the waiter `owner`; have the janitor watch it from now on, as its loop may be closed at any moment."""
        waiter = super().register(owner, keys)
        self._listener.watch_waiters()
        return waiter

    @property
    def is_attended(self) -> bool:
        """True while tasks wait or a subscription is open: the janitor must notice if the loop is closed."""
        return bool(self.waiters) or any(subscription.is_open for subscription in self.subscriptions)

    def move_to(self, inboxes: Inboxes) -> None:
        """Serve the tasks of another loop from now on, because the last loop was closed."""
        self.inboxes, self.loop = inboxes, inboxes.loop
        for subscription in self.subscriptions:
            subscription.watch_again()

    def hear(self) -> None:
        """Read the messages that have come, and act on them."""
        for subscription in self.subscriptions:
            subscription.hear()

    def hear_instead(self) -> None:
        """Read the messages if the loop is closed: an unread grant blocks its lock until the lease ends."""
        if self.loop.is_closed():
            self.hear()

    def tend(self) -> None:
        """Read the messages that have come, then check the subscriptions, or open them if tasks wait."""
        for subscription in self.subscriptions:
            subscription.tend()


def hub_for(session: Session, inboxes: Inboxes) -> LoopHub:
    """Return a hub for the tasks of a loop: the spare hub of a closed loop, or a new one."""
    hubs = session.hubs
    try:
        hub: LoopHub = hubs.spare.pop()  # type: ignore[assignment]  # only hubs of loops are spared
    except IndexError:
        hub = LoopHub(session, inboxes)
        hubs.add(hub)
    else:
        hub.move_to(inboxes)
    return hub


def give_up(session: Session, hub: LoopHub) -> None:
    """Leave the hub of a loop that is closed to the next loop; stop the hub of another one."""
    hubs = session.hubs
    if hub.loop.is_closed():
        hubs.spare.append(hub)  # Mark, then look: `close` finds it, or this finds the session closed
    else:
        hubs.stop(hub)
    if session.closed and not session.is_closing:  # while closing, the janitor still reads the hub's messages
        hubs.stop_spare()
