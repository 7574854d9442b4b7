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
  and `depose` put an `Ear` there for a moment, so that no thread leads.
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
from relock._runtime.wakeups.ear import Ear
from relock._runtime.wakeups.inbox import Inbox

LEAD = -1  # in a waiter's queue, beside the numbers of masters: no thread leads, so this one may
VACANT_SECONDS = 0.05
BUSY_SECONDS = 0.25
DOZE_SECONDS = 1.0
STUCK_SECONDS = 1.0
_LEADER = "leader"


class Sleeper(Protocol):
    """Waiter, as `Reading` sees it.

    Attributes:
        wakes: numbers of masters that have woken the waiter, None for another reason to look, or `LEAD`.
        is_polling: True while the waiter's thread leads and polls.
        is_parked: True while the waiter may be among the sleepers of `Reading`.
    """

    wakes: Inbox
    is_polling: bool
    is_parked: bool

    def wake(self, master: int | None = None) -> None:
        """Put `master` into `wakes`, and end the waiter's poll."""


class _Ring(NamedTuple):
    """Sockets that the leader polls.

    Attributes:
        made_for: the value of `Reading.wanted` for which the ring was made.
        poll: waits for the sockets, so many milliseconds at most.
        ears: the readers, by the file numbers of their sockets.
        waker: ends a poll; None if no socket was shared yet.
    """

    made_for: object
    poll: Callable[[float], list[tuple[int, int]]]
    ears: dict[int, Ear]
    waker: Waker | None


_NO_RING = _Ring(None, lambda _: [], {}, None)


class Reading:
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
        self._shared: dict[Ear, None] = {}
        self.wanted = object()
        self._ring = _NO_RING
        self._wakers: dict[str, Waker] = {}  # at most one, made when a socket is first shared
        self._dozing: dict[Ear, None] = {}  # readers whose threads sleep for `DOZE_SECONDS`, unless they are woken
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
            for ear in self._shared.copy():
                ear.call()

    def _lead(self, waiter: Sleeper, until: float) -> bool:
        """Lead: read for all until `waiter` is woken, no socket is shared, or it is `until`.

        Return True then, and at once if another thread leads. Return False if the waiter was deposed: try again.
        """
        role = self._role
        if role.setdefault(_LEADER, waiter) is not waiter:
            return True
        ring = self._ring if self._ring.made_for is self.wanted else self._gather()
        if self._role is not role:
            return False  # deposed already
        for ear in ring.ears.values():
            if ear.is_amid:  # an exception struck the last leader before it had acted on a message
                self._try(ear, ear.act)
        while waiter.wakes.empty():
            ring = self._ring if self._ring.made_for is self.wanted else self._gather()
            if self._role is not role:
                return False
            if not ring.ears:
                self._resign(role)
                return True  # the threads of the subscriptions read
            left = until - self.clock()
            if left <= 0:
                return True
            waiter.is_polling = True
            ready = ring.poll(left * 1000) if waiter.wakes.empty() else ()  # Mark, then look
            waiter.is_polling = False
            for fileno, _ in ready:
                heard = ring.ears.get(fileno)
                if heard is not None:
                    self._try(heard, heard.hear_now)
                elif ring.waker is not None:
                    ring.waker.clear()
        return True

    def _resign(self, role: dict[str, object]) -> None:
        """Give up the role, and find another leader if a socket is shared."""
        role.pop(_LEADER, None)
        if self._shared:
            self._hand_on()

    def _gather(self) -> _Ring:
        wanted = self.wanted  # first: a socket that is shared from here on makes this ring outdated
        poller = self._platform.poller()
        ears = {ear.channel.fileno: ear for ear in self._shared.copy()}
        for fileno in ears:
            poller.register(fileno, select.POLLIN)
        waker = self._wakers.get(_LEADER)
        if waker is not None:
            poller.register(waker.fileno, select.POLLIN)
        self._ring = ring = _Ring(wanted, poller.poll, ears, waker)
        return ring

    def _try(self, ear: Ear, hear: Callable[[], object]) -> None:
        """Have the leader read or act on messages by `hear`; give the connection up if it broke."""
        try:
            hear()
        except redis_errors.RedisError as error:
            self._give_up(ear, error)

    def _give_up(self, ear: Ear, error: Exception) -> None:
        ear.fail(error)  # first: the subscription's thread must know, even if an interrupt follows
        self.unshare(ear)

    def _hand_on(self) -> None:
        """Ask a follower to lead, and wake the threads of subscriptions that doze, unless a thread leads."""
        if _LEADER in self._role:
            return
        follower = self._any_parked() if self._parked else None
        if follower is not None:
            follower.wake(LEAD)
        if self._dozing:
            for ear in self._dozing.copy():
                ear.call()

    def _any_parked(self) -> Sleeper | None:
        while True:
            try:
                return next(iter(self._parked), None)
            except RuntimeError:  # another thread has just come or gone
                continue

    # The thread of a subscription -----------------------------------------------------------------------------------

    def share(self, ear: Ear) -> None:
        """Let the leader read `ear`, if any thread waits and the socket can be read without waiting."""
        if not self._parked or ear.channel.take_now is None:
            return
        if not self._wakers:
            try:
                self._wakers.setdefault(_LEADER, self._platform.waker())
            except OSError:
                return  # too many files are open
        self.left_at = self.clock()
        ear.is_led = True
        self._shared[ear] = None
        self._changed()
        self._hand_on()

    def take_back(self, ear: Ear) -> bool:
        """Take `ear` back from the waiting threads if none has led for a moment; return whether that was done."""
        if self.clock() - self.left_at < VACANT_SECONDS:
            return False
        role = self._role
        if role.setdefault(_LEADER, ear) is not ear:
            return False
        is_ours = ear in self._shared and self._role is role
        if is_ours:
            self.unshare(ear)
            ear.is_led = False
        self._resign(role)
        return is_ours

    def unshare(self, ear: Ear) -> None:
        """Have the leader stop reading `ear`, from the leader's next look on."""
        if ear in self._shared:
            self._shared.pop(ear, None)
            self._changed()

    def nap(self, ear: Ear, called: "SimpleQueue[None]", *, is_read: bool, is_unread: bool) -> None:
        """Have the thread of the shared `ear` sleep until another thread wakes it, or it must look again.

        `is_read`: a leader has read between the last two looks; `is_unread`: a message lay unread at the last look.
        """
        with suppress(Empty):
            if is_unread or self.clock() - self.left_at < DOZE_SECONDS:
                called.get(timeout=BUSY_SECONDS if is_read else VACANT_SECONDS)
                return
            self._dozing[ear] = None  # Mark, then look
            try:
                if _LEADER in self._role:
                    called.get(timeout=DOZE_SECONDS)
            finally:
                self._dozing.pop(ear, None)

    def depose(self, ear: Ear, error: Exception) -> None:
        """Depose a leader that stands still, and give up all shared connections: the leader may be reading one."""
        role: dict[str, object] = {_LEADER: ear}  # no thread may lead until the connections are given up
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
        self._ring, self._wakers = _NO_RING, {}

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
