"""Waiters and their wake-ups: one Pub/Sub connection to each master, however many wait.

A client's threads have one hub. The tasks of each of its event loops have another one, with a name and a channel of its
own: see `relock._runtime.aio.loop_hub`. A hub subscribes once to its channel. The masters' scripts publish
``wake <uuid> <name>`` there when it is a waiter's turn, or ``grant <uuid> ...`` when a releaser has given it the lock.
The hub puts a note into that waiter's queue, so that a message that comes before the wait is not lost. A message for a
waiter that this hub does not have (any more) means that others are waiting for a dead turn, or for a hold that nobody
has: it is passed on at once.
"""

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import ref

from relock._core.effects import Handed
from relock._core.hold import Hold
from relock._core.quorum import NEVER, gather_seconds, quorum_of
from relock._keys import LockKeys, lock_keys
from relock._owner import readable
from relock._runtime.masters.master import Master
from relock._runtime.platform import Platform
from relock._runtime.wait_queue import WaitQueue
from relock._runtime.wakeups.reading import Reading
from relock._runtime.wakeups.subscription import Subscription, ThreadSubscription
from relock._runtime.wakeups.waiter import GATHER_SECONDS, Waiter
from relock._scripts import TOKEN_MAX

SERVED_SECONDS = 0.05  # for so long, messages of the slower masters come for a waiter that has had its turn
CATCH_UP_SECONDS = 0.02  # for what a master has published, where a subscription can't be asked
CATCH_UP_LOOK_SECONDS = 0.001  # between two looks at what the masters have published
SERVED_UNSWEPT = 1024  # so many waiters that had their turn may be kept, though that is over


class Served(NamedTuple):
    """Waiter that has had its turn.

    Attributes:
        at: when it had its turn, on our clock.
        owner: the name of its hold.
        late_until: until when, on our clock, masters may say that they have given that hold.
        hold: returns that hold; None once no thread has it, or ends it, any more.
    """

    at: float
    owner: bytes
    late_until: float
    hold: Callable[[], Hold | None]


S = TypeVar("S", bound=Subscription)

_NOT_SERVED = Served(NEVER, b"", NEVER, lambda: None)

_GRANT = re.compile(  # the uuid, what comes after ~ in the hold's name, token, us, lease in ms, incarnation, lock
    rb"grant ([^ ]+) ([^ ]+) ([0-9]{1,16}) ([0-9]{1,16}) ([0-9]{1,12}) ([^ ]+) (.+)", re.DOTALL
)


class HubListener(Protocol):
    """Listener that does for the hub what the hub can't do itself."""

    def pass_turn_on(self, keys: LockKeys, owner: bytes) -> None:
        """Pass on the turn that came for the waiter `owner`, which has left."""

    def unclaimed(self, keys: LockKeys, owner: bytes, token: int) -> None:
        """End the hold `owner`, which a releaser has given to a waiter that has left, unless the waiter has taken it.

        `token` is the fencing token that the masters must know when it ends: 0, or that of a hold that is being ended.
        """

    def subscribed(self) -> None:
        """Note that a subscription is confirmed (again): what was published before may be lost."""

    def watch_waiters(self) -> None:
        """Have a heartbeat look after the waiters: one may be unable to act before it first goes to sleep."""


class Hub(ABC, Generic[S]):
    """Waiters that have one client's name, and a subscription to each master.

    Attributes:
        client: the name.
        names: the names of holds, each another one.
        waiters: by their owners' names.
        subscriptions: in the order of the masters.
        reading: arranges which thread reads the subscriptions, where threads do.
        confirmed: the callers that wait for a subscription to be confirmed.
    """

    confirmed: WaitQueue
    names: Iterator[bytes]
    reading: Reading
    subscriptions: tuple[S, ...]

    def __init__(
        self, client: str, prefix: str, masters: tuple[Master, ...], platform: Platform, listener: HubListener
    ) -> None:
        self.client = client
        self.owner_head = f"{client}:".encode()
        self._serials = itertools.count(1)
        self.prefix = prefix
        self.waiters: dict[bytes, Waiter] = {}
        self.platform = platform
        self._clock = platform.clock
        self.draw_names()
        self._listener = listener
        self.reading = Reading(platform)
        self.subscriptions = tuple(self.subscription_to(master) for master in masters)
        self._masters = masters
        self._quorum = quorum_of(len(masters))
        self.confirmed = WaitQueue()
        self._served: dict[bytes, Served] = {}
        self._left_at = NEVER  # when a waiter last left to which a master may give the lock yet
        self._sweep_at = SERVED_UNSWEPT

    def draw_names(self) -> None:
        """Draw the beginning of the names that holds have from now on.

        This is done afresh whenever a connection is opened: a copy of a virtual machine's memory has to open its own,
        and its holds then have other names than those of the original.
        """
        head = self.owner_head + self.platform.random_hex(4).encode()
        self.names = map((head + b"%08x").__mod__, self._serials)

    def new_name(self, owner: str) -> bytes:
        """Return ``<client>:<owner>.<uuid>``, which names one hold of an ``owner=`` and never another one."""
        name, head = next(self.names), self.owner_head
        return b"%b%b.%b" % (head, readable(owner).encode(), name[len(head) :])

    @property
    def is_attended(self) -> bool:
        """True while heartbeats must look after it: somebody waits."""
        return bool(self.waiters)

    def register(self, owner: bytes, keys: LockKeys) -> Waiter:
        """Return the waiter `owner`, found by its wake-ups from now on."""
        return self.waiters.get(owner) or self.waiters.setdefault(owner, self.new_waiter(owner, keys))

    @abstractmethod
    def subscription_to(self, master: Master) -> S:
        """Return a new subscription to a master."""

    @abstractmethod
    def new_waiter(self, owner: bytes, keys: LockKeys) -> Waiter:
        """Return a new waiter."""

    def forget(self, owner: bytes, *, served: Hold | None = None) -> None:
        """Note that `owner` waits no more; `served` is its hold, in the book already, if it has had its turn."""
        waiter = self.waiters.get(owner)
        if waiter is None:
            return
        if waiter.is_parked:
            self.reading.leave(waiter)  # once more: an interrupt has struck as it left
        settled = set() if served is None else {served.owner}
        self._give_back(waiter, settled)  # Undo, then forget: an interrupt must find it
        self.waiters.pop(owner, None)
        self._give_back(waiter, settled)  # Mark, then look: what has come meanwhile
        now = self._clock()
        if served is None or self._quorum > 1:
            self._left_at = now
        if served is not None:
            # All fields of a Served; the class itself would make one by a function in Python.
            fields = now, served.owner, served.late_until, ref(served)
            self._served[owner] = tuple.__new__(Served, fields)
            if len(self._served) > self._sweep_at:
                self._sweep()
        else:
            self.reading.gave_up()

    def _sweep(self) -> None:
        """Forget the waiters that had their turn so long ago that no message can come for them, and no others.

        A waiter whose hold goes on is kept: a message that comes very late must not end the hold without its token.
        """
        now = self._clock()
        for owner, served in self._served.copy().items():
            if now - served.at > SERVED_SECONDS and now >= served.late_until and served.hold() is None:
                self._served.pop(owner, None)
        self._sweep_at = SERVED_UNSWEPT + 2 * len(self._served)

    def _give_back(self, waiter: Waiter, settled: set[bytes]) -> None:
        """Have the holds that `waiter` was given ended, except those that are `settled`."""
        for grant in waiter.handed.copy():
            if grant.owner not in settled:
                self._listener.unclaimed(waiter.keys, grant.owner, 0)
                settled.add(grant.owner)

    def handed_to(self, waiter: Waiter) -> list[Handed]:
        """Return the grants to `waiter`; a grant from before a step of its master's clock has no known time."""
        grants = waiter.handed.copy()
        for place, grant in enumerate(grants):
            if grant.begins < self._masters[grant.master].facts.trusted_from:
                grants[place] = grant._replace(begins=NEVER)
        return grants

    def gather_seconds(self) -> float:
        """Return for how long (s) a waiter that one master has given the lock waits for a quorum of masters."""
        round_trips = [master.facts.offset.round_trip for master in self._masters]
        return gather_seconds(round_trips, self._quorum, GATHER_SECONDS, self._masters[0].node_timeout)

    def listen(self, until: float) -> bool:
        """Wait until a quorum has confirmed the subscription, until `until` at most; return whether one has."""
        confirmed = 0
        for subscription in self.subscriptions:
            subscription.ensure()
            confirmed += subscription.is_confirmed
        return confirmed >= self._quorum or self.confirmed.wait_for(self.is_confirmed, until, self.platform)

    def is_confirmed(self) -> bool:
        """Return whether a quorum has confirmed the subscription."""
        return sum(subscription.is_confirmed for subscription in self.subscriptions) >= self._quorum

    def message(self, master: int, payload: bytes) -> None:
        """Act on a grant or a wake-up that master number `master` published; ignore anything else."""
        found = _GRANT.fullmatch(payload)
        if found is not None:
            self._given(self.subscriptions[master], found)
        elif payload.startswith(b"wake "):
            self._woken(master, payload)

    def _given(self, subscription: S, found: re.Match[bytes]) -> None:
        uuid, hold, token, micros, lease_ms, incarnation, name = found.groups()
        owner, number, granted_us = self.owner_head + uuid, int(token), int(micros)
        if not 0 < number <= TOKEN_MAX:
            return
        begins = subscription.granted_at(granted_us, incarnation, self._clock())
        # All fields of a Handed; the class itself would make one by a function in Python.
        fields = subscription.index, b"%b~%b" % (owner, hold), number, granted_us, int(lease_ms) / 1000, begins
        grant: Handed = tuple.__new__(Handed, fields)
        waiter = self.waiters.get(owner)
        if waiter is not None and waiter.keys.name.encode() == name:
            waiter.give(grant)
            if not waiter.parks:
                self._listener.watch_waiters()
            if self.waiters.get(owner) is waiter:
                return  # Mark, then look: else it has just been forgotten, and may not have seen this
        keys = self._keys_of(name)
        if keys is not None:
            self._given_to_nobody(keys, owner, grant)

    def _given_to_nobody(self, keys: LockKeys, owner: bytes, grant: Handed) -> None:
        """Have a hold ended that was given to a waiter which is gone, unless it is held, or its release ends it."""
        served = self._served.get(owner, _NOT_SERVED)
        is_taken = served.owner == grant.owner
        if is_taken and self._clock() < served.late_until:
            return  # it comes from a slower one of those that gave this hold; its release sees to all of them
        taken = served.hold() if is_taken else None
        if taken is not None and taken.count > 0 and taken.loss is None:
            return  # it is held, or being released: its release sees to all masters, and must find it there
        # What ends it must bring the token as well: its release may not have told every master.
        self._listener.unclaimed(keys, grant.owner, 0 if taken is None else taken.fence)

    def _woken(self, master: int, payload: bytes) -> None:
        _, _, rest = payload.partition(b" ")
        uuid, _, name = rest.partition(b" ")
        if not name:
            return
        owner = self.owner_head + uuid
        waiter = self.waiters.get(owner)
        if waiter is not None:
            if self.subscriptions[master].has_vote(self._clock()):
                waiter.wake(master)
                if not waiter.parks:
                    self._listener.watch_waiters()
        elif self._clock() - self._served.get(owner, _NOT_SERVED).at > SERVED_SECONDS:
            keys = self._keys_of(name)
            if keys is not None:
                self._listener.pass_turn_on(keys, owner)

    def _keys_of(self, name: bytes) -> LockKeys | None:
        try:
            return lock_keys(self.prefix, name.decode())
        except UnicodeDecodeError:
            return None  # no lock has such a name

    def turns_missed(self, owner: bytes) -> int:
        """Return how often the waiter `owner` was told, and did not look for as long as a turn lasts."""
        waiter = self.waiters.get(owner)
        return 0 if waiter is None else waiter.missed

    def wake_all(self) -> None:
        """Make every waiter look again: the masters, or the way to them, have changed."""
        for waiter in list(self.waiters.values()):
            waiter.wake()

    def subscribed(self) -> None:
        """Wake those that wait for a subscription, and tell the listener that one is confirmed."""
        self.confirmed.wake_all()
        self._listener.subscribed()

    def catch_up(self, until: float) -> None:
        """Wait, until `until` at most, for all that the masters have published by now, if it may concern a waiter.

        A grant may be on its way to a waiter that is here, or that has left within the last node timeout.
        """
        self.hear_instead()
        if not self.waiters and self._clock() - self._left_at > self._masters[0].node_timeout:
            return
        standing = [one for one in self.subscriptions if one.is_confirmed]
        asked = [one.ask_for_pong() for one in standing]
        if not all(asked):
            self.platform.sleep(CATCH_UP_SECONDS)
        self.reading.gave_up()  # the threads of the subscriptions read, where nobody else does
        while any(one.is_pong_due for one in standing) and self._clock() < until:
            self.platform.sleep(CATCH_UP_LOOK_SECONDS)
            self.hear_instead()

    def hear_instead(self) -> None:
        """Act on the messages that have come by now, if what reads the subscriptions will never do so again."""

    def stop(self) -> None:
        """End the subscriptions."""
        for subscription in self.subscriptions:
            subscription.stop()

    def abandon(self) -> None:
        """Close the copies of the parent's sockets, in a forked child."""
        for subscription in self.subscriptions:
            subscription.abandon()
        self.reading.abandon()


AnyHub = Hub[Any]


class ThreadHub(Hub[ThreadSubscription]):
    """Hub of a client's threads."""

    def subscription_to(self, master: Master) -> ThreadSubscription:
        """Return a new subscription, with a thread of its own."""
        return ThreadSubscription(self, master)

    def new_waiter(self, owner: bytes, keys: LockKeys) -> Waiter:
        """Return a new waiter, with a thread's inbox."""
        return Waiter(owner, keys, self.platform.queue(), self.reading)
