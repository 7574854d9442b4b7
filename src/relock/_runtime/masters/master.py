"""One master: its connections, and what is known of its state."""

import logging
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from redis import exceptions as redis_errors

from relock._core.clocks import Offset
from relock._core.effects import Answer, Clock, Failure, Reply
from relock._core.hold import FOREVER
from relock._core.quorum import NEVER, is_given
from relock._errors import ConfigurationError
from relock._keys import master_key
from relock._options import ClientOptions
from relock._runtime.masters.lines import Line
from relock._runtime.masters.links import INTRODUCTION, NAMELESS, NETWORK_ERRORS, UNKNOWN, Link, parse_info, understood
from relock._runtime.net.failures import failure_of, is_refusal
from relock._runtime.net.node import Node
from relock._runtime.net.wire import Wire
from relock._runtime.platform import Platform
from relock._runtime.service import Service

logger = logging.getLogger(__name__)

FRESH_SECONDS = 1.0  # a link that was used within this time is taken without a look at it
GUARD_NEWS_SECONDS = 0.1  # a guard that ends later than the last one by more than this is another guard
OWED_MAX = 64  # requests that a slow link may owe replies to before it is spared
RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 1.0
DRAIN_SECONDS = 0.02
UNUSED_SECONDS = 30.0  # a connection that was not needed for so long is closed, but for the last one
STEPS_MAX = 64  # of a clock that steps all the time, what is remembered


Report = tuple["Master", Failure | ConfigurationError | None]


class Known(NamedTuple):
    """What is known of the server that is the master now: one value, so that nobody mixes two servers' up.

    Attributes:
        incarnation: its run id and its replication id; `UNKNOWN`, or `NAMELESS` where it refuses INFO.
        offset: how far its clock is ahead of ours.
    """

    incarnation: bytes
    offset: Offset


class Master:
    """One master: a pool of links, each for one caller at a time, and what they have shown of it.

    Of the links, ``max_connections`` are for everybody. What renews, undoes and tends has its own beside these, once
    none of them is free: it must not wait behind calls, and must not keep theirs from them.
    """

    address: str
    asked_late: Failure
    clock: Clock
    guard_ms: int
    known: Known
    line: Line
    node_timeout: float
    sweep_at: float
    trusted_from: float
    version: str
    vote_at: float
    was_sound: bool

    def __init__(
        self, index: int, node: Node, options: ClientOptions, platform: Platform, listener: "MasterListener"
    ) -> None:
        self.index = index
        self.node = node
        self.address = node.address
        self.options = options
        self.platform = platform
        self.clock = platform.clock
        self.node_timeout = options.node_timeout_for(options.ttl)
        self.guard_ms = options.guard_ms
        self.marker: str | None = master_key(options.prefix)  # the key of its incarnation; None for a cluster's nodes
        self.version = ""
        self.problems: dict[str, str] = {}
        self.down: str | None = None
        self._answers_since: float | None = None  # since then it does again, while it is down
        self.vote_at = 0.0  # our time from which it has a vote again, if it has none now
        self.known = Known(UNKNOWN, Offset(options.drift_factor))
        self.introduction: Sequence[tuple[str, ...]] = INTRODUCTION  # what `introduce` takes the replies to
        self.silence: Answer = (Failure(node.address, "it has not answered", awaited=True),)
        self.asked_late = Failure(node.address, "it is connected; there was no time left to ask it", awaited=True)
        self.opener: Opener | None = None  # one of several masters has one, so that nobody waits for a connection
        self._listener = listener
        self.line = Line(platform)  # of calls that wait for a link; masters that are asked together have one
        # What was used last is at the end, and is used next: those that nobody needs gather at the beginning.
        self._idle: deque[Link] = deque()
        self._own_idle: deque[Link] = deque()
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()  # all for everybody, in use or idle
        self._own_links: weakref.WeakSet[Link] = weakref.WeakSet()  # those beside
        self._links_max = options.max_connections
        self.sweep_at = FOREVER  # our time at which a link may have been unused for too long
        self._is_closed = False
        self.trusted_from = float("-inf")  # our time; what it gives to requests from before that counts for nothing
        self._distrusted: deque[tuple[int, float]] = deque(maxlen=STEPS_MAX)  # what it showed in a step, and until when
        self.was_sound = False
        self.unfit: ConfigurationError | None = None  # why it was never a master that can be used

    # The pool -------------------------------------------------------------------------------------------------------

    def check_out(self, now: float, idle: deque[Link] | None = None) -> Link | None:
        """A link that is open and idle, for the caller alone; None where there is none, or each owes too much."""
        if idle is None:
            idle = self._idle
        for _ in range(self._links_max + 1):
            try:
                link = idle.pop()
            except IndexError:
                return None
            owed = link.owed
            if not owed:
                if now - link.idle_since < FRESH_SECONDS or self._is_sound(link):
                    return link
            elif now - owed[0].sent_at > self.node_timeout and not self.is_drained(link, now):
                self.broke(link, redis_errors.TimeoutError("Timeout waiting for a reply"))
            elif len(owed) < OWED_MAX:
                return link
            else:
                idle.appendleft(link)
        return None

    def check_out_own(self, now: float) -> Link | None:
        """As `check_out`, for what has links of its own: one of these, where there is none for everybody."""
        return self.check_out(now) or self.check_out(now, self._own_idle)

    def _is_sound(self, link: Link) -> bool:
        """Whether a link that was idle for a while is open still: the server may have closed it."""
        try:
            if not link.channel.wait(0.0):  # nothing is owed, so what can be read is the end, or a mistake
                return True
        except NETWORK_ERRORS:
            self.platform.log.debug(logger, "an idle connection to %s has broken", self.address, exc_info=True)
        link.close()
        return False

    def is_drained(self, link: Link, now: float) -> bool:
        """Whether the replies that a link owes at `now` have come in the meantime, while nobody read them.

        A script that turns out to be unknown is sent while they are read, and the link has its time to answer that.
        """
        try:
            link.drain()
        except NETWORK_ERRORS:
            return False
        return not link.owed or link.owed[0].sent_at >= now

    def open(self) -> Link:
        """A new link, for the caller alone, and afterwards for everybody, as long as there is room among those.

        Raises:
            redis.RedisError, OSError: the master can't be reached, or refuses.
            ConfigurationError: it can't be used.
        """
        link = self._admitted()
        if link is None:
            link = Link(self, self.connection(), is_own=True)
            self._own_links.add(link)
        return self._opened(link)

    def open_for_call(self) -> Link | None:
        """A new link, for the caller alone; None where as many are open as there may be. Raises as `open` does."""
        link = self._admitted()
        return None if link is None else self._opened(link)

    def _admitted(self) -> Link | None:
        """A link for everybody that is to be opened; None where there is no room for it.

        It takes its place before the look, so that of those who come at once the last one sees all of them.
        """
        if not self.has_room:
            return None
        link = Link(self, self.connection())
        self._links.add(link)
        if len(self._links) <= self._links_max:
            return link
        self._links.discard(link)
        return None

    def _opened(self, link: Link) -> Link:
        try:
            link.open()
            if self._is_closed:  # while it was opened, when there was nothing yet that could be closed
                raise redis_errors.ConnectionError("the client was closed")
        except BaseException:
            link.close()
            raise
        self.unfit, self.was_sound = None, True
        if self.down is not None:
            self._is_back()
        self._sweep_later()
        return link

    @property
    def has_room(self) -> bool:
        """Whether another link may be opened for a call."""
        return len(self._links) < self._links_max

    @property
    def is_full(self) -> bool:
        """Whether a call that came now would find no link, and may open none."""
        return not self._idle and not self.has_room

    @property
    def is_crowded(self) -> bool:
        """Whether as many links are open as may be, and calls have some of them, and give them back when they end."""
        return not self.has_room and len(self._links) > len(self._idle)

    def forget(self, link: Link) -> None:
        """A link is closed: its place is another one's."""
        self._own_links.discard(link)
        self._links.discard(link)

    def _sweep_later(self) -> None:
        """One more link is open: whether all are needed is looked at when this one may have been idle for so long."""
        if self.connections > 1:
            moment = self.clock() + UNUSED_SECONDS
            self.sweep_at = min(self.sweep_at, moment)
            self._listener.sweep_by(moment)

    def _is_back(self) -> None:
        self.down = None
        self._listener.master_back(self)

    @property
    def naming(self) -> tuple[tuple[str, ...], ...]:
        """What gives a new connection its name on the server, so that people see whose it is; nothing without one.

        Where that is refused, the connection has none, and all goes on.
        """
        name = self.node.client_name or self._listener.connection_name
        return (("CLIENT", "SETNAME", name),) if name else ()

    def connection(self) -> Wire:
        """A new connection, not open yet, with the node timeout."""
        return self.node.connection(self.node_timeout)

    def give_back(self, link: Link, now: float) -> None:
        """The next caller may use the link; what it owes, it may go on owing."""
        if link.incarnation != self.known.incarnation:
            link.close()
            return
        if self.down is not None and self.opener is None and not link.owed:
            self._has_answered(now)
        link.idle_since = now
        if link.is_own:
            self._own_idle.append(link)
        else:
            self._idle.append(link)
            if self.line.waiting:
                self.line.wake()
        if now >= self.sweep_at:
            self.sweep(now)

    def _has_answered(self, now: float) -> None:
        """It is down, and has answered: nobody may need another link for long, and no opener tries to get one."""
        if self._answers_since is None:
            self._answers_since = now
        elif now - self._answers_since > RETRY_SECONDS_MAX:  # else it might be down and back with each call
            self._is_back()

    def sweep(self, now: float) -> float:
        """Closes the links that nobody has needed for `UNUSED_SECONDS`; returns when there may be more.

        Where so many were in use at once that the stack of the idle ones was taken down to some depth, those below were
        not needed, and have lain there since. The last one is kept, for whoever comes once in a while.
        """
        self._close_unused(self._idle, now, keep=1)
        self._close_unused(self._own_idle, now, keep=0)
        self.sweep_at = FOREVER  # before the look: who opens another one from here on sets it again
        self.sweep_at = min(self.sweep_at, self._next_sweep(now))
        return self.sweep_at

    def _next_sweep(self, now: float) -> float:
        if self.connections <= 1:
            return FOREVER
        moments = [now + UNUSED_SECONDS] if self.is_in_use else []
        for idle, keep in ((self._idle, 1), (self._own_idle, 0)):
            with suppress(IndexError):  # as above
                moments += [idle[0].idle_since + UNUSED_SECONDS] * (len(idle) > keep)
        return min(moments, default=FOREVER)

    def _close_unused(self, idle: deque[Link], now: float, *, keep: int) -> None:
        with suppress(IndexError):  # other threads take them at this moment
            while len(idle) > keep and now - idle[0].idle_since >= UNUSED_SECONDS:
                link = idle.popleft()
                if now - link.idle_since < UNUSED_SECONDS:
                    idle.appendleft(link)  # another one than that which was looked at
                    return
                link.close()

    def drain(self) -> None:
        """Takes what has come for idle links that nobody has used for a moment, though they owe replies."""
        now = self.clock()
        for idle in (self._idle, self._own_idle):
            for link in list(idle):
                if link.silent_for(now) >= DRAIN_SECONDS:  # else whoever needs a link at this moment is to find it
                    self._drain(idle, link)

    def _drain(self, idle: deque[Link], link: Link) -> None:
        try:
            idle.remove(link)
        except ValueError:
            return  # in use again
        try:
            link.drain()
        except NETWORK_ERRORS as error:
            self.broke(link, error)
        else:
            idle.append(link)

    def open_later(self, reports: "SimpleQueue[Report] | None", *, is_call: bool) -> None:
        """Has a link opened in the background, for a call or beside them; what comes of it goes to `reports`."""
        if self.opener is not None:
            self.opener.want(reports, is_call=is_call)

    def absence(self) -> Failure:
        """Why the master can't be asked right now: nothing has been sent to it."""
        why = self.down
        if why is None and self.is_crowded:
            return self.out_of_time()
        return Failure(self.address, why or "it is being connected, or has not answered for a while", sent=False)

    def out_of_time(self) -> Failure:
        """Why a call did not ask it that has waited for a connection: nothing has been sent."""
        why = self.down or f"it was not asked: no connection was free in time (max_connections={self._links_max})"
        return Failure(self.address, why, sent=False)

    def turned_out(self, error: ConfigurationError) -> None:
        """It can't be used: a mistake in the configuration, or, if it could be used before, one more way to be down."""
        self._answers_since = None
        if not self.was_sound:
            self.unfit = error
        if self.down is None:
            self.down = str(error)
            self._listener.master_down(self, self.down)

    def misconfigured(self, error: ConfigurationError) -> Failure:
        """The `Failure` for a master that turned out to be none; if it was one before, it may be one again."""
        return Failure(self.address, str(error), permanent=not self.was_sound, sent=False)

    def broke(self, link: Link, error: BaseException) -> Failure:
        """A link broke, or the master went silent on it: nobody uses it again."""
        link.close()
        return self.failed(error, sent=True)

    def failed(self, error: BaseException, *, sent: bool) -> Failure:
        """The `Failure` for a connection that broke or was never made.

        Idle ones to the same server are suspect, unless just no new one can be had: our holds live on by those.
        """
        failure = failure_of(self.address, error, sent=sent)
        self._answers_since = None
        if sent or not is_refusal(error):
            self._drop_idle()
        if self.down is None and not self._is_closed:
            self.down = failure.why
            self._listener.master_down(self, failure.why)
            if self.opener is not None:
                self.opener.probe()
        return failure

    def _drop_idle(self) -> None:
        for idle in (self._idle, self._own_idle):
            with suppress(IndexError):
                while True:
                    idle.pop().close()

    def _drop(self, link: Link) -> None:
        """Closes a link unless somebody uses it: then its next reply shows that it is of no use."""
        with suppress(ValueError):
            (self._own_idle if link.is_own else self._idle).remove(link)
            link.close()

    @property
    def connections(self) -> int:
        """How many are open, or being opened."""
        return len(self._links) + len(self._own_links)

    @property
    def idle_connections(self) -> int:
        """How many of these nobody uses."""
        return len(self._idle) + len(self._own_idle)

    @property
    def is_in_use(self) -> bool:
        """Whether anybody has a link, and waits for an answer on it."""
        return self.connections > self.idle_connections

    def close(self) -> None:
        """Closes every connection, also those that other threads open at the moment."""
        self._is_closed = True  # first: what is opened from here on closes itself
        for link in self._all_links():
            link.close()
        self._idle.clear()  # only now: who is in no pool is known only for as long as somebody uses it
        self._own_idle.clear()

    def _all_links(self) -> list[Link]:
        while True:
            try:
                return [*self._links, *self._own_links]
            except RuntimeError:  # another thread has added one meanwhile
                self.platform.log.debug(logger, "the connections to %s are looked at again", self.address)

    def abandon(self) -> None:
        """In a forked child: closes the copies of the parent's sockets, without a word to the server.

        redis-py closes without a shutdown where the process is not the one that connected.
        """
        self.close()

    # Commands of its own --------------------------------------------------------------------------------------------

    def probe(self) -> None:
        """Opens a link, which checks the master, and keeps it.

        Raises:
            redis.RedisError, OSError: it can't be reached.
            ConfigurationError: it can't be used.
        """
        self.give_back(self.open(), self.clock())

    def open_ahead(self) -> None:
        """Opens a link for a call that waits for one, if there is room for it. Raises as `probe` does."""
        link = self.open_for_call()
        if link is not None:
            self.give_back(link, self.clock())

    def scan(self, pattern: str, count: int) -> Iterator[str]:
        """The keys that match the glob `pattern`, by SCAN on a connection of its own; a key may come twice.

        Raises:
            redis.RedisError, OSError: it can't be reached, or refuses.
        """
        connection = self.connection()
        try:
            with understood():
                connection.connect()
            cursor = b"0"
            self._name(connection)
            while True:
                connection.send_command("SCAN", cursor, "MATCH", pattern, "COUNT", count, check_health=False)
                with understood():
                    cursor, keys = connection.read_response()
                    names = [key.decode(errors="replace") for key in keys]
                yield from names
                if cursor == b"0":
                    return
        finally:
            connection.disconnect()

    def _name(self, connection: Wire) -> None:
        for words in self.naming:
            connection.send_command(*words, check_health=False)
            with suppress(redis_errors.ResponseError):  # it may be forbidden
                connection.read_response()

    # What links report ----------------------------------------------------------------------------------------------

    @property
    def incarnation(self) -> bytes:
        """See `Known`."""
        return self.known.incarnation

    @property
    def offset(self) -> Offset:
        """See `Known`."""
        return self.known.offset

    def introduce(self, replies: Sequence[Any]) -> bytes:
        """Which incarnation a socket leads to that was just opened, for calls or for a subscription.

        Where that is another one than that of the sockets before it, the master has moved, and they are given up.

        Args:
            replies: what it said to `introduction`; an error is an exception among them.

        Raises:
            ConfigurationError: it is a replica, or it refuses INFO where that is needed.
        """
        refused = next((reply for reply in replies if isinstance(reply, BaseException)), None)
        if refused is not None:
            self.info_refused(refused)
            incarnation = NAMELESS
        elif not all(isinstance(reply, bytes) for reply in replies):
            raise redis_errors.InvalidResponse(f"no reply to INFO: {replies!r:.100}")
        else:
            info = parse_info(b"\r\n".join(replies))
            self.check_info(info)  # first: that a replica has been found there gives no socket to the master up
            incarnation = f"{info.get('run_id', '')}:{info.get('master_replid', '')}".encode()
        self.see_incarnation(incarnation)
        return incarnation

    def see_incarnation(self, incarnation: bytes) -> None:
        """The server that is the master now. Sockets to any other are of no use any more."""
        if incarnation != self.known.incarnation:
            # Before the check: of two threads that connect to one server, one sees it.
            self.known = Known(incarnation, Offset(self.options.drift_factor))
            for link in [*self._idle, *self._own_idle]:
                if link.incarnation != incarnation:
                    self._drop(link)
            self._listener.master_moved(self)
        self._listener.check_independent(self)

    def demoted(self, incarnation: bytes) -> None:
        """A server that a socket leads to says that it is a replica; if it was the master, none is known now."""
        if incarnation == self.known.incarnation:
            self.see_incarnation(UNKNOWN)

    def check_info(self, info: dict[str, str]) -> None:
        """Judges what INFO says: a replica is refused, a policy that evicts is warned of."""
        if self.marker is not None and "cluster" in (info.get("redis_mode"), info.get("server_mode")):
            raise ConfigurationError(
                f"{self.address} is a node of a Cluster: name it as redis+cluster://host:port", option="nodes"
            )
        self.version = info.get("valkey_version") or info.get("redis_version", "")
        if info.get("role", "master") != "master":
            raise ConfigurationError(
                f"{self.address} is a replica, and a replica's locks are only copies: name its master", option="nodes"
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            self._warn(
                "eviction",
                f"{self.address} may evict locks: set maxmemory-policy to noeviction (it is {policy})",
            )
        else:
            self.problems.pop("eviction", None)

    def info_refused(self, error: BaseException) -> None:
        """Without INFO nobody knows a restart, a replica or an evicting policy."""
        if self.guard_ms > 0:
            raise ConfigurationError(
                f"{self.address} refuses INFO ({error}), and restart_guard={self.options.restart_guard} needs it: "
                "allow the command, or set restart_guard=0",
                option="restart_guard",
            )
        self._warn("info", f"{self.address} refuses INFO: whether it is a replica or may evict is not known")

    def larger_guard_found(self, found_ms: int) -> None:
        """Another client protects these locks for longer: that holds for all."""
        self._listener.larger_guard(found_ms)
        self._warn(
            "guard",
            f"{self.address} has a larger restart guard than this client ({found_ms / 1000:.2f} s, not "
            f"{self.options.guard_ms / 1000:.2f} s): the larger one is used; set the same restart_guard everywhere",
        )

    def _warn(self, kind: str, text: str) -> None:
        if self.problems.get(kind) == text:
            return
        self.problems[kind] = text
        self.platform.log.warning(logger, text)
        self._listener.warn(text)

    def refused(self, error: redis_errors.ResponseError) -> Failure:
        """The `Failure` for a script that the master answered with an error."""
        self.platform.log.debug(logger, "%s refused a script: %s", self.address, error)
        return failure_of(self.address, error, sent=True)

    def without_vote(self, now_us: int, until_us: int, now: float) -> None:
        """It refused to vote until `until_us` on its clock, which showed `now_us`.

        That may have been long ago, if nobody has read from the link since. What is known of its clock tells.
        """
        vote_at = min(now + (until_us - now_us) / 1e6, until_us / 1e6 - self.offset.low)
        is_news = vote_at > max(self.vote_at + GUARD_NEWS_SECONDS, now)
        self.vote_at = vote_at
        if is_news:
            self._listener.master_without_vote(self, vote_at - now)

    def granted_at(self, granted_us: int, incarnation: bytes, arrived_at: float) -> float:
        """The earliest of our times at which it may have made the grant of a message that came at `arrived_at`.

        Minus infinity where our samples of its clock say nothing of that: they are another server's, or it stepped a
        moment ago, or the grant seems to lie in the future. Then its clock has stepped, and a new sample is to show it.
        """
        seconds = granted_us / 1e6
        known, offset = self.known
        if incarnation != known or incarnation == NAMELESS or arrived_at < self.trusted_from:
            return NEVER
        if offset.is_ahead(seconds, arrived_at):
            self.doubt_clock()
            return NEVER
        return offset.shown_at(seconds, arrived_at)

    def doubt_clock(self) -> None:
        """Its clock has stepped, and a new sample is to show which way: whoever has holds is to know at once."""
        self._listener.clock_in_doubt(self)

    def stepped(self, seconds: float, reply: Reply) -> Reply | Failure:
        """Its clock and ours moved apart by `seconds` at once: among several, what it gives counts for nothing then.

        Nor does it afterwards, until every lease is over that it may have ended early, or the step was ours: that its
        vote is taken from it takes a moment, and may fail.
        """
        trusted_from = self.offset.stepped_at
        if self.opener is not None:
            trusted_from += self.guard_ms / 1000
            self._distrusted.append((reply[1], trusted_from))
        self.trusted_from = max(self.trusted_from, trusted_from)  # another thread may have found another server there
        try:
            self._listener.master_stepped(self, seconds, reply[1])
        except BaseException:  # an interrupt: no later reply shows this step; leases cut twice end too early at worst
            self._listener.master_stepped(self, seconds, reply[1])
            raise
        if self.opener is None or not is_given(reply):
            return reply
        return Failure(self.address, f"its clock and ours moved apart by {seconds:+.3f} s at once")

    def trust(self, shown_us: int) -> None:
        """It was our own clock, when it showed `shown_us`. Any other step may still be its own."""
        for distrust in self._distrusted.copy():
            if distrust[0] == shown_us:
                with suppress(ValueError):  # forgotten by now, as the first of too many
                    self._distrusted.remove(distrust)
        left = None
        while left != self._distrusted:  # another thread may see a step just now
            left = self._distrusted.copy()
            self.trusted_from = max([self.offset.stepped_at, *[until for _, until in left]])

    def lacks_replicas(self, confirmed: int) -> Failure:
        """The `Failure` for a grant that too few replicas have."""
        wanted = self.options.min_replicas
        return Failure(self.address, f"NOREPLICAS: {confirmed} of {wanted} replicas confirmed in time")


class MasterListener:
    """What a master tells whoever owns it.

    Attributes:
        connection_name: what the server is to call our connections, where the user has said nothing else; may be empty.
    """

    connection_name: str = ""

    def sweep_by(self, moment: float) -> None:
        """A link was opened: which of them nobody needs is to be looked at by then (our time), if a thread is there."""

    def master_down(self, master: Master, why: str) -> None:
        """It does not answer."""

    def master_back(self, master: Master) -> None:
        """It answers again."""

    def master_without_vote(self, master: Master, seconds: float) -> None:
        """It may have forgotten leases, and has no vote for `seconds` more."""

    def master_moved(self, master: Master) -> None:
        """Another server is the master now, or it is not known which is."""

    def warn(self, text: str) -> None:
        """Something deserves a `RelockWarning`, at a moment when that can do no harm."""

    def check_independent(self, master: Master) -> None:
        """A socket was opened to it: a `ConfigurationError` if the server is another master, too."""

    def larger_guard(self, found_ms: int) -> None:
        """Other clients protect these locks for longer, on all masters."""

    def clock_in_doubt(self, master: Master) -> None:
        """Its clock seems to have stepped: a new sample is to show whether it has."""

    def master_stepped(self, master: Master, seconds: float, shown_us: int) -> None:
        """Its clock went ahead by `seconds` (back, if below 0) all at once, or ours stood still for so long.

        It showed `shown_us` then.
        """


class Wish(NamedTuple):
    """A link that an opener is to open: to see how the master is, or for somebody who waits for the report."""

    reports: SimpleQueue[Report] | None = None
    is_call: bool = False


class Opener(Service):
    """Opens links to one master in the background: when somebody wants one, and again and again while it is down."""

    name = "relock-opener"

    def __init__(self, master: Master) -> None:
        super().__init__(master.platform)
        self._master = master
        self._wanted: SimpleQueue[Wish] = master.platform.queue()
        self._failures = 0
        self._is_idle = True  # it sleeps until somebody wants something

    def want(self, reports: SimpleQueue[Report] | None, *, is_call: bool) -> None:
        """Opens one link and puts it into the pool; what came of it goes to `reports`. Returns at once.

        Of calls that come at once, each may find room for a link: who wants one after the last was opened gets none,
        and waits for those of the others.
        """
        # Whoever finds the master down wakes it, unless an interrupt comes between: then the next one does.
        trying = (self._master.down is not None and not self._is_idle) or not self._wanted.empty()
        if reports is not None or not trying:
            self._wanted.put(Wish(reports, is_call))
        self.ensure()

    def probe(self) -> None:
        """The master has just gone down: tries it now, and again and again until it is back."""
        self._wanted.put(Wish())
        self.ensure()

    def step(self) -> None:
        """Waits until a link is wanted or the master is to be tried again, and opens one."""
        self._is_idle = self._master.down is None
        try:
            wish = self._wanted.get(timeout=None if self._is_idle else self._pause())
        except Empty:
            wish = Wish()
        self._is_idle = False
        if self.stopping:
            return
        trouble = self._try(is_call=wish.is_call)
        if wish.reports is not None:
            wish.reports.put((self._master, trouble))
        if trouble is not None:
            self._tell_all(trouble)

    def _pause(self) -> float:
        doubled: float = RETRY_SECONDS_MIN * 2 ** min(self._failures, 10)
        return min(doubled, RETRY_SECONDS_MAX)

    def _try(self, *, is_call: bool) -> Failure | ConfigurationError | None:
        try:
            if is_call:
                self._master.open_ahead()
            else:
                self._master.probe()
        except NETWORK_ERRORS as error:
            self._failures += 1
            return self._master.failed(error, sent=False)
        except ConfigurationError as error:
            self._failures += 1
            self._master.turned_out(error)
            return error if self._master.unfit else self._master.misconfigured(error)
        self._failures = 0
        return None

    def _tell_all(self, trouble: Failure | ConfigurationError) -> None:
        """Whoever asked meanwhile need not wait for the same."""
        while True:
            try:
                reports = self._wanted.get_nowait().reports
            except Empty:
                return
            if reports is not None:
                reports.put((self._master, trouble))

    def stop(self) -> None:
        """Ends the thread."""
        super().stop()
        self._wanted.put(Wish())
