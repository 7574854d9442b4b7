"""Readers of the subscriptions of a client's threads: a thread that waits, or a thread of each subscription.

A message is for a thread that waits. If another thread reads it, the two have to change places before anything goes on,
which takes longer than the message was on its way. So one of the waiting threads, the *leader*, polls the sockets for
all of them; the others, its *followers*, sleep on their queues as before. When the leader leaves, it makes a follower
the leader. (Leader and followers: Schmidt, Stal, Rohnert and Buschmann, "Pattern-Oriented Software Architecture",
volume 2, 2000.)

A shared socket must always have a reader. A master counts a client that has subscribed as listening, and grants it the
lock even if no thread reads the message. So each subscription has a thread of its own, too:

* It opens the connection, and pings. It reads while no thread waits, and where a socket can't be read without waiting
  (TLS).
* It *shares* its socket with the waiting threads, if there are any: once it is connected, and after each
  read, which ends after the time between two pings at the latest. Then it naps.
* When no leader has read for `VACANT_SECONDS`, it takes the socket back at its next look; at once if the last waiter
  has given up. A waiter that has got the lock usually comes again soon, so it does not call this thread when it leaves.
* It looks every `VACANT_SECONDS`. While leaders come and go, and read, it looks every `BUSY_SECONDS`: the many
  processes of a busy lock would wake up for nothing. While one leader stays, it looks every `DOZE_SECONDS`, and a
  leader that leaves calls it.
* When something has lain unread for `STUCK_SECONDS`, the leader stands still: in a signal handler, say, or in a
  debugger. Then the shared connections are given up, others are opened, and the leader is deposed.

The rules:

* The leader is the one value in `_role`, set by `dict.setdefault` and removed by whichever thread set it. `take_back`
  and `depose` put an `Ear` there for a moment, so that nobody leads.
  To depose the leader is to put a new dictionary in place of the old one. A deposed leader notices before it polls
  again; until then it reads only connections that were given up, which no other thread reads.
* A socket is shared, and taken back, by the thread of its subscription alone, and taken back in the leader's role: so
  no other thread reads just then. Any thread may unshare a connection that is closed or given up.
* A leader that leaves gives up the role first, and looks for a follower then. A thread that comes enters `_parked`
  first, and tries for the role then. Of the two, at least one sees the other.
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

LEAD = -1  # in a waiter's queue, beside the numbers of masters: nobody leads
VACANT_SECONDS = 0.05
BUSY_SECONDS = 0.25
DOZE_SECONDS = 1.0
STUCK_SECONDS = 1.0
_LEADER = "leader"


class Sleeper(Protocol):
    """Waiter, as `Reading` sees it.

    Attributes:
        wakes: the number of a master that has woken it, or None; or `LEAD`.
        is_polling: True while it leads and polls.
        is_parked: True from before `Reading` knows that it sleeps until after that is forgotten.
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
        ears: by the numbers of their sockets.
        waker: ends a poll; None where nothing was shared yet.
    """

    made_for: object
    poll: Callable[[float], list[tuple[int, int]]]
    ears: dict[int, Ear]
    waker: Waker | None


_NO_RING = _Ring(None, lambda _: [], {}, None)


class Reading:
    """Shared sockets of one client's threads, and the waiting thread that reads them.

    Attributes:
        clock: the client's.
        left_at: when a leader last left, or a socket was last shared; `NEVER` once sockets may be taken back at once,
            because the last waiter has given up.
        wanted: replaced by another object whenever what is shared changes.
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self.clock = platform.clock
        self._role: dict[str, object] = {}
        self._parked: dict[Sleeper, None] = {}
        self._shared: dict[Ear, None] = {}
        self.wanted = object()
        self._ring = _NO_RING
        self._wakers: dict[str, Waker] = {}  # one, once a socket was shared
        self._dozing: dict[Ear, None] = {}  # those whose threads look again only when they are called
        self.left_at = NEVER

    # A thread that waits --------------------------------------------------------------------------------------------

    def next_for(self, waiter: Sleeper, until: float) -> int | None:
        """Sleep until `waiter` is woken, and lead meanwhile if no other thread does.

        Return the number of the master that woke it; None if it must look in any case.

        Raises:
            queue.Empty: nothing has woken it until the clock's `until` (s).
        """
        waiter.is_parked = True
        while True:
            self._parked[waiter] = None  # Mark, then look
            may_lead = self._shared or self._role.get(_LEADER) is waiter  # it must not keep the role in its sleep
            if may_lead and waiter.wakes.empty() and not self._lead(waiter, until):
                continue
            woken_by = waiter.wakes.get(timeout=max(0.0, until - self.clock()))
            if woken_by != LEAD:
                return woken_by

    def leave(self, waiter: Sleeper) -> None:
        """Note that `waiter` sleeps no more, and ask another one to lead if nobody does then."""
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
        """Have the threads of the subscriptions take the sockets back at once, if nobody is about to wait any more."""
        if self._shared and not (self._parked or _LEADER in self._role):
            self.left_at = NEVER
            for ear in self._shared.copy():
                ear.call()

    def _lead(self, waiter: Sleeper, until: float) -> bool:
        """Read for all until `waiter` is woken, nothing is shared, or it is `until`; not where another one leads.

        Return False where the waiter was deposed: ask again. Else return True, also where another one leads.
        """
        role = self._role
        if role.setdefault(_LEADER, waiter) is not waiter:
            return True
        ring = self._ring if self._ring.made_for is self.wanted else self._gather()
        if self._role is not role:
            return False  # deposed, before it had begun
        for ear in ring.ears.values():
            if ear.is_amid:  # the last leader was struck
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
        """Give up the role, and find another leader if anything is shared."""
        role.pop(_LEADER, None)
        if self._shared:
            self._hand_on()

    def _gather(self) -> _Ring:
        wanted = self.wanted  # first: what is shared from here on makes the ring an old one
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
        """Have the leader read or act on what has come; give the connection up where it broke."""
        try:
            hear()
        except redis_errors.RedisError as error:
            self._give_up(ear, error)

    def _give_up(self, ear: Ear, error: Exception) -> None:
        ear.fail(error)  # first: its thread must know, wherever an exception strikes
        self.unshare(ear)

    def _hand_on(self) -> None:
        """Ask a follower to lead if nobody does, and call the threads of subscriptions that doze."""
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
        """Let the leader read `ear`, if a thread waits, and the socket can be read without waiting."""
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
        """Take `ear` back from the waiting threads if none has led for a moment; return whether it was taken back."""
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
        """Have the leader read `ear` no more, from the leader's next look on."""
        if ear in self._shared:
            self._shared.pop(ear, None)
            self._changed()

    def nap(self, ear: Ear, called: "SimpleQueue[None]", *, is_read: bool, is_unread: bool) -> None:
        """Sleep until the thread of `ear`, which is shared, is called, or may have something to do.

        `is_read`: a leader has read it between the last two looks; `is_unread`: something lay there at the last one.
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
        role: dict[str, object] = {_LEADER: ear}  # so that nobody else leads until these are gone
        deposed, self._role = self._role.get(_LEADER), role
        self._parked.pop(deposed, None)  # type: ignore[call-overload]  # it could not lead before it goes on
        # It may be in a poll, which goes on when its handler returns, perhaps on a socket of the same number: the waker
        # stays as it is then, for nobody else's poll.
        wakers, self._wakers = self._wakers, {}
        self._changed()
        for shared in self._shared.copy():
            self._give_up(shared, error)
        for waker in wakers.values():
            waker.wake()
        self._resign(role)

    def stop(self) -> None:
        """Forget the sockets and the pipe, which is closed when the last poll that uses the pipe has returned."""
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
