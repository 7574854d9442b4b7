"""Readers of the subscriptions of a client's threads: a thread that waits, or a thread of each subscription.

A message is for a thread that waits. If another thread read the message, the operating system would have to switch
threads, which takes longer than the message was on its way. So one of the waiting threads, the *leader*, polls the
sockets for all of them; the others, its *followers*, sleep on their queues. When the leader leaves, it makes a follower
the leader. (Leader and followers: Schmidt, Stal, Rohnert and Buschmann, "Pattern-Oriented Software Architecture",
volume 2, 2000.)

A shared socket must always have a reader. A master counts a client that has subscribed as listening, and grants it the
lock even if no thread reads the message. So each subscription has a thread of its own, too:

* The thread opens the connection, and pings. It reads while no other thread waits, and always if the socket can't be
  read without waiting (TLS).
* The thread *shares* its socket with the waiting threads, if there are any: once it is connected, and after each
  read, which ends after the time between two pings at the latest. Then it naps.
* When no thread has led for `VACANT_SECONDS`, the thread takes the socket back at its next look; at once if the last
  waiter has given up. A waiter that has got the lock usually waits again soon, so it does not wake this thread.
* The thread looks every `VACANT_SECONDS`. While leaders come and go, and read, it looks every `BUSY_SECONDS`: a busy
  lock has many processes, whose threads would wake up in vain. While one leader stays, it looks every `DOZE_SECONDS`,
  and a leader that leaves wakes it.
* When a message has lain unread for `STUCK_SECONDS`, the leader stands still: in a signal handler, say, or in a
  debugger. Then the shared connections are given up, others are opened, and the leader is deposed.

The rules:

* The leader is the one value in `_role`, set by `dict.setdefault` and removed by whichever thread set it. `take_back`
  and `depose` put an `SubscribedConnection` there for a moment, so that no thread leads.
  To depose the leader is to put a new dictionary in place of the old one. A deposed leader notices before it polls
  again; until then it reads only connections that were given up, which no other thread reads.
* Only the thread of its subscription shares a socket, and takes it back; for the latter, that thread takes the leader's
  role, so that no other thread reads just then. Any thread may unshare a connection that is closed or given up.
* A leader that leaves first gives up the role, and then looks for a follower. A thread that comes first enters
  `_parked`, and then tries to get the role. So at least one of the two sees the other.
"""

import select
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from redis import exceptions as redis_errors

from relock._core.quorum import NEVER
from relock._runtime.net.waker import Waker
from relock._runtime.platform import Platform
from relock._runtime.wakeups.inbox import Inbox
from relock._runtime.wakeups.subscribed_connection import SubscribedConnection

LEAD = -1  # in a waiter's queue, beside the numbers of masters: no thread leads, so this one may
VACANT_SECONDS = 0.05
BUSY_SECONDS = 0.25
DOZE_SECONDS = 1.0
STUCK_SECONDS = 1.0
_LEADER = "leader"


class Sleeper(Protocol):
    """Waiter, as `SharedSubscriptions` sees it.

    Attributes:
        wakes: numbers of masters that have woken the waiter, None for another reason to look, or `LEAD`.
        is_polling: True while the waiter's thread leads and polls.
        is_parked: True while the waiter may be among the sleepers of `SharedSubscriptions`.
    """

    wakes: Inbox
    is_polling: bool
    is_parked: bool

    def wake(self, master: int | None = None) -> None:
        """Put `master` into `wakes`, and end the waiter's poll."""


class _PollSet(NamedTuple):
    """Sockets that the leader polls.

    Attributes:
        made_for: the value of `SharedSubscriptions.wanted` for which the set was made.
        poll: waits for the sockets, so many milliseconds at most.
        connections: the readers, by the file numbers of their sockets.
        waker: ends a poll; None if no socket was shared yet.
    """

    made_for: object
    poll: Callable[[float], list[tuple[int, int]]]
    connections: dict[int, SubscribedConnection]
    waker: Waker | None


_EMPTY = _PollSet(None, lambda _: [], {}, None)


class SharedSubscriptions:
    """Shared sockets of one client's threads, and the waiting thread that reads them.

    Attributes:
        clock: the clock of the client.
        left_at: when a leader last left, or a socket was last shared; `NEVER` once sockets may be taken back at once,
            because the last waiter has given up.
        wanted: an object that is replaced whenever the set of shared sockets changes.
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self.clock = platform.clock
        self._role: dict[str, object] = {}
        self._parked: dict[Sleeper, None] = {}
        self._shared: dict[SubscribedConnection, None] = {}
        self.wanted = object()
        self._poll_set = _EMPTY
        self._wakers: dict[str, Waker] = {}  # at most one, made when a socket is first shared
        self._dozing: dict[
            SubscribedConnection, None
        ] = {}  # readers whose threads sleep for `DOZE_SECONDS`, unless they are woken
        self.left_at = NEVER

    # A thread that waits --------------------------------------------------------------------------------------------

    def next_for(self, waiter: Sleeper, until: float) -> int | None:
        """Sleep until `waiter` is woken, and lead meanwhile if no other thread does.

        Return the number of the master that woke the waiter; None if it must look for another reason.

        Raises:
            queue.Empty: nothing has woken the waiter until the clock's `until` (s).
        """
        waiter.is_parked = True
        while True:
            self._parked[waiter] = None  # Mark, then look
            may_lead = self._shared or self._role.get(_LEADER) is waiter  # a leader must not sleep with the role
            if may_lead and waiter.wakes.empty() and not self._lead(waiter, until):
                continue
            woken_by = waiter.wakes.get(timeout=max(0.0, until - self.clock()))
            if woken_by != LEAD:
                return woken_by

    def leave(self, waiter: Sleeper) -> None:
        """Note that `waiter` no longer sleeps, and ask another one to lead if no thread leads then."""
        self._parked.pop(waiter, None)
        waiter.is_polling = False
        role = self._role
        if role.get(_LEADER) is waiter:
            self.left_at = self.clock()
            self._resign(role)
        elif self._shared:
            self._hand_on()
        waiter.is_parked = False

    def gave_up(self) -> None:
        """Have the threads of the subscriptions take the sockets back at once, if no thread waits any more."""
        if self._shared and not (self._parked or _LEADER in self._role):
            self.left_at = NEVER
            for connection in self._shared.copy():
                connection.call()

    def _lead(self, waiter: Sleeper, until: float) -> bool:
        """Lead: read for all until `waiter` is woken, no socket is shared, or it is `until`.

        Return True then, and at once if another thread leads. Return False if the waiter was deposed: try again.
        """
        role = self._role
        if role.setdefault(_LEADER, waiter) is not waiter:
            return True
        poll_set = self._poll_set if self._poll_set.made_for is self.wanted else self._gather()
        if self._role is not role:
            return False  # deposed already
        for connection in poll_set.connections.values():
            if connection.has_unhandled:  # an exception struck the last leader before it had acted on a message
                self._try(connection, connection.act)
        while waiter.wakes.empty():
            poll_set = self._poll_set if self._poll_set.made_for is self.wanted else self._gather()
            if self._role is not role:
                return False
            if not poll_set.connections:
                self._resign(role)
                return True  # the threads of the subscriptions read
            left = until - self.clock()
            if left <= 0:
                return True
            waiter.is_polling = True
            ready = poll_set.poll(left * 1000) if waiter.wakes.empty() else ()  # Mark, then look
            waiter.is_polling = False
            for fileno, _ in ready:
                heard = poll_set.connections.get(fileno)
                if heard is not None:
                    self._try(heard, heard.hear_now)
                elif poll_set.waker is not None:
                    poll_set.waker.clear()
        return True

    def _resign(self, role: dict[str, object]) -> None:
        """Give up the role, and find another leader if a socket is shared."""
        role.pop(_LEADER, None)
        if self._shared:
            self._hand_on()

    def _gather(self) -> _PollSet:
        wanted = self.wanted  # first: a socket that is shared from here on makes this poll_set outdated
        poller = self._platform.poller()
        connections = {connection.channel.fileno: connection for connection in self._shared.copy()}
        for fileno in connections:
            poller.register(fileno, select.POLLIN)
        waker = self._wakers.get(_LEADER)
        if waker is not None:
            poller.register(waker.fileno, select.POLLIN)
        self._poll_set = poll_set = _PollSet(wanted, poller.poll, connections, waker)
        return poll_set

    def _try(self, connection: SubscribedConnection, hear: Callable[[], object]) -> None:
        """Have the leader read or act on messages by `hear`; give the connection up if it broke."""
        try:
            hear()
        except redis_errors.RedisError as error:
            self._give_up(connection, error)

    def _give_up(self, connection: SubscribedConnection, error: Exception) -> None:
        connection.fail(error)  # first: the subscription's thread must know, even if an interrupt follows
        self.unshare(connection)

    def _hand_on(self) -> None:
        """Ask a follower to lead, and wake the threads of subscriptions that doze, unless a thread leads."""
        if _LEADER in self._role:
            return
        follower = self._any_parked() if self._parked else None
        if follower is not None:
            follower.wake(LEAD)
        if self._dozing:
            for connection in self._dozing.copy():
                connection.call()

    def _any_parked(self) -> Sleeper | None:
        while True:
            try:
                return next(iter(self._parked), None)
            except RuntimeError:  # another thread has just come or gone
                continue

    # The thread of a subscription -----------------------------------------------------------------------------------

    def share(self, connection: SubscribedConnection) -> None:
        """Let the leader read `connection`, if any thread waits and the socket can be read without waiting."""
        if not self._parked or connection.channel.take_now is None:
            return
        if not self._wakers:
            try:
                self._wakers.setdefault(_LEADER, self._platform.waker())
            except OSError:
                return  # too many files are open
        self.left_at = self.clock()
        connection.is_led = True
        self._shared[connection] = None
        self._changed()
        self._hand_on()

    def take_back(self, connection: SubscribedConnection) -> bool:
        """Take back `connection` from the waiting threads if none has led for a moment; return whether it was taken."""
        if self.clock() - self.left_at < VACANT_SECONDS:
            return False
        role = self._role
        if role.setdefault(_LEADER, connection) is not connection:
            return False
        is_ours = connection in self._shared and self._role is role
        if is_ours:
            self.unshare(connection)
            connection.is_led = False
        self._resign(role)
        return is_ours

    def unshare(self, connection: SubscribedConnection) -> None:
        """Have the leader stop reading `connection`, from the leader's next look on."""
        if connection in self._shared:
            self._shared.pop(connection, None)
            self._changed()

    def nap(
        self, connection: SubscribedConnection, called: "SimpleQueue[None]", *, is_read: bool, is_unread: bool
    ) -> None:
        """Have the thread of the shared `connection` sleep until another thread wakes it, or it must look again.

        `is_read`: a leader has read between the last two looks; `is_unread`: a message lay unread at the last look.
        """
        with suppress(Empty):
            if is_unread or self.clock() - self.left_at < DOZE_SECONDS:
                called.get(timeout=BUSY_SECONDS if is_read else VACANT_SECONDS)
                return
            self._dozing[connection] = None  # Mark, then look
            try:
                if _LEADER in self._role:
                    called.get(timeout=DOZE_SECONDS)
            finally:
                self._dozing.pop(connection, None)

    def depose(self, connection: SubscribedConnection, error: Exception) -> None:
        """Depose a leader that stands still, and give up all shared connections: the leader may be reading one."""
        role: dict[str, object] = {_LEADER: connection}  # no thread may lead until the connections are given up
        deposed, self._role = self._role.get(_LEADER), role
        self._parked.pop(deposed, None)  # type: ignore[call-overload]  # a stuck thread could not lead if it were asked
        # The deposed leader may be in a poll, which goes on when its signal handler returns, perhaps on new sockets
        # with the old numbers. So the old waker stays woken, and no other thread uses it.
        wakers, self._wakers = self._wakers, {}
        self._changed()
        for shared in self._shared.copy():
            self._give_up(shared, error)
        for waker in wakers.values():
            waker.wake()
        self._resign(role)

    def stop(self) -> None:
        """Forget the sockets and the pipe; the pipe is closed when the last poll that uses it has returned."""
        self._poll_set, self._wakers = _EMPTY, {}

    def abandon(self) -> None:
        """Close the copies of the parent's pipe, in a forked child."""
        wakers, self._wakers = self._wakers, {}
        for waker in wakers.values():
            waker.close()

    def _changed(self) -> None:
        self.wanted = object()
        if _LEADER in self._role:
            self.rouse()

    def rouse(self) -> None:
        """End the leader's poll."""
        for waker in self._wakers.values():
            waker.wake()
