"""Waiters and their wake-ups: one Pub/Sub connection to each master, however many wait.

A client subscribes once to a channel of its own. The masters' scripts publish ``wake <uuid> <name>`` there when it is
a waiter's turn, or ``grant <uuid> ...`` when a releaser has given it the lock; the hub puts a token into that waiter's
queue, so that a message that comes before the wait is not lost. A message for a waiter that this client does not have
(any more) means that others are waiting for a dead turn, or for a hold that nobody has: it is passed on at once.
"""

import logging
import re
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from attrs import define, field
from redis import exceptions as redis_errors

from relock._core.effects import Clock, Handed
from relock._core.hold import Hold
from relock._core.quorum import NEVER, gather_seconds, quorum_of
from relock._errors import ConfigurationError
from relock._keys import LockKeys, client_channel, lock_keys
from relock._runtime.masters.links import NAMELESS, NETWORK_ERRORS, UNKNOWN, understood
from relock._runtime.masters.master import Master
from relock._runtime.net.channel import Channel
from relock._runtime.net.wire import Wire
from relock._runtime.platform import Platform
from relock._runtime.service import Service
from relock._scripts import TOKEN_MAX

logger = logging.getLogger(__name__)

PING_SECONDS = 2.5
PING = b"*1\r\n$4\r\nPING\r\n"
RECONNECT_SECONDS_MIN = 0.02
RECONNECT_SECONDS_MAX = 1.0
GATHER_SECONDS = 0.03  # for so long, who was woken by one master waits for a quorum of them; who was given it, longer
SERVED_SECONDS = 0.05  # for so long, messages of the slower masters come for a waiter that has had its turn
SERVED_UNSWEPT = 1024  # so many who have had their turn may be kept, though that is over
BELIEVED_SECONDS = 1.0  # for so long, a subscription that stands is not doubted because of what was heard on it
STRANGERS_MAX = 64  # names of other servers that are remembered
_NOT_SERVED = NEVER, b"", NEVER

_GRANT = re.compile(
    rb"grant (?P<uuid>[^ ]+) (?P<hold>[^ ]+) (?P<token>[0-9]{1,16}) (?P<granted_us>[0-9]{1,16}) "
    rb"(?P<lease_ms>[0-9]{1,12}) (?P<incarnation>[^ ]+) (?P<name>.+)",
    re.DOTALL,
)


@define(eq=False, repr=False)
class Waiter:
    """One acquire that waits: who, for what, and where to wake it."""

    owner: bytes
    keys: LockKeys
    wakes: "SimpleQueue[int | None]"  # the master that woke it, or None
    clock: Clock
    tickets: list[int] = field(factory=list)  # at most one: empty until it is queued
    handed: list[Handed] = field(factory=list)  # what releasers have given it, so far
    parks: int = 0  # how often it has gone to sleep
    is_given: bool = False  # since it last woke, a releaser has given it the lock on some master

    def wake(self, master: int | None = None) -> None:
        """Master number `master` says that it is its turn there; None: it is to look again in any case."""
        self.wakes.put(master)

    def give(self, grant: Handed) -> None:
        """A releaser has given it the lock on one master."""
        self.handed.append(grant)
        self.is_given = True
        self.wakes.put(grant.master)

    def park(self, seconds: float, quorum: int, gathers: Callable[[], float]) -> None:
        """Sleeps until `quorum` masters, or a moment ago fewer, have woken it; `seconds` at most.

        `gathers` says how long that moment is (s) where one of them has given it the lock.
        """
        masters: tuple[int, ...] = ()  # a set, which takes 200 bytes for as long as this waits
        until = last = self.clock() + max(0.0, seconds)
        first_at = None
        while len(masters) < quorum:
            try:
                master = self.wakes.get(timeout=max(0.0, until - self.clock()))
            except Empty:
                break
            if master is None:
                break
            if master not in masters:
                masters += (master,)
            if len(masters) < quorum:
                first_at = self.clock() if first_at is None else first_at
                until = min(last, first_at + (gathers() if self.is_given else GATHER_SECONDS))
        while not self.wakes.empty():  # several reasons to look are one
            self.wakes.get_nowait()
        self.is_given = False


class HubListener(Protocol):
    """Whom the hub tells what it can't do itself."""

    def pass_turn_on(self, keys: LockKeys, owner: bytes) -> None:
        """Somebody who waits here no more was told that it is its turn."""

    def unclaimed(self, keys: LockKeys, owner: bytes) -> None:
        """A releaser has given the hold `owner` to somebody who waits here no more, and may not have taken it."""

    def subscribed(self) -> None:
        """A subscription is confirmed (again): what was published before may be lost."""


class Hub:
    """All waiters of one client, and a subscription to each master.

    Attributes:
        waiters: by their owners' names.
        subscriptions: in the order of the masters.
    """

    subscriptions: "tuple[Subscription, ...]"

    def __init__(
        self, client: str, prefix: str, masters: tuple[Master, ...], platform: Platform, owner: HubListener
    ) -> None:
        self.client = client
        self._client_name = client.encode()
        self.prefix = prefix
        self.waiters: dict[bytes, Waiter] = {}
        self.platform = platform
        self._clock = platform.clock
        self._listener = owner
        self.subscriptions = tuple(Subscription(self, master) for master in masters)
        self._masters = masters
        self._quorum = quorum_of(len(masters))
        self._changed = platform.event()
        self._served: dict[bytes, tuple[float, bytes, float]] = {}  # when, its hold, late until
        self._sweep_at = SERVED_UNSWEPT

    def register(self, owner: bytes, keys: LockKeys) -> Waiter:
        """The waiter `owner`, from now on found by its wake-ups."""
        waiter = self.waiters.get(owner)
        if waiter is None:
            waiter = self.waiters.setdefault(owner, Waiter(owner, keys, self.platform.queue(), self._clock))
        return waiter

    def forget(self, owner: bytes, *, served: Hold | None = None) -> None:
        """`owner` waits no more; `served`: because it has had its turn, and its hold is in the book."""
        waiter = self.waiters.get(owner)
        if waiter is None:
            return
        settled = set() if served is None else {served.owner}
        self._give_back(waiter, settled)  # first, so that whoever cleans up after an interrupt finds it still
        self.waiters.pop(owner, None)
        self._give_back(waiter, settled)  # what has come meanwhile
        if served is not None:
            self._served[owner] = (self._clock(), served.owner, served.late_until)
            if len(self._served) > self._sweep_at:
                self._sweep()

    def _sweep(self) -> None:
        """Forgets who has had its turn so long ago that no message comes for it any more; nobody else, however many."""
        now = self._clock()
        for owner, (served_at, _, late_until) in self._served.copy().items():
            if now - served_at > SERVED_SECONDS and now >= late_until:
                self._served.pop(owner, None)
        self._sweep_at = SERVED_UNSWEPT + 2 * len(self._served)

    def _give_back(self, waiter: Waiter, settled: set[bytes]) -> None:
        """Has the holds that `waiter` was given ended, but for those that are `settled`."""
        for grant in waiter.handed.copy():
            if grant.owner not in settled:
                self._listener.unclaimed(waiter.keys, grant.owner)
                settled.add(grant.owner)

    def handed_to(self, waiter: Waiter) -> tuple[Handed, ...]:
        """What releasers have given `waiter`. Of what came before its master's clock stepped no time is known."""
        return tuple(
            grant if self.subscriptions[grant.master].trusts(grant.begins) else grant._replace(begins=NEVER)
            for grant in waiter.handed.copy()
        )

    def gather_seconds(self) -> float:
        """For how long who was given the lock by one master waits for a quorum of them."""
        round_trips = [master.offset.round_trip for master in self._masters]
        return gather_seconds(round_trips, self._quorum, GATHER_SECONDS, self._masters[0].node_timeout)

    def listen(self, until: float) -> bool:
        """Whether a quorum has confirmed the subscription, waiting for that until `until` at most."""
        for subscription in self.subscriptions:
            subscription.ensure()
        while not self._is_confirmed():
            self._changed.clear()  # before the second look, so that what comes between is not missed
            if self._is_confirmed():
                self._changed.set()  # again: another thread has looked before, and is about to wait for it
                break
            left = until - self._clock()
            if left <= 0 or not self._changed.wait(left):
                return self._is_confirmed()
        return True

    def _is_confirmed(self) -> bool:
        confirmed = 0
        for subscription in self.subscriptions:
            confirmed += subscription.confirmed.is_set()
        return confirmed >= self._quorum

    def message(self, master: int, payload: bytes) -> None:
        """Acts on a message that master number `master` published; what is neither of ours is nothing to us."""
        if payload.startswith(b"wake "):
            self._woken(master, payload)
        elif payload.startswith(b"grant "):
            self._given(self.subscriptions[master], payload)

    def _given(self, subscription: "Subscription", payload: bytes) -> None:
        found = _GRANT.fullmatch(payload)
        keys = None if found is None else self._keys_of(found["name"])
        if found is None or keys is None or not 0 < int(found["token"]) <= TOKEN_MAX:
            return
        owner = b"%b:%b" % (self._client_name, found["uuid"])
        granted_us = int(found["granted_us"])
        grant = Handed(
            master=subscription.index,
            owner=b"%b~%b" % (owner, found["hold"]),
            token=int(found["token"]),
            granted_us=granted_us,
            lease=int(found["lease_ms"]) / 1000,
            begins=subscription.granted_at(granted_us, found["incarnation"], self._clock()),
        )
        waiter = self.waiters.get(owner)
        if waiter is not None and waiter.keys == keys:
            waiter.give(grant)
            if self.waiters.get(owner) is waiter:
                return  # else it has just been forgotten, and may not have seen this
        _, hold, late_until = self._served.get(owner, _NOT_SERVED)
        if hold == grant.owner and self._clock() < late_until:
            return  # it comes from a slower one of those that gave this hold; its release sees to all of them
        self._listener.unclaimed(keys, grant.owner)

    def _woken(self, master: int, payload: bytes) -> None:
        _, _, rest = payload.partition(b" ")
        uuid, _, name = rest.partition(b" ")
        if not name:
            return
        owner = b"%b:%b" % (self._client_name, uuid)
        waiter = self.waiters.get(owner)
        if waiter is not None:
            if self.subscriptions[master].has_vote(self._clock()):
                waiter.wake(master)
        elif self._clock() - self._served.get(owner, _NOT_SERVED)[0] > SERVED_SECONDS:
            keys = self._keys_of(name)
            if keys is not None:
                self._listener.pass_turn_on(keys, owner)

    def _keys_of(self, name: bytes) -> LockKeys | None:
        try:
            return lock_keys(self.prefix, name.decode())
        except UnicodeDecodeError:
            return None  # no lock has such a name

    def look_again(self, owner: bytes) -> None:
        """Makes `owner` look again, if it waits here."""
        waiter = self.waiters.get(owner)
        if waiter is not None:
            waiter.wake()

    def wake_all(self) -> None:
        """Makes every waiter look again: the masters, or the way to them, have changed."""
        for waiter in list(self.waiters.values()):
            waiter.wake()

    def subscribed(self) -> None:
        """A subscription is confirmed; see `HubListener.subscribed`."""
        self._changed.set()
        self._listener.subscribed()

    def stop(self) -> None:
        """Ends the subscriptions."""
        for subscription in self.subscriptions:
            subscription.stop()

    def join(self, timeout: float) -> None:
        """Waits for the threads to end, `timeout` seconds at most for each."""
        for subscription in self.subscriptions:
            subscription.join(timeout)

    def abandon(self) -> None:
        """In a forked child: closes the copies of the parent's sockets."""
        for subscription in self.subscriptions:
            subscription.disconnect()


class Subscription(Service):
    """The subscription to one master: connected while it is used, and again after every failure.

    Its socket leads to one incarnation of the master, and stays there when another server becomes the master: a demoted
    one keeps its subscribers, answers their pings, and passes on what is published on the new one, where nobody counts
    them as listening. So a grant that was heard need not have been made: it counts only if it names the incarnation
    that this socket leads to. And the subscription moves as soon as any other socket finds the master elsewhere.

    Attributes:
        index: the number of its master.
        confirmed: set while it stands.
    """

    name = "relock-hub"

    def __init__(self, hub: Hub, master: Master) -> None:
        super().__init__(hub.platform)
        self.index = master.index
        self.confirmed = hub.platform.event()
        self._hub = hub
        self._master = master
        self._clock = hub.platform.clock
        self._connection: Wire | None = None
        self._channel: Channel | None = None  # of the connection, once it is subscribed
        self._incarnation = UNKNOWN  # of the server that the socket leads to
        self._stands_since = 0.0
        self._is_misled = False  # it has heard of a grant that another incarnation made
        self._strangers: set[bytes] = set()  # the names of such ones
        self._pinged = False
        self._failures = 0
        self._retry = hub.platform.event()

    def step(self) -> None:
        """Reads one message, or pings, or connects."""
        try:
            if self._channel is not None:
                self._read(self._channel)
            else:
                with understood():
                    self._connect()
        except (*NETWORK_ERRORS, ConfigurationError) as error:
            self._lost(error)
        except Exception as error:  # redis-py raises others when a connection is closed under it
            self._lost(error)
            if not self.stopping:
                text = "the subscription to %s failed unexpectedly"
                self._platform.log.error(logger, text, self._master.address, exc_info=True)

    def _connect(self) -> None:
        connection = self._connection = self._master.connection()
        connection.connect()
        if self._connection is not connection:
            connection.disconnect()
            raise redis_errors.ConnectionError("it was closed before it was there")
        # Before it subscribes: messages may come right behind the confirmation, and are read by whoever reads that.
        channel = self._hub.platform.open_channel(connection, PING_SECONDS)
        naming, questions = self._master.naming, self._master.introduction
        words = "SUBSCRIBE", client_channel(self._hub.prefix, self._hub.client)
        channel.send(b"".join(connection.pack_commands([*naming, *questions, words])))
        replies = self._first_replies(channel, len(naming) + len(questions) + 1)[len(naming) :]
        self._incarnation = self._master.introduce(replies[: len(questions)])
        confirmation, *messages = replies[len(questions) :]
        if confirmation[0] != b"subscribe":
            raise redis_errors.ConnectionError(f"unexpected reply to SUBSCRIBE: {confirmation[0]!r}")
        self._channel = channel
        self._stands_since, self._is_misled = self._clock(), False
        self._pinged = False
        if self._has_moved():  # before there was anything that whoever found that could have closed
            raise redis_errors.ConnectionError("another server has taken the place of the master")
        self.confirmed.set()
        self._hub.subscribed()
        self._act_on(messages)

    def _first_replies(self, channel: Channel, count: int) -> list[Any]:
        """At least `count`, within the time for the master."""
        until = self._clock() + self._master.node_timeout
        replies: list[Any] = []
        while len(replies) < count:
            if not channel.wait(until - self._clock()):
                raise redis_errors.TimeoutError("no answer to SUBSCRIBE")
            replies += channel.receive()
        return replies

    def _read(self, channel: Channel) -> None:
        try:
            replies = channel.receive()
        except redis_errors.TimeoutError:
            self._ping(channel)
        else:
            self._act_on(replies)
        if self._has_moved():
            raise redis_errors.ConnectionError("another server has taken the place of the master")

    def _has_moved(self) -> bool:
        """Whether the master is another server by now, as other sockets have found, or what was heard suggests."""
        return self._is_misled or self._incarnation != self._master.incarnation

    def look(self) -> None:
        """Another server may be the master now: the subscription moves there at once; called by any thread."""
        if self._channel is not None and self._has_moved():
            self.disconnect()

    def doubt(self) -> None:
        """A server without a name was connected to: none tells whether the subscription is at that one."""
        if self._channel is not None and self._clock() - self._stands_since > BELIEVED_SECONDS:
            self.disconnect()

    def _act_on(self, replies: Sequence[Any]) -> None:
        """Raises `redis.InvalidResponse` for what nobody sends here: what comes next may be cut in two just as well."""
        for reply in replies:
            match reply:
                case [b"message", bytes(), bytes(payload)]:
                    self._hub.message(self._master.index, payload)
                case [b"pong", _]:
                    self._pinged = False
                case _:
                    raise redis_errors.InvalidResponse(f"no message: {reply!r:.100}")

    def _ping(self, channel: Channel) -> None:
        """Somebody waits and nothing has come for a while: is anybody there?"""
        if self._pinged:
            raise redis_errors.TimeoutError("no answer to a ping")
        if self._hub.waiters:
            channel.send(PING)
            self._pinged = True

    def _lost(self, error: BaseException) -> None:
        """Closes the connection; the first time one waits a moment only, then longer and longer."""
        has_stood = self.confirmed.is_set()
        if has_stood and self._clock() - self._stands_since > BELIEVED_SECONDS:
            self._failures = 0  # else each connection may lead elsewhere than the one before
        self.confirmed.clear()
        self.disconnect()
        if self.stopping:
            return
        self._platform.log.debug(logger, "the subscription to %s broke: %s", self._master.address, error)
        if self._failures and not has_stood:
            # Connecting failed as well, so the waiters' own requests will tell what is wrong.
            self._hub.wake_all()
        pause = min(RECONNECT_SECONDS_MIN * 2 ** min(self._failures, 10), RECONNECT_SECONDS_MAX)
        self._failures += 1
        self._retry.wait(pause)

    def has_vote(self, now: float) -> bool:
        """Whether what the master says of turns counts: one that may have forgotten a hold finds every lock free."""
        return self._master.vote_at <= now

    def trusts(self, moment: float) -> bool:
        """Whether what the master did at our time `moment` counts, for all that is known of its clock by now."""
        return moment >= self._master.trusted_from

    def granted_at(self, granted_us: int, incarnation: bytes, arrived_at: float) -> float:
        """See `Master.granted_at`; nor does it count from a master without a vote, or from another server than ours."""
        if incarnation != self._incarnation:
            self._heard_of(incarnation, arrived_at)
            return NEVER
        if not self.has_vote(arrived_at):
            return NEVER
        return self._master.granted_at(granted_us, incarnation, arrived_at)

    def _heard_of(self, incarnation: bytes, now: float) -> None:
        """Another incarnation has granted something: a replica passes it on, or the server has another name by now.

        Or the releaser is behind, and will be for as long as its connections stand: so each name is looked into once.
        """
        is_believed = now - self._stands_since <= BELIEVED_SECONDS
        if is_believed or incarnation == NAMELESS or incarnation in self._strangers:
            return
        if len(self._strangers) >= STRANGERS_MAX:
            self._strangers.clear()
        self._strangers.add(incarnation)
        self._is_misled = True

    def disconnect(self) -> None:
        """Closes the socket; from another thread, this ends a read that is under way."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            try:
                connection.disconnect()
            except NETWORK_ERRORS:
                text = "closing the subscription to %s failed"
                self._platform.log.debug(logger, text, self._master.address, exc_info=True)

    def stop(self) -> None:
        """Ends the thread, wherever it sleeps."""
        super().stop()
        self._retry.set()
        self.disconnect()
