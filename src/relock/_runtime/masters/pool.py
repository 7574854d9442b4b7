"""The connections to one master, each for one caller at a time."""

import logging
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from redis import exceptions as redis_errors

from relock._core.effects import Answer, Failure
from relock._core.hold import FOREVER
from relock._errors import ConfigurationError
from relock._keys import LockKeys
from relock._options import ClientOptions
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.masters.known import MasterListener
from relock._runtime.masters.lines import Line
from relock._runtime.masters.links import PATIENT_PART, Link, LinkOwner
from relock._runtime.masters.round import Pending, Round
from relock._runtime.net.failures import failure_of, is_refusal
from relock._runtime.net.node import Node
from relock._runtime.net.wire import Wire
from relock._runtime.platform import Platform
from relock._scripts import Prepared

logger = logging.getLogger(__name__)

FRESH_SECONDS = 1.0  # a link that was used within this time is taken without a look at it
OWED_MAX = 64  # requests that a slow link may owe replies to before it is spared
RETRY_SECONDS_MAX = 1.0
DRAIN_SECONDS = 0.02
UNUSED_SECONDS = 30.0  # a connection that was not needed for so long is closed, but for the last one


class Prober(Protocol):
    """Tries a master that is down, in the background."""

    def probe(self) -> None:
        """The master has just gone down."""


class Pool(LinkOwner):
    """The links to one master.

    Of the links, ``max_connections`` are for everybody. What renews, undoes and tends has its own beside these, once
    none of them is free: it must not wait behind calls, and must not keep theirs from them.
    """

    asked_late: Failure
    line: Line
    sweep_at: float
    was_sound: bool

    def __init__(
        self, index: int, node: Node, options: ClientOptions, platform: Platform, listener: MasterListener
    ) -> None:
        super().__init__(index, node, options, platform, listener)
        self.down: str | None = None
        self._answers_since: float | None = None  # since then it does again, while it is down
        self.asked_late = Failure(node.address, "it is connected; there was no time left to ask it", awaited=True)
        self.opener: Prober | None = None  # one of several masters has one, so that nobody waits for a connection
        self.line = Line(platform)  # of calls that wait for a link; masters that are asked together have one
        # What was used last is at the end, and is used next: those that nobody needs gather at the beginning.
        self._idle: deque[Link] = deque()
        self._own_idle: deque[Link] = deque()
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()  # all for everybody, in use or idle
        self._own_links: weakref.WeakSet[Link] = weakref.WeakSet()  # those beside
        self._links_max = options.max_connections
        self.sweep_at = FOREVER  # our time at which a link may have been unused for too long
        self._is_closed = False
        self.was_sound = False
        self.unfit: ConfigurationError | None = None  # why it was never a master that can be used

    def give_up_others(self, incarnation: bytes) -> None:
        """See `MasterState.give_up_others`."""
        for link in [*self._idle, *self._own_idle]:
            if link.incarnation != incarnation:
                self._drop(link)

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

    def exchange(
        self, request: Prepared, keys: LockKeys, owner: bytes, sent_at: float, until: float
    ) -> Sequence[Answer] | None:
        """Asks this master alone for what was prepared: the usual case, where it is well and nothing is in the way.

        Returns its answer, which goes on being filled; None where nothing was sent, for another way is to be taken.
        """
        link = None if until - sent_at < PATIENT_PART * self.node_timeout else self._take_idle(sent_at)
        if link is None:
            return None
        answer, is_ours = None, True
        try:
            answer = link.exchange(request, keys, owner, sent_at, until)
            if isinstance(answer, Pending):
                link.go_on(answer)
            elif not link.is_retired:
                is_ours = False  # before it is in the pool: there it may be another caller's at once
                self.give_back(link, sent_at)
        except NETWORK_ERRORS as error:
            if not isinstance(answer, Pending):
                return [(self.broke(link, error),)]
            self.drop(link, answer.round, error)
        else:
            if not isinstance(answer, Pending):
                return [(answer,)]
            is_ours = False
            self.put_back(link, answer.round, self.clock())
        finally:
            if is_ours:
                link.close()
        return answer.round.answers

    def _take_idle(self, now: float) -> Link | None:
        """A link that is sure to be open and owes nothing, for the caller alone, unless others wait for one."""
        try:
            link = None if self.line.waiting else self._idle.pop()
        except IndexError:
            return None
        if link is not None and (link.owed or now - link.idle_since >= FRESH_SECONDS):
            self._idle.append(link)
            return None
        return link

    def drop(self, link: Link, round_: Round, error: BaseException) -> None:
        """A link broke: whatever the master has not answered of `round_` by now, it does not answer any more."""
        failure = self.broke(link, error)
        if round_.awaits_answer_of(self):
            round_.missing -= 1
            round_.fail(self, failure)

    def put_back(self, link: Link, round_: Round, now: float) -> None:
        """Takes a link back on which `round_` was asked, unless the master has been silent on it for too long."""
        owed = link.owed
        if link.is_retired:
            link.close()
        elif not owed or now - owed[0].sent_at < PATIENT_PART * self.node_timeout or self.is_drained(link, now):
            self.give_back(link, now)
        else:
            round_.fail(self, self.broke(link, redis_errors.TimeoutError("Timeout waiting for a reply")))

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
