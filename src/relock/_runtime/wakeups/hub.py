"""Waiters and their wake-ups: one Pub/Sub connection to each master, however many wait.

A client's threads have one hub. The tasks of each of its event loops have another one, with a name and a channel of its
own: see `relock._runtime.aio.loop_hub`. A hub subscribes once to its channel on each master. The masters' scripts
publish ``wake <uuid> <name>`` there when it is a waiter's turn, or ``grant <uuid> ...`` when a releaser has given that
waiter the lock. The hub puts an item into the waiter's inbox, so that a message that comes before the wait is not lost.
Other clients send ``ask`` and ``wait``, to find deadlocks, and ``ended`` for a hold that they have ended by force.

A message may come for a waiter that this hub does not have (any more). Then other waiters wait behind a turn or a hold
that no caller uses, so the turn is passed on, or the hold ended, at once.
"""

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import ref

from relock._core.effects import Handed
from relock._core.hold import Hold
from relock._core.quorum import NEVER, gather_seconds, quorum_of
from relock._keys import LockKeys, lock_keys, permit_keys, read_keys
from relock._owner import LATCH_MARK, READ_MARK, SHARD_MARK, readable
from relock._runtime.masters.master import Master
from relock._runtime.platform import Platform
from relock._runtime.wait_queue import WaitQueue
from relock._runtime.wakeups.shared_subscriptions import BUSY_SECONDS, VACANT_SECONDS, SharedSubscriptions
from relock._runtime.wakeups.subscription import Subscription
from relock._runtime.wakeups.thread_subscription import ThreadSubscription
from relock._runtime.wakeups.waiter import GATHER_SECONDS, Waiter
from relock._scripts import TOKEN_MAX

SERVED_SECONDS = 0.05  # for this long, slower masters' messages may come for a waiter that has had its turn
UNREAD_SECONDS = VACANT_SECONDS + BUSY_SECONDS  # for this long, messages may lie unread where no thread leads
CATCH_UP_SECONDS = 0.02  # time for messages on their way, if a subscription can't be pinged
CATCH_UP_LOOK_SECONDS = 0.001  # between two looks whether all pings were answered
SERVED_UNSWEPT = 1024  # waiters that had their turn: a sweep comes when so many were added


class Served(NamedTuple):
    """Note of a waiter that has had its turn.

    Attributes:
        at: our time of the turn.
        owner: the name of the waiter's hold.
        late_until: our time until which masters may report that they have given that hold.
        hold: a weak reference to the hold.
    """

    at: float
    owner: bytes
    late_until: float
    hold: Callable[[], Hold | None]


if TYPE_CHECKING:
    from relock._runtime.wakeups.channels import HubChannels

S = TypeVar("S", bound=Subscription)

_NOT_SERVED = Served(NEVER, b"", NEVER, lambda: None)

_GRANT = re.compile(  # the uuid, the part of the hold's name after ~, token, time (us), lease (ms), incarnation, lock
    rb"grant ([^ ]+) ([^ ]+) ([0-9]{1,16}) ([0-9]{1,16}) ([0-9]{1,12}) ([^ ]+) (.+)", re.DOTALL
)


class HubListener(Protocol):
    """Listener that acts for the hub: it reaches the janitor and the book."""

    def pass_turn_on(self, keys: LockKeys, owner: bytes) -> None:
        """Pass on the turn that came for the waiter `owner`, which has left."""

    def unclaimed(self, keys: LockKeys, owner: bytes, token: int) -> None:
        """End the hold `owner`, which a releaser gave to a waiter that has left, unless the hold is in the book.

        `token` is the fencing token that the end of the hold must write to the masters; 0 for none.
        """

    def asked(self, message: bytes) -> None:
        """Act on another client's question, or answer, about a wait: see `relock._runtime.background.chase`."""

    def ended(self, name: str, owner: bytes) -> None:
        """Find out whether the hold `owner` has ended by force, as another client says."""

    def subscribed(self) -> None:
        """Note that a subscription is confirmed (again): messages from before may be lost."""

    def watch_waiters(self) -> None:
        """Have heartbeats check the waiters, because one may be stuck even before it first goes to sleep."""


class Hub(ABC, Generic[S]):
    """Hub: the waiters with one name of a client, and a subscription to each master.

    Attributes:
        client: the name.
        awaits_kind: True until a Cluster has shown if it knows sharded channels: then names say where waiters listen.
        channels: the sharded channels on a Cluster, or the channels of Redisson; None for any other masters.
        has_channels: True if waiters listen on these: as all nodes of the Cluster know them, or Redisson is beside.
        names: yields a new name for each hold.
        waiters: the waiters, by their owners' names.
        subscriptions: one for each master, in their order, and behind it those to the nodes of a Cluster.
        shared: decides which thread reads the subscriptions; unused if an event loop reads them.
        confirmed: the callers that wait for a subscription to be confirmed.
    """

    channels: "HubChannels | None"
    confirmed: WaitQueue
    names: Iterator[bytes]
    shared: SharedSubscriptions
    subscriptions: list[S]

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
        self._masters = masters
        self._listener = listener
        self.shared = SharedSubscriptions(platform)
        self.subscriptions = [self.subscription_to(master) for master in masters]
        self.channels = _channels_of(self, masters[0])
        self.draw_names()
        self._quorum = quorum_of(len(masters))
        self.confirmed = WaitQueue()
        self._served: dict[bytes, Served] = {}
        self._left_at = NEVER  # when the last waiter left to which a master may still give the lock
        self._sweep_at = SERVED_UNSWEPT

    def draw_names(self) -> None:
        """Draw a new random beginning for the names of the holds to come.

        The session calls this whenever a connection is opened. If a virtual machine is cloned, the clone must open
        connections of its own, so its holds then have other names than those of the original.
        """
        channels = self.channels
        is_sharded = False if channels is None else channels.is_sharded
        self.has_channels, self.awaits_kind = channels is not None and channels.are_used, is_sharded is None
        self._name_head = self.owner_head + (SHARD_MARK if is_sharded else b"")
        head = self._name_head + self.platform.random_hex(4).encode()
        self.names = map((head + b"%08x").__mod__, self._serials)

    def new_name(self, owner: str) -> bytes:
        """Return a new ``<client>:<owner>.<uuid>``, the name of one hold of an ``owner=``."""
        name, head = next(self.names), self._name_head
        return b"%b%b.%b" % (head, readable(owner).encode(), name[len(head) :])

    @property
    def is_attended(self) -> bool:
        """True while heartbeats are needed, because there are waiters."""
        return bool(self.waiters)

    def register(self, owner: bytes, keys: LockKeys) -> Waiter:
        """Return the waiter `owner`, made if necessary; from now on, messages for it reach it."""
        return self.waiters.get(owner) or self.waiters.setdefault(owner, self.new_waiter(owner, keys))

    @abstractmethod
    def subscription_to(self, master: Master) -> S:
        """Return a new subscription to a master."""

    @abstractmethod
    def soon(self, do: Callable[[], object]) -> None:
        """Call `do` where subscriptions may be added and stopped: soon on the hub's loop, or now on this thread."""

    @abstractmethod
    def new_waiter(self, owner: bytes, keys: LockKeys) -> Waiter:
        """Return a new waiter."""

    def hear_ends(self) -> None:
        """Have the subscriptions made by which other clients say that they have ended holds by force."""
        for subscription in self.subscriptions[: len(self._masters)]:
            subscription.ensure()

    def forget(self, owner: bytes, *, served: Hold | None = None) -> None:
        """Note that the waiter `owner` no longer waits; `served` is its hold, in the book already, if it got one."""
        waiter = self.waiters.get(owner)
        if waiter is None:
            return
        if waiter.is_parked:
            self.shared.leave(waiter)  # once more: an interrupt has cut the first `leave` off
        settled = set() if served is None else {served.owner}
        self._give_back(waiter, settled)  # Undo, then forget: after an interrupt here, the waiter must be found
        self.waiters.pop(owner, None)
        self._give_back(waiter, settled)  # Mark, then look: grants may have come meanwhile
        now = self._clock()
        if served is None or self._quorum > 1:
            self._left_at = now
        if served is not None:
            # `tuple.__new__` takes all fields of a Served, and avoids the class's `__new__`, which is Python code.
            fields = now, served.owner, served.late_until, ref(served)
            self._served[owner] = tuple.__new__(Served, fields)
            if len(self._served) > self._sweep_at:
                self._sweep()
        else:
            self.shared.gave_up()

    def _sweep(self) -> None:
        """Forget the waiters that had their turn so long ago that no message can come for them any more.

        A waiter whose hold still exists is kept: a very late message must not end that hold.
        """
        now = self._clock()
        for owner, served in self._served.copy().items():
            if now - served.at > SERVED_SECONDS and now >= served.late_until and served.hold() is None:
                self._served.pop(owner, None)
        self._sweep_at = SERVED_UNSWEPT + 2 * len(self._served)

    def _give_back(self, waiter: Waiter, settled: set[bytes]) -> None:
        """Have the holds ended that releasers gave `waiter`, except the `settled` ones; add them to these."""
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

    def listen(self, keys: LockKeys, until: float) -> bool:
        """Wait until messages for a registered waiter for `keys` are heard, until `until` at most; return if they are.

        That is so once a quorum has confirmed the subscription.
        """
        if self.channels is not None and self.has_channels:
            if self.channels.is_heard(keys):
                return True
        else:
            confirmed = 0
            for subscription in self.subscriptions:
                subscription.ensure()
                confirmed += subscription.is_confirmed
            if confirmed >= self._quorum:
                return True
        queue, is_heard = self.listening(keys)
        return queue.wait_for(is_heard, until, self.platform)

    def listening(self, keys: LockKeys) -> tuple[WaitQueue, Callable[[], bool]]:
        """Return the queue in which to wait until messages for `keys` are heard, and a function that says if so."""
        if self.channels is not None and self.has_channels:
            return self.channels.begin_to_listen(keys)
        return self.confirmed, self.is_confirmed

    def is_confirmed(self) -> bool:
        """Return whether a quorum has confirmed the subscription."""
        return sum(subscription.is_confirmed for subscription in self.subscriptions) >= self._quorum

    def message(self, subscription: S, payload: bytes) -> None:
        """Act on a message that a subscription has brought; ignore those that this version does not know."""
        found = _GRANT.fullmatch(payload)
        if found is not None:
            self._given(subscription, found)
        elif payload.startswith(b"wake "):
            self._woken(subscription, payload)
        elif payload.startswith((b"ask ", b"wait ")):
            self._listener.asked(payload)
        elif payload.startswith(b"ended "):
            uuid, _, name = payload.partition(b" ")[2].partition(b" ")
            self._listener.ended(name.decode(errors="replace"), self.owner_head + uuid)

    def _given(self, subscription: S, found: re.Match[bytes]) -> None:
        uuid, hold, token, micros, lease_ms, incarnation, name = found.groups()
        owner, number, granted_us = self.owner_head + uuid, int(token), int(micros)
        if not 0 < number <= TOKEN_MAX:
            return
        begins = subscription.granted_at(granted_us, incarnation, self._clock())
        waiter = self.waiters.get(owner)
        if self.channels is not None and waiter is not None and not self.channels.is_current(waiter.keys, subscription):
            begins = NEVER  # the slot's calls go to another node by now
        # `tuple.__new__` takes all fields of a Handed, and avoids the class's `__new__`, which is Python code.
        fields = subscription.index, b"%b~%b" % (owner, hold), number, granted_us, int(lease_ms) / 1000, begins
        grant: Handed = tuple.__new__(Handed, fields)
        if waiter is not None and waiter.keys.name.encode() == name:
            waiter.give(grant)
            if not waiter.parks:
                self._listener.watch_waiters()
            if self.waiters.get(owner) is waiter:
                return  # Mark, then look: if not, `forget` may have looked at the grants before this one came
        keys = self._keys_of(uuid, name)
        if keys is not None:
            self._given_to_nobody(keys, owner, grant)

    def _given_to_nobody(self, keys: LockKeys, owner: bytes, grant: Handed) -> None:
        """Have a hold ended that was given to a waiter which has left, unless it is held, or its release ends it."""
        served = self._served.get(owner, _NOT_SERVED)
        is_taken = served.owner == grant.owner
        if is_taken and self._clock() < served.late_until:
            return  # a slower master reports the same hold, whose release reaches every master
        taken = served.hold() if is_taken else None
        if taken is not None and taken.count > 0 and taken.loss is None:
            return  # held, or being released: the release reaches every master, and must find the hold there
        # The undo must bring the token as well, because the release may not have told every master.
        self._listener.unclaimed(keys, grant.owner, 0 if taken is None else taken.fence)

    def _woken(self, subscription: S, payload: bytes) -> None:
        _, _, rest = payload.partition(b" ")
        uuid, _, name = rest.partition(b" ")
        if not name:
            return
        owner = self.owner_head + uuid
        waiter = self.waiters.get(owner)
        if waiter is not None:
            if subscription.has_vote(self._clock()):
                waiter.wake(subscription.index)
                if not waiter.parks:
                    self._listener.watch_waiters()
        elif self._clock() - self._served.get(owner, _NOT_SERVED).at > SERVED_SECONDS:
            keys = self._keys_of(uuid, name)
            if keys is not None:
                self._listener.pass_turn_on(keys, owner)

    def _keys_of(self, uuid: bytes, name: bytes) -> LockKeys | None:
        """Return the keys of what a waiter waits for by this `name`; a mark in its uuid says what that is."""
        if uuid.endswith(LATCH_MARK):
            return None  # a latch gives no turns
        make_lock = lock_keys if self.channels is None else self.channels.lock_keys
        make = permit_keys if b"#" in uuid else read_keys if READ_MARK in uuid else make_lock
        try:
            return make(self.prefix, name.decode())
        except UnicodeDecodeError:
            return None  # no lock has such a name

    def was_woken(self, owner: bytes) -> bool | None:
        """Return whether a message ended the last sleep of the waiter `owner`; None if it has not slept."""
        waiter = self.waiters.get(owner)
        return waiter.is_woken if waiter is not None and waiter.parks else None

    def turns_missed(self, owner: bytes) -> int:
        """Return how many turns the waiter `owner` has missed."""
        waiter = self.waiters.get(owner)
        return 0 if waiter is None else waiter.missed

    def wake_all(self) -> None:
        """Make every waiter look again: the masters, or the way to them, have changed."""
        for waiter in list(self.waiters.values()):
            waiter.wake()

    def look(self, master: int) -> None:
        """Have subscriptions follow the master with this number, which has moved; any thread may call this."""
        for subscription in list(self.subscriptions):
            if subscription.index == master:
                subscription.look()
        if self.channels is not None:
            self.channels.follow()

    def subscribed(self) -> None:
        """Wake the callers that wait for a confirmed subscription, and tell the listener that one is confirmed."""
        self.confirmed.wake_all()
        self._listener.subscribed()

    def catch_up(self, until: float) -> None:
        """Wait, until `until` at most, for all messages that the masters have published by now.

        Return at once if no waiter is here and the last one left long ago: then no grant is on its way, or lies unread.
        """
        self.hear_instead()
        if not self.waiters and self._clock() - self._left_at > self._masters[0].node_timeout + UNREAD_SECONDS:
            return
        self._wait_while(lambda one: one.is_subscribing and not one.is_confirmed, until)
        standing = [one for one in self.subscriptions if one.is_confirmed]
        asked = [one.ask_for_pong() for one in standing]
        if not all(asked):
            self.platform.sleep(CATCH_UP_SECONDS)
        self.shared.gave_up()  # if no thread leads, the threads of the subscriptions must read
        self._wait_while(lambda one: one.is_pong_due, until)

    def _wait_while(self, is_so: Callable[[S], bool], until: float) -> None:
        while any(map(is_so, self.subscriptions)) and self._clock() < until:
            self.platform.sleep(CATCH_UP_LOOK_SECONDS)
            self.hear_instead()

    def hear_instead(self) -> None:
        """Act on the messages that have come, if the reader of the subscriptions is an event loop that was closed."""

    def stop(self) -> None:
        """End the subscriptions."""
        for subscription in self.subscriptions:
            subscription.stop()

    def abandon(self) -> None:
        """Close the copies of the parent's sockets, in a forked child."""
        for subscription in self.subscriptions:
            subscription.abandon()
        self.shared.abandon()


AnyHub = Hub[Any]


def _channels_of(hub: AnyHub, master: Master) -> "HubChannels | None":
    if master.is_cluster:
        from relock._runtime.wakeups.channels import HubChannels  # only here: most clients need no Cluster

        return HubChannels(hub, master)  # type: ignore[arg-type]  # it is a `Cluster`
    if master.opener.options.redisson:
        from relock._runtime.wakeups.redisson import HubRedisson  # likewise

        return HubRedisson(hub, hub.subscriptions[0], master)
    return None


class ThreadHub(Hub[ThreadSubscription]):
    """Hub of a client's threads."""

    def subscription_to(self, master: Master) -> ThreadSubscription:
        """Return a new subscription, with a thread of its own."""
        return ThreadSubscription(self, master)

    def soon(self, do: Callable[[], object]) -> None:
        """Call `do` now."""
        do()

    def new_waiter(self, owner: bytes, keys: LockKeys) -> Waiter:
        """Return a new waiter, with a thread's inbox."""
        return Waiter(owner, keys, self.platform.queue(), self.shared)
